#!/usr/bin/env python3
"""What FP8 does to the loss: runs with and without --fp8, told apart by their logs, of several seeds each. Standard library only.

    for s in 1 2 3; do for p in "" --fp8; do ./train_gpt2cu --seed $s $p --out runs/q$s$p ...; done; done
    dev/bench/compare_fp8.py runs/q* [--json FILE]

All options but --fp8, --seed and --out must be the same. The row has the means over the seeds of the last 100 training losses
and of the last validation loss; the standard deviation (sd) of the seeds without FP8; how many sd lie between the two means;
and the same of the 100 training losses in the middle, as a difference may grow. --json FILE: the row is added.
"""
import datetime
import json
import statistics
import sys

from lab import add_rows, log_rows, parser

OWN = ("fp8", "seed", "out")  # options in which the runs differ
LAST = 100  # training losses


def read(run):
    """(FP8, the job, the log's start, the losses that are compared)"""
    starts, train, val = (log_rows(run, field) for field in ("options", "train_loss", "val_loss"))
    if len(starts) != 1 or not val or not train or train[-1]["step"] != starts[0]["steps"]:
        sys.exit(f"{run}: expected the log of one whole run with validation")
    options, losses = starts[0]["options"], [row["train_loss"] for row in train]
    middle = len(losses) // 2 - LAST // 2
    job = {key: value for key, value in options.items() if key not in OWN}
    return options["fp8"], job, starts[0], {
        "middle": statistics.mean(losses[middle:middle + LAST]), "train": statistics.mean(losses[-LAST:]),
        "val": val[-1]["val_loss"]}


def compare(runs):
    """the row, or an error"""
    found = [read(run) for run in runs]
    for run, (_, job, *_) in zip(runs, found):
        other = [f"--{key}" for key in job if job[key] != found[0][1].get(key)]
        if other:
            sys.exit(f"{run}: {', '.join(other)} not as in {runs[0]}")
    sides = {fp8: [losses for is_fp8, *_, losses in found if is_fp8 == fp8] for fp8 in (False, True)}
    if len(sides[False]) < 3 or not sides[True]:
        sys.exit("expected three runs without --fp8, for a standard deviation, and one with it")
    _, job, start, _ = found[0]
    row = {"model": job["model"], "parameters": start["parameters"], "tokens a step": start["tokens_per_step"],
           "steps": start["steps"], "seeds": f"{len(sides[False])}, {len(sides[True])}"}
    for name in ("middle", "train", "val"):
        bf16, fp8 = ([losses[name] for losses in sides[side]] for side in (False, True))
        deviation, apart = statistics.stdev(bf16), statistics.mean(fp8) - statistics.mean(bf16)
        row[f"{name}: bf16 (sd)"] = f"{statistics.mean(bf16):.4f} ({deviation:.4f})"
        row[f"{name}: FP8"] = f"{statistics.mean(fp8):.4f}"
        row[f"{name}: sd apart"] = f"{apart / deviation:+.2f}"
    return row | {"date": datetime.date.today().isoformat()}, start["device"]


def main():
    p = parser(__doc__)
    p.add_argument("runs", nargs="+", help="folders of runs")
    p.add_argument("--json", help="file for the row")
    o = p.parse_args()
    row, gpu = compare(o.runs)
    print(json.dumps(row))
    if o.json:
        add_rows(o.json, {"gpu": gpu, "command": "dev/bench/compare_fp8.py RUN..."}, [row], "model")


if __name__ == "__main__":
    main()
