"""Stub libraries: what CuPy's extension modules import from NVIDIA's, in libraries of our own.

CuPy's modules name `libcublas.so.13` and others as needed libraries, with a version on every
symbol. A library of the same SONAME that is loaded already is taken by the dynamic loader instead
of a search on disk, and if it defines the version node, nothing is printed. In a stub every
function is a jump through a slot of a table. A slot holds a function that counts the call and
answers the status that the library has for "not supported", until `Stub.fill` puts another address
there.
"""

import ctypes
import hashlib
import os
import pathlib
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNDEFINED = 0  # SHN_UNDEF: the section index of a symbol that another library defines


@dataclass(frozen=True)
class Section:
    """One row of an ELF file's table of sections (64 bits, little endian)."""

    type: int
    offset: int
    size: int
    link: int


def sections(image: bytes) -> list[Section]:
    """The sections of an ELF file for x86-64."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("a 64-bit little-endian ELF file is needed to read what a module imports")
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    rows = (struct.unpack_from("<IIQQQQII", image, start + i * size) for i in range(count))
    return [Section(type=r[1], offset=r[4], size=r[5], link=r[6]) for r in rows]


def text(image: bytes, table: Section, offset: int) -> str:
    """The zero-ended string at an offset of a string table."""
    start = table.offset + offset
    return image[start : image.index(b"\0", start)].decode()


def versions(image: bytes, parts: list[Section]) -> dict[int, tuple[str, str]]:
    """Which library and version node stand behind each version index (.gnu.version_r)."""
    found: dict[int, tuple[str, str]] = {}
    for part in parts:
        if part.type != 0x6FFFFFFE:  # SHT_GNU_verneed
            continue
        strings, at = parts[part.link], part.offset
        while True:
            _, _, file, first, following = struct.unpack_from("<HHIII", image, at)
            library, node = text(image, strings, file), at + first
            while True:
                _, _, index, name, step = struct.unpack_from("<IHHII", image, node)
                found[index] = (library, text(image, strings, name))
                if not step:
                    break
                node += step
            if not following:
                break
            at += following
    return found


def needs(module: pathlib.Path) -> dict[str, dict[str, str]]:
    """What a module imports with a version: {library: {symbol: version node}}."""
    image = module.read_bytes()
    parts = sections(image)
    nodes = versions(image, parts)
    symbols = next(part for part in parts if part.type == 11)  # SHT_DYNSYM
    marks = next((part for part in parts if part.type == 0x6FFFFFFF), None)  # SHT_GNU_versym
    wanted: dict[str, dict[str, str]] = {}
    if marks is None:
        return wanted
    for index in range(symbols.size // 24):
        name, _, _, section = struct.unpack_from("<IBBH", image, symbols.offset + 24 * index)
        (mark,) = struct.unpack_from("<H", image, marks.offset + 2 * index)
        if section == UNDEFINED and name and mark & 0x7FFF in nodes:
            library, node = nodes[mark & 0x7FFF]
            wanted.setdefault(library, {})[text(image, parts[symbols.link], name)] = node
    return wanted


def source(names: list[str], refusal: int) -> str:
    """The C++ text of a stub: a table of slots, a jump per name, and an answer per empty slot."""
    lines = [
        "// Generated: a name jumps through its slot; an empty slot counts the call and refuses.",
        f'extern "C" {{ long hostcuda_stub_calls[{len(names)}];',
        "int (*hostcuda_stub_note)(const char *);",
        "long hostcuda_stub_ended() { return 0; } }",
        "static const char *const names[] = {" + ", ".join(f'"{name}"' for name in names) + "};",
        '__attribute__((used)) static long refuse(int index) asm("hostcuda_stub_refuse");',
        "static long refuse(int index) {",
        "    ++hostcuda_stub_calls[index];",
        "    if (hostcuda_stub_note) hostcuda_stub_note(names[index]);",
        f"    return {refusal};",
        "}",
        'asm(R"(',
        ".pushsection .text",
    ]
    for index, name in enumerate(names):
        lines += [
            f".globl {name}",
            f".type {name}, @function",
            f"{name}: jmp *.Lslots+{8 * index}(%rip)",
            f".Lrefuse{index}: mov ${index}, %edi",
            "jmp hostcuda_stub_refuse",
        ]
    lines += [".popsection", ".pushsection .data", ".balign 8", ".globl hostcuda_stub_slots"]
    lines += ["hostcuda_stub_slots:", ".Lslots:"]
    lines += [f".quad .Lrefuse{index}" for index in range(len(names))]
    return "\n".join([*lines, ".popsection", ')");', ""])


def cache() -> pathlib.Path:
    """The folder for what is built once per machine."""
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home, "gtensor", "hostcuda", "stubs")


def build(soname: str, names: Iterable[str], version: str, refusal: int = 1) -> pathlib.Path:
    """A shared library with this SONAME that has these functions; built at most once, atomically.

    `version` is the version node that its symbols carry, `refusal` what a function answers whose
    slot is empty.
    """
    ordered = sorted(set(names))
    code = source(ordered, refusal)
    script = f"{version} {{ global: *; }};\n"
    key = hashlib.sha256("\0".join((soname, code, script)).encode()).hexdigest()[:16]
    path = cache() / f"{soname}.{key}"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        room = pathlib.Path(folder)
        (room / "stub.cpp").write_text(code)
        (room / "stub.map").write_text(script)
        command = ["g++", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}", "-Wl,-Bsymbolic"]
        command += ["-Wl,--version-script,stub.map", "-o", "stub.so", "stub.cpp"]
        done = subprocess.run(command, cwd=room, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"g++ could not build the stand-in of {soname}: {done.stderr}")
        os.replace(room / "stub.so", path)
    return path


class Stub:
    """A stub library in this process."""

    def __init__(self, soname: str, names: Iterable[str], version: str, refusal: int) -> None:
        self.names = sorted(set(names))
        self.path = build(soname, self.names, version, refusal)
        self.library = ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        table = ctypes.c_void_p * len(self.names)
        self._slots = table.in_dll(self.library, "hostcuda_stub_slots")
        counts = ctypes.c_long * len(self.names)
        self._calls = counts.in_dll(self.library, "hostcuda_stub_calls")

    def fill(self, addresses: Mapping[str, int]) -> None:
        """Lets functions jump to these addresses."""
        places = {name: index for index, name in enumerate(self.names)}
        for name, address in addresses.items():
            self._slots[places[name]] = address

    def end(self) -> None:
        """Lets every function do nothing: Python's part of the process is over.

        CuPy destroys plans and handles as late as when its modules are torn down.
        """
        ended = ctypes.cast(self.library.hostcuda_stub_ended, ctypes.c_void_p).value or 0
        self.fill(dict.fromkeys(self.names, ended))

    def note(self, address: int) -> None:
        """Lets a function that takes a name know of every call that is refused."""
        ctypes.c_void_p.in_dll(self.library, "hostcuda_stub_note").value = address

    def refused(self) -> dict[str, int]:
        """How often each function was called that is not there."""
        return {name: count for name, count in zip(self.names, self._calls, strict=True) if count}
