"""The ops of matrix products, also into the caller's buffers; what matrix ops share."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.backend.host_device import REPLAYED
from gtensor.backend.layouts import product_shape
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.engine.walk.slots import sum_to
from gtensor.ops.define.batching import Inputs, Mapped, aligned, batch_size, broadcasting
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.flops import of_gemm, of_product, of_summed_product
from gtensor.ops.define.path_builders import placed
from gtensor.settings import settings

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Operand
    from gtensor.engine.walk.typing import ArrayOrTensor, Step, Values

__all__: list[str] = []  # the public functions are in `gemm`


# -- what matrix ops share -------------------------------------------------------------------------


def swapped(ns: Namespace, x: ArrayOrTensor) -> ArrayOrTensor:
    """The last two axes swapped, in either namespace."""
    n: int = len(x.shape)
    return ns.permute_dims(x, axes=(*range(-n, -2), -1, -2))


def conjugated(ns: Namespace, x: ArrayOrTensor) -> ArrayOrTensor:
    """The complex conjugate; a real array is its own."""
    return ns.conj(x) if x.dtype.kind == "c" else x


def adjoint(ns: Namespace, x: ArrayOrTensor) -> ArrayOrTensor:
    """The conjugate transpose of the last two axes, in either namespace."""
    return swapped(ns, conjugated(ns, x))


def is_half(dtype: np.dtype) -> bool:
    """Whether the dtype is float16 or bfloat16, which are computed in float32."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def matrices(x: Operand, op_name: str, square: bool = False) -> Tensor:
    """`x` as a tensor of matrices in its last two axes.

    Raises ValueError for fewer than two axes; LinAlgError (a ValueError) where they must be square
    and are not.
    """
    found = asarray(x)
    if found.ndim < 2:
        raise ValueError(f"{op_name} of a tensor of shape {found.shape}; wanted matrices: two axes "
                         "or more")
    if square and found.shape[-1] != found.shape[-2]:
        raise np.linalg.LinAlgError(f"{op_name} of a tensor of shape {found.shape}; wanted square "
                                    "matrices in the last two axes")
    return found


def check_leading(op_name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Raise ValueError unless the leading axes of two shapes of matrices broadcast."""
    if len(left) > 2 < len(right) and left[:-2] != right[:-2]:
        try:
            np.broadcast_shapes(left[:-2], right[:-2])
        except ValueError:
            raise ValueError(f"{op_name} of shapes {left} and {right}: the leading axes "
                             f"{left[:-2]} and {right[:-2]} do not broadcast; wanted lengths that "
                             "agree or are 1, counted from the last of them") from None


def matrix_paths(name: str, function: Path) -> dict[str, Any]:
    """The two paths of an op on matrices: `function(xp, *arrays, *, params)` on NumPy and CuPy.

    Half types are computed in float32. LAPACK works on copies and returns new arrays, so `out` is
    filled by a copy. On the CPU its errors become a LinAlgError that names op and shape. On a GPU
    reading cuSOLVER's status would wait, so there a singular matrix gives infinities or NaN.
    """

    def on(library: Callable[[], ModuleType]) -> Path:
        def path(*arrays: Array, out: Array | None = None, **params: Any) -> Array:
            half = is_half(np.result_type(*[a.dtype for a in arrays]))
            wide = [a.astype(np.float32) if is_half(a.dtype) else a for a in arrays]
            try:
                value = function(library(), *wide, **params)
            except np.linalg.LinAlgError as error:
                shapes = " and ".join(str(a.shape) for a in arrays)
                raise np.linalg.LinAlgError(f"{name} of shape {shapes}: {error}") from None
            if out is None:
                return value.astype(arrays[0].dtype) if half else value
            out[...] = value
            return out

        path.formula = function  # type: ignore[attr-defined]  # whose arguments it takes
        return path

    return {"cpu": on(lambda: np), "gpu": on(cupy)}


def gpu_factors() -> ModuleType:
    """The module `backend.factors`, imported late: a program on the CPU has no use for it."""
    from gtensor.backend import factors

    return factors


def singular_parts(xp: ModuleType, x: Array, **options: bool) -> tuple[Array, Array, Array]:
    """(U, S, Vh) of the library; NaN on a GPU where it cannot converge."""
    u, s, vh = xp.linalg.svd(x, **options)
    if not isinstance(x, np.ndarray):
        gpu_factors().finite_or_nan(x, u, s, vh)
    return u, s, vh


def is_small(x1: Array, x2: Array, columns: int) -> bool:
    """Whether NumPy's own output of a product of matrices, of so many columns, is as good: it is
    smaller than what the arena gives, also in replays, and NumPy reads the factors where they lie.
    """
    return (x1.dtype is x2.dtype and x1.dtype.char in "fd" and x1.itemsize in x1.strides
            and x1.itemsize in x2.strides
            and 8 * REPLAYED * len(x1) * columns < settings.arena_min_bytes)


# -- matmul ----------------------------------------------------------------------------------------


def matmul_cpu(
    device: Device, x1: Array, x2: Array, *, out: Array | None = None, beta: float = 0.0
) -> Array:
    """As `matmul_gpu`; NumPy reads any strides and dtypes into a new array."""
    if out is None and x1.ndim == x2.ndim == 2 and is_small(x1, x2, x2.shape[1]):
        return np.matmul(x1, x2)
    if out is not None or x1.itemsize == 2 or x2.itemsize == 2:
        return matmul_gpu(device, x1, x2, out=out, beta=beta)
    dtype = x1.dtype if x1.dtype == x2.dtype else np.result_type(x1, x2)
    return np.matmul(x1, x2, device.empty(product_shape(x1, x2), dtype, "matmul"))


def matmul_gpu(
    device: Device, x1: Array, x2: Array, *, out: Array | None = None, beta: float = 0.0
) -> Array:
    """out = x1 @ x2 + beta * out; integers, which no gradient adds to, by the library."""
    dtype = x1.dtype if x1.dtype == x2.dtype else np.result_type(x1, x2)
    if dtype.kind in "biu":
        return device.xp.matmul(x1, x2, out=out)
    x1, x2 = (x if x.dtype == dtype else x.astype(dtype) for x in (x1, x2))
    return device.matmul(x1, x2, out, beta)


def _scaled_path(
    device: Device, x1: Array, x2: Array, *, alpha: complex, out: Array | None = None,
    beta: float = 0.0
) -> Array:
    return device.matmul(x1, x2, out, beta, alpha)


def _matmul_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Each product accumulates straight into the gradient that is already there."""
    a, b = step.saved
    alpha = step.params.get("alpha", 1.0)
    if step.needs(0):
        product_gradient(ns, step, 0, g, adjoint(ns, b), alpha)
    if step.needs(1):
        product_gradient(ns, step, 1, adjoint(ns, a), g, alpha)


def product_gradient(
    ns: Namespace, step: Step, i: int, left: Array, right: Array, alpha: complex
) -> None:
    """Give input i conj(alpha) * left @ right, added by the GEMM to the gradient it has."""
    parent: Any = step.parents[i]  # there is one: it needs a gradient
    product, params = _scaled(ns, alpha.conjugate())
    shape = step.shape(i)
    if left.dtype != right.dtype or parent.dtype != left.dtype and not (
            is_half(left.dtype) and parent.dtype == np.float32):
        step.give(i, product(left, right, **params))  # the step undoes promotion
        return
    buffer, beta = step.into(i, wide=True)
    if product_shape(left, right) != shape:
        product, params = ns.summed_matmul, {"alpha": alpha.conjugate(), "shape": shape}
    step.give(i, product(left, right, out=buffer, beta=beta, **params))


def _scaled(ns: Namespace, alpha: complex) -> tuple[Callable[..., Any], Params]:
    """The product with a factor, or without one."""
    return (ns.matmul, {}) if alpha == 1 else (ns.scaled_matmul, {"alpha": alpha})


def _matmul_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (a, b), (da, db) = primals, tangents
    product, _ = _scaled(ns, params.get("alpha", 1.0))
    terms = [] if da is None else [product(da, b, **params)]
    if db is not None:
        terms.append(product(a, db, **params))
    return terms[0] if len(terms) == 1 else ns.add(*terms)


def matmul_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """One product of all rows with a matrix that all examples share, if it is on the right.

    On the left it is one of all columns where these are few; many would take as long to copy side
    by side as to multiply in place.
    """
    x1, x2 = inputs
    if "out" in params or mapped[0] and mapped[1]:  # with a buffer to write, into that
        return broadcasting(ns, run, inputs, mapped, params)
    if mapped[0] and x2.ndim == 2 and x1.ndim > 2:
        *lead, inner = x1.shape
        y = run(ns.reshape(x1, shape=(prod(lead), inner)), x2, **params)
        return ns.reshape(y, shape=(*lead, x2.shape[1]))
    if mapped[1] and x1.ndim == 2 and x2.ndim > 2 and 4 * x2.shape[-1] <= x1.shape[0]:
        *lead, inner, columns = x2.shape
        rows = ns.reshape(swapped(ns, x2), shape=(prod(lead) * columns, inner))
        y = run(rows, swapped(ns, x1), **params)
        return swapped(ns, ns.reshape(y, shape=(*lead, columns, x1.shape[0])))
    return broadcasting(ns, run, inputs, mapped, params)


matmul_batch.writes = True  # type: ignore[attr-defined]


_FEW = 16  # products that are added up one by one
_PARTS = 8  # in which a GPU adds up more; the CPU takes what a tile holds


def summed_path(
    device: Device, x1: Array, x2: Array, *, shape: tuple[int, ...], out: Array | None = None,
    alpha: complex = 1.0, beta: float = 0.0
) -> Array:
    """One product where the axes summed over lie in step with the inner one; else the GEMM adds up
    a few, and more are summed in parts. Halves are added up in float32."""
    whole = product_shape(x1, x2)
    if out is None:
        out, beta = device.empty(shape, x1.dtype, "matmul"), 0.0
    lead = len(whole) - 2
    target = out.reshape((1,) * (len(whole) - len(shape)) + shape)
    axes = [i for i in range(lead) if target.shape[i] != whole[i]]
    count = prod(whole[i] for i in axes)
    x1, x2 = (x.reshape((1,) * (len(whole) - x.ndim) + x.shape) for x in (x1, x2))
    if not count:
        return out if beta else device.fill(out, 0)
    joined = _as_one_product(x1, x2, axes)
    if joined is not None:
        device.matmul(*joined, target.reshape(target.shape[-2:]), beta, alpha)
        return out
    work = computed_in(out.dtype)
    total = target if count == 1 or work == out.dtype else (
        device.empty(target.shape, work, "workspace"))
    if beta and total is not target:
        total[...] = target
    _add_up(device, x1, x2, total, axes, alpha, beta)
    if total is not target:
        target[...] = total
    return out


def _add_up(
    device: Device, x1: Array, x2: Array, target: Array, axes: list[int], alpha: complex,
    beta: float
) -> None:
    whole = product_shape(x1, x2)
    count = prod(whole[i] for i in axes)
    if count <= _FEW or not (step := _step(device, whole, axes, target.size)):
        for index in np.ndindex(*[whole[i] for i in axes]):
            left, right = (_selected(x, axes, [slice(i, i + 1) for i in index]) for x in (x1, x2))
            device.matmul(left, right, target, beta, alpha)
            beta = 1.0
    else:
        _add_parts(device, x1, x2, target, axes, step, alpha, beta)


def _longest(whole: tuple[int, ...], axes: list[int]) -> int:
    return max(axes, key=lambda axis: whole[axis])


def _step(device: Device, whole: tuple[int, ...], axes: list[int], size: int) -> int:
    """How much of the longest axis is summed at a time; 0 if a part would be more than a tile."""
    length = whole[_longest(whole, axes)]
    if device.type != "cpu":
        return -(-length // _PARTS)
    return settings.tile_elements // max(1, size * prod(whole[i] for i in axes) // length)


def _as_one_product(x1: Array, x2: Array, axes: list[int]) -> tuple[Array, Array] | None:
    """Two matrices whose product is the sum, as views; None where there are none."""
    if x1.ndim != 3 or axes != [0] or not len(x1) == len(x2) > 1:
        return None
    steps = x1.strides[0] - x1.shape[2] * x1.strides[2], x2.strides[0] - x2.shape[1] * x2.strides[1]
    if any(steps):
        return None
    inner = x2.shape[0] * x2.shape[1]
    return (x1.swapaxes(0, 1).reshape(x1.shape[1], inner), x2.reshape(inner, x2.shape[2]))


def _add_parts(
    device: Device, x1: Array, x2: Array, target: Array, axes: list[int], step: int,
    alpha: complex, beta: float
) -> None:
    whole, work = product_shape(x1, x2), computed_in(x1.dtype)
    axis = _longest(whole, axes)
    for start in range(0, whole[axis], step):
        left, right = (_selected(x, [axis], [slice(start, start + step)]) for x in (x1, x2))
        part = device.empty(product_shape(left, right), work, "workspace")
        device.matmul(left, right, part, alpha=alpha)
        total = raw[device.type].sum(part, axis=tuple(axes), keepdims=True)
        if beta:
            target += total
        else:
            target[...] = total
        beta = 1.0


def _selected(x: Array, axes: list[int], parts: list[slice]) -> Array:
    """The matrices in parts of these axes; along others, and where it repeats, all of them."""
    key = [slice(None)] * x.ndim
    for axis, part in zip(axes, parts, strict=True):
        if x.shape[axis] > 1:
            key[axis] = part
    return x[tuple(key)]


def _summed_composed(
    x1: Tensor, x2: Tensor, *, shape: tuple[int, ...], alpha: complex = 1.0
) -> Tensor:
    product, params = _scaled(recorded, alpha)
    return sum_to(recorded, product(x1, x2, **params), shape)


def _summed_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    size, ndim = batch_size(inputs, mapped), len(params["shape"])
    given = aligned(ns, inputs, mapped)
    ndim = max(ndim, *(x.ndim - m for x, m in zip(given, mapped, strict=True)))
    shape = params["shape"]
    whole = {**params, "shape": (size, *(1,) * (ndim - len(shape)), *shape)}
    return ns.reshape(run(*given, **whole), shape=(size, *shape))


summed_matmul = op(
    "summed_matmul", flops=of_summed_product, **placed(summed_path), backward=None, tangent=None,
    composed=_summed_composed, batch=_summed_batch,
    samples=[Sample(((2, 3, 4), (2, 4, 2)), params={"shape": (3, 2)}),
             Sample(((2, 1, 3, 2), (4, 2, 3)), params={"shape": (2, 1, 3, 3), "alpha": -0.5}),
             Sample(((0, 3, 2), (2, 3)), params={"shape": (3, 3)}),
             Sample(((19, 2, 3), (19, 3, 2)), params={"shape": (2, 2), "alpha": 2.0}),
             Sample(((3, 7, 2, 3), (7, 3, 2)), params={"shape": (2, 2)})],
    doc="The matrix product, summed to `shape` over leading axes: the gradient of a factor that "
        "was broadcast. Parameters: shape, alpha.",
)

matmul_op = op(
    "matmul", flops=of_product, autocast="low",
    **placed(matmul_cpu, matmul_gpu), saves={"x2": "x1", "x1": "x2"}, complex=True,
    backward=_matmul_backward, tangent=_matmul_tangent, batch=matmul_batch,
    samples=[Sample(((3, 4), (4, 5))), Sample(((1, 4), (4, 1))), Sample(((2, 3, 4), (2, 4, 2))),
             Sample(((2, 1, 3, 2), (4, 2, 3))), Sample(((0, 3), (3, 2))), Sample(((2, 0), (0, 3)))],
    reference=lambda torch, a, b: a @ b,
)

scaled_matmul = op(
    "scaled_matmul", flops=of_product, autocast="low",
    **placed(_scaled_path), saves={"x2": "x1", "x1": "x2"}, complex=True,
    backward=_matmul_backward, tangent=_matmul_tangent, batch=matmul_batch,
    samples=[Sample(((3, 4), (4, 5)), params={"alpha": 0.5}),
             Sample(((2, 3, 4), (4, 2)), params={"alpha": -2.0})],
    reference=lambda torch, a, b, alpha: alpha * (a @ b),
    doc="alpha * (x1 @ x2), the factor applied by the GEMM. Parameters: alpha.",
)

# -- into a buffer ---------------------------------------------------------------------------------


def _gemm_path(
    device: Device, c: Array, a: Array, b: Array, *, alpha: complex, factor: complex,
    transpose_a: bool, transpose_b: bool, shape: tuple[int, ...], out: Array | None = None
) -> Array:
    if transpose_a:
        a = a.swapaxes(-1, -2)
    if transpose_b:
        b = b.swapaxes(-1, -2)
    if out is None:
        out = device.copy(c, label="gemm")
    elif out is not c:
        out[...] = c
    device.matmul(a, b, out.reshape(shape), factor, alpha)  # axes of size 1 are added: a view
    return out


def _turned(ns: Namespace, x: Any, transposed: bool) -> Any:
    return swapped(ns, x) if transposed else x


def _gemm_backward(ns: Namespace, step: Step, g: Array) -> None:
    a, b = step.saved
    params = step.params
    alpha, across, down = params["alpha"], params["transpose_a"], params["transpose_b"]
    whole = g if g.shape == params["shape"] else ns.reshape(g, shape=params["shape"])
    if step.needs(1):  # of op(a): whole @ adjoint(op(b)); its transpose where a is transposed
        known = conjugated(ns, _turned(ns, b, down))
        left, right = (known, swapped(ns, whole)) if across else (whole, swapped(ns, known))
        product_gradient(ns, step, 1, left, right, alpha)
    if step.needs(2):
        known = conjugated(ns, _turned(ns, a, across))
        left, right = (swapped(ns, whole), known) if down else (swapped(ns, known), whole)
        product_gradient(ns, step, 2, left, right, alpha)
    if step.needs(0) and params["factor"]:
        kept = params["factor"].conjugate()
        step.give(0, g if kept == 1 else ns.multiply(g, kept))


def _gemm_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    (_, a, b), (dc, da, db) = primals, tangents
    across, down = params["transpose_a"], params["transpose_b"]
    product, options = _scaled(ns, params["alpha"])
    terms = [] if dc is None else [ns.multiply(dc, params["factor"])]
    for x1, x2 in ((da, b), (a, db)):
        if (x1 is da and da is None) or (x2 is db and db is None):
            continue
        y = product(_turned(ns, x1, across), _turned(ns, x2, down), **options)
        terms.append(ns.reshape(y, shape=out.shape))
    return reduce(ns.add, terms)


def _gemm_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """A product of all examples, and the sum with what they had."""
    c, a, b = inputs
    product, options = _scaled(ns, params["alpha"])
    factors = _turned(ns, a, params["transpose_a"]), _turned(ns, b, params["transpose_b"])
    if mapped[1] or mapped[2]:
        y = matmul_batch(ns, product, factors, mapped[1:], options)
        y = ns.reshape(y, shape=(y.shape[0], *c.shape[mapped[0]:]))
    else:
        y = ns.reshape(product(*factors, **options), shape=c.shape[mapped[0]:])
    return ns.add(y, ns.multiply(c, params["factor"]))


def _gemm_reference(
    torch: Any, c: Any, a: Any, b: Any, *, alpha: float, factor: float, transpose_a: bool,
    transpose_b: bool, shape: tuple[int, ...]
) -> Any:
    product = (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)
    return alpha * product.reshape(c.shape) + factor * c


def _gemm_sample(*shapes: tuple[int, ...], **params: Any) -> Sample:
    options = {"alpha": 0.5, "factor": 1.0, "transpose_a": False, "transpose_b": False,
               "shape": shapes[0]}
    return Sample(shapes, params={**options, **params})


gemm = op(
    "gemm", flops=of_gemm, **placed(_gemm_path), saves={"b": "a", "a": "b"}, complex=True,
    backward=_gemm_backward, tangent=_gemm_tangent, batch=_gemm_batch,
    samples=[_gemm_sample((3, 5), (3, 4), (4, 5)),
             _gemm_sample((3, 5), (4, 3), (5, 4), transpose_a=True, transpose_b=True, factor=-0.5),
             _gemm_sample((2, 3, 2), (2, 3, 4), (2, 4), transpose_b=True, alpha=1.0),
             _gemm_sample((3,), (4, 3), (4, 1), transpose_a=True, shape=(3, 1), factor=0.0),
             _gemm_sample((2, 3), (2, 0), (0, 3))],
    reference=_gemm_reference,
    doc="alpha * op(a) @ op(b) + factor * c, which `gtensor.linalg.gemm_into` writes over c. "
        "Parameters: alpha, factor, transpose_a, transpose_b, and the product's shape.",
)
