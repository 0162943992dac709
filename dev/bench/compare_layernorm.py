#!/usr/bin/env python3
"""What LayerNorm gains or loses between two builds of libllmc_layernorm.so, width by width, in one process.

    dev/bench/compare_layernorm.py OLD.so NEW.so [CASES] [--json FILE]

CASES: lines of "op types columns [rows]", such as "backward+= bf16 769"; op: forward, residual, backward, backward+=; types,
of rows and weights: fp32, bf16, fp16, bf16/fp32, fp16/fp32. Without CASES: the widths of models in each op and type. Both
libraries run in turn, round by round, on the same buffers, which are larger than L2; a ratio is of medians, new over old: below 1
the new one is faster. FILE keeps its other cases of this GPU and day.
"""
import ctypes
import os
import re
import statistics

from lab import ROOT, add_rows, measured_here, needs, parser

needs(__doc__, "torch")
import torch

TYPES = {"fp32": (1, torch.float32), "bf16": (2, torch.bfloat16), "fp16": (3, torch.float16)}
TENSOR_BYTES, SETS, LAUNCHES = 256 << 20, 2, 4
with open(os.path.join(ROOT, "llmc", "layernorm", "layouts.h")) as layouts:
    MODELS = [int(C) for C in re.search(r"kModelWidths\[\] = \{([^}]*)", layouts.read())[1].split(",")]


def fields(*lines):
    """of a ctypes structure: lines of a type and the names that have it"""
    return [(name, getattr(ctypes, "c_" + kind)) for kind, *names in map(str.split, lines) for name in names]


class Forward(ctypes.Structure):
    _fields_ = fields("size_t struct_size", "int32 dtype weight_dtype", "void_p out mean rstd inp weight bias", "int64 N C",
                      "double eps", "void_p residual inp2", "int64 os is_ rs i2s", "void_p stream")


class Backward(ctypes.Structure):
    _fields_ = fields("size_t struct_size", "int32 dtype weight_dtype grad_dtype accumulate_dinp accumulate reserved",
                      "void_p dinp dweight dbias dout inp weight mean rstd", "int64 N C ds os is_", "void_p workspace",
                      "size_t workspace_size", "void_p stream")


def library(path):
    so = ctypes.CDLL(os.path.abspath(path))
    so.llmc_layernorm_last_error.restype = ctypes.c_char_p
    return so


def call(so, function, args):
    args.struct_size, args.stream = ctypes.sizeof(args), torch.cuda.current_stream().cuda_stream
    if getattr(so, function)(ctypes.byref(args)) != 0:
        raise SystemExit(f"{so._name}: {so.llmc_layernorm_last_error().decode()}")


class Buffers:
    """memory for all cases: random rows, weights, statistics, scratch"""

    def __init__(self):
        self.rows = [torch.randn(TENSOR_BYTES // 2, device="cuda", dtype=torch.bfloat16) for _ in range(4 * SETS)]
        self.weights = {name: torch.ones(2, 1 << 20, device="cuda", dtype=dtype) for name, (_, dtype) in TYPES.items()}
        self.statistics = torch.ones(2, TENSOR_BYTES // 2, device="cuda", dtype=torch.float32)
        self.scratch = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
        self.gradients = torch.zeros(2, 1 << 20, device="cuda", dtype=torch.float32)


def launch(so, buffers, case, turn):
    op, types, columns, rows = case
    name, _, weights = types.partition("/")
    at = 4 * (turn % SETS)
    x, x2, y, y2 = (t.data_ptr() for t in buffers.rows[at:at + 4])
    mean, rstd = (s.data_ptr() for s in buffers.statistics)
    weight, bias = (w.data_ptr() for w in buffers.weights[weights or name])
    same = dict(dtype=TYPES[name][0], weight_dtype=TYPES[weights][0] if weights else 0, inp=x, weight=weight, mean=mean,
                rstd=rstd, N=rows, C=columns)
    if op in ("forward", "residual"):
        more = dict(residual=y2, inp2=x2) if op == "residual" else {}
        call(so, "llmc_layernorm_forward", Forward(**same, **more, out=y, bias=bias, eps=1e-5))
    else:
        dweight, dbias = (g.data_ptr() for g in buffers.gradients)
        call(so, "llmc_layernorm_backward", Backward(
            **same, accumulate_dinp=int(op == "backward+="), accumulate=1, dinp=y, dweight=dweight, dbias=dbias, dout=x2,
            workspace=buffers.scratch.data_ptr(), workspace_size=buffers.scratch.numel()))


def graph_of(so, buffers, case):
    op, types, columns, rows = case
    many = LAUNCHES if rows * columns * size_of(types) > 16 << 20 else 16 * LAUNCHES
    for turn in range(2):
        launch(so, buffers, case, turn)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="relaxed")  # torch.cuda.graph would collect garbage each time
    for turn in range(many):
        launch(so, buffers, case, turn)
    graph.capture_end()
    return graph, many


def compare(libraries, buffers, case, rounds):
    """median us of a launch, of each library"""
    graphs = [graph_of(so, buffers, case) for so in libraries]
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


def size_of(types):
    return TYPES[types.partition("/")[0]][1].itemsize


def case_of(line):
    """(op, types, columns, rows)"""
    op, types, columns, *rows = line.split()
    return op, types, int(columns), int(rows[0]) if rows else min(TENSOR_BYTES // size_of(types) // int(columns), 4 << 20)


def main():
    p = parser(__doc__)
    p.add_argument("old")
    p.add_argument("new")
    p.add_argument("cases", nargs="?")
    p.add_argument("--json")
    o = p.parse_args()
    libraries = [library(o.old), library(o.new)]
    lines = [f"{op} {types} {columns}" for columns in MODELS for types in ("fp32", "bf16", "fp16", "bf16/fp32")
             for op in ("forward", "residual", "backward", "backward+=")]
    if o.cases:
        with open(o.cases) as file:
            lines = [line for line in file if line.strip()]
    buffers, stream, results = Buffers(), torch.cuda.Stream(), []
    torch.cuda.synchronize()
    for case in map(case_of, lines):
        # models are to be within 0.5 %: more rounds
        with torch.cuda.stream(stream):
            old, new = compare(libraries, buffers, case, 41 if case[2] in MODELS else 13)
        results.append(dict(zip(("op", "types", "columns", "rows"), case)) | {
            "old us": round(old, 2), "new us": round(new, 2), "ratio": round(new / old, 4)})
    for row in sorted((row for row in results if row["ratio"] > 1.03), key=lambda row: -row["ratio"]):
        print(*row.values())
    ratios = [row["ratio"] for row in results]
    print(f"{len(results)} cases on {torch.cuda.get_device_name()}: median {statistics.median(ratios):.4f}, worst "
          f"{max(ratios):.3f}, best {min(ratios):.3f}; {sum(r > 1.05 for r in ratios)} lose more than 5 %")
    of_models = [row["ratio"] for row in results if row["columns"] in MODELS and "/" not in row["types"]]
    if of_models:
        print(f"models' widths: {len(of_models)}, worst {max(of_models):.4f}; {sum(r > 1.005 for r in of_models)} above 1.005")
    if o.json:
        head = measured_here("compare_layernorm.py OLD.so NEW.so CASES")
        add_rows(o.json, head, results, "op", "types", "columns", "rows")


if __name__ == "__main__":
    main()
