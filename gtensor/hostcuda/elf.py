"""The functions of an ELF file, and their replacement in a loaded one.

CuPy's extension modules link NVIDIA's runtime statically but keep their symbol tables: each
function can be found in memory, and its first bytes become a jump to another.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

_JUMP = struct.Struct("<2sQ2s")  # movabs rax, address; jmp rax
_NAMED_JUMP = struct.Struct("<2sQ2sQ2s")  # movabs rdi, name; movabs rax, address; jmp rax
_FUNCTION, _UNDEFINED = 2, 0
_SYMTAB, _DYNSYM = 2, 11


class NoSymbols(Exception):
    """The file is not an x86-64 ELF file with a symbol table."""


def functions(path: Path, table: int = _SYMTAB) -> dict[str, tuple[int, int]]:
    """Name -> (address within the file's image, bytes) of the functions that it defines."""
    return {name: (value, size) for name, kind, section, value, size in _symbols(path, table)
            if kind == _FUNCTION and section != _UNDEFINED}


def wanted(path: Path) -> set[str]:
    """The undefined names of the file."""
    return {name for name, _, section, _, _ in _symbols(path, _DYNSYM)
            if section == _UNDEFINED and name}


def _symbols(path: Path, table: int) -> list[tuple[str, int, int, int, int]]:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != 62:
            raise NoSymbols(f"{path} is not an x86-64 ELF file")
        start, = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + size * place)
                    for place in range(count)]
        found = [section for section in sections if section[1] == table]
        if not found:
            raise NoSymbols(f"{path} has no symbol table")
        _, _, _, _, offset, length, link, _, _, entry = found[0]
        texts = data[sections[link][4]:sections[link][4] + sections[link][5]]
        symbols = []
        for place in range(offset, offset + length, entry):
            name, info, _, section, value, bytes_ = struct.unpack_from("<IBBHQQ", data, place)
            text = texts[name:texts.index(b"\0", name)].decode()
            symbols.append((text, info & 15, section, value, bytes_))
        return symbols


class _Info(ctypes.Structure):
    _fields_ = (("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p))


def _base(library: ctypes.CDLL, name: str) -> int:
    """Where a loaded library's image begins; `name` is a function that it exports."""
    info = _Info()
    find = ctypes.CDLL(None).dladdr
    find.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    if not find(ctypes.cast(getattr(library, name), ctypes.c_void_p), ctypes.byref(info)):
        raise NoSymbols(f"the loader does not know {library._name}")
    return info.base or 0


def patch(path: Path, replacements: Mapping[str, int]) -> ctypes.CDLL:
    """Load an extension module's file and let each named function jump to an address.

    Python's own import of the module finds it loaded. The caller keeps the functions alive.
    """
    library = ctypes.CDLL(str(path))
    base = _base(library, next(name for name in functions(path, _DYNSYM)
                               if name.startswith("PyInit_")))
    defined = functions(path)
    absent = sorted(set(replacements) - set(defined))
    if absent:
        raise NoSymbols(f"{path} does not define {absent[0]}")
    pages = {}
    for name, target in replacements.items():
        address, size = defined[name]
        if size < _JUMP.size:
            raise NoSymbols(f"{name} in {path} has {size} bytes, a jump needs {_JUMP.size}")
        pages[base + address] = _JUMP.pack(b"\x48\xb8", target, b"\xff\xe0")
    _write(pages)
    return library


def _write(texts: Mapping[int, bytes]) -> None:
    """Overwrite machine code, whose pages are made writable meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    first = min(texts) // mmap.PAGESIZE * mmap.PAGESIZE
    size = max(texts) + _JUMP.size - first
    for access in (mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
                   mmap.PROT_READ | mmap.PROT_EXEC):
        if libc.mprotect(first, size, access):
            raise OSError(ctypes.get_errno(), "mprotect refused to change machine code")
        if access & mmap.PROT_WRITE:
            for address, text in texts.items():
                ctypes.memmove(address, text, len(text))


class Named:
    """Functions of machine code, one per name, that call one C function with their name."""

    def __init__(self, target: int, names: list[str]) -> None:
        self._names = {name: ctypes.create_string_buffer(name.encode()) for name in names}
        self._code = mmap.mmap(-1, max(1, len(names)) * 32,
                               prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        self.addresses = {}
        for place, (name, text) in enumerate(self._names.items()):
            code = _NAMED_JUMP.pack(b"\x48\xbf", ctypes.addressof(text), b"\x48\xb8", target,
                                    b"\xff\xe0")
            self._code[32 * place:32 * place + len(code)] = code
            self.addresses[name] = start + 32 * place
