#!/usr/bin/env python3
"""What to beat on the CPU: the strongest fair PyTorch training step of the model that ./train_gpt2 trains.

GPT-2 (the model of torch_gpt2.py), fp32 throughout (oneDNN/MKL at full precision, no bf16 inside the
products), gradient norm clipped at 1.0, fused AdamW. Tokens are random: the speed does not depend on them.
One step is everything from the tokens to the updated weights, and ends with the loss as a Python number.

Command: python3 dev/bench/bench_pytorch_cpu.py [--compile] [--124m --seq-len 64 --steps 5]
Result:  451 ms a step, 2,269 tokens/s, 162 GFLOP/s eager; 449 ms, 2,283 tokens/s with --compile. 124M with
         --seq-len 64: 1,378 ms, 186 tokens/s eager; 1,442 ms compiled. Best of 3 repeats' medians (--steps 8;
         124M: 5), quiet machine, 2 cores of an AMD EPYC (Zen 4, virtual; the same run varies by 10 %
         from hour to hour), PyTorch 2.11.0, 2026-11-20. F.linear alone, this size, reaches 200 GFLOP/s there.
"""
import argparse
import os
import statistics
import time

from needs import needs

needs(__doc__, "torch")
import torch
from torch import nn

from torch_gpt2 import Config, new_model


def make_optimizer(model):
    """Fused AdamW where this PyTorch has it for the CPU (2.4 and later), else the default one."""
    options = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **options), "fused"
    except RuntimeError:
        return torch.optim.AdamW(model.parameters(), **options), "default"


def train_step(mean_loss, optimizer, parameters, x, y):
    loss = mean_loss(x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def cpu_seconds():
    """(busy seconds of the whole machine, with stolen time; busy seconds of this process)."""
    with open("/proc/stat") as f:
        ticks = [int(word) for word in f.readline().split()[1:9]]
    busy = sum(ticks) - ticks[3] - ticks[4]  # all but idle and iowait
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK"), own.user + own.system


def time_steps(step, steps):
    """Milliseconds of each step, and the share of the machine that others used meanwhile, in percent."""
    busy0, own0 = cpu_seconds()
    start = time.perf_counter()
    times = []
    for _ in range(steps):
        t0 = time.perf_counter()
        step()
        times.append((time.perf_counter() - t0) * 1e3)
    wall = time.perf_counter() - start
    busy1, own1 = cpu_seconds()
    others = ((busy1 - busy0) - (own1 - own0)) / (wall * os.cpu_count())
    return times, max(0.0, 100.0 * others)


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--channels", type=int, default=384)
    p.add_argument("--vocab", type=int, default=257)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--steps", type=int, default=30, help="timed steps in each repeat (default 30)")
    p.add_argument("--repeats", type=int, default=3, help="repeats, each with its own median (default 3)")
    p.add_argument("--threads", type=int, default=2, help="PyTorch threads (default 2)")
    p.add_argument("--compile", action="store_true", help="torch.compile the model (inductor; needs g++)")
    p.add_argument("--124m", dest="m124", action="store_true",
                   help="GPT-2 small: 12 layers, 12 heads, 768 channels, 50257 tokens; batch and length stay")
    a = p.parse_args()
    if a.m124:
        a.layers, a.heads, a.channels, a.vocab = 12, 12, 768, 50257
    if min(a.layers, a.heads, a.vocab, a.batch, a.seq_len, a.steps, a.repeats, a.threads) < 1:
        p.error("sizes and counts must be at least 1")
    if a.channels < 1 or a.channels % a.heads:
        p.error(f"--channels {a.channels} is not a positive multiple of --heads {a.heads}")
    return a


def print_setup(a, model, optimizer_kind):
    parameters = sum(p.numel() for p in model.parameters())
    config = torch.__config__.show().splitlines()
    libraries = [line.strip(" -") for line in config if "Math Kernel" in line or "MKL-DNN" in line]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} CPUs, "
          f"{torch.backends.cpu.get_cpu_capability()}, fp32 matmul precision "
          f"'{torch.get_float32_matmul_precision()}'")
    print("\n".join(libraries))
    print(f"L {a.layers} NH {a.heads} C {a.channels} V {a.vocab} B {a.batch} T {a.seq_len}: {parameters:,} "
          f"parameters; {'torch.compile' if a.compile else 'eager'}, AdamW {optimizer_kind}")


def flops_per_step(a):
    """6 per weight and token, plus 12·L·C·T per token for attention (as if it were not causal)."""
    weights = a.layers * 12 * a.channels**2 + a.vocab * a.channels
    return a.batch * a.seq_len * (6 * weights + 12 * a.layers * a.channels * a.seq_len)


def main():
    a = parse_options()
    torch.set_num_threads(a.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    model = new_model(Config(a.seq_len, a.vocab, a.layers, a.heads, a.channels, padded_vocab=a.vocab))
    parameters = list(model.parameters())
    optimizer, kind = make_optimizer(model)
    print_setup(a, model, kind)
    tokens = torch.randint(0, a.vocab, (a.batch, a.seq_len + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def mean_loss(x, y):
        return model(x, y)[1]

    if a.compile:
        mean_loss = torch.compile(mean_loss, fullgraph=True)

    def step():
        return train_step(mean_loss, optimizer, parameters, x, y)

    t0 = time.perf_counter()
    losses = [step() for _ in range(3)]
    print(f"3 warm-up steps: {time.perf_counter() - t0:.1f} s, losses", *(f"{v:.4f}" for v in losses))
    medians = []
    for repeat in range(1, a.repeats + 1):
        times, others = time_steps(step, a.steps)
        medians.append(statistics.median(times))
        print(f"repeat {repeat}: median {medians[-1]:8.2f} ms  min {min(times):8.2f}  max {max(times):8.2f}  "
              f"(others used {others:.0f} % of the machine)")
    best = min(medians)
    print(f"best median: {best:.2f} ms per step, {a.batch * a.seq_len / best * 1e3:,.0f} tokens/s, "
          f"{flops_per_step(a) / best / 1e6:,.1f} GFLOP/s")


if __name__ == "__main__":
    main()
