// The gradient of a step, summed over groups: see group_sums.h.
#include "llmc/model/group_sums.h"

#include <algorithm>
#include <cmath>

#include "llmc/host/error.h"
#include "llmc/model/reference.h"

namespace llmc {

GroupSums::GroupSums(int64_t elements, int groups, Comm* comm)
    : groups_(groups), comm_(comm), begins_(shares(elements, kNormChunk, ranks())) {
    require(groups > 0 && groups % ranks() == 0, "GroupSums: the ranks must divide the groups");
    if (groups > 1) { own_.resize((size_t)(end() - begin())); }
    if (ranks() > 1) { arrived_.resize((size_t)(end() - begin()) * (size_t)ranks()); }
}

int64_t GroupSums::bytes(int64_t elements, int groups, int ranks) {
    return 4 * ((groups > 1 ? elements / ranks : 0) + (ranks > 1 ? elements : 0));
}

void GroupSums::add_part(const float* part, bool start) {
    const auto n = (int64_t)own_.size();
    if (start) {
        std::copy(part, part + n, own_.begin());
        return;
    }
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) { own_[(size_t)i] += part[i]; }
}

void GroupSums::add(std::vector<float>& grads, bool start) {
    sums_ = groups_ == 1 ? grads.data() : own_.data();
    if (groups_ == 1) { return; }
    if (ranks() == 1) { return add_part(grads.data(), start); }
    const auto n = (size_t)(end() - begin());
    std::vector<std::span<const std::byte>> out;
    std::vector<std::span<std::byte>> in;
    for (size_t r = 0; r < (size_t)ranks(); r++) {
        const std::span part(grads.data() + begins_[r], grads.data() + begins_[r + 1]);
        const bool mine = (int)r == rank();
        out.push_back(std::as_bytes(part));
        in.push_back(std::as_writable_bytes(mine ? part : std::span(arrived_.data() + r * n, n)));
    }
    comm_->exchange("gradients", out, in);
    for (size_t r = 0; r < (size_t)ranks(); r++) {
        add_part(reinterpret_cast<const float*>(in[r].data()), start && r == 0);
    }
}

double GroupSums::norm() const {
    std::vector<int64_t> chunks;
    for (int64_t begin : begins_) { chunks.push_back((begin + kNormChunk - 1) / kNormChunk); }
    std::vector<double> partial((size_t)chunks.back());
    squares_of_chunks_cpu(partial.data() + chunks[(size_t)rank()], sums_, end() - begin());
    if (comm_ != nullptr) { comm_->all_gather("the gradient's norm", partial.data(), chunks); }
    double sum = 0;
    for (double squares : partial) { sum += squares; }
    return std::sqrt(sum);
}

double GroupSums::total(const std::vector<double>& here) const {
    const auto each = (int64_t)here.size();
    std::vector<double> all((size_t)groups_);
    std::vector<int64_t> begins;
    for (int64_t r = 0; r <= ranks(); r++) { begins.push_back(r * each); }
    std::copy(here.begin(), here.end(), all.begin() + begins[(size_t)rank()]);
    if (comm_ != nullptr) { comm_->all_gather("losses", all.data(), begins); }
    double sum = 0;
    for (int64_t group = 0; group < groups_; group++) {  // rank r has the groups r, r + ranks, ...
        sum += all[(size_t)(group % ranks() * each + group / ranks())];
    }
    return sum;
}

}  // namespace llmc
