#!/usr/bin/env python3
"""What LayerNorm gains or loses between two builds of libllmc_layernorm.so, width by width, in one process.

    dev/bench/compare_layernorm.py OLD.so NEW.so [--json FILE] [--seconds 300] [--only TEXT] [CASES]

CASES: lines of "op types columns [rows]", such as "backward+= bf16 769"; op: forward, residual, backward,
backward+=; types, of rows and weights: fp32, bf16, fp16, bf16/fp32, fp16/fp32. Without CASES: the widths of
models in each op and type. Both libraries run in turn, round by round, on the same buffers, which are larger
than L2; a ratio is of medians, new over old: below 1 the new one is faster. FILE, if it is there, keeps its
other cases. Needs PyTorch and a GPU.
"""
import argparse
import ctypes
import json
import os
import re
import statistics
import time

from needs import needs

needs(__doc__, "torch")
import torch

TYPES = {"fp32": (1, 4), "bf16": (2, 2), "fp16": (3, 2)}
TENSOR_BYTES, SETS, LAUNCHES = 256 << 20, 2, 4
LAYOUTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "llmc", "layernorm", "layouts.h")
MODELS = [int(C) for C in re.search(r"kModelWidths\[\] = \{([^}]*)", open(LAYOUTS).read())[1].split(",")]


class Forward(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("dtype", ctypes.c_int32), ("weight_dtype", ctypes.c_int32)] + [
        (name, ctypes.c_void_p) for name in ("out", "mean", "rstd", "inp", "weight", "bias")] + [
        ("N", ctypes.c_int64), ("C", ctypes.c_int64), ("eps", ctypes.c_double), ("residual", ctypes.c_void_p),
        ("inp2", ctypes.c_void_p)] + [(name, ctypes.c_int64) for name in ("os", "is_", "rs", "i2s")] + [
        ("stream", ctypes.c_void_p)]


class Backward(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, ctypes.c_int32) for name in (
        "dtype", "weight_dtype", "grad_dtype", "accumulate_dinp", "accumulate", "reserved")] + [
        (name, ctypes.c_void_p) for name in ("dinp", "dweight", "dbias", "dout", "inp", "weight", "mean", "rstd")] + [
        ("N", ctypes.c_int64), ("C", ctypes.c_int64)] + [(name, ctypes.c_int64) for name in ("ds", "os", "is_")] + [
        ("workspace", ctypes.c_void_p), ("workspace_size", ctypes.c_size_t), ("stream", ctypes.c_void_p)]


class Library:
    def __init__(self, path):
        try:
            self.so = ctypes.CDLL(path)
        except OSError as error:
            raise SystemExit(f"{error}; expected a libllmc_layernorm.so") from None
        self.so.llmc_layernorm_last_error.restype = ctypes.c_char_p
        self.path = path

    def check(self, code):
        if code != 0:
            raise SystemExit(f"{self.path}: {self.so.llmc_layernorm_last_error().decode()}")

    def workspace(self, columns):
        size = ctypes.c_size_t()
        self.check(self.so.llmc_layernorm_backward_workspace(ctypes.c_int64(columns), ctypes.byref(size)))
        return size.value


class Buffers:
    """memory for all cases: random rows, weights, statistics, scratch"""

    def __init__(self):
        self.rows = [torch.randn(TENSOR_BYTES // 2, device="cuda", dtype=torch.bfloat16) for _ in range(4 * SETS)]
        self.weights = torch.ones(3, 1 << 20, device="cuda", dtype=torch.float32)
        self.weights16 = {d: torch.ones(3, 1 << 20, device="cuda", dtype=d) for d in (torch.bfloat16, torch.float16)}
        self.statistics = torch.ones(2, TENSOR_BYTES // 2, device="cuda", dtype=torch.float32)
        self.scratch = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
        self.gradients = torch.zeros(3, 1 << 20, device="cuda", dtype=torch.float32)


def call(library, buffers, op, types, columns, rows, turn, stream):
    name, _, weights = types.partition("/")
    dtype, size = TYPES[name]
    one = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
    w = buffers.weights if weights or size == 4 else buffers.weights16[one]
    x, x2, y, y2 = (t.data_ptr() for t in buffers.rows[4 * (turn % SETS):4 * (turn % SETS) + 4])
    mean, rstd = (s.data_ptr() for s in buffers.statistics)
    weight_dtype = 1 if weights else 0
    if op in ("forward", "residual"):
        args = Forward(struct_size=ctypes.sizeof(Forward), dtype=dtype, weight_dtype=weight_dtype, out=y, mean=mean,
                       rstd=rstd, inp=x, weight=w[0].data_ptr(), bias=w[1].data_ptr(), N=rows, C=columns, eps=1e-5,
                       residual=y2 if op == "residual" else None, inp2=x2 if op == "residual" else None, stream=stream)
        library.check(library.so.llmc_layernorm_forward(ctypes.byref(args)))
    else:
        args = Backward(struct_size=ctypes.sizeof(Backward), dtype=dtype, weight_dtype=weight_dtype,
                        accumulate_dinp=int(op == "backward+="), accumulate=1, dinp=y,
                        dweight=buffers.gradients[0].data_ptr(), dbias=buffers.gradients[1].data_ptr(), dout=x2, inp=x,
                        weight=w[0].data_ptr(), mean=mean, rstd=rstd, N=rows, C=columns,
                        workspace=buffers.scratch.data_ptr(), workspace_size=buffers.scratch.numel(), stream=stream)
        library.check(library.so.llmc_layernorm_backward(ctypes.byref(args)))


def graph_of(library, buffers, case):
    op, types, columns, rows = case
    many = LAUNCHES if rows * columns * TYPES[types.partition("/")[0]][1] > 16 << 20 else 16 * LAUNCHES
    for turn in range(2):
        call(library, buffers, op, types, columns, rows, turn, torch.cuda.current_stream().cuda_stream)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="relaxed")  # torch.cuda.graph would collect garbage each time
    for turn in range(many):
        call(library, buffers, op, types, columns, rows, turn, torch.cuda.current_stream().cuda_stream)
    graph.capture_end()
    return graph, many


def compare(libraries, buffers, case, rounds):
    """median us of a launch, of each library"""
    graphs = [graph_of(library, buffers, case) for library in libraries]
    events = [[(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(rounds)] for _ in graphs]
    for graph, _ in graphs:
        graph.replay()
    for r in range(rounds):
        for which in (range(len(graphs)) if r % 2 == 0 else reversed(range(len(graphs)))):
            events[which][r][0].record()
            graphs[which][0].replay()
            events[which][r][1].record()
    torch.cuda.synchronize()
    return [statistics.median(a.elapsed_time(b) for a, b in e) * 1e3 / many for e, (_, many) in zip(events, graphs)]


def all_cases(edges):
    """(op, types, columns, rows) of each edge, and of models"""
    cases = []
    for line in edges:
        op, types, columns, *rows = line.split()
        size = TYPES[types.partition("/")[0]][1]
        cases.append((op, types, int(columns), int(rows[0]) if rows else min(TENSOR_BYTES // size // int(columns), 4 << 20)))
    return cases


def model_lines():
    for columns in MODELS:
        for types in ("fp32", "bf16", "fp16", "bf16/fp32"):
            for op in ("forward", "residual", "backward", "backward+="):
                yield f"{op} {types} {columns}"


def write(path, results):
    """a line for each op and types, with a list for each field"""
    known = {}
    if os.path.exists(path):
        with open(path) as file:
            for line in json.load(file)["rows"]:
                for C, N, old, new in zip(line["columns"], line["rows"], line["old us"], line["new us"]):
                    known[line["op"], line["types"], C, N] = old, new
    for row in results:
        known[row["op"], row["types"], row["columns"], row["rows"]] = row["old us"], row["new us"]
    lines = {}
    for (op, types, C, N), us in sorted(known.items()):
        lines.setdefault((op, types), []).append((C, N) + us)
    rows = [json.dumps(dict(zip(("op", "types", "columns", "rows", "old us", "new us"), key + tuple(zip(*line)))))
            for key, line in lines.items()]
    head = {"gpu": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"),
            "command": "dev/bench/compare_layernorm.py OLD.so NEW.so CASES"}
    with open(path, "w") as file:
        file.write("{\n" + "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items()))
        file.write('  "rows": [\n    ' + ",\n    ".join(rows) + "\n  ]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("cases", nargs="?")
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    libraries = [Library(options.old), Library(options.new)]
    lines = [line.strip() for line in open(options.cases)] if options.cases else list(model_lines())
    cases = all_cases([line for line in lines if line and re.search(options.only, line)])
    buffers, stream, begin, results = Buffers(), torch.cuda.Stream(), time.monotonic(), []
    torch.cuda.synchronize()
    for case in cases:
        if time.monotonic() - begin > options.seconds:
            print(f"{len(cases) - len(results)} of {len(cases)} cases left out: {options.seconds:g} seconds are over")
            break
        # models are to be within 0.5 %: more rounds
        with torch.cuda.stream(stream):
            old, new = compare(libraries, buffers, case, 41 if case[2] in MODELS else 13)
        results.append({"op": case[0], "types": case[1], "columns": case[2], "rows": case[3], "old us": round(old, 2),
                        "new us": round(new, 2), "ratio": round(new / old, 4)})
    for row in sorted(results, key=lambda row: -row["ratio"]):
        if row["ratio"] > 1.03:
            print(f"{row['ratio']:.3f}  {row['op']} {row['types']} {row['rows']}x{row['columns']}: {row['old us']} {row['new us']}")
    ratios = [row["ratio"] for row in results]
    print(f"{len(results)} cases on {torch.cuda.get_device_name()}: median {statistics.median(ratios):.4f}, worst "
          f"{max(ratios):.3f}, best {min(ratios):.3f}; {sum(r > 1.05 for r in ratios)} lose more than 5 %")
    of_models = [row["ratio"] for row in results if row["columns"] in MODELS and "/" not in row["types"]]
    if of_models:
        print(f"models' widths: {len(of_models)}, worst {max(of_models):.4f}; {sum(r > 1.005 for r in of_models)} above 1.005")
    if options.json:
        write(options.json, results)


if __name__ == "__main__":
    main()
