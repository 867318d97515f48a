// An NVTX tool for the tests: NVTX loads it because NVTX_INJECTION64_PATH names it, and it appends
// a line for each range of a domain to the file named by NVTX_LOGGER_FILE:
//     push DOMAIN CATEGORY PAYLOAD MESSAGE
//     pop DOMAIN
//     start DOMAIN CATEGORY PAYLOAD MESSAGE
//     end DOMAIN
// A missing category or payload is "-", a message that is not registered "?".
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
  int32_t message_type;  // 3: registered text
  const void *message;
};

typedef void (*Function)();

struct Callbacks {
  size_t size;
  int (*get_module)(int module, Function ***table, unsigned *size);
};

const uint32_t callbacks_table = 1;  // NVTX_ETID_CALLBACKS
const int core2 = 5;                 // NVTX_CB_MODULE_CORE2, the functions with a domain
const unsigned start_id = 2, end_id = 3, push_id = 4, pop_id = 5, name_category_id = 8,
               register_string_id = 10, create_domain_id = 12;
const unsigned most_categories = 64;

FILE *file;
const char *categories[most_categories];

// Handles are the names themselves.
void *create_domain(const char *name) { return strdup(name); }

void *register_string(void *, const char *text) { return strdup(text); }

void name_category(void *, uint32_t number, const char *name) {
  if (number < most_categories) categories[number] = strdup(name);
}

void begin(const char *what, void *domain, const Attributes *attributes) {
  char payload[32] = "-";
  double number;
  memcpy(&number, &attributes->payload, sizeof number);
  if (attributes->payload_type == 2)
    snprintf(payload, sizeof payload, "%lld", static_cast<long long>(attributes->payload));
  else if (attributes->payload_type == 3)
    snprintf(payload, sizeof payload, "%g", number);
  const char *category =
      attributes->category < most_categories ? categories[attributes->category] : nullptr;
  fprintf(file, "%s %s %s %s %s\n", what, static_cast<char *>(domain), category ? category : "-",
          payload,
          attributes->message_type == 3 ? static_cast<const char *>(attributes->message) : "?");
  fflush(file);
}

int push(void *domain, const Attributes *attributes) {
  begin("push", domain, attributes);
  return 0;
}

uint64_t start(void *domain, const Attributes *attributes) {
  begin("start", domain, attributes);
  return 1;
}

void end(void *domain, uint64_t) {
  fprintf(file, "end %s\n", static_cast<char *>(domain));
  fflush(file);
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
  *table[start_id] = reinterpret_cast<Function>(start);
  *table[end_id] = reinterpret_cast<Function>(end);
  *table[push_id] = reinterpret_cast<Function>(push);
  *table[pop_id] = reinterpret_cast<Function>(pop);
  *table[name_category_id] = reinterpret_cast<Function>(name_category);
  *table[register_string_id] = reinterpret_cast<Function>(register_string);
  *table[create_domain_id] = reinterpret_cast<Function>(create_domain);
  return 1;
}
