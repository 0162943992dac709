#!/usr/bin/env python3
"""Makes the small GPT-2 that the CPU reference is checked against: weights, PyTorch's numbers, a training.

A random GPT-2 (pre-LN, eps 1e-5, tanh GELU, learned positions, tied head, biases everywhere), run by PyTorch
on the CPU on one batch of random tokens. Nothing is trivial: LayerNorm weights are not 1, biases not 0, the
vocabulary is padded, T < max_seq_len, the gradient norm is above the clip. Writes the files that readme()
describes and prints, tensor by tensor, how far fp32 is from float64: what a test may ask for.

Command: python3 dev/bench/make_fixture.py      (and at any time: python3 dev/bench/make_fixture.py --verify)
Result:  loss 5.414209 falls to 4.452517 (ln V is 4.574711); fp32 is within 1.3e-6 of each gradient's largest
         value from float64, the 10 losses within 1.0e-6; 904 kB. (2026-11-20, PyTorch 2.11.0)
"""
import argparse
import datetime
import hashlib
import math
import pathlib
import platform

from needs import needs

needs(__doc__, "numpy", "torch")
import numpy as np
import torch
import torch.nn.functional as F

SIZES = {"layers": 2, "heads": 2, "channels": 64, "vocab": 97, "padded_vocab": 128, "max_seq_len": 32,
         "batch": 2, "seq_len": 24, "seed": 1}
UPDATES = 10


def tensor_shapes(L, C, Vp, max_t):
    """The 16 tensors in file order; a matrix is (out, in), a tensor of a layer holds all layers."""
    return {"wte": (Vp, C), "wpe": (max_t, C), "ln1w": (L, C), "ln1b": (L, C), "qkvw": (L, 3 * C, C),
            "qkvb": (L, 3 * C), "attprojw": (L, C, C), "attprojb": (L, C), "ln2w": (L, C), "ln2b": (L, C),
            "fcw": (L, 4 * C, C), "fcb": (L, 4 * C), "fcprojw": (L, C, 4 * C), "fcprojb": (L, C),
            "lnfw": (C,), "lnfb": (C,)}


def random_parameters(a):
    """Weights (numpy, fp32), inputs and targets (torch); with these spreads the loss is far from ln V."""
    rng = np.random.default_rng(a.seed)
    params = {}
    for name, shape in tensor_shapes(a.layers, a.channels, a.padded_vocab, a.max_seq_len).items():
        centre, spread = 0.0, 0.1  # biases and wpe
        if name in ("ln1w", "ln2w", "lnfw"):
            centre, spread = 1.0, 0.2
        elif name == "wte":
            spread = 1.6 / math.sqrt(a.channels)
        elif name.endswith("w"):
            spread = 1.2 / math.sqrt(shape[-1])
        params[name] = (centre + spread * rng.standard_normal(shape)).astype(np.float32)
    params["wte"][a.vocab:] = 0
    tokens = torch.from_numpy(rng.integers(0, a.vocab, (a.batch, a.seq_len + 1)))
    return params, tokens[:, :-1], tokens[:, 1:]


def attention(qkv, heads):
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, NH, T, HS)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.full_like(scores, -math.inf).triu(1)  # 0 up to the diagonal
    return ((scores + future).softmax(-1) @ v).transpose(1, 2).flatten(2)


def forward(p, x, y, a):
    """logits (B, T, V) and the mean loss; only the first V rows of wte take part."""
    def norm(inp, weight, bias):
        return F.layer_norm(inp, (a.channels,), weight, bias, 1e-5)

    wte = p["wte"][: a.vocab]
    residual = wte[x] + p["wpe"][: a.seq_len]
    for l in range(a.layers):
        qkv = F.linear(norm(residual, p["ln1w"][l], p["ln1b"][l]), p["qkvw"][l], p["qkvb"][l])
        residual = residual + F.linear(attention(qkv, a.heads), p["attprojw"][l], p["attprojb"][l])
        fch = F.linear(norm(residual, p["ln2w"][l], p["ln2b"][l]), p["fcw"][l], p["fcb"][l])
        residual = residual + F.linear(F.gelu(fch, approximate="tanh"), p["fcprojw"][l], p["fcprojb"][l])
    logits = norm(residual, p["lnfw"], p["lnfb"]) @ wte.T
    return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def run_torch(params, x, y, a, dtype):
    """The first step's logits, loss and gradients as numpy arrays; all losses and gradient norms."""
    p = {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in params.items()}
    optimizer = torch.optim.AdamW(p.values(), lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses, norms, first = [], [], None
    for _ in range(UPDATES):
        optimizer.zero_grad()
        logits, loss = forward(p, x, y, a)
        loss.backward()
        losses.append(loss.item())
        first = first or {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(),
                          **{name: t.grad.numpy().copy() for name, t in p.items()}}
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), 1.0).item())
        optimizer.step()
    return first, losses, norms


def print_comparison(single, double, C):
    print(f"{'gradient of':<12}{'max |v|':>12}{'median/max':>12}{'max |fp32-fp64|':>17}{'/ max |v|':>12}")
    rows = [(name, single[name], double[name]) for name in double]
    rows += [(f"qkvb, {part}", *(g["qkvb"][:, i * C:(i + 1) * C] for g in (single, double)))
             for i, part in enumerate("qkv")]
    for name, s, d in rows:
        top, off, middle = np.abs(d).max(), np.abs(s - d).max(), np.median(np.abs(d[d != 0]))
        print(f"{name:<12}{top:12.5g}{middle / top:12.4f}{off:17.3g}{off / top:12.3g}")


def packed(dtype, *arrays):
    return b"".join(np.asarray(v).astype(dtype).tobytes() for v in arrays)


def write_files(a, params, x, y, first, losses):
    model = [20240326, 3, a.max_seq_len, a.vocab, a.layers, a.heads, a.channels, a.padded_vocab] + [0] * 248
    state = [20240327, 2, a.batch, a.seq_len] + [0] * 252
    files = {"model.bin": packed("<i4", model) + packed("<f4", *params.values()),
             "state.bin": packed("<i4", state, x, y) + packed("<f4", *first.values()),
             "losses.txt": "".join(f"{loss:#.9g}\n" for loss in losses).encode()}
    files["README.md"] = readme(a, files).encode()
    a.out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (a.out / name).write_bytes(data)


def table_row(name, data):
    return f"| {name} | {len(data)} | {hashlib.sha256(data).hexdigest()} |\n"


def readme(a, files):
    options = " ".join(f"--{name.replace('_', '-')} {getattr(a, name)}" for name in SIZES)
    return f"""# Fixture: a small GPT-2 and PyTorch's numbers for it

Made on {datetime.date.today()} in {'float64' if a.double else 'fp32'} on the CPU with Python \
{platform.python_version()}, PyTorch {torch.__version__}, NumPy {np.__version__} by
`python3 dev/bench/make_fixture.py {options}{' --double' if a.double else ''}`

`model.bin` holds the weights (format 20240326 v3), `state.bin` one batch, its logits, loss and gradients
(20240327 v2), `losses.txt` the loss before each of {UPDATES} AdamW updates on that batch (lr 1e-4, betas 0.9
and 0.999, eps 1e-8, no decay, norm clipped at 1). Zero by nature: the gradients of the key third of `qkvb`
(rounding noise here), of `wpe` from row {a.seq_len} on and of `wte` from row {a.vocab} on (exactly 0).

| file | bytes | sha256 |
|---|---|---|
{"".join(table_row(*item) for item in files.items())}"""


def verify(folder):
    """Reads the files as a stranger would: sizes, sha256, headers, tokens, padding, loss out of logits."""
    def check(condition, message):
        if not condition:
            raise SystemExit(f"make_fixture: {folder}: {message}")
    raw = {name: (folder / name).read_bytes() for name in ("model.bin", "state.bin", "losses.txt")}
    rows = (folder / "README.md").read_text()
    check(all(table_row(*item) in rows for item in raw.items()), "README.md has other sizes or sha256")
    m, s = (np.frombuffer(raw[name], "<i4", 256) for name in ("model.bin", "state.bin"))
    check((*m[:2], *s[:2]) == (20240326, 3, 20240327, 2) and not m[8:].any() and not s[4:].any(), "headers")
    (max_t, V, L, NH, C, Vp), (B, T) = m[2:8].tolist(), s[2:4].tolist()
    check(1 <= T <= max_t and 1 <= V <= Vp and B >= 1 and C % NH == 0, "header values")
    xy = np.frombuffer(raw["state.bin"], "<i4", 2 * B * T, 1024).reshape(2, B, T)
    check(xy.min() >= 0 and xy.max() < V and (xy[0, :, 1:] == xy[1, :, :-1]).all(), "tokens")
    rest = np.frombuffer(raw["state.bin"], "<f4", -1, 1024 + 8 * B * T)
    logits, loss = rest[: B * T * V].reshape(-1, V).astype(float), rest[B * T * V]
    for data in (np.frombuffer(raw["model.bin"], "<f4", -1, 1024), rest[B * T * V + 1:]):
        check(data.size == (Vp + max_t + L * (12 * C + 13) + 2) * C, "sizes do not fit the headers")
        check(np.isfinite(data).all() and not data[V * C: Vp * C].any(), "not finite, or padding not zero")
    nll = np.log(np.exp(logits).sum(1)) - logits[np.arange(B * T), xy[1].ravel()]
    check(abs(nll.mean() - loss) < 1e-6 * loss, "the loss does not follow from the logits")
    losses = [float(line) for line in raw["losses.txt"].split()]
    check(len(losses) == UPDATES and abs(losses[0] - loss) < 1e-6 * loss, "losses.txt does not fit")
    print(f"{folder}: verified")


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=pathlib.Path, default="dev/test/fixture", help="default dev/test/fixture")
    for name, value in SIZES.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value, help=f"default {value}")
    p.add_argument("--double", action="store_true", help="do the maths in float64, round when writing")
    p.add_argument("--verify", action="store_true", help="write nothing, check the files in --out")
    a = p.parse_args()
    fits = a.channels % a.heads == 0 and a.vocab <= a.padded_vocab and a.seq_len <= a.max_seq_len
    if not fits or min(getattr(a, name) for name in SIZES) < 1:
        p.error("all >= 1, channels a multiple of heads, vocab <= padded-vocab, seq-len <= max-seq-len")
    return a


def main():
    a = parse_options()
    if not a.verify:
        torch.set_num_threads(1)
        params, x, y = random_parameters(a)
        single, losses32, norms = run_torch(params, x, y, a, torch.float32)
        double, losses64, _ = run_torch(params, x, y, a, torch.float64)
        write_files(a, params, x, y, *((double, losses64) if a.double else (single, losses32)))
        print_comparison(single, double, a.channels)
        print(f"ln V = {math.log(a.vocab):.6f}; updates, loss in fp32, in float64, difference, gradient norm")
        for i, (s, d, norm) in enumerate(zip(losses32, losses64, norms)):
            print(f"{i:<8}{s:14.9f}{d:14.9f}{s - d:10.1e}{norm:10.4f}")
    verify(a.out)


if __name__ == "__main__":
    main()
