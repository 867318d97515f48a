// Modules: kernels that were compiled for the host, and their launches.
//
// An image is the result of the compiler (kernels/compiler.py) for a program's text. It begins with
// "//HOSTCUDA " and its length in eight hexadecimal digits. The compiler also maps an image to the
// shared library with its kernels.
//
// With NVRTC as the compiler an image is a cubin (cubins.cpp). Its launches are checked and counted,
// and its kernels do nothing, because no CPU runs their code. So it is loaded in dry mode only.
#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cubins.h"
#include "driver.h"

namespace hostcuda {

namespace {

constexpr char MAGIC[] = "//HOSTCUDA ";
constexpr size_t HEADER = sizeof MAGIC - 1 + 8;

struct Module;

struct Function {
    const hostcuda_kernel *kernel = nullptr;   // without a `thread` if it does nothing
    Module *module = nullptr;
    std::string counted;             // the name that its launches are counted under
    int registers = 32;              // g++ has no such number: what most kernels need
    std::map<int, int> attributes;   // those that were set
};

struct Module {
    void *library = nullptr;         // none: it is a cubin
    Device *device = nullptr;
    std::map<std::string, std::unique_ptr<Function>> functions;
    std::vector<Address> globals;    // those that programs know
    Cubin cubin;
    std::deque<hostcuda_kernel> kernels;       // the cubin's
    std::map<std::string, Address> variables;  // the cubin's that programs know
};

struct Modules {
    std::unordered_set<Module *> modules;
    std::unordered_set<Function *> functions;
    std::set<std::string> opened;
    bool cubins = false;             // NVRTC is the compiler
    // The Python side's: writes the path of an image's library. Returns 0, or a cudaError_t.
    int (*load)(const void *image, size_t bytes, char *path, size_t path_bytes) = nullptr;
};

Modules &modules() {
    static Modules *all = new Modules;
    return *all;
}

// A module that is loaded twice has its variables twice: the second time a copy of the file is opened.
// The dynamic linker knows a library by the name that it was opened with: each copy has its own.
void *open_library(const std::string &path, bool again) {
    if (!again) return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    std::error_code error;
    std::string folder = std::filesystem::temp_directory_path(error) / "hostcuda-XXXXXX";
    if (error || !mkdtemp(folder.data())) return nullptr;
    std::string copy = folder + "/module.so";
    void *library = std::filesystem::copy_file(path, copy, error)
                        ? dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL)
                        : nullptr;
    std::filesystem::remove_all(folder, error);
    return library;
}

int limit(const Device &device, cudaDeviceAttr which) {
    auto found = device.attributes.find(which);
    return found == device.attributes.end() ? 0 : found->second;
}

// "_Z5scaleIfEvPT_" is "void scale<float>(float*)" in C++ and counts as "scale<float>", the name
// expression that the host's compiler knows it by.
std::string counted_name(const std::string &mangled) {
    int failed = 0;
    std::unique_ptr<char, decltype(&free)> text(
        abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &failed), free);
    if (failed || !text || mangled.compare(0, 2, "_Z")) return mangled;
    std::string name = text.get();
    int depth = 0;
    for (size_t place = name.size(); place-- > 0;) {   // the parameters are the last parentheses
        depth += (name[place] == ')') - (name[place] == '(');
        if (depth) continue;
        name.resize(place);
        break;
    }
    return name.compare(0, 5, "void ") ? name : name.substr(5);
}

void add_kernel(Module &module, const hostcuda_kernel &kernel, int registers) {
    auto function = std::make_unique<Function>();
    function->kernel = &kernel;
    function->module = &module;
    function->registers = registers;
    function->counted = kernel.thread ? kernel.name : counted_name(kernel.name);
    modules().functions.insert(function.get());
    module.functions[kernel.name] = std::move(function);
}

constexpr int WARP = 32;

// Registers are given to warps, 256 at a time: NVIDIA's cuda_occupancy.h.
int registers_of_warp(int of_thread) { return (of_thread * WARP + 255) / 256 * 256; }

// The largest block whose registers there are: a launch takes those of a multiple of four warps.
unsigned most_threads(const Device &device, int registers) {
    int warps = limit(device, cudaDevAttrMaxRegistersPerBlock)
                / std::max(registers_of_warp(registers), 1) / 4 * 4;
    return unsigned(warps * WARP);
}

CUresult refused_image(CUresult error, const std::string &sentence) {
    fprintf(stderr, "hostcuda: %s\n", sentence.c_str());
    return error;
}

CUresult load_cubin(CUmodule *made, const void *image, size_t most) {
    if (!modules().cubins || !runtime().dry)
        return refused_image(CUDA_ERROR_INVALID_IMAGE,
                             "a module is a cubin, which does not run on a CPU; "
                             "install(dry=True, compiler=\"nvrtc\") loads it, and runs no kernel");
    auto module = std::make_unique<Module>();
    std::string wrong = read_cubin(image, most, module->cubin);
    if (!wrong.empty())
        return refused_image(CUDA_ERROR_INVALID_IMAGE, "a module is no valid cubin: " + wrong);
    return with_context([&](Held &) {
        const Device &device = *(module->device = thread().context);
        unsigned capability = unsigned(10 * limit(device, cudaDevAttrComputeCapabilityMajor)
                                       + limit(device, cudaDevAttrComputeCapabilityMinor));
        if (!module->cubin.runs_on(capability))
            return cudaError_t(refused_image(
                CUDA_ERROR_NO_BINARY_FOR_GPU,
                "a module was compiled for sm_" + std::to_string(module->cubin.architecture)
                + (module->cubin.exact ? "a" : "") + "; the device is an sm_"
                + std::to_string(capability)));
        for (const CubinKernel &each : module->cubin.kernels) {
            hostcuda_kernel &kernel = module->kernels.emplace_back();
            kernel.name = each.name.c_str();
            kernel.parameter_count = unsigned(each.parameter_sizes.size());
            kernel.parameter_sizes = each.parameter_sizes.data();
            kernel.static_shared_bytes = each.static_shared_bytes;
            kernel.max_threads = std::min(each.max_threads,
                                          most_threads(device, int(each.registers)));
            add_kernel(*module, kernel, int(each.registers));
        }
        modules().modules.insert(module.get());
        *made = reinterpret_cast<CUmodule>(module.release());
        return cudaSuccess;
    });
}

// `most` bytes of the image may be read; it is SIZE_MAX where the program does not tell its size.
CUresult load(CUmodule *made, const void *image, size_t most = SIZE_MAX) {
    if (!made || !image) return CUDA_ERROR_INVALID_VALUE;
    if (!thread().context) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult refused = with_context([](Held &held) { return refuse_unsafe(held); });
    if (refused) return refused;
    if (is_elf(image, most)) return load_cubin(made, image, most);
    if (most < HEADER || memcmp(image, MAGIC, sizeof MAGIC - 1)) return CUDA_ERROR_INVALID_IMAGE;
    const char *length = static_cast<const char *>(image) + sizeof MAGIC - 1;
    size_t bytes = strtoull(std::string(length, 8).c_str(), nullptr, 16);
    if (!modules().load) return CUDA_ERROR_NOT_SUPPORTED;
    char path[4096] = "";
    int error = modules().load(image, bytes, path, sizeof path);
    if (error) return CUresult(error);
    bool again;
    {
        Held held(runtime().lock);
        again = !modules().opened.insert(path).second;
    }
    void *library = open_library(path, again);
    if (!library) {
        fprintf(stderr, "hostcuda: %s\n", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    auto next = reinterpret_cast<decltype(&hostcuda_module_kernel)>(
        dlsym(library, "hostcuda_module_kernel"));
    if (!next) return CUDA_ERROR_INVALID_IMAGE;
    return with_context([&](Held &) {
        auto *module = new Module;
        module->library = library;
        module->device = thread().context;
        for (size_t place = 0; const hostcuda_kernel *kernel = next(place); place++)
            add_kernel(*module, *kernel, Function().registers);
        modules().modules.insert(module);
        *made = reinterpret_cast<CUmodule>(module);
        return cudaSuccess;
    });
}

Module *module_of(CUmodule handle) {
    auto *module = reinterpret_cast<Module *>(handle);
    return modules().modules.count(module) ? module : nullptr;
}

Function *function_of(CUfunction handle) {
    auto *function = reinterpret_cast<Function *>(handle);
    return modules().functions.count(function) ? function : nullptr;
}

int attribute(Function &function, CUfunction_attribute which) {
    Device &device = *function.module->device;
    auto set = function.attributes.find(which);
    if (set != function.attributes.end()) return set->second;
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return int(function.kernel->max_threads);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: return int(function.kernel->static_shared_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return function.registers;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        return 10 * limit(device, cudaDevAttrComputeCapabilityMajor)
               + limit(device, cudaDevAttrComputeCapabilityMinor);
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        return limit(device, cudaDevAttrMaxSharedMemoryPerBlock)
               - int(function.kernel->static_shared_bytes);
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return -1;
    default: return 0;
    }
}

// How many blocks a multiprocessor holds, by threads, registers, shared memory and its own limit.
// It has four parts, in which a warp's registers lie together (cuda_occupancy.h).
int resident(Function &function, int threads, size_t shared) {
    Device &device = *function.module->device;
    size_t block = shared + function.kernel->static_shared_bytes
                   + size_t(limit(device, cudaDevAttrReservedSharedMemoryPerBlock));
    int warps = (threads + WARP - 1) / WARP;
    int by_threads = limit(device, cudaDevAttrMaxThreadsPerMultiProcessor) / (warps * WARP);
    int by_registers = limit(device, cudaDevAttrMaxRegistersPerMultiprocessor) / 4
                       / std::max(registers_of_warp(function.registers), 1) * 4 / warps;
    int by_shared = int(size_t(limit(device, cudaDevAttrMaxSharedMemoryPerMultiprocessor)) / block);
    if (unsigned(threads) > function.kernel->max_threads) return 0;
    return std::min({by_threads, by_registers, by_shared,
                     limit(device, cudaDevAttrMaxBlocksPerMultiprocessor)});
}

// The limits of a launch: CUDA C++ Programming Guide, "Compute Capabilities".
cudaError_t check(Function &function, const unsigned (&grid)[3], const unsigned (&block)[3],
                  size_t shared) {
    Device &device = *function.module->device;
    size_t threads = 1;
    for (int axis = 0; axis < 3; axis++) {
        if (!grid[axis] || !block[axis]) return cudaErrorInvalidValue;
        if (grid[axis] > unsigned(limit(device, cudaDeviceAttr(cudaDevAttrMaxGridDimX + axis)))
            || block[axis] > unsigned(limit(device, cudaDeviceAttr(cudaDevAttrMaxBlockDimX + axis))))
            return cudaErrorInvalidValue;
        threads *= block[axis];
    }
    if (threads > size_t(limit(device, cudaDevAttrMaxThreadsPerBlock))) return cudaErrorInvalidValue;
    if (threads > function.kernel->max_threads) return cudaErrorLaunchOutOfResources;
    if (shared > size_t(attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

// The values of a launch's parameters, taken at the call.
struct Parameters {
    std::vector<std::unique_ptr<std::max_align_t[]>> values;
    std::vector<void *> pointers;
    Parameters(const hostcuda_kernel &kernel, void **from) {
        for (unsigned place = 0; place < kernel.parameter_count; place++) {
            size_t bytes = kernel.parameter_sizes[place];
            size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
            values.emplace_back(new std::max_align_t[std::max(units, size_t(1))]);
            memcpy(values.back().get(), from[place], bytes);
            pointers.push_back(values.back().get());
        }
    }
};

struct Size {
    unsigned axes[3];
};

// What a program that watches is told of a launch.
std::shared_ptr<const Launched> launched(Function &function, const unsigned (&grid)[3],
                                         const unsigned (&block)[3], size_t shared, void **from) {
    auto made = std::make_shared<Launched>();
    const hostcuda_kernel &kernel = *function.kernel;
    made->module = reinterpret_cast<uintptr_t>(function.module);
    made->function = kernel.name;
    std::copy_n(grid, 3, made->grid);
    std::copy_n(block, 3, made->block);
    made->shared = shared;
    made->resident = resident(function, int(block[0] * block[1] * block[2]), shared);
    for (unsigned place = 0; kernel.parameter_sizes && place < kernel.parameter_count; place++) {
        size_t bytes = kernel.parameter_sizes[place];
        made->sizes.push_back(unsigned(bytes));
        made->parameters.append(static_cast<const char *>(from[place]), bytes);
    }
    return made;
}

}  // namespace

}  // namespace hostcuda

using namespace hostcuda;

extern "C" {

CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load(module, image); }

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned, CUjit_option *, void **) {
    return load(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    FILE *file = path ? fopen(path, "rb") : nullptr;
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::string image;
    char buffer[1 << 16];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;) image.append(buffer, got);
    fclose(file);
    return load(module, image.data(), image.size());
}

CUresult cuModuleUnload(CUmodule handle) {
    void *library = nullptr;
    CUresult error = without_context([&](Held &held) {
        Module *module = module_of(handle);
        if (!module) return cudaErrorInvalidResourceHandle;
        if (!running_here(held)) wait_for_device(held, *module->device);
        for (Address base : module->globals) runtime().memory.erase(base);
        for (const auto &each : module->variables) forget(held, each.second);
        for (auto &each : module->functions) modules().functions.erase(each.second.get());
        modules().modules.erase(module);
        if (!running_here(held)) library = module->library;
        delete module;
        return cudaSuccess;
    });
    if (library) dlclose(library);
    return error;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    return without_context([&](Held &) {
        Module *module = module_of(handle);
        if (!module) return cudaErrorInvalidResourceHandle;
        if (!function || !name) return cudaErrorInvalidValue;
        auto found = module->functions.find(name);
        if (found == module->functions.end()) return cudaErrorSymbolNotFound;
        *function = reinterpret_cast<CUfunction>(found->second.get());
        return cudaSuccess;
    });
}

namespace {

// A cubin's variable has its memory from the first question about it on.
cudaError_t find_variable(Held &held, Module &module, const std::string &name, CUdeviceptr *pointer,
                          size_t *bytes) {
    for (const CubinVariable &each : module.cubin.variables) {
        if (each.name != name) continue;
        auto known = module.variables.find(name);
        if (known == module.variables.end()) {
            Allocation *made = nullptr;
            if (cudaError_t error = allocate(held, Kind::global, each.bytes, nullptr, &made))
                return error;
            if (!commit(*made)) {
                forget(held, made->base);
                return cudaErrorMemoryAllocation;
            }
            made->device = module.device;
            known = module.variables.emplace(name, made->base).first;
        }
        if (pointer) *pointer = known->second;
        if (bytes) *bytes = each.bytes;
        return cudaSuccess;
    }
    return cudaErrorSymbolNotFound;
}

}  // namespace

CUresult cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUmodule handle, const char *name) {
    return without_context([&](Held &held) {
        Module *module = module_of(handle);
        if (!module) return cudaErrorInvalidResourceHandle;
        if (!name) return cudaErrorInvalidValue;
        if (!module->library) return find_variable(held, *module, name, pointer, bytes);
        void *found = dlsym(module->library, name);
        Dl_info where;
        const ElfW(Sym) *symbol = nullptr;
        if (!found || !dladdr1(found, &where, const_cast<void **>(
                reinterpret_cast<const void **>(&symbol)), RTLD_DL_SYMENT) || !symbol)
            return cudaErrorSymbolNotFound;
        if (!find(found)) {
            Allocation made;
            made.base = Address(found);
            made.bytes = symbol->st_size;
            made.kind = Kind::global;
            made.device = module->device;
            made.there = true;
            made.id = ++runtime().next_allocation;
            runtime().memory[made.base] = made;
            module->globals.push_back(made.base);
        }
        if (pointer) *pointer = CUdeviceptr(found);
        if (bytes) *bytes = symbol->st_size;
        return cudaSuccess;
    });
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction handle) {
    return without_context([&](Held &) {
        Function *function = function_of(handle);
        if (!function) return cudaErrorInvalidResourceHandle;
        if (!value || which < 0 || which >= CU_FUNC_ATTRIBUTE_MAX) return cudaErrorInvalidValue;
        *value = attribute(*function, which);
        return cudaSuccess;
    });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute which, int value) {
    return without_context([&](Held &) {
        Function *function = function_of(handle);
        if (!function) return cudaErrorInvalidResourceHandle;
        if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
            int most = limit(*function->module->device, cudaDevAttrMaxSharedMemoryPerBlockOptin)
                       - int(function->kernel->static_shared_bytes);
            if (value < 0 || value > most) return cudaErrorInvalidValue;
        } else if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
            if (value < -1 || value > 100) return cudaErrorInvalidValue;
        } else {
            return cudaErrorInvalidValue;
        }
        function->attributes[which] = value;
        return cudaSuccess;
    });
}

CUresult cuFuncGetName(const char **name, CUfunction handle) {
    return without_context([&](Held &) {
        Function *function = function_of(handle);
        if (!function || !name) return cudaErrorInvalidValue;
        *name = function->kernel->name;
        return cudaSuccess;
    });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads,
                                                     size_t shared) {
    return without_context([&](Held &) {
        Function *function = function_of(handle);
        if (!function) return cudaErrorInvalidResourceHandle;
        if (!blocks || threads <= 0) return cudaErrorInvalidValue;
        *blocks = resident(*function, threads, shared);
        return cudaSuccess;
    });
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle,
                                          CUoccupancyB2DSize shared_of, size_t shared, int most) {
    return without_context([&](Held &) {
        Function *function = function_of(handle);
        if (!function) return cudaErrorInvalidResourceHandle;
        if (!grid || !block || shared_of) return cudaErrorInvalidValue;
        Device &device = *function->module->device;
        int threads = int(function->kernel->max_threads);
        if (most > 0) threads = std::min(threads, most);
        *block = threads;
        *grid = resident(*function, threads, shared) * limit(device, cudaDevAttrMultiProcessorCount);
        return cudaSuccess;
    });
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream_handle, void **parameters, void **extra) {
    return with_context([&](Held &held) {
        Function *function = function_of(handle);
        Stream *stream = resolve(held, stream_handle);
        if (!function || !stream) return cudaErrorInvalidResourceHandle;
        if (stream->device != function->module->device) return cudaErrorInvalidResourceHandle;
        const hostcuda_kernel *kernel = function->kernel;
        unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
        if (cudaError_t error = check(*function, grid, block, shared)) return error;
        if (extra || (kernel->thread && !runtime().run_kernel)) {
            runtime().missing[extra ? "cuLaunchKernel with packed parameters" : "cuLaunchKernel"]++;
            return cudaErrorNotSupported;
        }
        if (kernel->parameter_count && !parameters) return cudaErrorInvalidValue;
        auto work = std::make_shared<Work>();
        work->kind = HOSTCUDA_KERNEL;
        work->name = function->counted;
        if (runtime().watched) work->launched = launched(*function, grid, block, shared, parameters);
        if (!kernel->thread) return submit(held, *stream, std::move(work));
        auto values = std::make_shared<Parameters>(*kernel, parameters);
        Size blocks{{grid_x, grid_y, grid_z}}, threads{{block_x, block_y, block_z}};
        work->run = [=] {
            char fault[1024] = "";
            unsigned long long schedule = runtime().deferred ? hostcuda_random() : 0;
            int error = runtime().run_kernel(kernel, blocks.axes, threads.axes, shared,
                                             values->pointers.data(), schedule, fault, sizeof fault);
            return Outcome{error, fault};
        };
        return submit(held, *stream, std::move(work));
    });
}

CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void **) {
    return CUresult(hostcuda_missing("cuLaunchCooperativeKernel"));
}

// The Python side's part of loading, and what runs a kernel.
void hostcuda_set_loader(int (*loader)(const void *, size_t, char *, size_t)) {
    Held held(runtime().lock);
    modules().load = loader;
}

// From now on dry mode loads cubins.
void hostcuda_take_cubins(void) {
    Held held(runtime().lock);
    modules().cubins = true;
}

void hostcuda_set_runner(decltype(&hostcuda_run) run) {
    Held held(runtime().lock);
    runtime().run_kernel = run;
}

}
