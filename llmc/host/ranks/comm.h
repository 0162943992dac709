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

// by rank: what goes to it, or comes from it
template <typename T>
using RankParts = std::vector<std::span<T>>;
using SentParts = std::span<const std::span<const std::byte>>;
using ArrivingParts = std::span<const std::span<std::byte>>;

// Borders of the ranks' shares of n elements: begins[r] to begins[r + 1], whole chunks but for the last.
std::vector<int64_t> shares(int64_t n, int64_t chunk, int ranks);

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
    // call, in messages and to the other ranks. Throws Error(kExitPeerLost) if what arrives is of another call than this, or
    // damaged, or if a rank is lost, for which the watchdog ends the process before, as a rule.
    virtual void exchange(const char* what, SentParts out, ArrivingParts in);

    template <typename T>
    void exchange_values(const char* what, const RankParts<const T>& out, const RankParts<T>& in) {
        RankParts<const std::byte> out_bytes;
        RankParts<std::byte> in_bytes;
        for (std::span<const T> part : out) { out_bytes.push_back(std::as_bytes(part)); }
        for (std::span<T> part : in) { in_bytes.push_back(std::as_writable_bytes(part)); }
        exchange(what, out_bytes, in_bytes);
    }
    // parts[r] is what rank r has; now every rank has all of them
    template <typename T>
    void all_gather_parts(const char* what, const RankParts<T>& parts) {
        exchange_values<T>(what, RankParts<const T>(parts.size(), parts[(size_t)rank_]), parts);
    }
    // the same of an array, of which rank r has the elements from begins[r] to begins[r + 1], or as many as each other
    template <typename T>
    void all_gather(const char* what, T* whole, const std::vector<int64_t>& begins) {
        all_gather_parts(what, parts_of(whole, begins));
    }
    template <typename T>
    void all_gather(const char* what, std::vector<T>& all) {
        const auto n = (int64_t)all.size();
        all_gather(what, all.data(), shares(n, n / size_, size_));
    }
    // `mine` is what this rank has; now rank 0 has all in `parts`, which is not looked at in the others
    template <typename T>
    void gather(const char* what, const RankParts<T>& parts, std::span<const T> mine) {
        RankParts<const T> out((size_t)size_);
        out[0] = mine;
        exchange_values<T>(what, out, root() ? parts : RankParts<T>((size_t)size_));
    }
    template <typename T>
    void gather(const char* what, T* whole, const std::vector<int64_t>& begins) {
        const RankParts<T> parts = parts_of(whole, begins);
        gather<T>(what, parts, parts[(size_t)rank_]);
    }
    // the values of rank 0
    template <typename T>
    void from_root(const char* what, std::span<T> values) {
        RankParts<T> in((size_t)size_);
        in[0] = values;
        exchange_values<T>(what, RankParts<const T>((size_t)size_, root() ? values : std::span<T>()), in);
    }
    std::string text_from_root(const char* what, std::string text);
    bool root_says(const char* what, bool value) {
        from_root(what, std::span(&value, 1));
        return value;
    }

    // for messages: where the run is
    virtual void at_step(int64_t) {}
    // Whether the others may wait for this rank as long as it takes (to save, say), or --comm-timeout counts.
    virtual void take_time(bool) {}

    // around a wait for something else that needs all ranks (a step on their GPUs): --comm-timeout counts
    virtual void enter(const char*) {}
    virtual void leave() {}

    // This rank fails, for which all leave with this code. Whether rank 0 says so: then this rank need not.
    virtual bool fail(int, const std::string&) { return false; }

private:
    template <typename T>
    static RankParts<T> parts_of(T* whole, const std::vector<int64_t>& begins) {
        RankParts<T> parts;
        for (size_t r = 0; r + 1 < begins.size(); r++) {
            parts.emplace_back(whole + begins[r], whole + begins[r + 1]);
        }
        return parts;
    }

    int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

// A rank of a job of several, which meets the others: see meet(). program: for the watchdog's messages.
std::unique_ptr<Comm> join_ranks(const Ranks& ranks, int timeout_s, const std::string& program);

}  // namespace llmc
