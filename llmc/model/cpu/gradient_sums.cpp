// The gradient of a step, summed over groups: see gradient_sums.h.
#include "llmc/model/cpu/gradient_sums.h"

#include <algorithm>
#include <cmath>

#include "llmc/host/base/error.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

namespace {

// the ranks' parts of a range of `whole`, which has all elements
RankParts<float> parts_of(float* whole, const std::vector<SharePart>& range) {
    RankParts<float> parts;
    for (const SharePart& part : range) { parts.emplace_back(whole + part.begin, (size_t)part.size()); }
    return parts;
}

}  // namespace

GradientSums::GradientSums(const StateShares& shares, Comm* comm) : shares_(shares), comm_(comm) {
    require(shares.ranks == (comm == nullptr ? 1 : comm->size()),
            "GradientSums: a comm of the shares' ranks");
    const auto n = (size_t)shares.sizes[rank()];
    if (shares.groups > 1) { own_.resize(n); }
    if (shares.ranks > 1) { arrived_.resize(n * (size_t)shares.ranks); }
}

int64_t GradientSums::bytes(const StateShares& s) {
    int64_t passed_on = 0;  // through rank 0, from all others to one
    for (const auto& range : s.parts) {
        for (const SharePart& part : range) { passed_on = std::max(passed_on, (s.ranks - 2) * part.size()); }
    }
    const int64_t own = s.largest() * ((s.groups > 1 ? 1 : 0) + (s.ranks > 1 ? s.ranks : 0));
    return (int64_t)sizeof(float) * (own + passed_on);
}

void GradientSums::add_part(const float* part, bool start) {
    const auto n = (int64_t)own_.size();
    if (start) {
        std::copy(part, part + n, own_.begin());
        return;
    }
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) { own_[(size_t)i] += part[i]; }
}

void GradientSums::add(std::vector<float>& grads, bool start) {
    sums_ = shares_.groups == 1 ? grads.data() : own_.data();
    if (shares_.groups == 1) { return; }
    const size_t n = own_.size(), ranks = (size_t)shares_.ranks;
    if (ranks == 1) { return add_part(grads.data(), start); }
    for (const auto& range : shares_.parts) {
        const SharePart& mine = range[rank()];
        const RankParts<float> out = parts_of(grads.data(), range);
        RankParts<float> in;
        for (size_t r = 0; r < ranks; r++) {
            in.emplace_back(arrived_.data() + r * n + mine.kept, (size_t)mine.size());
        }
        comm_->exchange_values<float>("gradients", {out.begin(), out.end()}, in);
    }
    for (size_t r = 0; r < ranks; r++) { add_part(arrived_.data() + r * n, start && r == 0); }
}

void GradientSums::all_gather(const char* what, float* whole) const {
    for (const auto& range : shares_.parts) { comm_->all_gather_parts(what, parts_of(whole, range)); }
}

void GradientSums::gather(const char* what, State state, float* whole, const float* share) const {
    for (const auto& range : shares_.of(state).parts) {
        const SharePart& mine = range[rank()];
        const RankParts<float> all = comm_->root() ? parts_of(whole, range) : RankParts<float>();
        comm_->gather<float>(what, all, {share + mine.kept, (size_t)mine.size()});
    }
}

double GradientSums::norm() const {
    const std::vector<int64_t> begins = shares_.chunk_begins();
    const std::vector<NormChunk> chunks = shares_.chunks_by_rank();
    std::vector<double> by_rank(chunks.size()), squares(chunks.size());
#pragma omp parallel for
    for (int64_t k = begins[rank()]; k < begins[rank() + 1]; k++) {
        const NormChunk& chunk = chunks[(size_t)k];
        by_rank[(size_t)k] = sum_of_squares_cpu(sums_ + chunk.kept, chunk.size);
    }
    if (comm_ != nullptr) { comm_->all_gather("the gradient's norm", by_rank.data(), begins); }
    for (size_t k = 0; k < chunks.size(); k++) { squares[(size_t)chunks[k].number] = by_rank[k]; }
    double sum = 0;
    for (double one : squares) { sum += one; }
    return std::sqrt(sum);
}

double GradientSums::total(const std::vector<double>& here) const {
    const auto groups = (size_t)shares_.groups, ranks = (size_t)shares_.ranks;
    std::vector<double> all(groups);
    std::ranges::copy(here, all.begin() + (int64_t)(rank() * here.size()));
    if (comm_ != nullptr) { comm_->all_gather("losses", all); }
    double sum = 0;
    for (size_t group = 0; group < groups; group++) {  // rank r has the groups r, r + ranks, ...
        sum += all[group % ranks * here.size() + group / ranks];
    }
    return sum;
}

}  // namespace llmc
