// A second stream, for work that the first one need not wait for at once. In a recording it is a branch of the graph.
#pragma once
#include "llmc/cuda/device_memory.cuh"

namespace llmc {

class Branch {
public:
    explicit Branch(cudaStream_t main) : main_(main) {}
    cudaStream_t stream() const { return stream_; }
    // stream(), where what is queued from now on begins behind all that is on the main stream by now
    cudaStream_t fork() {
        forked_.record(main_);
        forked_.hold(stream_);
        return stream_;
    }
    // the main stream goes on when all is done that is on stream() by now; after a fork()
    void join() {
        joins_++;
        joined_.record(stream_);
        joined_.hold(main_);
    }
    // A place in the branch's work, for which the main stream can wait: before it overwrites what was read there.
    class Mark {
    public:
        void set(const Branch& branch) {
            event_.record(branch.stream_);
            joins_ = branch.joins_;
        }
        // Does nothing after a join(): the mark may be of another recording, which a stream cannot wait for.
        void wait(const Branch& branch) const {
            if (joins_ == branch.joins_) { event_.hold(branch.main_); }
        }

    private:
        Event event_;
        int64_t joins_ = -1;
    };

private:
    cudaStream_t main_;
    Stream stream_;
    Event forked_, joined_;
    int64_t joins_ = 0;
};

// where work may be queued that the main stream need not wait for at once: the branch, if there is one
inline cudaStream_t beside(cudaStream_t stream, Branch* branch) {
    return branch != nullptr ? branch->fork() : stream;
}

}  // namespace llmc
