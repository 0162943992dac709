#!/bin/bash
# What the compiler could not keep in registers: compiles each .cu for each GPU of ARCH and adds up the bytes
# of register spills (stores and loads) and of stack frames of all its kernels. Names those that have any.
#   NVCC=nvcc ARCH="sm_90a sm_80" FLAGS="options of the compiler" dev/test/spills.sh dev/cuda/*.cu
# Also what it says of tensor-core products that it had to serialise, each one waited for before the next (C7504, C7507,
# C7510 to C7515, C7520): results stay right, but are slow.
# PTX targets (compute_80) are skipped: their registers are assigned by the driver, later. Last line:
# S spill bytes, F stack bytes in N kernels. Exit 0 if there are none and no serialised products, 1 if there are some or a
# file does not compile, 4 without nvcc or without a GPU target.
set -eu
cd "$(dirname "$0")/../.."
NVCC=${NVCC:-$(command -v nvcc || true)}
if [ -z "$NVCC" ]; then
    echo "no nvcc: nothing measured"
    exit 4
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
measured=0

for source in "$@"; do
    for target in ${ARCH:-sm_80 sm_90a}; do
        case $target in
            sm_*) number=${target#sm_} ;;
            *) continue ;;
        esac
        # the flags of the Makefile that decide about registers
        if ! "$NVCC" -std=c++20 -O3 -lineinfo -I. ${FLAGS:-} --expt-relaxed-constexpr -gencode "arch=compute_$number,code=$target" \
                -Xptxas -v -cubin "$source" -o "$folder/cubin" 2>"$folder/log"; then
            cat "$folder/log" >&2
            echo "spills: $source does not compile for $target"
            exit 1
        fi
        sed "s|^|$source $target |" "$folder/log" >>"$folder/all"
        measured=1
    done
done
if [ $measured = 0 ]; then
    echo "no .cu file or no GPU (sm_*) in ARCH=${ARCH:-}: nothing measured"
    exit 4
fi

# Each line is: file target ptxas's own line. A kernel is announced by "Compiling entry function"; "Function
# properties for" names the kernel, or a function it calls, that the next "bytes stack frame" is about.
awk '
    /Compiling entry function/ { kernels++ }
    /\(C75(04|07|1[0-5]|20)\)/ {
        serialised++
        print
    }
    /Function properties for/ { name = $NF }
    /bytes stack frame/ {
        stack = stores = loads = 0
        for (i = 1; i <= NF; i++) {
            if ($i == "bytes" && $(i + 1) == "stack") { stack = $(i - 1) }
            if ($i == "bytes" && $(i + 2) ~ /^stores/) { stores = $(i - 1) }
            if ($i == "bytes" && $(i + 2) ~ /^loads/) { loads = $(i - 1) }
        }
        spilled += stores + loads
        frames += stack
        if (stack + stores + loads > 0) {
            printf "%s %s: %d bytes spilled, %d loaded again, %d of stack: %s\n", $1, $2, stores, loads, \
                   stack, name
        }
    }
    END {
        printf "%d spill bytes, %d stack bytes in %d kernels\n", spilled, frames, kernels
        exit spilled + frames + serialised > 0
    }' "$folder/all" >"$folder/result" || bad=1
c++filt <"$folder/result"  # of binutils, as the linker is
exit "${bad:-0}"
