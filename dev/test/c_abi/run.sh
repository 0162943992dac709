#!/bin/bash
# The C interface of LayerNorm as another program meets it: the header is C99 and C++, the library shows
# nothing but llmc_layernorm_* and needs no CUDA library; then a C99 program linked to it.
#   make build/libllmc_layernorm.so && dev/test/c_abi/run.sh
# Last line: N passed, N failed, N skipped; exit 1 if any failed.
set -u
cd "$(dirname "$0")/../../.."
library=build/libllmc_layernorm.so
folder=build/test/c_abi
if [ ! -e $library ]; then
    echo "$library is not built (no nvcc)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
mkdir -p $folder
passed=0 failed=0 skipped=0

check() {  # name command...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else echo "FAILED: $name"; failed=$((failed + 1)); fi
}

only_ours() {  # prints the defined symbols that are not ours
    [ -z "$(nm -D --defined-only $library | awk '$NF !~ /^llmc_layernorm_/' | tee /dev/stderr)" ] &&
        [ "$(nm -D --defined-only $library | wc -l)" -eq 5 ]
}

no_cuda() { ! readelf -d $library | grep NEEDED | grep -E 'cuda|stdc|gomp'; }

strict="-Wall -Wextra -pedantic -Werror -I."
# shellcheck disable=SC2086
{
    check "the header is C99" gcc -std=c99 $strict -fsyntax-only -x c - <<<'#include "llmc/layernorm/c_abi.h"'
    check "the header is C++" g++ -std=c++11 $strict -fsyntax-only -x c++ - <<<'#include "llmc/layernorm/c_abi.h"'
    check "only llmc_layernorm_* are visible" only_ours
    check "no library of CUDA or C++ is needed" no_cuda
    check "a C99 program links" gcc -std=c99 -O1 $strict dev/test/c_abi/{arguments,numbers}.c $library \
        -Wl,-rpath,"$PWD/build" -pthread -ldl -lm -o $folder/c_abi
}
counts=$($folder/c_abi | tee /dev/stderr | tail -1)
case $counts in
    *" passed, "*" failed, "*" skipped")
        read -r p f s <<<"$(echo "$counts" | tr -dc '0-9 ' | tr -s ' ')"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s)) ;;
    *) echo "FAILED: the program stopped early"; failed=$((failed + 1)) ;;
esac
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
