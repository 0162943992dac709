#!/bin/sh
# Tiny Shakespeare: gets the text, checks that it is the right one, and makes byte-level token shards of it,
# with paragraphs (who speaks, and what) as documents:
#   data/get_tinyshakespeare.sh            from where it is published (1.1 MB)
#   data/get_tinyshakespeare.sh FILE       from FILE, or from input.txt in a folder, for machines without a network
# Writes data/tinyshakespeare/: input.txt, tiny_shakespeare_train_000000.bin, tiny_shakespeare_val_000000.bin.
set -eu

title="Tiny Shakespeare"
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
check=sha256sum
sum=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
folder=data/tinyshakespeare
name=input.txt
shards="--documents paragraph --out $folder/tiny_shakespeare"
. "$(dirname "$0")/get_corpus.sh"
