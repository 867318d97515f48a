// What a cubin, NVRTC's image for a card, says about its kernels and variables.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace hostcuda {

struct CubinKernel {
    std::string name;
    std::vector<size_t> parameter_sizes;
    unsigned registers = 0;             // of a thread
    unsigned max_threads = 1024;        // of __launch_bounds__
    size_t static_shared_bytes = 0;     // without those that the system reserves
};

struct CubinVariable {
    std::string name;
    size_t bytes = 0;
};

struct Cubin {
    unsigned architecture = 0;          // such as 90
    bool exact = false;                 // "sm_90a": for cards of this architecture alone
    std::vector<CubinKernel> kernels;
    std::vector<CubinVariable> variables;   // __device__ and __constant__

    // Whether a card loads it (nvcc's manual, "GPU Compilation").
    bool runs_on(unsigned capability) const {
        if (exact) return architecture == capability;
        return architecture / 10 == capability / 10 && architecture <= capability;
    }
};

// Whether an image is an ELF file; `most` bytes of it may be read at most.
bool is_elf(const void *image, size_t most);

// Reads a cubin of unknown size; `most` is SIZE_MAX then. Its last byte may be missing,
// because CuPy drops it. "", or one sentence about what makes it no cubin.
std::string read_cubin(const void *image, size_t most, Cubin &to);

}  // namespace hostcuda
