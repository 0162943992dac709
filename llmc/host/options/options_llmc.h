// llm.c's options that are not an alias letter of a row in options_table.h, as data. Only the parser includes
// this.
#pragma once

namespace llmc {

// llm.c's options that are a row's under another name. Number i stands for the i-th word; without words, a
// value is the row's own.
struct LlmcAlias {
    const char* name;
    const char* row;
    const char* words;
};

inline constexpr LlmcAlias kLlmcAliases[] = {
    {"-y", "resume", "none auto"},   {"-r", "recompute", "none gelu block"},
    {"-f", "tf32", "false true"},    {"-nk", "keep", ""},
    {"-nm", "keep-major", ""},       {"-z", "zero", ""},
    {"-pn", "world-size", ""},       {"-pr", "rank", ""},
    {"-pg", "ranks-per-host", ""},   {"-ps", "master", ""},
    {"-sl", "skip-loss-zscore", ""}, {"-sg", "skip-norm-zscore", ""},
};

// llm.c's options that have no row. The rule: a value that only says what this program does anyway is
// accepted, so that command lines of llm.c work; so is one that changes nothing in what is computed, with a note;
// any other value is refused by name, never ignored.
struct LlmcOption {
    const char* name;
    const char* harmless;  // the values accepted, with blanks between; "" = none
    const char* what;      // what the option asks for
    const char* cure;
    const char* noted = "";  // the values accepted with a note
    const char* note = "";   // what happens instead
};

inline constexpr const char* kMeet =
    "The ranks meet over TCP: --master HOST (-ps), and no option under torchrun, mpirun or srun.";

inline constexpr LlmcOption kLlmcTable[] = {
    {"-a", "0", "training on one and the same batch",
     "The nearest is --epochs N with --train-data of a text that short (data/make_shards)."},
    {"-w", "1", "training without fp32 master weights", "They are kept."},
    {"-ge", "0", "choosing where GELU is fused", "", "1 2",
     "which product GELU is fused into is chosen here; the option changes nothing"},
    {"-lg", "-1", "logging the state of the GPU", "See --log-every for the steps."},
    {"-pi", "mpi tcp", "meeting in a shared folder", kMeet},
    {"-pm", "mpi tcp", "meeting in a shared folder", kMeet},  // what llm.c's help calls -pi
    {"-pf", "", "meeting in a shared folder", kMeet},
    {"-pp", "", "meeting in a shared folder", kMeet},  // what llm.c's help calls -pf
};

// llm.c's -h 1, for which it has no other place
inline constexpr const char* kLlmcHellaSwag = "dev/data/hellaswag/hellaswag_val.bin";

}  // namespace llmc
