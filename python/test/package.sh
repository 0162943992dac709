#!/bin/bash
# Builds the wheel with the library that is built already, looks at what is in it, and installs it; before, builds
# that cannot end well. What needs PyTorch is skipped without: extensions, the import, the tests over host memory.
# Last line: N passed, N failed, N skipped.
set -u
cd "$(dirname "$0")/../.."
folder=build/test/package library=build/libllmc_layernorm.so
passed=0 failed=0 skipped=0
rm -rf $folder
mkdir -p $folder

check() {  # name command...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else echo "FAILED: $name"; failed=$((failed + 1)); fi
}
skip() { echo "skipped: $*"; skipped=$((skipped + 1)); }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed -eq 0 ]; exit; }

helps() { (cd $folder && python3 ../../../python/plumb_build.py --help 2>&1 | grep -q "By hand" && [ ! -e ./--help ]); }
check "plumb_build.py --help makes no folder" helps

if ! python3 -m pip --version >/dev/null 2>&1; then skip "python3 has no pip"; finish; fi
torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null)

pip="python3 -m pip --disable-pip-version-check"
build() { PLUMB_LIBRARY=$library PLUMB_TORCH=${torch:-none} $pip wheel -q --no-deps . -w $folder; }
holds() { python3 -m zipfile -l $folder/plumb_layernorm-*.whl | grep -q "plumb_layernorm/$1 "; }
refuses() {  # what the build says, in one line, before pip fetches PyTorch or anything is compiled; settings...
    local said
    said=$(env "${@:2}" $pip wheel --no-deps . -w $folder 2>&1)
    [[ $said == *"Getting requirements to build wheel did not run"*"[1 lines of output]"*"plumb_build.py: "*"$1"* ]] ||
        { echo "$said"; false; }
}
small() { [ "$(stat -c %s $folder/plumb_layernorm-*.whl)" -le 40000000 ] || { ls -l $folder/*.whl; false; }; }
install() {
    $pip install -q --root-user-action=ignore --no-deps --no-index --target $folder/site $folder/*.whl
}
test_on_host() {
    PLUMB_TORCH=$torch python3 python/plumb_build.py $folder/host --host >$folder/host.log 2>&1 &&
        PYTHONPATH=$folder/host PLUMB_TEST_DEVICE=cpu python3 -m pytest -q -p no:cacheprovider python/test \
            -k "not compile and not opcheck"
}

check "no nvcc" refuses "PLUMB_LIBRARY to a libllmc_layernorm.so" NVCC= PLUMB_LIBRARY=
check "no such library" refuses "PLUMB_LIBRARY=nowhere.so: there is no such file" PLUMB_LIBRARY=nowhere.so
check "another library" refuses "LICENSE: its SONAME is not libllmc_layernorm.so.1" PLUMB_LIBRARY=LICENSE
if [ ! -e $library ]; then skip "$library is not built (no nvcc)"; finish; fi
check "pip wheel ." build
check "it is for any Python on one processor" ls $folder/plumb_layernorm-*-py3-none-linux_"$(uname -m)".whl
check "it holds the package" holds __init__.py
check "it takes at most 40 MB" small
check "it installs" install
check "it holds the library as it was built" cmp $folder/site/plumb_layernorm/libllmc_layernorm.so.1 $library
if [ -n "$torch" ]; then
    check "it holds the extension of this PyTorch" holds 'libplumb_torch_[0-9_]*.so'
    check "it holds the portable operators" holds libplumb_stable.so
    check "it is imported" env PYTHONPATH=$folder/site python3 -c 'import plumb_layernorm'
    check "tests over host memory" test_on_host
else
    skip "PyTorch is not installed: the extensions, the import, the tests"
fi
finish
