#!/usr/bin/env python3
"""Signals at random moments of six phases: each leaves a checkpoint that loads, of the step that the log ends with.
usage: dev/test/faults/signals.py [times]     from the root of a built tree; prints phase, signal, good of tries"""
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 3
ENV = dict(os.environ, OMP_NUM_THREADS="1")
BASE = "./train_gpt2 --layers 1 --heads 1 --channels 16 --batch 2 --seq-len 32 --quiet --steps 1000000 ".split()
QUIET = "--sample-every 0 --val-every 0 "
PHASES = {
    "start": "--val-data none " + QUIET,
    "step": "--val-data none " + QUIET,
    "accumulation": "--val-data none --total-batch 6400000 " + QUIET,
    "validation": "--val-every 1 --sample-every 0",
    "sampling": "--val-data none --sample-every 1 --sample-tokens 100000 --temperature 0 --lr 0",
    "saving": "--val-data none --save-every 1 --keep 2 " + QUIET,
}
SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"]


def steps_done(out):
    lines = [json.loads(line) for line in open(f"{out}/log.jsonl")]
    return max([line["step"] for line in lines if "train_loss" in line], default=0)


def trial(phase, name, out):
    run = subprocess.Popen([*BASE, *PHASES[phase].split(), "--out", out], env=ENV, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    while run.poll() is None and not os.path.exists(out + "/config.toml"):
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.03 if phase == "start" else 0.5))
    run.send_signal(getattr(signal, name))
    if name == "SIGUSR1":  # it saves after the step or the phase; then the run is told to leave
        time.sleep(0.1)
        run.send_signal(signal.SIGTERM)
    begin = time.time()
    run.communicate(timeout=60)
    done = steps_done(out)
    loads = subprocess.run([*BASE, *PHASES[phase].split(), "--out", out, "--resume", "auto", "--dry-run"], env=ENV,
                           capture_output=True, text=True).stdout
    good = run.returncode == 75 and f"{out}/step_{done:08d}\n" in loads
    if not good:
        print(phase, name, run.returncode, done, [os.path.basename(f) for f in glob.glob(out + "/step_*")])
    return good, time.time() - begin


folder = tempfile.mkdtemp()
bad, total, slowest = 0, 0, 0.0
for phase in PHASES:
    for name in SIGNALS:
        results = []
        for i in range(TIMES):
            out = f"{folder}/run"
            shutil.rmtree(out, ignore_errors=True)
            results.append(trial(phase, name, out))
        good = sum(r[0] for r in results)
        bad, total, slowest = bad + TIMES - good, total + TIMES, max([slowest] + [r[1] for r in results])
        print(f"{phase:13s} {name:8s} {good} of {TIMES}")
shutil.rmtree(folder)
print(f"{total - bad} of {total} left a checkpoint of the step that the log ends with; slowest exit {slowest:.1f} s")
sys.exit(bad > 0)
