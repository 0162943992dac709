// Launches that are recorded once, and then repeated all at once: a CUDA graph.
#pragma once
#include "llmc/cuda/check.cuh"

namespace llmc {

class Graph {
public:
    // What enqueue() puts on the stream, with the arguments that it has now. Nothing runs. Its kernels must
    // have run before, as a recording may not load them.
    template <typename Enqueue>
    Graph(cudaStream_t stream, const Enqueue& enqueue) {
        cudaGraph_t graph = nullptr;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        enqueue();
        check(cudaStreamEndCapture(stream, &graph));
        cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
        cudaGraphDestroy(graph);
        check(status);
    }
    ~Graph() { cudaGraphExecDestroy(graph_); }
    Graph(const Graph&) = delete;
    void launch(cudaStream_t stream) const { check(cudaGraphLaunch(graph_, stream)); }

private:
    cudaGraphExec_t graph_ = nullptr;
};

}  // namespace llmc
