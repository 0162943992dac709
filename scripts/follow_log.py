"""Reads a run's log.jsonl, of a run that has ended or while it grows; used by to_tensorboard.py and to_wandb.py.

A run that goes on from a checkpoint replaces its log: the lines of what led to the checkpoint stay, those behind it go,
a line {"event": "resume", "step": S} follows. Lines that were read and are still there are not given a second time.
"""
import json
import os
import sys
import time

ENDS = ("end", "error")  # events behind which nothing comes; a run that was stopped may go on


def log_of(run):
    return os.path.join(run, "log.jsonl") if os.path.isdir(run) else run


def read(path, follow=False, pause=0.5):
    """Yields the lines as objects, and None whenever all that is there was given; ends there unless follow, else with
    the run."""
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
        replaced = os.path.exists(path) and os.stat(path).st_ino != os.fstat(log.fileno()).st_ino
        if replaced:
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
