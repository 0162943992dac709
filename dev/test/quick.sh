#!/bin/bash
# The unit tests of what changed since the last commit: those whose file includes a header that changed, or whose source
# did; of make's files: what builds without dev/. make quick calls it when test_gpt2 is built.
set -eu
cd "$(dirname "$0")/../.."
tests=
for changed in $(git diff --name-only HEAD; git ls-files --others --exclude-standard); do
    case $changed in
    # shared code: and who includes its header
    dev/test/host/*.cpp | dev/test/ops/*.cpp | dev/test/model/*.cpp) tests="$tests $changed" ;;&
    Makefile | *.mk) tests="$tests dev/test/host/test_house.cpp" ;;
    *.h | *.cpp)
        for deps in $(grep -lE -- "(^|[ /])${changed%.*}\.h( |$)" build/dev/test/{host,ops,model}/*.d || true); do
            tests="$tests $(sed "s,^build/,,; s,d$,cpp," <<<"$deps")"
        done ;;
    esac
done
tests=$(printf '%s\n' $tests | sort -u | sed 's/^/*/' | paste -sd,)
if [ "$tests" = '*' ]; then echo "no unit test reaches what changed; make test runs everything" && exit 0; fi
echo "$tests"
exec ./test_gpt2 --source-file="$tests" "$@"
