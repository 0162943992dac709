#!/usr/bin/env python3
"""Writes the tables of measured figures into the documents, from doc/measured. Standard library only.

    dev/bench/tables.py                        write every table, between  <!-- table: NAME -->  and  <!-- end -->
    dev/bench/tables.py --report FILE          write those that no document shows into FILE
    dev/bench/tables.py --check                nothing is written; exit 1 if a table is not what its JSON gives or shown nowhere,
                                             if a figure stands in prose, or if a link or a quoted path leads nowhere
    dev/bench/tables.py --take FILE layernorm/shapes    the rows that a shootout wrote (--json FILE), in place of older ones of the call
    dev/bench/tables.py --take FILE ladder/attention    those of attention_forward or _backward, in place of all older ones
    dev/bench/tables.py --take FOLDER race/points       what dev/bench/bench_layernorm.py --out FOLDER wrote, in place of all
    dev/bench/tables.py --take FILE attention/h100      what dev/bench/bench_attention.py wrote; so is any other file that is a
                                             table, such as --profile's (step/d12_b64) or bench_models.py's (pytorch/compiled)

doc/measured/SUBJECT.json holds a subject's tables; each says where its figures come from (gpu, date, command, note) and has a
row a line. Numbers are printed as they are written there, so 49.80 stays 49.80. Rows that are not shown as they are take an
entry of TABLES or REPORT below.
"""
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from lab import (LOADED, Number, PROVIDERS, ROOT, SUBJECTS, cell, head_commit, load, markdown, parser, shape, source, store,
                 subject)

CALLS = {"1R1W": "forward", "2R2W": "residual", "2R1W": "backward", "3R1W": "backward +="}  # by the roof's streams
TYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8}


def flat(name, columns=None):
    """rows as they are; columns: fields, or field -> heading; by default all, in the order in which rows name them"""
    data = load(name)
    fields = columns or dict.fromkeys(field for row in data["rows"] for field in row)
    heads = columns.values() if isinstance(columns, dict) else ["" if field in ("row", "shape") else field for field in fields]
    return markdown(heads, [[cell(row.get(field)) for field in fields] for row in data["rows"]]) + source(data)


def whole(row):
    return int(row["C"]) % (16 // TYPE_BYTES[row["dtype"]]) == 0


def pivot(data, heads, cells, columns=None):
    """a line for each labels (a tuple, under heads) of the cells (labels, column, text), a column for each of theirs"""
    lines = {}
    for labels, column, text in cells:
        lines.setdefault(labels, {})[column] = text
    columns = columns or dict.fromkeys(column for _, column, _ in cells)
    return markdown([*heads, *map(str, columns)], [[*labels, *(line.get(column, "") for column in columns)]
                                                   for labels, line in lines.items()]) + source(data)


def calls(name, keep=lambda row: True):
    """a line a shape, a column for each of forward, residual, backward, backward +="""
    data = load(name)
    cells = [((shape(row),), CALLS[row["roof"][:4]], f"{row['us']}, {row['percent_of_roof']}")
             for row in data["rows"] if keep(row)]
    return pivot(data, [""], cells, [call for call in CALLS.values() if call in {column for _, column, _ in cells}])


def ladder(op, blocks):
    """a line a rung, for both shapes; the last two are the function that trains, and the roof"""
    data = load("ladder/layernorm")
    rows = [row for row in data["rows"] if row["op"] == op]
    rows[-2:-2] = [dict(row, idea="chooses among the kernels that train") for row in load("layernorm/shapes")["rows"]
                   if row["op"] == op and not row["roof"].startswith("3R1W")
                   and shape(row) in ("65536x768 bf16", "4096x8192 fp16")]
    lines = {}
    for row in rows:
        block = f" ({row['block']})" if blocks and "block" in row else ""
        line = lines.setdefault(row["version"], [row["version"], row["idea"]])
        line += [row["note"], ""] if "note" in row else [row["us"] + block, row.get("percent_of_roof", "")]
    unit = "µs (block)" if blocks else "µs"
    return markdown(["version", "idea", f"65536x768 bf16: {unit}", "% roof", f"4096x8192 fp16: {unit}", "% roof"],
                    lines.values()) + source(data)


def attention_ladder(direction, shown=None):
    """a line a rung, a column a shape; the roof's three parts, of which the longest counts, come last"""
    data = load("ladder/attention")
    return pivot(data, ["version", "idea"], [
        ((row["version"], row["idea"]), row["shape"], ", ".join(row[key] for key in ("us", "percent_of_roof") if key in row))
        for row in data["rows"] if row["op"] == "attention_" + direction and (not shown or row["shape"] in shown)])


def latency():
    data = load("layernorm/latency")
    cells = [((f"{row['op'].replace('layernorm_', '').replace('_forward', '')} {row['dtype']}",), int(row["C"]),
              f"{row['us']} ({row['roof_us']})") for row in data["rows"]]
    return pivot(data, ["columns"], cells, sorted({column for _, column, _ in cells}))


# ---- goals --------------------------------------------------------------------------------------
def goals():
    data, heads = load("layernorm/goals"), list(CALLS.values())
    return markdown([""] + heads, [[row["what"]] + [" / ".join(row["goals"].get(h, [])) for h in heads]
                                   for row in data["rows"]]) + source(data)


def goal_of(call, row):
    """the share that this row must have, or None"""
    of = {"rows": int(row.get("N", 0)), "columns": int(row["C"]), "bytes": int(row["C"]) * TYPE_BYTES[row["dtype"]]}
    for goal in load("layernorm/goals")["rows"]:
        within = all(int(goal[field][0]) <= value <= int(goal[field][1]) for field, value in of.items() if field in goal)
        if within and row["dtype"] in goal.get("types", TYPE_BYTES) and goal["vectors"] == whole(row) and call in goal["goals"]:
            return float(goal["goals"][call][0])
    return None


def shares(name):
    """(call, row, share) of each figure of a file, of whichever of the two forms"""
    for row in load(name)["rows"]:
        if "percent_of_roof" in row:
            yield CALLS[row["roof"][:4]], row, float(row["percent_of_roof"])
        for key in row:
            call, _, dtype = key.rpartition(" ")
            if call in CALLS.values() and re.fullmatch(r"[\d.]+", row[key]):
                yield call, {"C": row["columns"], "dtype": dtype}, float(row[key])


def misses():
    lines = []
    for name, part in (("layernorm/shapes", 1), ("layernorm/widths", 1), ("layernorm/unaligned_widths", 1), ("layernorm/sm80", 0.8)):
        for call, row, share in shares(name):
            counts = part == 1 or int(row["C"]) * TYPE_BYTES[row["dtype"]] <= 65536
            must = counts and goal_of(call, row)
            if must and share < must * part:
                where = shape(row) if "N" in row else f"{row['C']} columns {row['dtype']}"
                lines.append([call, where, "before Hopper" if part < 1 else "Hopper", f"{share:g}", f"{must * part:g}"])
    return markdown(["", "", "built for", "% of the roof", "must"], lines or [["none", "", "", "", ""]])


# ---- the race of LayerNorms, and the training step -----------------------------------------------
CLOCKS = {"kernel time": "kernel time, us, and GB/s of useful bytes (2 N C elements forward, 3 N C backward)",
          "tutorial's clock": "GB/s by triton.testing.do_bench, at five places in memory, at the median, the 80 and the 20 % quantile"}


def rates(row, clock):
    """who -> GB/s of one point; who has none by this clock is left out"""
    found = {who: row[who] if clock == "kernel time" else row[who].get("clock", {})
             for who in PROVIDERS.values() if isinstance(row.get(who), dict)}
    return {who: float(times["gb_per_s"]) for who, times in found.items() if "gb_per_s" in times}


def lead(row, clock):
    """ours over the fastest other's, 0 where ours has no time, and who that other is"""
    others = rates(row, clock)
    ours = others.pop("ours", 0)
    best = max(others, key=others.get, default=None)
    if best is None:
        return float("inf"), "nobody"
    if clock == "kernel time" and ours:
        return float(row[best]["us"]) / float(row["ours"]["us"]), best
    return ours / others[best], best


def race(data, direction, clock):
    """a line a point, a column for each who races and for each other field of the rows"""
    def shown(value):
        if not isinstance(value, dict):
            return cell(value)
        times = value.get("clock") if clock != "kernel time" else "us" in value and {k: value[k] for k in ("us", "gb_per_s")}
        return cell(times) if times else cell(value.get("note"))

    rows = [row for row in data["rows"] if row["direction"] == direction]
    fields = [f for f in dict.fromkeys(f for row in rows for f in row) if f != "direction"]
    last = [f for f in fields if f.startswith("published")] if clock == "kernel time" else []
    fields = [f for f in fields if not f.startswith("published")]
    lines = [[shown(row.get(f)) for f in fields] + [f"{lead(row, clock)[0]:.2f}"] + [row.get(f, "") for f in last] for row in rows]
    return markdown(fields + ["ours / best other, GB/s"] + last, lines) + source({**data, "note": CLOCKS[clock]})


def race_summary():
    """where ours is ahead of everyone, and where it is not"""
    data, lines = load("race/points"), []
    for clock in CLOCKS:
        for direction in ("forward", "backward"):
            leads = [(*lead(row, clock), row["shape"]) for row in data["rows"] if row["direction"] == direction and rates(row, clock)]
            behind = [f"{shape} ({who}, {ratio:.2f})" for ratio, who, shape in leads if ratio <= 1]
            nearest = min((each for each in leads if each[0] > 1), default=None)
            lines.append([direction, clock, f"{len(leads) - len(behind)} of {len(leads)}",
                          f"{nearest[2]} ({nearest[1]}, {nearest[0]:.2f})" if nearest else "", ", ".join(behind) or "nowhere"])
    note = "in brackets the fastest other, and GB/s of ours over its"
    return markdown(["", "", "ours ahead at", "the nearest there", "behind at"], lines) + source({**data, "note": note})


STEPS = {"124M, B=64, H100": "step/d12_b64", "124M, B=64, H200": "step/d12_b64_h200", "1558M, B=8, H100": "step/d48_b8"}
PRODUCTS = ("products, forward", "products, input's gradient", "products, weight's gradient")


def percent(part, whole):
    return f"{100 * float(part) / float(whole):.1f}" if float(whole) > 0 and float(part) > 0 else ""


def taken(data):
    return ["", f"{data['gpu']}, {data['date']}: {data['model']}."]


def step_parts(name):
    data = load(name)
    lines = [[part["part"], part["calls"], part["work"], part["roof"], percent(part["ms"], data["recorded_ms"]),
              percent(part["floor_ms"], part["ms"])] for part in data["parts"] if int(part["calls"]) > 0]
    lines.append(["idle", "", "", "", percent(data["idle_ms"], data["recorded_ms"]), ""])
    lines.append(["**the recorded step**", "", "", "", "100.0", percent(data["floors_ms"], data["recorded_ms"])])
    return markdown(["part", "calls", "work", "roof", "% of the step", "floor, % of it"], lines) + taken(data)


def step_sums():
    """a line a step that was measured: S, and S of the products alone"""
    lines = []
    for label, name in STEPS.items():
        data = load(name)
        products = [part for part in data["parts"] if part["part"] in PRODUCTS]
        waits = sum(float(call["a_step"]) for call in data["calls"] if call["waits"])
        lines.append([label, data["S"], percent(sum(float(p["floor_ms"]) for p in products), sum(float(p["ms"]) for p in products)),
                      percent(data["idle_ms"], data["recorded_ms"]), f"{waits:.1f}"])
    return markdown(["", "S", "products' floor, % of them", "idle, %", "calls a step in which the host waits"], lines)


def step_products(name):
    data = load(name)
    columns = {"first_us": "first", "best_us": "best", "same_bits_us": "best with its bits"}
    lines = [[p["name"], p["part"].removeprefix("products, "), f"{p['N']} x {p['C']} x {p['OC']}", p["calls"]]
             + [p[c] if float(p.get(c, 0)) > 0 else "" for c in columns] for p in data["products"]]
    return markdown(["product", "", "N x C x OC", "calls"] + list(columns.values()), lines) + taken(data)


def short_step():
    """beside PyTorch in one call, by dev/bench/bench_training.py"""
    data, lines = load("training/bench"), []
    for row in data["rows"]:
        sides = [part for side in (row["plumb"], row["pytorch"])
                 for part in (f"{side['ms']} ({side['p20']}, {side['p80']})", side["tokens_per_s"])]
        label = f"{row['model']}, B={row['batch']}" + ", --tune-gemm" * row.get("tune_gemm", False)
        lines.append([label + (f", {row['gpu']}" if "gpu" in row else ""), *sides, row["ratio"]])
    return markdown(["", "plumb, ms a step (20 %, 80 %)", "tokens/s", "torch.compile, its fastest attention", "tokens/s",
                     "times PyTorch's"], lines) + source(data)


# ---- the tables ---------------------------------------------------------------------------------
HEADLINES = ("65536x768 bf16", "4096x1024 fp16", "4096x8192 fp16", "8192x32768 bf16", "65536x769 bf16",
             "524288x64 bf16")
PEERS = ("65536x768 bf16", "4096x8192 fp16")
LESSON_SHAPES = ("64x12x1024", "4x12x8192")


def short_peers():
    keep = {f"{row['direction']} {row['shape']}": row for row in load("race/points")["rows"] if row["shape"] in PEERS}
    who = [p for p in PROVIDERS.values() if any(p in row for row in keep.values())]
    lines = [[label] + [row.get(p, {}).get("us", "") for p in who] for label, row in keep.items()]
    return markdown(["µs"] + who, lines) + source({**load("race/points"), "note": CLOCKS["kernel time"]})


def durable():
    """a line a kind of fault, and one for the fuzzers"""
    data, lines = load("durable/cases"), {}
    found = [(row["fault"].partition(":")[0], row["tried"], row["lost"]) for row in data["rows"]]
    found += [("libFuzzer", row["inputs"].replace(",", ""), row["findings"]) for row in load("durable/fuzz")["rows"]]
    for kind, tried, lost in found:
        lines[kind] = [a + b for a, b in zip(lines.get(kind, (0, 0, 0)), (1, int(tried), int(lost)))]
    return markdown(["fault", "programs, readers or ways", "tried", "lost"],
                    [[kind, *(f"{n:,}" for n in line)] for kind, line in lines.items()]) + source({**data, "rows": []})


def usual(row):
    return whole(row) and int(row["C"]) >= 768


# what documents show, but for tables of doc/measured whose rows are shown as they are: those go by their own names
TABLES = {
    "headlines": lambda: calls("layernorm/shapes", lambda row: shape(row) in HEADLINES),
    "short-step": short_step,
    "short-peers": short_peers,
    "misses": misses,
    "attention-forward": lambda: attention_ladder("forward", LESSON_SHAPES),
    "attention-backward": lambda: attention_ladder("backward", LESSON_SHAPES),
    "lesson-forward": lambda: ladder("layernorm_forward", False),
    "lesson-residual": lambda: ladder("residual_layernorm_forward", False),
    "lesson-backward": lambda: ladder("layernorm_backward", False),
    "race-summary": race_summary,
    "durable": durable,
    "step-sums": step_sums,
    "step-d12-b64": lambda: step_parts("step/d12_b64"),
    "muon": lambda: flat("muon/losses", ["job", "optimizer", *(f"lr {lr}" for lr in "1e-3 2e-3 4e-3 8e-3 1.6e-2 3.2e-2".split()),
                                         "steps to AdamW's best"]),
    "layernorm-pytorch-models": lambda: flat("pytorch/models", {"row": "", "nn.LayerNorm ms": "nn.LayerNorm, ms", "ours ms": "ours, ms",
                                                                "nn / ours": "nn / ours", "apart at most": "losses apart at most"}),
}

PRODUCTS_TITLE = ("Products of {}, us a call: the algorithm proposed first; the fastest of the proposals and of the first one's variants; "
                  "the fastest with the first one's bits")
# what no document shows: `make tables` writes it into a page of its own, and with it each table of doc/measured that has a title
REPORT = {
    "LayerNorm, whole vectors of 16 bytes: us, % of the roof of the same process, cold L2": lambda: calls("layernorm/shapes", usual),
    "Short rows": lambda: calls("layernorm/shapes", lambda row: not usual(row) and int(row["C"]) <= 513),
    "Rows that are not whole vectors": lambda: calls("layernorm/shapes", lambda row: not usual(row) and int(row["C"]) > 513),
    "One row: us of a launch, in brackets one block that copies what the op reads and writes": latency,
    "Built for sm_80, without clusters and TMA": lambda: calls("layernorm/sm80"),
    "Goals: shares of the roof, must / aim": goals,
    "LayerNorm's ladders with each rung's best block: forward": lambda: ladder("layernorm_forward", True),
    "Residual": lambda: ladder("residual_layernorm_forward", True),
    "Backward": lambda: ladder("layernorm_backward", True),
    "Beside others, forward, kernel time: us and GB/s": lambda: race(load("race/points"), "forward", "kernel time"),
    "Beside others, backward, kernel time; last what two copies of the tutorial print, GB/s by its clock":
        lambda: race(load("race/points"), "backward", "kernel time"),
    "Forward, the tutorial's clock: GB/s at the median, in brackets at the 80 and the 20 % quantile":
        lambda: race(load("race/points"), "forward", "tutorial's clock"),
    "Backward, the tutorial's clock": lambda: race(load("race/points"), "backward", "tutorial's clock"),
    "Attention's ladder, forward: us, % of the roof": lambda: attention_ladder("forward"),
    "Attention's ladder, backward": lambda: attention_ladder("backward"),
    "A step's parts: 124M, B=64, on an H200": lambda: step_parts("step/d12_b64_h200"),
    "A step's parts: 1558M, B=8": lambda: step_parts("step/d48_b8"),
    PRODUCTS_TITLE.format("124M, B=64"): lambda: step_products("step/d12_b64"),
    PRODUCTS_TITLE.format("124M, B=64, on an H200"): lambda: step_products("step/d12_b64_h200"),
    PRODUCTS_TITLE.format("1558M, B=8"): lambda: step_products("step/d48_b8"),
    "Which optimizer for a text, and after how many epochs it ends lowest: validation loss": lambda: flat("muon/texts", [
        "text", "optimizer", *"0.25 0.5 1 1.3 2 3 4 5 6.5 7 10 20 40".split()]),
}


def measured():
    return {f"{of}/{name}" for of in SUBJECTS for name in subject(of)}


def table(name):
    if name not in TABLES and name not in measured():
        raise SystemExit(f"no table {name}; known: {' '.join([*TABLES, *sorted(measured())])}")
    return TABLES[name]() if name in TABLES else flat(name)


def page():
    """title -> lines"""
    titled = {data["title"]: flat(f"{of}/{name}") for of in SUBJECTS for name, data in subject(of).items() if "title" in data}
    return {title: what() for title, what in REPORT.items()} | titled


# ---- what a program measured, into doc/measured ---------------------------------------------------
def points_in(folder):
    """what bench_layernorm.py has put into a folder, in the tables' order: a line of its files a point, the last one counts"""
    points = {}
    for path in sorted(Path(folder).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # empty, or cut short by a kill
                point = json.loads(line)
                points[str(point["point"])] = point
    return sorted(points.values(), key=lambda point: point["order"])


def race_of(points):
    """the table race/points of them: a row a point"""
    rows = {}
    for row in (row for point in points for row in point["rows"]):
        line = rows.setdefault((row["mode"], shape(row)), {"direction": row["mode"], "shape": shape(row)})
        times = {"us": Number(f"{row['us']:.2f}"), "gb_per_s": Number(f"{row['GB/s']:.0f}")} if "us" in row else {}
        if row.get("places", 5) != 5:
            print(f"by the tutorial's clock at {row['places']} places: {row['mode']} {shape(row)}, {row['provider']}")
        if "tutorial p50 us" in row:
            times["clock"] = {key: Number(f"{row[f'tutorial {q} GB/s']:.0f}")
                              for key, q in (("gb_per_s", "p50"), ("p80", "p80"), ("p20", "p20"))}
        line[PROVIDERS.get(row["provider"], row["provider"])] = times | ({"note": row["note"]} if "note" in row else {})
    head = {key: ", ".join(sorted({p["head"][key] for p in points})) for key in ("gpu", "date", "pytorch", "triton", "others")}
    head |= {"commit": head_commit(), "command": "dev/bench/bench_layernorm.py --sweep --gpt2"}
    return head | {"rows": list(rows.values())}


def take_race(folder):
    """what others have published stays"""
    old, data = {(row["direction"], row["shape"]): row for row in load("race/points")["rows"]}, race_of(points_in(folder))
    for row in data["rows"]:
        row.update({f: v for f, v in old.get((row["direction"], row["shape"]), {}).items() if f.startswith("published")})
    return store("race/points", data)


def take_attention_ladder(found):
    context, op = found["context"], found["context"]["op"]
    old = [row for row in load("ladder/attention")["rows"] if row["op"] != op]

    def where(row):
        return f"{row['N'] // row['T']}x{row['C'] // 64}x{row['T']}"
    rows = [{"op": op, "version": row["version"], "idea": row["idea"], "shape": where(row), "us": Number(f"{row['us']:.1f}"),
             "tflop_per_s": Number(f"{row['tflop_per_s']:.1f}"), "percent_of_roof": Number(f"{row['percent_of_roof']:.1f}")}
            for row in found["rows"] if row["ok"] and row["us"] and row["percent_of_roof"]]
    rows += [{"op": op, "version": "roof", "idea": part, "shape": where(roof), "us": Number(f"{roof[part + ' us']:.1f}")}
             for roof in found["roofs"] for part in ("products", "exponentials", "bytes")]
    head = {"gpu": context["gpu"], "cuda": context["cuda_runtime"], "driver": context["driver"], "date": context["date"][:10],
            "commit": head_commit(), "command": "dev/cuda/OP"}
    return store("ladder/attention", head | {"rows": sorted(old + rows, key=lambda row: row["op"], reverse=True)})


def take_shootout(found, name):
    """rows of ship in place of older ones of the same call"""
    context, data = found["context"], load(name)
    rows = data["rows"]
    slow = {(roof["dtype"], roof["N"], roof["C"]) for roof in found["roofs"] if roof.get("counts") is False}

    def key(row):
        return row["op"], row["roof"][:4], row["dtype"], int(row["N"]), int(row["C"])
    for row in found["rows"]:
        if row["version"] != "ship" or row["us"] is None or row["percent_of_roof"] is None or "block" in row["roof"]:
            continue
        if not row["ok"] or (row["dtype"], row["N"], row["C"]) in slow:
            print(f"left out: {shape(row)}: " + ("its roof is slower than is known" if row["ok"] else "wrong"))
            continue
        new = {field: Number(row[field]) if isinstance(row[field], int) else row[field]
               for field in ("op", "version", "dtype", "N", "C")}
        new |= {"us": Number(f"{row['us']:.2f}"), "percent_of_roof": Number(f"{row['percent_of_roof']:.1f}"),
                "roof": row["roof"], "date": context["date"][:10], "commit": head_commit()}
        new |= {"command": context["command"]} if "command" in context else {}
        new |= {"gpu": context["gpu"]} if context["gpu"] != data["gpu"] else {}
        at = next((i for i, old in enumerate(rows) if key(old) == key(new)), len(rows))
        rows[at:at + 1] = [new]
    return store(name, data)


def take(path, name):
    if name == "race/points":
        return take_race(path)
    text = Path(path).read_text()
    found = json.loads(text)
    if name == "ladder/attention":
        return take_attention_ladder(found)
    if "context" in found:
        return take_shootout(found, name)
    new = json.loads(text, parse_float=Number, parse_int=Number)
    of, _, known = name.partition("/")
    title = {key: value for key, value in subject(of).get(known, {}).items() if key == "title"}
    rows = {"commit": head_commit(), "rows": new.pop("rows")} if "rows" in new else {}
    return store(name, title | new | rows)


# ---- documents ----------------------------------------------------------------------------------
MARKED = re.compile(r"(<!-- table: ([\w/-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def documents():
    found = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True,
                           text=True, check=False)
    paths = found.stdout.split() if found.returncode == 0 else [  # no git here: all but build/
        str(path.relative_to(ROOT)) for path in Path(ROOT).rglob("*.md") if "build" not in path.parts]
    return {path: Path(ROOT, path).read_text() for path in sorted(set(paths))}


def filled(text):
    return MARKED.sub(lambda match: match[1] + "\n".join(table(match[2])) + "\n" + match[4], text)


FIGURE = re.compile(r"\d[\d.,]*k?\s*(?:us|µs|microseconds|ms|[MGT]B/s|(?:million\s+)?tokens/s)\b"
                    r"|\d[\d.]*\s*%\s+of\s+(?:the|its|their|a)\s+(?:\w+\s+)?roof")
MAY_HAVE_FIGURES = ("doc/tried.md", "doc/layernorm.md", "doc/attention.md")  # lessons argue with figures
LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTED_PATH = re.compile(r"`((?:llmc|dev|doc|data|scripts)/[\w./-]+\.(?:h|cuh|cu|cpp|md|sh|py|pl|json|svg|toml))`")
SNIPPET = re.compile(r"```cpp\n\s*// (llmc/\S+)\n(.*?)```", re.S)


def prose(text):
    return re.sub(r"```.*?```", "", MARKED.sub("", text), flags=re.S)


def slug(heading):
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def links(path, text):
    """what it names that is not there; how many it names"""
    headings = {slug(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
    targets = [t for t in LINK.findall(prose(text)) if "://" not in t]
    bad = [t for t in targets if t.startswith("#") and t[1:] not in headings]
    bad += [t for t in targets if not t.startswith("#")
            and not os.path.exists(os.path.join(ROOT, os.path.dirname(path), t.split("#")[0]))]
    quoted = QUOTED_PATH.findall(text)
    bad += [q for q in quoted if not q.startswith("data/sample/") and not os.path.exists(os.path.join(ROOT, q))]
    return bad, len(targets) + len(quoted)


def snippets(text):
    """lines of quoted code that are not in the file that they are said to be from"""
    for name, code in SNIPPET.findall(text):
        path = os.path.join(ROOT, name)
        lines = {line.strip() for line in open(path)} if os.path.exists(path) else set()
        for line in code.splitlines():
            if line.strip() and line.strip() not in lines:
                yield f"{name} has no line: {line.strip()}"


def check(texts):
    errors, passed, used = [], 0, set(page())
    for path, text in texts.items():
        found = len(errors)
        if filled(text) != text:
            errors.append(f"{path}: a table is not what doc/measured/ gives; run dev/bench/tables.py")
        used |= {match[2] for match in MARKED.finditer(text)}
        if path not in MAY_HAVE_FIGURES:
            errors += [f"{path}: a measured figure in prose: '{' '.join(f[0].split())}'; it belongs into doc/measured/"
                       for f in FIGURE.finditer(prose(text))]
        errors += [f"{path}: leads nowhere: {target}" for target in links(path, text)[0]]
        errors += [f"{path}: {line}" for line in snippets(text)]
        passed += found == len(errors)
    errors += [f"dev/bench/tables.py: no document has the table {name}" for name in TABLES if name not in used]
    errors += [f"doc/measured: nothing shows {name}" for name in sorted(measured() - LOADED)]
    for error in errors:
        print("ERROR:", error)
    print(f"{passed} documents, {len(used)} tables, {sum(links(p, t)[1] for p, t in texts.items())} links and paths")
    print(f"{passed} passed, {len(errors)} failed, 0 skipped")
    return 1 if errors else 0


def main():
    p = parser(__doc__)
    p.add_argument("--check", action="store_true")
    p.add_argument("--report", metavar="FILE")
    p.add_argument("--take", nargs=2, metavar=("FILE", "NAME"))
    options = p.parse_args()
    if options.take:
        return take(*options.take)
    if options.report:
        parts = ["# Measured\n", *(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in page().items())]
        Path(options.report).write_text("".join(parts))
        print("wrote", options.report)
        return 0
    texts = documents()
    if options.check:
        return check(texts)
    for path, text in texts.items():
        if (new := filled(text)) != text:
            Path(ROOT, path).write_text(new)
            print("wrote", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
