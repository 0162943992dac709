#!/bin/bash
# compute-sanitizer's tools over ./train_gpt2cu: two steps of small models, of even and odd sizes, each type
# and each kind of recomputation; validation and a sample after each step. On data/sample. And over LayerNorm's
# shootouts: a shape for each kernel that ships.
#   dev/test/sanitize.sh                                 after make; up to 5 minutes on an H200
#   dev/test/sanitize.sh layernorm "racecheck, bf16"     runs whose "tool, name" contains one of these
# A line for each run; logs in build/sanitize. Last line: N passed, N failed, N skipped; exit 1 if a run
# reports an error or a hazard, or does not finish. Without compute-sanitizer or a GPU all are skipped.
# JOBS: runs at once, half as many as there are processors unless set.
set -u
cd "$(dirname "$0")/../.." || exit
PATH=$PATH:/usr/local/cuda/bin  # where the CUDA Toolkit has compute-sanitizer, if not on the path
logs=build/sanitize
jobs=${JOBS:-$((($(nproc) + 1) / 2))}
limit=300  # seconds of a run
every="memcheck racecheck synccheck"

train=(./train_gpt2cu --train-data data/sample/train.bin --val-data data/sample/val.bin --layers 2 --heads 2 --batch 2
       --steps 2 --val-tokens 512 --val-every 1 --sample-tokens 4 --sample-every 1 --quiet)

# initcheck does not see what cuBLASLt's bf16 products write by bulk stores, which they do where all sizes
# fill whole 16-byte vectors: it reports every kernel that reads such a result. fp32 products, and bf16 ones of 66 channels, store in the ordinary way.
models=(  # name: tools: options
    "bf16 64 channels T=100: $every: --dtype bf16 --channels 64 --seq-len 100"
    "fp32 64 channels T=100: $every initcheck: --dtype fp32 --channels 64 --seq-len 100"
    "bf16 66 channels T=70, 2 micro-batches, recompute block: $every initcheck:
        --dtype bf16 --channels 66 --seq-len 70 --total-batch 280 --recompute block"
    "bf16 gradients 160 channels T=130, recompute gelu: $every:
        --dtype bf16 --grad-dtype bf16 --channels 160 --seq-len 130 --recompute gelu"
    # heads of 64: Hopper's attention. racecheck and initcheck do not understand its tensor maps and products; its repeats
    # in test_attention.cpp look for races
    "bf16 128 channels T=200: memcheck: --dtype bf16 --channels 128 --seq-len 200"
)

# Of a kernel with a ring enough rows that some rings go round, of the others a few. Forward: row_in_registers (a warp,
# a block, clusters), short_rows (single elements, pieces), unaligned_rows (some lanes, blocks, clusters), fallback;
# backward: team_ring (a block, clusters), unaligned_rows, short_rows, fallback.
declare -A shapes=(
    # of 7 clusters none share a multiprocessor: where blocks of clusters of 16 do, synccheck reports what is right
    [forward]="35x256,19x4096,5x16384,5x20480,5x40000,7x70000,7x140000,7x190000,35x33,35x50,35x131,35x769,5x8191,3x20001,3x299007"
    [backward]="1500x64,600x768,3x4096,3x20480,50x90000,24x150004,24x190000,600x769,300x15001,3x262144,131x65,131x100,3x131073"
    # it is slow; and it reports what is right where teams of a block have unequal numbers of rows (on 132 multiprocessors all teams of
    # 3168x768 have 6, of 5280x769 8 in fp32 and 5 in bf16), where clusters refill a ring, or one lane arrives for its warp:
    # 40x20480 is too few rows for that
    ["racecheck backward"]="1500x64,35x4096,3168x768,5280x769,40x20480,14x90000,7x150004,7x190000,40x15001,3x262144,131x65,131x100,3x131073"
)

# what is missing, or nothing
missing() {
    if ! command -v compute-sanitizer >/dev/null; then
        echo "no compute-sanitizer (part of the CUDA Toolkit)"
    elif ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        echo "no CUDA device"
    fi
}

# one tool over one command; prints the verdict. Every tool ends with a summary, racecheck with one of its own.
sanitize() {  # tool log command...
    local tool=$1 log=$2 status=0 verdict
    shift 2
    # with a policy chosen, the program does not start itself again (llmc/host/base/resources.h)
    OMP_WAIT_POLICY=passive timeout -k 10 $limit compute-sanitizer --tool "$tool" "$@" >"$log" 2>&1 || status=$?
    case $status in 124 | 137) echo "no end after $limit s"; return 1 ;; esac
    verdict=$(sed -n 's/^=* *\([A-Z]* SUMMARY: .*\)/\1/p' "$log" | tail -1)
    if [ $status -ne 0 ]; then echo "exit status $status, ${verdict:-no summary}"; return 1; fi
    echo "${verdict:-no summary}"
    case $verdict in
        "ERROR SUMMARY: 0 errors" | "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)") ;;
        *) return 1 ;;
    esac
}

names=("$@")
wanted() {  # "tool, name": does it contain one of the arguments?
    local name
    if [ ${#names[@]} -eq 0 ]; then return 0; fi
    for name in "${names[@]}"; do
        case $1 in *"$name"*) return 0 ;; esac
    done
    return 1
}

count=0
run() {  # tool name command...: in the background; the result is a line in its own file
    local tool=$1 name=$2 stem begin verdict outcome
    shift 2
    if ! wanted "$tool, $name"; then return; fi
    count=$((count + 1))
    stem=$logs/$(printf %02d $count)-$tool-${name//[^a-zA-Z0-9=]/_}
    if [ -n "$reason" ]; then
        echo "sanitize $tool, $name: skipped, $reason" >"$stem.result"
        return
    fi
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    (
        begin=$SECONDS
        if verdict=$(sanitize "$tool" "$stem.log" "$@"); then outcome=passed; else outcome=FAILED; fi
        echo "sanitize $tool, $name: $outcome, $verdict ($((SECONDS - begin)) s, $stem.log)" >"$stem.result"
    ) &
}

reason=$(missing)
for program in train_gpt2cu dev/cuda/{,residual_}layernorm_forward dev/cuda/layernorm_backward; do
    if [ -z "$reason" ] && [ ! -x "./$program" ]; then
        echo "sanitize: no ./$program: run make first" >&2
        exit 2
    fi
done
rm -rf $logs
mkdir -p $logs
for tool in racecheck memcheck synccheck initcheck; do  # the slowest first
    for op in layernorm_forward residual_layernorm_forward layernorm_backward; do
        of="$tool ${op##*_}"
        if [ -z "${shapes[$of]:-}" ]; then of=${op##*_}; fi
        run $tool "$op" ./dev/cuda/$op ship --check --for-sanitizer --dtype fp32,bf16 --shape "${shapes[$of]}"
    done
done
for model in "${models[@]}"; do
    IFS=: read -r -d '' name tools options <<<"$model"
    read -r -d '' -a options <<<"$options"
    for tool in $tools; do
        run "$tool" "$name" "${train[@]}" --out "$logs/out-$tool-${name%% *}-$count" "${options[@]}"
    done
done
wait
if [ $count -eq 0 ]; then
    echo "sanitize: no run has such a name: $*" >&2
    exit 2
fi
rm -rf $logs/out-*
cat $logs/*.result
passed=$(grep -l ': passed, ' $logs/*.result | wc -l) failed=$(grep -l ': FAILED, ' $logs/*.result | wc -l)
echo "$passed passed, $failed failed, $((count - passed - failed)) skipped"
[ "$failed" -eq 0 ]
