#!/bin/bash
# Fuzzing of every reader, under address and undefined-behaviour sanitizers, with clang's libFuzzer.
#   dev/test/fuzz/run.sh                    each for 10 seconds
#   dev/test/fuzz/run.sh 600 model shard    these, for ten minutes each
# Inputs that reached something new are kept in build/fuzz/corpus/READER, those that found something in build/fuzz/found.
# Last line: N passed, N failed, N skipped. Without clang it is skipped.
set -u
cd "$(dirname "$0")/../../.." || exit 1
seconds=${1:-10}
shift || true
if ! command -v clang++ >/dev/null || ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
        clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null; then
    echo "no clang++ with libFuzzer (Debian: apt-get install clang): skipped"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
if ! make --no-print-directory -s build/fuzz/fuzz >build/fuzz.log 2>&1; then
    tail -20 build/fuzz.log
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
fuzz=build/fuzz/fuzz
if [ $# -eq 0 ]; then mapfile -t readers < <($fuzz); else readers=("$@"); fi
mkdir -p build/fuzz/found
# more inputs a second: freed memory is not kept for long, nor where it was taken
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=4:thread_local_quarantine_size_kb=64:malloc_context_size=0}

one() {  # reader
    local corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log
    mkdir -p "$corpus"
    FUZZ_READER=$1 FUZZ_SEEDS=$corpus $fuzz -max_total_time="$seconds" -timeout=10 -max_len=300000 -rss_limit_mb=1024 \
        -entropic=0 -artifact_prefix=build/fuzz/found/"$1"- -print_final_stats=1 "$corpus" >"$log" 2>&1
    local status=$?
    echo "$1: $(sed -n 's/stat::number_of_executed_units: *//p' "$log") inputs, exit status $status"
    if [ $status -ne 0 ]; then grep -v '^#' "$log" | tail -30; fi
    return $status
}
export -f one
export fuzz seconds
printf '%s\n' "${readers[@]}" | xargs -P "$(nproc)" -I{} bash -c 'one {} && echo PASSED || echo FAILED' >build/fuzz/result
grep -v -e '^PASSED$' -e '^FAILED$' build/fuzz/result
failed=$(grep -c '^FAILED$' build/fuzz/result)
echo "$((${#readers[@]} - failed)) passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
