"""CUDA kernels: their text, the loader, and the two ways to launch one.

    tanh_gradient = elementwise("T g, T x", "T y", "y = gt_tanh_grad(g, x)", "activation.cuh")
    tanh_gradient(g, x, out=g)                      # CuPy arrays

    softmax = raw("softmax.cu", "softmax_forward")
    grid, block = row_launch(rows)
    softmax[x.dtype](grid, block, (x, y, rows, columns))

A kernel's first launch compiles it and imports CuPy; no launch synchronizes. A kernel runs on
CuPy's current device and stream.

The text is in `kernels/` of a checkout and in `gtensor/_cuda/` of an installed package. `source`
inlines `#include "..."`, because the key of CuPy's disk cache hashes the source text and not the
included files.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, DTypeLike, Params, Scalar

C_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
"""The dtypes of raw kernels and the C types that instantiate their templates."""

OPTIONS = ("-std=c++17",)
"""Compiler options of every kernel, in addition to CuPy's."""

BLOCK = 256
"""Threads in a block, at most: the size of the kernels' shared arrays (`GT_BLOCK`)."""

SHARED_BYTES = 46 << 10
"""Bytes of dynamic shared memory that every block may have; 2 KiB more are for static arrays."""

MULTIPROCESSORS = 132
"""Of the GPUs that launches are meant for (H100, H200). On others they are right, too."""

NULL = 0
"""An absent array among the arguments of a raw kernel (CuPy cannot pass None)."""

ACTIVATIONS = {
    "identity": 0, "relu": 1, "leaky_relu": 2, "elu": 3, "gelu": 4, "gelu_tanh": 5, "sigmoid": 6,
    "softplus": 7, "tanh": 8, "silu": 9,
}
"""The codes of `gt_activation` in activation.cuh, for kernels with the activation as a number."""

# Texts, compiled when a kernel is: to compile them costs 2 ms of an import.
_INCLUDE = r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*(?://.*)?$'
_PRAGMA_ONCE = r"^[ \t]*#[ \t]*pragma[ \t]+once\b"
_KERNEL = r"\b__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*(?://[^\n]*\n\s*)?)?(\w+)\s*\("
_NEEDS = r"^// (?:.*\. )?Needs sm_(\d+)\."
_TYPES = r"^// (?:.*\. )?Types: ([\w, ]+)\."
_LEAST_ARCHITECTURE = 75  # of CUDA 13
_LARGEST_GRID = 2**31 - 1
_WARP = 32
_PACK = 16  # bytes that a thread loads at once
_SHARED_MEMORY_OPT_IN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def folder() -> Path:
    """The folder with the kernels' text: the package's own, else the checkout's.

    Raises:
        FileNotFoundError: if neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_cuda", package.parent / "kernels"):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"no CUDA text in {package / '_cuda'} nor in {package.parent / 'kernels'}; wanted one of "
        "these folders: reinstall gtensor or run from a complete checkout"
    )


def files() -> tuple[str, ...]:
    """The names of all kernel files (.cu), sorted."""
    return tuple(sorted(path.name for path in folder().glob("*.cu")))


@cache
def source(name: str) -> str:
    """The text of a kernel file with each file of `#include "..."` inlined once.

    `#line` directives keep the file names and line numbers of compilers' and sanitizers' messages.

    Raises:
        FileNotFoundError: if `name`, or a file that it includes, is not among the kernels.
    """
    return inline_includes(_read(name, None), name)


def inline_includes(text: str, name: str) -> str:
    """CUDA text with its `#include "..."` lines replaced by files of `kernels/`, each once.

    Args:
        text: CUDA C++.
        name: the name of this text in compilers' messages.

    Raises:
        FileNotFoundError: if an included file is not among the kernels.
    """
    return "\n".join(_inlined(text, name, {name})) + "\n"


def _inlined(text: str, name: str, seen: set[str]) -> list[str]:
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(text.splitlines(), start=1):
        include = re.match(_INCLUDE, line)
        if include is not None:
            if include[1] not in seen:
                seen.add(include[1])
                lines += _inlined(_read(include[1], name), include[1], seen)
            lines.append(f'#line {number + 1} "{name}"')
        elif re.match(_PRAGMA_ONCE, line):
            lines.append("")
        else:
            lines.append(line)
    return lines


generated: dict[str, Callable[[], str]] = {}
"""The files that are made from formulas: name -> the function that writes the text."""


def _read(name: str, includer: str | None) -> str:
    if name in generated:
        return generated[name]()
    path = folder() / name
    if not path.is_file():
        given = f"{includer} includes {name!r}" if includer else f"kernel file {name!r} given"
        raise FileNotFoundError(f"{given}; wanted the name of a file in {path.parent}")
    return path.read_text(encoding="utf-8")


@cache
def functions(file: str) -> tuple[str, ...]:
    """The names of the kernels in a file, in order; each is a template on one type."""
    return tuple(dict.fromkeys(re.findall(_KERNEL, source(file))))


@cache
def architecture(file: str) -> int:
    """The least compute capability (80: sm_80) that a file's kernels run on.

    A file, or one that it includes, says so in its header comment: "Needs sm_80."
    """
    needs = re.findall(_NEEDS, source(file), re.MULTILINE)
    return max([_LEAST_ARCHITECTURE, *map(int, needs)])


@cache
def dtypes(file: str) -> tuple[str, ...]:
    """The dtypes of a file's kernels: all of `C_TYPES`, unless its header comment has "Types: "."""
    found = re.search(_TYPES, _read(file, None), re.MULTILINE)
    if found is None:
        return tuple(C_TYPES)
    names = {ctype: name for name, ctype in C_TYPES.items()}
    return tuple(names[ctype.strip()] for ctype in found[1].split(","))


def c_type(dtype: DTypeLike) -> str:
    """The C type of a floating dtype, as in `softmax_forward<__half>`.

    Raises:
        TypeError: if the kernels have no such dtype.
    """
    name = np.dtype(dtype).name
    if name not in C_TYPES:
        raise TypeError(f"dtype {name} given; CUDA kernels want one of {', '.join(C_TYPES)}")
    return C_TYPES[name]


def shared_bytes() -> int:
    """The most dynamic shared memory, in bytes, that a block may have on the current device.

    2 KiB more remain for a kernel's static arrays. Without a device it is `SHARED_BYTES`.
    """
    driver, device, most = _driver(), ctypes.c_int(), ctypes.c_int()
    if driver is None or driver.cuCtxGetDevice(ctypes.byref(device)) != 0:
        return SHARED_BYTES
    failed = driver.cuDeviceGetAttribute(ctypes.byref(most), _SHARED_MEMORY_OPT_IN, device)
    return SHARED_BYTES if failed else max(SHARED_BYTES, most.value - (2 << 10))


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def row_launch(rows: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block of a kernel with one block per row (or channel)."""
    return (min(rows, _LARGEST_GRID),), (BLOCK,)


def flat_launch(elements: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block of a kernel with one thread per element."""
    return (min(-(-elements // BLOCK), _LARGEST_GRID),), (BLOCK,)


def packed_launch(
    rows: int, columns: int, itemsize: int
) -> tuple[tuple[int], tuple[int, int]]:
    """Grid and block of a kernel of rows.cuh: threads along a row, rows of a block.

    A row has as few threads as hold it in their registers, so that a block has several rows; but
    not so many that multiprocessors are left without a block.
    """
    width = _PACK // itemsize if columns * itemsize % _PACK == 0 else 1
    kept = 2 if width in (2, 8) else 4  # `gt_kept` in rows.cuh
    packs = -(-columns // width)
    threads = _WARP
    while threads < BLOCK and packs > kept * threads:
        threads *= 2
    each = max(1, min(BLOCK // threads, rows // MULTIPROCESSORS))
    return (min(-(-rows // each), _LARGEST_GRID),), (threads, each)


# ------------------------------------------------------------------------------ elementwise kernels


class Parameter:
    """One parameter of an elementwise kernel: `raw`, C type (or a letter such as T) and name."""

    __slots__ = ("ctype", "name", "raw")

    def __init__(self, raw: bool, ctype: str, name: str) -> None:
        self.raw = raw
        self.ctype = ctype
        self.name = name


def _parameters(text: str) -> tuple[Parameter, ...]:
    return tuple(_parameter(part.strip()) for part in text.split(",") if part.strip())


def _parameter(text: str) -> Parameter:
    words = text.split()
    raw = len(words) == 3 and words[0] == "raw"
    if len(words) != 2 + raw or not all(word.replace("_", "x").isalnum() for word in words):
        raise ValueError(f"kernel parameter {text!r} given; wanted '[raw] type name'")
    return Parameter(raw, words[-2], words[-1])


class Elementwise:
    """A kernel whose body CuPy applies to every element; see `elementwise`."""

    __slots__ = ("_arity", "_kernel", "_options", "_parsed", "_texts", "body", "include", "name")

    def __init__(
        self, inputs: str, outputs: str, body: str, include: str | None, name: str | None,
        options: tuple[str, ...] = OPTIONS,
    ) -> None:
        self._arity = len(_parameters(inputs))
        _parameters(outputs)  # raises ValueError
        self._texts = inputs, outputs
        self._parsed: tuple[tuple[Parameter, ...], ...] = ()
        self.body = body
        self.include = include
        self.name = name or _name_from(body)
        self._options = options
        self._kernel: Any = None

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        return self._parameters()[0]

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        return self._parameters()[1]

    def _parameters(self) -> tuple[tuple[Parameter, ...], ...]:
        """Of inputs and outputs. Made when a kernel is compiled: most never are."""
        if not self._parsed:
            self._parsed = tuple([_parameters(text) for text in self._texts])
        return self._parsed

    def __repr__(self) -> str:
        return f"elementwise({self.name!r}: {self.body})"

    def __call__(
        self, *inputs: Array | Scalar, out: Array | tuple[Array, ...] | None = None, **named: object
    ) -> Any:
        """Launch on CuPy's current stream.

        Args:
            inputs: CuPy arrays (broadcast against each other) and Python scalars, in the order of
                the inputs; the last ones may be given by name instead. Other names are ignored, so
                that an op can pass all its parameters.
            out: the array, or the tuple of arrays, to write, in the shape the inputs broadcast to.
                It may be one of the inputs, but must not overlap one in any other way. Without it
                CuPy allocates.

        Returns:
            The output array, or a tuple of several.
        """
        if len(inputs) < self._arity:
            inputs += tuple(self._by_name(p.name, named) for p in self.inputs[len(inputs):])
        kernel = self._kernel or self._load()
        if out is None:
            return kernel(*inputs)
        if isinstance(out, tuple):
            return kernel(*inputs, *out)
        return kernel(*inputs, out)

    def _by_name(self, name: str, named: Params) -> Any:
        if name not in named:
            wanted = ", ".join(parameter.name for parameter in self.inputs)
            raise TypeError(f"kernel {self.name} called without {name!r}; wanted {wanted}")
        return named[name]

    def _load(self) -> Any:
        import cupy

        self._kernel = cupy.ElementwiseKernel(
            ", ".join(_declaration(parameter) for parameter in self.inputs),
            ", ".join(_declaration(parameter) for parameter in self.outputs),
            self.body,
            self.name,
            preamble=source(self.include) if self.include else "",
            options=self._options,
        )
        return self._kernel


def _declaration(parameter: Parameter) -> str:
    return f"{'raw ' if parameter.raw else ''}{parameter.ctype} {parameter.name}"


def _name_from(body: str) -> str:
    called = re.search(r"\bgt_(\w+)\s*\(", body)
    return f"gt_{called[1]}" if called else "gt_elementwise"


registered: list[Elementwise] = []
"""Every elementwise kernel made so far, in order; the tests compile them without a GPU."""


def elementwise(
    inputs: str, outputs: str, body: str, include: str | None = None, name: str | None = None,
    contract: bool = True,
) -> Elementwise:
    """An elementwise kernel from one line of CUDA C++, compiled by CuPy at its first call.

    Args:
        inputs: as for `cupy.ElementwiseKernel`: `"T x, float64 slope"`. A letter is the dtype of
            the argument; declare Python scalars `float64`, or a half dtype rounds them.
        outputs: likewise. An output is also readable: pass the array to update in place as `out`.
        body: statements over these names. Compute first and assign last if an output is read. The
            `gt_...` functions of kernels/ take a half type and compute in float.
        include: a file of kernels/ whose functions the body calls.
        name: the name in profilers; by default the first `gt_...` function of the body.
        contract: whether a product and a sum may be rounded once, together.

    Raises:
        ValueError: if a parameter is not written `[raw] type name`.
    """
    options = OPTIONS if contract else (*OPTIONS, "--fmad=false")
    kernel = Elementwise(inputs, outputs, body, include, name, options)
    registered.append(kernel)
    return kernel


# -------------------------------------------------------------------------------------- raw kernels


class Launcher:
    """One kernel of one dtype; call it with CuPy's `(grid, block, args, shared_mem=0)`."""

    __slots__ = ("_kernel",)

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[object, ...],
        shared_mem: int = 0,
    ) -> None:
        """Launch on CuPy's current stream; an empty grid launches nothing.

        Args:
            grid: blocks along x, y, z.
            block: threads of a block along x, y, z.
            args: CuPy arrays (their addresses), `NULL`, Python ints (`long long`), floats
                (`double`), and structures as `numpy.void`. No bools and no other NumPy scalars:
                CuPy passes them in their own size, unchecked.
            shared_mem: bytes of dynamic shared memory, at most `shared_bytes()`.
        """
        if shared_mem > SHARED_BYTES:  # beyond the default the driver requires an opt-in
            self._kernel.max_dynamic_shared_size_bytes = shared_bytes()
        if 0 not in grid:
            self._kernel(grid, block, args, shared_mem=shared_mem)


class Raw:
    """A templated kernel of a .cu file: `raw(file, function)[dtype]` is its launcher."""

    __slots__ = ("_launchers", "file", "function", "options")

    def __init__(self, file: str, function: str, options: tuple[str, ...]) -> None:
        self.file = file
        self.function = function
        self.options = options
        self._launchers: dict[DTypeLike, Launcher] = {}

    def __repr__(self) -> str:
        return f"raw({self.file!r}, {self.function!r})"

    def __getitem__(self, dtype: DTypeLike) -> Launcher:
        """The launcher for a dtype: `numpy.float16`, `ml_dtypes.bfloat16`, `float32`, `float64`.

        Raises:
            TypeError: for another dtype.
            KeyError: if the file has no such kernel.
        """
        launcher = self._launchers.get(dtype)
        if launcher is None:
            launcher = self._launchers[dtype] = self._load(c_type(dtype))
        return launcher

    def _load(self, ctype: str) -> Launcher:
        if self.function not in functions(self.file):
            known = ", ".join(functions(self.file))
            raise KeyError(f"kernel {self.function!r} of {self.file} given; wanted one of {known}")
        module = _module(self.file, ctype, self.options)
        # A CuPy RawKernel is loaded on each device at its first call there.
        return Launcher(module.get_function(f"{self.function}<{ctype}>"))


@cache
def _module(file: str, ctype: str, options: tuple[str, ...]) -> Any:
    """All kernels of a file for one type, compiled together to parse the headers once."""
    import cupy

    names = [f"{function}<{ctype}>" for function in functions(file)]
    return cupy.RawModule(code=source(file), options=OPTIONS + options, name_expressions=names)


def raw(file: str, function: str, *options: str) -> Raw:
    """A templated kernel of `kernels/<file>`, compiled at the first use of a dtype's launcher.

    Args:
        file: the name of a .cu file of kernels/.
        function: a kernel of this file: `template <typename T> __global__ void function(...)`.
        options: more compiler options, such as `"-DGT_UNROLL=4"`.
    """
    return Raw(file, function, options)
