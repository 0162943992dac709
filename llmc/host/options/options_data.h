// The options about data, as rows like those of options_table.h. Only the parser includes this.
#pragma once
#include "llmc/host/options/options_row.h"

namespace llmc {

inline const OptionRow kDataTable[] = {
    {.name = "train-data",
     .letter = 'i',
     .value = "GLOB",
     .field = &Settings::train_data,
     .also = "input train data input-bin",
     .help = "token shards to train on: a file, or a pattern in quotes ('data/web_train_*.bin'). "
             "data/make_shards makes them from text",
     .group = "Data"},
    {.name = "val-data",
     .letter = 'j',
     .value = "GLOB",
     .field = &Settings::val_data,
     .empty_word = "none",
     .also = "input-val valid-data validation-data eval-data",
     .help =
         "token shards for validation; none = no validation; left out: those named like --train-data, but "
         "for val in place of train, if there are any"},
    {.name = "raw-tokens",
     .value = "VOCAB",
     .field = &Settings::raw_tokens,
     .lo = 1,
     .hi = 65536,
     .unit = "tokens",
     .help = "both are files of 16-bit tokens and nothing else, as nanoGPT's train.bin and val.bin: how many "
             "tokens are there? (50257 of GPT-2)"},
    {.name = "tokenizer",
     .value = "PATH",
     .field = &Settings::tokenizer,
     .empty_word = "auto",
     .also = "tokenizer-path vocab",
     .help =
         "turns tokens into text for the samples, and the prompt into tokens: the folder or file given to "
         "data/make_shards, or llm.c's gpt2_tokenizer.bin (no prompt then). The run keeps a copy. "
         "auto = the one beside --model, else bytes, if the shards are byte-level"},
};

}  // namespace llmc
