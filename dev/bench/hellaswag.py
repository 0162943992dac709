#!/usr/bin/env python3
"""HellaSwag in PyTorch, for comparison with ./train_gpt2 eval --hellaswag: the same file, the same model, the same figures.

    dev/bench/hellaswag.py MODEL.bin QUESTIONS.bin [--examples N] [--trainer ./train_gpt2]

MODEL: a model file (20240326 v3), as a run leaves in model.bin. It is computed in fp32, a row at a time, losses summed in
double. With --trainer that program's figures are compared: exit 1 if they differ.
"""
import argparse
import re
import subprocess
import sys

from needs import needs

needs(__doc__, "numpy", "torch")
import numpy as np
import torch
import torch.nn.functional as F

from torch_gpt2 import read_model

HEADER = 256


def load_questions(path):
    """-> vocabulary, [(label, context, four endings)]"""
    try:
        words = np.fromfile(path, np.int32, HEADER)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
    if words[:2].tolist() != [20240522, 1]:
        sys.exit(f"{path}: not a file of questions; data/make_hellaswag makes one")
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


@torch.no_grad()
def losses_of_ending(model, context, ending):
    """nats of each token of the ending; of what is longer than the model's positions and one more the last tokens count"""
    row = torch.from_numpy(np.concatenate([context, ending]).astype(np.int64)[-(model.config.max_seq_len + 1):])
    n = min(len(ending), len(row) - 1)
    logits, _ = model(row[None, :-1], row[None, 1:])
    return F.cross_entropy(logits[0, -n:, : model.config.vocab].double(), row[-n:], reduction="none")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("questions")
    parser.add_argument("--examples", type=int, help="the first N alone")
    parser.add_argument("--trainer")
    args = parser.parse_args()
    model, (vocabulary, questions) = read_model(args.model), load_questions(args.questions)
    if vocabulary != model.config.vocab:
        sys.exit(f"{args.questions} has a vocabulary of {vocabulary}, {args.model} of {model.config.vocab}")
    questions = questions[: args.examples]
    right = normalised = 0
    for label, context, endings in questions:
        losses = [losses_of_ending(model, context, ending) for ending in endings]
        right += label == int(np.argmin([float(x.sum()) for x in losses]))
        normalised += label == int(np.argmin([float(x.mean()) for x in losses]))
    ours = [f"{right / len(questions):.4f}", f"{normalised / len(questions):.4f}"]
    print(f"HellaSwag   {len(questions)} examples\naccuracy    {ours[0]}\nnormalised  {ours[1]}")
    if args.trainer:
        out = subprocess.run([args.trainer, "eval", args.model, "--hellaswag", args.questions, "--seq-len",
                              str(model.config.max_seq_len)], check=True, capture_output=True, text=True).stdout
        theirs = [re.search(rf"^{name} +([\d.]+)", out, re.M).group(1) for name in ("accuracy", "normalised")]
        print(f"{args.trainer}: {theirs[0]} and {theirs[1]}: {'the same' if theirs == ours else 'DIFFERENT'}")
        sys.exit(theirs != ours)


if __name__ == "__main__":
    main()
