// In a recorded graph: one fill at its beginning for many, each of which comes just before the kernel that needs it. What a
// fill of a few bytes takes is the wait before and behind it.
#pragma once
#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "llmc/cuda/check.cuh"

namespace llmc {

namespace graph {

using Node = cudaGraphNode_t;
using Edge = cudaGraphEdgeData;

// as CUDA 12 and 13 have these calls
inline cudaError_t list(cudaError_t (*get)(Node, Node*, size_t*), Node node, Node* found, Edge*, size_t* n) {
    return get(node, found, n);
}
inline cudaError_t list(cudaError_t (*get)(Node, Node*, Edge*, size_t*), Node node, Node* found, Edge* edges,
                        size_t* n) {
    return get(node, found, edges, n);
}
inline cudaError_t connect(cudaError_t (*add)(cudaGraph_t, const Node*, const Node*, size_t),
                           cudaGraph_t graph, Node from, Node to) {
    return add(graph, &from, &to, 1);
}
inline cudaError_t connect(cudaError_t (*add)(cudaGraph_t, const Node*, const Node*, const Edge*, size_t),
                           cudaGraph_t graph, Node from, Node to) {
    return add(graph, &from, &to, nullptr, 1);
}

template <typename Get>
std::vector<Node> neighbours(Get get, Node node) {
    size_t n = 0;
    check(list(get, node, nullptr, nullptr, &n));
    std::vector<Node> found(n);
    std::vector<Edge> edges(n);
    if (n > 0) { check(list(get, node, found.data(), edges.data(), &n)); }
    return found;
}

// takes a node out; what waited for it waits for what it waited for
inline void take_out(cudaGraph_t graph, Node node) {
    for (Node before : neighbours(cudaGraphNodeGetDependencies, node)) {
        const std::vector<Node> already = neighbours(cudaGraphNodeGetDependentNodes, before);
        for (Node after : neighbours(cudaGraphNodeGetDependentNodes, node)) {
            if (std::ranges::count(already, after) > 0) { continue; }  // an edge may be there once
            check(connect(cudaGraphAddDependencies, graph, before, after));
        }
    }
    check(cudaGraphDestroyNode(node));
}

template <typename Get>
std::vector<Node> nodes(Get get, cudaGraph_t graph) {
    size_t n = 0;
    check(get(graph, nullptr, &n));
    std::vector<Node> found(n);
    if (n > 0) { check(get(graph, found.data(), &n)); }
    return found;
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
    all.dst = first_begin, all.elementSize = 1, all.height = 1;
    all.width = (size_t)(last_end - first_begin);
    graph::Node first;
    check(cudaGraphAddMemsetNode(&first, recorded, nullptr, 0, &all));
    for (graph::Node root : roots) { check(graph::connect(cudaGraphAddDependencies, recorded, first, root)); }
}

}  // namespace llmc
