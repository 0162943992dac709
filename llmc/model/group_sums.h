// The gradient of a step on the CPU: summed over groups of micro-batches in the order of their numbers, in
// one rank or many, with the same bits (see ModelSettings). Each rank has the sums of its share of the
// elements.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/host/comm.h"
#include "llmc/model/model.h"

namespace llmc {

class GroupSums {
public:
    // of that many elements; comm null: one rank
    GroupSums(int64_t elements, int groups, Comm* comm);

    int groups_here() const { return groups_ / ranks(); }
    int ranks() const { return comm_ == nullptr ? 1 : comm_->size(); }
    // Rank r's share is from begins()[r] to begins()[r + 1].
    const std::vector<int64_t>& begins() const { return begins_; }
    int64_t begin() const { return begins_[(size_t)rank()]; }
    int64_t end() const { return begins_[(size_t)rank() + 1]; }

    // Adds the gradient of this rank's next group, after those of the ranks below it; with start, to nothing.
    // grads must stay as it is until the step is done. Every rank calls this for each of its groups.
    void add(std::vector<float>& grads, bool start);
    // of this rank's share: its elements from begin() to end()
    const float* sums() const { return sums_; }
    // the 2-norm of all sums, and the losses of all groups added in their order, from those of this rank's
    // groups; every rank calls these
    double norm() const;
    double total(const std::vector<double>& losses_here) const;

    static int64_t bytes(int64_t elements, int groups, int ranks);  // that it takes

private:
    int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
    void add_part(const float* part, bool start);

    int groups_;
    Comm* comm_;
    std::vector<int64_t> begins_;
    std::vector<float> own_, arrived_;  // the share's sums; the other ranks' parts of it
    const float* sums_ = nullptr;       // own_, or with one group the gradient itself
};

}  // namespace llmc
