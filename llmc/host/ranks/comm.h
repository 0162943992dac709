// What the ranks of a job say to each other, from their hosts' memory: over TCP, on one host or several. Every rank makes
// the same calls in the same order. The class Comm itself is a job of one rank, where each call only copies.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace llmc {

struct Ranks;

class Comm {
public:
    Comm() = default;
    Comm(int rank, int size, int local_rank, int local_size)
        : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size) {}
    virtual ~Comm() = default;
    Comm(const Comm&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int local_rank() const { return local_rank_; }  // among those on this host
    int local_size() const { return local_size_; }
    bool root() const { return rank_ == 0; }  // the rank that decides, and alone writes

    // out[r] goes to rank r, in[r] comes from rank r, where it is out[this rank] and of that size; both have
    // size() parts. A part may be empty, and out and in may not overlap, but for a rank's own part. `what` names the
    // call, in messages and to the other ranks. Does not return if a rank is lost: the watchdog ends the process
    // (watchdog.h). Throws Error(kExitPeerLost) if what arrives is of another call than this, or damaged.
    virtual void exchange(const char* what, std::span<const std::span<const std::byte>> out,
                          std::span<const std::span<std::byte>> in);

    // of an array, rank r has the elements from begins[r] to begins[r + 1]; now every rank has all
    template <typename T>
    void all_gather(const char* what, T* whole, const std::vector<int64_t>& begins) {
        std::vector<std::span<const std::byte>> out;
        std::vector<std::span<std::byte>> in;
        for (size_t r = 0; r < (size_t)size_; r++) {
            in.push_back(std::as_writable_bytes(std::span(whole + begins[r], whole + begins[r + 1])));
        }
        out.assign((size_t)size_, in[(size_t)rank_]);
        exchange(what, out, in);
    }
    // the same, where each rank has as many: all.size() / size() of them
    template <typename T>
    void all_gather(const char* what, std::vector<T>& all) {
        std::vector<int64_t> begins;
        for (int r = 0; r <= size_; r++) { begins.push_back((int64_t)all.size() / size_ * r); }
        all_gather(what, all.data(), begins);
    }
    // the same, but only rank 0 has all then: `part` is this rank's, `whole` is not looked at in the others
    template <typename T>
    void gather(const char* what, T* whole, const T* part, const std::vector<int64_t>& begins) {
        std::vector<std::span<const std::byte>> out((size_t)size_);
        std::vector<std::span<std::byte>> in((size_t)size_);
        auto size = [&](size_t r) { return (size_t)(begins[r + 1] - begins[r]); };
        out[0] = std::as_bytes(std::span(part, size((size_t)rank_)));
        for (size_t r = 0; r < in.size() && root(); r++) {
            in[r] = std::as_writable_bytes(std::span(whole + begins[r], size(r)));
        }
        exchange(what, out, in);
    }
    // the values of rank 0
    template <typename T>
    void from_root(const char* what, std::span<T> values) {
        std::vector<std::span<const std::byte>> out((size_t)size_);
        std::vector<std::span<std::byte>> in((size_t)size_);
        if (root()) { out.assign((size_t)size_, std::as_bytes(values)); }
        in[0] = std::as_writable_bytes(values);
        exchange(what, out, in);
    }
    std::string text_from_root(const char* what, std::string text);
    bool root_says(const char* what, bool value) {
        from_root(what, std::span(&value, 1));
        return value;
    }

    // for messages: where the run is
    virtual void at_step(int64_t) {}
    // Whether the others may wait for this rank as long as it takes (it saves, say), or --comm-timeout
    // counts.
    virtual void take_time(bool) {}

    // around a wait for something else that needs all ranks (a step on their GPUs): --comm-timeout counts
    virtual void enter(const char*) {}
    virtual void leave() {}

    // This rank fails, for which all leave with this code. Whether rank 0 says so: then this rank need not.
    virtual bool fail(int, const std::string&) { return false; }

private:
    int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

// A rank of a job of several, which meets the others: see meet(). program: for the watchdog's messages.
std::unique_ptr<Comm> join_ranks(const Ranks& ranks, int timeout_s, const std::string& program);

// Borders of the ranks' shares of n elements: begins[r] to begins[r + 1], whole chunks but for the last.
std::vector<int64_t> shares(int64_t n, int64_t chunk, int ranks);

}  // namespace llmc
