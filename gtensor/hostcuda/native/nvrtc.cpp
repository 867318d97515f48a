// NVRTC's functions: a program's text is passed to the compiler (kernels/compiler.py, in Python).
//
// It is a library of its own, named like NVRTC, so that programs that open NVRTC open this one.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nvrtc.h>

namespace {

struct Program {
    std::string source, name;
    std::vector<std::string> headers, header_names, expressions;
    std::string image, log;
    std::map<std::string, std::string> lowered;
    bool compiled = false;
};

Program *of(nvrtcProgram program) { return reinterpret_cast<Program *>(program); }

// The Python side's: compiles, and answers through the functions below. Returns an nvrtcResult.
int (*compile)(void *program, const char *source, int options, const char *const *option,
               int expressions, const char *const *expression, int headers,
               const char *const *header, const char *const *header_name) = nullptr;

nvrtcResult give(const std::string &text, char *to) {
    if (!to) return NVRTC_ERROR_INVALID_INPUT;
    memcpy(to, text.data(), text.size());
    return NVRTC_SUCCESS;
}

nvrtcResult size_of(const std::string &text, size_t *size) {
    if (!size) return NVRTC_ERROR_INVALID_INPUT;
    *size = text.size();
    return NVRTC_SUCCESS;
}

const int ARCHITECTURES[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
constexpr int ARCHITECTURE_COUNT = sizeof ARCHITECTURES / sizeof *ARCHITECTURES;

}  // namespace

extern "C" {

void hostcuda_set_compiler(decltype(compile) compiler) { compile = compiler; }

void hostcuda_compiled(void *handle, const char *image, size_t bytes, const char *log) {
    Program *program = static_cast<Program *>(handle);
    program->image.assign(image, bytes);
    program->log = log;
    program->compiled = true;
}

void hostcuda_failed(void *handle, const char *log) { static_cast<Program *>(handle)->log = log; }

void hostcuda_lowered(void *handle, const char *expression, const char *name) {
    static_cast<Program *>(handle)->lowered[expression] = name;
}

const char *nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
    case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
    case NVRTC_ERROR_OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
    case NVRTC_ERROR_PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
    case NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION:
        return "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
    case NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION:
        return "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID: return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    case NVRTC_ERROR_INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
    default: return "NVRTC_ERROR unknown";
    }
}

nvrtcResult nvrtcVersion(int *major, int *minor) {
    if (!major || !minor) return NVRTC_ERROR_INVALID_INPUT;
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    if (!count) return NVRTC_ERROR_INVALID_INPUT;
    *count = ARCHITECTURE_COUNT;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int *architectures) {
    if (!architectures) return NVRTC_ERROR_INVALID_INPUT;
    memcpy(architectures, ARCHITECTURES, sizeof ARCHITECTURES);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *made, const char *source, const char *name,
                               int header_count, const char *const *headers,
                               const char *const *header_names) {
    if (!made || !source || header_count < 0) return NVRTC_ERROR_INVALID_INPUT;
    auto *program = new Program;
    program->source = source;
    program->name = name ? name : "default_program";
    for (int place = 0; place < header_count; place++) {
        program->headers.push_back(headers[place]);
        program->header_names.push_back(header_names[place]);
    }
    *made = reinterpret_cast<nvrtcProgram>(program);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    if (!program || !*program) return NVRTC_ERROR_INVALID_PROGRAM;
    delete of(*program);
    *program = nullptr;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char *expression) {
    if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
    if (!expression) return NVRTC_ERROR_INVALID_INPUT;
    if (of(program)->compiled) return NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
    of(program)->expressions.push_back(expression);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char *const *options) {
    if (!handle) return NVRTC_ERROR_INVALID_PROGRAM;
    if (!compile) return NVRTC_ERROR_INTERNAL_ERROR;
    Program *program = of(handle);
    auto pointers = [](const std::vector<std::string> &texts) {
        std::vector<const char *> all;
        for (const std::string &text : texts) all.push_back(text.c_str());
        return all;
    };
    auto expressions = pointers(program->expressions), headers = pointers(program->headers),
         header_names = pointers(program->header_names);
    return nvrtcResult(compile(program, program->source.c_str(), count, options,
                               int(expressions.size()), expressions.data(), int(headers.size()),
                               headers.data(), header_names.data()));
}

nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *expression, const char **name) {
    if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
    if (!expression || !name) return NVRTC_ERROR_INVALID_INPUT;
    if (!of(program)->compiled) return NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
    auto found = of(program)->lowered.find(expression);
    if (found == of(program)->lowered.end()) return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
    *name = found->second.c_str();
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
    if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
    if (!size) return NVRTC_ERROR_INVALID_INPUT;
    *size = of(program)->log.size() + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
    if (!log) return NVRTC_ERROR_INVALID_INPUT;
    memcpy(log, of(program)->log.c_str(), of(program)->log.size() + 1);
    return NVRTC_SUCCESS;
}

// The image serves as machine code and as PTX: programs only pass it to the module functions.
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    return program ? size_of(of(program)->image, size) : NVRTC_ERROR_INVALID_PROGRAM;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *image) {
    return program ? give(of(program)->image, image) : NVRTC_ERROR_INVALID_PROGRAM;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) {
    return nvrtcGetCUBINSize(program, size);
}
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *image) { return nvrtcGetCUBIN(program, image); }

nvrtcResult nvrtcGetLTOIRSize(nvrtcProgram, size_t *) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetLTOIR(nvrtcProgram, char *) { return NVRTC_ERROR_INTERNAL_ERROR; }

}
