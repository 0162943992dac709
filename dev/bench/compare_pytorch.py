#!/usr/bin/env python3
"""The same GPT-2 in PyTorch: does ours learn as it does, how far is ours in bf16 from the truth, does it answer alike?

    dev/bench/compare_pytorch.py train OPTIONS                  doc/gpu_training.md has the commands; then plots.py compare
    dev/bench/compare_pytorch.py errors MODEL --data SHARDS --write-state runs/truth.bin     the batch, fp32 results
    ./test_gpt2cu --dump-bf16 runs/ours.bin --model MODEL --state runs/truth.bin       what ours makes of it
    dev/bench/compare_pytorch.py errors MODEL --ours runs/ours.bin                           the comparison
    dev/bench/compare_pytorch.py hellaswag MODEL QUESTIONS.bin [--trainer ./train_gpt2]

train: the same first weights, the same batches in the same order, the same AdamW. Takes the trainer's own option names, so that
one line serves both: it must name all that matters, as the trainer works out what is left open, and this takes llm.c's defaults.
--dtype fp32 is true fp32 products, no TF32; bf16 is autocast over fp32 weights: products and attention in bf16, the residual
stream in fp32. Writes one JSON object a step with the keys of the trainer's log.jsonl; ms is the mean of up to 20 steps.

errors: our GPU model's logits, losses and gradients beside PyTorch's, one batch. MODEL is a model file (20240326 v3) of fp32
weights, the other files are debug states (20240327 v2). The truth is PyTorch in fp32 without TF32. Error = ||x - truth|| /
||truth||, for each tensor. PyTorch in bf16 is measured in two ways:
    autocast   fp32 weights, residual stream, LayerNorm and gradients; only the products in bf16
    pure       model.bfloat16(): weights, activations, residual stream and gradients in bf16
Ours keeps weights and activations in bf16, as pure does, so pure is what it is held against: exit 1 if the error of the logits,
of the tokens' losses or of all gradients together is over 1.5 x pure's. The mean loss is one number, whose error is large or
small by luck: it is printed, and judged by eye over several batches (--seed).

hellaswag: what ./train_gpt2 eval --hellaswag finds, in fp32, a row at a time, losses summed in double. With --trainer that
program's figures are compared: exit 1 if they differ.
"""
import concurrent.futures
import contextlib
import json
import math
import re
import subprocess
import time

from lab import needs, parser

needs(__doc__, "numpy", "torch")
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from torch_gpt2 import (HEADER_WORDS, TrainingData, make_muon, make_optimizer, permutation, read_header, read_model,
                        read_state, run_batch, to_float8, write_model, write_state)

# of train: llm.c's defaults, but for batch, seq-len and steps
NUMBERS = {"batch": 4, "seq_len": 1024, "steps": 200, "warmup": 0, "seed": 42, "lr": 3e-4, "final_lr_fraction": 1.0,
           "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "clip": 1.0,
           "dropout": 0.0}
# what llmc/host/tokens/dataloader.cpp makes of 298 windows with seed 42 in epoch 0
KNOWN_ORDER = [61, 210, 92, 77, 263, 148, 268, 70]
MOST = 1.5  # of errors
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# ---- train -------------------------------------------------------------------------------------------
def learning_rate(a, step):
    """the rate of a step, 0-based: llmc/model/run/plan.h"""
    if step < a.warmup:
        return a.lr * (step + 1) / a.warmup
    lowest = a.lr * a.final_lr_fraction
    done = min(1.0, (step - a.warmup) / max(1, a.steps - a.warmup))
    return lowest + (a.lr - lowest) * 0.5 * (1 + math.cos(math.pi * done))


def batches(a, data):
    """(x, y) of each step on the device; a thread reads the next one meanwhile"""
    def read(step):
        return [tokens.pin_memory() if DEVICE == "cuda" else tokens for tokens in data.read(step * a.batch, a.batch)]

    with concurrent.futures.ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(read, 0)
        for step in range(a.steps):
            tokens, coming = coming.result(), ahead.submit(read, step + 1)
            yield [part.to(DEVICE, non_blocking=True) for part in tokens]


def train(a):
    if list(map(permutation(298, 42, 0), range(8))) != KNOWN_ORDER:
        raise SystemExit("compare_pytorch: the training order is not that of llmc/host/tokens/dataloader.cpp any more")
    data, model = TrainingData(a.train_data, a.seq_len, a.seed), read_model(a.model).to(DEVICE)
    if a.seq_len > model.config.max_seq_len:
        raise SystemExit(f"--seq-len {a.seq_len}: {a.model} has {model.config.max_seq_len} positions")
    for part in (model, *model.blocks):
        part.dropout = a.dropout
    if a.fp8:
        to_float8(model, a.fp8)
    optimizers, parameters = [], model.parameters()
    if a.optimizer == "muon":
        muon, parameters = make_muon(model, a.lr, a.weight_decay)
        optimizers.append(muon)
    optimizers.append(make_optimizer(parameters, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay))
    forward = torch.compile(model) if a.compile or a.fp8 else model
    rows, start = [], time.perf_counter()
    with open(a.out, "w") as out:
        for step, (x, y) in enumerate(batches(a, data)):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=a.dtype == "bf16"):
                loss = forward(x, y)[1]
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), a.clip or math.inf)  # the norm before it
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(a, step)
                optimizer.step()
            model.zero_grad(set_to_none=True)
            rows.append({"step": step + 1, "train_loss": loss.detach(), "grad_norm": norm, "lr": learning_rate(a, step)})
            if (step + 1) % 20 == 0 or step in (0, a.steps - 1):  # not each step: reading a loss waits for the GPU
                rows = [{key: value.item() if torch.is_tensor(value) else value for key, value in row.items()} for row in rows]
                now = time.perf_counter()
                for row in rows:
                    row["ms"] = (now - start) * 1e3 / len(rows)
                    out.write(json.dumps(row) + "\n")
                print(" | ".join(f"{key} {value:.6g}" for key, value in rows[-1].items()), flush=True)
                rows, start = [], now
    print("wrote", a.out)
    if a.write_model:
        write_model(a.write_model, model)


# ---- errors ------------------------------------------------------------------------------------------
def run(a, x, y, dtype, autocast=False):
    model = read_model(a.model).to(DEVICE, dtype)
    with torch.autocast(DEVICE, torch.bfloat16) if autocast else contextlib.nullcontext():
        return run_batch(model, x.to(DEVICE), y.to(DEVICE))


def token_losses(state):
    logits = state.logits.to(DEVICE)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, state.y.to(DEVICE).flatten(), reduction="none")


def norm_of(parts):
    return sum(p.double().square().sum().item() for p in parts) ** 0.5


def relative_error(parts, truth):
    """of tensors taken together; differences in double"""
    off = norm_of(p.to(DEVICE).double() - t.double() for p, t in zip(parts, truth))
    return off / max(norm_of(truth), 1e-300)


def errors_of(state, truth):
    """name -> relative error: what counts first, then tensor by tensor"""
    rows = {"logits": relative_error([state.logits], [truth.logits]),
            "losses of tokens": relative_error([token_losses(state)], [token_losses(truth)]),
            "all gradients": relative_error(state.gradients.values(), truth.gradients.values()),
            "mean loss": abs(state.loss - truth.loss) / truth.loss}
    return rows | {"d " + name: relative_error([state.gradients[name]], [of]) for name, of in truth.gradients.items()}


def report(measured):
    """prints the table; the number of errors over MOST x pure's"""
    ours, autocast, pure = measured["ours"], measured["autocast"], measured["pure"]
    print("| relative error of | ours bf16 | autocast | pure bf16 | ours/autocast | ours/pure | |\n|" + "---|" * 7)
    failures = 0
    for k, (name, error) in enumerate(ours.items()):
        ok = k >= 3 or error <= MOST * pure[name]  # NaN is not
        failures += not ok
        ratios = [error / max(theirs[name], 1e-300) for theirs in (autocast, pure)]
        print(f"| {name} | {error:.3e} | {autocast[name]:.3e} | {pure[name]:.3e} | {ratios[0]:.2f} | {ratios[1]:.2f} | "
              f"{('ok' if ok else 'FAIL') if k < 3 else ''} |")
    print(f"\n{failures} of 3 over {MOST} x PyTorch pure")
    return failures


def errors(a):
    if a.write_state:
        truth = run(a, *TrainingData(a.data, a.seq_len, a.seed).read(0, a.batch), torch.float32)
        write_state(a.write_state, truth)
        print(f"wrote {a.write_state}: B {a.batch}, T {a.seq_len}, loss {truth.loss:.6f}")
        return
    ours = read_state(a.ours, read_model(a.model))
    truth = run(a, ours.x, ours.y, torch.float32)
    B, T = ours.x.shape
    print(f"B {B}, T {T}: loss {truth.loss:.6f}, gradient norm {norm_of(truth.gradients.values()):.6f}\n")
    states = {"ours": ours, "autocast": run(a, ours.x, ours.y, torch.float32, autocast=True),
              "pure": run(a, ours.x, ours.y, torch.bfloat16)}
    raise SystemExit(report({name: errors_of(state, truth) for name, state in states.items()}) > 0)


# ---- hellaswag ---------------------------------------------------------------------------------------
def load_questions(path):
    """-> vocabulary, [(label, context, four endings)]"""
    words = read_header(path, 20240522, 1)
    stream, at, questions = np.fromfile(path, np.uint16, offset=4 * HEADER_WORDS), 0, []
    for number in range(words[2]):
        start, size, index, label, count, length = (int(x) for x in stream[at: at + 6])
        assert (start, index, count) == (65535, number, 4), f"{path}: example {number}"
        cursor = at + 6
        parts = [stream[cursor: cursor + length]]
        for _ in range(count):
            cursor += len(parts[-1])
            parts.append(stream[cursor + 1: cursor + 1 + int(stream[cursor])])
            cursor += 1
        questions.append((label, parts[0], parts[1:]))
        at += size // 2
    return int(words[4]) or 50257, questions


@torch.no_grad()
def losses_of_ending(model, context, ending):
    """nats of each token of the ending; of what is longer than the model's positions and one more the last tokens count"""
    row = torch.from_numpy(np.concatenate([context, ending]).astype(np.int64)[-(model.config.max_seq_len + 1):])
    n = min(len(ending), len(row) - 1)
    logits, _ = model(row[None, :-1], row[None, 1:])
    return F.cross_entropy(logits[0, -n:, : model.config.vocab].double(), row[-n:], reduction="none")


def hellaswag(a):
    model, (vocabulary, questions) = read_model(a.model), load_questions(a.questions)
    if vocabulary != model.config.vocab:
        raise SystemExit(f"{a.questions} has a vocabulary of {vocabulary}, {a.model} of {model.config.vocab}")
    right = normalised = 0
    for label, context, endings in questions:
        losses = [losses_of_ending(model, context, ending) for ending in endings]
        right += label == int(np.argmin([float(x.sum()) for x in losses]))
        normalised += label == int(np.argmin([float(x.mean()) for x in losses]))
    ours = [f"{right / len(questions):.4f}", f"{normalised / len(questions):.4f}"]
    print(f"HellaSwag   {len(questions)} examples\naccuracy    {ours[0]}\nnormalised  {ours[1]}")
    if a.trainer:
        out = subprocess.run([a.trainer, "eval", a.model, "--hellaswag", a.questions, "--seq-len",
                              str(model.config.max_seq_len)], check=True, capture_output=True, text=True).stdout
        theirs = [re.search(rf"^{name} +([\d.]+)", out, re.M).group(1) for name in ("accuracy", "normalised")]
        print(f"{a.trainer}: {theirs[0]} and {theirs[1]}: {'the same' if theirs == ours else 'DIFFERENT'}")
        raise SystemExit(theirs != ours)


def main():
    p = parser(__doc__)
    ways = p.add_subparsers(dest="what", required=True)
    t = ways.add_parser("train")
    t.add_argument("--model", required=True, help="model file, 20240326 v3")
    t.add_argument("--train-data", required=True, help="token shards: a file or a pattern in quotes")
    t.add_argument("--out", required=True, help="JSONL file to write")
    t.add_argument("--write-model", metavar="FILE", help="the trained weights, for the program's eval")
    t.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    t.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw", help="muon: PyTorch's (default adamw)")
    t.add_argument("--compile", action="store_true", help="by torch.compile")
    t.add_argument("--fp8", choices=["tensorwise", "rowwise"], help="the blocks by torchao's recipe, compiled")
    for name, value in NUMBERS.items():
        t.add_argument("--" + name.replace("_", "-"), type=type(value), default=value, help=f"default {value}")
    e = ways.add_parser("errors")
    e.add_argument("model")
    which = e.add_mutually_exclusive_group(required=True)
    which.add_argument("--write-state", metavar="FILE", help="write the truth for a batch of --data")
    which.add_argument("--ours", metavar="FILE", help="compare this debug state; the batch is the one in it")
    e.add_argument("--data", help="token shards: a file or a pattern in quotes")
    e.add_argument("--batch", type=int, default=2, help="rows (default 2)")
    e.add_argument("--seq-len", type=int, default=1024, help="tokens in a row (default 1024)")
    e.add_argument("--seed", type=int, default=42, help="of the order of the rows (default 42)")
    h = ways.add_parser("hellaswag")
    h.add_argument("model", help="model file, as a run leaves in model.bin")
    h.add_argument("questions")
    h.add_argument("--trainer")
    a = p.parse_args()
    if a.what == "errors" and a.write_state and not a.data:
        p.error("--write-state needs --data")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    {"train": train, "errors": errors, "hellaswag": hellaswag}[a.what](a)


if __name__ == "__main__":
    main()
