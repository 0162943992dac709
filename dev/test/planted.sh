#!/bin/bash
# The tests of the tests: each fault of dev/test/*/faults*.txt is planted in a copy of the tree, which the tests that
# passed without it must reject, naming what is wrong. dev/test/faults.pl describes the tables.
#   dev/test/planted.sh                   all of them
#   dev/test/planted.sh layernorm gpu-    those whose names contain one of these
#   dev/test/planted.sh --emulated gpu-layernorm_      those in kernels that the emulator has, on the CPU
#   dev/test/planted.sh --share 2/3       every third of them, from the second on
# gpu-* faults are skipped without a CUDA device, cpu-package-* faults (of python/) without PyTorch and pytest, cpu-rung-*
# faults (of a ladder, on the CPU) without test_emulated, if their lines are still in the sources.
# Last line: N passed, N failed, N skipped; exit 1 if any failed.
# PLANTED_HOME: the folder for the copy and the logs, build/planted unless set; not among the sources. Several can run side
# by side, each with a folder of its own, once everything is built (make), as they share the programs without a fault.
# PLANTED_PASSED: programs that have just passed whole, "./test_gpt2 ./test_durable": their tests without a fault are not
# run again.
set -eu
cd "$(dirname "$0")/../.."
unset MAKEFLAGS MAKELEVEL MFLAGS  # a surrounding make's -j and BUILD= are not for the copies
jobs=$(nproc)
home=${PLANTED_HOME:-build/planted}
copy=$home/tree
log=$home/log
passed=0 failed=0 skipped=0
declare -A sound=()  # commands that are known to succeed without a fault
settings=()          # of make, for the fault at hand
fewer=()             # and, with its fault, for fewer test files
limit=600            # seconds of a run
objects=             # and what is built with them, patterns
also=()              # other programs to make, which the tests start

trap 'rm -rf "$copy"' EXIT
mkdir -p "$home"

faults=dev/test/faults.pl

# the sources: what git knows and what it does not ignore; without git, every file that is not built or large
sources() {
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files -z -co --exclude-standard
    else
        find . -path ./build -prune -o -type f -size -2048k -print0
    fi
}

# a fresh copy of the tree with its objects (*.o; *.cu.o of device code) and what they depend on (*.d), so
# that only what the fault touches is compiled again
make_copy() {
    local built
    rm -rf "$copy"
    mkdir -p "$copy"
    sources | while IFS= read -r -d '' file; do
        if [ -e "$file" ]; then printf '%s\0' "$file"; fi
    done | xargs -0 cp -a --parents -t "$copy"
    for built in build/deps.mk build/compiler build/arch build/{std,plain}.h $objects; do
        if [ -e "$built" ]; then cp -a --parents -t "$copy" "$built"; fi
    done
}

# does this program pass as it is? Answered once for each command line.
passes_without() {
    local command="$*"
    if [ $# -eq 2 ] && [[ " ${PLANTED_PASSED:-} " == *" $1 "* && $2 == --test-case=* ]]; then return 0; fi
    if [ -z "${sound[$command]:-}" ]; then
        if timeout $limit "$@" >"$log" 2>&1; then sound[$command]=yes; else sound[$command]=no; fi
    fi
    [ "${sound[$command]}" = yes ]
}

not_caught() { verdict="NOT CAUGHT: $*"; return 1; }

# did the copy's program fail, and print all that the fault's block expects? Sets `verdict`.
judge() {  # fault command...
    local fault=$1 expect status=0 shown=
    shift
    (cd "$copy" && timeout $limit "$@") >"$log" 2>&1 || status=$?
    case $status in
        0) not_caught "the tests pass"; return ;;
        124) not_caught "no end after $limit s"; return ;;
    esac
    while IFS= read -r expect; do
        grep -q -e "$expect" "$log" || { not_caught "exit status $status, but nothing printed matches '$expect'"; return; }
        shown="${shown:+$shown; }$(grep -o -m 1 -e "$expect" "$log" | head -1 | tr -s ' ')"
    done < <($faults get "$fault" expect)
    verdict="caught ($shown)"
}

# here, or in the copy: by make, or the package of python/, which is built here once
build() {  # folder target make's other words...
    if [ "$2" = package ]; then
        [ "$1$package_is_built" != .yes ] || return 0
        (cd "$1" && timeout $limit python3 python/plumb_build.py build/test/host --host) >"$log" 2>&1 && package_is_built=yes
        return
    fi
    rm -f "$copy/$2"
    make -C "$1" --no-print-directory -s -j"$jobs" "${settings[@]}" "${@:2}" "${also[@]}" >"$log" 2>&1
}

# plants one fault; sets `verdict`
plant() {  # fault, the program to make, how to run it...
    local fault=$1 target=$2
    shift 2
    build . "$target" || { not_caught "$target does not build without the fault"; return; }
    passes_without "$@" || { not_caught "$* fails without the fault"; return; }
    make_copy
    $faults plant "$fault" "$copy" >"$log" 2>&1 || { not_caught "$(<"$log")"; return; }
    # -Og: half the time to compile, which is most of it; -o: no test reads the sample corpus
    build "$copy" "$target" -o data/sample/val.json OPTIMIZE=-Og PRECOMPILED="$PWD/build/plain.h" "${fewer[@]}" ||
        { not_caught "$target does not build with it"; return; }
    judge "$fault" "$@"
}

plant_cpu() {  # fault, options of the tests...
    local fault=$1 names files
    shift
    # only the files with tests of that name are compiled; all, if none shows it
    names=$(sed 's/.*--test-case=//; s/[*]/[^"]*/g; s/[?]/./g; s/,/|/g' <<<"$*")
    files=$(grep -lzE "TEST_CASE[A-Z_]*\(([A-Za-z]+,)?[[:space:]]*\"($names)" dev/test/{host,ops,model,support}/*.cpp || true)  # -z: a name may be on the next line
    if [ -n "$files" ]; then fewer=("TEST_SOURCES=${files//$'\n'/ }"); fi
    read -ra also < <($faults get "$fault" program) || true
    if [ ${#also[@]} -gt 0 ]; then objects="$objects build/train_gpt2.* build/data"; fi
    case " ${also[*]} " in
        *" test_durable "*) plant "$fault" test_durable ./test_durable "$@" ;;
        *) plant "$fault" test_gpt2 ./test_gpt2 "$@" ;;
    esac
}

plant_emulated() {  # fault, options of the tests...
    local fault=$1
    shift
    objects="build/llmc build/dev build/emulated"
    plant "$fault" test_emulated ./test_emulated "$@"
}

plant_rung() {  # fault, the rung, other options of the shootout: on the CPU, in a program of that rung alone
    local fault=$1 program
    program=build/emulated/$($faults get "$fault" program)
    shift
    objects="build/llmc build/dev/emulate build/only build/emulated" settings=("ONLY=$1")
    plant "$fault" "$program" "$program" --check "$@"
}

plant_gpu() {  # fault, options of the program...
    local fault=$1 program
    shift
    program=$($faults get "$fault" program)
    case $($faults get "$fault" arch) in
        sm_80)
            settings=(BUILD=build/sm_80 OUT=build/sm_80/ "GENCODE=-gencode arch=compute_80,code=sm_90")
            objects=build/sm_80
            program=build/sm_80/$program
            ;;
    esac
    case $program in
        *test_gpt2cu) plant "$fault" "$program" "./$program" "$@" ;;
        *) plant "$fault" "$program" "$program" --check "$@" ;;
    esac
}

plant_package() {  # fault, options of pytest...
    plant "$1" package env PYTHONPATH=build/test/host PLUMB_TEST_DEVICE=cpu python3 -m pytest -q -p no:cacheprovider "${@:2}"
}

skip() {  # fault: nothing can run it; are its lines still in the sources?
    $faults check "$1" >"$log" 2>&1 || { not_caught "$(<"$log")"; return; }
    verdict="skipped, no $lacks"
}

wanted() {  # name: does it contain one of the arguments?
    local name=$1 part
    shift
    for part in "${@:-}"; do
        case $name in *"$part"*) return 0 ;; esac
    done
    return 1
}

share=1 shares=1 turn=0 emulated=no
while [ $# -gt 0 ]; do
    case $1 in
        --emulated) emulated=yes limit=3600 ;;
        --share)
            if [[ ! ${2:-} =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ ]] || ((BASH_REMATCH[1] > BASH_REMATCH[2])); then
                echo "planted: --share is followed by I/N, 1 <= I <= N, such as 2/3, not by '${2:-}'" >&2
                exit 2
            fi
            share=${BASH_REMATCH[1]} shares=${BASH_REMATCH[2]}
            shift
            ;;
        --*) echo "planted: no option $1; there are --share I/N and --emulated, then parts of names" >&2; exit 2 ;;
        *) break ;;
    esac
    shift
done

has_device() { nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }
has_pytorch() { python3 -c 'import pytest, torch' 2>/dev/null; }
package_is_built=no

names=$($faults names)
for name in $names; do
    wanted "$name" "$@" || continue
    turn=$((turn % shares + 1))
    if [ $turn -ne "$share" ]; then continue; fi
    : >"$log"
    options=() settings=() fewer=() also=()
    objects="build/llmc build/typed build/dev/test"
    read -ra options < <($faults get "$name" run) || true
    case $name in
        gpu-*) kind=plant_gpu ;;
        cpu-package-*) kind=plant_package objects= ;;
        cpu-rung-*) kind=plant_rung ;;
        *) kind=plant_cpu ;;
    esac
    if [ $emulated = yes ]; then
        if [ -n "$($faults get "$name" arch)" ]; then continue; fi
        case $($faults get "$name" program):$name in
            test_gpt2cu:gpu-ranks-peer_*) continue ;;  # copies between GPUs, which the emulator has not
            test_emulated:* | test_gpt2cu:gpu-layernorm_* | test_gpt2cu:gpu-fp8-* | test_gpt2cu:gpu-decode-* | \
                test_gpt2cu:gpu-ranks-* | test_gpt2cu:gpu-muon_kernel_*) kind=plant_emulated ;;
            *) continue ;;
        esac
    elif [ "$($faults get "$name" program)" = test_emulated ]; then
        kind=skip lacks="--emulated"
    fi
    if [ $kind = plant_gpu ] && ! has_device; then kind=skip lacks="CUDA device"; fi
    if [ $kind = plant_package ] && ! has_pytorch; then kind=skip lacks="PyTorch with pytest"; fi
    if [ $kind = plant_rung ] && [ ! -x test_emulated ]; then kind=skip lacks="test_emulated"; fi
    if $kind "$name" "${options[@]}"; then
        echo "planted $name: $verdict"
        if [ $kind = skip ]; then skipped=$((skipped + 1)); else passed=$((passed + 1)); fi
    else
        cp "$log" "$home/$name.log"
        echo "planted $name: $verdict (log: $home/$name.log)"
        failed=$((failed + 1))
    fi
done
if [ $turn -eq 0 ]; then
    echo "planted: no fault of dev/test/*/faults*.txt has such a name: $*" >&2
    exit 2
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
