#!/bin/sh
# Tiny Shakespeare: gets the text, checks that it is the right one, and makes byte-level token shards of it,
# with paragraphs (who speaks, and what) as documents:
#   data/get_tinyshakespeare.sh            from where it is published (1.1 MB)
#   data/get_tinyshakespeare.sh FOLDER     from FOLDER/input.txt, for machines without a network
# Writes data/tinyshakespeare/: input.txt, tiny_shakespeare_train_000000.bin, tiny_shakespeare_val_000000.bin.
set -eu

url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

fail() {  # code, message
    printf 'get_tinyshakespeare: %s\n' "$2" >&2
    exit "$1"
}

case "${1-}" in
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail 2 "$1: not an option; --help says what is" ;;
esac
[ $# -le 1 ] || fail 2 "one folder, or nothing; --help says more"

source=${1-}
if [ -n "$source" ]; then
    [ -r "$source/input.txt" ] || fail 3 "$source/input.txt: no such file, or it cannot be read"
    source=$(cd "$source" && pwd)/input.txt
fi

cd "$(dirname "$0")/.."
folder=data/tinyshakespeare
text=$folder/input.txt
mkdir -p "$folder" || fail 2 "$folder: cannot make this folder"
[ -w "$folder" ] || fail 2 "$folder: cannot write to this folder"
new=$text.tmp-$$
trap 'rm -f "$new"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

is_right() {
    [ -f "$1" ] && printf '%s  %s\n' "$sha256" "$1" | sha256sum --check --status
}

if [ -n "$source" ]; then
    cp "$source" "$new"
    is_right "$new" || fail 3 "$source: not Tiny Shakespeare: its sha256 should be $sha256"
    mv "$new" "$text"
elif ! is_right "$text"; then  # what an earlier run got is not got again
    if command -v curl > /dev/null; then
        curl --fail --silent --show-error --location --connect-timeout 20 --output "$new" "$url" ||
            rm -f "$new"
    elif command -v wget > /dev/null; then
        wget --quiet --timeout=20 --tries=2 --output-document="$new" "$url" || rm -f "$new"
    fi
    [ -s "$new" ] || fail 3 "cannot get $url (with curl or wget). \
Get it on another machine, put it into a folder as input.txt, and run: $0 FOLDER"
    is_right "$new" || fail 3 "$url: what came is not Tiny Shakespeare (wrong sha256). A proxy may have \
answered instead. Get input.txt on another machine, and run: $0 FOLDER"
    mv "$new" "$text"
fi

if [ ! -x data/make_shards ]; then
    make data/make_shards || fail 2 "data/make_shards is missing and could not be built"
fi
data/make_shards "$text" --documents paragraph --out "$folder/tiny_shakespeare"
