"""What NVRTC does, done by g++: CUDA text in, a module out.

    compiled = compile(source, ["-std=c++17", "-arch=sm_90"], ["scale<float>"], {})
    path = load(compiled.image)  # a shared library with the interface of native/kernel_abi.h

Every kernel of the text is there under the name that CUDA gives it, every name expression under
`compiled.lowered`. Threads of one block share what is `__shared__`; fibers/ runs them.

What differs from a GPU: rounding is that of C++ (-ftz and -fmad are accepted and do nothing,
approximate functions are exact); signed overflow wraps; a float outside an integer type converts as
x86 does it. Static shared memory starts as the block before left it, dynamic as NaN. Faults are an
invalid or misaligned address, an index outside an array whose size the compiler knows, and integer
division by zero. Where NVRTC only warns of a write to constant memory, it is done. Cooperative
groups are refused by name, and inline PTX where it is compiled: a text may have C++ in its place
where `__HOSTCUDA__` is defined. C++'s own headers are there, which NVRTC lacks, and `__CUDACC__` is
not defined.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtensor.hostcuda import build
from gtensor.hostcuda.kernels import assembly as module_assembly
from gtensor.hostcuda.kernels import text as cuda_text
from gtensor.hostcuda.kernels import toolchain

FLAGS = (
    "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-exceptions",
    "-fno-threadsafe-statics", "-fno-asynchronous-unwind-tables", "-fwrapv", "-fno-strict-aliasing",
    "-ffp-contract=off", "-fwhole-program", "-fsanitize=alignment,bounds",
    "-fno-sanitize-recover=all", "-fmax-errors=20", "-fno-rtti", "-fno-stack-protector",
    "-U_FORTIFY_SOURCE",
)
"""-fwhole-program drops what a module does not use; the checks call handlers of fibers/."""

MAGIC = b"//HOSTCUDA "
"""The first bytes of an image; its size follows in eight hexadecimal digits. Images are ASCII."""

_LIBRARY = "libhostcuda_fibers.so"
_LIBC = (  # what device code may call, g++ puts in, or fibers/ calls: a module finds no more of it
    "printf", "vprintf", "puts", "putchar", "malloc", "free", "memcpy", "memmove", "memset",
    "memcmp", "strlen", "clock", "clock_gettime", "dladdr", "__cxa_pure_virtual",
    "_Znwm", "_Znam", "_ZdlPv", "_ZdlPvm", "_ZdaPv", "_ZdaPvm",
)
_ASSIGNED = re.compile(r"error: .* of read-only variable '(?:\w+::)*(\w+)'")
_UNRESOLVED = re.compile(r"undefined reference to `([^']*)'")
_MOST_SHARED = 48 * 1024  # bytes of static shared memory in a block: ptxas knows no option for more
_CUPY_HEADERS = ("complex.cuh", "carray.cuh", "atomics.cuh", "float16.cuh", "bfloat16.cuh",
                 "math_constants.h")
_OPTION = re.compile(
    r"(?P<letter>-[DUI])(?P<glued>.*)|(?P<name>-[^=]*)(?:=(?P<value>.*))?", re.DOTALL)
_PASSED = {
    "-D": "-D", "--define-macro": "-D", "-U": "-U", "--undefine-macro": "-U", "-I": "-I",
    "--include-path": "-I", "-include": "-include", "--pre-include": "-include",
}
_STANDARD, _ARCHITECTURE = ("-std", "--std"), ("-arch", "--gpu-architecture")
# What nvrtcGetSupportedArchs of NVRTC 13.0 answers, and those that it compiles for with a letter.
_ARCHITECTURES = {
    "": (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121),
    "a": (90, 100, 103, 110, 120, 121),
    "f": (100, 103, 110, 120, 121),
}
_WITH_VALUE = (*_PASSED, *_STANDARD, *_ARCHITECTURE)
_LINKED = re.compile(
    r"--?(dlto|gen-opt-lto|rdc=true|relocatable-device-code=true|device-c|dc)")
_IGNORED = re.compile(
    r"--?(ftz|fmad|prec-sqrt|prec-div|use_fast_math|extra-device-vectorization|lineinfo|G|pch"
    r"|generate-line-info|device-debug|device-as-default-execution-space|default-device|dw?|w"
    r"|rdc=false|relocatable-device-code=false|device-w|disable-warnings|restrict|maxrregcount"
    r"|split-compile|minimal|no-source-include|diag-\w+|ptxas-options|Xptxas|modify-stack-limit"
    r"|dopt|Ofast-compile|builtin-\w+|brief-diagnostics|no-cache|err-no|display-error-number"
    r"|no-display-error-number|time|pch-\w+)(=.*)?")


class CompileError(Exception):
    """A text that does not compile; `str` of it is the log."""


@dataclass(frozen=True)
class Compiled:
    """A module: what cuModuleLoadData takes, the compiler's messages, and the kernels' names."""

    image: bytes
    log: str
    lowered: dict[str, str]


class NoImageForDevice(ValueError):
    """An image that was compiled for other cards."""


@dataclass(frozen=True)
class _Options:
    standard: str
    kind: str  # "sm" is machine code, "compute" is PTX
    architecture: int
    suffix: str  # "a" for this architecture alone, "f" for its family
    arguments: tuple[str, ...]  # -D, -U, -I and -include for g++

    def run_on(self, capability: int) -> bool:
        """Whether a card loads what is compiled so (nvcc's manual, "GPU Compilation")."""
        if self.suffix == "a":
            return self.architecture == capability
        if self.kind == "sm" or self.suffix == "f":
            return self.architecture // 10 == capability // 10 and self.architecture <= capability
        return self.architecture <= capability


def compile(
    source: str, options: Sequence[str] = (), names: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Compiled:
    """Compile a CUDA text, or find it among what was compiled before.

    Args:
        source: CUDA C++.
        options: as NVRTC takes them.
        names: name expressions, such as "scale<float>" or "&counter".
        headers: texts that the source may include by their names.

    Raises:
        CompileError: if the text does not compile, or wants what a host has not.
    """
    program = {"source": source, "options": list(options), "names": list(names),
               "headers": dict(headers or {})}
    _module(program)
    return Compiled(_image(program), "", {name: _lowered(name) for name in names})


def load(image: bytes, capability: int | None = None) -> Path:
    """The shared library of an image, compiled here if it is not there.

    Args:
        image: what `compile` made.
        capability: that of the card, such as 90; None takes images for all.

    Raises:
        ValueError: if this is no image of `compile`.
        NoImageForDevice: if it is for other cards.
        CompileError: as `compile`.
    """
    head = len(MAGIC)
    if not image.startswith(MAGIC):
        raise ValueError(f"a module image starts with {image[:16]!r}; wanted one that the host "
                         "device compiled (a cubin or PTX of NVIDIA's does not run on a CPU)")
    size = int(image[head:head + 8], 16)
    payload = image[head:size].split(b"\n", 1)[1]
    program = json.loads(zlib.decompress(base64.b64decode(payload)))
    options = _options(program["options"])
    if capability is not None and not options.run_on(capability):
        raise NoImageForDevice(f"a module was compiled for {options.kind}_{options.architecture}"
                               f"{options.suffix}; the device is an sm_{capability}")
    return _module(program)


def fibers() -> Path:
    """The library that runs kernels, compiled if it is not there; modules are linked with it."""
    path = toolchain.cache_folder() / _LIBRARY
    return build.built(path, [
        "-std=gnu++17", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-Bsymbolic",
        f"-Wl,-soname,{_LIBRARY}",
        "-isystem", build.headers(), toolchain.FIBERS / "fibers.cpp",
        toolchain.FIBERS / "block.cpp",
    ])


def _libc() -> Path:
    """The part of the C library that modules are linked with: a list of names.

    To search the real one takes the linker longer than all else.
    """
    def make(room: Path) -> Path:
        (room / "libc.s").write_text("".join(
            f".globl {name}\n.type {name}, @function\n{name}:\n" for name in _LIBC))
        build.gpp(["-shared", "-nostdlib", "-Wl,-soname,libc.so.6", room / "libc.s",
                   "-o", room / "libc.so"])
        return room / "libc.so"

    return build.made(toolchain.cache_folder() / "libc.so", make)


def _image(program: dict[str, Any]) -> bytes:
    # CuPy drops the last byte of an image, and decodes it where it wants the compiler's version
    # from the lines that start with "//".
    payload = base64.b64encode(zlib.compress(json.dumps(program).encode(), 1)) + b"\n"
    head = toolchain.key()[:16].encode() + b"\n"
    return MAGIC + b"%08x " % (len(MAGIC) + 9 + len(head) + len(payload)) + head + payload + b"\n"


def _lowered(name: str) -> str:
    """What a name expression is called in the module: of a variable its mangled name."""
    plain = name.strip()
    if not plain.startswith("&"):
        return plain
    parts = [part for part in plain[1:].strip().split("::") if part]
    if len(parts) == 1:
        return parts[0]
    return "_ZN" + "".join(f"{len(part)}{part}" for part in parts) + "E"


def _module(program: dict[str, Any]) -> Path:
    digest = hashlib.sha256(
        (repr(FLAGS) + json.dumps(program | {"options": _named_roots(program["options"])})).encode()
    ).hexdigest()
    place = toolchain.cache_folder() / digest[:2] / digest[:32]
    path = _named(place)
    if not path.exists():
        with build.locked(place) as folder:
            path = _named(place)
            if not path.exists():
                part, headers = _build(program, folder)
                if headers:
                    listed = folder / "listed"
                    listed.write_text(json.dumps(headers))
                    listed.replace(place.with_suffix(".headers"))  # atomic
                    path = _named(place)
                part.replace(path)
    return path


def _named_roots(options: list[str]) -> list[str]:
    """Options without the folders of this installation, whose contents `toolchain.key` knows."""
    for root, name in zip(_roots(), ("<hostcuda>", "<cuda>", "<cupy>"), strict=False):
        options = [option.replace(str(root), name) for option in options]
    return options


def _roots() -> list[Path]:
    """The folders of this package's, CUDA's and CuPy's headers."""
    cupy = toolchain.cupy_include()
    return [toolchain.PACKAGE, build.headers(), *([] if cupy is None else [cupy])]


def _named(place: Path) -> Path:
    """The library of a program; its name depends on the user's own headers that were included."""
    try:
        listed = json.loads(place.with_suffix(".headers").read_text())
    except (OSError, ValueError):  # none, or none that can be read: it is compiled once more
        return place.with_suffix(".so")
    digest = hashlib.sha256()
    for header in listed:
        with contextlib.suppress(OSError):
            digest.update(Path(header).read_bytes())
    return place.with_name(f"{place.name}-{digest.hexdigest()[:16]}.so")


def _build(program: dict[str, Any], folder: Path) -> tuple[Path, list[str]]:
    """A program compiled in this folder, and the user's own headers that went into it."""
    options = _options(program["options"])
    dependencies, assembly = folder / "dependencies", folder / "module.s"
    if cuda_text.defines_kernels(program["source"]):
        program = program | {"source": _expanded(program["source"], options, folder)}
    names = _constants(program)
    log = _assembled(program, options, folder, bool(names))
    if log and names and not names & _assigned(log):
        # g++ refuses more of a constant than NVRTC does: to point to it without `const`, say.
        log = _assembled(program, options, folder, False)
    if log:
        raise CompileError(log)
    _count_shared(assembly)
    part = _linked(assembly)
    return part, [path for path in _listed(dependencies) if not _is_known(Path(path), folder)]


def _constants(program: dict[str, Any]) -> set[str]:
    texts = (program["source"], *program["headers"].values())
    return set().union(*map(cuda_text.constants, texts))


def _assigned(log: str) -> set[str]:
    """The read-only variables that g++ says are assigned to.

    Where a template's argument is a constant type, they may be the template's own.
    """
    found, deduced = set(), False
    for line in log.splitlines():
        if ": In " in line:
            deduced = "= const " in line
        assigned = _ASSIGNED.search(line)
        if assigned is not None and not deduced:
            found.add(assigned[1])
    return found


def _assembled(
    program: dict[str, Any], options: _Options, folder: Path, constant: bool
) -> str:
    """Compile to module.s, with the list of what was included; g++'s messages if it refuses."""
    for name, header in program["headers"].items():
        place = folder / "headers" / name
        if not place.resolve().is_relative_to(folder.resolve()):
            raise CompileError(f"a header is called {name!r}; wanted a name without '..'")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(cuda_text.host_text(header, constant), encoding="utf-8")
    unit = folder / "unit.cpp"
    try:
        unit.write_text(_unit(program, options, constant), encoding="utf-8")
    except cuda_text.TextError as error:
        raise CompileError(f"kernel.cu: error: {error}") from None
    result = build.run([
        f"-std={options.standard}", *FLAGS, "-include", _prelude(program["source"], options),
        *_include_flags(), "-I", folder / "headers", *options.arguments,
        "-MMD", "-MF", folder / "dependencies", unit, "-S", "-o", folder / "module.s",
    ])
    return result.stderr.replace(str(unit), "kernel.cu") if result.returncode else ""


def _count_shared(assembly: Path) -> None:
    """Let the module know how much static shared memory each kernel has."""
    found = module_assembly.static_shared(assembly.read_text())
    for name, size in found.items():
        if size > _MOST_SHARED:
            raise CompileError(f"ptxas error   : Entry function '{name}' uses too much shared data "
                               f"({size:#x} bytes, {_MOST_SHARED:#x} max)")
    with assembly.open("a") as file:
        file.write(module_assembly.table(found))


def _linked(assembly: Path) -> Path:
    """The shared library of an assembly."""
    library, part = fibers(), assembly.with_suffix(".so")
    # Startup files and g++'s own libraries are left out, because linking them takes longest.
    result = build.run([
        "-shared", "-nostdlib", "-Wl,-Bsymbolic", "-Wl,-z,defs", assembly, library, _libc(),
        "-lm", "-lgcc", f"-Wl,-rpath,{library.parent}", "-o", part,
    ])
    if result.returncode:
        names = dict.fromkeys(_UNRESOLVED.findall(result.stderr))
        raise CompileError("\n".join(f"ptxas fatal   : Unresolved extern symbol '{name}'"
                                     for name in names) or result.stderr)
    return part


def _unit(program: dict[str, Any], options: _Options, constant: bool) -> str:
    source = program["source"]
    bounds = {kernel.name: kernel.bound for kernel in cuda_text.kernels(source)
              if kernel.bound.isdigit()}
    instances = []
    for name in dict.fromkeys(program["names"]):
        base = re.split(r"[<]", name.strip().lstrip("&").strip())[0].split("::")[-1].strip()
        literal = json.dumps(_lowered(name))
        instances.append(f"HOSTCUDA_INSTANCE({literal}, {bounds.get(base, 1024)}, {name})")
    return "\n".join([
        f"#define __CUDA_ARCH__ {options.architecture}0", '#line 1 "kernel.cu"',
        cuda_text.host_text(source, constant), '#line 1 "name expressions"', *instances,
        "HOSTCUDA_MODULE", "",
    ])


def _expanded(source: str, options: _Options, folder: Path) -> str:
    """The source with its macros expanded: some of them stand for kernels."""
    unit = folder / "macros.cpp"
    unit.write_text(cuda_text.without_includes(source), encoding="utf-8")
    result = build.run([f"-std={options.standard}", "-E", "-P", "-fno-extended-identifiers",
                        "-D__HOSTCUDA__=1", f"-D__CUDA_ARCH__={options.architecture}0",
                        *options.arguments, unit])
    if result.returncode:
        raise CompileError(result.stderr.replace(str(unit), "kernel.cu"))
    return cuda_text.with_includes(result.stdout)


def _prelude(source: str, options: _Options) -> Path:
    """The header that comes before a text, beside a precompiled form of it."""
    cupy = toolchain.cupy_include()
    with_cupy = cupy is not None and "#include <cupy/carray.cuh>" in source
    lines = [f'#include "{toolchain.FIBERS / "device.h"}"']
    lines += [f"#include <cupy/{name}>" for name in _CUPY_HEADERS if with_cupy]
    # A precompiled header holds the paths of what it includes: every installation has its own.
    paths = hashlib.sha256(repr((lines, *map(str, _include_flags()))).encode()).hexdigest()[:16]
    name = f"{'cupy' if with_cupy else 'device'}-{options.standard}-{paths}.h"
    folder = toolchain.cache_folder()
    header = folder / name
    build.made(header, lambda room: _written(room / name, "\n".join(lines) + "\n"))
    build.built(folder / f"{name}.gch", [
        f"-std={options.standard}", *FLAGS, *_include_flags(), "-x", "c++-header", header,
    ])
    return header


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _include_flags() -> list[str | Path]:
    # The shims come first: they stand in for CUB's and CUDA's headers of the same name.
    flags: list[str | Path] = ["-I", toolchain.INCLUDE]
    cupy = toolchain.cupy_include()
    if cupy is not None:
        bundled = cupy / "cupy" / "_cccl"
        for folder in (cupy, bundled / "cub", bundled / "thrust", bundled / "libcudacxx"):
            flags += ["-isystem", folder]
    return [*flags, "-isystem", build.headers()]


def _listed(dependencies: Path) -> list[str]:
    """The files of a Makefile rule that g++ wrote."""
    text = dependencies.read_text(errors="replace").replace("\\\n", " ")
    names = re.split(r"(?<!\\)\s+", text.split(":", 1)[1].strip())
    return [name.replace("\\ ", " ") for name in names if name]


def _is_known(path: Path, folder: Path) -> bool:
    """Whether a header belongs to this package, to CuPy or to CUDA, whose state `key` knows."""
    roots = [*_roots(), toolchain.cache_folder(), folder]
    return any(path.resolve().is_relative_to(root.resolve()) for root in roots)


def _options(given: Sequence[str]) -> _Options:
    """NVRTC's options for g++.

    Raises:
        CompileError: if NVRTC has no such option, or the host device cannot follow it.
    """
    standard, architecture = "c++17", "compute_75"
    arguments: list[str] = []
    words = iter(given)
    for word in words:
        parts = _OPTION.fullmatch(word)
        name = parts["letter"] or parts["name"] if parts else word
        value = (parts["glued"] or parts["value"] if parts else None) or (
            next(words, "") if name in _WITH_VALUE else "")
        if name in _PASSED:
            arguments += [_PASSED[name], value]
        elif name in _STANDARD:
            standard = value
        elif name in _ARCHITECTURE:
            architecture = value
        elif _LINKED.fullmatch(word):
            raise CompileError(f"nvrtc: error: option {word} given; the host device links no "
                               "device code")
        elif not _IGNORED.fullmatch(word):
            raise CompileError(f"nvrtc: error: unrecognized option {word!r} found")
    number = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", architecture)
    if number is None or int(number[2]) not in _ARCHITECTURES[number[3]]:
        raise CompileError("nvrtc: error: invalid value for --gpu-architecture (-arch): "
                           f"{architecture!r}")
    if not re.fullmatch(r"c\+\+(03|11|14|17|20)", standard):
        raise CompileError(f"nvrtc: error: invalid value for -std: {standard!r}")
    # Older standards: the host device's own headers want C++17.
    return _Options("gnu++20" if standard == "c++20" else "gnu++17", number[1], int(number[2]),
                    number[3], tuple(arguments))
