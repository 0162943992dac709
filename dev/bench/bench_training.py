#!/usr/bin/env python3
"""A whole optimizer step of GPT-2: this project's program and the strongest fair PyTorch, in turns on one machine.

PyTorch: bf16 autocast over fp32 weights, torch.compile, F.scaled_dot_product_attention by the faster of its backends at
this shape, tanh GELU, the vocabulary padded to 50304, gradient norm clipped at 1.0, fused AdamW. The program: its defaults,
and with --tune-gemm the products that it has searched on this GPU. Both train on the same random tokens: the speed does
not depend on them. A step is everything from tokens to updated weights. The order is program, PyTorch, program,
PyTorch, program, each a process of its own that trains for 10 seconds before the steps that count; the figure is the
median over all of a side's steps.

--fp8: beside both, the same PyTorch with the blocks' linear layers in torchao's float8, tensorwise and rowwise, where torchao is
installed; TransformerEngine has no part in it.

    dev/bench/bench_training.py [--model d12 --batch 64] [--tune-gemm] [--fp8] [--json FILE]

--json FILE: the row is added to FILE, in place of an older one of the same model, batch, --tune-gemm and --fp8. Not if PyTorch is
slower here than it can be (SLOWEST below): then something is wrong with it, and the comparison does not count; exit 1.
"""
import datetime
import importlib.util
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

from lab import ROOT, add_rows, log_rows, needs, parser, write_shard

needs(__doc__, "numpy", "torch")
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer

from torch_gpt2 import GPT2, Config, make_optimizer, to_float8

VOCABULARY, PADDED = 50257, 50304
MODELS = {"d12": ("124M", 12, 768), "d24": ("355M", 16, 1024), "d36": ("774M", 20, 1280), "d48": ("1558M", 25, 1600)}
LENGTH, ROUNDS, WARMUP, STEPS = 1024, 2, 10, 40  # tokens a row, runs of PyTorch, seconds, steps of a run that count
SLOWEST = {("d12", 64, "H100"): 460e3, ("d12", 64, "H200"): 500e3}  # tokens/s of PyTorch


# ---- PyTorch, in a process of its own ------------------------------------------------------------------
def choose_attention(batch, heads, channels):
    """leaves only the faster backend switched on; its name"""
    switches = {SDPBackend.FLASH_ATTENTION: torch.backends.cuda.enable_flash_sdp,
                SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.enable_cudnn_sdp}
    qkv = torch.randn(batch, LENGTH, 3, heads, channels // heads, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def call():
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.backward(out.detach())

    seconds = {}
    for backend in switches:
        with sdpa_kernel(backend):  # a choice by one call would be chance
            seconds[backend] = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.5).median
    best = min(seconds, key=seconds.get)
    for backend, switch in switches.items():
        switch(backend == best)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    return best.name


def pytorch_steps(layers, heads, channels, batch, fp8=None):
    """the times in ms of the steps that count, and what was found on the way; fp8: a recipe of torchao"""
    torch.manual_seed(1)
    attention = choose_attention(batch, heads, channels)
    model = GPT2(Config(LENGTH, PADDED, layers, heads, channels, PADDED)).cuda()
    parameters = list(model.parameters())
    for p in parameters:
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.02)
    if fp8:
        to_float8(model, fp8)
        parameters = list(model.parameters())
    optimizer = make_optimizer(parameters, 1e-4, 0.9, 0.95, 1e-8, 0.1)
    tokens = torch.randint(0, VOCABULARY, (batch, LENGTH + 1), device="cuda")
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    mean_loss = torch.compile(lambda x, y: model(x, y)[1])

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = mean_loss(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    step().item()  # compiles
    start = time.perf_counter()
    while time.perf_counter() - start < WARMUP:
        step().item()
    ticks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    for tick in ticks:  # nothing waits for the device in between
        tick.record()
        step()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in zip(ticks, ticks[1:])], {
        "attention": attention, "gpu": torch.cuda.get_device_name(), "gib": torch.cuda.max_memory_allocated() / 2**30}


# ---- both ----------------------------------------------------------------------------------------------
def program_steps(a, folder):
    """The times in ms of its steps that count. It is killed then: at its end it would save what it has trained."""
    out = tempfile.mkdtemp(dir=folder)
    command = [ROOT + "/train_gpt2cu", "--model", a.model, "--batch", str(a.batch), "--seq-len", str(LENGTH), "--train-data",
               folder + "/tokens.bin", *"--val-data none --sample-every 0 --steps 1000000 --out".split(), out]
    command += ["--fp8"] if a.fp8 else []
    command += ["--tune-gemm", os.path.join(folder, "products.json")] if a.tune_gemm else []

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as program:
        def after(steps):
            """the times of all steps, once there are so many"""
            while len(rows := log_rows(out, "train_loss")) < steps:
                if program.poll() is not None:
                    raise SystemExit(f"{' '.join(command)}: ended too early, exit code {program.returncode}")
                time.sleep(0.2)
            return [row["ms"] for row in rows]
        try:
            after(1)
            time.sleep(WARMUP)
            warm = len(after(1))
            return after(warm + STEPS)[warm:warm + STEPS]
        finally:
            program.kill()


def pytorch_recipes(a):
    """None: bf16"""
    if not a.fp8:
        return [None]
    if importlib.util.find_spec("torchao") is None:
        print("without torchao's float8: no package torchao; expected: pip install torchao", flush=True)
        return [None]
    return [None, "tensorwise", "rowwise"]


def summary(ms, a):
    quantiles, median = statistics.quantiles(ms, n=5), statistics.median(ms)
    return {"ms": f"{median:.2f}", "p20": f"{quantiles[0]:.2f}", "p80": f"{quantiles[3]:.2f}",
            "tokens_per_s": f"{a.batch * LENGTH / median * 1e3:.0f}"}


def main():
    p = parser(__doc__)
    p.add_argument("--model", default="d12", help="d12 (124M), d24, d36, d48 (1558M), or another dN")
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--tune-gemm", action="store_true", help="the program's first run searches the fastest products")
    p.add_argument("--fp8", action="store_true", help="the program's blocks in FP8")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    layers = int(a.model[1:])
    name, heads, channels = MODELS.get(a.model, (a.model, layers, 64 * layers))
    ours, theirs, facts = [], {recipe: [] for recipe in pytorch_recipes(a)}, {}
    with tempfile.TemporaryDirectory() as folder:
        draw = random.Random(1)
        write_shard(folder + "/tokens.bin", [draw.randrange(VOCABULARY) for _ in range(4 * a.batch * LENGTH + 1)])
        for turn in range(2 * ROUNDS + 1):
            if turn % 2 == 0:
                ms = program_steps(a, folder)
                ours += ms
                print(f"program: median {statistics.median(ms):.2f} ms of {len(ms)} steps", flush=True)
                continue
            for recipe, found in theirs.items():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    ms, facts[recipe] = pool.submit(pytorch_steps, layers, heads, channels, a.batch, recipe).result()
                found += ms
                who = f"torchao {recipe}" if recipe else "PyTorch"
                print(f"{who}: median {statistics.median(ms):.2f} ms of {len(ms)} steps", flush=True)
    facts, bf16 = facts[None], theirs.pop(None)
    row = {"model": name, "batch": a.batch, "tune_gemm": a.tune_gemm, "plumb": summary(ours, a),
           "pytorch": summary(bf16, a), "ratio": f"{statistics.median(bf16) / statistics.median(ours):.3f}",
           "attention": facts["attention"], "pytorch_gib": f"{facts['gib']:.1f}", "date": datetime.date.today().isoformat()}
    row |= {"fp8": True} if a.fp8 else {}
    row |= {f"torchao {recipe}": summary(ms, a) for recipe, ms in theirs.items()}
    print(json.dumps(row))
    rate = float(row["pytorch"]["tokens_per_s"])
    for (model, batch, gpu), slowest in SLOWEST.items():
        if (model, batch) == (a.model, a.batch) and gpu in facts["gpu"] and rate < slowest:
            raise SystemExit(f"PyTorch makes {rate:.0f} tokens/s on this {gpu}; it can make {slowest:.0f}. "
                             "The comparison does not count; nothing is written. Is something else using the GPU?")
    if a.json:
        add_rows(a.json, {"gpu": facts["gpu"], "cuda": torch.version.cuda, "pytorch": torch.__version__,
                          "command": "dev/bench/bench_training.py --model dN --batch B [--tune-gemm] [--fp8]"},
                 [row], "model", "batch", "tune_gemm", "fp8")


if __name__ == "__main__":
    main()
