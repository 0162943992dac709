#!/usr/bin/env python3
"""Makes dev/test/fixture/bpe: a small byte-level BPE in GPT-2's file format, and texts with the ids that tiktoken gives.

    pip install tiktoken && dev/bench/make_bpe_fixture.py TEXT      the merges are learnt from TEXT
"""
import argparse
import collections
import json
import random

from needs import needs

needs(__doc__, "tiktoken")
import tiktoken
from check_bpe import PATTERN, random_strings
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

FOLDER, MERGES = "dev/test/fixture/bpe", 200


def byte_characters():
    visible = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    order = visible + [b for b in range(256) if b not in visible]
    return {b: chr(b) if b in visible else chr(256 + i - len(visible)) for i, b in enumerate(order)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=argparse.FileType())
    text = parser.parse_args().text.read()
    characters = byte_characters()
    single = tiktoken.Encoding("x", pat_str=PATTERN, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={})
    import regex

    words = collections.Counter(regex.findall(PATTERN, text))
    words = {tuple(characters[b] for b in single.encode_ordinary(w)): n for w, n in words.items()}
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        joined = {}
        for word, n in words.items():
            parts, i = [], 0
            while i < len(word):
                two = word[i:i + 2] == best
                parts.append("".join(word[i:i + 2]) if two else word[i])
                i += 1 + two
            joined[tuple(parts)] = joined.get(tuple(parts), 0) + n
        words = joined
    tokens = list(characters.values()) + ["".join(m) for m in merges] + ["<|endoftext|>"]
    with open(FOLDER + "/encoder.json", "w") as file:
        json.dump({t: i for i, t in enumerate(tokens)}, file)
    with open(FOLDER + "/vocab.bpe", "w") as file:
        file.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in merges))

    ranks = data_gym_to_mergeable_bpe_ranks(FOLDER + "/vocab.bpe", FOLDER + "/encoder.json")
    encoding = tiktoken.Encoding("fixture", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    strings = random_strings(400, random.Random(7))[:400]
    strings += ["a" * 200, " " * 100 + "x", "the " * 60, "\n" * 130, "they've don't we'll I'm 'sx", " the  the   the\n\n the"]
    with open(FOLDER + "/cases.txt", "w") as file:
        file.write(f"# text in hexadecimal, then its ids by tiktoken {tiktoken.__version__}; made by dev/bench/make_bpe_fixture.py\n")
        for s in strings:
            file.write(" ".join([s.encode().hex()] + [str(i) for i in encoding.encode_ordinary(s)]) + "\n")


main()
