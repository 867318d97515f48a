// Copies and memsets.
//
// What a copy waits for follows "API synchronization behavior" of the CUDA Runtime API: from pageable
// host memory the bytes are taken at the call, to pageable host memory the call returns when they are
// there, from and to pinned host memory they are read and written when the copy runs.
#include <cstring>

#include "state.h"

using namespace hostcuda;

namespace {

enum class Place { pageable, pinned, device };

Place place_of(const void *pointer) {
    Allocation *found = find(pointer);
    if (!found) return Place::pageable;
    return found->kind == Kind::host || found->kind == Kind::registered ? Place::pinned
                                                                        : Place::device;
}

// Rows of bytes: a plain copy is one row.
struct Rows {
    char *to = nullptr;
    const char *from = nullptr;
    size_t to_pitch = 0, from_pitch = 0, width = 0, height = 1;
    size_t to_extent() const { return height ? to_pitch * (height - 1) + width : 0; }
    size_t from_extent() const { return height ? from_pitch * (height - 1) + width : 0; }
    void copy() const {
        for (size_t row = 0; row < height; row++)
            memmove(to + row * to_pitch, from + row * from_pitch, width);
    }
};

struct Direction {
    Place to, from;
    const char *name;
};

// Where the two ends lie, checked against what the caller says.
cudaError_t ends(const Rows &rows, cudaMemcpyKind kind, Direction &way) {
    way.to = place_of(rows.to);
    way.from = place_of(rows.from);
    bool to = way.to == Place::device, from = way.from == Place::device;
    way.name = to ? (from ? "device to device" : "host to device")
                  : (from ? "device to host" : "host to host");
    auto managed = [](const void *pointer) {
        Allocation *found = find(pointer);
        return found && found->kind == Kind::managed;
    };
    auto fits = [&](bool wanted_device, bool is_device, const void *pointer) {
        return wanted_device == is_device || managed(pointer)
               || (wanted_device && place_of(pointer) == Place::pinned);   // unified addresses
    };
    bool good = false;
    switch (kind) {
    case cudaMemcpyDefault: good = true; break;
    case cudaMemcpyHostToHost: good = fits(false, to, rows.to) && fits(false, from, rows.from); break;
    case cudaMemcpyHostToDevice: good = fits(true, to, rows.to) && fits(false, from, rows.from); break;
    case cudaMemcpyDeviceToHost: good = fits(false, to, rows.to) && fits(true, from, rows.from); break;
    case cudaMemcpyDeviceToDevice: good = fits(true, to, rows.to) && fits(true, from, rows.from); break;
    default: return cudaErrorInvalidMemcpyDirection;
    }
    if (!good) return cudaErrorInvalidValue;
    if (way.to != Place::pageable && !whole(rows.to, rows.to_extent())) return cudaErrorInvalidValue;
    if (way.from != Place::pageable && !whole(rows.from, rows.from_extent()))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t copy(Held &held, Rows rows, cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
    Stream *stream = resolve(held, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!rows.width || !rows.height) return cudaSuccess;
    if (!rows.to || !rows.from) return cudaErrorInvalidValue;
    if (rows.height > 1 && (rows.to_pitch < rows.width || rows.from_pitch < rows.width))
        return cudaErrorInvalidPitchValue;
    Direction way;
    if (cudaError_t error = ends(rows, kind, way)) return error;
    if (wait) {   // it runs on the legacy stream, which no capture allows
        if (cudaError_t refused = refuse_unsafe(held)) return refused;
        if (cudaError_t refused = refuse_legacy(held, *stream)) return refused;
    }
    bool pageable = way.to == Place::pageable || way.from == Place::pageable;
    if (stream->capture && pageable) {
        break_capture(*stream->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    bool between_hosts = way.to != Place::device && way.from != Place::device;
    auto work = std::make_shared<Work>();
    work->kind = HOSTCUDA_COPY;
    work->name = way.name;
    work->bytes = rows.width * rows.height;
    bool finish = way.to == Place::pageable || (between_hosts && !stream->capture)
                  || (wait && way.from != Place::device) || (wait && way.to != Place::device);
    std::vector<char> staged;
    if (way.from == Place::pageable && !finish)
        staged.assign(rows.from, rows.from + rows.from_extent());
    work->run = [rows, way, staged = std::move(staged)] {
        Rows now = rows;
        if (!staged.empty()) now.from = staged.data();
        if (way.from != Place::pageable)
            if (Outcome bad = reachable(now.from, now.from_extent(), "a copy"); bad.error) return bad;
        if (way.to != Place::pageable)
            if (Outcome bad = reachable(now.to, now.to_extent(), "a copy"); bad.error) return bad;
        now.copy();
        return Outcome{};
    };
    if (way.to != Place::device)   // the program reads something that is always the same
        work->dry = [rows] {
            for (size_t line = 0; line < rows.height; line++)
                memset(rows.to + line * rows.to_pitch, 0, rows.width);
        };
    cudaError_t error = submit(held, *stream, std::move(work), finish);
    if (finish && !error) count(HOSTCUDA_OTHER, "synchronize copy");
    return error;
}

Rows row(void *to, const void *from, size_t bytes) {
    return {static_cast<char *>(to), static_cast<const char *>(from), bytes, bytes, bytes, 1};
}

Rows rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
          size_t height) {
    return {static_cast<char *>(to), static_cast<const char *>(from), to_pitch, from_pitch, width,
            height};
}

// `width` elements of `size` bytes in each row.
cudaError_t fill(Held &held, void *pointer, size_t pitch, unsigned value, size_t size, size_t width,
                 size_t height, cudaStream_t handle, bool wait) {
    Stream *stream = resolve(held, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!width || !height) return cudaSuccess;
    Rows where = rows(pointer, pitch, nullptr, 0, width * size, height);
    if (Address(pointer) % size || (height > 1 && pitch < width * size)) return cudaErrorInvalidValue;
    if (place_of(pointer) == Place::pageable || !whole(pointer, where.to_extent()))
        return cudaErrorInvalidValue;
    if (wait)
        if (cudaError_t refused = refuse_unsafe(held)) return refused;
    auto work = std::make_shared<Work>();
    work->kind = HOSTCUDA_MEMSET;
    work->name = "memset";
    work->bytes = width * size * height;
    work->run = [where, value, size] {
        if (Outcome bad = reachable(where.to, where.to_extent(), "a memset"); bad.error) return bad;
        for (size_t line = 0; line < where.height; line++) {
            char *to = where.to + line * where.to_pitch;
            if (size == 1) memset(to, int(value), where.width);
            else
                for (size_t place = 0; place < where.width; place += size)
                    memcpy(to + place, &value, size);
        }
        return Outcome{};
    };
    return submit(held, *stream, std::move(work), wait && place_of(pointer) == Place::pinned);
}

}  // namespace

namespace hostcuda {

cudaError_t copy_bytes(Held &held, void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                       cudaStream_t stream, bool wait) {
    return copy(held, row(to, from, bytes), kind, stream, wait);
}

cudaError_t fill_elements(Held &held, void *pointer, size_t pitch, unsigned value, size_t size,
                          size_t width, size_t height, cudaStream_t stream, bool wait) {
    return fill(held, pointer, pitch, value, size, width, height, stream, wait);
}

}  // namespace hostcuda

extern "C" {

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    return call([&](Held &held) {
        return copy(held, row(to, from, bytes), kind, cudaStreamLegacy, true);
    });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return call([&](Held &held) { return copy(held, row(to, from, bytes), kind, stream, false); });
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device,
                           size_t bytes) {
    return call([&](Held &held) {
        if (!device_at(to_device) || !device_at(from_device)) return cudaErrorInvalidDevice;
        return copy(held, row(to, from, bytes), cudaMemcpyDeviceToDevice, cudaStreamLegacy, true);
    });
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream) {
    return call([&](Held &held) {
        if (!device_at(to_device) || !device_at(from_device)) return cudaErrorInvalidDevice;
        return copy(held, row(to, from, bytes), cudaMemcpyDeviceToDevice, stream, false);
    });
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
    return call([&](Held &held) {
        return copy(held, rows(to, to_pitch, from, from_pitch, width, height), kind,
                    cudaStreamLegacy, true);
    });
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
    return call([&](Held &held) {
        return copy(held, rows(to, to_pitch, from, from_pitch, width, height), kind, stream, false);
    });
}

cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
    return call([&](Held &held) {
        return fill(held, pointer, bytes, unsigned(value), 1, bytes, 1, cudaStreamLegacy, true);
    });
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
    return call([&](Held &held) {
        return fill(held, pointer, bytes, unsigned(value), 1, bytes, 1, stream, false);
    });
}

}
