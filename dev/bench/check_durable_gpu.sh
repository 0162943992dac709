#!/bin/bash
# What a fault may not lose, on a GPU: GPT-2 124M goes on from five points and after ten kills to the same bits, the
# 1558M saves and leaves within 30 seconds of SIGTERM (or 1.3 x what the disk takes), and what saving costs.
#   dev/bench/check_durable_gpu.sh [FOLDER]     some minutes; FOLDER (default: runs) needs 45 GB, in its folder durable,
#                                             which is removed before and after
# Needs ./train_gpt2cu and python3. Last line: N passed, N failed.
set -u
case "${1-}" in
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "check_durable_gpu: $1: not an option; --help says what is" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.." || exit 1
work="${1:-runs}/durable"
passed=0 failed=0
rm -rf "$work" && mkdir -p "$work" || exit 1

say() { echo "[$SECONDS s] $*"; }
judge() {  # what, 0 = right
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); say "PASS $1"; else failed=$((failed + 1)); say "FAIL $1"; fi
}

# 16 M tokens of GPT-2's vocabulary, drawn like words are: rank r about 1 / r
python3 - "$work/train.bin" <<'PY'
import random, struct, sys
random.seed(1)
words = [min(50255, int(50256 ** random.random()) - 1) for _ in range(1 << 20)]
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, 16 << 20, *[0] * 253))
    for k in range(16):
        f.write(struct.pack(f"<{1 << 20}H", *(words[k * 9973:] + words[:k * 9973])))
PY

common=(./train_gpt2cu --train-data "$work/train.bin" --val-data none --seq-len 1024 --sample-every 0 --quiet
    --warmup 10 --lr 6e-4)
small=("${common[@]}" --model d12 --batch 16)
large=("${common[@]}" --model d48 --batch 4 --steps 100000)
small() { local run=$1; shift; timeout 150 "${small[@]}" --out "$work/$run" "$@"; }
same() {  # run, run, step: all that a checkpoint holds of a model, and the model
    cmp -s "$work/$1/model.bin" "$work/$2/model.bin" &&
        cmp -s "$work/$1/$3/model.safetensors" "$work/$2/$3/model.safetensors" &&
        cmp -s "$work/$1/$3/optimizer.safetensors" "$work/$2/$3/optimizer.safetensors"
}
now() { date +%s.%N; }
since() { awk "BEGIN { printf \"%.2f\", $(now) - $1 }"; }

say "124M: 60 steps, and on from each of five points"
small whole --steps 60 --save-every 10 >"$work/whole.log" 2>&1
judge "the undisturbed run" $?
grep -e '^memory' -e '^disk' -e '^saving' -e '^device' "$work/whole.log"
for step in 10 20 30 40 50; do
    small "from$step" --steps 60 --resume "$work/whole/step_000000$step" >"$work/from.log" 2>&1 &&
        same whole "from$step" step_00000060
    judge "from step $step: the same bits at step 60" $?
    rm -rf "${work:?}/from$step"
done
python3 - "$work/whole/step_00000060" <<'PY'
import sys
from transformers import AutoModelForCausalLM
model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
assert sum(p.numel() for p in model.parameters()) == 124439808, model
PY
judge "transformers loads the checkpoint" $?
rm -rf "${work:?}/whole"/step_000000[1-5]0

say "124M: what saving costs, eight checkpoints in 160 steps"
for mode in none sync async; do
    every=20
    if [ $mode = none ]; then every=0; fi
    begin=$(now)
    small cost --steps 160 --save-every $every --keep 1 --save-mode ${mode/none/sync} >"$work/cost.log" 2>&1
    judge "saving $mode: $(since "$begin") s in all, $(tail -1 "$work/cost.log")" $?
    rm -rf "${work:?}/cost"
done

say "124M: killed at ten random moments"
small whole200 --steps 200 --save-every 200 >"$work/whole200.log" 2>&1
RANDOM=7 kills=0
while [ $kills -lt 10 ]; do
    "${small[@]}" --out "$work/killed" --steps 200 --save-every 10 --keep 2 --resume auto >"$work/killed.log" 2>&1 &
    pid=$!
    # the first one is given time for a checkpoint: a log with steps and no checkpoint is not written over
    while [ ! -e "$work/killed/step_00000010" ] && [ $kills -eq 0 ] && kill -0 $pid 2>/dev/null; do sleep 0.1; done
    sleep "$((1 + RANDOM % 7)).$((RANDOM % 10))"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    kills=$((kills + 1))
done
small killed --steps 200 --save-every 10 --keep 2 --resume auto >"$work/killed.log" 2>&1
same whole200 killed step_00000200
judge "after $kills kills: the same bits at step 200" $?
rm -rf "${work:?}/killed" "${work:?}/whole200" "${work:?}/whole"

say "1558M: SIGTERM"
begin=$(now)
dd if=/dev/zero of="$work/zeros" bs=16M count=256 conv=fsync 2>/dev/null
rate=$(awk "BEGIN { printf \"%.0f\", 256 * 16 * 1048576 / $(since "$begin") }")
rm -f "$work/zeros"
"${large[@]}" --out "$work/large" >"$work/large.log" 2>&1 &
pid=$!
for _ in $(seq 900); do
    if grep -q '"step":3,' "$work/large/log.jsonl" 2>/dev/null || ! kill -0 $pid 2>/dev/null; then break; fi
    sleep 0.1
done
begin=$(now)
kill -TERM $pid
wait $pid
status=$?
took=$(since "$begin")
bytes=$(du -cb "$work/large"/step_*/* 2>/dev/null | tail -1 | cut -f1)
allowed=$(awk "BEGIN { t = 1.3 * $bytes / $rate; printf \"%.1f\", (t > 30 ? t : 30) }")
awk "BEGIN { exit !($status == 75 && $took <= $allowed) }"
judge "exit $status $took s after SIGTERM, $allowed s allowed; $bytes bytes, the disk takes $rate a second" $?
grep -e '^memory' -e '^disk' -e '^saving' -e saved -e stopped "$work/large.log"
timeout 150 "${large[@]}" --out "$work/large" --resume auto --dry-run >"$work/dry.log" 2>&1 &&
    grep '^weights' "$work/dry.log" | grep -q step_
judge "it can go on: $(grep '^weights' "$work/dry.log")" $?
rm -rf "${work:?}"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
