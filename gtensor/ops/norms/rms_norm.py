"""RMS norm over trailing axes: y = x * rstd * weight, rstd = 1 / sqrt(mean(x * x) + eps).

Saved are x and one number per row (float32 for half types).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import in_dtype
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.norms import batching
from gtensor.ops.norms import row_norm_paths as paths
from gtensor.ops.norms.layer_norm import check_rows, give_all, place, written_low

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import ArrayOrTensor, Step, Values

# -- paths ---------------------------------------------------------------------------------------


def _forward(path: Path) -> Path:
    def forward(
        x: Array, weight: Array | None, *, out: Array | None = None, **params: Any
    ) -> tuple[Array, Array]:
        y, _, rstd = path(x, weight, None, out=out, centred=False, **params)
        return y, rstd

    def prepare(x: Any, weight: Any, **params: Any) -> Path | None:
        run: Any = make(x, weight, None, centred=False, **params)
        return None if run is None else lambda x, weight, **params: run(x, weight, None)[::2]

    make: Any = getattr(path, "prepare", None)
    if make is not None:
        forward.prepare = prepare  # type: ignore[attr-defined]
    return forward


def _dx(path: Path) -> Path:
    def dx(
        g: Array, x: Array, weight: Array | None, rstd: Array, *, out: Array | None = None,
        beta: float = 0.0, **params: Any,
    ) -> Array:
        return path(g, x, weight, None, rstd, out=out, beta=beta, **params)

    return dx


def _grads(path: Path) -> Path:
    def grads(
        g: Array, x: Array, weight: Array | None, rstd: Array, *, needs: paths.Needs,
        out: Array | None = None, beta: float = 0.0, **params: Any,
    ) -> paths.Grads:
        found: paths.Grads = path(
            g, x, weight, None, rstd, needs=needs, out=out, beta=beta, **params)
        return found

    def prepare(g: Any, x: Any, weight: Any, rstd: Any, **params: Any) -> Path | None:
        run: Any = make(g, x, weight, None, rstd, **params)
        return None if run is None else lambda g, x, weight, rstd, **params: run(
            g, x, weight, None, rstd, **params)

    make: Any = getattr(path, "prepare", None)
    if make is not None:
        grads.prepare = prepare  # type: ignore[attr-defined]
    return grads


# -- rules ---------------------------------------------------------------------------------------


def _axes(dims: int) -> tuple[int, ...]:
    return tuple(range(-dims, 0))


def _recorded_rstd(ns: Namespace, x: ArrayOrTensor, dims: int, eps: float) -> ArrayOrTensor:
    """rstd as a function of x."""
    return 1 / ns.sqrt(ns.mean(ns.square(x), axis=_axes(dims), keepdims=True) + eps)


def _projected(
    ns: Namespace, h: ArrayOrTensor, x: ArrayOrTensor, rstd: ArrayOrTensor, dims: int
) -> ArrayOrTensor:
    """rstd * (h - xhat * mean(h * xhat)): the derivative of xhat, which is symmetric."""
    xhat = x * rstd
    return rstd * (h - xhat * ns.mean(h * xhat, axis=_axes(dims), keepdims=True))


def _dx_recorded(
    g: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, *, dims: int, eps: float
) -> Tensor:
    h = g if weight is None else g * weight
    return _projected(recorded, h, x, _recorded_rstd(recorded, x, dims, eps), dims)


def _dweight_recorded(g: Any, x: Any, *, dims: int, eps: float) -> Any:
    xhat = x * _recorded_rstd(recorded, x, dims, eps)
    return recorded.sum(g * xhat, axis=tuple(range(-len(x.shape), -dims)))


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    x, weight, rstd = step.saved
    params = {name: step.params[name] for name in ("dims", "eps")}
    if step.needs(1) and ns is not recorded:
        needs = step.needs(0), True, False
        give_all(step, ns.rms_norm_grads(
            g, x, weight, rstd, needs=needs, **place(step, g), **params))
        return
    if step.needs(1):
        step.give(1, _dweight_recorded(g, x, **params))
    if step.needs(0):
        step.give(0, ns.rms_norm_dx(g, x, weight, rstd, **place(step, g), **params))


def _tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array | None:
    (x, weight), (dx, dweight) = primals, tangents
    rstd = _recorded_rstd(ns, x, params["dims"], params["eps"])
    change = None
    if dx is not None:
        change = _projected(ns, dx, x, rstd, params["dims"])
        change = change if weight is None else change * weight
    if dweight is not None:
        term = x * rstd * dweight
        change = term if change is None else change + term
    return in_dtype(ns, change, out.dtype)


# -- definitions -----------------------------------------------------------------------------------


def _reference(
    torch: Any, x: Any, weight: Any, *, dims: int, eps: float, dtype: None = None
) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[x.ndim - dims:], weight, eps)


rms_norm_dx = op(
    "rms_norm_dx", inputs="g x weight rstd", cpu=_dx(paths.dx_cpu), gpu=_dx(paths.dx_gpu),
    backward=None, tangent=None, composed=_dx_recorded,
    batch=batching.rows_dx, samples=None,  # rstd must be x's: tested through rms_norm
    doc="The gradient of rms_norm's input.",
)

rms_norm_grads = op(
    "rms_norm_grads", inputs="g x weight rstd", cpu=_grads(paths.grads_cpu),
    gpu=_grads(paths.grads_gpu), backward=None, tangent=None, batch=batching.rows_grads,
    samples=None,  # it returns several arrays: tested through rms_norm
    doc="The gradients of rms_norm's input and weight in one pass. Parameters as rms_norm, and "
        "needs: which of them, and False.",
)

rms_norm_op = op(
    "rms_norm", autocast="float32", inputs="x weight", cpu=_forward(paths.forward_cpu),
    gpu=_forward(paths.forward_gpu), extras="rstd",
    saves={"x": "x weight rstd", "weight": "x rstd"}, backward=_backward, tangent=_tangent,
    batch=batching.rows,
    samples=[Sample((shape, row), params={"dims": dims, "eps": 1e-5})
             for shape, row, dims in (((3, 5), (5,), 1), ((2, 3, 4), (3, 4), 2), ((6,), (6,), 1),
                                      ((2, 3, 4), None, 1), ((0, 3), (3,), 1))],
    reference=_reference,
    doc="x / sqrt(mean(x * x) + eps) * weight over the last axes. Parameters: dims (how many), "
        "eps, dtype of the output.",
)


@takes_arrays
def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Each row over the last axes divided by its root mean square, times weight; same shape.

    Args:
        input: (..., *normalized_shape).
        normalized_shape: the sizes of the axes that make a row.
        weight: of normalized_shape, or None for 1.
        eps: added to the mean of the squares; None for the machine epsilon of its dtype, or of
            float32 for half types, as in PyTorch.

    Source: Zhang and Sennrich, "Root mean square layer normalization", 2019.
    """
    row = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    return rms_norm_op(input, weight, **_params(input, row, weight, eps))


def rms_norm_for_products(
    input: Tensor, normalized_shape: tuple[int, ...], weight: Tensor | None, eps: float | None
) -> Tensor:
    """As `rms_norm`; see `written_low`."""
    return written_low(rms_norm_op, input, weight, **_params(input, normalized_shape, weight, eps))


def _params(
    input: Tensor, row: tuple[int, ...], weight: Tensor | None, eps: float | None
) -> Params:
    """The op's parameters. Raises as `check_rows`."""
    check_rows("rms_norm", input, row, weight=weight)
    added = np.finfo(computed_in(input.dtype)).eps if eps is None else eps
    return {"dims": len(row), "eps": float(added)}
