"""The measured figures, doc/measured/SUBJECT.json, an object of tables each: reading, writing, and the lines of a table.
Standard library only.
"""
import json
import os
import subprocess
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "doc", "measured")

# who races, as bench_layernorm.py and as the tables call them
PROVIDERS = {"ours": "ours", "torch.compile": "torch.compile", "torch": "torch", "triton": "Triton's tutorial, our port",
             "liger": "Liger", "quack": "QuACK", "flash_attn": "flash-attention's Triton"}


class Number(str):
    """a number of a JSON file, spelled as it is there"""


def subject(name):
    """a subject's tables"""
    with open(os.path.join(FOLDER, name + ".json")) as file:
        return json.load(file, parse_float=Number, parse_int=Number)


def load(name):
    """name: "race/points", a table of a subject"""
    of, _, table = name.partition("/")
    return subject(of)[table]


def spelled(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {spelled(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spelled, value)) + "]"
    return value if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def store(name, data):
    """in place of the table of that name; lists of objects have a line for each"""
    of, _, table = name.partition("/")
    tables = {**subject(of), table: data}

    def field(key, value):
        rows = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n" + ",\n".join("      " + spelled(row) for row in value) + "\n    ]" if rows else spelled(value)
        return f"    {json.dumps(key, ensure_ascii=False)}: {text}"

    with open(os.path.join(FOLDER, of + ".json"), "w") as file:
        file.write("{\n" + ",\n".join(f"  {json.dumps(key)}: {{\n" + ",\n".join(field(*each) for each in value.items()) + "\n  }"
                                      for key, value in tables.items()) + "\n}\n")
    return 0


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
    return ["| " + " | ".join(name.replace("|", "\\|") for name in head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(line) + " |" for line in lines]


def head_commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                          check=False).stdout.strip()


def shape(row):
    return f"{row['N']}x{row['C']} {row['dtype']}"
