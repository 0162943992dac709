#!/usr/bin/env python3
"""Writes the tables of measured figures into the documents, from doc/measured/*.json. Standard library only.

    scripts/tables.py                        write every table, between  <!-- table: NAME -->  and  <!-- end -->
    scripts/tables.py --report FILE          write those that no document shows into FILE
    scripts/tables.py --check                nothing is written; exit 1 if a table is not what its JSON gives, if a
                                             figure stands in prose, or if a link or a quoted path leads nowhere
    scripts/tables.py --take FILE layernorm  take the rows that a shootout wrote (--json FILE) into
                                             doc/measured/layernorm.json, in place of older ones of the same call
    scripts/tables.py --take FILE attention_ladder      those of attention_forward or _backward, in place of all older ones
    scripts/tables.py --take FILE attention             what scripts/bench_attention.py wrote, in place of all
    scripts/tables.py --take FOLDER layernorm_race      what scripts/bench_layernorm.py --out FOLDER wrote, likewise
    scripts/tables.py --take FILE layernorm_pytorch_models      what python/bench/train_models.py wrote, in place of its rows

A JSON file says where its figures come from (gpu, date, command, note) and holds a row a line. Numbers are printed as
they are written there, so 49.80 stays 49.80. A new table is an entry of TABLES below.
"""
import argparse
import json
import os
import re
import subprocess
import sys

from measured import FOLDER, Number, ROOT, cell, head_commit, load, markdown, source, write_rows
from race_tables import CLOCKS, PROVIDERS, race, race_summary, take_models, take_race
from step_tables import step_tables

CALLS = {"1R1W": "forward", "2R2W": "residual", "2R1W": "backward", "3R1W": "backward +="}  # by the roof's streams
TYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8}


def flat(name, columns=None, keep=lambda row: True, show=cell):
    """rows as they are; columns: field -> heading, default all, in the order in which rows name them"""
    data = load(name)
    rows = [row for row in data["rows"] if keep(row)]
    if columns is None:
        fields = list(dict.fromkeys(field for row in rows for field in row))
        columns = {field: "" if field in ("row", "shape") else field for field in fields}
    return markdown(list(columns.values()), [[show(row.get(c)) for c in columns] for row in rows]) + source(data)


def shape(row):
    return f"{row['N']}x{row['C']} {row['dtype']}"


def whole(row):
    return int(row["C"]) % (16 // TYPE_BYTES[row["dtype"]]) == 0


def calls(name, keep=lambda row: True):
    """a line a shape, a column for each of forward, residual, backward, backward +="""
    data, lines = load(name), {}
    for row in filter(keep, data["rows"]):
        field = CALLS[row["roof"][:4]]
        lines.setdefault(shape(row), {})[field] = f"{row['us']}, {row['percent_of_roof']}"
    heads = [head for head in CALLS.values() if any(head in line for line in lines.values())]
    return markdown([""] + heads, [[label] + [line.get(h, "") for h in heads] for label, line in lines.items()]) + source(data)


def ladder(op, blocks):
    """a line a rung, for both shapes; the last two are the function that trains, and the roof"""
    data = load("layernorm_ladder")
    rows = [row for row in data["rows"] if row["op"] == op]
    rows[-2:-2] = [dict(row, idea="chooses among the kernels that train") for row in load("layernorm")["rows"]
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
    data, lines, shapes = load("attention_ladder"), {}, []
    for row in data["rows"]:
        if row["op"] != "attention_" + direction or shown and row["shape"] not in shown:
            continue
        shapes += [] if row["shape"] in shapes else [row["shape"]]
        line = lines.setdefault((row["version"], row["idea"]), {})
        line[row["shape"]] = row["us"] + (f", {row['percent_of_roof']}" if "percent_of_roof" in row else "")
    return markdown(["version", "idea"] + shapes,
                    [[*rung] + [line.get(s, "") for s in shapes] for rung, line in lines.items()]) + source(data)


def latency():
    data, lines = load("layernorm_latency"), {}
    columns = sorted({int(row["C"]) for row in data["rows"]})
    for row in data["rows"]:
        label = row["op"].replace("layernorm_", "").replace("_forward", "") + " " + row["dtype"]
        lines.setdefault(label, {})[int(row["C"])] = f"{row['us']} ({row['roof_us']})"
    return markdown(["columns"] + [str(c) for c in columns],
                    [[label] + [line.get(c, "") for c in columns] for label, line in lines.items()]) + source(data)


# ---- goals --------------------------------------------------------------------------------------

def goals():
    data, heads = load("layernorm_goals"), list(CALLS.values())
    return markdown([""] + heads, [[row["what"]] + [" / ".join(row["goals"].get(h, [])) for h in heads]
                                   for row in data["rows"]]) + source(data)


def goal_of(call, row):
    """the share that this row must have, or None"""
    n, c = int(row.get("N", 0)), int(row["C"])
    for goal in load("layernorm_goals")["rows"]:
        def within(field, value):
            return field not in goal or int(goal[field][0]) <= value <= int(goal[field][1])
        if (within("columns", c) and within("bytes", c * TYPE_BYTES[row["dtype"]]) and (not n or within("rows", n))
                and (n or "rows" not in goal) and row["dtype"] in goal.get("types", TYPE_BYTES)
                and goal["vectors"] == whole(row) and call in goal["goals"]):
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
    for name, part in (("layernorm", 1), ("layernorm_widths", 1), ("layernorm_unaligned_widths", 1), ("layernorm_sm80", 0.8)):
        for call, row, share in shares(name):
            must = goal_of(call, row)
            if part < 1 and int(row["C"]) * TYPE_BYTES[row["dtype"]] > 65536:
                must = None
            if must and share < must * part:
                where = shape(row) if "N" in row else f"{row['C']} columns {row['dtype']}"
                lines.append([call, where, "before Hopper" if part < 1 else "Hopper", f"{share:g}", f"{must * part:g}"])
    return markdown(["", "", "built for", "% of the roof", "must"], lines or [["none", "", "", "", ""]])


# ---- the tables ---------------------------------------------------------------------------------

HEADLINES = ("65536x768 bf16", "4096x1024 fp16", "4096x8192 fp16", "8192x32768 bf16", "65536x769 bf16",
             "524288x64 bf16")
PEERS = ("65536x768 bf16", "4096x8192 fp16")


def short_peers():
    keep = {f"{row['direction']} {row['shape']}": row for row in load("layernorm_race")["rows"] if row["shape"] in PEERS}
    who = [p for p in PROVIDERS.values() if any(p in row for row in keep.values())]
    lines = [[label] + [row.get(p, {}).get("us", "") for p in who] for label, row in keep.items()]
    return markdown(["µs"] + who, lines) + source({**load("layernorm_race"), "note": CLOCKS["kernel time"]})


def durable():
    """a line a kind of fault, and one for the fuzzers"""
    data, fuzz, lines = load("durable"), load("durable_fuzz")["rows"], {}
    for row in data["rows"]:
        line = lines.setdefault(row["fault"].partition(":")[0], [0, 0, 0])
        lines[row["fault"].partition(":")[0]] = [line[0] + 1, line[1] + int(row["tried"]), line[2] + int(row["lost"])]
    lines["libFuzzer"] = [len(fuzz), sum(int(row["inputs"].replace(",", "")) for row in fuzz), sum(int(row["findings"]) for row in fuzz)]
    return markdown(["fault", "programs, readers or ways", "tried", "lost"], [[kind, *(f"{n:,}" for n in line)] for kind, line in
                                                                 lines.items()]) + source({**data, "rows": []})


def usual(row):
    return whole(row) and int(row["C"]) >= 768


TABLES = {
    "headlines": lambda: calls("layernorm", lambda row: shape(row) in HEADLINES),
    "short-peers": short_peers,
    "ladder-forward": lambda: ladder("layernorm_forward", True),
    "ladder-residual": lambda: ladder("residual_layernorm_forward", True),
    "ladder-backward": lambda: ladder("layernorm_backward", True),
    "lesson-forward": lambda: ladder("layernorm_forward", False),
    "lesson-residual": lambda: ladder("residual_layernorm_forward", False),
    "lesson-backward": lambda: ladder("layernorm_backward", False),
    "goals": goals,
    "misses": misses,
    "whole": lambda: calls("layernorm", usual),
    "short": lambda: calls("layernorm", lambda row: not usual(row) and int(row["C"]) <= 513),
    "unaligned": lambda: calls("layernorm", lambda row: not usual(row) and int(row["C"]) > 513),
    "sm80": lambda: calls("layernorm_sm80"),
    "widths": lambda: flat("layernorm_widths"),
    "unaligned-widths": lambda: flat("layernorm_unaligned_widths"),
    "pipelined": lambda: flat("layernorm_cp_async_pipelined"),
    "latency": latency,
    "peers-forward": lambda: race("forward", "kernel time"),
    "peers-backward": lambda: race("backward", "kernel time"),
    "clock-forward": lambda: race("forward", "tutorial's clock"),
    "clock-backward": lambda: race("backward", "tutorial's clock"),
    "race-summary": race_summary,
    "others": lambda: flat("layernorm_others"),
    "attention": lambda: flat("attention"),
    "attention-h200": lambda: flat("attention_h200"),
    "attention-step": lambda: flat("attention_step"),
    "graphs": lambda: flat("step_graphs"),
    "in-flight": lambda: flat("layernorm_in_flight"),
    "muon": lambda: flat("muon", {field: field for field in ("job", "optimizer", *(f"lr {lr}" for lr in (
        "1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2")), "steps to AdamW's best")}),
    "muon-texts": lambda: flat("muon_texts", {field: field for field in ("text", "optimizer", "0.25", "0.5", "1", "1.3", "2", "3",
                                                                         "4", "5", "6.5", "7", "10", "20", "40")}),
    "many-gpus": lambda: flat("many_gpus"),
    "many-gpus-four": lambda: flat("many_gpus_four"),
    "many-bits": lambda: flat("many_bits"),
    "many-faults": lambda: flat("many_faults"),
    "muon-step": lambda: flat("muon_step"),
    "many-gpus-model": lambda: flat("many_gpus_predicted", {name: name if name != "row" else "" for name in (
        "row", "GPUs", "predicted, ms", "measured, ms", "error, %")}, lambda row: "predicted, ms" in row),
    "many-gpus-predicted": lambda: flat("many_gpus_predicted", {
        "row": "predicted, of linear", "GPUs": "GPUs", "program": "as the program does it", "ring": "ring all-reduce"},
        lambda row: "ring" in row),
    **{f"attention-{way}{more}": lambda way=way, shown=shown: attention_ladder(way, shown) for way in ("forward", "backward")
       for more, shown in (("", ("64x12x1024", "4x12x8192")), ("-shapes", None))},
    **step_tables(),
    "durable": durable,
    "durable-cases": lambda: flat("durable"),
    "durable-fuzz": lambda: flat("durable_fuzz"),
    "durable-gpu": lambda: flat("durable_gpu"),
    "decode": lambda: flat("decode"),
    **{name.replace("_", "-"): lambda name=name: flat(name) for name in
       ("training_seeds", "training_bf16_errors", "training_peers", "training_sample_gpu", "training_cpu", "column_sums", "classifier",
        "layernorm_pytorch_host", "layernorm_pytorch_models")},
}

# tables that no document shows: `make tables` writes them into a page of their own, under these titles
REPORT = (
    ("LayerNorm, whole vectors of 16 bytes: us, % of the roof of the same process, cold L2", "whole"),
    ("Short rows", "short"),
    ("Rows that are not whole vectors", "unaligned"),
    ("Between powers of two, % of the roof", "widths"),
    ("Not whole vectors, shared by clusters, % of the roof", "unaligned-widths"),
    ("Backward by cp_async_pipelined: before Hopper, and on Hopper the longest rows", "pipelined"),
    ("One row: us of a launch, in brackets one block that copies what the op reads and writes", "latency"),
    ("Built for sm_80, without clusters and TMA", "sm80"),
    ("Goals: shares of the roof, must / aim", "goals"),
    ("LayerNorm's ladders with each rung's best block: forward", "ladder-forward"),
    ("Residual", "ladder-residual"),
    ("Backward", "ladder-backward"),
    ("Beside others, forward, kernel time: us and GB/s", "peers-forward"),
    ("Beside others, backward, kernel time; last what two copies of the tutorial print, GB/s by its clock", "peers-backward"),
    ("Forward, the tutorial's clock: GB/s at the median, in brackets at the 80 and the 20 % quantile", "clock-forward"),
    ("Backward, the tutorial's clock", "clock-backward"),
    ("Others, timed by the same method on another H200: GB/s, % of the roof", "others"),
    ("Attention, heads of 64 in bf16, causal: us, in brackets over cuDNN's through PyTorch", "attention"),
    ("Attention on an H200, by kernels that also add up qkv's bias gradient where that is asked for", "attention-h200"),
    ("Attention's ladder, forward: us, % of the roof", "attention-forward-shapes"),
    ("Attention's ladder, backward", "attention-backward-shapes"),
    ("A step of 124M, B=64, T=1024 with each attention, in turn on one card", "attention-step"),
    ("A step's parts: 124M, B=64, on an H200", "step-d12-b64-h200"),
    ("A step's parts: 1558M, B=8", "step-d48-b8"),
    *((f"Products of {model}, us a call: the algorithm proposed first; the fastest of the proposals and of the first one's "
       "variants; the fastest with the first one's bits; with four times the workspace; the first that splits no sum; with "
       "the step's epilogue; adding to its output", f"products-{name}")
      for model, name in (("124M, B=64", "d12-b64"), ("124M, B=64, on an H200", "d12-b64-h200"), ("1558M, B=8", "d48-b8"))),
    ("Column sums, % of a kernel that only reads", "column-sums"),
    ("The classifier, % of a kernel that only copies", "classifier"),
    ("Which optimizer for a text, and after how many epochs it ends lowest: validation loss", "muon-texts"),
    ("A step by AdamW and by Muon", "muon-step"),
    ("LayerNorm backward on an H100: rows that each team has on their way", "in-flight"),
    ("Errors of bf16 over PyTorch's fp32", "training-bf16-errors"),
    ("What a call of the PyTorch package costs the processor", "layernorm-pytorch-host"),
    ("Steps of one to four H200", "many-gpus-four"),
    ("What a run can lose on a GPU", "durable-gpu"),
    ("Writing, share of the time in which the memory delivers all weights", "decode"),
    ("A step on the CPU: 6 layers, 384 channels, bytes, fp32, B=4, T=256", "training-cpu"),
    ("Ranks: what was compared bit for bit", "many-bits"),
    ("Steps of many GPUs, predicted from one GPU's before they were measured", "many-gpus-model"),
    ("Steps of many GPUs, predicted", "many-gpus-predicted"),
    ("What a run can lose, case by case", "durable-cases"),
    ("Readers under libFuzzer", "durable-fuzz"),
)


def report():
    return "# Measured\n" + "".join(f"\n## {title}\n\n" + "\n".join(TABLES[name]()) + "\n" for title, name in REPORT)


# ---- documents ----------------------------------------------------------------------------------

MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def documents():
    found = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True,
                           text=True, check=False)
    paths = found.stdout.split() if found.returncode == 0 else [
        os.path.relpath(os.path.join(folder, name), ROOT) for folder, _, names in os.walk(ROOT)
        for name in names if name.endswith(".md") and "/build" not in folder]
    return {path: open(os.path.join(ROOT, path)).read() for path in sorted(set(paths))}


def filled(path, text):
    def table(match):
        if match[2] not in TABLES:
            raise SystemExit(f"{path}: no table {match[2]}; known: {' '.join(TABLES)}")
        return match[1] + "\n".join(TABLES[match[2]]()) + "\n" + match[4]
    return MARKED.sub(table, text)


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
    errors, passed, used = [], 0, {name for _, name in REPORT if TABLES[name]()}
    for path, text in texts.items():
        found = len(errors)
        if filled(path, text) != text:
            errors.append(f"{path}: a table is not what doc/measured/ gives; run scripts/tables.py")
        used |= {match[2] for match in MARKED.finditer(text)}
        if path not in MAY_HAVE_FIGURES:
            errors += [f"{path}: a measured figure in prose: '{' '.join(f[0].split())}'; it belongs into doc/measured/"
                       for f in FIGURE.finditer(prose(text))]
        errors += [f"{path}: leads nowhere: {target}" for target in links(path, text)[0]]
        errors += [f"{path}: {line}" for line in snippets(text)]
        passed += found == len(errors)
    errors += [f"scripts/tables.py: no document has the table {name}" for name in TABLES if name not in used]
    for error in errors:
        print("ERROR:", error)
    print(f"{passed} documents, {len(used)} tables, {sum(links(p, t)[1] for p, t in texts.items())} links and paths")
    print(f"{passed} passed, {len(errors)} failed, 0 skipped")
    return 1 if errors else 0


# ---- rows of a shootout -------------------------------------------------------------------------

def take_attention(measured):
    """a row a shape and direction, a field a provider: median us, and the ratio to cuDNN's"""
    rows = {}
    for row in measured["rows"]:
        label = f"B={row['B']} NH={row['NH']} T={row['T']}, {row['direction']}"
        line = rows.setdefault(label, {"row": label})
        line[row["provider"]] = f"{row['median_us']:.1f} ({row['ratio_to_cudnn']:.2f})"
    old, cuda = load("attention"), measured["torch"].partition("+cu")[2]
    head = {"gpu": measured["device"], "cuda": f"{cuda[:-1]}.{cuda[-1:]}", "pytorch": measured["torch"].rpartition(".")[0],
            "cudnn": f"{measured['cudnn'] // 10000}.{measured['cudnn'] % 10000 // 100}",
            "date": measured.get("date", old["date"]), "commit": head_commit(), "command": old["command"]}
    return write_rows("attention", head, rows.values())


def take_attention_ladder(measured):
    context, op = measured["context"], measured["context"]["op"]
    old = [row for row in load("attention_ladder")["rows"] if row["op"] != op]

    def where(row):
        return f"{row['N'] // row['T']}x{row['C'] // 64}x{row['T']}"
    rows = [{"op": op, "version": row["version"], "idea": row["idea"], "shape": where(row), "us": Number(f"{row['us']:.1f}"),
             "tflop_per_s": Number(f"{row['tflop_per_s']:.1f}"), "percent_of_roof": Number(f"{row['percent_of_roof']:.1f}")}
            for row in measured["rows"] if row["ok"] and row["us"] and row["percent_of_roof"]]
    rows += [{"op": op, "version": "roof", "idea": part, "shape": where(roof), "us": Number(f"{roof[part + ' us']:.1f}")}
             for roof in measured["roofs"] for part in ("products", "exponentials", "bytes")]
    head = {"gpu": context["gpu"], "cuda": context["cuda_runtime"], "driver": context["driver"], "date": context["date"][:10],
            "commit": head_commit(), "command": "dev/cuda/OP --cold"}
    return write_rows("attention_ladder", head, sorted(old + rows, key=lambda row: row["op"], reverse=True))


def take(path, name):
    if name == "layernorm_race":
        return take_race(path)
    with open(path) as file:
        measured = json.load(file)
    others = {"attention": take_attention, "attention_ladder": take_attention_ladder, "layernorm_pytorch_models": take_models}
    if name in others:
        return others[name](measured)
    target = os.path.join(FOLDER, name + ".json")
    with open(target) as file:
        head, _, _ = file.read().partition('  "rows": [\n')
    context, rows = measured["context"], load(name)["rows"]
    commit = head_commit()
    slow = {(roof["dtype"], roof["N"], roof["C"]) for roof in measured["roofs"] if roof.get("counts") is False}

    def key(row):
        return row["op"], row["roof"][:4], row["dtype"], int(row["N"]), int(row["C"])
    for row in measured["rows"]:
        if row["version"] != "ship" or row["us"] is None or row["percent_of_roof"] is None or "block" in row["roof"]:
            continue
        if not row["ok"] or (row["dtype"], row["N"], row["C"]) in slow:
            print(f"left out: {shape(row)}: " + ("its roof is slower than is known" if row["ok"] else "wrong"))
            continue
        new = {field: Number(row[field]) if isinstance(row[field], int) else row[field]
               for field in ("op", "version", "dtype", "N", "C")}
        new |= {"us": Number(f"{row['us']:.2f}"), "percent_of_roof": Number(f"{row['percent_of_roof']:.1f}"),
                "roof": row["roof"], "date": context["date"][:10]}
        new |= {"commit": commit} if commit else {}
        new |= {"command": context["command"]} if "command" in context else {}
        new |= {"gpu": context["gpu"]} if context["gpu"] != load(name)["gpu"] else {}
        places = [i for i, old in enumerate(rows) if key(old) == key(new)]
        rows[places[0] if places else len(rows):(places[0] + 1) if places else len(rows)] = [new]
    lines = ["    {" + ", ".join(f"{json.dumps(k)}: {v if isinstance(v, Number) else json.dumps(v)}"
                                 for k, v in row.items()) + "}" for row in rows]
    with open(target, "w") as file:
        file.write(head + '  "rows": [\n' + ",\n".join(lines) + "\n  ]\n}\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--report", metavar="FILE")
    parser.add_argument("--take", nargs=2, metavar=("FILE", "NAME"))
    options = parser.parse_args()
    if options.take:
        try:
            return take(*options.take)
        except OSError as error:
            raise SystemExit(f"tables.py: {error}") from None
    if options.report:
        with open(options.report, "w") as file:
            file.write(report())
        print("wrote", options.report)
        return 0
    texts = documents()
    if options.check:
        return check(texts)
    for path, text in texts.items():
        new = filled(path, text)
        if new != text:
            with open(os.path.join(ROOT, path), "w") as file:
                file.write(new)
            print("wrote", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
