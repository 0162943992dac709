#!/usr/bin/env python3
"""What the package of python/ gains, and what a call of it costs the processor: ours beside PyTorch's, in turns in one process.

    dev/bench/bench_package.py models [--models gpt2 vit-l bert-l] [--types autocast bf16] [--how eager compiled] [--json FILE]
    dev/bench/bench_package.py host [--rounds N] [--json FILE]
    dev/bench/tables.py --take FILE pytorch/models         what models wrote, as this project's figures

models: a training step of Hugging Face's GPT-2 (124M), BERT-L and ViT-L with random weights, SDPA, no dropout, fused AdamW, once
with nn.LayerNorm and once with ours. autocast: bfloat16 autocast over float32 weights; bf16: everything is bfloat16; a compiled
model has PyTorch's operator either way. Prints the median step of each, the gain, and how far the losses are apart. The data are
sequences that a small rule makes, and images of noise, so that the loss falls. FILE keeps its other rows of this GPU and day.

host: where the time of a call goes. The rows are few (64 x 256, float16), so that the GPU waits for the processor. us a call: the
least and the median of the rounds.
"""
import contextlib
import copy
import statistics
import time

from lab import add_rows, measured_here, needs, parser

needs(__doc__, "torch", "plumb_layernorm")
import torch
import torch.nn.functional as F

import plumb_layernorm

# without a warmup of the rate, 24 layers diverge at GPT-2's
RATES = {"gpt2": 3e-4, "vit-l": 1e-4, "bert-l": 3e-5}
LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa")
WARMUP, ROUNDS, STEPS = 5, 4, 5  # steps, rounds, steps of each in a round
N, C, EPS, CALLS = 64, 256, 1e-5, 1000


# ---- models ------------------------------------------------------------------------------------------
def sequences(batch, length, vocabulary):
    """tokens of which each follows from the two before, but for one in eight"""
    tokens = torch.randint(0, 509, (batch, length))
    noise = torch.rand(batch, length) < 0.125
    for k in range(2, length):
        follows = (tokens[:, k - 1] * 3 + tokens[:, k - 2] * 5 + 7) % 509
        tokens[:, k] = torch.where(noise[:, k], tokens[:, k], follows)
    return {"input_ids": tokens % vocabulary, "labels": tokens % vocabulary}


def new_model(name):
    """a model, and what makes a batch for it"""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification
    if name == "gpt2":
        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa", use_cache=False)
        return GPT2LMHeadModel(config), lambda: sequences(16, 1024, 50257)
    if name == "bert-l":
        return BertForMaskedLM(BertConfig(**LARGE)), lambda: sequences(32, 512, 30522)
    return ViTForImageClassification(ViTConfig(**LARGE, num_labels=1000)), lambda: {
        "pixel_values": torch.randn(64, 3, 224, 224), "labels": torch.randint(0, 1000, (64,))}


class Run:
    """a model in training; data: batches that come again and again"""

    def __init__(self, model, data, rate, kind, how):
        self.data, self.losses, self.events = data, [], []
        self.autocast = kind == "autocast"
        if kind == "bf16":
            model.bfloat16()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
        self.loss = lambda batch: model(**batch).loss
        if how == "compiled":
            self.loss = torch.compile(self.loss)

    def step(self):
        batch = self.data[len(self.losses) % len(self.data)]
        with torch.autocast("cuda", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def timed(self):
        for _ in range(STEPS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.step()
            end.record()
            self.events.append((begin, end))
        torch.cuda.synchronize()


def race(name, kind, how):
    torch.manual_seed(1)
    torch.compiler.reset()
    with torch.device("cuda"):
        model, new_batch = new_model(name)
        model.train()
        data = [new_batch() for _ in range(4)]
    if kind == "bf16":
        data = [{key: x.bfloat16() if x.is_floating_point() else x for key, x in batch.items()} for batch in data]
    other = copy.deepcopy(model)
    example = (lambda: other(**data[0])) if kind == "autocast" else None
    with torch.autocast("cuda", torch.bfloat16):
        count = len(plumb_layernorm.replace_norms(other, example).replaced)
    runs = [Run(each, data, RATES[name], kind, how) for each in (model, other)]
    for run in runs:
        for _ in range(WARMUP):
            run.step()
    for _ in range(ROUNDS):
        for run in runs:
            run.timed()
    ms = [statistics.median(begin.elapsed_time(end) for begin, end in run.events) for run in runs]
    curves = [[round(loss.item(), 4) for loss in run.losses] for run in runs]
    row = {"row": f"{name} {kind} {how}", "LayerNorms": count, "nn.LayerNorm ms": round(ms[0], 2),
           "ours ms": round(ms[1], 2), "nn / ours": round(ms[0] / ms[1], 4)}
    row |= {f"loss, {who}": f"{curve[0]} to {curve[-1]}" for who, curve in zip(("nn", "ours"), curves)}
    row |= {"apart at most": round(max(abs(a - b) for a, b in zip(*curves)), 4)}
    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def models(o):
    needs(__doc__, "transformers")
    import transformers
    torch.set_float32_matmul_precision("high")
    note = ("ms a step, the median; 16x1024 tokens of gpt2, 64 images of vit-l, 32x512 tokens of bert-l; the data come again "
            "and again")
    head = measured_here("bench_package.py models", others=f"transformers {transformers.__version__}", note=note)
    for how in o.how:
        for name in o.models:
            for kind in o.types:
                row = race(name, kind, how)
                if o.json:
                    add_rows(o.json, head, [row], "row")


# ---- host --------------------------------------------------------------------------------------------
def tensors(N):
    torch.manual_seed(1)
    x = torch.randn(N, C, dtype=torch.float16, device="cuda", requires_grad=True)
    weight, bias = (torch.rand(C, dtype=x.dtype, device="cuda", requires_grad=True) for _ in range(2))
    return x, weight, bias, torch.randn_like(x)


def theirs(x, weight, bias):
    return F.layer_norm(x, (C,), weight, bias, EPS)


def ours(x, weight, bias):
    return plumb_layernorm.layer_norm(x, (C,), weight, bias, EPS)


def forward_lines():
    """name -> what is called of ours and, where there is one, of PyTorch's"""
    x, weight, bias, _ = tensors(N)
    fixed, empty = [t.detach() for t in (x, weight, bias)], tensors(0)[:3]
    modules = [kind(C, dtype=x.dtype, device="cuda") for kind in (torch.nn.LayerNorm, plumb_layernorm.LayerNorm)]

    def under_autocast(function):
        def call():
            with torch.autocast("cuda", torch.float16):
                function(x, weight, bias)
        return call

    lines = {
        "forward": (lambda: ours(x, weight, bias), lambda: theirs(x, weight, bias)),
        "forward of the module": (lambda: modules[1](x), lambda: modules[0](x)),
        "forward under autocast": (under_autocast(ours), under_autocast(theirs)),
        "forward, nothing learns": (lambda: ours(*fixed), lambda: theirs(*fixed)),
        "forward of no rows: nothing is launched": (lambda: ours(*empty), lambda: theirs(*empty)),
        "one allocation (torch.empty_like)": (lambda: torch.empty_like(fixed[0]),),
    }
    if plumb_layernorm.backend == "extension":
        raw, native = torch.ops.plumb_layernorm.forward.default, torch.ops.aten.native_layer_norm.default
        lines["forward below autograd: out, mean, rstd"] = (lambda: raw(fixed[0], 1, *fixed[1:], EPS),
                                                            lambda: native(fixed[0], [C], *fixed[1:], EPS))
    return lines


def backwards_of(function):
    """y.backward(dy), and torch.autograd.grad, of a y that is there"""
    x, weight, bias, dy = tensors(N)
    y = function(x, weight, bias)

    def backward():
        x.grad = None
        y.backward(dy, retain_graph=True)

    return backward, lambda: torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)


def backward_lines():
    whole, grad = zip(backwards_of(ours), backwards_of(theirs))
    lines = {
        "backward: y.backward(dy)": whole,
        "backward: torch.autograd.grad": grad,
        "y.backward of a view: the engine and its thread": backwards_of(lambda x, w, b: x.view_as(x))[:1],
        "y.backward of x + weight + bias": backwards_of(lambda x, w, b: x + w + b)[:1],
    }
    if plumb_layernorm.backend == "extension":
        x, weight, bias, dy = (t.detach() for t in tensors(N))
        operators, aten = torch.ops.plumb_layernorm, torch.ops.aten
        statistics_, wanted = operators.forward(x, 1, weight, bias, EPS)[1], [True] * 3
        _, mean, rstd = aten.native_layer_norm(x, [C], weight, bias, EPS)
        raw, native = operators.backward.default, aten.native_layer_norm_backward.default
        lines["backward below autograd"] = (
            lambda: raw(dy, x, statistics_, 1, weight, None, torch.float16, wanted),
            lambda: native(dy, x, [C], mean, rstd, weight, bias, wanted))
    return lines


def us_a_call(function, calls):
    torch.cuda.synchronize()  # what is queued is not part of the time
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls * 1e6


def host(o):
    calls = forward_lines() | backward_lines()
    times = {name: [[] for _ in pair] for name, pair in calls.items()}
    for call in (call for pair in calls.values() for call in pair):
        us_a_call(call, CALLS // 5)
    for _ in range(o.rounds):
        for name, pair in calls.items():
            for found, call in zip(times[name], pair):
                found.append(us_a_call(call, CALLS))
    print(f"{N} x {C} float16, us a call: least (median) of {o.rounds} rounds of {CALLS}")
    rows = []
    for name, both in times.items():
        row = {"row": name} | {who: round(min(us), 2) for who, us in zip(("ours", "torch"), both)}
        row |= {"torch / ours": round(row["torch"] / row["ours"], 2)} if "torch" in row else {}
        cells = [f"{who} {min(us):7.2f} ({statistics.median(us):7.2f})" for who, us in zip(("ours", "torch"), both)]
        print(f"{name:50} {'   '.join(cells)}" + (f"  torch / ours {row['torch / ours']:.2f}" if "torch" in row else ""))
        rows.append(row)
    if o.json:
        head = measured_here("bench_package.py host", others=f"plumb_layernorm's {plumb_layernorm.backend}")
        add_rows(o.json, head, rows, "row")


def main():
    p = parser(__doc__)
    ways = p.add_subparsers(dest="what", required=True)
    m = ways.add_parser("models")
    m.add_argument("--models", nargs="+", choices=list(RATES), default=list(RATES))
    m.add_argument("--types", nargs="+", choices=["autocast", "bf16"], default=["autocast", "bf16"])
    m.add_argument("--how", nargs="+", choices=["eager", "compiled"], default=["eager"])
    h = ways.add_parser("host")
    h.add_argument("--rounds", type=int, default=7)
    for way in m, h:
        way.add_argument("--json", metavar="FILE")
    o = p.parse_args()
    if not torch.cuda.is_available():
        p.error("no CUDA device")
    print(torch.cuda.get_device_name(), f"PyTorch {torch.__version__}", f"plumb_layernorm's {plumb_layernorm.backend}", sep=", ")
    {"models": models, "host": host}[o.what](o)


if __name__ == "__main__":
    main()
