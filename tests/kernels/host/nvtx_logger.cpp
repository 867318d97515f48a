// An NVTX tool for the tests: NVTX loads it because NVTX_INJECTION64_PATH names it, and it appends
// a line for each range of a domain to the file named by NVTX_LOGGER_FILE:
//     push DOMAIN MESSAGE
//     pop DOMAIN
// The layouts below are those of NVTX 3's ABI (nvtxDetail/nvtxTypes.h, nvToolsExt.h), which are
// stable.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;  // 1: text, 3: registered text
  const void *message;
};

typedef void (*Function)();

struct Callbacks {
  size_t size;
  int (*get_module)(int module, Function ***table, unsigned *size);
};

const uint32_t callbacks_table = 1;  // NVTX_ETID_CALLBACKS
const int core2 = 5;                 // NVTX_CB_MODULE_CORE2, the functions with a domain
const unsigned push_id = 4, pop_id = 5, register_string_id = 10, create_domain_id = 12;

FILE *file;

// Handles are the names themselves.
void *create_domain(const char *name) { return strdup(name); }

void *register_string(void *, const char *text) { return strdup(text); }

int push(void *domain, const Attributes *attributes) {
  const bool is_text = attributes->message_type == 1 || attributes->message_type == 3;
  fprintf(file, "push %s %s\n", static_cast<char *>(domain),
          is_text ? static_cast<const char *>(attributes->message) : "?");
  fflush(file);
  return 0;
}

int pop(void *domain) {
  fprintf(file, "pop %s\n", static_cast<char *>(domain));
  fflush(file);
  return 0;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(const void *(*get_table)(uint32_t)) {
  const char *path = getenv("NVTX_LOGGER_FILE");
  const Callbacks *callbacks = static_cast<const Callbacks *>(get_table(callbacks_table));
  Function **table = nullptr;
  unsigned size = 0;
  if (!path || !callbacks || !callbacks->get_module(core2, &table, &size) ||
      size <= create_domain_id || !(file = fopen(path, "a")))
    return 0;
  *table[push_id] = reinterpret_cast<Function>(push);
  *table[pop_id] = reinterpret_cast<Function>(pop);
  *table[register_string_id] = reinterpret_cast<Function>(register_string);
  *table[create_domain_id] = reinterpret_cast<Function>(create_domain);
  return 1;
}
