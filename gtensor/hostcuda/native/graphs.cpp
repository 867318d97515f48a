// Capture of streams, and graphs.
//
// Which calls a capture refuses, and with which error, follows the CUDA Runtime API's "Stream
// Management" (cudaStreamBeginCapture, cudaStreamEndCapture, cudaThreadExchangeStreamCaptureMode) and
// the descriptions of cudaError 900 to 908.
#include <algorithm>
#include <cstdio>

#include "state.h"

namespace hostcuda {

namespace {

struct Step {
    WorkPointer work;
    std::vector<size_t> dependencies;
};

// A graph that can be launched: it stays as it was when it was made.
struct Program {
    std::vector<Step> steps;         // each behind those it depends on
    std::vector<size_t> ends;        // those that no other depends on
    ItemPointer last;                // of its last launch: launches run one after another
};

struct Graphs {
    std::unordered_set<Graph *> graphs;
    std::unordered_set<Program *> programs;
};

Graphs &graphs() {
    static Graphs *all = new Graphs;
    return *all;
}

bool depends(const Node *node, const Frontier &frontier, std::set<const Node *> &seen) {
    for (const Node *each : frontier) {
        std::vector<const Node *> open{each};
        while (!open.empty()) {
            const Node *at = open.back();
            open.pop_back();
            if (at == node) return true;
            if (!seen.insert(at).second) continue;
            for (Node *next : at->dependencies) open.push_back(next);
        }
    }
    return false;
}

// Whether all work of the streams that took part lies before the origin's next work.
bool joined(const Capture &capture) {
    for (const Stream *stream : capture.streams)
        for (const Node *node : stream->frontier) {
            std::set<const Node *> seen;
            if (!depends(node, capture.origin->frontier, seen)) return false;
        }
    return true;
}

void end(Capture &capture) {
    capture.ended = true;
    runtime().captures.erase(&capture);
    std::set<Stream *> streams;
    streams.swap(capture.streams);
    for (Stream *stream : streams) {
        stream->frontier.clear();
        stream->capture.reset();   // the last one ends the capture, which the caller holds
    }
}

}  // namespace

void break_capture(Capture &capture) { capture.broken = true; }

cudaError_t add_node(Held &, Stream &stream, WorkPointer work) {
    Capture &capture = *stream.capture;
    if (capture.broken) return cudaErrorStreamCaptureInvalidated;
    auto node = std::make_unique<Node>();
    node->index = capture.graph->nodes.size();
    node->work = std::move(work);
    node->dependencies.assign(stream.frontier.begin(), stream.frontier.end());
    std::sort(node->dependencies.begin(), node->dependencies.end(),
              [](Node *one, Node *other) { return one->index < other->index; });
    stream.frontier = {node.get()};
    capture.graph->nodes.push_back(std::move(node));
    return cudaSuccess;
}

// An error if a running capture forbids this thread an unsafe call; the capture is then broken. The
// rules are those of cudaThreadExchangeStreamCaptureMode.
cudaError_t refuse_unsafe(Held &) {
    if (thread().mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    cudaError_t refused = cudaSuccess;
    for (Capture *capture : runtime().captures) {
        bool mine = capture->thread == std::this_thread::get_id();
        bool forbids = mine ? capture->mode != cudaStreamCaptureModeRelaxed
                            : capture->mode == cudaStreamCaptureModeGlobal
                                  && thread().mode == cudaStreamCaptureModeGlobal;
        if (!forbids) continue;
        break_capture(*capture);
        refused = cudaErrorStreamCaptureUnsupported;
    }
    return refused;
}

cudaError_t refuse_capturing(Held &held, Stream &stream) {
    if (stream.capture) {
        break_capture(*stream.capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    return refuse_legacy(held, stream);
}

cudaError_t refuse_legacy(Held &, Stream &stream) {
    if (!stream.legacy) return cudaSuccess;
    cudaError_t refused = cudaSuccess;
    for (Stream *other : stream.device->streams)
        if (other->capture && other->blocking()) {
            break_capture(*other->capture);
            refused = cudaErrorStreamCaptureImplicit;
        }
    return refused;
}

}  // namespace hostcuda

using namespace hostcuda;

namespace {

template <class Body> cudaError_t with_stream(cudaStream_t handle, Body body) {
    return call([&](Held &held) {
        Stream *stream = resolve(held, handle);
        return stream ? body(held, *stream) : cudaErrorInvalidResourceHandle;
    });
}

Graph *graph_of(cudaGraph_t handle) {
    auto *graph = reinterpret_cast<Graph *>(handle);
    return graphs().graphs.count(graph) ? graph : nullptr;
}

Program *program_of(cudaGraphExec_t handle) {
    auto *program = reinterpret_cast<Program *>(handle);
    return graphs().programs.count(program) ? program : nullptr;
}

std::unique_ptr<Program> instantiate(const Graph &graph) {
    auto program = std::make_unique<Program>();
    std::vector<bool> followed(graph.nodes.size());
    for (const auto &node : graph.nodes) {
        Step step{node->work, {}};
        for (Node *each : node->dependencies) {
            step.dependencies.push_back(each->index);
            followed[each->index] = true;
        }
        program->steps.push_back(std::move(step));
    }
    for (size_t place = 0; place < followed.size(); place++)
        if (!followed[place]) program->ends.push_back(place);
    return program;
}

cudaStreamCaptureStatus status_of(const Stream &stream) {
    if (!stream.capture) return cudaStreamCaptureStatusNone;
    return stream.capture->broken ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
}

// A launch: each step is an item of its own, behind the stream's work so far and the last launch.
cudaError_t launch(Held &held, Program &program, Stream &stream) {
    if (stream.capture) {   // child graphs are not there
        break_capture(*stream.capture);
        runtime().missing["cudaGraphLaunch within a capture"]++;
        return cudaErrorNotSupported;
    }
    if (cudaError_t refused = refuse_legacy(held, stream)) return refused;
    Device &device = *stream.device;
    std::vector<ItemPointer> first = before(stream);
    if (program.last && !program.last->done) first.push_back(program.last);
    ItemPointer begin = enqueue(held, device, nullptr, std::move(first));
    std::vector<ItemPointer> items;
    for (const Step &step : program.steps) {
        std::vector<ItemPointer> dependencies;
        for (size_t place : step.dependencies) dependencies.push_back(items[place]);
        if (dependencies.empty()) dependencies.push_back(begin);
        items.push_back(enqueue(held, device, step.work, std::move(dependencies)));
    }
    std::vector<ItemPointer> ends;
    for (size_t place : program.ends) ends.push_back(items[place]);
    if (ends.empty()) ends.push_back(begin);
    program.last = enqueue(held, device, nullptr, std::move(ends));
    stream.tail = program.last;
    count(HOSTCUDA_OTHER, "launch graph");
    return advance(held, device, stream.tail);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed)
            return cudaErrorInvalidValue;
        if (stream.legacy) return cudaErrorStreamCaptureUnsupported;
        if (stream.capture) return cudaErrorIllegalState;
        auto capture = std::make_shared<Capture>();
        capture->graph = std::make_unique<Graph>();
        capture->mode = mode;
        capture->thread = std::this_thread::get_id();
        capture->origin = &stream;
        capture->id = ++runtime().next_capture;
        capture->streams = {&stream};
        stream.capture = capture;
        stream.frontier.clear();
        runtime().captures.insert(capture.get());
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    if (graph) *graph = nullptr;
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (!graph) return cudaErrorInvalidValue;
        std::shared_ptr<Capture> capture = stream.capture;
        if (!capture) return cudaErrorIllegalState;
        if (capture->origin != &stream) return cudaErrorStreamCaptureUnmatched;
        if (capture->mode != cudaStreamCaptureModeRelaxed
            && capture->thread != std::this_thread::get_id())
            return cudaErrorStreamCaptureWrongThread;
        cudaError_t error = capture->broken ? cudaErrorStreamCaptureInvalidated
                            : joined(*capture) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
        std::unique_ptr<Graph> made = std::move(capture->graph);
        end(*capture);
        if (error) {
            drop_later(made);
            return error;
        }
        graphs().graphs.insert(made.get());
        *graph = reinterpret_cast<cudaGraph_t>(made.release());
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status) {
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (!status) return cudaErrorInvalidValue;
        if (stream.legacy)   // an error, but "the blocking stream capture is not invalidated"
            for (Stream *other : stream.device->streams)
                if (other->capture && other->blocking()) return cudaErrorStreamCaptureImplicit;
        *status = status_of(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    if (graph || dependencies || edges || count)
        return cudaError_t(hostcuda_missing("cudaStreamGetCaptureInfo with a graph"));
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (!status) return cudaErrorInvalidValue;
        *status = status_of(stream);
        if (id && stream.capture) *id = stream.capture->id;
        return cudaSuccess;
    });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    return call([&](Held &) {
        if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
            return cudaErrorInvalidValue;
        std::swap(*mode, thread().mode);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    return call([&](Held &held) {
        current(held);
        Graph *found = graph_of(graph);
        if (!made || !found) return cudaErrorInvalidValue;
        if (flags & ~(unsigned long long)(cudaGraphInstantiateFlagAutoFreeOnLaunch
                                          | cudaGraphInstantiateFlagUseNodePriority))
            return cudaErrorNotSupported;
        Program *program = instantiate(*found).release();
        graphs().programs.insert(program);
        *made = reinterpret_cast<cudaGraphExec_t>(program);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long flags) {
    return cudaGraphInstantiate(made, graph, flags);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return call([&](Held &) {
        Graph *found = graph_of(graph);
        if (!found) return cudaErrorInvalidValue;
        graphs().graphs.erase(found);
        std::unique_ptr<Graph> last(found);
        drop_later(last);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    return call([&](Held &) {
        Program *found = program_of(handle);
        if (!found) return cudaErrorInvalidValue;
        graphs().programs.erase(found);
        std::unique_ptr<Program> last(found);
        drop_later(last);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream) {
    return with_stream(stream, [&](Held &, Stream &) {
        return program_of(handle) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
    return with_stream(stream, [&](Held &held, Stream &on) {
        Program *found = program_of(handle);
        return found ? launch(held, *found, on) : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    return call([&](Held &) {
        Graph *found = graph_of(graph);
        if (!found || !count) return cudaErrorInvalidValue;
        if (nodes) {
            for (size_t place = 0; place < *count; place++)
                nodes[place] = place < found->nodes.size()
                    ? reinterpret_cast<cudaGraphNode_t>(found->nodes[place].get()) : nullptr;
            *count = std::min(*count, found->nodes.size());
        } else {
            *count = found->nodes.size();
        }
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned) {
    return call([&](Held &) {
        Graph *found = graph_of(graph);
        if (!found || !path) return cudaErrorInvalidValue;
        FILE *file = fopen(path, "w");
        if (!file) return cudaErrorOperatingSystem;
        static const char *const kinds[] = {"KERNEL", "LIBRARY", "MEMCPY", "MEMSET", "HOST"};
        fprintf(file, "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\"\n");
        for (const auto &node : found->nodes)
            fprintf(file, "\"graph_1_node_%zu\"[label=\"%zu\n%s\n%s\"];\n", node->index, node->index,
                    kinds[node->work->kind], node->work->name.c_str());
        for (const auto &node : found->nodes)
            for (const Node *each : node->dependencies)
                fprintf(file, "\"graph_1_node_%zu\" -> \"graph_1_node_%zu\";\n", each->index,
                        node->index);
        fprintf(file, "}\n}\n");
        fclose(file);
        return cudaSuccess;
    });
}

int hostcuda_is_capturing(cudaStream_t handle) {
    if (runtime().forked) return -1;
    Held held(runtime().lock);
    Stream *stream = resolve(held, handle);
    return stream ? stream->capture != nullptr : -1;
}

}
