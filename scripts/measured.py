"""The files of measured figures, doc/measured/*.json: reading, writing, and the lines of a table. Standard library only."""
import json
import os
import subprocess
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "doc", "measured")


class Number(str):
    """a number of a JSON file, spelled as it is there"""


def load(name):
    with open(os.path.join(FOLDER, name + ".json")) as file:
        return json.load(file, parse_float=Number, parse_int=Number)


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


def write_rows(name, head, rows):
    def spelled(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(k)}: {spelled(v)}" for k, v in value.items()) + "}"
        return value if isinstance(value, Number) else json.dumps(value)

    lines = ["    " + spelled(row) for row in rows]
    with open(os.path.join(FOLDER, name + ".json"), "w") as file:
        file.write("".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items()).join(["{\n", '  "rows": [\n'])
                   + ",\n".join(lines) + "\n  ]\n}\n")
    return 0
