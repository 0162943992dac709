#!/usr/bin/env python3
"""HellaSwag in NumPy, for comparison with ./train_gpt2 eval --hellaswag: the same file, the same model, the same figures.

    scripts/hellaswag.py MODEL.bin QUESTIONS.bin [--examples N] [--trainer ./train_gpt2]

MODEL: a model file (20240326, fp32 or bf16), as a run leaves in model.bin. It is computed in fp32, a row at a time, losses
summed in double. With --trainer that program's figures are compared: exit 1 if they differ.
"""
import argparse
import re
import subprocess
import sys

import numpy as np

HEADER = 256


def load_model(path):
    """-> (layers, heads, parameters by name)"""
    words = np.fromfile(path, np.int32, HEADER)
    assert words[0] == 20240326 and words[1] in (3, 5), f"{path}: not a model file"
    T, V, L, NH, C, Vp = (int(x) for x in words[2:8])
    raw = np.fromfile(path, np.float32 if words[1] == 3 else np.uint16, offset=4 * HEADER)
    values = raw if words[1] == 3 else (raw.astype(np.uint32) << 16).view(np.float32)
    shapes = {"wte": (Vp, C), "wpe": (T, C), "ln1w": (L, C), "ln1b": (L, C), "qkvw": (L, 3 * C, C), "qkvb": (L, 3 * C),
              "attprojw": (L, C, C), "attprojb": (L, C), "ln2w": (L, C), "ln2b": (L, C), "fcw": (L, 4 * C, C),
              "fcb": (L, 4 * C), "fcprojw": (L, C, 4 * C), "fcprojb": (L, C), "lnfw": (C,), "lnfb": (C,)}
    p, at = {}, 0
    for name, shape in shapes.items():
        n = int(np.prod(shape))
        p[name], at = values[at : at + n].reshape(shape), at + n
    assert at == len(values), f"{path}: {len(values)} parameters, expected {at}"
    p["wte"] = p["wte"][:V]
    return L, NH, p


def load_questions(path):
    """-> vocabulary, [(label, context, four endings)]"""
    words = np.fromfile(path, np.int32, HEADER)
    assert words[0] == 20240522 and words[1] == 1, f"{path}: not a file of questions"
    stream, at, questions = np.fromfile(path, np.uint16, offset=4 * HEADER), 0, []
    for number in range(words[2]):
        start, size, index, label, count, length = (int(x) for x in stream[at : at + 6])
        assert (start, index, count) == (65535, number, 4), f"{path}: example {number}"
        cursor = at + 6
        parts = [stream[cursor : cursor + length]]
        for _ in range(count):
            cursor += len(parts[-1])
            parts.append(stream[cursor + 1 : cursor + 1 + int(stream[cursor])])
            cursor += 1
        questions.append((label, parts[0], parts[1:]))
        at += size // 2
    return int(words[4]) or 50257, questions


def layernorm(x, weight, bias):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def logits_of(model, tokens):
    """(T,V) of one row of T tokens"""
    L, NH, p = model
    T, C = len(tokens), p["wpe"].shape[1]
    future = np.triu(np.full((T, T), -np.inf, np.float32), 1)
    x = p["wte"][tokens] + p["wpe"][:T]
    for l in range(L):
        qkv = layernorm(x, p["ln1w"][l], p["ln1b"][l]) @ p["qkvw"][l].T + p["qkvb"][l]
        q, k, v = (part.reshape(T, NH, C // NH).transpose(1, 0, 2) for part in np.split(qkv, 3, axis=-1))
        att = softmax(q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(C // NH)) + future) @ v
        x = x + att.transpose(1, 0, 2).reshape(T, C) @ p["attprojw"][l].T + p["attprojb"][l]
        h = layernorm(x, p["ln2w"][l], p["ln2b"][l]) @ p["fcw"][l].T + p["fcb"][l]
        h = h * 0.5 * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (h + np.float32(0.044715) * h**3)))
        x = x + h @ p["fcprojw"][l].T + p["fcprojb"][l]
    return layernorm(x, p["lnfw"], p["lnfb"]) @ p["wte"].T


def losses_of_ending(model, context, ending):
    """nats of each token of the ending; of what is longer than the model's positions and one more the last tokens count"""
    row = np.concatenate([context, ending]).astype(np.int64)[-(len(model[2]["wpe"]) + 1):]
    n = min(len(ending), len(row) - 1)
    logits = logits_of(model, row[:-1])[-n:].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return np.log(np.exp(logits).sum(-1)) - logits[np.arange(n), row[-n:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("questions")
    parser.add_argument("--examples", type=int, help="the first so many")
    parser.add_argument("--trainer")
    args = parser.parse_args()
    model, (vocabulary, questions) = load_model(args.model), load_questions(args.questions)
    if vocabulary != len(model[2]["wte"]):
        sys.exit(f"{args.questions} has a vocabulary of {vocabulary}, {args.model} of {len(model[2]['wte'])}")
    questions = questions[: args.examples]
    right = normalised = 0
    for label, context, endings in questions:
        losses = [losses_of_ending(model, context, ending) for ending in endings]
        right += label == int(np.argmin([x.sum() for x in losses]))
        normalised += label == int(np.argmin([x.mean() for x in losses]))
    ours = [f"{right / len(questions):.4f}", f"{normalised / len(questions):.4f}"]
    print(f"HellaSwag   {len(questions)} examples\naccuracy    {ours[0]}\nnormalised  {ours[1]}")
    if args.trainer:
        out = subprocess.run([args.trainer, "eval", args.model, "--hellaswag", args.questions, "--seq-len",
                              str(len(model[2]["wpe"]))], check=True, capture_output=True, text=True).stdout
        theirs = [re.search(rf"^{name} +([\d.]+)", out, re.M).group(1) for name in ("accuracy", "normalised")]
        print(f"{args.trainer}: {theirs[0]} and {theirs[1]}: {'the same' if theirs == ours else 'DIFFERENT'}")
        sys.exit(theirs != ours)


if __name__ == "__main__":
    main()
