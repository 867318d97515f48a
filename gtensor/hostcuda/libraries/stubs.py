"""Stub libraries with the functions that CuPy's extension modules import from NVIDIA's.

CuPy's modules name `libcublas.so.13` and others as needed libraries, with a version on every
symbol. The dynamic loader uses an already loaded library of the same SONAME instead of a search on
disk, and prints nothing if it defines the version node. In a stub every function is a jump through
a slot of a table. A slot has a function that counts the call and returns the library's status for
"not supported", until `Stub.fill` replaces its address.
"""

import ctypes
import hashlib
import pathlib
from collections.abc import Iterable, Mapping

from gtensor.hostcuda.build import cache, gpp, made


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


def build(soname: str, names: Iterable[str], refusal: int) -> pathlib.Path:
    """A shared library with this SONAME that has these functions; built at most once, atomically.

    Its symbols carry the SONAME as their version, as in NVIDIA's libraries. A function whose slot
    is empty answers `refusal`.
    """
    ordered = sorted(set(names))
    code = source(ordered, refusal)
    script = f"{soname} {{ global: *; }};\n"
    key = hashlib.sha256("\0".join((soname, code, script)).encode()).hexdigest()[:16]

    def make(room: pathlib.Path) -> pathlib.Path:
        (room / "stub.cpp").write_text(code)
        (room / "stub.map").write_text(script)
        gpp(["-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}", "-Wl,-Bsymbolic",
             f"-Wl,--version-script,{room / 'stub.map'}", "-o", room / "stub.so",
             room / "stub.cpp"])
        return room / "stub.so"

    return made(cache() / "stubs" / f"{soname}.{key}", make)


class Stub:
    """A stub library in this process."""

    def __init__(self, soname: str, names: Iterable[str], refusal: int) -> None:
        self.names = sorted(set(names))
        self.path = build(soname, self.names, refusal)
        self.library = ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        table = ctypes.c_void_p * len(self.names)
        self._slots = table.in_dll(self.library, "hostcuda_stub_slots")
        self._refusals = self._slots[:]
        counts = ctypes.c_long * len(self.names)
        self._calls = counts.in_dll(self.library, "hostcuda_stub_calls")

    def fill(self, addresses: Mapping[str, int]) -> None:
        """Lets functions jump to these addresses."""
        places = {name: index for index, name in enumerate(self.names)}
        for name, address in addresses.items():
            self._slots[places[name]] = address

    def end(self) -> None:
        """Puts C functions into all slots: Python's part of the process is over.

        CuPy destroys plans and handles when its modules are torn down; these calls return success,
        all others are refused.
        """
        ended = ctypes.cast(self.library.hostcuda_stub_ended, ctypes.c_void_p).value or 0
        self._slots[:] = [ended if "Destroy" in name else refusal
                          for name, refusal in zip(self.names, self._refusals, strict=True)]

    def note(self, address: int) -> None:
        """Calls a function with the name of every refused call."""
        ctypes.c_void_p.in_dll(self.library, "hostcuda_stub_note").value = address

    def refused(self) -> dict[str, int]:
        """The calls of functions that are not implemented, by name."""
        return {name: count for name, count in zip(self.names, self._calls, strict=True) if count}
