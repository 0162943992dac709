#!/usr/bin/env python3
"""What a training step gains: Hugging Face's GPT-2 (124M), BERT-L and ViT-L with random weights, SDPA, no
dropout, fused AdamW, once with nn.LayerNorm and once with ours, in one process; the two take turns.

    dev/bench/pytorch_models.py [--models gpt2,vit-l,bert-l] [--types autocast,bf16]
                                 [--how eager,compiled] [--layers N] [--json FILE]
    dev/bench/tables.py --take FILE pytorch/models         into this project's figures

autocast: bfloat16 autocast over float32 weights; bf16: everything is bfloat16. Prints the median step of
each, the gain, and the two loss curves. The data are sequences that a small rule makes, and images of noise,
so that the loss falls.
"""
import argparse
import contextlib
import copy
import json
import statistics
import time

from needs import needs

needs(__doc__, "torch", "transformers", "plumb_layernorm")
import torch

import plumb_layernorm
import transformers

NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa")
LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
SMALL = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)


def sequences(batch, length, vocabulary, device):
    """tokens of which each follows from the two before, but for one in eight"""
    tokens = torch.randint(0, 509, (batch, length), device=device)
    noise = torch.rand(batch, length, device=device) < 0.125
    for k in range(2, length):
        follows = (tokens[:, k - 1] * 3 + tokens[:, k - 2] * 5 + 7) % 509
        tokens[:, k] = torch.where(noise[:, k], tokens[:, k], follows)
    return {"input_ids": tokens % vocabulary, "labels": tokens % vocabulary}


def gpt2(options):
    size = dict(n_layer=2, n_head=2, n_embd=64) if options.small else {}
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                     attn_implementation="sdpa", use_cache=False, **size)
    batch, length = (2, 32) if options.small else (options.batch or 16, 1024)
    return transformers.GPT2LMHeadModel(config), lambda device: sequences(batch, length, 50257, device)


def encoder_size(options):
    return SMALL if options.small else LARGE | {"num_hidden_layers": options.layers}


def bert(options):
    config = transformers.BertConfig(**NO_DROPOUT, **encoder_size(options))
    batch, length = (2, 32) if options.small else (options.batch or 32, 512)
    return transformers.BertForMaskedLM(config), lambda device: sequences(batch, length, 30522, device)


def vit(options):
    config = transformers.ViTConfig(**NO_DROPOUT, **encoder_size(options), num_labels=1000)
    batch = 2 if options.small else options.batch or 64
    return transformers.ViTForImageClassification(config), lambda device: {
        "pixel_values": torch.randn(batch, 3, 224, 224, device=device),
        "labels": torch.randint(0, 1000, (batch,), device=device)}


MODELS = {"gpt2": gpt2, "vit-l": vit, "bert-l": bert}
# without a warmup of the rate, 24 layers diverge at GPT-2's
RATES = {"gpt2": 3e-4, "vit-l": 1e-4, "bert-l": 3e-5}


class Run:
    """a model in training; data: batches that come again and again"""

    def __init__(self, model, data, rate, kind, how, device):
        self.model, self.data, self.device = model, data, device
        self.losses, self.events = [], []
        self.autocast = kind == "autocast"
        if kind == "bf16":
            model.bfloat16()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
        self.loss = lambda batch: model(**batch).loss
        if how == "compiled":
            self.loss = torch.compile(self.loss)

    def step(self):
        batch = self.data[len(self.losses) % len(self.data)]
        with torch.autocast(self.device, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def timed(self, steps):
        for _ in range(steps):
            if self.device == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self.step()
                end.record()
                self.events.append(lambda b=begin, e=end: b.elapsed_time(e))
            else:
                begin = time.perf_counter()
                self.step()
                self.events.append(lambda ms=(time.perf_counter() - begin) * 1e3: ms)
        if self.device == "cuda":
            torch.cuda.synchronize()

    def median_ms(self):
        return statistics.median(event() for event in self.events)


def race(name, kind, how, options):
    torch.manual_seed(1)
    torch.compiler.reset()
    with torch.device(options.device):
        model, new_batch = MODELS[name](options)
    model.train()
    data = [new_batch(options.device) for _ in range(4)]
    for batch in data:
        for key, value in batch.items():
            if kind == "bf16" and value.is_floating_point():
                batch[key] = value.bfloat16()
    other = copy.deepcopy(model)
    count = plumb_layernorm.replace_layernorms(other)
    runs = [Run(each, data, RATES[name], kind, how, options.device) for each in (model, other)]
    for run in runs:
        for _ in range(options.warmup):
            run.step()
    for _ in range(options.rounds):
        for run in runs:
            run.timed(options.steps)
    ms = [run.median_ms() for run in runs]
    curves = [[round(loss.item(), 4) for loss in run.losses] for run in runs]
    apart = max(abs(a - b) for a, b in zip(*curves))
    whole = LARGE["num_hidden_layers"]
    changed = name != "gpt2" and not options.small and options.layers != whole
    fewer = f", {options.layers} of {whole} layers" if changed else ""
    row = {"row": f"{name} {kind} {how}{fewer}", "LayerNorms": count, "nn.LayerNorm ms": round(ms[0], 2),
           "ours ms": round(ms[1], 2), "nn / ours": round(ms[0] / ms[1], 4)}
    row |= {f"loss, {who}": f"{curve[0]} to {curve[-1]}" for who, curve in zip(("nn", "ours"), curves)}
    row |= {"apart at most": round(apart, 4)}
    print(f"{row['row']}: {count} LayerNorms; nn {ms[0]:.2f} ms, ours {ms[1]:.2f} ms a step, "
          f"nn / ours {ms[0] / ms[1]:.4f}; loss {curves[0][0]} .. {curves[0][-1]}, "
          f"ours {curves[1][0]} .. {curves[1][-1]}, at most {apart:.4f} apart", flush=True)
    return row, {"row": row["row"], "nn": curves[0], "ours": curves[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2,vit-l,bert-l")
    parser.add_argument("--types", default="autocast,bf16")
    parser.add_argument("--how", default="eager",
                        help="eager, compiled: a compiled model has PyTorch's operator either way")
    parser.add_argument("--batch", type=int, help="rows (default: 16 of GPT-2, 64 images, 32 of BERT-L)")
    parser.add_argument("--layers", type=int, default=24, help="of BERT-L and ViT-L: fewer compile sooner (default 24)")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="steps of each in a round")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", metavar="FILE", help="replaced after each race")
    options = parser.parse_args()
    for given, known in ((options.models, MODELS), (options.types, ("autocast", "bf16")),
                         (options.how, ("eager", "compiled"))):
        if unknown := set(given.split(",")) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: expected of {', '.join(known)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device; --small --device cpu tries the script")
    torch.set_float32_matmul_precision("high")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, PyTorch {torch.__version__}, transformers {transformers.__version__}, "
          f"plumb_layernorm's {plumb_layernorm.backend}", flush=True)
    about = {"gpu": name, "date": time.strftime("%Y-%m-%d"), "pytorch": torch.__version__,
             "others": f"transformers {transformers.__version__}", "command": "dev/bench/pytorch_models.py"}
    rows, curves = [], []
    for how in options.how.split(","):
        for name in options.models.split(","):
            for kind in options.types.split(","):
                row, curve = race(name, kind, how, options)
                rows.append(row)
                curves.append(curve)
                if options.json:
                    with open(options.json, "w") as out:
                        json.dump({**about, "rows": rows, "curves": curves}, out, indent=1)


if __name__ == "__main__":
    main()
