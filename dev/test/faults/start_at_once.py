#!/usr/bin/env python3
"""Eight processes started at once in one run folder: one trains, seven return 2 and name it.
usage: dev/test/faults/start_at_once.py [tries]     from the root of a built tree, which has data/sample"""
import os
import shutil
import subprocess
import sys
import tempfile
import time

TRIES = int(sys.argv[1]) if len(sys.argv) > 1 else 10
ENV = dict(os.environ, OMP_NUM_THREADS="1")
OPTIONS = ("--layers 1 --heads 1 --channels 16 --batch 2 --seq-len 32 --val-data none --sample-every 0 "
           "--steps 1000000 --quiet --out").split()


def one_trains(out):
    runs = [subprocess.Popen(["./train_gpt2", *OPTIONS, out], env=ENV, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True) for _ in range(8)]
    deadline = time.time() + 60
    while sum(run.poll() is None for run in runs) > 1 and time.time() < deadline:
        time.sleep(0.01)
    alive = [run for run in runs if run.poll() is None]
    for run in alive:
        run.kill()
    texts = [run.communicate()[1] for run in runs]
    return len(alive) == 1 and all(
        run.returncode == 2 and f"process {alive[0].pid} on " in text
        for run, text in zip(runs, texts) if run is not alive[0])


folder = tempfile.mkdtemp()
good = sum(one_trains(f"{folder}/{i}") for i in range(TRIES))
shutil.rmtree(folder)
print(f"{good} of {TRIES}: one of eight trained, seven returned 2 and named it")
sys.exit(good != TRIES)
