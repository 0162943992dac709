#!/usr/bin/env python3
"""Gives a run's log.jsonl to TensorBoard or to Weights & Biases, of a run that has ended or, with --follow, while it goes on.

    scripts/follow_log.py tensorboard runs/mine              writes runs/mine/tensorboard; then: tensorboard --logdir runs
    scripts/follow_log.py tensorboard runs/mine --follow &   as it comes, until the run ends
    scripts/follow_log.py wandb runs/mine --offline          what is there; `wandb sync` sends it later
    scripts/follow_log.py wandb runs/mine --project stories  sends it at once

Needs that package (pip install tensorboard, or wandb). A run that goes on from a checkpoint replaces its log: the lines of what
led to the checkpoint stay, those behind it go, a line {"event": "resume", "step": S} follows. Either shows each step once. A
second call of tensorboard replaces what an earlier one has written. W&B takes each step once and never an earlier one, so it gets
the steps of a running training when a checkpoint stands behind them, and keeps those that it has.
"""
import argparse
import glob
import json
import os
import sys
import time

ENDS = ("end", "error")  # events behind which nothing comes; a run that was stopped may go on


def read(path, follow=False, pause=0.5):
    """Yields the lines as objects, none a second time, and None whenever all that is there was given; ends there unless follow,
    else with the run."""
    if follow and not os.path.exists(path):
        print(f"waiting for {path}, which is not there yet", file=sys.stderr, flush=True)
    while follow and not os.path.exists(path):
        yield None
        time.sleep(pause)
    seen, at, log, ended = [], 0, open(path, "rb"), False
    while True:
        begin = log.tell()
        line = log.readline()
        if line.endswith(b"\n"):
            if at < len(seen) and seen[at] == hash(line):
                at += 1
                continue
            del seen[at:]
            seen.append(hash(line))
            at += 1
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "step" in row:
                ended = row.get("event") in ENDS
                yield row
            continue
        log.seek(begin)
        if os.path.exists(path) and os.stat(path).st_ino != os.fstat(log.fileno()).st_ino:  # it was replaced
            log.close()
            log, at = open(path, "rb"), 0
            continue
        yield None
        if ended or not follow:
            return
        time.sleep(pause)


# log.jsonl's name -> the name in a chart
CHARTS = {"train_loss": "loss/train", "val_loss": "loss/validation", "grad_norm": "grad_norm", "lr": "learning_rate",
          "tokens_per_s": "speed/tokens_per_s", "ms": "speed/ms", "utilisation": "speed/utilisation",
          "memory": "memory/bytes", "epoch": "epoch", "seconds": "speed/validation_seconds"}


def scalars(row):
    """(chart, value) of a line"""
    return [(chart, row[name]) for name, chart in CHARTS.items() if isinstance(row.get(name), (int, float))]


class TensorBoard:
    """begins to write with the first line: of a run that is not there no folder is made"""
    SUFFIX = ".plumb"  # of the files that are replaced

    def __init__(self, args, folder):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self.events, self.summaries, self.text_pb, self.new_writer = event_pb2, summary_pb2, text_pb, EventFileWriter
        self.folder, self.writer = os.path.join(folder, "tensorboard"), None
        self.given = {}  # the last step of each chart

    def add(self, row):
        if self.writer is None:
            for old in glob.glob(os.path.join(glob.escape(self.folder), "events.out.tfevents.*" + self.SUFFIX)):
                os.remove(old)
            self.writer = self.new_writer(self.folder, filename_suffix=self.SUFFIX)
        Event, Summary, step, time = self.events.Event, self.summaries.Summary, row["step"], row.get("time") or 0
        if row.get("event") == "resume":  # what was written behind that step does not count any more
            start = self.events.SessionLog(status=self.events.SessionLog.START)
            self.writer.add_event(Event(wall_time=time, step=step + 1, session_log=start))
            self.given = {tag: min(last, step) for tag, last in self.given.items()}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row)]
        if row.get("event") == "sample":
            values = self.text_pb("sample", "    " + row["text"].replace("\n", "\n    ")).value
        # a validation just before a checkpoint is done again after it
        values = [value for value in values if self.given.get(value.tag, -1) < step]
        self.given.update({value.tag: step for value in values})
        if values:
            self.writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=values)))

    def flush(self):
        if self.writer is not None:
            self.writer.flush()

    def close(self):
        if self.writer is not None:
            self.writer.close()
            print("wrote", self.folder)


class WandB:
    COVERED = ("save", "stop", "end", "error")  # events behind which a checkpoint stands

    def __init__(self, args, folder):
        import wandb
        self.wandb, self.args, self.folder = wandb, args, folder
        self.run, self.waiting, self.given, self.passed = None, [], -1, 0

    def begin(self, row):
        line, name = row.get("line") or [["unknown", 0]], os.path.basename(os.path.abspath(self.folder))
        config = {**row.get("options", {}), "device": row.get("device"), "parameters": row.get("parameters")}
        self.run = self.wandb.init(project=self.args.project, mode="offline" if self.args.offline else "online", id=line[0][0],
                                   name=name, dir=self.folder, config=config, resume="allow")

    def add(self, row):
        event = row.get("event")
        if event in ("start", "resume"):
            if self.run is None:
                self.begin(row)
            self.waiting = [old for old in self.waiting if old["step"] <= row["step"]]
        if values := dict(scalars(row)):
            self.waiting.append({"step": row["step"], "values": values})
        if event in self.COVERED:
            self.give()

    def give(self):
        for row in self.waiting:
            if self.run is None or row["step"] < self.given:
                self.passed += 1
                continue
            self.given = row["step"]
            self.run.log(row["values"], step=row["step"])
        self.waiting = []

    def flush(self):
        pass

    def close(self):
        self.give()
        if self.passed:
            print(f"passed over {self.passed} lines of steps that W&B has already")
        if self.run is not None:
            self.run.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", choices=["tensorboard", "wandb"])
    parser.add_argument("run", help="folder of a run, or a log.jsonl")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--project", default="plumb", help="wandb")
    parser.add_argument("--offline", action="store_true", help="wandb: write it to RUN/wandb, send nothing")
    args = parser.parse_args()
    path = args.run if args.run.endswith(".jsonl") else os.path.join(args.run, "log.jsonl")
    try:
        converter = {"tensorboard": TensorBoard, "wandb": WandB}[args.to](args, os.path.dirname(os.path.abspath(path)))
    except ImportError as missing:
        raise SystemExit(f"follow_log: {missing}: pip install {args.to}") from None
    rows = 0
    try:
        for row in read(path, args.follow):
            if row is None:
                converter.flush()
                continue
            converter.add(row)
            rows += 1
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise SystemExit(f"follow_log: {error}")
    if rows == 0:
        raise SystemExit(f"follow_log: {path}: no line of a run in it")
    converter.close()


if __name__ == "__main__":
    main()
