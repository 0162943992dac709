"""What the programs of dev/bench share: packages that may not be there, options, files of rows, and the measured figures,
doc/measured/SUBJECT.json, an object of tables each; what the trainers read and write. Standard library only.
"""
import argparse
import array
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
SUBJECTS = {path.stem: path for path in sorted(Path(ROOT, "doc", "measured").glob("*.json"))}
LOADED = set()  # names of tables

# who races, as bench_layernorm.py and as the tables call them
PROVIDERS = {"ours": "ours", "torch.compile": "torch.compile", "torch": "torch", "triton": "Triton's tutorial, our port",
             "liger": "Liger", "quack": "QuACK", "flash_attn": "flash-attention's Triton"}


def needs(doc, *packages):
    """prints doc for -h and --help, where a package is missing, and ends; without that, ends with what to install"""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing and {"-h", "--help"} & set(sys.argv[1:]):
        print(doc.strip())
        raise SystemExit(0)
    if missing:
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: no package {', '.join(missing)}; expected: pip install {' '.join(packages)}")


def parser(doc):
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


# ---- files of rows ------------------------------------------------------------------------------
class Number(str):
    """a number of a JSON file, spelled as it is there"""


def spelled(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{spelled(k)}: {spelled(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spelled, value)) + "]"
    return value if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def text_of(table, indent=""):
    """lists of objects have a line for each"""
    def field(key, value):
        rows = isinstance(value, list) and value and isinstance(value[0], dict)
        lines = ",\n".join(f"{indent}    {spelled(row)}" for row in value) if rows else ""
        return f"{indent}  {spelled(key)}: " + (f"[\n{lines}\n{indent}  ]" if rows else spelled(value))
    return "{\n" + ",\n".join(field(*each) for each in table.items()) + f"\n{indent}}}"


def add_rows(path, head, rows, *keys):
    """into a file, in place of its rows that are the same in the fields `keys`; a file of another GPU or date is replaced"""
    path = Path(path)
    old = json.loads(path.read_text(), parse_float=Number, parse_int=Number) if path.exists() else {}
    if any(old.get(key) != head.get(key) for key in ("gpu", "date") if key in head):
        old = {}

    def name(row):
        return [str(row.get(key) or None) for key in keys]
    new = [name(row) for row in rows]
    kept = [row for row in old.get("rows", []) if name(row) not in new]
    path.write_text(text_of({**old, **head, "rows": kept + rows}) + "\n")


def measured_here(command, **more):
    """the head of a table that this process measures on its GPU"""
    import torch
    return {"gpu": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"), "pytorch": torch.__version__, **more,
            "command": f"dev/bench/{command}"}


# ---- files of the trainers ----------------------------------------------------------------------
def write_shard(path, tokens, vocabulary=50257):
    with open(path, "wb") as file:
        array.array("i", [20240520, 1, len(tokens), vocabulary] + 252 * [0]).tofile(file)
        array.array("H", tokens).tofile(file)


def log_rows(run, field):
    """the lines of a run's log.jsonl that have this field; the last one may be half written"""
    try:
        with open(os.path.join(run, "log.jsonl")) as log:
            return [row for row in (json.loads(line) for line in log if line.endswith("\n")) if field in row]
    except FileNotFoundError:
        return []


# ---- doc/measured -------------------------------------------------------------------------------
def subject(name):
    """a subject's tables"""
    return json.loads(SUBJECTS[name].read_text(), parse_float=Number, parse_int=Number)


def load(name):
    """name: "race/points", a table of a subject"""
    of, _, table = name.partition("/")
    LOADED.add(name)
    return subject(of)[table]


def store(name, data):
    """in place of the table of that name"""
    of, _, table = name.partition("/")
    tables = {**subject(of), table: data}
    lines = ",\n".join(f'  {json.dumps(key)}: {text_of(value, "  ")}' for key, value in tables.items())
    SUBJECTS[of].write_text("{\n" + lines + "\n}\n")


def head_commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                          check=False).stdout.strip()


# ---- lines of a table ---------------------------------------------------------------------------
def source(data):
    """the line below a table: what was measured, when, and how"""
    dates = sorted({row["date"] for row in data["rows"] if "date" in row}) or [data.get("date", "")]
    date = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    words = [data.get("gpu") or data.get("cpu", ""), date]
    words += [f"{key} {data[key]}" for key in ("cuda", "driver", "pytorch", "triton", "openblas", "cudnn") if key in data]
    words += [data["others"]] if "others" in data else []
    text = ", ".join(word for word in words if word)
    text += f": `{data['command']}`" if "command" in data else ""
    text += (("; " if text else "") + data["note"] if "note" in data else "") + "."
    return ["", *textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)]


def cell(value):
    """49.80 of {us: 49.80, percent_of_roof: 97.1} and 97.1 after it; median (80 %, 20 % quantile)"""
    if value is None:
        return ""
    if isinstance(value, dict):
        if "p80" in value:
            return "%s (%s, %s)" % tuple(value.values())
        return ", ".join(cell(v) for v in value.values())
    return str(value).replace("|", "\\|")


def markdown(head, lines):
    return ["| " + " | ".join(name.replace("|", "\\|") for name in head) + " |", "|" + "---|" * len(head)] + [
        "| " + " | ".join(line) + " |" for line in lines]


def shape(row):
    return f"{row['N']}x{row['C']} {row['dtype']}"
