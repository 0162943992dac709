#!/usr/bin/env python3
"""Models in training with nn's norms and with this package's, in turns in one process: a line for each model and mode.

    dev/bench/bench_models.py [--models gpt2,vit,bert,llama,dit] [--modes eager-bf16,compiled-autocast] [--json FILE]
    dev/bench/bench_models.py --small                      on the CPU, with one narrow layer: tries this program
    dev/bench/tables.py --take FILE pytorch/compiled       what it wrote, as this project's figures

gpt2: GPT-2 124M; vit: ViT-L/16; bert: BERT-L; llama: 160M, with RMSNorm, SwiGLU, rotary positions; dit: DiT-XL/2's 28 blocks,
with modulated LayerNorms. Full depth, random weights, SDPA, no dropout, fused AdamW. bf16: everything is bfloat16; autocast:
over float32 weights; compiled: torch.compile of the model and its loss.

A step, both passes and AdamW, is one CUDA graph. ms: the median step; nn / ours: by medians; rounds: least and greatest;
kernels: of this library in a step of ours. loss: the mean of the last eighth of --steps steps of ours; apart: from nn's, from
the same weights with the same batches; orders: how far nn's are apart for three orders of them. It ends with 1 where ours
is further from nn than those.
"""
import copy
import itertools
import statistics
import time
import types

from lab import add_rows, measured_here, needs, parser

needs(__doc__, "torch", "plumb_layernorm")
import torch
import torch.nn.functional as F
from torch import nn

import plumb_layernorm

MODES = [f"{how}-{kind}" for how in ("eager", "compiled") for kind in ("bf16", "autocast")]
SIZES = {name: dict(zip(("layers", "C", "T", "B", "classes"), sizes)) for name, *sizes in (  # B sequences of T rows
    ("gpt2", 12, 768, 1024, 16, 50257), ("vit", 24, 1024, 197, 64, 1000), ("bert", 24, 1024, 512, 32, 30522),
    ("llama", 12, 768, 1024, 16, 50257), ("dit", 28, 1152, 256, 64, 16))}
SMALL = {"layers": 1, "C": 512, "T": 8, "B": 1}
WARMUP, ROUNDS, REPLAYS, BATCHES = 3, 7, 5, 4


class Attention(nn.Module):
    def __init__(self, C, causal, bias):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(C, 3 * C, bias), nn.Linear(C, C, bias), causal

    def forward(self, x, turn):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, C // 64, 64).permute(2, 0, 3, 1, 4).unbind(0)
        if turn is not None:
            q, k = ((t * turn[0] + torch.cat((-t[..., 32:], t[..., :32]), -1) * turn[1]).to(v.dtype) for t in (q, k))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(B, T, C))


class PreNorm(nn.Module):
    def __init__(self, C, causal, norm):
        super().__init__()
        self.n1, self.n2, self.attention = norm(C), norm(C), Attention(C, causal, norm is not nn.RMSNorm)
        self.gated = norm is nn.RMSNorm
        sizes = (C * 16 // 3, C * 8 // 3) if self.gated else (4 * C, 4 * C)
        self.up, self.down = nn.Linear(C, sizes[0], not self.gated), nn.Linear(sizes[1], C, not self.gated)

    def mlp(self, x):
        x = self.up(x)
        return self.down(F.silu(x[..., ::2]) * x[..., 1::2] if self.gated else F.gelu(x, approximate="tanh"))

    def forward(self, x, turn):
        x = x + self.attention(self.n1(x), turn)
        return x + self.mlp(self.n2(x))


class PostNorm(PreNorm):
    def forward(self, x, turn):
        x = self.n1(x + self.attention(x, turn))
        return self.n2(x + self.mlp(x))


class DiTBlock(PreNorm):
    def __init__(self, C, causal, norm):
        super().__init__(C, causal, lambda C: norm(C, eps=1e-6, elementwise_affine=False))
        self.condition = nn.Linear(C, 6 * C)

    def modulate(self, norm, x, scale, shift):
        return norm(x) * (1 + scale) + shift

    def forward(self, x, c):
        shift, scale, gate, shift2, scale2, gate2 = self.condition(F.silu(c)).unsqueeze(1).chunk(6, -1)
        x = x + gate * self.attention(self.modulate(self.n1, x, scale, shift), None)
        return x + gate2 * self.mlp(self.modulate(self.n2, x, scale2, shift2))


class Model(nn.Module):
    """(inputs, targets) -> loss; targets: classes of the first rows of a sequence, or values; dit: the time is the last row"""

    def __init__(self, name, layers, C, T, classes, **_):
        super().__init__()
        norm = nn.RMSNorm if name == "llama" else nn.LayerNorm
        kind = {"bert": PostNorm, "dit": DiTBlock}.get(name, PreNorm)
        self.blocks = nn.ModuleList(kind(C, name in ("gpt2", "llama"), norm) for _ in range(layers))
        self.embed = nn.Linear({"vit": 768, "dit": 16}[name], C) if name in ("vit", "dit") else nn.Embedding(classes, C)
        self.places = nn.Parameter(torch.randn(T, C) * 0.02) if name != "llama" else 0
        self.first = nn.LayerNorm(C) if name == "bert" else nn.Identity()
        self.last = nn.Sequential(nn.Linear(C, C), nn.GELU(), norm(C)) if name == "bert" else norm(C)
        self.head, self.name = nn.Linear(C, classes, name != "llama"), name
        if name in ("gpt2", "bert"):
            self.embed.weight = self.head.weight  # drawn as small as a head's
        angles = torch.outer(torch.arange(T), 1e4 ** (-torch.arange(32) / 32)).repeat(1, 2)
        self.register_buffer("turn", torch.stack((angles.cos(), angles.sin())) if name == "llama" else None)

    def forward(self, inputs, targets):
        x = self.first(self.embed(inputs) + self.places)
        beside = x[:, -1] if self.name == "dit" else self.turn
        for block in self.blocks:
            x = block(x, beside)
        y = self.head(self.last(x)[:, :targets.shape[1]]).float()
        return F.mse_loss(y, targets.float()) if self.name == "dit" else F.cross_entropy(y.flatten(0, 1), targets.flatten())


def new_batch(name, T, B, classes, **_):
    """tokens: of 509, each follows from the one before but for one in eight"""
    if name == "vit":
        return torch.randn(B, T, 768), torch.randint(0, classes, (B, 1))
    if name == "dit":
        return (torch.randn(B, T, 16),) * 2
    text = [torch.randint(0, 509, (B,))]
    for _ in range(T):
        text.append(torch.where(torch.rand(B) < 0.125, torch.randint(0, 509, (B,)), (text[-1] * 3 + 7) % 509))
    return torch.stack(text[:-1], 1), torch.stack(text[1:], 1)


def with_ours(model):
    plumb_layernorm.replace_norms(model)
    one_pass = getattr(plumb_layernorm, "layer_norm_modulate", None)
    for block in model.modules():
        if one_pass and isinstance(block, DiTBlock):
            block.modulate = lambda norm, x, scale, shift: one_pass(x, scale.squeeze(1), shift.squeeze(1), eps=norm.eps)
    return model


class Run:
    """a model in training: replay() is a step, and leaves self.loss"""

    def __init__(self, model, batch, mode, device):
        self.model, self.batch, self.device = model, [t.clone() for t in batch], device
        self.start = [p.detach().clone() for p in model.parameters()]
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=device == "cuda")
        self.autocast = mode.endswith("autocast")
        # code of its own: Dynamo keeps what it compiles with the code, where it would find the other model's
        code = (lambda model, *batch: model(*batch)).__code__.replace(co_name=f"step_of_{id(model)}")
        self.forward = types.FunctionType(code, globals())
        if mode.startswith("compiled"):
            self.forward = torch.compile(self.forward, dynamic=False, fullgraph=True)
        for _ in range(WARMUP):
            self.step()
        self.replay = self.step

    def capture(self, pool):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
            self.step()
        self.replay = graph.replay

    def step(self):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            loss = self.forward(self.model, *self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.detach()

    def curve(self, batches, seed, steps):
        """the mean loss of the last eighth of the steps, from the first weights on; seed: of the order of the batches"""
        for p, start in zip(self.model.parameters(), self.start):
            p.data.copy_(start)
            for state in self.optimizer.state[p].values():
                state.zero_()
        losses, generator = [], torch.Generator().manual_seed(seed)
        for k in torch.randint(0, len(batches), (steps,), generator=generator, device="cpu").tolist():
            for mine, given in zip(self.batch, batches[k]):
                mine.copy_(given)
            self.replay()
            losses.append(self.loss.clone())
        return torch.stack(losses)[-max(1, steps // 8):].mean().item()


def milliseconds(run):
    run.replay()  # the first after another's turn does not count
    run.loss.item()  # waits for it
    begin = time.perf_counter()
    for _ in range(REPLAYS):
        run.replay()
    run.loss.item()
    return 1e3 * (time.perf_counter() - begin) / REPLAYS


def kernels_of_ours(run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run.replay()
        torch.cuda.synchronize()
    return sum("llmc" in event.name for event in profile.events())


def race(name, mode, o, device):
    torch.manual_seed(1)
    size = SIZES[name] | (SMALL | {"classes": min(512, SIZES[name]["classes"])} if o.small else {})
    with torch.device(device):
        model, batches = Model(name, **size), [new_batch(name, **size) for _ in range(BATCHES)]
    if mode.endswith("bf16"):
        model.bfloat16()
        batches = [[t.bfloat16() if t.is_floating_point() else t for t in batch] for batch in batches]
    other = with_ours(copy.deepcopy(model))
    nn_s, ours = (Run(each, batches[0], mode, device) for each in (model, other))
    if device == "cuda":
        pool = torch.cuda.graph_pool_handle()
        for run in (nn_s, ours):
            run.capture(pool)
    rounds = [[milliseconds(run) for run in (nn_s, ours)] for _ in range(ROUNDS)]
    ms, ratios = [statistics.median(times) for times in zip(*rounds)], [a / b for a, b in rounds]
    row = {"row": f"{name} {mode}", "nn ms": round(ms[0], 3), "ours ms": round(ms[1], 3), "nn / ours": round(ms[0] / ms[1], 4),
           "rounds": f"{min(ratios):.4f} to {max(ratios):.4f}", "kernels": kernels_of_ours(ours) if device == "cuda" else 0}
    if o.steps:
        mine, *theirs = (run.curve(batches, seed, o.steps) for run, seed in ((ours, 1), (nn_s, 1), (nn_s, 2), (nn_s, 3)))
        row |= {"loss": round(mine, 4), "apart": round(abs(mine - theirs[0]), 5), "orders": round(max(theirs) - min(theirs), 5)}
    print(", ".join(f"{key} {value}" for key, value in row.items())[4:], flush=True)
    return row


def main():
    p = parser(__doc__)
    p.add_argument("--models", type=lambda names: names.split(","), default=list(SIZES))
    p.add_argument("--modes", type=lambda names: names.split(","), default=MODES)
    p.add_argument("--small", action="store_true")
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--json", metavar="FILE")
    o = p.parse_args()
    for unknown in set(o.models) - set(SIZES) | set(o.modes) - set(MODES):
        p.error(f"{unknown}; expected models of {', '.join(SIZES)} and modes of {', '.join(MODES)}")
    device = "cpu" if o.small else "cuda"
    if device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # that of the capture
    torch.set_float32_matmul_precision("high")
    wrong = False
    for name, mode in itertools.product(o.models, o.modes):
        row = race(name, mode, o, device)
        wrong |= row.get("apart", 0) > row.get("orders", 0)
        if o.json:
            add_rows(o.json, measured_here("bench_models.py", note=f"ms a step, medians; {SIZES}"), [row], "row")
    raise SystemExit(wrong)


if __name__ == "__main__":
    main()
