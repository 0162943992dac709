#!/usr/bin/env python3
"""Trains the same GPT-2 in PyTorch: same first weights, same batches in the same order, same AdamW.

Takes the trainer's own option names, so that one line serves both: it must name all that matters, as the
trainer works out what is left open, and this takes llm.c's defaults (the weights come from a run that changes
nothing; 124M, 200 steps of 8 x 1024 tokens are 5.4 epochs of Tiny Shakespeare):

    ./train_gpt2cu --model d12 --train-data DATA --val-data none --batch 1 --seq-len 1024 \\
        --steps 1 --lr 0 --sample-every 0 --out runs/first
    SAME="--model runs/first/model.bin --train-data DATA --batch 8 --seq-len 1024 --steps 200 \\
        --lr 6e-4 --warmup 20 --final-lr-fraction 1 --seed 42"
    ./train_gpt2cu $SAME --dtype bf16 --val-data none --sample-every 0 --out runs/ours_bf16
    dev/bench/compare_pytorch.py $SAME --dtype bf16 --out runs/torch_bf16.jsonl
and both again with fp32; then dev/bench/plots.py compare.

--dtype fp32       true fp32 products, no TF32
        bf16       autocast over fp32 weights: products and attention in bf16, the residual stream in fp32
        bf16-pure  model and gradients in bf16, fp32 master weights kept aside, copied back to nearest
Writes one JSON object a step with the keys of the trainer's log.jsonl.

Result: H200, PyTorch 2.11, 2026-11-21, loss at step 200: bf16 4.3862, ours 4.3178; fp32 4.3190, ours 4.3040.
        What to make of it: dev/bench/plots.py compare, doc/gpu_training.md.
Cost:   28.4 ms a step in bf16, 161.7 ms in fp32 (medians, eager, waiting after each step): 6 s and 32 s.
"""
import argparse
import contextlib
import json
import math
import time

from needs import needs

needs(__doc__, "torch")
import torch
from torch import nn

from torch_gpt2 import Muon, Optimizers, TrainingData, make_optimizer, permutation, read_model

# llm.c's defaults, but for batch, seq-len and steps
NUMBERS = {"batch": 4, "seq_len": 1024, "steps": 200, "warmup": 0, "seed": 42, "lr": 3e-4,
           "final_lr_fraction": 1.0, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
           "clip": 1.0}
# what llmc/host/tokens/dataloader.cpp makes of 298 windows with seed 42 in epoch 0
KNOWN_ORDER = [61, 210, 92, 77, 263, 148, 268, 70]


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="model file, 20240326 v3")
    p.add_argument("--train-data", required=True, help="token shards: a file or a pattern in quotes")
    p.add_argument("--out", required=True, help="JSONL file to write")
    p.add_argument("--dtype", choices=["fp32", "bf16", "bf16-pure"], default="bf16")
    p.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    p.add_argument("--schedule", choices=["constant", "cosine", "linear", "wsd"], default="cosine")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in NUMBERS.items():
        option = "--" + name.replace("_", "-")
        p.add_argument(option, type=type(value), default=value, help=f"default {value}")
    return p.parse_args()


def learning_rate(a, step):
    """the rate of a step, 0-based: llmc/model/run/plan.h"""
    if step < a.warmup:
        return a.lr * (step + 1) / a.warmup
    lowest = a.lr * a.final_lr_fraction
    done = min(1.0, (step - a.warmup) / max(1, a.steps - a.warmup))
    if a.schedule == "cosine":
        return lowest + (a.lr - lowest) * 0.5 * (1 + math.cos(math.pi * done))
    if a.schedule == "linear":
        return a.lr + (lowest - a.lr) * done
    if a.schedule == "wsd":
        begin = max(0.8 * a.steps, a.warmup)
        decayed = (step - begin) / max(1.0, a.steps - begin)
        return a.lr if decayed <= 0 else lowest + (a.lr - lowest) * (1 - math.sqrt(min(1.0, decayed)))
    return a.lr


class Training:
    """A model, the fp32 weights that the optimizer works on, and how the forward pass computes."""

    def __init__(self, a):
        self.a = a
        model = read_model(a.model).to(a.device)
        if a.seq_len > model.config.max_seq_len:
            raise SystemExit(f"--seq-len {a.seq_len}: {a.model} has {model.config.max_seq_len} positions")
        self.pure = a.dtype == "bf16-pure"
        self.masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()] if self.pure else None
        self.model = model.bfloat16() if self.pure else model
        self.params = list(self.model.parameters())
        of = self.masters or self.params
        matrices = [p for p in of[2:] if p.dim() == 2] if a.optimizer == "muon" else []  # all but wte and wpe
        rest = [p for p in of if all(p is not m for m in matrices)]
        self.optimizer = make_optimizer(rest, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay)
        if matrices:
            dtype = torch.float32 if a.dtype == "fp32" else torch.bfloat16
            self.optimizer = Optimizers(Muon(matrices, a.lr, a.weight_decay, dtype), self.optimizer)

    def precision(self):
        if self.a.dtype == "bf16":
            return torch.autocast(self.a.device, torch.bfloat16)
        return contextlib.nullcontext()

    def step(self, x, y, lr):
        """one optimizer step; loss and gradient norm before clipping, as Python numbers"""
        with self.precision():
            loss = self.model(x, y)[1]
        loss.backward()
        if self.pure:
            for master, p in zip(self.masters, self.params):
                master.grad, p.grad = p.grad.float(), None
        norm = nn.utils.clip_grad_norm_(self.masters or self.params, self.a.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.pure:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.masters)
        return loss.item(), norm.item()


def main():
    a = parse_options()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    if list(map(permutation(298, 42, 0), range(8))) != KNOWN_ORDER:
        raise SystemExit("compare_pytorch: the training order is not that of llmc/host/tokens/dataloader.cpp any more")
    data, training = TrainingData(a.train_data, a.seq_len, a.seed), Training(a)
    with open(a.out, "w") as out:
        for step in range(a.steps):
            start = time.perf_counter()
            x, y = (tokens.to(a.device) for tokens in data.read(step * a.batch, a.batch))
            lr = learning_rate(a, step)
            loss, norm = training.step(x, y, lr)
            row = {"step": step + 1, "train_loss": loss, "grad_norm": norm, "lr": lr,
                   "ms": (time.perf_counter() - start) * 1e3}
            out.write(json.dumps(row) + "\n")
            if (step + 1) % 20 == 0 or step == 0:
                print(f"step {step + 1}/{a.steps} | loss {loss:.4f} | norm {norm:.3f} | {row['ms']:.1f} ms",
                      flush=True)
    print("wrote", a.out)


if __name__ == "__main__":
    main()
