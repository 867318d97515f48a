// Streams and events.
#include "state.h"

namespace hostcuda {

namespace {

Stream *threads_own(Device &device) {
    Runtime &all = runtime();
    Stream *&stream = thread().streams[&device];
    if (!stream) {
        stream = new Stream;
        stream->device = &device;
        stream->id = all.next_stream++;
        device.streams.insert(stream);
    }
    return stream;
}

}  // namespace

Stream *resolve(Held &held, cudaStream_t handle) {
    Device &device = current(held);
    if (!handle || handle == cudaStreamLegacy) return &device.legacy;
    if (handle == cudaStreamPerThread) return threads_own(device);
    auto *stream = reinterpret_cast<Stream *>(handle);
    return runtime().streams.count(stream) ? stream : nullptr;
}

void retire(Held &, Stream &stream) {
    if (stream.capture) {
        break_capture(*stream.capture);
        stream.capture->streams.erase(&stream);
        if (stream.capture->origin == &stream) runtime().captures.erase(stream.capture.get());
        drop_later(stream.capture);
    }
    auto &orphans = stream.device->orphans;
    std::erase_if(orphans, [](const auto &orphan) { return orphan.first->done; });
    if (stream.tail && !stream.tail->done) orphans.emplace_back(stream.tail, stream.blocking());
    stream.device->streams.erase(&stream);
    runtime().streams.erase(&stream);
    delete &stream;
}

cudaError_t record(Held &held, Event &event, Stream &stream) {
    if (event.device != stream.device) return cudaErrorInvalidResourceHandle;
    if (stream.capture) {
        if (stream.capture->broken) return cudaErrorStreamCaptureInvalidated;
        drop_later(event.capture);
        event.capture = stream.capture;
        event.frontier = stream.frontier;
        return cudaSuccess;
    }
    if (cudaError_t refused = refuse_legacy(held, stream)) return refused;
    drop_later(event.capture);
    event.frontier.clear();
    ItemPointer item = enqueue(held, *stream.device, nullptr, before(stream));
    stream.tail = item;
    event.last = item;
    return advance(held, *stream.device, item);
}

cudaError_t record_device(Held &held, Event &event, Device &device) {
    if (event.device != &device) return cudaErrorInvalidResourceHandle;
    cudaError_t refused = cudaSuccess;
    for (Capture *capture : runtime().captures)
        if (capture->origin->device == &device) {
            break_capture(*capture);
            refused = cudaErrorStreamCaptureUnsupported;
        }
    if (refused) return refused;
    std::vector<ItemPointer> last{device.legacy.tail};
    for (Stream *stream : device.streams) last.push_back(stream->tail);
    for (const auto &orphan : device.orphans) last.push_back(orphan.first);
    std::erase_if(last, [](const ItemPointer &item) { return !item || item->done; });
    drop_later(event.capture);
    event.frontier.clear();
    event.last = enqueue(held, device, nullptr, std::move(last));
    return advance(held, device, event.last);
}

Event *event_of(cudaEvent_t handle) {
    auto *event = reinterpret_cast<Event *>(handle);
    return runtime().events.count(event) ? event : nullptr;
}

cudaError_t follow(Held &held, Stream &stream, Event &event) {
    if (event.capture) {
        if (event.capture->ended) return cudaErrorCapturedEvent;
        if (event.capture->broken) return cudaErrorStreamCaptureInvalidated;
        if (stream.capture && stream.capture != event.capture) {
            break_capture(*stream.capture);
            break_capture(*event.capture);
            return cudaErrorStreamCaptureMerge;
        }
        if (stream.legacy) {
            break_capture(*event.capture);
            return cudaErrorStreamCaptureImplicit;
        }
        stream.capture = event.capture;
        stream.capture->streams.insert(&stream);
        stream.frontier.insert(event.frontier.begin(), event.frontier.end());
        return cudaSuccess;
    }
    if (stream.capture) {
        if (stream.capture->broken) return cudaErrorStreamCaptureInvalidated;
        if (!event.last) return cudaSuccess;
        break_capture(*stream.capture);
        return cudaErrorStreamCaptureIsolation;
    }
    if (cudaError_t refused = refuse_legacy(held, stream)) return refused;
    if (!event.last || event.last->done) return cudaSuccess;
    std::vector<ItemPointer> dependencies = before(stream);
    dependencies.push_back(event.last);
    ItemPointer item = enqueue(held, *stream.device, nullptr, std::move(dependencies));
    stream.tail = item;
    return advance(held, *stream.device, item);
}

}  // namespace hostcuda

using namespace hostcuda;

namespace {

constexpr int GREATEST_PRIORITY = -5;

cudaError_t create(Held &held, cudaStream_t *handle, unsigned flags, int priority) {
    if (!handle || flags & ~unsigned(cudaStreamNonBlocking)) return cudaErrorInvalidValue;
    Runtime &all = runtime();
    auto *stream = new Stream;
    stream->device = &current(held);
    stream->id = all.next_stream++;
    stream->flags = flags;
    stream->priority = priority > 0 ? 0 : std::max(priority, GREATEST_PRIORITY);
    stream->device->streams.insert(stream);
    all.streams.insert(stream);
    *handle = reinterpret_cast<cudaStream_t>(stream);
    return cudaSuccess;
}

template <class Body> cudaError_t with_stream(cudaStream_t handle, Body body) {
    return call([&](Held &held) {
        Stream *stream = resolve(held, handle);
        return stream ? body(held, *stream) : cudaErrorInvalidResourceHandle;
    });
}

template <class Body> cudaError_t with_event(cudaEvent_t handle, Body body) {
    return call([&](Held &held) {
        current(held);
        Event *event = event_of(handle);
        return event ? body(held, *event) : cudaErrorInvalidResourceHandle;
    });
}

bool done(const Event &event) { return !event.last || event.last->done; }

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return call([&](Held &held) { return create(held, stream, flags, priority); });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    return with_stream(handle, [&](Held &held, Stream &stream) {
        if (!runtime().streams.count(&stream)) return cudaErrorInvalidResourceHandle;
        retire(held, stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (!flags) return cudaErrorInvalidValue;
        *flags = stream.flags;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (!priority) return cudaErrorInvalidValue;
        *priority = stream.priority;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long *id) {
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (!id) return cudaErrorInvalidValue;
        *id = stream.id;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device) {
    return with_stream(handle, [&](Held &, Stream &stream) {
        if (!device) return cudaErrorInvalidValue;
        *device = stream.device->index;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return call([&](Held &held) {
        current(held);
        if (least) *least = 0;
        if (greatest) *greatest = GREATEST_PRIORITY;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    return with_stream(handle, [&](Held &held, Stream &stream) {
        if (cudaError_t refused = refuse_capturing(held, stream)) return refused;
        glance(held);
        bool idle = stream.legacy ? before(stream).empty() : !stream.tail || stream.tail->done;
        return idle ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    return with_stream(handle, [&](Held &held, Stream &stream) {
        if (cudaError_t refused = refuse_capturing(held, stream)) return refused;
        count(HOSTCUDA_OTHER, "synchronize stream");
        Device &device = *stream.device;   // the stream may be gone after the wait
        cudaError_t error = stream.legacy ? wait_for_all(held, before(stream))
                            : stream.tail ? wait_for(held, stream.tail) : cudaSuccess;
        trim_pools(held, device);
        return error;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    return with_stream(handle, [&](Held &held, Stream &stream) {
        Event *found = event_of(event);
        if (!found) return cudaErrorInvalidResourceHandle;
        if (flags) return cudaErrorInvalidValue;   // cudaEventWaitExternal: of graphs only
        return follow(held, stream, *found);
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument) {
    return with_stream(handle, [&](Held &held, Stream &stream) {
        if (!function) return cudaErrorInvalidValue;
        auto work = std::make_shared<Work>();
        work->name = "host function";
        work->programs = true;
        work->run = [=] { function(argument); return Outcome{}; };
        return submit(held, stream, std::move(work));
    });
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function,
                                  void *argument, unsigned flags) {
    return with_stream(handle, [&](Held &held, Stream &stream) {
        if (!function || flags) return cudaErrorInvalidValue;
        if (stream.capture) {   // a graph takes host functions only
            break_capture(*stream.capture);
            return cudaErrorStreamCaptureUnsupported;
        }
        auto work = std::make_shared<Work>();
        work->name = "host function";
        work->programs = work->always = true;
        work->run = [=, device = stream.device] {
            Held held(runtime().lock);
            cudaError_t error = cudaError_t(device->error);
            held.unlock();
            function(handle, error, argument);
            return Outcome{};
        };
        return submit(held, stream, std::move(work));
    });
}

// ---- events

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
    return call([&](Held &held) {
        unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
        if (!handle || flags & ~known) return cudaErrorInvalidValue;
        if (flags & cudaEventInterprocess) return cudaError_t(cudaErrorNotSupported);
        auto *event = new Event;
        event->device = &current(held);
        event->flags = flags;
        runtime().events.insert(event);
        *handle = reinterpret_cast<cudaEvent_t>(event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    return with_event(handle, [&](Held &, Event &event) {
        runtime().events.erase(&event);
        drop_later(event.capture);
        delete &event;
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    return with_event(handle, [&](Held &held, Event &event) {
        Stream *found = resolve(held, stream);
        return found ? record(held, event, *found) : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned flags) {
    if (flags) return cudaError_t(hostcuda_missing("cudaEventRecordWithFlags with cudaEventRecordExternal"));
    return cudaEventRecord(handle, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    return with_event(handle, [&](Held &held, Event &event) {
        if (event.capture) return cudaErrorCapturedEvent;
        if (cudaError_t refused = refuse_unsafe(held)) return refused;
        glance(held);
        return done(event) ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    return with_event(handle, [&](Held &held, Event &event) {
        if (event.capture) return cudaErrorCapturedEvent;
        if (cudaError_t refused = refuse_unsafe(held)) return refused;
        count(HOSTCUDA_OTHER, "synchronize event");
        return event.last ? wait_for(held, event.last) : cudaSuccess;
    });
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return with_event(from, [&](Held &, Event &start) {
        Event *end = event_of(to);
        if (!milliseconds) return cudaErrorInvalidValue;
        if (!end || !start.last || !end->last
            || (start.flags | end->flags) & cudaEventDisableTiming)
            return cudaErrorInvalidResourceHandle;
        if (start.capture || end->capture) return cudaErrorCapturedEvent;
        if (!done(start) || !done(*end)) return cudaErrorNotReady;
        *milliseconds = float((end->last->finished - start.last->finished) * 1e3);
        return cudaSuccess;
    });
}

}
