#!/usr/bin/env python3
"""One run on 1, 2, 4, ... GPUs of one host: GPT-2 124M has the same bits on each number, by each transport, and when it is
killed at random moments and goes on with another number; and how fast they are together, for 124M and 1558M.

    dev/bench/check_many_gpus.py [--gpus 1,2,4] [--parts bits,kills,times] [--folder FOLDER]

Needs ./train_gpt2cu, for the transport nccl NCCL, 10 GB in FOLDER/many, which is emptied first (for 1558M 20 GB of the host's
memory a GPU), and seven minutes. --program ./train_gpt2 checks the script: its ranks are processes on the CPU, its model is
small, and no times are taken. Last line: N passed, N failed; exit 1 if any failed.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MOST_SECONDS = 30       # from a rank's death to the end of the job
LEAST = 0.95            # of linear
STEPS, EVERY = 200, 10  # of the run that is killed, and how often it saves


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gpus", default="1,2", help="numbers of GPUs, each a divisor of the last (default 1,2)")
    p.add_argument("--parts", default="bits,kills,times")
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--program", default="./train_gpt2cu")
    p.add_argument("--folder", default="runs", help="default runs")
    a = p.parse_args()
    try:
        a.gpus = [int(n) for n in a.gpus.split(",")]
    except ValueError:
        p.error(f"--gpus {a.gpus}: expected numbers such as 1,2,4")
    a.parts = a.parts.split(",")
    if min(a.gpus) < 1 or any(a.gpus[-1] % n for n in a.gpus):
        p.error(f"--gpus {a.gpus}: each must divide the last")
    if unknown := set(a.parts) - {"bits", "kills", "times"}:
        p.error(f"--parts: {', '.join(sorted(unknown))}: expected bits, kills, times")
    if "kills" in a.parts and len(set(a.gpus)) < 2:
        p.error("--parts kills goes on with another number of GPUs: --gpus needs two")
    if not os.access(os.path.join(ROOT, a.program), os.X_OK):
        p.error(f"{a.program}: no such program: make train_gpt2cu")
    return a


class Checks:
    def __init__(self, a):
        self.begin, self.folder, self.program = time.time(), os.path.abspath(os.path.join(a.folder, "many")), a.program
        self.counts = a.gpus
        self.kills, self.passed, self.failed = a.kills, 0, 0
        self.cpu = os.path.basename(a.program) == "train_gpt2"
        groups = self.counts[-1]
        model = "--model d12 --seq-len 1024"
        if self.cpu:
            model = "--layers 2 --heads 2 --channels 32 --seq-len 32 --raw-tokens 256"
        self.batch = 2 if self.cpu else 4
        self.tokens = (32 if self.cpu else 1024) * self.batch * groups * 2
        self.model = f"{model} --reduce-groups {groups}"
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.write_tokens()

    def write_tokens(self):
        """16 M tokens of GPT-2's vocabulary (bytes on the CPU), drawn as words are: rank r about 1 / r"""
        most, here = 255 if self.cpu else 50256, random.Random(1)
        words = [min(most - 1, int(most ** here.random()) - 1) for _ in range(1 << 20)]
        with open(f"{self.folder}/train.bin", "wb") as file:
            if not self.cpu:
                file.write(struct.pack("<256i", 20240520, 1, 16 * len(words), *[0] * 253))
            for k in range(16):
                file.write(struct.pack(f"<{len(words)}H", *(words[k * 9973:] + words[:k * 9973])))

    def say(self, text):
        print(f"[{time.time() - self.begin:.0f} s] {text}", flush=True)

    def judge(self, what, right):
        self.passed, self.failed = self.passed + bool(right), self.failed + (not right)
        self.say(("PASS " if right else "FAIL ") + what)

    def start(self, name, gpus, options, environment=None):
        command = [self.program, "--train-data", f"{self.folder}/train.bin", "--val-data", "none", "--sample-every", "0",
                   "--quiet", "--warmup", "10", "--lr", "6e-4", "--out", f"{self.folder}/{name}", *options.split()]
        command += ["--ranks" if self.cpu else "--gpus", str(gpus)]
        with open(f"{self.folder}/{name}.log", "w") as log:
            fixed = {"OMP_NUM_THREADS": "1"} if self.cpu else {}  # the bits of the CPU depend on it
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **fixed, **(environment or {})})

    def end_of(self, name, process, seconds=90):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(process)
            code = "none in time"
        if code != 0:
            with open(f"{self.folder}/{name}.log") as log:
                self.say(f"{name}: code {code}: {log.read()[-400:]}")
        return code == 0

    def rows(self, name):
        """the log's lines of steps; the last line may be half written"""
        try:
            with open(f"{self.folder}/{name}/log.jsonl") as file:
                return [row for row in (json.loads(line) for line in file if line.endswith("\n")) if "grad_norm" in row]
        except FileNotFoundError:
            return []

    def result(self, name):
        """of the model file, all losses and norms"""
        try:
            with open(f"{self.folder}/{name}/model.bin", "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()[:8]
        except FileNotFoundError:
            digest = "no model.bin"
        return digest, {row["step"]: (row["train_loss"], row["grad_norm"]) for row in self.rows(name)}

    def forget(self, name):
        shutil.rmtree(f"{self.folder}/{name}", ignore_errors=True)

    @staticmethod
    def ranks(process):
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self, process):
        for pid in [*self.ranks(process), process.pid]:  # the ranks first, so that none has the time to save
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def bits(self):
        first, most = self.counts[0], self.counts[-1]
        ways = [("", {}, n) for n in self.counts] + [(" --zero 0", {}, most)]
        ways += [(" --optimizer muon", {}, n) for n in (first, most)]
        if not self.cpu:
            ways += [("", {"PLUMB_TRANSPORT": way}, most) for way in ("nccl", "host")] + [("", {"PLUMB_OVERLAP": "0"}, most)]
        expected = {}
        for more, environment, gpus in ways:
            options = f"{self.model} --batch {self.batch} --total-batch {self.tokens} --steps 50{more}"
            done = self.end_of("bits", self.start("bits", gpus, options, environment))
            found, key = self.result("bits"), "muon" in more
            expected.setdefault(key, found)
            said = " ".join(f"{name}={value}" for name, value in environment.items())
            self.judge(f"{gpus} GPUs{more} {said}: 50 steps, model.bin {found[0]}",
                       done and len(found[1]) == 50 and found == expected[key])
            self.forget("bits")

    def kill_one(self, name, gpus, options):
        """A rank is killed some steps on, at a random moment of one; whether the job ends as it should."""
        process = self.start(name, gpus, options)
        target, deadline = len(self.rows(name)) + random.randint(1, 14), time.time() + 60
        while len(self.rows(name)) < target and process.poll() is None and time.time() < deadline:
            time.sleep(0.01)
        time.sleep(random.random() * 0.2)
        if process.poll() is not None or time.time() > deadline:
            self.end_of(name, process, 1)
            return False, "nobody was killed: the run had ended, or got nowhere"
        victim = random.choice(self.ranks(process)) if gpus > 1 else process.pid
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        try:
            code = process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill(process)
            code = "none in time"
        return code == (6 if gpus > 1 else -signal.SIGKILL), f"code {code} after {time.time() - killed:.1f} s"

    def kills_and_moves(self):
        most = self.counts[-1]
        options = (f"{self.model} --batch {4 * self.batch} --total-batch {4 * self.tokens} --steps {STEPS} "
                   f"--save-every {EVERY} --keep 2 --comm-timeout 20")
        done = self.end_of("straight", self.start("straight", most, options))
        expected = self.result("straight")[0]
        self.judge(f"{STEPS} steps on {most} GPUs: model.bin {expected}", done)
        gpus = most
        for k in range(self.kills):
            right, said = self.kill_one("killed", gpus, options + " --resume auto")
            self.judge(f"kill {k + 1}: {gpus} GPUs, {said}", right)
            gpus = random.choice([n for n in self.counts if n != gpus])
        done = self.end_of("killed", self.start("killed", most, options + " --resume auto"), 120)
        found = self.result("killed")[0]
        self.judge(f"and at the end model.bin {found}, undisturbed {expected}", done and found == expected)
        for name in ("straight", "killed"):
            self.forget(name)

    def paces(self, name, runs, options, skip, count):
        """Of runs at the same time, each (number of GPUs, environment): ms, the median of the given number of steps"""
        started = [(f"{name}, {k}", self.start(f"{name}, {k}", gpus, options + " --steps 100000 --schedule constant", more))
                   for k, (gpus, more) in enumerate(runs)]
        deadline, medians = time.time() + 60, []
        while time.time() < deadline and any(len(self.rows(run)) < skip + count and p.poll() is None for run, p in started):
            time.sleep(0.05)
        for run, process in started:
            if process.poll() is None:
                self.kill(process)
        for run, _ in started:
            ms = [row["ms"] for row in self.rows(run)][skip:skip + count]
            self.forget(run)
            if len(ms) < count:
                self.judge(f"{run}: {count} steps", False)
                ms = [float("nan")] * 2
            fifths = statistics.quantiles(ms, n=5)
            medians.append(statistics.median(ms))
            self.say(f"{run}: {medians[-1]:.3f} ms a step (20 % {fifths[0]:.3f}, 80 % {fifths[3]:.3f})")
        return medians

    def times(self):
        """Linear is the sum of what the same GPUs do each alone, all at the same time: they differ by a few percent."""
        most = self.counts[-1]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(most)))).split(",")
        alone = [(1, {"CUDA_VISIBLE_DEVICES": gpu}) for gpu in visible[:most]]
        for name, options, skip, count in (("124M, B=64 a GPU", "--model d12 --batch 64 --seq-len 1024", 15, 35),
                                           ("1558M, B=8 a GPU", "--model d48 --batch 8 --seq-len 1024", 8, 18)):
            alone_ms, together_ms = [], {gpus: [] for gpus in self.counts if gpus > 1}
            for _ in range(2):
                alone_ms.append(self.paces(f"{name}, each alone", alone, options, skip, count))
                for gpus, found in together_ms.items():
                    found += self.paces(f"{name}, {gpus} GPUs", [(gpus, {})], options, skip, count)
            for gpus, found in together_ms.items():
                ms = statistics.mean(found)
                linear = statistics.mean(statistics.harmonic_mean(each[:gpus]) for each in alone_ms) / ms
                slowest = statistics.mean(max(each[:gpus]) for each in alone_ms) / ms
                self.judge(f"{name}: {gpus} GPUs {linear:.4f} of linear ({LEAST}), {slowest:.4f} of the slowest", linear >= LEAST)
        for gpus in self.counts:
            self.paces(f"124M, 64 x 1024 tokens in all, {gpus} GPUs", [(gpus, {})],
                       f"--model d12 --seq-len 1024 --batch {64 // gpus} --total-batch 65536", 15, 35)


def main():
    a = parse_options()
    checks, parts = Checks(a), a.parts
    if "bits" in parts:
        checks.bits()
    if "kills" in parts:
        checks.kills_and_moves()
    if "times" in parts and not checks.cpu:
        checks.times()
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
