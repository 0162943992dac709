#!/usr/bin/env python3
"""Compares data/make_shards --tokenizer with tiktoken (and, for the record, with Hugging Face's tokenizers).

    pip install numpy tiktoken tokenizers
    dev/bench/check_bpe.py GPT2_FOLDER [TEXT...] [--count 10000]

GPT2_FOLDER holds GPT-2's encoder.json and vocab.bpe. Random Unicode strings and the files TEXT must get the ids that
tiktoken's encode_ordinary gives; random bytes, which tiktoken does not take, must come back. Exit 1 on any difference.
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

from needs import needs

needs(__doc__, "numpy", "tiktoken")
import numpy
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

END = 50256
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def random_strings(count, rng):
    """words, spaces of all kinds, marks, contractions, any character"""
    pieces = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\u180e", "'s", "'ll", "'", "'re", "'S",
              "\u2019s", "<|endoftext|>", "a", "Zebra", "e\u0301", "\u00e9", "\u4e2d\u6587", "\u0660\u0661", "12345", "\u00bd", "\u2167", "...",
              "!?", "\U0001f642", "\u200d", "\x00", "\ufeff", "the", " the", "don't", "\u0e01\u0e33", "-", "_"]
    strings = []
    for i in range(count):
        parts = []
        for _ in range(rng.randrange(1, 30)):
            if rng.random() < 0.7:
                parts.append(rng.choice(pieces))
            else:
                code = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)])
                parts.append(chr(code if not 0xD800 <= code < 0xE000 else 65))
        strings.append("".join(parts))
    strings += ["a" * 5000, " " * 3000 + "x", "ab" * 3000, "\n" * 2000]
    return strings


def shard_ids(args, texts):
    """the ids of each text, as make_shards gives them to a folder with one file each"""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/in")
        for i, text in enumerate(texts):
            with open(f"{folder}/in/{i:07d}", "wb") as file:
                file.write(text)
        subprocess.run([args.make_shards, "--tokenizer", args.gpt2, "--val-fraction", "0", "--out", folder + "/out",
                        folder + "/in"], check=True, stdout=subprocess.DEVNULL)
        ids = numpy.fromfile(folder + "/out_train_000000.bin", dtype=numpy.uint16)[512:]
    ends = numpy.flatnonzero(ids == END)
    found = [ids[a + 1:b].tolist() for a, b in zip(ends[:-1], ends[1:])]
    assert len(found) == len(texts), (len(found), len(texts))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpt2")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--make-shards", default="data/make_shards")
    args = parser.parse_args()
    for path in (args.gpt2 + "/vocab.bpe", args.gpt2 + "/encoder.json", args.make_shards, *args.texts):
        if not os.path.exists(path):
            parser.error(f"{path}: no such file")
    ranks = data_gym_to_mergeable_bpe_ranks(args.gpt2 + "/vocab.bpe", args.gpt2 + "/encoder.json")
    gpt2 = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": END})
    rng = random.Random(1)

    strings = [s for s in random_strings(args.count, rng) if s]
    ours = shard_ids(args, [s.encode() for s in strings])
    expected = [gpt2.encode_ordinary(s) for s in strings]
    wrong = [s for s, a, b in zip(strings, ours, expected) if a != b]
    print(f"random strings: {len(wrong)} of {len(strings)} differ from tiktoken {tiktoken.__version__}")
    for s in wrong[:3]:
        print("  ", repr(s)[:200])

    try:
        import tokenizers

        hf = tokenizers.ByteLevelBPETokenizer(args.gpt2 + "/encoder.json", args.gpt2 + "/vocab.bpe")
        differ = sum(hf.encode(s).ids != b for s, b in zip(strings, expected))
        print(f"for the record: tokenizers {tokenizers.__version__} differs from tiktoken on {differ} of them")
    except ImportError:
        print("tokenizers is not installed: not compared")

    random_bytes = [rng.randbytes(rng.randrange(1, 60)) for _ in range(args.count)]
    back = [b"".join(gpt2.decode_single_token_bytes(t) for t in ids) for ids in shard_ids(args, random_bytes)]
    lost = sum(a != b for a, b in zip(back, random_bytes))
    print(f"random bytes: {lost} of {args.count} do not come back")

    for path in args.texts:
        text = open(path, "rb").read()
        begin = time.time()
        ids = shard_ids(args, [text])[0]
        seconds = time.time() - begin
        same = ids == gpt2.encode_ordinary(text.decode())
        print(f"{path}: {len(ids)} tokens, {len(text) / seconds / 1e6:.1f} MB/s, {'equal' if same else 'DIFFERENT'}")
        wrong += [] if same else [path]
    sys.exit(bool(wrong) or lost > 0)


if __name__ == "__main__":
    main()
