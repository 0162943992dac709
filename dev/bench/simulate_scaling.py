#!/usr/bin/env python3
"""Predicts the step of many GPUs from that of one: an alpha-beta model of train_gpt2cu's data parallelism. Standard
library only.

    dev/bench/simulate_scaling.py            prints the predictions as JSON
    dev/bench/simulate_scaling.py --write    writes them to doc/measured/many_gpus.json
    dev/bench/simulate_scaling.py --check    the model's own checks, and whether that file is what the model gives
The times of one GPU are those of doc/measured/step.json; each GPU keeps its batch. As the program does it
(llmc/model/gpu/optimizer.cuh, state_shares.h), each rank has a part of every layer in its share; a layer's gradients
go while the layers below it are computed, and those of the embeddings behind the backward pass, while a rank adds the
other parts of its share; it takes norm and update of it; the embeddings come together while the layers are updated, and
the layers during the next forward pass. No parameter is fitted to a run of several GPUs.
"""
import argparse
import json
import math
import re
import statistics
import sys

from measured import load, spelled, store

HOST = 8                # GPUs of a host, all joined by NVLink
NVLINK = 450e9          # bytes/s of a GPU in one direction: H100's data sheet says 900 GB/s for both
NETWORK = 50e9          # bytes/s of a GPU in one direction: 400 Gb/s
ALPHA, FAR_ALPHA = 3.4e-6, 14e-6  # s, NVLink and network: a ring's step in the tuning tables of NCCL's source (Simple)
MESSAGE = 1e-6          # s, assumed: of an exchange with many ranks, each further message
BESIDE_NCCL = 2.0       # a product that fills all multiprocessors once needs a second wave when NCCL holds some
GRADIENT, PARAMETER = 4, 2  # bytes of an element: fp32 and bf16
CHUNK = 1 << 16         # elements: the least that belongs to one rank (kNormChunk)
# one GPU's steps by the build whose runs on several GPUs were measured: a prediction is of that build
MODELS = {"124M, B=64 a GPU": ("d12_b64_scaling", 12, 768), "1558M, B=8 a GPU": ("d48_b8_scaling", 48, 1600)}


def plain(name):
    """a table with its numbers as numbers"""
    return json.loads(spelled(load(name)))


class Model:
    """of one GPU, in seconds: the forward and backward pass of a layer, AdamW, the norm, and the rest of the step"""
    def __init__(self, file, layers, channels):
        step = plain("step/" + file)
        ms = {part["part"]: part["ms"] for part in step["parts"]}
        head = {p["part"]: p["first_us"] / 1e3 for p in step["products"] if p["name"] == "head"}
        block = lambda names: sum(ms[name] - head.get(name, 0) for name in names) / 1e3 / layers
        self.forward = block(["products, forward", "attention forward", "layernorm forward"])
        self.backward = block(["products, input's gradient", "products, weight's gradient", "attention backward",
                               "bias gradient", "layernorm backward"])
        self.step, self.adamw, self.norm = step["step_ms"] / 1e3, ms["adamw"] / 1e3, ms["norm"] / 1e3
        self.rest = self.step - layers * (self.forward + self.backward) - self.adamw - self.norm
        self.memory = 1e9 * next(int(re.search(r"(\d+) GB/s", p["roof"])[1]) for p in step["parts"] if p["part"] == "adamw")
        normal = statistics.NormalDist()
        self.sigma = (step["p80_ms"] - step["p20_ms"]) / 1e3 / (normal.inv_cdf(0.8) - normal.inv_cdf(0.2))
        # elements in the order in which they lie in memory: embeddings, layers, the last layernorm
        self.ranges = [(50304 + 1024) * channels] + [12 * channels**2 + 13 * channels] * layers + [2 * channels]


class Job:
    """n GPUs; way: "program" (a rank's share has a part of each range) or "ring"; NCCL where copy engines do not reach"""
    def __init__(self, model, n, way, network=NETWORK, nvlink=NVLINK):
        self.m, self.n, self.way, self.network, self.nvlink = model, n, way, network, nvlink
        self.here, self.total = min(n, HOST), sum(model.ranges)
        self.nccl = way == "ring" or n > HOST

    def largest_part(self, k):
        """of range k: the most that belongs to one rank"""
        return min(self.m.ranges[k], math.ceil(self.m.ranges[k] / CHUNK / self.n) * CHUNK)

    def exchange(self, k, size):
        """seconds until the parts of range k are at the ranks that they belong to, or have come from there to all"""
        away, near, hosts = self.n - self.here, self.here - 1, self.n // self.here
        if self.n == 1:
            return 0.0
        if self.way == "ring":  # a host's GPUs send by as many rails; a part passes through all ranks
            rate = min(self.nvlink, HOST * self.network) if away else self.nvlink
            return (hosts - 1) * FAR_ALPHA + (self.n - hosts) * ALPHA + self.m.ranges[k] * size * (self.n - 1) / self.n / rate
        part = self.largest_part(k) * size  # the busiest rank receives that from each of the others
        return max(ALPHA + near * (MESSAGE + part / self.nvlink), away and FAR_ALPHA + away * (MESSAGE + part / self.network))

    def beside(self):
        """how much longer computation takes beside an exchange; copies take memory's time alone"""
        return BESIDE_NCCL if self.nccl else self.m.memory / (self.m.memory - 2 * self.nvlink)

    def compute(self, now, work, busy_until):
        """when work that begins now ends, if exchanges go on beside it until busy_until"""
        slow = max(0.0, min(work * self.beside(), busy_until - now))
        return now + slow + work - slow / self.beside()

    def step(self):
        m, n, layers = self.m, self.n, len(self.m.ranges) - 2
        order = range(len(m.ranges))
        early = self.way == "program"  # the embeddings travel while the rest is updated, and while the rest is added
        layers_share = 1 - m.ranges[0] / self.total
        first = max(0.0, self.exchange(0, PARAMETER) - early * layers_share * m.adamw / n)
        arrives = [first + sum(self.exchange(k, PARAMETER) for k in order[1:i + 1]) for i in order]
        now = 0.0
        for k in order[1:-1]:  # layer 0 waits for the embeddings, too
            now = self.compute(max(now, arrives[k]), m.forward, arrives[-1])
        now, busy = max(now, arrives[-1]) + m.rest, 0.0
        for k in reversed(order[1:-1]):
            now = self.compute(now, m.backward, busy)
            busy = max(now, busy) + self.exchange(k, GRADIENT)
        now = max(now, busy) + self.exchange(layers + 1, GRADIENT)
        adding = 0.0 if self.way == "ring" or n == 1 else (n + 1) / n * self.total * GRADIENT / m.memory  # NCCL adds as it sends
        beside = early * layers_share * adding
        now += max(self.exchange(0, GRADIENT), beside) + adding - beside
        now += (m.norm + m.adamw) / n
        now += 2 * min(n - 1, 1) * (FAR_ALPHA + (n - 1) * MESSAGE)  # norm and losses
        # all wait for the last: the largest of n independent times, as far apart as one GPU's steps are
        return now + m.sigma * statistics.NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def predictions():
    rows, real = [], {row["row"]: row for row in plain("many_gpus/h100")["rows"]}
    for name, arguments in MODELS.items():
        m = Model(*arguments)
        for n in (2, 4):
            step, ms = Job(m, n, "program").step() * 1e3, float(real[name][f"{n} GPUs"])
            rows.append({"row": name, "GPUs": n, "predicted, ms": round(step, 2), "measured, ms": ms,
                         "error, %": round((step / ms - 1) * 100, 1)})
        for n in (8, 64, 512):
            rows.append({"row": name, "GPUs": n, **{way: round(m.step / Job(m, n, way).step(), 3) for way in ("program", "ring")}})
    note = (f"predicted from one GPU's times in doc/measured/step.json, but for what is called measured; NVLink {NVLINK / 1e9:.0f} GB/s "
            f"a direction (data sheet), hosts of {HOST}, a network of {NETWORK * 8 / 1e9:.0f} Gb/s a GPU")
    return {"gpu": "NVIDIA H100 80GB HBM3", "command": "dev/bench/simulate_scaling.py --write", "note": note, "rows": rows}


def check():
    data, results = predictions(), []
    for arguments in MODELS.values():
        m = Model(*arguments)
        results.append(("one GPU takes the measured step", abs(Job(m, 1, "program").step() - m.step) < 1e-9 and m.rest > 0))
        for way in ("program", "ring"):
            for n in (2, 8, 16, 64, 512):
                steps = [Job(m, n, way, network=NETWORK / k, nvlink=NVLINK / k).step() for k in (1, 2, 4)]
                results.append((f"{way}, {n} GPUs: half the rate is never faster", steps == sorted(steps) and steps[0] < steps[2]))
    results += [(f"{r['row']}, {r['GPUs']} GPUs: within 3 %", abs(r["error, %"]) <= 3) for r in data["rows"] if "error, %" in r]
    results.append(("doc/measured/many_gpus.json has what the model gives", plain("many_gpus/predicted") == data))
    bad = [what for what, good in results if not good]
    print("\n".join(bad + [f"{len(results) - len(bad)} passed, {len(bad)} failed, 0 skipped"]))
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit(check())
    everything = predictions()
    if options.write:
        store("many_gpus/predicted", everything)
    else:
        print(json.dumps(everything, indent=1))
