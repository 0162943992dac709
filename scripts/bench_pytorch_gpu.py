#!/usr/bin/env python3
"""What to beat on one GPU: the strongest fair PyTorch training step of GPT-2 124M.

bf16 autocast over fp32 weights, torch.compile, causal F.scaled_dot_product_attention, tanh GELU, the
vocabulary rounded up to 50304, gradient norm clipped at 1.0, fused AdamW. Tokens are random: the speed does
not depend on them. A step is everything from tokens on the GPU to updated weights; nothing waits for the host
in between. MFU: 6 x parameters + 6 L C T FLOP a token (causal attention), over the 989 TFLOP/s of an H200's
data sheet.

Command: python3 scripts/bench_pytorch_gpu.py [--batch 64] [--seq-len 1024] [--eager]
Result:  H200, PyTorch 2.11, CUDA 13.0, 2026-11-21, torch.compile: median 121.91 ms a step (118.89 to 132.95),
         537,565 tokens/s, MFU 43.7 %, 28.5 GiB; 15.3 s for the 10 warm-up steps. Ours: doc/gpu_training.md.
"""
import argparse
import statistics
import time

import torch
from torch import nn

from torch_gpt2 import Config, make_optimizer, new_model

PEAK_FLOPS = 989e12


class Clock:
    """the times between ticks in ms, taken by the GPU itself where there is one"""

    def __init__(self, device):
        self.cuda, self.ticks = device == "cuda", []

    def tick(self):
        if self.cuda:
            self.ticks.append(torch.cuda.Event(enable_timing=True))
            self.ticks[-1].record()
        else:
            self.ticks.append(time.perf_counter())

    def times(self):
        pairs = list(zip(self.ticks, self.ticks[1:]))
        if not self.cuda:
            return [(b - a) * 1e3 for a, b in pairs]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairs]


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--channels", type=int, default=768)
    p.add_argument("--vocab", type=int, default=50304)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--seq-len", type=int, default=1024)
    p.add_argument("--warmup", type=int, default=10, help="steps before the timed ones (default 10)")
    p.add_argument("--steps", type=int, default=20, help="timed steps (default 20)")
    p.add_argument("--eager", action="store_true", help="without torch.compile")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args()


def main():
    a = parse_options()
    torch.manual_seed(1)
    config = Config(a.seq_len, a.vocab, a.layers, a.heads, a.channels, a.vocab)
    model = new_model(config).to(a.device)
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters, 1e-4, 0.9, 0.95, 1e-8, 0.1)
    tokens = torch.randint(0, a.vocab, (a.batch, a.seq_len + 1), device=a.device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    mean_loss = torch.compile(lambda x, y: model(x, y)[1]) if not a.eager else lambda x, y: model(x, y)[1]

    def step():
        with torch.autocast(a.device, torch.bfloat16):
            loss = mean_loss(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    start = time.perf_counter()
    losses = [step().item() for _ in range(a.warmup)]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if a.device == 'cuda' else 'CPU'}, "
          f"{'eager' if a.eager else 'torch.compile'}; L {a.layers} NH {a.heads} C {a.channels} V {a.vocab} "
          f"B {a.batch} T {a.seq_len}; {a.warmup} warm-up steps in {time.perf_counter() - start:.1f} s, "
          f"losses {losses[0]:.4f} .. {losses[-1]:.4f}")
    clock = Clock(a.device)
    for _ in range(a.steps):
        clock.tick()
        step()
    clock.tick()
    times = clock.times()
    median = statistics.median(times)
    per_second = a.batch * a.seq_len / median * 1e3
    flops = 6 * sum(p.numel() for p in parameters) + 6 * a.layers * a.channels * a.seq_len
    memory = torch.cuda.max_memory_allocated() / 2**30 if a.device == "cuda" else 0
    print(f"median {median:.2f} ms a step (min {min(times):.2f}, max {max(times):.2f}), "
          f"{per_second:,.0f} tokens/s, MFU {100 * flops * per_second / PEAK_FLOPS:.1f} %, {memory:.1f} GiB")


if __name__ == "__main__":
    main()
