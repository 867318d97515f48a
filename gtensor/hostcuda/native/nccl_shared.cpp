// The memory that the processes of one communicator share, and how they wait for each other.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>

#include "nccl.h"

namespace nccl {

namespace {

constexpr char MAGIC[] = "gtensor";
constexpr size_t HEAD = (sizeof(Shared) + 4095) / 4096 * 4096;

// The memory has no name in the file system, so a killed process leaves nothing behind: it is a
// descriptor of the process that made the id, which the others open through /proc.
struct Id {
    char magic[sizeof(MAGIC)];
    int process, descriptor;
    uint64_t token;
};

long futex(std::atomic<uint32_t> &word, int what, uint32_t value, const timespec *time) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), what, value, time, nullptr, 0);
}

}  // namespace

void Shared::change() {
    changes++;
    futex(changes, FUTEX_WAKE, INT_MAX, nullptr);
}

void Shared::wait(uint32_t seen, int milliseconds) {
    timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000L};
    futex(changes, FUTEX_WAIT, seen, &time);
}

Result make_id(UniqueId &made) {
    Id id{};
    memcpy(id.magic, MAGIC, sizeof(MAGIC));
    id.process = getpid();
    id.descriptor = memfd_create("nccl", MFD_CLOEXEC);
    if (id.descriptor < 0) return SYSTEM_ERROR;
    if (getrandom(&id.token, sizeof(id.token), 0) != sizeof(id.token)
        || ftruncate(id.descriptor, off_t(HEAD))
        || pwrite(id.descriptor, &id.token, sizeof(id.token), offsetof(Shared, token)) < 0) {
        close(id.descriptor);
        return SYSTEM_ERROR;
    }
    memset(&made, 0, sizeof(made));
    memcpy(made.bytes, &id, sizeof(id));
    return SUCCESS;
}

Result Segment::open(const UniqueId &given, int ranks) {
    Id id;
    memcpy(&id, given.bytes, sizeof(id));
    if (memcmp(id.magic, MAGIC, sizeof(MAGIC))) return INVALID_ARGUMENT;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", id.process, id.descriptor);
    int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return SYSTEM_ERROR;
    size_t bytes = HEAD + size_t(ranks) * SLOT;
    struct stat state;
    void *memory = MAP_FAILED;
    if (!fstat(file, &state) && (size_t(state.st_size) >= bytes || !ftruncate(file, off_t(bytes))))
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (memory == MAP_FAILED) return SYSTEM_ERROR;
    shared = static_cast<Shared *>(memory);
    slots = static_cast<char *>(memory) + HEAD;
    mapped = bytes;
    if (shared->token != id.token) return SYSTEM_ERROR;
    uint32_t none = 0;   // the first rank says how many there are
    if (!shared->ranks.compare_exchange_strong(none, uint32_t(ranks)) && none != uint32_t(ranks))
        return INTERNAL_ERROR;
    return SUCCESS;
}

char *Segment::slot(int rank) const { return slots + size_t(rank) * SLOT; }

Segment::~Segment() {
    if (shared) munmap(shared, mapped);
}

}  // namespace nccl
