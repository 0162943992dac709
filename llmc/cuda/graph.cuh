// Launches that are recorded once and then repeated: CUDA graphs, and between them what the host does anew each time.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "llmc/cuda/check.cuh"

namespace llmc {

class Recording {
public:
    // What enqueue(*this) puts on the stream, with the arguments that it has now. Nothing runs. Its kernels
    // must have run before, as a recording may not load them. edit: changes each graph before it can be repeated.
    template <typename Enqueue>
    Recording(cudaStream_t stream, const Enqueue& enqueue, std::function<void(cudaGraph_t)> edit = nullptr)
        : stream_(stream), edit_(std::move(edit)) {
        begin();
        enqueue(*this);
        end(nullptr);
    }
    // For enqueue(): each repeat() makes this call between the launches before it and those behind it. What it
    // queues on the stream is not recorded.
    void between(std::function<void()> call) {
        end(std::move(call));
        begin();
    }
    void repeat() const {
        for (const Part& part : parts_) {
            if (part.graph != nullptr) { check(cudaGraphLaunch(part.graph.get(), stream_)); }
            if (part.call) { part.call(); }
        }
    }

private:
    struct Destroy {
        void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
        void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
    };
    struct Part {
        std::unique_ptr<CUgraphExec_st, Destroy> graph;  // null: no launches
        std::function<void()> call;
    };

    void begin() const { check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)); }
    void end(std::function<void()> call) {
        cudaGraph_t captured = nullptr;
        cudaGraphExec_t graph = nullptr;
        size_t launches = 0;
        check(cudaStreamEndCapture(stream_, &captured));
        const std::unique_ptr<CUgraph_st, Destroy> recorded(captured);
        if (edit_) { edit_(captured); }
        check(cudaGraphGetNodes(captured, nullptr, &launches));
        if (launches > 0) { check(cudaGraphInstantiate(&graph, captured, 0)); }
        parts_.push_back({std::unique_ptr<CUgraphExec_st, Destroy>(graph), std::move(call)});
    }

    cudaStream_t stream_;
    std::function<void(cudaGraph_t)> edit_;
    std::vector<Part> parts_;
};

}  // namespace llmc
