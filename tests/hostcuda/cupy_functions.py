"""CuPy's functions and what they are called with: the sample of test_cupy_functions.py.

A function is a call of `xp`, NumPy or CuPy, on arrays of one dtype and layout; both libraries must
answer alike. Where a factorization is unique only up to signs, the call puts it together again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

INTEGERS, FLOATS, COMPLEX = ("int8", "uint16", "int64"), ("float16", "float32", "float64"), (
    "complex64", "complex128")
REAL = INTEGERS + FLOATS
NUMBERS = REAL + COMPLEX
ANY = ("bool", *NUMBERS)
WIDE = ("float32", "float64", "complex64", "complex128")  # what NVIDIA's libraries compute with

Call = Callable[..., Any]


@dataclass(frozen=True)
class Function:
    """What is called, with how many arrays, of which dtypes and layouts."""

    name: str
    call: Call  # (xp, *arrays)
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    arrays: int = 1
    values: str = "normal"


@dataclass(frozen=True)
class Case:
    """One call."""

    function: Function
    dtype: str
    layout: str

    @property
    def name(self) -> str:
        return f"{self.function.name}-{self.dtype}-{self.layout}"

    def arrays(self) -> list[np.ndarray]:
        """The inputs: the same at each call."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [LAYOUTS[self.layout](lambda shape: drawn(rng, shape, np.dtype(self.dtype),
                                                         self.function.values))
                for _ in range(self.function.arrays)]


LAYOUTS: dict[str, Callable[[Callable[[tuple[int, ...]], np.ndarray]], np.ndarray]] = {
    "matrix": lambda draw: draw((5, 7)),
    "strided": lambda draw: draw((10, 14))[::2, ::-2],
    "transposed": lambda draw: draw((7, 5)).T,
    "long": lambda draw: draw((1_500,)),
    "cube": lambda draw: draw((3, 4, 5)),
    "empty": lambda draw: draw((0, 3)),
    "scalar": lambda draw: draw(()),
    "square": lambda draw: draw((6, 6)),
    "squares": lambda draw: draw((3, 4, 4)),
    "line": lambda draw: draw((40,)),
    "reversed": lambda draw: draw((60,))[::-2],
    "nothing": lambda draw: draw((0,)),
}
EACH = ("matrix", "strided", "transposed", "long", "empty", "scalar")
FULL = ("matrix", "strided", "transposed", "long", "cube")
LINES = ("line", "reversed", "nothing")
FLAT = ("line", "reversed")


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype,
          values: str) -> np.ndarray:
    """Random values: "normal", or "unit" within (0.1, 0.9), or "small" whole ones from 1 to 6."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if values == "small" or (values == "unit" and dtype.kind in "iu"):
        return rng.integers(1, 7, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    draw = rng.standard_normal if values == "normal" else lambda shape: rng.uniform(0.1, 0.9, shape)
    x = draw(shape)
    return np.asarray(x + 1j * draw(shape) if dtype.kind == "c" else x).astype(dtype)


def named(names: str, dtypes: tuple[str, ...], layouts: tuple[str, ...], arrays: int = 1,
          values: str = "normal", **keywords: Any) -> Iterator[Function]:
    """Functions called by their names."""
    for name in names.split():
        yield Function(name.replace(".", "_"), lambda xp, *args, name=name: found(xp, name)(
            *args, **keywords), dtypes, layouts, arrays, values)


def found(xp: Any, name: str) -> Any:
    for part in name.split("."):
        xp = getattr(xp, part)
    return xp


def elementwise() -> Iterator[Function]:
    yield from named("absolute negative square positive sign conjugate real imag", NUMBERS, EACH)
    yield from named("isfinite isnan isinf", ANY, EACH)
    yield from named("logical_not", ("bool", *REAL), EACH)
    yield from named("exp sin cos tan sinh cosh tanh arctan arcsinh exp2 expm1", FLOATS, EACH)
    yield from named("sqrt log log2 log10 log1p arcsin arccos arctanh cbrt reciprocal", FLOATS,
                     EACH, values="unit")
    yield from named("exp sin cos sqrt log tanh angle", COMPLEX, EACH, values="unit")
    yield from named("floor ceil trunc rint degrees radians signbit sinc nan_to_num i0", FLOATS,
                     EACH)
    yield from named("modf frexp", ("float32", "float64"), EACH)
    yield from named("invert", ("bool", *INTEGERS), EACH)
    yield from named("add subtract multiply maximum minimum", NUMBERS, EACH, 2)
    yield from named("true_divide power", FLOATS + COMPLEX, EACH, 2, "unit")
    yield from named("floor_divide remainder fmod divmod power", INTEGERS, EACH, 2, "small")
    yield from named("arctan2 hypot logaddexp logaddexp2 copysign fmax fmin heaviside "
                     "floor_divide remainder fmod nextafter", FLOATS, EACH, 2)
    yield from named("less less_equal equal not_equal greater", ANY, EACH, 2)
    yield from named("logical_and logical_xor", ("bool", *REAL), EACH, 2)
    yield from named("bitwise_and bitwise_or bitwise_xor gcd lcm left_shift right_shift",
                     INTEGERS, EACH, 2, "small")
    yield Function("ldexp", lambda xp, x: xp.ldexp(x, xp.full(x.shape, 3, "int32")), FLOATS, EACH)
    yield Function("clip", lambda xp, x: xp.clip(x, 1, 3), REAL, EACH)
    yield Function("where", lambda xp, x, y: xp.where(x > y, x, y), REAL, EACH, 2)
    yield Function("round", lambda xp, x: xp.round(x, 1), FLOATS[1:] + COMPLEX, EACH)
    yield Function("broadcast", lambda xp, x: x[:, None] * x[None], NUMBERS, LINES)
    yield Function("in_place", in_place, FLOATS + COMPLEX, EACH)
    for to in ("int8", "float16", "float64", "complex64", "bool"):
        yield Function(f"astype_{to}", lambda xp, x, to=to: x.astype(to),
                       ("bool", "int64", "uint16", *FLOATS), EACH)


def in_place(xp: Any, x: Any) -> Any:
    x = x.copy()
    x += 1
    x *= x
    x[...] -= 2
    return x


def reductions() -> Iterator[Function]:
    for axis in (None, 0, -1):
        for name in ("sum", "prod", "min", "max", "argmin", "argmax", "mean", "any", "all", "std",
                     "var", "ptp", "count_nonzero", "median"):
            if axis is None or name not in ("ptp",):
                yield Function(
                    f"{name}_{axis}",
                    lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis=axis),
                    REAL if name in ("min", "max", "ptp", "median") else NUMBERS,
                    FULL if name == "median" else (*FULL, "empty"),
                    values="unit" if name == "prod" else "normal")
    for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanstd", "nanargmax"):
        yield Function(name, lambda xp, x, name=name: getattr(xp, name)(
            xp.where(x > 1, xp.asarray(np.nan, x.dtype), x)), FLOATS[1:], FULL)
    yield Function("sum_axes", lambda xp, x: xp.sum(x, axis=(0, 2), keepdims=True), NUMBERS,
                   ("cube",))
    yield Function("sum_wide", lambda xp, x: xp.sum(x, dtype="float64"), REAL, FULL)
    yield Function("percentile", lambda xp, x: xp.percentile(x, [10, 50, 95]), FLOATS[1:], FULL)
    yield Function("average", lambda xp, x, y: xp.average(x, weights=y), FLOATS[1:], FULL, 2,
                   "unit")
    yield from named("linalg.norm", WIDE, ("matrix", "strided", "transposed", "line", "empty"))
    yield from named("allclose array_equal", FLOATS, EACH, 2)


def scans() -> Iterator[Function]:
    for name in ("cumsum", "cumprod"):
        for axis in (None, 0, -1):
            yield Function(f"{name}_{axis}",
                           lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis=axis),
                           NUMBERS, ("matrix", "strided", "transposed", "cube", "line", "empty"),
                           values="unit" if name == "cumprod" else "normal")
    yield from named("nancumsum diff gradient ediff1d", FLOATS[1:], FLAT)
    yield Function("trapezoid", lambda xp, x: xp.trapezoid(x), FLOATS[1:], FLAT)
    yield Function("convolve", lambda xp, x, y: xp.convolve(x, y[:5], "same"), NUMBERS, FLAT, 2)


def indexing() -> Iterator[Function]:
    two = ("matrix", "strided", "transposed")
    calls: dict[str, Call] = {
        "slices": lambda xp, x: x[1:4, ::-2], "newaxis": lambda xp, x: x[..., None, 1],
        "rows": lambda xp, x: x[xp.asarray([0, 3, -1, 0])],
        "pairs": lambda xp, x: x[xp.asarray([0, 1]), xp.asarray([4, 2])],
        "mixed": lambda xp, x: x[xp.asarray([[0], [2]]), 1:3],
        "mask": lambda xp, x: x[x > 0], "mask_rows": lambda xp, x: x[x[:, 0] > 0],
        "take": lambda xp, x: xp.take(x, xp.asarray([0, 2, 1]), axis=1),
        "take_along": lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=1), 1),
        "compress": lambda xp, x: xp.compress([True, False, True], x, axis=0),
        "nonzero": lambda xp, x: xp.nonzero(x > 0), "argwhere": lambda xp, x: xp.argwhere(x > 0),
        "flatnonzero": lambda xp, x: xp.flatnonzero(x > 0),
        "extract": lambda xp, x: xp.extract(x > 0, x),
        "set_slice": lambda xp, x: assigned(x, (slice(1, 3), slice(None, None, 2)), 7),
        "set_mask": lambda xp, x: assigned(x, x > 0, 3),
        "set_rows": lambda xp, x: assigned(x, xp.asarray([0, 2]), x[:2]),
        "put_along": put_along, "fill_diagonal": fill_diagonal,
        "diagonal": lambda xp, x: xp.diagonal(x, 1), "tril": lambda xp, x: xp.tril(x, -1),
        "triu": lambda xp, x: xp.triu(x, 1), "roll": lambda xp, x: xp.roll(x, 2, 1),
        "flip": lambda xp, x: xp.flip(x), "rot90": lambda xp, x: xp.rot90(x),
        "repeat": lambda xp, x: xp.repeat(x, 3, 0), "tile": lambda xp, x: xp.tile(x, (2, 2)),
        "pad": lambda xp, x: xp.pad(x, ((1, 0), (2, 1))),
        "pad_reflect": lambda xp, x: xp.pad(x, 2, "reflect"),
        "concatenate": lambda xp, x: xp.concatenate([x, x[:0], x], axis=0),
        "stack": lambda xp, x: xp.stack([x, x + x], axis=1),
        "split": lambda xp, x: tuple(xp.array_split(x, 3)), "reshape": lambda xp, x: x.reshape(-1),
        "moveaxis": lambda xp, x: xp.moveaxis(x[None], 0, -1).copy(),
        "add_at": add_at,
    }  # fmt: skip
    for name, call in calls.items():
        yield Function(name, call, REAL if name != "add_at" else ("float32", "float64"), two)
    yield Function("diag", lambda xp, x: xp.diag(x), NUMBERS, FLAT)
    yield Function("searchsorted", lambda xp, x, y: xp.searchsorted(xp.sort(x), y), REAL, FLAT, 2)
    yield Function("digitize", lambda xp, x: xp.digitize(x, xp.asarray([-1.0, 0.0, 2.0])), FLOATS,
                   FLAT)
    yield Function("bincount", lambda xp, x: xp.bincount(x), ("uint16", "int64"), FLAT,
                   values="small")
    yield Function("histogram", lambda xp, x: xp.histogram(x, 5, (-2.0, 2.0)), FLOATS[1:], FLAT)
    yield Function("histogram2d", lambda xp, x, y: xp.histogram2d(
        x, y, (4, 3), ((-2, 2), (-2, 2)))[0], ("float64",), FLAT, 2)
    yield from named("unique", REAL, FLAT)
    yield Function("unique_counts", lambda xp, x: xp.unique(x, return_inverse=True,
                                                            return_counts=True), INTEGERS, FLAT)
    yield from named("isin intersect1d setdiff1d union1d", INTEGERS, FLAT, 2)
    yield Function("interp", lambda xp, x: xp.interp(x, xp.arange(5.0), xp.arange(5.0) ** 2),
                   FLOATS[1:], ("line",))  # CuPy takes contiguous x only
    yield Function("arange", lambda xp, x: xp.arange(3, 40, 4, x.dtype), REAL, ("scalar",))
    yield Function("linspace", lambda xp, x: xp.linspace(0, 1, 7, dtype=x.dtype), FLOATS + COMPLEX,
                   ("scalar",))
    yield Function("eye", lambda xp, x: xp.eye(4, 5, 1, x.dtype), ANY, ("scalar",))
    yield Function("vander", lambda xp, x: xp.vander(x[:6], 3), FLOATS[1:], ("line",))
    yield Function("packbits", lambda xp, x: xp.packbits(x), ("bool",), FLAT)


def assigned(x: Any, key: Any, value: Any) -> Any:
    x = x.copy()
    x[key] = value
    return x


def put_along(xp: Any, x: Any) -> Any:
    x = x.copy()
    xp.put(x, xp.asarray([1, 5, 9]), xp.asarray([4, 5, 6]).astype(x.dtype))
    return x


def fill_diagonal(xp: Any, x: Any) -> Any:
    x = x.copy()
    xp.fill_diagonal(x, 5)
    return x


def add_at(xp: Any, x: Any) -> Any:
    x = x.copy()
    xp.add.at(x, xp.asarray([0, 2, 0, 0]), x[:4].copy())
    return x


def sorting() -> Iterator[Function]:
    for axis in (0, -1):
        for name in ("sort", "argsort"):
            yield Function(f"{name}_{axis}", lambda xp, x, name=name, axis=axis: getattr(xp, name)(
                x, axis=axis, kind="stable"), REAL, FULL)
    yield Function("sort_nan", lambda xp, x: xp.sort(xp.where(x > 1, xp.asarray(np.nan, x.dtype),
                                                              x)), FLOATS, FLAT)
    yield from named("sort_complex", COMPLEX, FLAT)
    yield Function("lexsort", lambda xp, x, y: xp.lexsort(xp.stack([x, y])), REAL, FLAT, 2)
    yield Function("partition", lambda xp, x: xp.sort(xp.partition(x, 7)[:7]), REAL, FLAT)
    yield Function("argpartition", lambda xp, x: xp.sort(x[xp.argpartition(x, 7)[:7]]), REAL, FLAT)


def linalg() -> Iterator[Function]:
    square, squares = ("square",), ("square", "squares")
    yield from named("matmul", NUMBERS, squares, 2)
    yield from named("dot vdot inner outer", NUMBERS, FLAT, 2)
    yield from named("kron", NUMBERS, ("matrix", "strided"), 2)
    yield from named("trace", NUMBERS, square)
    calls: dict[str, tuple[Call, int]] = {
        "product": (lambda xp, x, y: x @ y.T, 2), "product_left": (lambda xp, x, y: x.T @ y, 2),
        "vector": (lambda xp, x, y: x @ y[0], 2),
        "tensordot": (lambda xp, x, y: xp.tensordot(x, y, ((0, 1), (0, 1))), 2),
        "einsum": (lambda xp, x, y: xp.einsum("ij,kj->ik", x, y), 2),
        "einsum_trace": (lambda xp, x, y: xp.einsum("ij,ij->", x, y), 2)}
    for name, (call, arrays) in calls.items():
        yield Function(name, call, FLOATS + COMPLEX, ("matrix", "strided", "transposed", "empty"),
                       arrays)
    yield from named("linalg.det linalg.slogdet linalg.inv", WIDE, squares)
    yield from named("linalg.solve", WIDE, squares, 2)
    yield from named("linalg.pinv linalg.matrix_rank", WIDE,
                     ("matrix", "strided", "transposed", "square"))
    more: dict[str, Call] = {
        "lstsq": lambda xp, x: xp.linalg.lstsq(x.T, x[0], rcond=None)[0],
        "qr": lambda xp, x: multiplied(*xp.linalg.qr(x)),
        "qr_size": lambda xp, x: xp.abs(xp.linalg.qr(x, "r")),
        "svd": lambda xp, x: put_together(*xp.linalg.svd(x, full_matrices=False)),
        "svd_values": lambda xp, x: xp.linalg.svd(x, compute_uv=False),
        "cholesky": lambda xp, x: xp.linalg.cholesky(positive(xp, x)),
        "eigvalsh": lambda xp, x: xp.linalg.eigvalsh(positive(xp, x)),
        "eigh": lambda xp, x: put_together_eigh(*xp.linalg.eigh(positive(xp, x))),
        "matrix_power": lambda xp, x: xp.linalg.matrix_power(x[:4, :4], 3),
    }
    for name, call in more.items():
        yield Function(name, call, WIDE, ("matrix", "strided"))
    yield Function("cross", lambda xp, x, y: xp.cross(x[:, :3], y[:, :3]), FLOATS[1:],
                   ("matrix", "strided"), 2)


def positive(xp: Any, x: Any) -> Any:
    return x @ x.conj().T + xp.eye(len(x), dtype=x.dtype)


def multiplied(q: Any, r: Any) -> Any:
    return q @ r


def put_together(u: Any, s: Any, v: Any) -> Any:
    return u * s @ v


def put_together_eigh(w: Any, v: Any) -> Any:
    return v * w @ v.conj().T


def fft() -> Iterator[Function]:
    layouts = ("matrix", "strided", "transposed", "line", "cube")
    yield from named("fft.fft fft.ifft", WIDE, layouts)
    yield from named("fft.rfft", ("float32", "float64"), layouts)
    yield from named("fft.irfft fft.hfft", ("complex64", "complex128"), layouts)
    yield from named("fft.fft2 fft.ifftn fft.fftn", WIDE, ("matrix", "strided", "cube"))
    yield from named("fft.rfft2 fft.rfftn", ("float32", "float64"), ("matrix", "strided", "cube"))
    yield from named("fft.irfft2 fft.irfftn", ("complex64", "complex128"), ("matrix", "cube"))
    yield Function("fft_axis", lambda xp, x: xp.fft.fft(x, 8, 0, "ortho"), WIDE, layouts)
    yield from named("fft.fftshift fft.ifftshift", FLOATS, layouts)


GROUPS = {"elementwise": elementwise, "reductions": reductions, "scans": scans,
          "indexing": indexing, "sorting": sorting, "linalg": linalg, "fft": fft}


def cases(group: str) -> list[Case]:
    """All of a group's, each once."""
    every = {}
    for function in GROUPS[group]():
        for dtype in function.dtypes:
            for layout in function.layouts:
                case = Case(function, dtype, layout)
                every.setdefault(case.name, case)
    return list(every.values())


def sampled(group: str, share: int) -> list[Case]:
    """One case of every `share`-th function, dtypes and layouts in turn."""
    functions: dict[str, list[Case]] = {}
    for case in cases(group):
        functions.setdefault(case.function.name, []).append(case)
    return [found[zlib.crc32(name.encode()) % len(found)]
            for place, (name, found) in enumerate(functions.items()) if place % share == 0]
