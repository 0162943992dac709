#!/bin/bash
# Runs every check of `make test` on what is built, and adds their counts up.
#   dev/test/run.sh          everything       dev/test/run.sh quick    the unit tests alone
# Stages that need a GPU are skipped without one. What failed is said again at the end. Last line: N passed, N failed,
# N skipped.
set -u
cd "$(dirname "$0")/../.."
logs=build/test-logs
mkdir -p $logs
failures=$logs/failures
passed=0 failed=0 skipped=0
: >$failures

add() {  # passed failed skipped
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# the test, its first errors and the values in them; or how the log ends
what_failed() {  # name status
    echo "$1 (exit status $2, log $logs/$1.log):"
    awk '/^TEST CASE:/ { name = $0; sub(/^TEST CASE: */, "", name) }
         /ERROR:|NOT CAUGHT|^FAILED/ { if (++errors > 4) { exit }; if (name) { print name; name = "" } lines = 3 }
         lines-- > 0' "$logs/$1.log" | cut -c 1-300 | grep . || tail -5 "$logs/$1.log"
}

# runs a command; its last line that reads "N passed, N failed, N skipped" counts. One that ends otherwise is a failure.
stage() {  # name command...
    local name=$1 begin=$SECONDS line status
    shift
    echo "== $name: $*"
    "$@" >"$logs/$name.log" 2>&1
    status=$?
    line=$(sed -n 's/^\[doctest\] test cases: *[0-9]* *| *\([0-9]* passed\) *| *\([0-9]* failed\) *| *\([0-9]* skipped\).*/\1, \2, \3/p
                   /^[0-9]* passed, [0-9]* failed, [0-9]* skipped$/p' "$logs/$name.log" | tail -1)
    # shellcheck disable=SC2046
    if [ -n "$line" ]; then add $(echo "$line" | tr -dc '0-9 ' | tr -s ' '); fi
    if [ $status -ne 0 ] || [ -z "$line" ]; then
        grep -h -A 12 -e 'ERROR:' -e 'NOT CAUGHT' "$logs/$name.log" | head -60
        tail -20 "$logs/$name.log"
        case $line in *" 0 failed"* | "") echo "$name: exit status $status"; add 0 1 0 ;; esac
        what_failed "$name" $status >>$failures
    fi
    echo "   ${line:-no counts} ($((SECONDS - begin)) s, log $logs/$name.log)"
}

# Runs a command for each line of input, which stands for {} in it, some at a time for each processor. Last line: the sum
# of what they counted.
side_by_side() (  # number command...
    processes=$(($1 * $(nproc)))
    shift
    set -o pipefail
    export OMP_WAIT_POLICY=passive  # who waits leaves its processor to the others
    xargs -d '\n' -P $processes -I{} sh -c 'found=$("$@" 2>&1); status=$?; echo "$found"; exit $status' sh "$@" |
        awk '{ print }
             /^\[doctest\] test cases:/ { passed += $6; failed += $9 + ($4 == 0) }  # a name that stands for no test fails
             /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { passed += $1; failed += $3; skipped += $5 }
             END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || !(passed + skipped) }'
)
# Each file's tests are a process. Most of them start others and wait: two for each processor. The longest comes first.
unit() {  # program [which of the files: a condition in awk]
    grep -l '^TEST_CASE' dev/test/host/test_many_faults.cpp dev/test/{host,ops,model,support}/*.cpp |
        awk -v turn=$turn -v whole="${WHOLE:-$gpu}" '!seen[$0]++ && ('"${2:-1}"') { print }' | side_by_side 2 "$1" '--source-file=*{}'
}
# each test case a process, of one thread: not set for side_by_side, whose nproc would say 1; a comma would end the case's name
emulated() {
    ./test_emulated --list-test-cases | sed '/^\[doctest\]/d; /^=/d; s/,/?/g' |
        side_by_side 1 env OMP_NUM_THREADS=1 ./test_emulated --test-case={}
}
# In shares; those that need a GPU one after the other: some measure what is free of its memory. Without one a twentieth of
# the faults; `make faults` plants all.
planted() {
    local shares of=1 part=0
    shares=$((8 * $(nproc)))  # small ones, as some faults take long
    if [ $gpu = 1 ]; then
        shares=1
    else
        of=20 part=$((turn + 10 * half))
    fi
    seq $((part * shares + 1)) $((part * shares + shares)) | side_by_side 1 env PLANTED_HOME=build/planted-{} \
        dev/test/planted.sh --share "{}/$((of * shares))"
}

# of what is tried a part of: another part with another commit
commit=$((16#$(git rev-parse --short=8 HEAD 2>/dev/null || echo 0)))
turn=$((commit % 10)) half=$((commit / 10 % 2)) gpu=0
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then gpu=1; fi
san=build/sanitized
# what later stages need is compiled while earlier ones wait; -j: else one at a time, as in every recipe without a +
build() { nice -n 19 make -j"$(nproc)" --no-print-directory -s "$@"; }
build_sanitized() {
    build SANITIZE=1 BUILD=$san OUT=$san/ PLAIN_BUILD=build $san/{test_gpt2,train_gpt2} \
        $san/data/make_{shards,corpus,hellaswag}
}

if [ "${1:-}" != quick ]; then build_sanitized >$logs/sanitized-build.log 2>&1 & fi
stage unit unit ./test_gpt2
if [ "${1:-}" != quick ]; then
    stage durable ./test_durable --seed $((turn + 1))
    if [ $failed -eq 0 ]; then export PLANTED_PASSED="./test_gpt2 ./test_durable"; fi
    if command -v python3 >/dev/null; then
        stage tables dev/bench/tables.py --check
        stage ratchet dev/test/ratchet.py
        stage report dev/test/report_page.py
        stage log_followers dev/test/log_followers.py
    else
        echo "== dev/bench/tables.py, dev/test/ratchet.py, report_page.py, log_followers.py: no python3, skipped"
        add 0 0 4
    fi
    if wait $!; then
        if command -v clang++ >/dev/null; then build build/fuzz/fuzz >$logs/fuzz-build.log 2>&1 & fi
        # a test takes four times as long: half of the files, unless WHOLE=1; no bounds and texts, which read no user's input
        PLUMB_BIN_DIR=$san ASAN_OPTIONS=detect_leaks=1:malloc_context_size=5 stage sanitized unit $san/test_gpt2 \
            '(whole || (NR + turn) % 2) && !/test_bounds|test_house/'
    else
        tail -20 $logs/sanitized-build.log
        echo "the sanitized build failed (log $logs/sanitized-build.log)" | tee -a $failures
        add 0 1 0
    fi
    wait
    stage fuzz dev/test/fuzz/run.sh 3
    if [ -x test_gpt2cu ]; then
        stage gpu ./test_gpt2cu
        stage sanitizer dev/test/sanitize.sh
    else
        echo "== test_gpt2cu: not built (no nvcc), skipped"
        add 0 0 1
    fi
    if [ -x test_emulated ]; then
        stage emulated emulated
        GRADE_TURN=$turn stage exercises make --no-print-directory -s exercises-proof PART=8
    else
        echo "== test_emulated, exercises: not built (no nvcc), skipped"
        add 0 0 2
    fi
    stage planted planted
    stage c_abi dev/test/c_abi/run.sh
    stage package python/test/package.sh
    for shootout in dev/cuda/{,residual_}layernorm_forward dev/cuda/layernorm_{backward,fp8,modulate} \
            dev/cuda/attention_{forward,backward}; do
        if [ -x $shootout ]; then
            stage "$(basename $shootout)" $shootout --check
        else
            echo "== $shootout: not built (no nvcc), skipped"
            add 0 0 1
        fi
    done
fi
if [ -s $failures ]; then sed '1i== what failed' $failures; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
