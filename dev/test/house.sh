#!/bin/bash
# All but dev/ stands alone: in a copy of the tree without dev/, make knows how to build everything that is not a check, no
# source or command asks for a file of dev/, and the trainer trains.
#   dev/test/house.sh            the commands are printed, not run; the trainer is the one that is built (PLUMB_BIN_DIR)
#   dev/test/house.sh --build    all is built there, GPU code for one GPU, trained with, and installed: many minutes
# Exit 1, and why, if not.
set -eu
cd "$(dirname "$0")/../.."
unset MAKEFLAGS MAKELEVEL MFLAGS  # a surrounding make's -j and BUILD= are not for the copy
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

fail() { echo "without dev/: $*" >&2; exit 1; }

# without git, as in a copy of a planted fault: every file that is not built or large
sources() { if [ -e .git ]; then git ls-files -z -co --exclude-standard; else find ./* -type f -size -2048k -print0; fi; }
sources | while IFS= read -r -d '' file; do
    case ${file#./} in dev/* | build/* | data/sample/* | runs/*) ;; *) if [ -e "$file" ]; then printf '%s\0' "$file"; fi ;; esac
done | xargs -0 cp -p --parents -t "$copy"
mkdir "$copy/build"
cp build/deps.mk "$copy/build/"
trainer=$(realpath "${PLUMB_BIN_DIR:-.}/train_gpt2")
sample=$(realpath data/sample)
nvcc=${NVCC-$(command -v nvcc || true)}  # NVCC= leaves out the GPU code
library=build/wheel/libllmc_layernorm.so
cd "$copy"

if grep -rn '#include "\(\.\./\)*dev/' --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' .; then
    fail "a source includes a file of dev/"
fi
if command -v python3 >/dev/null && ! python3 python/plumb_build.py 2>&1 | grep -q 'By hand'; then
    fail "python/plumb_build.py does not start"
fi
if [ "${1:-}" = --build ]; then
    make ARCH=sm_90a all || fail "make all fails"
    if [ -n "$nvcc" ]; then
        make ARCH=sm_90a install PREFIX=/usr DESTDIR="$copy/installed" || fail "make install fails"
        make ARCH=sm_90a BUILD=build/wheel $library || fail "the library of the Python package is not built"
    fi
    trainer=./train_gpt2
else
    # of a machine without nvcc, too: nothing is compiled
    for goal in all train install $library; do
        make -n ARCH=sm_90a NVCC="${nvcc:-nvcc}" $([ $goal = $library ] && echo BUILD=build/wheel) $goal V=1 \
            >commands 2>errors || fail "make $goal: $(<errors)"
        if grep -E '(^|[^/[:alnum:]])dev/' commands; then fail "make $goal uses dev/"; fi
    done
    cp -r "$sample" data/sample
fi
$trainer --layers 1 --heads 1 --channels 16 --seq-len 16 --batch 2 --steps 2 --out runs/two >said 2>&1 || fail "$(<said)"
grep -q 'val loss' said || fail "the trainer says no loss: $(<said)"
