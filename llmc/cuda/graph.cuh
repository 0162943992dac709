// Launches that are recorded once and then repeated: CUDA graphs, and between them what the host does anew each time. And
// in a recorded graph: one fill at its beginning for many.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <type_traits>
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

// ---- one fill at a graph's beginning for many, each of which comes just before the kernel that needs it. What a fill of a few
// bytes takes is the wait before and behind it.

namespace graph {

using Node = cudaGraphNode_t;
using Edge = cudaGraphEdgeData;

// what list(found, edges, n) lists: n of them, or with null how many there are
template <typename List>
std::vector<Node> listed(const List& list) {
    size_t n = 0;
    check(list(nullptr, nullptr, &n));
    std::vector<Node> found(n);
    std::vector<Edge> edges(n);
    if (n > 0) { check(list(found.data(), edges.data(), &n)); }
    return found;
}
template <typename Get>
std::vector<Node> nodes(Get get, cudaGraph_t graph) {
    return listed([&](Node* found, Edge*, size_t* n) { return get(graph, found, n); });
}

// get and add: as CUDA 12 and 13 have these calls
template <typename Get>
std::vector<Node> neighbours(Get get, Node node) {
    return listed([&](Node* found, Edge* edges, size_t* n) {
        if constexpr (std::is_invocable_v<Get, Node, Node*, size_t*>) {
            return get(node, found, n);
        } else {
            return get(node, found, edges, n);
        }
    });
}
template <typename Add>
void connect(Add add, cudaGraph_t graph, Node from, Node to) {
    if constexpr (std::is_invocable_v<Add, cudaGraph_t, const Node*, const Node*, size_t>) {
        check(add(graph, &from, &to, 1));
    } else {
        check(add(graph, &from, &to, nullptr, 1));
    }
}

// takes a node out; what waited for it waits for what it waited for
inline void take_out(cudaGraph_t graph, Node node) {
    for (Node before : neighbours(cudaGraphNodeGetDependencies, node)) {
        const std::vector<Node> already = neighbours(cudaGraphNodeGetDependentNodes, before);
        for (Node after : neighbours(cudaGraphNodeGetDependentNodes, node)) {
            if (std::ranges::count(already, after) > 0) { continue; }  // an edge may be there once
            connect(cudaGraphAddDependencies, graph, before, after);
        }
    }
    check(cudaGraphDestroyNode(node));
}

}  // namespace graph

// Fills with zero that lie in `places`, of place_size bytes each, become one at the beginning of the graph, if no place has
// two of them. products: how many have taken a place, in turn; where they outnumber the places, one without a fill may leave
// its place to one with a fill, and the graph stays as it is. No other kernel may use a place.
inline void fill_first(cudaGraph_t recorded, std::span<std::byte> places, size_t place_size,
                       int64_t products) {
    if (products > (int64_t)(places.size() / place_size)) { return; }
    std::vector<graph::Node> fills;
    std::set<size_t> filled;
    std::byte *first_begin = places.data() + places.size(), *last_end = places.data();
    for (graph::Node node : graph::nodes(cudaGraphGetNodes, recorded)) {
        cudaGraphNodeType type;
        check(cudaGraphNodeGetType(node, &type));
        if (type != cudaGraphNodeTypeMemset) { continue; }
        cudaMemsetParams fill;
        check(cudaGraphMemsetNodeGetParams(node, &fill));
        auto* begin = (std::byte*)fill.dst;
        if (begin < places.data() || begin >= places.data() + places.size() || fill.value != 0) { continue; }
        const size_t offset = (size_t)(begin - places.data()), bytes = fill.width * fill.elementSize;
        const bool within = fill.height == 1 && offset % place_size + bytes <= place_size;
        if (!within || !filled.insert(offset / place_size).second) { return; }
        fills.push_back(node);
        first_begin = std::min(first_begin, begin);
        last_end = std::max(last_end, begin + bytes);
    }
    if (fills.size() < 2) { return; }
    for (graph::Node fill : fills) { graph::take_out(recorded, fill); }
    const auto roots = graph::nodes(cudaGraphGetRootNodes, recorded);
    cudaMemsetParams all = {};
    all.dst = first_begin;
    all.elementSize = all.height = 1;
    all.width = (size_t)(last_end - first_begin);
    graph::Node first;
    check(cudaGraphAddMemsetNode(&first, recorded, nullptr, 0, &all));
    for (graph::Node root : roots) { graph::connect(cudaGraphAddDependencies, recorded, first, root); }
}

}  // namespace llmc
