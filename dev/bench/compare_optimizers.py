#!/usr/bin/env python3
"""Steps to the same validation loss, AdamW and Muon, each with the best learning rate of a small sweep. Standard library only.

    dev/bench/compare_optimizers.py sample --json muon.json    the sample corpus, the job of `make train`
    dev/bench/compare_optimizers.py shakespeare --json muon.json    Tiny Shakespeare (data/get_tinyshakespeare.sh)

First both run for --steps steps with each of the learning rates --lrs; the best of AdamW's last validation losses is what is
to be reached. Then Muon, with its best rate, runs for fewer steps, each time with a schedule of that length, until the
shortest run is known that ends at that loss or below, to a twentieth of --steps. A row's table has all losses. --program:
./train_gpt2cu or ./train_gpt2. --json FILE: the two rows are added to FILE, in place of older ones of the same job.
dev/bench/tables.py makes the table.
"""
import bisect
import datetime
import os
import subprocess
import sys
import tempfile

from lab import ROOT, add_rows, log_rows, parser

SHAKESPEARE = os.path.join(ROOT, "data", "tinyshakespeare", "tiny_shakespeare_%s_*.bin")
SHAKESPEARE_OPTIONS = ["--warmup", "100", "--final-lr-fraction", "0.1", "--weight-decay", "0.1", "--model", "d4",
                       "--batch", "16", "--seq-len", "256"]


def job_options(o):
    if o.job == "sample":
        gpu = "_gpu" if os.path.basename(o.program) == "train_gpt2cu" else ""
        return ["--config", os.path.join(ROOT, "scripts", f"train_sample{gpu}.toml")]
    return ["--train-data", SHAKESPEARE % "train", "--val-data", SHAKESPEARE % "val"] + SHAKESPEARE_OPTIONS


def run(o, optimizer, lr, steps):
    """the validation loss of a run's last step; infinity if it diverged"""
    with tempfile.TemporaryDirectory() as folder:
        command = [o.program] + job_options(o) + ["--optimizer", optimizer, "--lr", lr, "--steps", str(steps), "--val-every",
                                                  "0", "--sample-every", "0", "--quiet", "--out", folder + "/run"]
        done = subprocess.run(command + o.more.split(), capture_output=True, text=True)
        if done.returncode == 5:
            return float("inf")
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
        loss = log_rows(folder + "/run", "val_loss")[-1]["val_loss"]
    print(f"{optimizer:6} lr {lr:7} {steps:6} steps: {loss:.4f}", flush=True)
    return loss


def fewest_steps(o, lr, goal):
    """of Muon: the shortest run that ends at the goal or below, in twentieths of --steps; None if --steps do not suffice"""
    if run(o, "muon", lr, o.steps) > goal:
        return None
    tried = [o.steps * twentieths // 20 for twentieths in range(1, 21)]
    return tried[bisect.bisect_left(tried, True, hi=19, key=lambda steps: run(o, "muon", lr, steps) <= goal)]


def main():
    p = parser(__doc__)
    p.add_argument("job", choices=["sample", "shakespeare"])
    p.add_argument("--program", default=os.path.join(ROOT, "train_gpt2cu"))
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--lrs", default="1e-3,2e-3,4e-3,8e-3,1.6e-2,3.2e-2")
    p.add_argument("--more", default="", help="more options of the program, in one text")
    p.add_argument("--json", help="file for the rows")
    o = p.parse_args()
    losses = {name: {lr: run(o, name, lr, o.steps) for lr in o.lrs.split(",")} for name in ("adamw", "muon")}
    best = {name: min(of, key=of.get) for name, of in losses.items()}
    for name, lr in best.items():
        if lr in (o.lrs.split(",")[0], o.lrs.split(",")[-1]):
            sys.exit(f"{name} is best at the edge of the sweep, {lr}: give more --lrs")
    goal = losses["adamw"][best["adamw"]]
    fewest = fewest_steps(o, best["muon"], goal)
    where = "GPU" if os.path.basename(o.program) == "train_gpt2cu" else "CPU"
    job = f"{o.job}, {where}, {o.steps} steps"
    rows = [{"job": job, "optimizer": name, **{f"lr {lr}": round(loss, 4) for lr, loss in losses[name].items()},
             "steps to AdamW's best": steps, "date": datetime.date.today().isoformat()}
            for name, steps in (("adamw", o.steps), ("muon", fewest or "more"))]
    print(*rows, sep="\n")
    if o.json:
        add_rows(o.json, {}, rows, "job", "optimizer")


if __name__ == "__main__":
    main()
