#!/usr/bin/env python3
"""GPT-2's tokens: ours beside tiktoken's, and what is made with packages for the tests and the tokenizer.

    pip install numpy tiktoken tokenizers
    dev/bench/check_bpe.py texts GPT2_FOLDER [TEXT...] [--count 10000]     data/make_shards --tokenizer
    dev/bench/check_bpe.py fixture TEXT        makes dev/test/fixture/bpe; the merges are learnt from TEXT
    dev/bench/check_bpe.py header | diff - llmc/host/tokens/unicode_classes.h      none, if characters have tiktoken's classes

texts: GPT2_FOLDER holds GPT-2's encoder.json and vocab.bpe. Random Unicode strings and the files TEXT must get the ids that
tiktoken's encode_ordinary gives; random bytes, which tiktoken does not take, must come back. Exit 1 on any difference.
fixture: a small byte-level BPE in GPT-2's file format, and texts with the ids that tiktoken gives.
header: which characters are letters, digits and spaces for GPT-2's pre-tokenizer: a table, as ids must not depend on the machine.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from lab import needs, parser

MERGES = 200
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
FIXTURE = "dev/test/fixture/bpe"


def random_strings(count, rng):
    """words, spaces of all kinds, marks, contractions, any character"""
    pieces = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\u180e", "'s", "'ll", "'", "'re", "'S",
              "\u2019s", "<|endoftext|>", "a", "Zebra", "e\u0301", "\u00e9", "\u4e2d\u6587", "\u0660\u0661", "12345", "\u00bd", "\u2167",
              "...", "!?", "\U0001f642", "\u200d", "\x00", "\ufeff", "the", " the", "don't", "\u0e01\u0e33", "-", "_"]

    def part():
        if rng.random() < 0.7:
            return rng.choice(pieces)
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)])
        return chr(code if not 0xD800 <= code < 0xE000 else 65)
    return ["".join(part() for _ in range(rng.randrange(1, 30))) for _ in range(count)]


def tiktoken_of(folder):
    """the encoding of a folder with encoder.json and vocab.bpe"""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # else it gives what these files held at an earlier call
    ranks = data_gym_to_mergeable_bpe_ranks(folder + "/vocab.bpe", folder + "/encoder.json")
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)})


# ---- texts -------------------------------------------------------------------------------------------
def shard_ids(tokenizer, end, texts):
    """the ids of each text, as make_shards gives them to a folder with one file each"""
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/in")
        for i, text in enumerate(texts):
            with open(f"{folder}/in/{i:07d}", "wb") as file:
                file.write(text)
        subprocess.run(["data/make_shards", "--tokenizer", tokenizer, "--val-fraction", "0", "--as-is",
                        "--out", folder + "/out", folder + "/in"], check=True, stdout=subprocess.DEVNULL)
        ids = numpy.fromfile(folder + "/out_train_000000.bin", dtype=numpy.uint16)[512:]
    ends = numpy.flatnonzero(ids == end)
    found = [ids[a + 1:b].tolist() for a, b in zip(ends[:-1], ends[1:])]
    assert len(found) == len(texts), (len(found), len(texts))
    return found


def texts(args):
    needs(__doc__, "numpy", "tiktoken")
    gpt2, rng = tiktoken_of(args.gpt2), random.Random(1)
    strings = random_strings(args.count, rng) + ["a" * 5000, " " * 3000 + "x", "ab" * 3000, "\n" * 2000]
    ours = shard_ids(args.gpt2, gpt2.eot_token, [s.encode() for s in strings])
    expected = [gpt2.encode_ordinary(s) for s in strings]
    wrong = [s for s, a, b in zip(strings, ours, expected) if a != b]
    print(f"random strings: {len(wrong)} of {len(strings)} differ from tiktoken")
    print(*(repr(s)[:200] for s in wrong[:3]), sep="\n")
    random_bytes = [rng.randbytes(rng.randrange(1, 60)) for _ in range(args.count)]
    ids = shard_ids(args.gpt2, gpt2.eot_token, random_bytes)
    back = [b"".join(map(gpt2.decode_single_token_bytes, each)) for each in ids]
    lost = sum(a != b for a, b in zip(back, random_bytes))
    print(f"random bytes: {lost} of {args.count} do not come back")

    for path in args.texts:
        with open(path, "rb") as file:
            text = file.read()
        begin = time.time()
        ids = shard_ids(args.gpt2, gpt2.eot_token, [text])[0]
        seconds = time.time() - begin
        same = ids == gpt2.encode_ordinary(text.decode())
        print(f"{path}: {len(ids)} tokens, {len(text) / seconds / 1e6:.1f} MB/s, {'equal' if same else 'DIFFERENT'}")
        wrong += [] if same else [path]
    return bool(wrong) or lost > 0


# ---- fixture -----------------------------------------------------------------------------------------
def fixture(args):
    needs(__doc__, "tiktoken", "tokenizers")
    import tiktoken
    import tokenizers
    learnt = tokenizers.ByteLevelBPETokenizer()
    learnt.train([args.text], vocab_size=256 + MERGES, min_frequency=1, show_progress=False)
    merges = json.loads(learnt.to_str())["model"]["merges"]
    assert len(merges) == MERGES, f"{args.text} gives {len(merges)} merges, expected {MERGES}"
    # GPT-2's order of bytes, each spelled as a visible character
    visible = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    others = [b for b in range(256) if b not in visible]
    tokens = [*map(chr, visible), *(chr(256 + i) for i in range(len(others))), *map("".join, merges), "<|endoftext|>"]
    with open(FIXTURE + "/encoder.json", "w") as file:
        json.dump({t: i for i, t in enumerate(tokens)}, file)
    with open(FIXTURE + "/vocab.bpe", "w") as file:
        file.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in merges))

    encoding = tiktoken_of(FIXTURE)
    strings = random_strings(400, random.Random(7))
    strings += ["a" * 200, " " * 100 + "x", "the " * 60, "\n" * 130, "they've don't we'll I'm 'sx", " the  the   the\n\n the"]
    with open(FIXTURE + "/cases.txt", "w") as file:
        print(f"# text in hexadecimal, then its ids by tiktoken {tiktoken.__version__}; made by dev/bench/check_bpe.py", file=file)
        for s in strings:
            print(s.encode().hex(), *encoding.encode_ordinary(s), file=file)


# ---- header ------------------------------------------------------------------------------------------
def header(args):
    """a pattern of one class drops the characters of the others"""
    needs(__doc__, "tiktoken")
    import tiktoken
    print(f"""// The letters, digits and spaces of Unicode, as tiktoken {tiktoken.__version__} has them: how many characters from 0 on are not of the
// class, then how many are, and so on; behind the last none is. Generated by dev/bench/check_bpe.py.
#pragma once
#include <cstdint>

namespace llmc {{

// clang-format off""")
    ranks = {bytes([b]): b for b in range(256)}
    for name, pattern in (("Letter", r"\p{L}"), ("Digit", r"\p{N}"), ("Space", r"\s")):
        encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        inside = [not 0xD800 <= code < 0xE000 and bool(encoding.encode_ordinary(chr(code))) for code in range(0x110000)]
        changes = [code for code in range(1, 0x110000) if inside[code] != inside[code - 1]]
        lines = ["    "]
        for length in (b - a for a, b in zip([0] + changes, changes)):
            if len(f"{lines[-1]}{length},") > 108:
                lines.append("    ")
            lines[-1] += f"{length},"
        print(f"inline constexpr uint32_t k{name}Runs[] = {{", *lines, "};", sep="\n")
    print("// clang-format on\n\n}  // namespace llmc")


def main():
    p = parser(__doc__)
    ways = p.add_subparsers(dest="what", required=True)
    t = ways.add_parser("texts")
    t.add_argument("gpt2")
    t.add_argument("texts", nargs="*")
    t.add_argument("--count", type=int, default=10000)
    ways.add_parser("fixture").add_argument("text")
    ways.add_parser("header")
    args = p.parse_args()
    return {"texts": texts, "fixture": fixture, "header": header}[args.what](args)


if __name__ == "__main__":
    sys.exit(main())
