// Cubins: ELF files, of which this reads what launches are checked by.
//
// NVIDIA documents neither the names of the sections nor their contents; `cuobjdump -elf` and
// `nvdisasm` print both. What is used here:
//
//   .text.NAME            the code of the kernel NAME. The symbol of an entry point has a mark.
//   .nv.shared.NAME       as large as its static shared memory. From sm_90 on it includes 1024
//                         bytes that the system reserves.
//   .nv.info              attributes of symbols: registers
//   .nv.info.NAME         attributes of the kernel: parameters, threads of __launch_bounds__
//   .nv.compat            attributes of the file: whether it is for one architecture alone
//   .nv.global, .nv.global.init, .nv.constant3   its variables
//
// The caller of cuModuleLoadData does not tell an image's size. An image ends where its last table
// ends; a file that has parts beyond that is refused, as is one with tables that contradict each
// other. Memory is copied by a call of the system, which fails where the process may not read.
#include "cubins.h"

#include <elf.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>

namespace hostcuda {

namespace {

constexpr unsigned MACHINE = 190;             // EM_CUDA
constexpr size_t MOST = size_t(1) << 30;      // bytes of an image
constexpr unsigned char ENTRY = 0x10;         // in st_other: a kernel, not a function of the device
constexpr size_t MOST_PARAMETERS = 4096;      // they have a byte each, at least: CUDA's older limit
constexpr size_t RESERVED_SHARED = 1024;      // bytes of a block
constexpr unsigned RESERVING = 90;            // the first architecture whose sections include them
constexpr int NEW_FLAGS = 8;                  // the ABI version from which flags hold more

// Attributes, by nvdisasm's names without EIATTR_ and EICOMPAT_ATTR_.
enum Attribute {
    MAX_THREADS = 0x05, KPARAM_INFO = 0x17, REGCOUNT = 0x2f, KPARAM_INFO_V2 = 0x45
};
constexpr unsigned CUDA_ACCELERATOR_TARGET = 0x09;

struct Inconsistent : std::runtime_error {
    using runtime_error::runtime_error;
};

void require(bool holds, const char *what) {
    if (!holds) throw Inconsistent(what);
}

// Copies bytes that may not be there; false if they are not.
bool copy(void *to, const void *from, size_t bytes) {
    iovec here{to, bytes}, there{const_cast<void *>(from), bytes};
    ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (got == ssize_t(bytes)) return true;
    if (got >= 0 || (errno != EPERM && errno != ENOSYS)) return false;
    memcpy(to, from, bytes);   // the system does not let programs use that call
    return true;
}

// The bytes of an image; any access beyond them raises Inconsistent.
struct Bytes {
    std::string all;

    template <class Type> Type at(size_t offset) const {
        require(offset <= all.size() && sizeof(Type) <= all.size() - offset,
                "a table ends too early");
        Type value;
        memcpy(&value, all.data() + offset, sizeof value);
        return value;
    }

    std::string text(size_t offset, size_t end) const {   // it ends with a zero before `end`
        require(offset < end && end <= all.size(), "a name lies outside its table");
        const char *from = all.data() + offset;
        const void *zero = memchr(from, 0, end - offset);
        require(zero, "a name has no end");
        return std::string(from, static_cast<const char *>(zero));
    }
};

struct Section {
    std::string name;
    Elf64_Shdr head;
    size_t end() const { return head.sh_offset + head.sh_size; }
};

struct Entry {   // of a table of attributes
    unsigned attribute;
    size_t offset, bytes;   // of its value
};

class Reader {
public:
    Reader(const void *image, size_t most) {
        require(most >= sizeof head && copy(&head, image, sizeof head),
                "it is shorter than its header");
        check_head();
        size_t size = std::max(end_of(head.e_shoff, head.e_shnum, sizeof(Elf64_Shdr)),
                               end_of(head.e_phoff, head.e_phnum, sizeof(Elf64_Phdr)));
        require(size <= MOST && size - 1 <= most, "it is shorter than its tables say");
        char end;   // before memory for it is asked for
        require(copy(&end, static_cast<const char *>(image) + size - 2, 1),
                "it is shorter than its tables say");
        bytes.all.resize(size);   // its last byte stays zero
        require(copy(bytes.all.data(), image, size - 1), "it is shorter than its tables say");
        read_sections();
        check_segments();
    }

    void read(Cubin &to) {
        to.architecture = head.e_ident[EI_ABIVERSION] >= NEW_FLAGS ? head.e_flags >> 8 & 0xff
                                                                   : head.e_flags & 0xff;
        require(to.architecture >= 50, "its flags name no architecture");
        to.exact = false;
        if (const Section *compat = named(".nv.compat"))
            for (const Entry &each : attributes(*compat))
                if (each.attribute == CUDA_ACCELERATOR_TARGET)
                    to.exact = bytes.at<unsigned char>(each.offset) == 1;
        read_symbols(to);
    }

private:
    Elf64_Ehdr head;
    Bytes bytes;
    std::vector<Section> sections;
    std::map<std::string, size_t> places;   // of sections, by name

    static size_t end_of(size_t offset, size_t count, size_t size) {
        if (!count) return 0;
        require(offset >= sizeof(Elf64_Ehdr) && offset <= MOST, "a table lies outside the file");
        return offset + count * size;
    }

    void check_head() const {
        require(!memcmp(head.e_ident, ELFMAG, SELFMAG) && head.e_ident[EI_CLASS] == ELFCLASS64
                    && head.e_ident[EI_DATA] == ELFDATA2LSB && head.e_machine == MACHINE,
                "it is not a 64-bit ELF file for NVIDIA's cards");
        require(head.e_type == ET_EXEC, "it is not linked");
        require(head.e_ehsize == sizeof(Elf64_Ehdr) && head.e_shentsize == sizeof(Elf64_Shdr)
                    && (!head.e_phnum || head.e_phentsize == sizeof(Elf64_Phdr)),
                "its header has unknown sizes");
        require(head.e_shnum > 0 && head.e_shstrndx < head.e_shnum, "it has no names of sections");
    }

    void read_sections() {
        auto at = [&](size_t place) {
            return bytes.at<Elf64_Shdr>(head.e_shoff + place * sizeof(Elf64_Shdr));
        };
        const Elf64_Shdr names = at(head.e_shstrndx);
        check(names);
        require(names.sh_type == SHT_STRTAB && at(0).sh_type == SHT_NULL,
                "it has no names of sections");
        for (size_t place = 0; place < head.e_shnum; place++) {
            Section section{"", at(place)};
            check(section.head);
            if (place > 0) {
                require(section.head.sh_type != SHT_NULL && section.head.sh_name < names.sh_size,
                        "a section has no name");
                section.name = bytes.text(names.sh_offset + section.head.sh_name,
                                          names.sh_offset + names.sh_size);
                places.emplace(section.name, place);
            }
            sections.push_back(std::move(section));
        }
    }

    bool inside(size_t offset, size_t size) const {
        return offset <= bytes.all.size() && size <= bytes.all.size() - offset;
    }

    void check(const Elf64_Shdr &section) const {   // the first, and NOBITS, have no bytes
        if (section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS)
            require(inside(section.sh_offset, section.sh_size), "a section ends beyond the file");
    }

    void check_segments() const {
        for (size_t place = 0; place < head.e_phnum; place++) {
            auto segment = bytes.at<Elf64_Phdr>(head.e_phoff + place * sizeof(Elf64_Phdr));
            require(segment.p_type != PT_NULL && inside(segment.p_offset, segment.p_filesz),
                    "a segment ends beyond the file");
        }
    }

    const Section *named(const std::string &name) const {
        auto found = places.find(name);
        return found == places.end() ? nullptr : &sections[found->second];
    }

    // Each entry has a format and an attribute, then two bytes: its value, or the size of it.
    std::vector<Entry> attributes(const Section &section) const {
        require(section.head.sh_type != SHT_NOBITS, "a table of attributes has no bytes");
        std::vector<Entry> found;
        for (size_t at = section.head.sh_offset; at < section.end();) {
            require(section.end() - at >= 4, "a table of attributes ends too early");
            auto format = bytes.at<unsigned char>(at);
            auto attribute = bytes.at<unsigned char>(at + 1);
            require(format >= 1 && format <= 4, "an attribute has an unknown format");
            if (format < 4) {
                found.push_back({attribute, at + 2, 2});
                at += 4;
                continue;
            }
            size_t size = bytes.at<uint16_t>(at + 2);
            require(size <= section.end() - at - 4, "an attribute ends beyond its table");
            found.push_back({attribute, at + 4, size});
            at += 4 + size;
        }
        return found;
    }

    std::map<uint32_t, unsigned> registers() const {   // by the number of the kernel's symbol
        std::map<uint32_t, unsigned> found;
        const Section *info = named(".nv.info");
        if (!info) return found;
        for (const Entry &each : attributes(*info))
            if (each.attribute == REGCOUNT && each.bytes >= 8)
                found[bytes.at<uint32_t>(each.offset)] = bytes.at<uint32_t>(each.offset + 4);
        return found;
    }

    void read_symbols(Cubin &to) const {
        const Section *table = named(".symtab");
        require(table && table->head.sh_type == SHT_SYMTAB
                    && table->head.sh_entsize == sizeof(Elf64_Sym)
                    && table->head.sh_size % sizeof(Elf64_Sym) == 0
                    && table->head.sh_link < sections.size()
                    && sections[table->head.sh_link].head.sh_type == SHT_STRTAB,
                "it has no table of symbols");
        const Section &names = sections[table->head.sh_link];
        const auto counts = registers();
        for (size_t place = 0; place < table->head.sh_size / sizeof(Elf64_Sym); place++) {
            auto symbol = bytes.at<Elf64_Sym>(table->head.sh_offset + place * sizeof(Elf64_Sym));
            unsigned type = ELF64_ST_TYPE(symbol.st_info);
            if ((type != STT_FUNC && type != STT_OBJECT) || symbol.st_shndx == SHN_UNDEF) continue;
            require(symbol.st_shndx < sections.size(), "a symbol has no section");
            const Section &section = sections[symbol.st_shndx];
            require(symbol.st_value <= section.head.sh_size
                        && symbol.st_size <= section.head.sh_size - symbol.st_value,
                    "a symbol ends beyond its section");
            require(symbol.st_name < names.head.sh_size, "a name lies outside its table");
            std::string name = bytes.text(names.head.sh_offset + symbol.st_name, names.end());
            if (type == STT_FUNC && symbol.st_other & ENTRY) {
                require(section.name == ".text." + name,
                        "a kernel's code is not where its name says");
                require(std::none_of(to.kernels.begin(), to.kernels.end(),
                                     [&](const CubinKernel &each) { return each.name == name; }),
                        "two kernels have the same name");
                auto count = counts.find(uint32_t(place));
                unsigned registers = count == counts.end() ? section.head.sh_info >> 24
                                                           : count->second;
                to.kernels.push_back(kernel(name, registers, to.architecture));
            } else if (type == STT_OBJECT
                       && (section.name == ".nv.global" || section.name == ".nv.global.init"
                           || section.name == ".nv.constant3")) {
                to.variables.push_back({name, symbol.st_size});
            }
        }
    }

    // A parameter's entry: three numbers of 4 bytes. The second has its place in its lower half. The
    // third is its size, or has it in its upper 14 bits; kernels with larger ones have the new form.
    void add_parameter(const Entry &entry, std::vector<size_t> &sizes) const {
        require(entry.bytes >= 12, "a kernel's parameter has no size");
        size_t place = bytes.at<uint16_t>(entry.offset + 4);
        require(place < MOST_PARAMETERS, "a kernel has too many parameters");
        if (sizes.size() <= place) sizes.resize(place + 1);
        auto size = bytes.at<uint32_t>(entry.offset + 8);
        sizes[place] = entry.attribute == KPARAM_INFO ? size >> 18 : size;
    }

    CubinKernel kernel(const std::string &name, unsigned registers, unsigned architecture) const {
        CubinKernel found;
        found.name = name;
        found.registers = registers;
        require(registers <= 255, "a kernel has more registers than there are");
        if (const Section *shared = named(".nv.shared." + name)) {
            bool reserved = architecture >= RESERVING && shared->head.sh_size >= RESERVED_SHARED;
            found.static_shared_bytes = shared->head.sh_size - (reserved ? RESERVED_SHARED : 0);
        }
        require(found.static_shared_bytes <= MOST, "a kernel has too much shared memory");
        if (const Section *info = named(".nv.info." + name))
            for (const Entry &each : attributes(*info)) {
                if (each.attribute == KPARAM_INFO || each.attribute == KPARAM_INFO_V2)
                    add_parameter(each, found.parameter_sizes);
                if (each.attribute != MAX_THREADS || each.bytes < 12) continue;
                uint64_t threads = 1;
                for (size_t axis = 0; axis < 3; axis++) {
                    threads *= bytes.at<uint32_t>(each.offset + 4 * axis);
                    require(threads >= 1 && threads <= 1024,
                            "a kernel has no valid limit of threads");
                }
                found.max_threads = unsigned(threads);
            }
        return found;
    }
};

}  // namespace

bool is_elf(const void *image, size_t most) {
    char magic[SELFMAG];
    return most >= SELFMAG && copy(magic, image, SELFMAG) && !memcmp(magic, ELFMAG, SELFMAG);
}

std::string read_cubin(const void *image, size_t most, Cubin &to) {
    try {
        Reader(image, most).read(to);
        return "";
    } catch (const Inconsistent &error) {
        return error.what();
    } catch (const std::bad_alloc &) {   // the caller is C
        return "there is no memory for it";
    }
}

}  // namespace hostcuda
