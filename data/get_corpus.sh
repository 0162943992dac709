# What data/get_tinyshakespeare.sh and data/get_enwik8.sh share, which read this after they have set
#   title        what the text is called                 folder, name  where it goes: folder/name
#   url          where it is published                   check, sum    the program that sums it, and what comes of it
#   shards       what data/make_shards is told of it
program=$(basename "$0" .sh)

fail() {  # code, message
    printf '%s: %s\n' "$program" "$2" >&2
    exit "$1"
}

case "${1-}" in
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail 2 "$1: not an option; --help says what is" ;;
esac
[ $# -le 1 ] || fail 2 "one file or folder, or nothing; --help says more"

source=${1-}
if [ -n "$source" ]; then
    [ ! -d "$source" ] || source=$source/$name
    [ -r "$source" ] || fail 3 "$source: no such file, or it cannot be read"
    source=$(cd "$(dirname "$source")" && pwd)/$(basename "$source")
fi

cd "$(dirname "$0")/.."
text=$folder/$name
mkdir -p "$folder" || fail 2 "$folder: cannot make this folder"
[ -w "$folder" ] || fail 2 "$folder: cannot write to this folder"
new=$text.tmp-$$
trap 'rm -f "$new" "$new.packed"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

is_right() {
    [ -f "$1" ] && printf '%s  %s\n' "$sum" "$1" | "$check" --check --status
}
take() {  # what it is called, the file, what to say if it is not the text
    case "$1" in  # gzip reads a zip with one file in it, too
        *.gz | *.zip) gzip -dc < "$2" > "$new" || fail 3 "$1: cannot be unpacked: it is damaged, or not all there" ;;
        *) cp "$2" "$new" ;;
    esac
    is_right "$new" || fail 3 "$1: $3"
    mv "$new" "$text"
}

if [ -n "$source" ]; then
    take "$source" "$source" "not $title: its ${check%sum} should be $sum"
elif ! is_right "$text"; then  # what an earlier run got is not got again
    elsewhere="Get it on another machine, and run: $0 FILE"
    if command -v curl > /dev/null; then
        curl --fail --silent --show-error --location --connect-timeout 20 --output "$new.packed" "$url" ||
            rm -f "$new.packed"
    elif command -v wget > /dev/null; then
        wget --quiet --timeout=20 --tries=2 --output-document="$new.packed" "$url" || rm -f "$new.packed"
    fi
    [ -s "$new.packed" ] || fail 3 "cannot get $url (with curl or wget). $elsewhere"
    take "$url" "$new.packed" \
        "what came is not $title (wrong ${check%sum}). A proxy may have answered instead. $elsewhere"
fi

if [ ! -x data/make_shards ]; then
    make data/make_shards || fail 2 "data/make_shards is missing and could not be built"
fi
# shellcheck disable=SC2086  # options, with blanks between
data/make_shards "$text" $shards
