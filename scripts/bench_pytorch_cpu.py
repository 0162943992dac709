#!/usr/bin/env python3
"""What to beat on the CPU: the strongest fair PyTorch training step of the model that ./train_gpt2 trains.

GPT-2 (pre-LN, learned positions, tied head, biases everywhere), fp32 throughout (oneDNN/MKL at full
precision, no bf16 inside the products), causal F.scaled_dot_product_attention, tanh GELU, cross entropy,
gradient norm clipped at 1.0, fused AdamW. Tokens are random: the speed does not depend on them. One step is
everything from the tokens to the updated weights, and ends with the loss as a Python number.

Command: python3 scripts/bench_pytorch_cpu.py [--compile] [--124m --seq-len 64 --steps 5]
Result:  451 ms a step, 2,269 tokens/s, 162 GFLOP/s eager; 449 ms, 2,283 tokens/s with --compile. 124M with
         --seq-len 64: 1,378 ms, 186 tokens/s eager; 1,442 ms compiled. Best of 3 repeats' medians (--steps 8;
         124M: 5), quiet machine, 2 cores of an AMD EPYC (Zen 4, virtual; the same run varies by 10 %
         from hour to hour), PyTorch 2.11.0, 2026-11-20. F.linear alone, this size, reaches 200 GFLOP/s there.
"""
import argparse
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.attproj = nn.Linear(channels, channels)
        self.ln2 = nn.LayerNorm(channels)
        self.fc = nn.Linear(channels, 4 * channels)
        self.fcproj = nn.Linear(4 * channels, channels)

    def attention(self, inp):
        B, T, C = inp.shape
        split = self.qkv(inp).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = (part.transpose(1, 2) for part in split.unbind(2))  # each (B, NH, T, HS)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attproj(out.transpose(1, 2).reshape(B, T, C))

    def forward(self, residual):
        residual = residual + self.attention(self.ln1(residual))
        return residual + self.fcproj(F.gelu(self.fc(self.ln2(residual)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte = nn.Embedding(a.vocab, a.channels)
        self.wpe = nn.Embedding(a.seq_len, a.channels)
        self.blocks = nn.ModuleList(Block(a.channels, a.heads) for _ in range(a.layers))
        self.lnf = nn.LayerNorm(a.channels)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        residual = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.blocks:
            residual = block(residual)
        logits = F.linear(self.lnf(residual), self.wte.weight)  # the tied head
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def make_optimizer(model):
    """Fused AdamW where this PyTorch has it for the CPU (2.4 and later), else the default one."""
    options = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **options), "fused"
    except RuntimeError:
        return torch.optim.AdamW(model.parameters(), **options), "default"


def train_step(model, optimizer, parameters, x, y):
    loss = model(x, y)
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
    model = Model(a)
    parameters = list(model.parameters())
    optimizer, kind = make_optimizer(model)
    print_setup(a, model, kind)
    tokens = torch.randint(0, a.vocab, (a.batch, a.seq_len + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    forward = torch.compile(model, fullgraph=True) if a.compile else model

    def step():
        return train_step(forward, optimizer, parameters, x, y)

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
