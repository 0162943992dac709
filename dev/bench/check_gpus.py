#!/usr/bin/env python3
"""What runs must keep and reach on the GPUs of one host, by GPT-2 124M and 1558M.

    dev/bench/check_gpus.py                     one GPU: resumes, kills, cost, stop
    dev/bench/check_gpus.py --gpus 1,2,4        several: bits, kills, times; some of them: --parts times

resumes: it goes on from each of five checkpoints to the same bits, and transformers loads one. kills: killed at random moments,
it goes on, with another number of GPUs if there are several, and ends with the bits of an undisturbed run. cost: what saving
costs. stop: the 1558M saves and leaves within 30 seconds of SIGTERM, or 1.3 x what the disk takes. bits: the same bits on each
number of GPUs, by each transport, with either optimizer. times: how fast they are together.

Needs ./train_gpt2cu, for the transport nccl NCCL, 45 GB in --folder FOLDER/gpus, which is removed before and after (for 1558M 20 GB
of the host's memory a GPU), and some minutes. --program ./train_gpt2 checks the script: its ranks are processes on the CPU, its
models are small, and no times are taken. Last line: N passed, N failed; exit 1 if any failed.
"""
import glob
import hashlib
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

from lab import ROOT, log_rows, needs, parser, write_shard

MOST_SECONDS = 30       # from a rank's death, or a SIGTERM, to the end of the job
LEAST = 0.95            # of linear
STEPS, EVERY, KILLS = 200, 10, 20  # of the run that is killed: its steps, how often it saves, how often it is killed
PARTS = ("resumes", "bits", "kills", "cost", "stop", "times")


class Checks:
    def __init__(self, a):
        self.begin, self.folder, self.program = time.time(), os.path.abspath(os.path.join(a.folder, "gpus")), a.program
        self.counts, self.passed, self.failed = a.gpus, 0, 0
        self.cpu = os.path.basename(a.program) == "train_gpt2"
        model = "--layers 2 --heads 2 --channels 32 --seq-len 32" if self.cpu else "--model d12 --seq-len 1024"
        self.batch = 2 if self.cpu else 4
        self.tokens = (32 if self.cpu else 1024) * self.batch * a.gpus[-1] * 2
        self.model = f"{model} --reduce-groups {a.gpus[-1]}"
        # of the parts that are about saving, not about what ranks share out
        self.whole = model + f" --batch {4 * self.batch}"
        self.large = self.whole if self.cpu else "--model d48 --seq-len 1024 --batch 4"
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        # 16 M tokens of GPT-2's vocabulary (bytes on the CPU), drawn as words are: rank r about 1 / r
        most, here = 256 if self.cpu else 50257, random.Random(1)
        words = [min(most - 2, int((most - 1) ** here.random()) - 1) for _ in range(1 << 20)]
        turned = [word for k in range(16) for word in words[k * 9973:] + words[:k * 9973]]
        write_shard(f"{self.folder}/train.bin", turned, most)

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

    def said(self, name, *starts):
        """lines of what a run has printed"""
        with open(f"{self.folder}/{name}.log") as log:
            return [line for line in log.read().splitlines() if line.startswith(starts or "")]

    def end_of(self, name, process, seconds=150):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(process)
            code = "none in time"
        if code != 0:
            self.say(f"{name}: code {code}: " + "\n".join(self.said(name))[-400:])
        return code == 0

    def run(self, name, gpus, options, environment=None):
        """whether it ended well"""
        return self.end_of(name, self.start(name, gpus, options, environment))

    def rows(self, name):
        return log_rows(f"{self.folder}/{name}", "grad_norm")

    def digest(self, name, checkpoint=None):
        """of the model file; of a checkpoint's files, too, if it is named"""
        sha = hashlib.sha256()
        try:
            parts = [f"{checkpoint}/model.safetensors", f"{checkpoint}/optimizer.safetensors"] if checkpoint else []
            for path in ["model.bin", *parts]:
                with open(f"{self.folder}/{name}/{path}", "rb") as file:
                    sha.update(file.read())
        except FileNotFoundError as error:
            return f"missing: {os.path.relpath(error.filename, self.folder)}"
        return sha.hexdigest()[:8]

    def forget(self, *names):
        for name in names:
            shutil.rmtree(f"{self.folder}/{name}", ignore_errors=True)

    @staticmethod
    def ranks(process):
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self, process):
        for pid in [*self.ranks(process), process.pid]:  # the ranks first, so that none has the time to save
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def wait_for(self, name, steps, process, seconds):
        """whether the run's log has so many steps in this time"""
        deadline = time.time() + seconds
        while len(self.rows(name)) < steps and process.poll() is None and time.time() < deadline:
            time.sleep(0.01)
        return process.poll() is None and time.time() <= deadline

    # ---- the parts
    def resumes(self):
        if not self.cpu:
            needs(__doc__, "torch", "transformers")
        options = f"{self.whole} --steps 60 --save-every 10"
        self.judge("the undisturbed run", self.run("whole", 1, options))
        print(*self.said("whole", "memory", "disk", "saving", "device"), sep="\n")
        expected = self.digest("whole", "step_00000060")
        for step in range(10, 60, 10):
            done = self.run("from", 1, f"{self.whole} --steps 60 --resume {self.folder}/whole/step_{step:08}")
            found = self.digest("from", "step_00000060")
            self.judge(f"from step {step}: at step 60 {found}, undisturbed {expected}", done and found == expected)
            self.forget("from")
        if not self.cpu:
            from transformers import AutoModelForCausalLM
            checkpoint = f"{self.folder}/whole/step_00000060"
            model, info = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
            wrong, size = [key for key in info if key.endswith("_keys") and info[key]], sum(p.numel() for p in model.parameters())
            self.judge(f"transformers loads the checkpoint: {size} parameters {wrong}", size == 124439808 and not wrong)
        self.forget("whole")

    def cost(self):
        for mode, options in (("none", "--save-every 0"), ("sync", "--save-every 20 --save-mode sync"),
                              ("async", "--save-every 20 --save-mode async")):
            begin = time.time()
            done = self.run("cost", 1, f"{self.whole} --steps 160 --keep 1 {options}")
            self.judge(f"160 steps, saving {mode}: {time.time() - begin:.2f} s in all", done)
            self.forget("cost")

    def stop(self):
        megabytes = 64 if self.cpu else 4096
        begin = time.time()
        subprocess.run(["dd", "if=/dev/zero", f"of={self.folder}/zeros", "bs=1M", f"count={megabytes}", "conv=fsync",
                        "status=none"], check=True)
        rate = megabytes * 2**20 / (time.time() - begin)
        os.remove(f"{self.folder}/zeros")
        process = self.start("large", 1, self.large + " --steps 100000")
        self.wait_for("large", 3, process, 90)
        begin = time.time()
        process.terminate()
        code = process.wait()
        took = time.time() - begin
        size = sum(map(os.path.getsize, glob.glob(f"{self.folder}/large/step_*/*")))
        allowed = max(MOST_SECONDS, 1.3 * size / rate)
        self.judge(f"exit {code} {took:.2f} s after SIGTERM, {allowed:.1f} s allowed; {size} bytes at {rate:.0f} a second",
                   code == 75 and took <= allowed)
        print(*(line for line in self.said("large") if re.search("^(memory|disk|saving)|saved|stopped", line)), sep="\n")
        done = self.run("large", 1, self.large + " --steps 100000 --resume auto --dry-run")
        weights = " ".join(self.said("large", "weights"))
        self.judge(f"it can go on: {weights}", done and "step_" in weights)

    def bits(self):
        first, most = self.counts[0], self.counts[-1]
        ways = [("", {}, n) for n in self.counts] + [(" --zero 0", {}, most)]
        ways += [(" --optimizer muon", {}, n) for n in (first, most)]
        if not self.cpu:
            ways += [("", {"PLUMB_TRANSPORT": way}, most) for way in ("nccl", "host")] + [("", {"PLUMB_OVERLAP": "0"}, most)]
        expected = {}
        for more, environment, gpus in ways:
            options = f"{self.model} --batch {self.batch} --total-batch {self.tokens} --steps 50{more}"
            done = self.run("bits", gpus, options, environment)
            found = self.digest("bits"), {row["step"]: (row["train_loss"], row["grad_norm"]) for row in self.rows("bits")}
            said = " ".join(f"{name}={value}" for name, value in environment.items())
            right = done and len(found[1]) == 50 and found == expected.setdefault("muon" in more, found)
            self.judge(f"{gpus} GPUs{more} {said}: 50 steps, model.bin {found[0]}", right)
            self.forget("bits")

    def kill_one(self, name, gpus, options):
        """A rank is killed some steps on, at a random moment of one; whether the job ends as it should."""
        process = self.start(name, gpus, options)
        running = self.wait_for(name, len(self.rows(name)) + random.randint(1, 14), process, 60)
        time.sleep(random.random() * 0.2)
        if not running or process.poll() is not None:
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

    def kills(self):
        gpus = most = self.counts[-1]
        options = (f"{self.model} --batch {4 * self.batch} --total-batch {4 * self.tokens} --steps {STEPS} "
                   f"--save-every {EVERY} --keep 2 --comm-timeout 20")
        done = self.run("straight", most, options)
        expected = self.digest("straight", f"step_{STEPS:08}")
        self.judge(f"{STEPS} steps on {most} GPUs: {expected}", done)
        for k in range(6 if self.cpu else KILLS):  # the small model is soon at its end
            right, said = self.kill_one("killed", gpus, options + " --resume auto")
            self.judge(f"kill {k + 1}: {gpus} GPUs, {said}", right)
            gpus = random.choice([n for n in self.counts if n != gpus] or self.counts)
        done = self.run("killed", most, options + " --resume auto")
        found = self.digest("killed", f"step_{STEPS:08}")
        self.judge(f"and at the end {found}, undisturbed {expected}", done and found == expected)
        self.forget("straight", "killed")

    def paces(self, name, runs, options, skip, count):
        """Of runs at the same time, each (number of GPUs, environment): ms, the median of the given number of steps"""
        started = [(f"{name}, {k}", self.start(f"{name}, {k}", gpus, options + " --steps 100000 --schedule constant", more))
                   for k, (gpus, more) in enumerate(runs)]
        deadline, medians = time.time() + 60, []
        for run, process in started:
            self.wait_for(run, skip + count, process, deadline - time.time())
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
    p = parser(__doc__)
    p.add_argument("--gpus", type=lambda text: [int(n) for n in text.split(",")], default=[1], help="divisors of the last")
    p.add_argument("--parts", nargs="+", choices=PARTS)
    p.add_argument("--program", default="./train_gpt2cu")
    p.add_argument("--folder", default="runs", help="default runs")
    a = p.parse_args()
    if min(a.gpus) < 1 or any(a.gpus[-1] % n for n in a.gpus):
        p.error(f"--gpus {a.gpus}: each must divide the last")
    if not os.access(os.path.join(ROOT, a.program), os.X_OK):
        p.error(f"{a.program}: no such program: make train_gpt2cu")
    checks = Checks(a)
    for part in a.parts or (("resumes", "kills", "cost", "stop") if a.gpus == [1] else ("bits", "kills", "times")):
        if part != "times" or not checks.cpu:
            getattr(checks, part)()
    shutil.rmtree(checks.folder)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return checks.failed > 0


if __name__ == "__main__":
    sys.exit(main())
