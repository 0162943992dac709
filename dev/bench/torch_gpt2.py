"""GPT-2 in PyTorch with the files and the training order of this project: what the other scripts here share.

The model: pre-LN, learned positions, tied head, biases everywhere, tanh GELU, causal attention by
F.scaled_dot_product_attention. Its 16 tensors in file order: file_tensors(). The files: models (20240326 v3),
token shards (20240520), debug states (20240327 v2). The order: llmc/host/tokens/dataloader.cpp, number for number.
"""
import dataclasses
import glob
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HEADER_WORDS = 256
U64 = (1 << 64) - 1


@dataclasses.dataclass
class Config:
    """in the order of a model file's header"""
    max_seq_len: int
    vocab: int
    layers: int
    heads: int
    channels: int
    padded_vocab: int


# ---- the model ---------------------------------------------------------------------------------------
def drop(part, x):
    """by part.dropout, in training; none costs nothing"""
    return F.dropout(x, part.dropout) if part.dropout and part.training else x


class Block(nn.Module):
    dropout = 0.0

    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.ln1 = nn.LayerNorm(c.channels)
        self.qkv = nn.Linear(c.channels, 3 * c.channels)
        self.attproj = nn.Linear(c.channels, c.channels)
        self.ln2 = nn.LayerNorm(c.channels)
        self.fc = nn.Linear(c.channels, 4 * c.channels)
        self.fcproj = nn.Linear(4 * c.channels, c.channels)

    def attention(self, inp):
        B, T, C = inp.shape
        split = self.qkv(inp).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = (part.transpose(1, 2) for part in split.unbind(2))  # each (B, NH, T, HS)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attproj(out.transpose(1, 2).reshape(B, T, C))

    def forward(self, residual):
        residual = residual + drop(self, self.attention(self.ln1(residual)))
        return residual + drop(self, self.fcproj(F.gelu(self.fc(self.ln2(residual)), approximate="tanh")))


class GPT2(nn.Module):
    dropout = 0.0

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.wte = nn.Embedding(c.padded_vocab, c.channels)
        self.wpe = nn.Embedding(c.max_seq_len, c.channels)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.lnf = nn.LayerNorm(c.channels)

    def forward(self, x, y):
        """logits (B,T,Vp), of which the loss sees the first V, and the mean loss in at least fp32"""
        residual = drop(self, self.wte(x) + self.wpe.weight[: x.shape[1]])
        for block in self.blocks:
            residual = block(residual)
        logits = F.linear(self.lnf(residual), self.wte.weight)  # the tied head
        real = logits.flatten(0, 1)[:, : self.config.vocab]
        real = real.to(torch.promote_types(real.dtype, torch.float32))
        return logits, F.cross_entropy(real, y.flatten())


def file_tensors(model):
    """The 16 tensors in file order: name -> parameters, one for each layer where a layer has one."""
    tensors = {"wte": [model.wte.weight], "wpe": [model.wpe.weight]}
    for name in ("ln1", "qkv", "attproj", "ln2", "fc", "fcproj"):
        layers = [getattr(block, name) for block in model.blocks]
        tensors[name + "w"] = [layer.weight for layer in layers]
        tensors[name + "b"] = [layer.bias for layer in layers]
    return {**tensors, "lnfw": [model.lnf.weight], "lnfb": [model.lnf.bias]}


def make_muon(model, lr, weight_decay):
    """PyTorch's Muon for the blocks' matrices, q, k and v each its own as in ours, by the rule of llmc/ops/muon/muon.h; the
    other parameters. q, k and v are views of qkv, whose gradients are views, too: clear them by model.zero_grad()."""
    matrices, wholes = [], []
    for block in model.blocks:
        thirds = [nn.Parameter(third) for third in block.qkv.weight.data.chunk(3)]

        def hand_on(whole, thirds=thirds):
            for third, grad in zip(thirds, whole.grad.chunk(3)):
                third.grad = grad

        block.qkv.weight.register_post_accumulate_grad_hook(hand_on)
        matrices += [*thirds, block.attproj.weight, block.fc.weight, block.fcproj.weight]
        wholes.append(block.qkv.weight)
    taken = {id(p) for p in matrices + wholes}
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return muon, [p for p in model.parameters() if id(p) not in taken]


def make_optimizer(parameters, lr, beta1, beta2, eps, weight_decay):
    """AdamW, decay on matrices only; fused on the GPU, which is the same arithmetic in fewer kernels."""
    parameters = list(parameters)
    groups = [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": weight_decay},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=parameters[0].is_cuda)


def to_float8(model, recipe):
    """The blocks' linear layers by a recipe of torchao, to be compiled. In place; before the optimizer takes the parameters."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    convert_to_float8_training(model.blocks, config=Float8LinearConfig.from_recipe_name(recipe))


# ---- files -------------------------------------------------------------------------------------------
def read_header(path, magic, version):
    header = np.fromfile(path, "<i4", HEADER_WORDS)
    if header.size < HEADER_WORDS or tuple(header[:2]) != (magic, version):
        raise SystemExit(f"{path}: found magic and version {header[:2].tolist()}, "
                         f"expected [{magic}, {version}]")
    return header


def require_size(path, expected):
    found = os.path.getsize(path)
    if found != expected:
        raise SystemExit(f"{path}: found {found} bytes, expected {expected}: the file is damaged")


def read_model(path):
    """a model file -> GPT2 in fp32 on the CPU"""
    model = GPT2(Config(*read_header(path, 20240326, 3)[2:8].tolist()))
    parts = [p for parts in file_tensors(model).values() for p in parts]
    require_size(path, 4 * (HEADER_WORDS + sum(p.numel() for p in parts)))
    values = torch.from_numpy(np.fromfile(path, "<f4", offset=4 * HEADER_WORDS))
    with torch.no_grad():
        for p, part in zip(parts, values.split([p.numel() for p in parts])):
            p.copy_(part.view_as(p))
    return model


def write_model(path, model):
    with open(path, "wb") as out:
        np.array([20240326, 3, *dataclasses.astuple(model.config)] + [0] * 248, "<i4").tofile(out)
        for parts in file_tensors(model).values():
            for p in parts:
                p.detach().cpu().numpy().astype("<f4").tofile(out)


@dataclasses.dataclass
class State:
    """What an implementation made of a batch. x, y (B,T); logits (B*T,V); gradients: name -> all layers."""
    x: torch.Tensor
    y: torch.Tensor
    logits: torch.Tensor
    loss: float
    gradients: dict


def run_batch(model, x, y):
    """The state of a model after forward and backward. Values in the model's own types, on its device."""
    model.zero_grad(set_to_none=True)
    logits, loss = model(x, y)
    loss.backward()
    gradients = {name: torch.cat([p.grad.flatten() for p in parts])
                 for name, parts in file_tensors(model).items()}
    return State(x, y, logits.detach().flatten(0, 1)[:, : model.config.vocab], loss.item(), gradients)


def write_state(path, state):
    B, T = state.x.shape
    with open(path, "wb") as out:
        np.array([20240327, 2, B, T] + [0] * 252, "<i4").tofile(out)
        for tokens in (state.x, state.y):
            tokens.cpu().numpy().astype("<i4").tofile(out)
        for values in (state.logits, torch.tensor([state.loss]), *state.gradients.values()):
            values.float().cpu().numpy().astype("<f4").tofile(out)


def read_state(path, model):
    """a debug state made with this model, on the CPU"""
    B, T = read_header(path, 20240327, 2)[2:4].tolist()
    sizes = {name: sum(p.numel() for p in parts) for name, parts in file_tensors(model).items()}
    n, V = B * T, model.config.vocab
    require_size(path, 4 * (HEADER_WORDS + 2 * n + n * V + 1 + sum(sizes.values())))
    x, y = np.fromfile(path, "<i4", 2 * n, offset=4 * HEADER_WORDS).reshape(2, B, T).astype(np.int64)
    values = torch.from_numpy(np.fromfile(path, "<f4", offset=4 * (HEADER_WORDS + 2 * n)))
    parts = values.split([n * V, 1, *sizes.values()])
    return State(torch.from_numpy(x), torch.from_numpy(y), parts[0].view(n, V), parts[1].item(),
                 dict(zip(sizes, parts[2:])))


# ---- the training order ------------------------------------------------------------------------------
def mix(x):
    """the finalizer of splitmix64, which spreads every bit over the result"""
    x = (x + 0x9E3779B97F4A7C15) & U64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & U64
    return x ^ (x >> 31)


def permutation(n, seed, epoch):
    """A permutation of [0, n), as a function: 8 Feistel rounds, repeated while the result is >= n."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask, keys, key = (1 << half) - 1, [], mix(mix(seed) ^ epoch)
    for _ in range(8):
        key = mix(key)
        keys.append(key)

    def permuted(i):
        while True:
            left, right = i >> half, i & mask
            for k in keys:
                left, right = right, left ^ (mix(right ^ k) & mask)
            i = left << half | right
            if i < n:
                return i
    return permuted


class TrainingData:
    """Rows of T tokens and their targets in the order in which our program trains; see llmc/host/tokens/dataloader.h."""

    def __init__(self, pattern, T, seed):
        names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern), key=os.fsencode)
        if not names:
            raise SystemExit(f"{pattern}: no file matches")
        self.T, self.seed, self.windows = T, seed, []  # (shard, first token) of each window in file order
        for name in names:
            count = int(read_header(name, 20240520, 1)[2])
            require_size(name, 4 * HEADER_WORDS + 2 * count)
            shard = np.memmap(name, "<u2", "r", 4 * HEADER_WORDS, (count,))
            self.windows += [(shard, k * T) for k in range((count - 1) // T)]
        if not self.windows:
            raise SystemExit(f"{pattern}: no shard holds a window of {T + 1} tokens")

    def read(self, first_row, B):
        """rows [first_row, first_row + B) as x and y, (B,T) int64"""
        rows, n = [], len(self.windows)
        for row in range(first_row, first_row + B):
            shard, at = self.windows[permutation(n, self.seed, row // n)(row % n)]
            rows.append(shard[at: at + self.T + 1].astype(np.int64))
        tokens = torch.from_numpy(np.stack(rows))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
