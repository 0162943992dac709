#!/usr/bin/env python3
"""scripts/follow_log.py tensorboard, and wandb --offline, follow a run of 1,000 steps that is killed in the middle and goes
on from a checkpoint before that: in what TensorBoard's own reader and the records of W&B's file hold, every step stands
once, with the loss of log.jsonl. Needs tensorboard and wandb (pip); what is missing is skipped. Last line: N passed, N failed, N skipped.
"""
import glob
import importlib.util
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

STEPS, KILL_AT, SAVE_EVERY, VAL_EVERY = 1000, 530, 100, 50
passed = failed = skipped = 0


def check(name, good, found=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"ERROR: {name}: {found}")


def have(package):
    global skipped
    if importlib.util.find_spec(package):
        return True
    print(f"no package {package}: skipped")
    skipped += 1
    return False


def train(run, *more):
    command = ["./train_gpt2", "--layers", "1", "--heads", "1", "--channels", "16", "--seq-len", "32", "--batch", "2",
               "--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--val-every", str(VAL_EVERY), "--val-tokens", "500",
               "--sample-every", "250", "--sample-tokens", "8", "--lr", "1e-3", "--quiet", "--out", run, *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))


def steps_in(run):
    try:
        with open(run + "/log.jsonl") as log:
            return sum('"train_loss"' in line for line in log)
    except FileNotFoundError:
        return 0


def follow(to, run, *more, stderr=None):
    return subprocess.Popen([sys.executable, "scripts/follow_log.py", to, run, "--follow", *more], stdout=subprocess.DEVNULL, stderr=stderr,
                            env=dict(os.environ, WANDB_SILENT="true", WANDB_MODE="offline"))


def of_tensorboard(folder):
    """chart -> [(step, value)], as TensorBoard shows them"""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    charts = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return charts, [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors("sample")]


def records(path):
    """the records of a .wandb file: LevelDB's log, whose blocks of 32 KiB hold them whole or in parts, behind 7 bytes"""
    with open(path, "rb") as file:
        data = file.read()
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at:at + 7])
        parts += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def of_wandb(folder):
    from wandb.proto import wandb_internal_pb2
    charts = {}
    for path in glob.glob(f"{folder}/wandb/offline-run-*/*.wandb"):
        for data in records(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            step = row.pop("_step", record.history.step.num)
            for chart, value in row.items():
                charts.setdefault(chart, []).append((step, value))
    return charts


def compare(name, charts, log):
    for chart, field, expected in (("loss/train", "train_loss", STEPS), ("loss/validation", "val_loss", STEPS // VAL_EVERY)):
        rows = [(row["step"], row[field]) for row in log if field in row]
        found = charts.get(chart, [])
        check(f"{name}: the log has {expected} of {chart}", len(rows) == expected, len(rows))
        check(f"{name}: each step of {chart} once", [s for s, _ in found] == [s for s, _ in rows],
              (len(found), [s for s, _ in found][:5], sorted(s for s, _ in found if [t for t, _ in found].count(s) > 1)[:5]))
        check(f"{name}: its values", all(abs(a - b) <= 1e-6 * abs(b) for (_, a), (_, b) in zip(found, rows)))


def main():
    folder = tempfile.mkdtemp()
    run = folder + "/run"
    tensorboard, wandb = have("tensorboard"), have("wandb")
    if not (tensorboard or wandb):
        return
    if tensorboard:
        typo = follow("tensorboard", folder + "/typo", stderr=subprocess.PIPE)
        check("who waits for a run says so", b"waiting for" in typo.stderr.readline())
        typo.kill()
        check("a run that is not there is none", subprocess.run(typo.args[:4], capture_output=True).returncode == 1)
        check("and gets no folder", os.listdir(folder) == [], os.listdir(folder))
    first = train(run)
    followers = [follow("tensorboard", run)] if tensorboard else []
    followers += [follow("wandb", run, "--offline")] if wandb else []
    time.sleep(0.1)
    done = 0
    while first.poll() is None and not (done >= KILL_AT and 20 < done % SAVE_EVERY):  # steps behind a checkpoint
        first.send_signal(signal.SIGCONT)
        time.sleep(0.002)
        first.send_signal(signal.SIGSTOP)
        done = steps_in(run)
    check("killed in the middle", first.poll() is None and done < STEPS, done)
    first.send_signal(signal.SIGKILL)
    first.wait()
    time.sleep(6)  # until the followers have read them
    check("the run goes on", train(run, "--resume", "auto").wait() == 0)
    for follower in followers:
        check("a follower ends with the run", follower.wait(timeout=120) == 0, follower.args)
    with open(run + "/log.jsonl") as lines:
        log = [json.loads(line) for line in lines]
    if tensorboard:
        charts, samples = of_tensorboard(run + "/tensorboard")
        compare("tensorboard", charts, log)
        check("tensorboard: samples", [s for s, _ in samples] == sorted({r["step"] for r in log if r.get("event") == "sample"}),
              samples)
        again = subprocess.run([sys.executable, "scripts/follow_log.py", "tensorboard", run], stdout=subprocess.DEVNULL)
        check("tensorboard: a second call replaces the first", again.returncode == 0)
        compare("tensorboard, again", of_tensorboard(run + "/tensorboard")[0], log)
    if wandb:
        compare("wandb", of_wandb(run), log)
    shutil.rmtree(folder)


main()
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0)
