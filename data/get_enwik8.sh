#!/bin/sh
# enwik8, the first 10^8 bytes of a Wikipedia: gets them, checks that they are the right ones, and makes byte-level
# token shards of the three parts of published figures: 90 M bytes train, 5 M validation, 5 M test. The shards hold
# these bytes and nothing else: an end of text would be one more thing to predict.
#   data/get_enwik8.sh         from where it is published (36 MB)
#   data/get_enwik8.sh FILE    from FILE: enwik8, enwik8.zip or enwik8.gz, for machines without a network
# Writes data/enwik8/: enwik8, enwik8_train_000000.bin, enwik8_val_000000.bin, enwik8_test_000000.bin.
set -eu

title=enwik8
url=http://mattmahoney.net/dc/enwik8.zip
check=md5sum
sum=a1fa5ffddb56f4953e226637dabbb36a
folder=data/enwik8
name=enwik8
shards="--as-is --documents none --parts 90000000,5000000,5000000 --out $folder/enwik8"
. "$(dirname "$0")/get_corpus.sh"
