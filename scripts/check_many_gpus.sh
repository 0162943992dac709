#!/bin/bash
# One run on two GPUs: GPT-2 124M has the same bits as on one, and when it changes between them; a rank that is killed
# ends it; and how fast two GPUs are against each alone, for 124M and 1558M.
#   scripts/check_many_gpus.sh [FOLDER]     five minutes; FOLDER (default: runs/many) needs 10 GB
# Needs ./train_gpt2cu, NCCL and python3. Last line: N passed, N failed.
. "$(dirname "$0")/gpu_checks.sh" "${1:-runs/many}"

start() {  # name, options: a run in the background, whose output is in a file; its process is $pid
    local name=$1; shift
    ./train_gpt2cu --train-data "$work/train.bin" --val-data none --seq-len 1024 --sample-every 0 --quiet --warmup 10 \
        --lr 6e-4 --out "$work/$name" "$@" >"$work/$name.log" 2>&1 &
    pid=$!
}
until_step() {  # name, step, most seconds: whether the run gets there
    local end=$((SECONDS + $3))
    until grep -q "\"step\":$2," "$work/$1/log.jsonl" 2>/dev/null; do
        [ $SECONDS -lt $end ] && kill -0 "$pid" 2>/dev/null || { tail -5 "$work/$1.log"; return 1; }
        sleep 0.2
    done
}
# the ranks first, so that none has the time to save
kill_run() { kill -9 $(pgrep -P "$pid") "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; }
run() {  # name, most seconds, options
    local name=$1 end=$((SECONDS + $2)); shift 2
    start "$name" "$@"
    while kill -0 "$pid" 2>/dev/null; do
        [ $SECONDS -lt $end ] || { say "$name: too long"; kill_run; return 1; }
        sleep 0.2
    done
    wait "$pid" || { tail -5 "$work/$name.log"; return 1; }
}
same() {  # run, run: the models, and all losses and norms
    cmp "$work/$1/model.bin" "$work/$2/model.bin" && python3 - "$work/$1/log.jsonl" "$work/$2/log.jsonl" <<'PY'
import json, sys
read = lambda name: [(j["step"], j["train_loss"], j["grad_norm"]) for j in map(json.loads, open(name)) if "grad_norm" in j]
a, b = read(sys.argv[1]), read(sys.argv[2])
a, b = dict((x[0], x) for x in a), dict((x[0], x) for x in b)
sys.exit(0 if a and a == b else 1)
PY
}
pace() {  # run: tokens a second, the median of its steps but the first ten
    python3 - "$work/$1/log.jsonl" <<'PY'
import json, statistics, sys
rows = [j for j in map(json.loads, open(sys.argv[1])) if "grad_norm" in j]
print(f"{statistics.median(j['tokens_per_s'] for j in rows[10:]):.0f}")
PY
}

small=(--model d12 --batch 8 --reduce-groups 2 --total-batch 32768 --schedule constant)
steps=("${small[@]}" --steps 20)
run one 60 "${steps[@]}"; judge "124M, two groups on one GPU" $?
run two 60 "${steps[@]}" --gpus 2; judge "124M, two groups on two GPUs" $?
same one two; judge "the same bits on one and two GPUs" $?
for moved in "1 2" "2 1"; do
    set -- $moved
    run "moved$1" 60 "${small[@]}" --steps 10 --gpus "$1" --save-every 10
    judge "10 steps on $1" $?
    run "moved$1" 60 "${steps[@]}" --gpus "$2" --resume auto
    judge "and 10 on $2" $?
    cmp "$work/one/model.bin" "$work/moved$1/model.bin"; judge "the same bits as without the change" $?
done
PLUMB_OVERLAP=0 run inline 60 "${steps[@]}" --gpus 2 && same one inline; judge "the same bits without overlap" $?
for way in nccl host; do
    PLUMB_TRANSPORT=$way run $way 90 "${steps[@]}" --gpus 2 && same one $way; judge "the same bits by $way" $?
done
rm -rf "$work"/moved* "$work/host" "$work/nccl" "$work/inline"

start killed "${small[@]}" --steps 100000 --gpus 2 --comm-timeout 10 --save-every 20
until_step killed 30 60; judge "a run of two ranks" $?
begin=$SECONDS
kill -9 "$(pgrep -P "$pid" | tail -1)"
wait "$pid"; code=$?
[ "$code" -eq 6 ] && [ $((SECONDS - begin)) -le 30 ]
judge "a rank is killed: exit code $code (6) after $((SECONDS - begin)) s (30)" $?
rm -rf "$work/killed"

# Linear is what the two GPUs do when each trains alone, at the same time: they are not equally fast.
scaling() {  # name, steps, the least of linear, options
    local name=$1 steps=$2 least=$3 gpu way pids=; shift 3
    for gpu in 0 1; do
        CUDA_VISIBLE_DEVICES=$gpu start "${name}_alone$gpu" --steps 100000 "$@"
        pids="$pids $pid"
    done
    until_step "${name}_alone0" "$steps" 60 && until_step "${name}_alone1" "$steps" 60
    judge "$name on each GPU alone" $?
    kill -9 $pids; wait $pids 2>/dev/null
    for way in peer nccl; do
        PLUMB_TRANSPORT=$way start "${name}_$way" --steps 100000 "$@" --gpus 2
        until_step "${name}_$way" "$steps" 60; judge "$name on both by $way" $?
        kill_run
    done
    local one two peer nccl
    one=$(pace "${name}_alone0") two=$(pace "${name}_alone1") peer=$(pace "${name}_peer") nccl=$(pace "${name}_nccl")
    say "$name: $one and $two tokens a second alone; together $peer by peer, $nccl by nccl"
    say "$name of linear: $(python3 -c "print(f'peer {$peer / ($one + $two):.4f}, nccl {$nccl / ($one + $two):.4f}')")"
    python3 -c "import sys; sys.exit(0 if $peer >= $least * ($one + $two) else 1)"
    judge "$name: $least of linear by peer" $?
    rm -rf "$work/${name}"_{alone0,alone1,peer,nccl}
}
scaling 124M 60 0.97 --model d12 --batch 64
scaling 1558M 25 0.96 --model d48 --batch 8
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
