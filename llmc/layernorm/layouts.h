// Every layout of LayerNorm's kernels, in the order in which they are tried: the first that has room for a
// row, and is for such calls, takes it; so each begins behind the one before. Kernels are templates on a
// layout; tests take their widths from here. Host only. Of a layout, unless said otherwise:
//   cluster        blocks that share a row             warps      of a team: a row has one in each block
//   teams          of a block                          lanes      of a warp that share a row
//   vector         columns of an access                vectors    of a lane
//   unguarded      of these, as many as any row has    stages     rows in a team's ring
//   blocks_per_sm  that are to fit, which limits registers
// A layout stays if a model has such rows, or if a width would lose more than 5 % without it.
#pragma once
#include <climits>

#include "llmc/cuda/types.h"

namespace llmc::layouts {

// a layout is a line, which has the fields of its struct in their order where it does not name them
// clang-format off

// GPT-2, GPT-3, BERT, ViT, Whisper, OPT, Pythia, Falcon, Llama, PaLM and MT-NLG, and their heads
inline constexpr int kModelWidths[] = {
    64, 80, 128, 192, 256, 384, 512, 768, 1024, 1280, 1408, 1536, 1600, 1664, 2048, 2560, 3072,
    4096, 4544, 5120, 6144, 6656, 7168, 8192, 9216, 12288, 14848, 16384, 18432, 20480};

// The calls that a layout is for. Rare ones have few layouts: there no vectors are unguarded. Rare are
// weights of another type than the rows'; in forward only if there is a residual, too.
enum class Calls { kUsual, kAll };  // kUsual: but for rare ones
using enum Calls;

// ---- forward/short_rows.cuh ----------------------------------------------------------------------

struct ShortForward {
    int lanes, vectors, unguarded;
    const char* use;
    constexpr int columns(int vector) const { return lanes * vectors * vector; }
};
inline constexpr ShortForward kShortForward[] = {
    {.lanes = 2, .vectors = 2, .unguarded = 0, .use = "narrower than any model"},
    {.lanes = 4, .vectors = 2, .unguarded = 1, .use = "heads of 64 in 16 bits"},
    {.lanes = 4, .vectors = 3, .unguarded = 2, .use = "heads of 80 in 16 bits"},
    {.lanes = 4, .vectors = 4, .unguarded = 3, .use = "BERT tiny in 16 bits, heads of 64"},
    {.lanes = 8, .vectors = 3, .unguarded = 2, .use = "ViT-Ti in 16 bits, heads of 80"},
    {.lanes = 8, .vectors = 4, .unguarded = 3, .use = "BERT mini in 16 bits, BERT tiny"},
    {.lanes = 16, .vectors = 3, .unguarded = 2, .use = "ViT-S, Whisper in 16 bits, ViT-Ti"},
    {.lanes = 16, .vectors = 4, .unguarded = 3, .use = "Pythia, Whisper in 16 bits, BERT mini"}};
// the same in halves or quarters of vectors, or single elements, where rows are not whole vectors
inline constexpr ShortForward kShortForwardPieces[] = {
    {.lanes = 2, .vectors = 5, .unguarded = 0, .use = "to 10 pieces"},
    {.lanes = 4, .vectors = 7, .unguarded = 2, .use = "to 28 pieces"},
    {.lanes = 8, .vectors = 7, .unguarded = 3, .use = "to 56 pieces: 100 columns are 25 or 50"}};

// ---- forward/row_in_registers.cuh ----------------------------------------------------------------

// what is longer is shared by a block or cluster with a barrier behind its loads
constexpr int kShortVectors = 2112;
// early: what is asked for together with the row: weight (1), or weight and bias (2); of a row of a cluster,
// this number of vectors of both.
struct RowInRegisters {
    int cluster, warps, teams, vectors, blocks_per_sm, early;
    bool unpack_each_pass;  // a row of 16 bits: as fp32 it does not fit the registers
    Calls calls;
    const char* use;
    constexpr bool is_for(bool rare) const { return calls == kAll || !rare; }
    constexpr int step() const { return cluster * warps * kWarp; }  // threads of a row
    constexpr bool is_long() const { return step() * vectors > kShortVectors; }
    constexpr int unguarded() const { return is_long() ? vectors / 2 : vectors - 1; }
    constexpr int columns(int vector) const { return step() * vectors * vector; }
};
inline constexpr RowInRegisters kRowInRegisters16[] = {
    {1,  1, 2, 3, 17, 2,  true, kUsual, "GPT-2, BERT, ViT-B: 768"},
    {1,  1, 2, 4, 16, 2,  true, kAll,   "GPT-2, BERT, ViT-L: 1024"},
    {1,  1, 2, 5, 10, 2, false, kUsual, "GPT-2, ViT-H, Whisper: 1280"},
    {1,  2, 1, 3, 12, 2,  true, kUsual, "GPT-3, ViT-g: 1536"},
    {1,  1, 2, 7, 10, 0, false, kAll,   "GPT-2 XL, ViT-G: 1600, 1664"},
    {1,  4, 1, 2, 12, 2,  true, kUsual, "GPT-3, OPT, Pythia, Falcon, Llama: 2048"},
    {1,  4, 1, 3,  9, 2,  true, kUsual, "GPT-3, OPT, Pythia, Llama: 2560, 3072"},
    {1,  4, 1, 4,  8, 2,  true, kAll,   "GPT-3, OPT, Pythia, Llama: 4096"},
    {1,  5, 1, 4,  6, 2,  true, kUsual, "Falcon, GPT-3, OPT, Pythia, Llama: 4544, 5120"},
    {1,  6, 1, 4,  5, 2,  true, kUsual, "ViT-22B: 6144"},
    {1,  7, 1, 4,  5, 1,  true, kUsual, "Llama, OPT: 6656, 7168"},
    {1,  8, 1, 4,  4, 2,  true, kAll,   "Falcon, Llama: 8192"},
    {1,  8, 1, 5,  4, 0,  true, kUsual, "OPT: 9216"},
    {1, 12, 1, 4,  3, 1,  true, kUsual, "GPT-3, OPT: 12288"},
    {1,  8, 1, 7,  3, 1,  true, kUsual, "between"},
    {1,  9, 1, 7,  3, 0,  true, kUsual, "Falcon: 14848"},
    {1,  8, 1, 8,  3, 0,  true, kAll,   "Llama: 16384"},
    {1, 16, 1, 8,  2, 1,  true, kAll,   "MT-NLG: 20480"},
    {2, 16, 1, 8,  2, 1,  true, kUsual, "to 128 KB"},
    {8,  8, 1, 8,  4, 1,  true, kUsual, "to 256 KB"},
    {8, 16, 1, 8,  2, 1,  true, kUsual, "to 512 KB"}};
inline constexpr RowInRegisters kRowInRegisters32[] = {
    { 1,  1, 2,  3,  1, 2, true, kUsual, "ViT-S, Whisper: 384"},
    { 1,  1, 2,  4,  1, 2, true, kUsual, "Pythia, Whisper: 512"},
    { 1,  2, 1,  3, 16, 2, true, kUsual, "GPT-2, BERT, ViT-B: 768"},
    { 1,  2, 1,  4, 12, 2, true, kUsual, "GPT-2, BERT, ViT-L: 1024"},
    { 1,  4, 1,  3,  8, 2, true, kUsual, "GPT-2, ViT-H, Whisper, GPT-3: 1280 to 1536"},
    { 1,  4, 1,  4,  8, 2, true, kUsual, "GPT-2 XL, ViT-G, GPT-3: 1600 to 2048"},
    { 1,  5, 1,  4,  5, 2, true, kUsual, "GPT-3, OPT, Pythia: 2560"},
    { 1,  6, 1,  4,  5, 2, true, kUsual, "Llama: 3072"},
    { 1,  8, 1,  4,  4, 2, true, kUsual, "GPT-3, OPT, Pythia, Llama: 4096"},
    { 1, 10, 1,  4,  3, 2, true, kUsual, "Falcon, GPT-3, OPT, Pythia, Llama: 4544, 5120"},
    { 1,  8, 1,  6,  3, 1, true, kUsual, "ViT-22B: 6144"},
    { 1, 16, 1,  4,  2, 2, true, kUsual, "Llama, OPT, Falcon: 6656 to 8192"},
    { 1, 16, 1,  8,  2, 1, true, kUsual, "OPT, GPT-3, Falcon, Llama: 9216 to 16384"},
    { 2,  8, 1, 10,  3, 1, true, kUsual, "MT-NLG: 20480"},
    { 2, 16, 1,  8,  2, 1, true, kUsual, "to 128 KB"},
    { 8,  8, 1,  8,  4, 1, true, kUsual, "to 256 KB"},
    {16,  8, 1,  8,  4, 1, true, kUsual, "to 512 KB"},
    {16, 16, 1,  8,  2, 1, true, kUsual, "to 1 MB"}};

// fp32 rows beside out of 16 bits; two rows of 768 a block: 65536x768 95 % for 86, as blocks begin one after the other
inline constexpr RowInRegisters kRowInRegistersMixed[] = {
    {1,  1, 2,  3,  1, 2, true, kAll, "ViT-S, Whisper: 384"},
    {1,  1, 2,  4,  1, 2, true, kAll, "Pythia, Whisper: 512"},
    {1,  1, 2,  5, 14, 2, true, kAll, "between"},
    {1,  1, 2,  6, 14, 2, true, kAll, "GPT-2, BERT, ViT-B: 768"},
    {1,  2, 1,  4, 12, 2, true, kAll, "GPT-2, BERT, ViT-L: 1024"},
    {1,  4, 1,  3,  8, 2, true, kAll, "GPT-2, ViT-H, Whisper, GPT-3: 1280 to 1536"},
    {1,  4, 1,  4,  8, 2, true, kAll, "GPT-2 XL, ViT-G, GPT-3: 1600 to 2048"},
    {1,  5, 1,  4,  5, 2, true, kAll, "GPT-3, OPT, Pythia: 2560"},
    {1,  6, 1,  4,  5, 2, true, kAll, "Llama: 3072"},
    {1,  8, 1,  4,  4, 2, true, kAll, "GPT-3, OPT, Pythia, Llama: 4096"},
    {1, 10, 1,  4,  3, 2, true, kAll, "Falcon, GPT-3, OPT, Pythia, Llama: 4544, 5120"},
    {1,  8, 1,  6,  3, 1, true, kAll, "ViT-22B: 6144"},
    {1, 16, 1,  4,  2, 2, true, kAll, "Llama, OPT, Falcon: 6656 to 8192"},
    {1, 16, 1,  8,  2, 1, true, kAll, "OPT, GPT-3, Falcon, Llama: 9216 to 16384"}};

// ---- forward/unaligned_rows.cuh ------------------------------------------------------------------

// For 16 bits and, half as many columns, fp32. A lane has its vectors and one column more. rare_unguarded:
// unguarded for rare calls, whose weights are not aligned or of another type; -1: the layout is not for these.
struct UnalignedForward {
    int cluster, warps, teams, lanes, vectors, unguarded, rare_unguarded, blocks_per_sm, early;
    const char* use;
    constexpr bool is_for(bool rare) const { return !rare || rare_unguarded >= 0; }
    constexpr int columns(int vector) const { return cluster * warps * lanes * (vectors * vector + 1); }
};
constexpr int kFewestUnalignedForward = 57;  // columns; short_rows.cuh has shorter rows
inline constexpr UnalignedForward kUnalignedForward[] = {
    { 1, 1, 2,  8, 4, 0,  0, 12, 2, "to 264 columns of 16 bits"},
    { 1, 1, 1,  8, 8, 4,  4, 16, 1, "to 520"},
    { 1, 1, 1, 16, 6, 4, -1, 20, 1, "769"},
    { 1, 1, 1, 32, 8, 3,  2, 16, 1, "1601"},
    { 1, 2, 1, 32, 8, 4,  4,  8, 1, "4097"},
    { 1, 4, 1, 32, 8, 4,  4,  4, 1, "8191; GPT-3: 5140"},
    { 1, 8, 1, 32, 8, 4,  4,  2, 1, "to 16640"},
    { 3, 4, 1, 32, 9, 5, -1,  4, 0, "to 28032"},
    { 5, 4, 1, 32, 9, 5, -1,  4, 0, "to 46720"},
    { 8, 4, 1, 32, 9, 5,  2,  4, 0, "to 74752"},
    {12, 4, 1, 32, 9, 5, -1,  4, 0, "to 112128"},
    {12, 8, 1, 32, 9, 4, -1,  2, 0, "to 224256"},
    {16, 8, 1, 32, 9, 5, -1,  2, 0, "to 299008"}};

// ---- backward/short_rows.cuh ---------------------------------------------------------------------

// whole vectors, one a lane; or pieces, as many a lane as registers allow
constexpr int pieces_of_lane(int piece) { return piece == 1 ? 5 : piece == 2 ? 3 : 2; }
struct ShortBackward {
    int lanes;
    const char* use;
    constexpr int columns(int piece) const { return lanes * piece * pieces_of_lane(piece); }
};
inline constexpr ShortBackward kShortBackward[] = {
    {.lanes = 4, .use = "narrower than any model"},
    {.lanes = 8, .use = "heads of 64 in 16 bits"},
    {.lanes = 16, .use = "heads of 80, BERT tiny in 16 bits, heads of 64"}};
inline constexpr ShortBackward kShortBackwardPieces[] = {{.lanes = 4, .use = "to 20 columns, or 24, or 32"},
                                                  {.lanes = 8, .use = "to 40 columns, or 48, or 64"},
                                                  {.lanes = 16, .use = "to 80 columns, or 96, or 128"},
                                                  {.lanes = 32, .use = "to 160 columns, or 192"}};

// ---- backward/team_ring.cuh ----------------------------------------------------------------------

struct TeamRing {
    int cluster, warps, teams, vector, vectors, stages;
    bool reread = false;  // a row's second half reads shared memory again: registers do not hold the row
    constexpr int columns() const { return cluster * warps * kWarp * vector * vectors; }
};
// For rows of up to `columns` columns: dinp =, and +=, whose stages are half as large again.
struct TeamRingLayouts {
    int columns;
    Calls calls;
    TeamRing write, add;
    const char* use;
    constexpr bool is_for(bool rare) const { return calls == kAll || !rare; }
    constexpr bool adds() const { return add.warps > 0; }
};
inline constexpr TeamRingLayouts kTeamRing16[] = {
    {   256, kAll,   { 1,  1, 12, 8, 1, 4}, { 1,  1, 12, 8, 1, 3}, "BERT tiny and mini, heads of 80, ViT-Ti"},
    {   512, kAll,   { 1,  2,  8, 8, 1, 3}, { 1,  2,  8, 8, 1, 2}, "Pythia, ViT-S, Whisper"},
    {   768, kAll,   { 1,  3,  4, 8, 1, 4}, { 1,  3,  5, 8, 1, 2}, "GPT-2, BERT, ViT-B"},
    {  1024, kAll,   { 1,  4,  4, 8, 1, 3}, { 1,  4,  4, 8, 1, 2}, "GPT-2, BERT, ViT-L"},
    {  1280, kAll,   { 1,  5,  3, 8, 1, 4}, { 1,  5,  3, 8, 1, 3}, "GPT-2, ViT-H, Whisper"},
    {  1536, kUsual, { 1,  6,  3, 8, 1, 3}, { 1,  6,  2, 8, 1, 3}, "GPT-3, ViT-g"},
    {  1600, kAll,   { 1,  5,  4, 2, 5, 2}, { 1,  5,  3, 2, 5, 2}, "GPT-2 XL"},
    {  1728, kUsual, { 1,  7,  3, 8, 1, 3}, { 1,  7,  2, 8, 1, 3}, "ViT-G: 1664"},
    {  2048, kAll,   { 1,  4,  3, 8, 2, 2}, { 1,  8,  2, 8, 1, 3}, "GPT-3, OPT, Pythia, Falcon, Llama"},
    {  2560, kAll,   { 1, 10,  2, 4, 2, 3}, { 1,  5,  2, 8, 2, 2}, "GPT-3, OPT, Pythia"},
    {  3072, kAll,   { 1,  6,  2, 8, 2, 2}, { 1,  6,  2, 8, 2, 2}, "Llama"},
    {  3904, kUsual, { 1,  8,  1, 8, 2, 4}, { 1,  8,  1, 8, 2, 3}, "goal of 7 x 512"},
    {  4096, kAll,   { 2,  4,  2, 8, 2, 4}, { 1,  8,  1, 8, 2, 3}, "GPT-3, OPT, Pythia, Llama"},
    {  4608, kUsual, { 2,  6,  2, 4, 3, 4}, { 2,  6,  2, 4, 3, 3}, "Falcon: 4544"},
    {  5120, kAll,   { 2,  5,  2, 8, 2, 3}, { 2,  5,  2, 8, 2, 2}, "GPT-3, OPT, Pythia, Llama"},
    {  6144, kUsual, { 4,  3,  4, 8, 2, 3}, { 4,  3,  4, 8, 2, 2}, "ViT-22B"},
    {  7552, kUsual, { 2,  4,  2, 8, 4, 2}, { 2,  4,  1, 8, 4, 3}, "Llama: 6656; OPT: 7168"},
    {  8192, kAll,   { 4,  4,  3, 8, 2, 3}, { 4,  4,  2, 8, 2, 3}, "Falcon, Llama"},
    {  9216, kUsual, { 4,  3,  4, 8, 3, 2}, { 2,  5,  1, 8, 4, 3}, "OPT"},
    { 10240, kUsual, { 4,  5,  3, 8, 2, 3}, { 4,  5,  2, 8, 2, 3}, "goals of 19 and 20 x 512"},
    { 12288, kAll,   { 4,  4,  2, 8, 3, 3}, { 4,  4,  2, 8, 3, 2}, "GPT-3, OPT"},
    { 13824, kUsual, { 4,  4,  2, 8, 4, 3}, { 4,  4,  2, 8, 4, 2}, "goals of 25 to 27 x 512"},
    { 14848, kUsual, { 4,  5,  2, 8, 3, 3}, { 4,  5,  2, 8, 3, 2}, "Falcon"},
    { 16384, kAll,   { 8,  4,  3, 8, 2, 3}, { 8,  4,  3, 8, 2, 2}, "Llama"},
    { 18432, kUsual, { 8,  3,  4, 8, 3, 2}, { 8,  5,  2, 8, 2, 3}, "PaLM"},
    { 20480, kAll,   { 8,  5,  3, 8, 2, 3}, { 8,  5,  2, 8, 2, 3}, "MT-NLG"},
    { 24576, kUsual, { 8,  4,  2, 8, 3, 4}, { 8,  4,  3, 8, 3, 2}, "between"},
    { 32768, kAll,   {16,  4,  4, 8, 2, 3}, { 8,  4,  2, 8, 4, 2}, "64 KB"},
    { 65536, kAll,   {16,  4,  2, 8, 4, 6}, {16,  4,  2, 8, 4, 4}, "to 128 KB"},
    {131072, kAll,   {16,  8,  1, 8, 4, 6}, {16,  8,  1, 8, 4, 4}, "to 256 KB"},
    {196608, kUsual, {16,  8,  1, 8, 6, 4, true}, {},                    "between"},
    {262144, kAll,   {16,  8,  1, 8, 8, 3, true}, {},                    "to 512 KB"}};
inline constexpr TeamRingLayouts kTeamRing32[] = {
    {   256, kAll, { 1,  1, 12, 4, 2, 3}, { 1,  1, 12, 4, 2, 2}, "BERT tiny and mini, heads of 80, ViT-Ti"},
    {   512, kAll, { 1,  2,  8, 4, 2, 2}, { 1,  2,  6, 4, 2, 2}, "Pythia, ViT-S, Whisper"},
    {   768, kAll, { 1,  2,  4, 4, 3, 2}, { 1,  3,  3, 4, 2, 2}, "GPT-2, BERT, ViT-B"},
    {  1024, kAll, { 1,  4,  3, 4, 2, 2}, { 1,  4,  2, 4, 2, 2}, "GPT-2, BERT, ViT-L"},
    {  1280, kAll, { 1,  5,  3, 4, 2, 3}, { 1,  5,  2, 4, 2, 2}, "GPT-2, ViT-H, Whisper"},
    {  1792, kAll, { 1,  7,  2, 4, 2, 2}, { 1,  7,  2, 4, 2, 2}, "GPT-2 XL, GPT-3, ViT-g, ViT-G"},
    {  2048, kAll, { 1,  8,  1, 4, 2, 3}, { 1,  8,  1, 4, 2, 3}, "GPT-3, OPT, Pythia, Falcon, Llama"},
    {  3072, kAll, { 1, 12,  1, 4, 2, 3}, { 1, 12,  1, 4, 2, 2}, "GPT-3, OPT, Pythia, Llama"},
    {  4096, kAll, { 1, 16,  1, 4, 2, 2}, { 2,  8,  1, 4, 2, 3}, "GPT-3, OPT, Pythia, Llama"},
    {  5120, kAll, { 2,  5,  1, 4, 4, 3}, { 4,  5,  3, 4, 2, 2}, "GPT-3, OPT, Pythia, Llama, Falcon"},
    {  6144, kAll, { 4,  6,  2, 4, 2, 3}, { 4,  6,  2, 4, 2, 2}, "ViT-22B"},
    {  8192, kAll, { 4,  4,  2, 4, 4, 2}, { 4,  4,  2, 4, 4, 2}, "OPT, Falcon, Llama"},
    { 10240, kAll, { 4,  5,  2, 4, 4, 2}, { 4,  5,  1, 4, 4, 3}, "OPT: 9216"},
    { 12288, kAll, { 8,  4,  2, 4, 3, 3}, { 8,  4,  3, 4, 3, 2}, "GPT-3, OPT"},
    { 16384, kAll, { 8,  4,  2, 4, 4, 2}, { 8,  4,  2, 4, 4, 2}, "Falcon, Llama"},
    { 20480, kAll, { 8,  5,  2, 4, 4, 2}, { 8,  5,  1, 4, 4, 3}, "MT-NLG"},
    { 32768, kAll, {16,  4,  3, 4, 4, 4}, {16,  4,  2, 4, 4, 4}, "to 128 KB"},
    { 65536, kAll, {16,  8,  2, 4, 4, 3}, {16,  8,  1, 4, 4, 3}, "to 256 KB"},
    {131072, kAll, {16,  8,  1, 4, 8, 3}, {16,  8,  1, 4, 8, 2}, "to 512 KB"},
    {229376, kAll, {16,  8,  1, 4, 14, 2, true}, {},                    "to 896 KB"}};

// fp32 rows beside dout of 16 bits; about 48 KB of a block on their way, or 60 for +=: with 73 KB 8192x4096 reached 86 % for 92
inline constexpr TeamRingLayouts kTeamRingMixed[] = {
    {   256, kAll, { 1,  1, 12, 4, 2, 3}, { 1,  1, 12, 4, 2, 2}, "BERT tiny and mini"},
    {   512, kAll, { 1,  2,  8, 4, 2, 2}, { 1,  2,  6, 4, 2, 2}, "Pythia, ViT-S, Whisper"},
    {   768, kAll, { 1,  3,  5, 4, 2, 2}, { 1,  3,  3, 4, 2, 2}, "GPT-2, BERT, ViT-B"},
    {  1024, kAll, { 1,  4,  4, 4, 2, 2}, { 1,  4,  3, 4, 2, 2}, "GPT-2, BERT, ViT-L"},
    {  1280, kAll, { 1,  5,  3, 4, 2, 2}, { 1,  5,  2, 4, 2, 2}, "GPT-2, ViT-H, Whisper"},
    {  1792, kAll, { 1,  7,  2, 4, 2, 2}, { 1,  7,  2, 4, 2, 2}, "GPT-2 XL, GPT-3, ViT-g, ViT-G"},
    {  2048, kAll, { 1,  8,  2, 4, 2, 2}, { 1,  8,  1, 4, 2, 3}, "GPT-3, OPT, Pythia, Falcon, Llama"},
    {  3072, kAll, { 1, 12,  1, 4, 2, 3}, { 1, 12,  1, 4, 2, 2}, "GPT-3, OPT, Pythia, Llama"},
    {  4096, kAll, { 2,  4,  2, 4, 4, 2}, { 2,  8,  1, 4, 2, 3}, "GPT-3, OPT, Pythia, Llama"},
    {  5120, kAll, { 4,  5,  3, 4, 2, 2}, { 4,  5,  2, 4, 2, 2}, "GPT-3, OPT, Pythia, Llama, Falcon"},
    {  8192, kAll, { 4,  4,  2, 4, 4, 2}, { 4,  4,  1, 4, 4, 3}, "ViT-22B, OPT, Falcon, Llama"},
    { 16384, kAll, { 8,  4,  2, 4, 4, 2}, { 8,  4,  1, 4, 4, 3}, "OPT, GPT-3, Falcon, Llama"}};

// ---- backward/unaligned_rows.cuh -----------------------------------------------------------------

// columns: of a lane. One block or a cluster shares a row. Of clusters the one is taken that
// has most rows under way, the first of equal ones; of those for one block the one of most teams and widest
// lanes.
struct UnalignedBackward {
    int cluster = 1, columns, unguarded;
    bool fp32 = true;  // there, clusters of 2 and 4 have too few stages
    const char* use;
};
inline constexpr UnalignedBackward kUnalignedBackward[] = {
    {.columns = 6, .unguarded = 3, .use = "769"},
    {.columns = 9, .unguarded = 6, .use = "to 4608 columns"},
    {.columns = 12, .unguarded = 9, .use = "to 6144 columns"},
    {.columns = 16, .unguarded = 12, .use = "to 8192 columns"},
    {.cluster = 16, .columns = 16, .unguarded = 12, .use = "to 131072 columns"},
    {.cluster = 8, .columns = 16, .unguarded = 10, .use = "to 65536 columns"},
    {.cluster = 4, .columns = 16, .unguarded = 12, .fp32 = false, .use = "to 32768 columns"},
    {.cluster = 2, .columns = 16, .unguarded = 12, .fp32 = false, .use = "to 16384 columns"}};
constexpr int kFewestUnalignedBackward = 128;  // columns
constexpr int kMostGroups = 256;  // of sums by column, which scratch holds: no GPU has as many multiprocessors

// ---- backward/cp_async_teams.cuh -----------------------------------------------------------------

// Before Hopper: rows that the registers of a block hold. Of these the one that costs least is taken: choose.h.
struct CpAsyncTeams {
    int vectors;
    bool adds = true;     // for +=, too, which has no registers for 3 vectors
    bool reread = false;  // a row's second half reads shared memory again: longer rows, for 99 KB of it
};
inline constexpr CpAsyncTeams kCpAsyncTeams16[] = {
    {.vectors = 2}, {.vectors = 1}, {.vectors = 3, .adds = false}, {.vectors = 4, .reread = true}};
inline constexpr CpAsyncTeams kCpAsyncTeams32[] = {{.vectors = 4}, {.vectors = 3}, {.vectors = 2}};

// ---- backward/cp_async_pipelined.cuh -------------------------------------------------------------

// The first is taken that a multiprocessor has shared memory for, 163 KB of an A100, 227 of an H100, and registers.
enum class Forms { kBoth, kWrite, kAdd };
constexpr int kPipelinedWarps = 16;
struct CpAsyncPipelined {
    int vectors, lead, stages;  // lead: rows that the first half is ahead of the second; 1: a block has a row alone
    Forms forms = Forms::kBoth;
    bool keeps_weight = true;      // in shared memory
    bool lines = false;            // for rows of whole lines alone
    int beyond = 0, to = INT_MAX;  // for rows of more than `beyond` columns, and at most `to`
    const char* use;
    constexpr bool is_for(bool adds) const { return forms != (adds ? Forms::kWrite : Forms::kAdd); }
    constexpr int columns(int vector) const { return kPipelinedWarps * kWarp * vector * vectors; }
};
inline constexpr CpAsyncPipelined kCpAsyncPipelined16[] = {
    {.vectors = 3, .lead = 1, .stages = 2, .use = "to 12288 columns"},
    {.vectors = 4, .lead = 1, .stages = 2, .use = "to 16384 columns"},
    {.vectors = 2, .lead = 4, .stages = 6, .forms = Forms::kAdd, .lines = true, .use = "90 % for 81 at 65536"},
    {.vectors = 2, .lead = 3, .stages = 4, .forms = Forms::kAdd, .lines = true, .use = "less shared memory"},
    {.vectors = 4, .lead = 2, .stages = 3, .forms = Forms::kWrite, .beyond = 24576, .to = 32768,
     .use = "two blocks for three"},
    {.vectors = 3, .lead = 3, .stages = 4, .forms = Forms::kWrite, .use = "shared rows"},
    {.vectors = 3, .lead = 2, .stages = 3, .forms = Forms::kAdd, .use = "shared rows: 81 % for 77 at 90000"},
    {.vectors = 2, .lead = 3, .stages = 4, .use = "shared rows, less shared memory"}};
inline constexpr CpAsyncPipelined kCpAsyncPipelined32[] = {
    {.vectors = 4, .lead = 1, .stages = 2, .use = "to 8192 columns"},
    {.vectors = 2, .lead = 3, .stages = 4, .forms = Forms::kAdd, .lines = true, .use = "more rows ahead"},
    {.vectors = 3, .lead = 3, .stages = 4, .forms = Forms::kWrite, .use = "shared rows"},
    {.vectors = 3, .lead = 2, .stages = 3, .forms = Forms::kAdd, .use = "shared rows"},
    {.vectors = 2, .lead = 3, .stages = 4, .use = "shared rows, less shared memory"},
    {.vectors = 4, .lead = 2, .stages = 3, .forms = Forms::kWrite, .use = "the longest"},
    {.vectors = 4, .lead = 2, .stages = 3, .forms = Forms::kAdd, .keeps_weight = false, .use = "the longest"}};

}  // namespace llmc::layouts
