#!/bin/sh
# Finds or gets what the build needs and writes build/deps.mk for the Makefile, which calls this script.
#   scripts/setup.sh            use what is installed; as root on Debian or Ubuntu install the rest with apt-get;
#                               otherwise unpack the Debian packages into build/deps, without root
#   scripts/setup.sh nccl       get NCCL (300 MB) into build/nccl, where train_gpt2cu looks for it: for several GPUs in one
#                               run, if neither the system nor the CUDA Toolkit nor PyTorch has libnccl.so.2
#   DEPS=dir scripts/setup.sh   take headers and libraries from dir, laid out as in build/deps (to carry to a machine
#                               without a network)
set -eu
cd "$(dirname "$0")/.."
PACKAGES="libfmt-dev nlohmann-json3-dev libxxhash-dev doctest-dev libopenblas-openmp-dev"
RUNTIME="libopenblas0-openmp libgfortran5 libquadmath0"   # what libopenblas-openmp-dev needs beside it when unpacked
CXX=${CXX:-g++}
ROOT_DIR=$PWD
mkdir -p build

die() { echo "setup: $*" >&2; exit 2; }
say() { echo "setup: $*"; }

can_apt() { command -v apt-get >/dev/null 2>&1 && [ -r /etc/debian_version ]; }

need_compiler() {
    if ! command -v "$CXX" >/dev/null 2>&1; then
        can_apt && [ "$(id -u)" = 0 ] || die "no C++ compiler ($CXX). Install one: sudo apt-get install g++"
        say "installing g++"
        apt_install g++
    fi
    echo 'int main() { return [](auto... x) { return (0 + ... + x); }(0); }' > build/probe.cpp
    "$CXX" -std=c++20 -fopenmp build/probe.cpp -o build/probe >/dev/null 2>&1 ||
        die "$CXX cannot build C++20 with OpenMP; g++ 11 or later can. Set CXX=..."
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >build/apt.log 2>&1 && return
    say "updating the package lists"
    apt-get update -q >build/apt.log 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >build/apt.log 2>&1 ||
        { tail -5 build/apt.log >&2; die "apt-get install $* failed (whole log: build/apt.log)"; }
}

# the folder of OpenBLAS's OpenMP build below $1, "" if it is not there
blas_folder() {
    for d in "$1"/usr/lib/*/openblas-openmp "$1"/usr/lib/openblas-openmp; do
        if [ -e "$d/libopenblas.so" ]; then echo "$d"; return; fi
    done
}

# does everything compile and link with headers and libraries below $1 ("" = the system's own)?
probe() {
    blas=$(blas_folder "$1")
    [ -n "$blas" ] || return 1
    multiarch=$(basename "$(dirname "$blas")")
    cppflags="-isystem $1/usr/include/$multiarch/openblas-openmp"
    ldflags="-L$blas -Wl,--disable-new-dtags,-rpath,$blas"
    if [ -n "$1" ]; then
        cppflags="-isystem $1/usr/include $cppflags"
        ldflags="-L$1/usr/lib/$multiarch $ldflags,-rpath,$1/usr/lib/$multiarch,-rpath-link,$1/usr/lib/$multiarch"
    fi
    cat > build/probe.cpp <<'EOF'
#include <cblas.h>
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <nlohmann/json_fwd.hpp>
#include <xxhash.h>
int main() { return openblas_get_num_threads() < 1 || XXH3_64bits("", 0) == 0; }
EOF
    "$CXX" -std=c++20 -fopenmp -DDOCTEST_CONFIG_DISABLE $cppflags build/probe.cpp -o build/probe $ldflags -lopenblas \
        -l:libxxhash.a >build/probe.log 2>&1 && build/probe >>build/probe.log 2>&1
}

write_result() {
    cat > build/deps.mk.new <<EOF
# written by scripts/setup.sh; 'make clean' removes it
DEPS_CPPFLAGS := $cppflags
DEPS_LDFLAGS := $ldflags
EOF
    mv build/deps.mk.new build/deps.mk
    rm -f build/probe build/probe.cpp
}

unpack_without_root() {
    say "not root: unpacking Debian packages into build/deps (to install them instead: sudo apt-get install $PACKAGES)"
    mkdir -p build/deps/packages
    (
        cd build/deps/packages
        if ! apt-get download -q $PACKAGES $RUNTIME >"$ROOT_DIR/build/apt.log" 2>&1; then
            # no package lists on this machine yet: fetch them into a folder of our own
            mkdir -p apt/lists/partial apt/cache/archives/partial
            own="-o Dir::State::Lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt/cache"
            apt-get $own update -q >>"$ROOT_DIR/build/apt.log" 2>&1 || true
            apt-get $own download -q $PACKAGES $RUNTIME >>"$ROOT_DIR/build/apt.log" 2>&1
        fi
    ) || { tail -3 build/apt.log >&2; die "could not download the packages (log: build/apt.log). Without a network:
  on a machine that has one run 'make', then carry its build/deps here and run 'make DEPS=path/to/deps'"; }
    for package in build/deps/packages/*.deb; do dpkg -x "$package" build/deps; done
    rm -rf build/deps/packages
}

get_nccl() {
    major=$("${NVCC:-nvcc}" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p')
    python3 -m pip install --quiet --upgrade --no-deps --target build/nccl "nvidia-nccl-cu${major:-13}" ||
        die "pip could not get nvidia-nccl-cu${major:-13}. Install libnccl2, or set PLUMB_NCCL to a libnccl.so.2"
    say "NCCL is in build/nccl"
}

case "${1:-}" in
    nccl) get_nccl; exit ;;
    "") ;;
    *) die "$1: expected nothing, or nccl" ;;
esac
need_compiler
if [ -n "${DEPS:-}" ]; then
    deps=$(cd "$DEPS" 2>/dev/null && pwd) || die "DEPS=$DEPS: no such folder"
    probe "$deps" || { tail -3 build/probe.log >&2; die "DEPS=$DEPS: headers or libraries missing there (log: build/probe.log)"; }
elif probe ""; then
    :
elif [ -d build/deps/usr ] && probe "$ROOT_DIR/build/deps"; then
    :
elif can_apt && [ "$(id -u)" = 0 ]; then
    say "installing $PACKAGES"
    apt_install $PACKAGES
    probe "" || { tail -5 build/probe.log >&2; die "installed, but a test program does not build (log: build/probe.log)"; }
elif can_apt; then
    unpack_without_root
    probe "$ROOT_DIR/build/deps" ||
        { tail -5 build/probe.log >&2; die "unpacked, but a test program does not build (log: build/probe.log)"; }
else
    tail -3 build/probe.log >&2
    die "not Debian or Ubuntu: install {fmt}, nlohmann/json, xxHash, doctest and OpenBLAS (OpenMP build),
  or set DEPS=dir"
fi
write_result
say "dependencies found${DEPS:+ in $DEPS}"
