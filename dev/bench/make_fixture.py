#!/usr/bin/env python3
"""Makes the small GPT-2 that the CPU reference is checked against: weights, PyTorch's numbers, a training.

A random GPT-2, run by PyTorch on the CPU on one batch of random tokens. Nothing is trivial: LayerNorm weights are not 1,
biases not 0, the vocabulary is padded, T < max_seq_len, the gradient norm is above the clip. Writes the files that readme()
describes and prints, tensor by tensor, how far fp32 is from float64: what a test may ask for.

Command: python3 dev/bench/make_fixture.py      (and at any time: python3 dev/bench/make_fixture.py --verify)
Result:  loss 5.414209 falls to 4.452517 (ln V is 4.574711); fp32 is within 1.3e-6 of each gradient's largest
         value from float64, the 10 losses within 1.0e-6; 904 kB. (2026-11-20, PyTorch 2.11.0)
"""
import copy
import datetime
import hashlib
import math
import pathlib
import platform

from lab import needs, parser

needs(__doc__, "numpy", "torch")
import numpy as np
import torch
import torch.nn.functional as F

from torch_gpt2 import GPT2, Config, file_tensors, read_model, read_state, run_batch, write_model, write_state

CONFIG = Config(max_seq_len=32, vocab=97, layers=2, heads=2, channels=64, padded_vocab=128)
BATCH, LENGTH, SEED, UPDATES = 2, 24, 1, 10


@torch.no_grad()
def random_model():
    """a model, inputs and targets; with these spreads the loss is far from ln V"""
    rng, model = np.random.default_rng(SEED), GPT2(CONFIG)
    for name, parts in file_tensors(model).items():
        for p in parts:
            centre, spread = 0.0, 0.1  # biases and wpe
            if name in ("ln1w", "ln2w", "lnfw"):
                centre, spread = 1.0, 0.2
            elif name == "wte":
                spread = 1.6 / math.sqrt(CONFIG.channels)
            elif name.endswith("w"):
                spread = 1.2 / math.sqrt(p.shape[-1])
            p.copy_(torch.from_numpy(centre + spread * rng.standard_normal(tuple(p.shape))))
    model.wte.weight[CONFIG.vocab:] = 0
    tokens = torch.from_numpy(rng.integers(0, CONFIG.vocab, (BATCH, LENGTH + 1)))
    return model, tokens[:, :-1], tokens[:, 1:]


def train(model, x, y):
    """what the first step makes of the batch; all losses and gradient norms"""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    states, norms = [], []
    for _ in range(UPDATES):
        states.append(run_batch(model, x, y))
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    return states[0], [state.loss for state in states], norms


def table_rows(folder):
    for name in ("model.bin", "state.bin", "losses.txt"):
        data = (folder / name).read_bytes()
        yield f"| {name} | {len(data)} | {hashlib.sha256(data).hexdigest()} |\n"


def readme(folder):
    return f"""# Fixture: a small GPT-2 and PyTorch's numbers for it

Made on {datetime.date.today()} in fp32 on the CPU with Python {platform.python_version()}, PyTorch {torch.__version__}, \
NumPy {np.__version__} by
`python3 dev/bench/make_fixture.py`

`model.bin` holds the weights (format 20240326 v3), `state.bin` one batch, its logits, loss and gradients
(20240327 v2), `losses.txt` the loss before each of {UPDATES} AdamW updates on that batch (lr 1e-4, betas 0.9
and 0.999, eps 1e-8, no decay, norm clipped at 1). Zero by nature: the gradients of the key third of `qkvb`
(rounding noise here), of `wpe` from row {LENGTH} on and of `wte` from row {CONFIG.vocab} on (exactly 0).

| file | bytes | sha256 |
|---|---|---|
{"".join(table_rows(folder))}"""


def verify(folder):
    """sha256, tokens, padding, loss out of logits; reading checks headers and sizes"""
    def check(condition, message):
        if not condition:
            raise SystemExit(f"make_fixture: {folder}: {message}")
    rows = (folder / "README.md").read_text()
    check(all(row in rows for row in table_rows(folder)), "README.md has other sizes or sha256")
    model = read_model(folder / "model.bin")
    state, c = read_state(folder / "state.bin", model), model.config
    for name, used in (("model.bin", 8), ("state.bin", 4)):
        check(not np.fromfile(folder / name, "<i4", 256)[used:].any(), "headers")
    check(c == CONFIG and state.x.shape == (BATCH, LENGTH), "header values")
    check(min(state.x.min(), state.y.min()) >= 0 and max(state.x.max(), state.y.max()) < c.vocab, "tokens")
    check(torch.equal(state.x[:, 1:], state.y[:, :-1]), "targets that are not the next tokens")
    for values in (torch.cat([p.detach().flatten() for parts in file_tensors(model).values() for p in parts]),
                   torch.cat(list(state.gradients.values()))):
        check(values.isfinite().all(), "not finite")
        check(not values[c.vocab * c.channels: c.padded_vocab * c.channels].any(), "padding not zero")
    loss = F.cross_entropy(state.logits.double(), state.y.flatten()).item()
    check(abs(loss - state.loss) < 1e-6 * loss, "the loss does not follow from the logits")
    losses = [float(line) for line in (folder / "losses.txt").read_text().split()]
    check(len(losses) == UPDATES and abs(losses[0] - state.loss) < 1e-6 * loss, "losses.txt does not fit")
    print(f"{folder}: verified")


def make(folder):
    torch.set_num_threads(1)
    model, x, y = random_model()
    single, losses32, norms = train(copy.deepcopy(model), x, y)
    double, losses64, _ = train(copy.deepcopy(model).double(), x, y)
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model.bin", model)
    write_state(folder / "state.bin", single)
    (folder / "losses.txt").write_text("".join(f"{loss:#.9g}\n" for loss in losses32))
    (folder / "README.md").write_text(readme(folder))
    print("fp32 from float64, over each gradient's largest value:")
    for name, of in double.gradients.items():
        print(f"{name:<10}{((single.gradients[name] - of).abs().max() / of.abs().max()).item():.1e}")
    print(f"ln V = {math.log(CONFIG.vocab):.6f}; losses", *(f"{s:.6f} ({s - d:.1e})" for s, d in zip(losses32, losses64)),
          "\ngradient norms", *(f"{norm:.4f}" for norm in norms))


def main():
    p = parser(__doc__)
    p.add_argument("--out", type=pathlib.Path, default="dev/test/fixture", help="default dev/test/fixture")
    p.add_argument("--verify", action="store_true", help="write nothing, check the files in --out")
    o = p.parse_args()
    if not o.verify:
        make(o.out)
    verify(o.out)


if __name__ == "__main__":
    main()
