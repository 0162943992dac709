#!/bin/bash
# The C interfaces of LayerNorm and attention as another program meets them: the header is C99 and C++, the library shows
# nothing but its own functions and needs no CUDA library; then a C99 program linked to it. What make install puts in place is
# enough to build and start the README's example.
#   make build/libllmc_layernorm.so build/libllmc_attention.so && dev/test/c_abi/run.sh
# Last line: N passed, N failed, N skipped; exit 1 if any failed.
set -u
cd "$(dirname "$0")/../../.."
folder=build/test/c_abi
mkdir -p $folder
passed=0 failed=0 skipped=0
strict="-Wall -Wextra -pedantic -Werror -I."

check() {  # name command...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else echo "FAILED: $name"; failed=$((failed + 1)); fi
}

only_ours() {  # library prefix number: prints the defined symbols that are not ours
    [ -z "$(nm -D --defined-only "$1" | awk -v ours="^$2" '$NF !~ ours' | tee /dev/stderr)" ] &&
        [ "$(nm -D --defined-only "$1" | wc -l)" -eq "$3" ]
}

no_cuda() { ! readelf -d "$1" | grep NEEDED | grep -E 'cuda|stdc|gomp'; }

# Installed below a folder that pkg-config alone knows: the example is built and started elsewhere, with those files only.
# -o: the library is the one that is there, which other settings than its own would compile again.
example() (  # name source
    root=$PWD/$folder/root source=$PWD/$2
    rm -rf "$root"
    env -u MAKEFLAGS -u MAKELEVEL make -s -o "build/libllmc_$1.so" "install-$1" PREFIX=/opt/plumb DESTDIR="$root" &&
        cd "$folder" && export PKG_CONFIG_PATH=$root/opt/plumb/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root &&
        read -ra flags < <(pkg-config --cflags --libs "llmc_$1") &&
        gcc -std=c99 -Wall -Wextra -pedantic -Werror "$source" "${flags[@]}" -ldl -o mine &&
        said=$(LD_LIBRARY_PATH=$root/opt/plumb/lib ./mine | tee /dev/stderr)
    [[ ${said:-} == $'-1.342 -0.447 0.447 1.342\n1.342 0.447 -0.447 -1.342' || ${said:-} == "no GPU here" ]]
)

run_program() {
    local counts p f s
    counts=$("$1" | tee /dev/stderr | tail -1)
    case $counts in
        *" passed, "*" failed, "*" skipped")
            read -r p f s <<<"$(echo "$counts" | tr -dc '0-9 ' | tr -s ' ')"
            passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s)) ;;
        *) echo "FAILED: $1 stopped early"; failed=$((failed + 1)) ;;
    esac
}

check_interface() {  # name header functions source...
    local name=$1 header=$2 functions=$3 library=build/libllmc_$1.so program=$folder/$1
    shift 3
    if [ ! -e "$library" ]; then
        echo "$library is not built (no nvcc)"
        skipped=$((skipped + 1))
        return
    fi
    # shellcheck disable=SC2086
    {
        check "$header is C99" gcc -std=c99 $strict -fsyntax-only -x c - <<<"#include \"$header\""
        check "$header is C++" g++ -std=c++11 $strict -fsyntax-only -x c++ - <<<"#include \"$header\""
        check "only llmc_${name}_* are visible" only_ours "$library" "llmc_${name}_" "$functions"
        check "no library of CUDA or C++ is needed" no_cuda "$library"
        check "its SONAME has a version" grep -q "soname: \[libllmc_$name.so.1\]" <(readelf -d "$library")
        check "a C99 program links" gcc -std=c99 -O1 $strict "$@" "$library" -Wl,-rpath,"$PWD/build" -pthread -ldl -lm \
            -o "$program"
    }
    run_program "$program"
}

check_interface layernorm llmc/layernorm/c_abi.h 9 dev/test/c_abi/layernorm.c
check_interface attention llmc/ops/attention/c_abi.h 5 dev/test/c_abi/attention.c
if [ -e build/libllmc_layernorm.so ] && command -v pkg-config >/dev/null; then
    check "what is installed builds and starts the README's example" example layernorm dev/test/c_abi/mine.c
else
    echo "no library or no pkg-config: the README's example is not built"
    skipped=$((skipped + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
