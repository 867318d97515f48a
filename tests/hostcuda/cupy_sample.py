"""CuPy's functions that end in a library, against NumPy's; run as a program on the host device.

Prints a line for each that differs, and at the end how many there were.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import cupyx.scipy.linalg as linalg
import numpy as np
from cupy import cublas

RNG = np.random.default_rng(0)
SQUARE = RNG.standard_normal((6, 6))
TALL = RNG.standard_normal((7, 4))
STACK = RNG.standard_normal((3, 5, 5)) + 5 * np.eye(5)
COMPLEX = SQUARE + 1j * RNG.standard_normal((6, 6))
POSITIVE = SQUARE @ SQUARE.T + np.eye(6)
FLOATS, KINDS = ("f4", "f8", "c8", "c16"), ("i1", "u2", "i8", "f2", "f4", "c16")

Check = Callable[[Any], Any]  # a function of the namespace


def products() -> Iterator[tuple[str, Check]]:
    for dtype in ("f2", *FLOATS):
        a, b = (TALL * (1 + 1j)).astype(dtype) if "c" in dtype else TALL.astype(dtype), STACK
        many = b.astype(dtype)
        yield f"matmul {dtype}", lambda xp, a=a: xp.matmul(xp.asarray(a).T, xp.asarray(a))
        yield f"matmul of many {dtype}", lambda xp, x=many: xp.matmul(xp.asarray(x), xp.asarray(x))
        yield f"vdot {dtype}", lambda xp, a=a: xp.vdot(xp.asarray(a), xp.asarray(a))
    yield "matrix and vector", lambda xp: xp.asarray(TALL) @ xp.asarray(TALL[0])
    yield "outer", lambda xp: xp.outer(xp.asarray(TALL[0]), xp.asarray(TALL[1]))
    yield "no sum", lambda xp: xp.tensordot(xp.asarray(STACK), xp.asarray(STACK), ([0, 1], [0, 1]))


def either(ours: Callable[[], Any], theirs: Any) -> Check:
    """CuPy's functions that NumPy does not have, against what they should give."""
    return lambda xp: theirs if xp is np else ours()


def added(function: Callable[[cupy.ndarray], Any], x: np.ndarray) -> cupy.ndarray:
    """A copy of x, in column-major order, after a function that works in place."""
    copy = cupy.asfortranarray(cupy.asarray(x))
    function(copy)
    return copy


def routines() -> Iterator[tuple[str, Check]]:
    """`cupy.cublas` and what `cupyx` builds on it and on cuSOLVER."""
    for dtype in FLOATS:
        many = RNG.standard_normal((4, 5, 7)) + ("c" in dtype) * 1j * RNG.standard_normal((4, 5, 7))
        a, b, c, (x, y, *_) = many[0], many[1], many[2, :, :5] + 4 * np.eye(5), many[3]
        a, b, c, x, y = (each.astype(dtype) for each in (a, b, c, x, y))
        ca, cb, cc, cx, cy = (cupy.asarray(each) for each in (a, b, c, x, y))
        sizes = np.abs(x.real) + np.abs(x.imag)
        dot, ger = ("dotu", "geru") if "c" in dtype else ("dot", "ger")
        yield f"asum {dtype}", either(lambda x=cx: cublas.asum(x), sizes.sum())
        yield f"nrm2 {dtype}", either(lambda x=cx: cublas.nrm2(x), np.linalg.norm(x))
        yield f"iamax {dtype}", either(lambda x=cx: cublas.iamax(x), sizes.argmax() + 1)
        yield f"dot {dtype}", either(lambda x=cx, y=cy, f=dot: getattr(cublas, f)(x, y), x @ y)
        yield (f"axpy {dtype}",
               either(lambda x=cx, y=y: added(lambda z: cublas.axpy(2, x, z), y), 2 * x + y))
        yield (
            f"ger {dtype}",
            either(
                lambda x=cx, y=cy, a=a, f=ger: added(lambda z: getattr(cublas, f)(2, y[:5], x, z),
                                                     a),
                a + 2 * np.outer(y[:5], x),
            ),
        )
        yield (
            f"gemv {dtype}",
            either(
                lambda x=cx, a=ca: added(
                    lambda z: cublas.gemv("N", 1.5, cupy.asfortranarray(a), x, 0, z),
                    0 * a.get()[:, 0]),
                1.5 * a @ x,
            ),
        )
        yield (
            f"gemm {dtype}",
            either(lambda a=ca, b=cb: cublas.gemm("H", "N", a, b, alpha=2.0), 2 * a.conj().T @ b))
        yield (
            f"geam {dtype}",
            either(lambda a=ca, b=cb: cublas.geam("T", "H", 2, a, 3, b), 2 * a.T + 3 * b.conj().T))
        yield f"dgmm {dtype}", either(lambda a=ca, x=cx: cublas.dgmm("R", a, x), a * x)
        yield (f"syrk {dtype}",
               either(lambda a=ca: cupy.tril(cublas.syrk("N", a, lower=True)), np.tril(a @ a.T)))
        yield (
            f"lu_solve {dtype}",
            either(lambda a=ca, c=cc: linalg.lu_solve(linalg.lu_factor(c), a),
                   np.linalg.solve(c, a)),
        )
        yield (
            f"solve_triangular {dtype}",
            either(lambda a=ca, c=cc: linalg.solve_triangular(c, a, lower=True),
                   np.linalg.solve(np.tril(c), a)),
        )


def rebuilt(xp: Any, a: np.ndarray, name: str) -> Any:
    """What a factorization multiplies to: its factors are unique up to signs only."""
    x = xp.asarray(a)
    if name == "svd":
        u, s, v = xp.linalg.svd(x, full_matrices=False)
        return (u * s[..., None, :]) @ v
    if name == "eig":
        w, v = xp.linalg.eig(x)
        return (v * w) @ xp.linalg.inv(v)
    q, r = xp.linalg.qr(x)
    return q @ r


def factors() -> Iterator[tuple[str, Check]]:
    for name, a in (("square", SQUARE), ("of many", STACK), ("complex", COMPLEX)):
        yield f"solve {name}", lambda xp, a=a: xp.linalg.solve(xp.asarray(a), xp.asarray(a) + 1)
        yield f"inv {name}", lambda xp, a=a: xp.linalg.inv(xp.asarray(a))
        yield f"slogdet {name}", lambda xp, a=a: xp.linalg.slogdet(xp.asarray(a))[1]
        yield (f"eigvalsh {name}",
               lambda xp, a=a: xp.linalg.eigvalsh(xp.asarray(a + a.swapaxes(-1, -2).conj())))
    for name, a in (("square", POSITIVE), ("of many", STACK @ STACK.swapaxes(1, 2))):
        yield f"cholesky {name}", lambda xp, a=a: xp.linalg.cholesky(xp.asarray(a))
    for name, a in (("tall", TALL), ("wide", TALL.T), ("of many", STACK), ("complex", COMPLEX)):
        for function in ("svd", "qr"):
            yield f"{function} {name}", lambda xp, a=a, f=function: rebuilt(xp, a, f)
    for name, a in (("real", SQUARE), ("complex", COMPLEX)):
        yield f"eig {name}", lambda xp, a=a: rebuilt(xp, a, "eig")
    yield ("lstsq",
           lambda xp: xp.linalg.lstsq(xp.asarray(TALL), xp.asarray(TALL[:, 0]), rcond=None)[0])
    yield "pinv", lambda xp: xp.linalg.pinv(xp.asarray(TALL))


def transforms() -> Iterator[tuple[str, Check]]:
    for name, dtype in itertools.product(("fft", "ifft", "rfft", "fft2", "rfftn", "hfft"), FLOATS):
        if not (name.startswith("r") and "c" in dtype):
            a = STACK.astype(dtype)
            yield f"{name} {dtype}", lambda xp, a=a, f=name: getattr(xp.fft, f)(xp.asarray(a))
    yield "irfftn", lambda xp: xp.fft.irfftn(xp.fft.rfftn(xp.asarray(STACK)), s=STACK.shape)
    yield "fft of columns", lambda xp: xp.fft.fft(xp.asarray(TALL), axis=0)


def sorts_and_sums() -> Iterator[tuple[str, Check]]:
    for dtype in KINDS:
        a = (RNG.standard_normal((5, 33)) * 9).astype(dtype)
        if "f" in dtype or "c" in dtype:
            a[2, 5:8] = np.nan
        for name in ("sort", "argsort"):
            options = {"kind": "stable"} if name == "argsort" else {}
            for part in (a, a[2]):
                yield (f"{name} {dtype} {part.ndim}",
                       lambda xp, x=part, f=name, o=options: getattr(xp, f)(xp.asarray(x), **o))
        small = np.resize(np.array([1, 2, 1, 3], dtype), (5, 33))
        for name in ("sum", "max", "argmin", "cumsum"):
            x = small if name in ("sum", "cumsum") else a
            yield f"{name} {dtype}", lambda xp, x=x, f=name: getattr(xp.asarray(x), f)()
            if name in ("sum", "max"):
                yield (f"{name} of rows {dtype}",
                       lambda xp, x=x, f=name: getattr(xp.asarray(x), f)(axis=1))
    yield "lexsort", lambda xp: xp.lexsort(xp.asarray([[1, 2, 1, 0], [3, 3, 1, 1]]))
    yield "bincount", lambda xp: xp.bincount(xp.asarray([1, 2, 2, 5]))
    yield "histogram", lambda xp: xp.histogram(xp.asarray(TALL), bins=7)[0]


def moments() -> Iterator[tuple[str, Check]]:
    """Random numbers: mean and deviation, equal for equal seeds."""
    for name, arguments in (("random", ()), ("standard_normal", ()), ("poisson", (3.0,)),
                            ("beta", (2.0, 3.0)), ("gamma", (2.0,)), ("binomial", (10, 0.3)),
                            ("exponential", ()), ("geometric", (0.3,)), ("integers", (0, 10))):

        def drawn(xp: Any, name: str = name, arguments: tuple = arguments) -> Any:
            x, y = (
                getattr(xp.random.default_rng(5), name)(*arguments, size=20000) for _ in range(2))
            assert (x == y).all()
            return xp.asarray([np.round(float(x.mean()) / float(x.std()), 1), float(x.std()) > 0])

        yield name, drawn


def host(x: Any) -> np.ndarray:
    return np.atleast_1d(cupy.asnumpy(x)).astype(complex)


def main() -> None:
    count = 0
    for group in (products, routines, factors, transforms, sorts_and_sums, moments):
        for name, function in group():
            found, wanted = host(function(cupy)), host(function(np))
            bound = 2e-2 if "f2" in name else 2e-5 if "4" in name or "c8" in name else 1e-9
            bound = 0.11 if group is moments else bound
            if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=bound, atol=bound,
                                                              equal_nan=True):
                print(f"{name} differs: {found.ravel()[:4]} for {wanted.ravel()[:4]}")
            count += 1
    print(f"{count} compared")


if __name__ == "__main__":
    main()
