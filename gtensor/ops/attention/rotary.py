"""Rotary positions: pairs of features turned by an angle that grows with the position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import Device, host
from gtensor.backend.kernels import elementwise
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.take_over import apply_over
from gtensor.engine.tape.levels import Traced
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import first_tangent
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import Inputs, Mapped, behind
from gtensor.ops.define.cpu_tiles import SMALL, computed_in
from gtensor.ops.define.path_builders import placed, tiles
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step

# -- paths -----------------------------------------------------------------------------------------


_TURN = elementwise(
    "T a, T b, W cosine, W sine", "T first, T second",
    "const gt_float<T> x = gt_up(a), y = gt_up(b); "
    "first = T(x * cosine - y * sine); second = T(y * cosine + x * sine)",
    "number.cuh", name="gt_rotary")


def _rotated_gpu(parts: tuple[Array, Array], cos: Array, sin: Array) -> None:
    _TURN(*parts, cos, sin, out=parts)


def _rotated_cpu(parts: tuple[Array, Array], cos: Array, sin: Array) -> None:
    """By tiles of leading indices, in two work buffers of a tile."""
    a, b = parts  # (..., T, heads, D / 2)
    if a.size < SMALL:
        turned = a * sin
        a *= cos
        a -= b * sin
        b *= cos
        b += turned
        return
    several = a.size > settings.tile_elements
    if several:
        cos, sin = (np.broadcast_to(x, a.shape) for x in (cos, sin))
    scratch = host().workspace(min(a.size, 2 * settings.tile_elements), cos.dtype, 2)
    for key in tiles(a.shape, settings.tile_elements) if several else ((),):
        x, y, c, s = a[key], b[key], cos[key], sin[key]
        turned, product = scratch(0, x.shape), scratch(1, x.shape)
        np.multiply(x, c, out=turned)
        turned -= np.multiply(y, s, out=product)
        np.multiply(x, s, out=product)
        x[...] = turned
        product += np.multiply(y, c, out=turned)
        y[...] = product


def _rotary_path(
    device: Device, x: Array, cos: Array, sin: Array, *, heads: int, inverse: bool = False,
    out: Array | None = None,
) -> Array:
    if out is None:
        out = device.empty(x.shape, x.dtype, "rotary")
    if out is not x:
        out[...] = x
    turn(device, out, cos, -sin if inverse else sin, heads)
    return out


def turn(device: Device, x: Array, cos: Array, sin: Array, heads: int) -> None:
    """Turn the first heads of x (..., T, H, D) in its memory."""
    half = x.shape[-1] // 2
    parts = x[..., :heads, :half], x[..., :heads, half:]
    if parts[0].size:
        run = _rotated_cpu if device.type == "cpu" else _rotated_gpu
        run(parts, cos[..., None, :], sin[..., None, :])


# -- definition ------------------------------------------------------------------------------------


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    """Turned back, in the gradient's own memory."""
    turned = {**step.params, "inverse": not step.params.get("inverse", False)}
    step.give(0, ns.rotary(g, *step.saved, out=step.reuse(g), **turned))


def _batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """A batch of tables gets axes of 1, for the leading axes of x between."""
    x, *tables = inputs
    tables = [behind(ns, t, m, x.ndim - mapped[0] - 1)
              for t, m in zip(tables, mapped[1:], strict=True)]
    if not mapped[0]:
        size = next(t.shape[0] for t, m in zip(tables, mapped[1:], strict=True) if m)
        x = ns.broadcast_to(x, shape=(size, *x.shape))
    return run(x, *tables, **params)


def _reference(torch: Any, x: Any, cos: Any, sin: Any, *, heads: int, inverse: bool = False) -> Any:
    half = x.shape[-1] // 2
    cos, sin = cos[:, None, :], (-sin if inverse else sin)[:, None, :]
    a, b = x[..., :heads, :half], x[..., :heads, half:]
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([turned, x[..., heads:, :]], dim=-2)


rotary = op(
    "rotary", inputs="x cos sin", **placed(_rotary_path), constants="cos sin",
    saves={"x": "cos sin"}, backward=_backward, tangent=first_tangent("rotary"), batch=_batch,
    samples=[Sample((shape, table, table), normal, {"heads": heads, **more})
             for shape, heads, more in (((2, 3, 4, 6), 3, {}), ((3, 2, 2), 2, {"inverse": True}),
                                        ((1, 2, 5, 3, 4), 0, {}), ((0, 3, 2), 1, {}))
             for table in [(shape[-3], shape[-1] // 2)]],
    reference=_reference,
    doc="The first `heads` of x (..., T, H, D), each pair (i, i + D / 2) of features turned by the "
        "angle whose cosine and sine (T, D / 2) are given; the other heads as they are.",
)


# -- public functions ------------------------------------------------------------------------------


@takes_arrays
def rotary_embedding(
    x: Tensor, cos: Tensor, sin: Tensor, heads: int | None = None, inplace: bool = False
) -> Tensor:
    """x with its features turned by angles that grow with the position; same shape.

    Features i and i + D / 2 of a head are a pair, as in GPT-NeoX and LLaMA.

    Args:
        x: (..., T, H, D), D even: T positions, H heads.
        cos, sin: (T, D / 2), from `rotary_tables`: of x's dtype, float32 for half types.
        heads: how many of the first heads are turned; None for all. So queries and keys, side by
            side in one projection, are turned by one call, and the values behind them stay.
        inplace: write over x's memory where no other tensor and no record reads it; x is then
            consumed, and any later use of it raises ConsumedError.

    Saves the tables only.

    Source: Su et al., "RoFormer: Enhanced Transformer with rotary position embedding", 2021.

    Raises ValueError for an odd D, tables of another shape or dtype, and more heads than there are.
    """
    if x.ndim < 3 or x.shape[-1] % 2:
        raise ValueError(f"rotary_embedding was given x of shape {x.shape}; wanted (..., T, H, D) "
                         "with an even D")
    table = (x.shape[-3], x.shape[-1] // 2)
    work = computed_in(x.dtype)
    if cos.shape != table or sin.shape != table or cos.dtype != work or sin.dtype != work:
        raise ValueError(
            f"rotary_embedding was given x of shape {x.shape}, cos of shape {cos.shape} and "
            f"{cos.dtype}, and sin of shape {sin.shape} and {sin.dtype}; wanted tables of shape "
            f"{table} and {work}")
    turned = x.shape[-2] if heads is None else heads
    if not 0 <= turned <= x.shape[-2]:
        raise ValueError(f"rotary_embedding was given heads={heads} for {x.shape[-2]} heads; "
                         "wanted at most as many")
    if inplace and not isinstance(x, Traced):  # within a transform nothing is written
        return apply_over(rotary, (x, cos, sin), {"heads": turned})[0]
    return rotary(x, cos, sin, heads=turned)
