// The arithmetic of the stand-in for NCCL.
#include <cstring>
#include <type_traits>

#include "nccl.h"

namespace nccl {

namespace {

constexpr size_t SIZES[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr const char *TYPE_NAMES[TYPES] = {"int8", "uint8", "int32", "uint32", "int64", "uint64",
                                           "float16", "float32", "float64", "bfloat16", "float8e4m3",
                                           "float8e5m2"};
constexpr const char *OP_NAMES[OPS] = {"sum", "prod", "max", "min", "avg"};
constexpr const char *NAMES[] = {"AllReduce", "Reduce", "Broadcast", "ReduceScatter", "AllGather"};

struct BFloat16 {
    uint16_t bits;
    BFloat16(float value) {
        uint32_t wide;
        memcpy(&wide, &value, 4);
        bits = value != value ? 0x7fff : uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
    operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &wide, 4);
        return value;
    }
};

template <class T> T combine(T one, T other, int op) {
    using Wide = std::conditional_t<std::is_integral_v<T>, T,
                                    std::conditional_t<sizeof(T) == 8, double, float>>;
    Wide a = one, b = other;
    switch (op) {
    case PROD: return T(a * b);
    case MAX: return a < b || b != b ? other : one;
    case MIN: return b < a || b != b ? other : one;
    default: return T(a + b);
    }
}

template <class T>
bool reduce(void *to, const char *from, size_t apart, int ranks, size_t count, int op) {
    constexpr bool integer = std::is_integral_v<T>;
    T *out = static_cast<T *>(to);
    for (size_t place = 0; place < count; place++) {
        auto value = [&](int rank) {
            T read = reinterpret_cast<const T *>(from + size_t(rank) * apart)[place];
            if constexpr (!integer)
                if (op == AVG)
                    return sizeof(T) == 8 ? T(double(read) * (1.0 / ranks))
                                          : T(float(read) * (1.0f / float(ranks)));
            return read;
        };
        T sum = value(0);
        for (int rank = 1; rank < ranks; rank++) sum = combine(sum, value(rank), op);
        if constexpr (integer)
            if (op == AVG) sum = T(sum / T(ranks));
        out[place] = sum;
    }
    return true;
}

}  // namespace

size_t size_of(int type) { return SIZES[type]; }

std::string described(const Call &call) {
    std::string text = std::string(NAMES[call.what]) + " of " + std::to_string(call.count) + " "
                       + TYPE_NAMES[call.type];
    if (call.what != BROADCAST && call.what != ALL_GATHER)
        text += std::string(" by ") + OP_NAMES[call.op];
    if (call.what == REDUCE || call.what == BROADCAST)
        text += " with root " + std::to_string(call.root);
    return text;
}

bool reduce(void *to, const char *from, size_t apart, int ranks, size_t count, int type, int op) {
    switch (type) {
    case INT8: return reduce<int8_t>(to, from, apart, ranks, count, op);
    case UINT8: return reduce<uint8_t>(to, from, apart, ranks, count, op);
    case INT32: return reduce<int32_t>(to, from, apart, ranks, count, op);
    case UINT32: return reduce<uint32_t>(to, from, apart, ranks, count, op);
    case INT64: return reduce<int64_t>(to, from, apart, ranks, count, op);
    case UINT64: return reduce<uint64_t>(to, from, apart, ranks, count, op);
    case FLOAT16: return reduce<_Float16>(to, from, apart, ranks, count, op);
    case FLOAT32: return reduce<float>(to, from, apart, ranks, count, op);
    case FLOAT64: return reduce<double>(to, from, apart, ranks, count, op);
    case BFLOAT16: return reduce<BFloat16>(to, from, apart, ranks, count, op);
    default: return false;
    }
}

}  // namespace nccl
