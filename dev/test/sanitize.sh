#!/bin/bash
# compute-sanitizer's tools over ./train_gpt2cu: two steps of small models, of even and odd sizes, each type
# and each kind of recomputation; validation and a sample after each step. On data/sample.
#   dev/test/sanitize.sh    after make; about 3 minutes on an H200
# A line for each run; logs in build/sanitize. Last line: N passed, N failed, N skipped; exit 1 if a run
# reports an error or a hazard, or does not finish. Without compute-sanitizer or a GPU all are skipped.
set -u
cd "$(dirname "$0")/../.." || exit
PATH=$PATH:/usr/local/cuda/bin  # where the CUDA Toolkit has compute-sanitizer, if not on the path
logs=build/sanitize
passed=0 failed=0 skipped=0

common=(--train-data data/sample/train.bin --val-data data/sample/val.bin --layers 2 --heads 2 --batch 2
        --steps 2 --val-tokens 512 --val-every 1 --sample-tokens 4 --sample-every 1 --quiet)

# initcheck does not see what cuBLASLt's bf16 products write by bulk stores, which they do where all sizes
# fill whole 16-byte vectors: it reports every kernel that reads such a result (initcheck_bulk_store.cu proves
# it). fp32 products, and bf16 ones of 66 channels, store in the ordinary way.
every="memcheck racecheck synccheck"
models=(  # name: tools: options
    "bf16 64 channels T=100: $every: --dtype bf16 --channels 64 --seq-len 100"
    "fp32 64 channels T=100: $every initcheck: --dtype fp32 --channels 64 --seq-len 100"
    "bf16 66 channels T=70, 2 micro-batches, recompute block: $every initcheck:
        --dtype bf16 --channels 66 --seq-len 70 --total-batch 280 --recompute block"
    "bf16 gradients 160 channels T=130, recompute gelu: $every:
        --dtype bf16 --grad-dtype bf16 --channels 160 --seq-len 130 --recompute gelu"
)

# what is missing, or nothing
missing() {
    if ! command -v compute-sanitizer >/dev/null; then
        echo "no compute-sanitizer (part of the CUDA Toolkit)"
    elif ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        echo "no CUDA device"
    fi
}

# one tool over one model; sets `verdict`. Every tool ends with a summary, racecheck with one of its own.
sanitize() {  # tool log options...
    local tool=$1 log=$2 status=0
    shift 2
    rm -rf "$logs/out"
    # with a policy chosen, the program does not start itself again (llmc/threads.h)
    OMP_WAIT_POLICY=passive timeout -k 10 120 compute-sanitizer --tool "$tool" ./train_gpt2cu "${common[@]}" \
        --out "$logs/out" "$@" >"$log" 2>&1 || status=$?
    case $status in 124 | 137) verdict="no end after 120 s"; return 1 ;; esac
    verdict=$(sed -n 's/^=* *\([A-Z]* SUMMARY: .*\)/\1/p' "$log" | tail -1)
    if [ $status -ne 0 ]; then verdict="exit status $status, ${verdict:-no summary}"; return 1; fi
    case $verdict in
        "ERROR SUMMARY: 0 errors" | "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)") ;;
        *) verdict=${verdict:-no summary}; return 1 ;;
    esac
}

reason=$(missing)
if [ -z "$reason" ] && [ ! -x ./train_gpt2cu ]; then
    echo "sanitize: no ./train_gpt2cu: run make first" >&2
    exit 2
fi
mkdir -p $logs
trap 'rm -rf "$logs/out"' EXIT
for model in "${models[@]}"; do
    IFS=: read -r -d '' name tools options <<<"$model"
    read -r -d '' -a options <<<"$options"
    for tool in $tools; do
        log="$logs/$tool-${name//[^a-zA-Z0-9=]/_}.log"
        begin=$SECONDS
        if [ -n "$reason" ]; then
            echo "sanitize $tool, $name: skipped, $reason"
            skipped=$((skipped + 1))
        elif sanitize "$tool" "$log" "${options[@]}"; then
            echo "sanitize $tool, $name: passed, $verdict ($((SECONDS - begin)) s)"
            passed=$((passed + 1))
        else
            echo "sanitize $tool, $name: FAILED, $verdict ($((SECONDS - begin)) s, log: $log)"
            failed=$((failed + 1))
        fi
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
