#!/usr/bin/env python3
"""Runs for Weights & Biases (pip install wandb), also while they go on:

    scripts/to_wandb.py runs/mine --offline             what is there; `wandb sync` sends it later
    scripts/to_wandb.py runs/mine --offline --follow &  as it comes, until the run ends
    scripts/to_wandb.py runs/mine --project stories     sends it at once

W&B takes each step once and never an earlier one. So --follow gives the steps of a running training when a checkpoint
stands behind them; a run that goes on from an earlier checkpoint than its newest keeps the steps given before.
"""
import argparse
import os

try:
    import wandb
except ImportError as missing:
    raise SystemExit(f"to_wandb: {missing}: pip install wandb") from None

from follow_log import log_of, read, scalars

COVERED = ("save", "stop", "end", "error")


class Converter:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.run, self.waiting, self.given, self.passed = None, [], -1, 0

    def begin(self, row):
        line = row.get("line") or [["unknown", 0]]
        name = os.path.basename(os.path.abspath(self.folder))
        config = {**row.get("options", {}), "device": row.get("device"), "parameters": row.get("parameters")}
        self.run = wandb.init(project=self.args.project, mode="offline" if self.args.offline else "online", id=line[0][0],
                              name=name, dir=self.folder, config=config, resume="allow")

    def add(self, row):
        event = row.get("event")
        if event in ("start", "resume"):
            if self.run is None:
                self.begin(row)
            self.waiting = [old for old in self.waiting if old["step"] <= row["step"]]
        values = dict(scalars(row))
        if values:
            self.waiting.append({"step": row["step"], "values": values})
        if event in COVERED:
            self.give()

    def give(self):
        for row in self.waiting:
            if self.run is None or row["step"] < self.given:
                self.passed += 1
                continue
            self.given = row["step"]
            self.run.log(row["values"], step=row["step"])
        self.waiting = []

    def close(self):
        self.give()
        if self.passed:
            print(f"to_wandb: passed over {self.passed} lines of steps that W&B has already")
        if self.run is not None:
            self.run.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run, or a log.jsonl")
    parser.add_argument("--project", default="plumb")
    parser.add_argument("--offline", action="store_true", help="write it to RUN/wandb, send nothing")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    args = parser.parse_args()
    path = log_of(args.run)
    converter = Converter(args, os.path.dirname(os.path.abspath(path)))
    try:
        for row in read(path, args.follow):
            if row is not None:
                converter.add(row)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise SystemExit(f"to_wandb: {error}")
    converter.close()


if __name__ == "__main__":
    main()
