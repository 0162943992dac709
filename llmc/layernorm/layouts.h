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
#include <iterator>

namespace llmc::layouts {

// a layout is a line or two
// clang-format off

// GPT-2, GPT-3, BERT, ViT, Whisper, OPT, Pythia, Falcon, Llama, PaLM and MT-NLG, and their heads
inline constexpr int kModelWidths[] = {
    64, 80, 128, 192, 256, 384, 512, 768, 1024, 1280, 1408, 1536, 1600, 1664, 2048, 2560, 3072,
    4096, 4544, 5120, 6144, 6656, 7168, 8192, 9216, 12288, 14848, 16384, 18432, 20480};

constexpr int kLanes = 32;  // of a warp

// The calls that a layout is for. Rare ones have few layouts: there no vectors are unguarded. Rare are
// weights of another type than the rows'; in forward only if there is a residual, too.
enum class Calls { kUsual, kAll };  // kUsual: but for rare ones
constexpr bool are_for(Calls calls, bool rare) { return calls == Calls::kAll || !rare; }

// ---- forward/short_rows.cuh ----------------------------------------------------------------------

struct ShortForward {
    int lanes, vectors, unguarded;
    const char* use;
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
constexpr int columns_of(const ShortForward& layout, int vector) {
    return layout.lanes * layout.vectors * vector;
}

// ---- forward/row_in_registers.cuh ----------------------------------------------------------------

// early: what is asked for together with the row: weight (1), or weight and bias (2); of a row of a cluster,
// this number of vectors of both.
struct RowInRegisters {
    int cluster = 1, warps, teams = 1, vectors, blocks_per_sm, early;
    bool unpack_each_pass = true;  // a row of 16 bits: as fp32 it does not fit the registers
    Calls calls = Calls::kUsual;
    const char* use;
};
inline constexpr RowInRegisters kRowInRegisters16[] = {
    {.warps = 1, .teams = 2, .vectors = 3, .blocks_per_sm = 17, .early = 2, .use = "GPT-2, BERT, ViT-B: 768"},
    {.warps = 1, .teams = 2, .vectors = 4, .blocks_per_sm = 16, .early = 2, .calls = Calls::kAll,
     .use = "GPT-2, BERT, ViT-L: 1024"},
    {.warps = 1, .teams = 2, .vectors = 5, .blocks_per_sm = 10, .early = 2, .unpack_each_pass = false,
     .use = "GPT-2, ViT-H, Whisper: 1280"},
    {.warps = 2, .vectors = 3, .blocks_per_sm = 12, .early = 2, .use = "GPT-3, ViT-g: 1536"},
    {.warps = 1, .teams = 2, .vectors = 7, .blocks_per_sm = 10, .early = 0, .unpack_each_pass = false,
     .calls = Calls::kAll, .use = "GPT-2 XL, ViT-G: 1600, 1664"},
    {.warps = 4, .vectors = 2, .blocks_per_sm = 12, .early = 2,
     .use = "GPT-3, OPT, Pythia, Falcon, Llama: 2048"},
    {.warps = 4, .vectors = 3, .blocks_per_sm = 9, .early = 2,
     .use = "GPT-3, OPT, Pythia, Llama: 2560, 3072"},
    {.warps = 4, .vectors = 4, .blocks_per_sm = 8, .early = 2, .calls = Calls::kAll,
     .use = "GPT-3, OPT, Pythia, Llama: 4096"},
    {.warps = 5, .vectors = 4, .blocks_per_sm = 6, .early = 2,
     .use = "Falcon, GPT-3, OPT, Pythia, Llama: 4544, 5120"},
    {.warps = 6, .vectors = 4, .blocks_per_sm = 5, .early = 2, .use = "ViT-22B: 6144"},
    {.warps = 7, .vectors = 4, .blocks_per_sm = 5, .early = 1, .use = "Llama, OPT: 6656, 7168"},
    {.warps = 8, .vectors = 4, .blocks_per_sm = 4, .early = 2, .calls = Calls::kAll,
     .use = "Falcon, Llama: 8192"},
    {.warps = 8, .vectors = 5, .blocks_per_sm = 4, .early = 0, .use = "OPT: 9216"},
    {.warps = 12, .vectors = 4, .blocks_per_sm = 3, .early = 1, .use = "GPT-3, OPT: 12288"},
    {.warps = 8, .vectors = 7, .blocks_per_sm = 3, .early = 1, .use = "between"},
    {.warps = 9, .vectors = 7, .blocks_per_sm = 3, .early = 0, .use = "Falcon: 14848"},
    {.warps = 8, .vectors = 8, .blocks_per_sm = 3, .early = 0, .calls = Calls::kAll, .use = "Llama: 16384"},
    {.warps = 16, .vectors = 8, .blocks_per_sm = 2, .early = 1, .calls = Calls::kAll, .use = "MT-NLG: 20480"},
    {.cluster = 2, .warps = 16, .vectors = 8, .blocks_per_sm = 2, .early = 1, .use = "to 128 KB"},
    {.cluster = 8, .warps = 8, .vectors = 8, .blocks_per_sm = 4, .early = 1, .use = "to 256 KB"},
    {.cluster = 8, .warps = 16, .vectors = 8, .blocks_per_sm = 2, .early = 1, .use = "to 512 KB"}};
inline constexpr RowInRegisters kRowInRegisters32[] = {
    {.warps = 1, .teams = 2, .vectors = 3, .blocks_per_sm = 1, .early = 2, .use = "ViT-S, Whisper: 384"},
    {.warps = 1, .teams = 2, .vectors = 4, .blocks_per_sm = 1, .early = 2, .use = "Pythia, Whisper: 512"},
    {.warps = 2, .vectors = 3, .blocks_per_sm = 16, .early = 2, .use = "GPT-2, BERT, ViT-B: 768"},
    {.warps = 2, .vectors = 4, .blocks_per_sm = 12, .early = 2, .use = "GPT-2, BERT, ViT-L: 1024"},
    {.warps = 4, .vectors = 3, .blocks_per_sm = 8, .early = 2,
     .use = "GPT-2, ViT-H, Whisper, GPT-3: 1280 to 1536"},
    {.warps = 4, .vectors = 4, .blocks_per_sm = 8, .early = 2, .use = "GPT-2 XL, ViT-G, GPT-3: 1600 to 2048"},
    {.warps = 5, .vectors = 4, .blocks_per_sm = 5, .early = 2, .use = "GPT-3, OPT, Pythia: 2560"},
    {.warps = 6, .vectors = 4, .blocks_per_sm = 5, .early = 2, .use = "Llama: 3072"},
    {.warps = 8, .vectors = 4, .blocks_per_sm = 4, .early = 2, .use = "GPT-3, OPT, Pythia, Llama: 4096"},
    {.warps = 10, .vectors = 4, .blocks_per_sm = 3, .early = 2,
     .use = "Falcon, GPT-3, OPT, Pythia, Llama: 4544, 5120"},
    {.warps = 8, .vectors = 6, .blocks_per_sm = 3, .early = 1, .use = "ViT-22B: 6144"},
    {.warps = 16, .vectors = 4, .blocks_per_sm = 2, .early = 2, .use = "Llama, OPT, Falcon: 6656 to 8192"},
    {.warps = 16, .vectors = 8, .blocks_per_sm = 2, .early = 1,
     .use = "OPT, GPT-3, Falcon, Llama: 9216 to 16384"},
    {.cluster = 2, .warps = 8, .vectors = 10, .blocks_per_sm = 3, .early = 1, .use = "MT-NLG: 20480"},
    {.cluster = 2, .warps = 16, .vectors = 8, .blocks_per_sm = 2, .early = 1, .use = "to 128 KB"},
    {.cluster = 8, .warps = 8, .vectors = 8, .blocks_per_sm = 4, .early = 1, .use = "to 256 KB"},
    {.cluster = 16, .warps = 8, .vectors = 8, .blocks_per_sm = 4, .early = 1, .use = "to 512 KB"},
    {.cluster = 16, .warps = 16, .vectors = 8, .blocks_per_sm = 2, .early = 1, .use = "to 1 MB"}};
// threads of a row; what is longer than kShortVectors vectors is shared by a block or cluster with a barrier
// behind its loads
constexpr int kShortVectors = 2112;
constexpr int step_of(const RowInRegisters& layout) { return layout.cluster * layout.warps * kLanes; }
constexpr bool is_long(const RowInRegisters& layout) {
    return step_of(layout) * layout.vectors > kShortVectors;
}
constexpr int unguarded_of(const RowInRegisters& layout) {
    return is_long(layout) ? layout.vectors / 2 : layout.vectors - 1;
}
constexpr int columns_of(const RowInRegisters& layout, int vector) {
    return step_of(layout) * layout.vectors * vector;
}

// ---- forward/unaligned_rows.cuh ------------------------------------------------------------------

// For 16 bits and, half as many columns, fp32. A lane has its vectors and one column more. rare_unguarded:
// unguarded for rare calls, whose weights are not aligned or of another type; -1: the layout is not for these.
struct UnalignedForward {
    int cluster = 1, warps, teams = 1, lanes, vectors, unguarded, blocks_per_sm, early, rare_unguarded = -1;
    const char* use;
};
constexpr int kFewestUnalignedForward = 57;  // columns; short_rows.cuh has shorter rows
inline constexpr UnalignedForward kUnalignedForward[] = {
    {.warps = 1, .teams = 2, .lanes = 8, .vectors = 4, .unguarded = 0, .blocks_per_sm = 12, .early = 2,
     .rare_unguarded = 0, .use = "to 264 columns of 16 bits"},
    {.warps = 1, .lanes = 8, .vectors = 8, .unguarded = 4, .blocks_per_sm = 16, .early = 1,
     .rare_unguarded = 4, .use = "to 520"},
    {.warps = 1, .lanes = 16, .vectors = 6, .unguarded = 4, .blocks_per_sm = 20, .early = 1, .use = "769"},
    {.warps = 1, .lanes = 32, .vectors = 8, .unguarded = 3, .blocks_per_sm = 16, .early = 1,
     .rare_unguarded = 2, .use = "1601"},
    {.warps = 2, .lanes = 32, .vectors = 8, .unguarded = 4, .blocks_per_sm = 8, .early = 1,
     .rare_unguarded = 4, .use = "4097"},
    {.warps = 4, .lanes = 32, .vectors = 8, .unguarded = 4, .blocks_per_sm = 4, .early = 1,
     .rare_unguarded = 4, .use = "8191; GPT-3: 5140"},
    {.warps = 8, .lanes = 32, .vectors = 8, .unguarded = 4, .blocks_per_sm = 2, .early = 1,
     .rare_unguarded = 4, .use = "to 16640"},
    {.cluster = 3, .warps = 4, .lanes = 32, .vectors = 9, .unguarded = 5, .blocks_per_sm = 4, .early = 0,
     .use = "to 28032"},
    {.cluster = 5, .warps = 4, .lanes = 32, .vectors = 9, .unguarded = 5, .blocks_per_sm = 4, .early = 0,
     .use = "to 46720"},
    {.cluster = 8, .warps = 4, .lanes = 32, .vectors = 9, .unguarded = 5, .blocks_per_sm = 4, .early = 0,
     .rare_unguarded = 2, .use = "to 74752"},
    {.cluster = 12, .warps = 4, .lanes = 32, .vectors = 9, .unguarded = 5, .blocks_per_sm = 4, .early = 0,
     .use = "to 112128"},
    {.cluster = 12, .warps = 8, .lanes = 32, .vectors = 9, .unguarded = 4, .blocks_per_sm = 2, .early = 0,
     .use = "to 224256"},
    {.cluster = 16, .warps = 8, .lanes = 32, .vectors = 9, .unguarded = 5, .blocks_per_sm = 2, .early = 0,
     .use = "to 299008"}};
constexpr int columns_of(const UnalignedForward& layout, int vector) {
    return layout.cluster * layout.warps * layout.lanes * (layout.vectors * vector + 1);
}
constexpr bool is_for(const UnalignedForward& layout, bool rare) {
    return !rare || layout.rare_unguarded >= 0;
}

// ---- backward/short_rows.cuh ---------------------------------------------------------------------

// whole vectors, one a lane; or pieces, as many a lane as registers allow
struct ShortBackward {
    int lanes;
    const char* use;
};
inline constexpr ShortBackward kShortBackward[] = {
    {.lanes = 4, .use = "narrower than any model"},
    {.lanes = 8, .use = "heads of 64 in 16 bits"},
    {.lanes = 16, .use = "heads of 80, BERT tiny in 16 bits, heads of 64"}};
inline constexpr ShortBackward kShortBackwardPieces[] = {{.lanes = 4, .use = "to 20 columns, or 24, or 32"},
                                                  {.lanes = 8, .use = "to 40 columns, or 48, or 64"},
                                                  {.lanes = 16, .use = "to 80 columns, or 96, or 128"},
                                                  {.lanes = 32, .use = "to 160 columns, or 192"}};
constexpr int pieces_of_lane(int vector) { return vector == 1 ? 5 : vector == 2 ? 3 : 2; }
constexpr int columns_of(const ShortBackward& layout, int piece) {
    return layout.lanes * piece * pieces_of_lane(piece);
}

// ---- backward/team_ring.cuh ----------------------------------------------------------------------

struct TeamRing {
    int cluster = 1, warps, teams, vector, vectors, stages;
    bool reread = false;  // a row's second half reads shared memory again: registers do not hold the row
    constexpr bool operator==(const TeamRing&) const = default;
};
constexpr int columns_of(const TeamRing& ring) {
    return ring.cluster * ring.warps * kLanes * ring.vector * ring.vectors;
}
// For rows of up to `columns` columns: dinp =, and +=, whose stages are half as large again.
struct TeamRingLayouts {
    int columns;
    Calls calls = Calls::kAll;
    const char* use;
    TeamRing write, add{};
    constexpr bool adds() const { return add.warps > 0; }
};
inline constexpr TeamRingLayouts kTeamRing16[] = {
    {.columns = 256, .use = "BERT tiny and mini, heads of 80, ViT-Ti",
     .write = {.warps = 1, .teams = 12, .vector = 8, .vectors = 1, .stages = 4},
     .add = {.warps = 1, .teams = 12, .vector = 8, .vectors = 1, .stages = 3}},
    {.columns = 512, .use = "Pythia, ViT-S, Whisper",
     .write = {.warps = 2, .teams = 8, .vector = 8, .vectors = 1, .stages = 3},
     .add = {.warps = 2, .teams = 8, .vector = 8, .vectors = 1, .stages = 2}},
    {.columns = 768, .use = "GPT-2, BERT, ViT-B",
     .write = {.warps = 3, .teams = 4, .vector = 8, .vectors = 1, .stages = 4},
     .add = {.warps = 3, .teams = 5, .vector = 8, .vectors = 1, .stages = 2}},
    {.columns = 1024, .use = "GPT-2, BERT, ViT-L",
     .write = {.warps = 4, .teams = 4, .vector = 8, .vectors = 1, .stages = 3},
     .add = {.warps = 4, .teams = 4, .vector = 8, .vectors = 1, .stages = 2}},
    {.columns = 1280, .use = "GPT-2, ViT-H, Whisper",
     .write = {.warps = 5, .teams = 3, .vector = 8, .vectors = 1, .stages = 4},
     .add = {.warps = 5, .teams = 3, .vector = 8, .vectors = 1, .stages = 3}},
    {.columns = 1536, .calls = Calls::kUsual, .use = "GPT-3, ViT-g",
     .write = {.warps = 6, .teams = 3, .vector = 8, .vectors = 1, .stages = 3},
     .add = {.warps = 6, .teams = 2, .vector = 8, .vectors = 1, .stages = 3}},
    {.columns = 1600, .use = "GPT-2 XL",
     .write = {.warps = 5, .teams = 4, .vector = 2, .vectors = 5, .stages = 2},
     .add = {.warps = 5, .teams = 3, .vector = 2, .vectors = 5, .stages = 2}},
    {.columns = 1728, .calls = Calls::kUsual, .use = "ViT-G: 1664",
     .write = {.warps = 7, .teams = 3, .vector = 8, .vectors = 1, .stages = 3},
     .add = {.warps = 7, .teams = 2, .vector = 8, .vectors = 1, .stages = 3}},
    {.columns = 2048, .use = "GPT-3, OPT, Pythia, Falcon, Llama",
     .write = {.warps = 4, .teams = 3, .vector = 8, .vectors = 2, .stages = 2},
     .add = {.warps = 8, .teams = 2, .vector = 8, .vectors = 1, .stages = 3}},
    {.columns = 2560, .use = "GPT-3, OPT, Pythia",
     .write = {.warps = 10, .teams = 2, .vector = 4, .vectors = 2, .stages = 3},
     .add = {.warps = 5, .teams = 2, .vector = 8, .vectors = 2, .stages = 2}},
    {.columns = 3072, .use = "Llama",
     .write = {.warps = 6, .teams = 2, .vector = 8, .vectors = 2, .stages = 2},
     .add = {.warps = 6, .teams = 2, .vector = 8, .vectors = 2, .stages = 2}},
    {.columns = 3904, .calls = Calls::kUsual, .use = "goal of 7 x 512",
     .write = {.warps = 8, .teams = 1, .vector = 8, .vectors = 2, .stages = 4},
     .add = {.warps = 8, .teams = 1, .vector = 8, .vectors = 2, .stages = 3}},
    {.columns = 4096, .use = "GPT-3, OPT, Pythia, Llama",
     .write = {.cluster = 2, .warps = 4, .teams = 2, .vector = 8, .vectors = 2, .stages = 4},
     .add = {.warps = 8, .teams = 1, .vector = 8, .vectors = 2, .stages = 3}},
    {.columns = 4608, .calls = Calls::kUsual, .use = "Falcon: 4544",
     .write = {.cluster = 2, .warps = 6, .teams = 2, .vector = 4, .vectors = 3, .stages = 4},
     .add = {.cluster = 2, .warps = 6, .teams = 2, .vector = 4, .vectors = 3, .stages = 3}},
    {.columns = 5120, .use = "GPT-3, OPT, Pythia, Llama",
     .write = {.cluster = 2, .warps = 5, .teams = 2, .vector = 8, .vectors = 2, .stages = 3},
     .add = {.cluster = 2, .warps = 5, .teams = 2, .vector = 8, .vectors = 2, .stages = 2}},
    {.columns = 6144, .calls = Calls::kUsual, .use = "ViT-22B",
     .write = {.cluster = 4, .warps = 3, .teams = 4, .vector = 8, .vectors = 2, .stages = 3},
     .add = {.cluster = 4, .warps = 3, .teams = 4, .vector = 8, .vectors = 2, .stages = 2}},
    {.columns = 7552, .calls = Calls::kUsual, .use = "Llama: 6656; OPT: 7168",
     .write = {.cluster = 2, .warps = 4, .teams = 2, .vector = 8, .vectors = 4, .stages = 2},
     .add = {.cluster = 2, .warps = 4, .teams = 1, .vector = 8, .vectors = 4, .stages = 3}},
    {.columns = 8192, .use = "Falcon, Llama",
     .write = {.cluster = 4, .warps = 4, .teams = 3, .vector = 8, .vectors = 2, .stages = 3},
     .add = {.cluster = 4, .warps = 4, .teams = 2, .vector = 8, .vectors = 2, .stages = 3}},
    {.columns = 9216, .calls = Calls::kUsual, .use = "OPT",
     .write = {.cluster = 4, .warps = 3, .teams = 4, .vector = 8, .vectors = 3, .stages = 2},
     .add = {.cluster = 2, .warps = 5, .teams = 1, .vector = 8, .vectors = 4, .stages = 3}},
    {.columns = 10240, .calls = Calls::kUsual, .use = "goals of 19 and 20 x 512",
     .write = {.cluster = 4, .warps = 5, .teams = 3, .vector = 8, .vectors = 2, .stages = 3},
     .add = {.cluster = 4, .warps = 5, .teams = 2, .vector = 8, .vectors = 2, .stages = 3}},
    {.columns = 12288, .use = "GPT-3, OPT",
     .write = {.cluster = 4, .warps = 4, .teams = 2, .vector = 8, .vectors = 3, .stages = 3},
     .add = {.cluster = 4, .warps = 4, .teams = 2, .vector = 8, .vectors = 3, .stages = 2}},
    {.columns = 13824, .calls = Calls::kUsual, .use = "goals of 25 to 27 x 512",
     .write = {.cluster = 4, .warps = 4, .teams = 2, .vector = 8, .vectors = 4, .stages = 3},
     .add = {.cluster = 4, .warps = 4, .teams = 2, .vector = 8, .vectors = 4, .stages = 2}},
    {.columns = 14848, .calls = Calls::kUsual, .use = "Falcon",
     .write = {.cluster = 4, .warps = 5, .teams = 2, .vector = 8, .vectors = 3, .stages = 3},
     .add = {.cluster = 4, .warps = 5, .teams = 2, .vector = 8, .vectors = 3, .stages = 2}},
    {.columns = 16384, .use = "Llama",
     .write = {.cluster = 8, .warps = 4, .teams = 3, .vector = 8, .vectors = 2, .stages = 3},
     .add = {.cluster = 8, .warps = 4, .teams = 3, .vector = 8, .vectors = 2, .stages = 2}},
    {.columns = 18432, .calls = Calls::kUsual, .use = "PaLM",
     .write = {.cluster = 8, .warps = 3, .teams = 4, .vector = 8, .vectors = 3, .stages = 2},
     .add = {.cluster = 8, .warps = 5, .teams = 2, .vector = 8, .vectors = 2, .stages = 3}},
    {.columns = 20480, .use = "MT-NLG",
     .write = {.cluster = 8, .warps = 5, .teams = 3, .vector = 8, .vectors = 2, .stages = 3},
     .add = {.cluster = 8, .warps = 5, .teams = 2, .vector = 8, .vectors = 2, .stages = 3}},
    {.columns = 24576, .calls = Calls::kUsual, .use = "between",
     .write = {.cluster = 8, .warps = 4, .teams = 2, .vector = 8, .vectors = 3, .stages = 4},
     .add = {.cluster = 8, .warps = 4, .teams = 3, .vector = 8, .vectors = 3, .stages = 2}},
    {.columns = 32768, .use = "64 KB",
     .write = {.cluster = 16, .warps = 4, .teams = 4, .vector = 8, .vectors = 2, .stages = 3},
     .add = {.cluster = 8, .warps = 4, .teams = 2, .vector = 8, .vectors = 4, .stages = 2}},
    {.columns = 65536, .use = "to 128 KB",
     .write = {.cluster = 16, .warps = 4, .teams = 2, .vector = 8, .vectors = 4, .stages = 6},
     .add = {.cluster = 16, .warps = 4, .teams = 2, .vector = 8, .vectors = 4, .stages = 4}},
    {.columns = 131072, .use = "to 256 KB",
     .write = {.cluster = 16, .warps = 8, .teams = 1, .vector = 8, .vectors = 4, .stages = 6},
     .add = {.cluster = 16, .warps = 8, .teams = 1, .vector = 8, .vectors = 4, .stages = 4}},
    {.columns = 196608, .calls = Calls::kUsual, .use = "between",
     .write = {.cluster = 16, .warps = 8, .teams = 1, .vector = 8, .vectors = 6, .stages = 4,
               .reread = true}},
    {.columns = 262144, .use = "to 512 KB",
     .write = {.cluster = 16, .warps = 8, .teams = 1, .vector = 8, .vectors = 8, .stages = 3,
               .reread = true}}};
inline constexpr TeamRingLayouts kTeamRing32[] = {
    {.columns = 256, .use = "BERT tiny and mini, heads of 80, ViT-Ti",
     .write = {.warps = 1, .teams = 12, .vector = 4, .vectors = 2, .stages = 3},
     .add = {.warps = 1, .teams = 12, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 512, .use = "Pythia, ViT-S, Whisper",
     .write = {.warps = 2, .teams = 8, .vector = 4, .vectors = 2, .stages = 2},
     .add = {.warps = 2, .teams = 6, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 768, .use = "GPT-2, BERT, ViT-B",
     .write = {.warps = 2, .teams = 4, .vector = 4, .vectors = 3, .stages = 2},
     .add = {.warps = 3, .teams = 3, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 1024, .use = "GPT-2, BERT, ViT-L",
     .write = {.warps = 4, .teams = 3, .vector = 4, .vectors = 2, .stages = 2},
     .add = {.warps = 4, .teams = 2, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 1280, .use = "GPT-2, ViT-H, Whisper",
     .write = {.warps = 5, .teams = 3, .vector = 4, .vectors = 2, .stages = 3},
     .add = {.warps = 5, .teams = 2, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 1792, .use = "GPT-2 XL, GPT-3, ViT-g, ViT-G",
     .write = {.warps = 7, .teams = 2, .vector = 4, .vectors = 2, .stages = 2},
     .add = {.warps = 7, .teams = 2, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 2048, .use = "GPT-3, OPT, Pythia, Falcon, Llama",
     .write = {.warps = 8, .teams = 1, .vector = 4, .vectors = 2, .stages = 3},
     .add = {.warps = 8, .teams = 1, .vector = 4, .vectors = 2, .stages = 3}},
    {.columns = 3072, .use = "GPT-3, OPT, Pythia, Llama",
     .write = {.warps = 12, .teams = 1, .vector = 4, .vectors = 2, .stages = 3},
     .add = {.warps = 12, .teams = 1, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 4096, .use = "GPT-3, OPT, Pythia, Llama",
     .write = {.warps = 16, .teams = 1, .vector = 4, .vectors = 2, .stages = 2},
     .add = {.cluster = 2, .warps = 8, .teams = 1, .vector = 4, .vectors = 2, .stages = 3}},
    {.columns = 5120, .use = "GPT-3, OPT, Pythia, Llama, Falcon",
     .write = {.cluster = 2, .warps = 5, .teams = 1, .vector = 4, .vectors = 4, .stages = 3},
     .add = {.cluster = 4, .warps = 5, .teams = 3, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 6144, .use = "ViT-22B",
     .write = {.cluster = 4, .warps = 6, .teams = 2, .vector = 4, .vectors = 2, .stages = 3},
     .add = {.cluster = 4, .warps = 6, .teams = 2, .vector = 4, .vectors = 2, .stages = 2}},
    {.columns = 8192, .use = "OPT, Falcon, Llama",
     .write = {.cluster = 4, .warps = 4, .teams = 2, .vector = 4, .vectors = 4, .stages = 2},
     .add = {.cluster = 4, .warps = 4, .teams = 2, .vector = 4, .vectors = 4, .stages = 2}},
    {.columns = 10240, .use = "OPT: 9216",
     .write = {.cluster = 4, .warps = 5, .teams = 2, .vector = 4, .vectors = 4, .stages = 2},
     .add = {.cluster = 4, .warps = 5, .teams = 1, .vector = 4, .vectors = 4, .stages = 3}},
    {.columns = 12288, .use = "GPT-3, OPT",
     .write = {.cluster = 8, .warps = 4, .teams = 2, .vector = 4, .vectors = 3, .stages = 3},
     .add = {.cluster = 8, .warps = 4, .teams = 3, .vector = 4, .vectors = 3, .stages = 2}},
    {.columns = 16384, .use = "Falcon, Llama",
     .write = {.cluster = 8, .warps = 4, .teams = 2, .vector = 4, .vectors = 4, .stages = 2},
     .add = {.cluster = 8, .warps = 4, .teams = 2, .vector = 4, .vectors = 4, .stages = 2}},
    {.columns = 20480, .use = "MT-NLG",
     .write = {.cluster = 8, .warps = 5, .teams = 2, .vector = 4, .vectors = 4, .stages = 2},
     .add = {.cluster = 8, .warps = 5, .teams = 1, .vector = 4, .vectors = 4, .stages = 3}},
    {.columns = 32768, .use = "to 128 KB",
     .write = {.cluster = 16, .warps = 4, .teams = 3, .vector = 4, .vectors = 4, .stages = 4},
     .add = {.cluster = 16, .warps = 4, .teams = 2, .vector = 4, .vectors = 4, .stages = 4}},
    {.columns = 65536, .use = "to 256 KB",
     .write = {.cluster = 16, .warps = 8, .teams = 2, .vector = 4, .vectors = 4, .stages = 3},
     .add = {.cluster = 16, .warps = 8, .teams = 1, .vector = 4, .vectors = 4, .stages = 3}},
    {.columns = 131072, .use = "to 512 KB",
     .write = {.cluster = 16, .warps = 8, .teams = 1, .vector = 4, .vectors = 8, .stages = 3},
     .add = {.cluster = 16, .warps = 8, .teams = 1, .vector = 4, .vectors = 8, .stages = 2}},
    {.columns = 229376, .use = "to 896 KB",
     .write = {.cluster = 16, .warps = 8, .teams = 1, .vector = 4, .vectors = 14, .stages = 2,
               .reread = true}}};

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
struct CpAsyncPipelined {
    int vectors, lead, stages;  // lead: rows that the first half is ahead of the second; 1: a block has a row alone
    Forms forms = Forms::kBoth;
    bool keeps_weight = true;      // in shared memory
    bool lines = false;            // for rows of whole lines alone
    int beyond = 0, to = INT_MAX;  // for rows of more than `beyond` columns, and at most `to`
    const char* use;
    constexpr bool is_for(bool adds) const { return forms != (adds ? Forms::kWrite : Forms::kAdd); }
};
constexpr int kPipelinedWarps = 16;
constexpr int columns_of(const CpAsyncPipelined& layout, int vector) {
    return kPipelinedWarps * kLanes * vector * layout.vectors;
}
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
