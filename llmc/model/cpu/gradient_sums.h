// The gradient of a step on the CPU: summed over groups of micro-batches in the order of their numbers, in
// one rank or many, with the same bits (see ModelSettings). Each rank has the sums of its share.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/host/ranks/comm.h"
#include "llmc/model/state_shares.h"

namespace llmc {

class GradientSums {
public:
    // comm: of the shares' ranks; null: one rank
    GradientSums(const StateShares& shares, Comm* comm);

    const StateShares& shares() const { return shares_; }
    int groups_here() const { return shares_.groups / shares_.ranks; }
    size_t rank() const { return comm_ == nullptr ? 0 : (size_t)comm_->rank(); }

    // Adds the gradient of this rank's next group, after those of the ranks below it; with start, to nothing.
    // grads must stay as it is until the step is done. Every rank calls this for each of its groups.
    void add(std::vector<float>& grads, bool start);
    // of this rank's share, in the order of memory
    const float* sums() const { return sums_; }
    // Of `whole`, all elements, each rank has its share: now every rank has all.
    void all_gather(const char* what, float* whole) const;
    // Each rank has its share of a state, in the order of memory: now rank 0 has `whole`, which others do not look at.
    void gather(const char* what, State state, float* whole, const float* share) const;
    // the 2-norm of all sums, and the losses of all groups added in order, from this rank's; every rank calls these
    double norm() const;
    double total(const std::vector<double>& losses_here) const;

    static int64_t bytes(const StateShares& shares);  // that it takes

private:
    void add_part(const float* part, bool start);

    StateShares shares_;
    Comm* comm_;
    std::vector<float> own_, arrived_;  // the share's sums; all ranks' parts of it
    const float* sums_ = nullptr;       // own_, or with one group the gradient itself
};

}  // namespace llmc
