"""Cases of bn_act.cu and bn_act_from_x.cu: batch norm + activation, in place and from x.

References are formulas in float64. What backward makes of z is compared with the formulas at the
very z that was stored, so that its rounding is no matter of the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
from kernel_cases import Case, assert_close, assert_equal, compute, exact, normal, unwritten

from gtensor.backend.kernels import ACTIVATIONS as CODES
from gtensor.backend.kernels import NULL

EPS = 1e-5
NOTHING = NULL, NULL  # in place of the sums
GIVEN = [NULL, 0]  # in place of partial results: there are complete ones
STILL = [NULL, NULL, NULL, 0.0, 0.0]  # in place of running averages
FROM_Z, FROM_X = "bn_act.cu", "bn_act_from_x.cu"
PARAMETERS = {"leaky_relu": 0.01, "elu": 0.7, "softplus": 1.5}
FORWARD: dict[str, Callable[[Any], Any]] = {
    "identity": lambda y: y, "relu": torch.relu, "leaky_relu": lambda y: F.leaky_relu(y, 0.01),
    "elu": lambda y: F.elu(y, 0.7), "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"), "sigmoid": torch.sigmoid,
    "softplus": lambda y: F.softplus(y, 1.5), "tanh": torch.tanh, "silu": F.silu,
}
INVERSE: dict[str, Callable[[Any], Any]] = {
    "identity": lambda z: z,
    "leaky_relu": lambda z: torch.where(z > 0, z, z / 0.01),
    "elu": lambda z: torch.where(z > 0, z, torch.log1p(z / 0.7)),
    "sigmoid": torch.logit, "tanh": torch.atanh,
    "softplus": lambda z: torch.where(z * 1.5 > 20, z, torch.log(torch.expm1(z * 1.5)) / 1.5),
}
SLOPE: dict[str, Callable[[Any], Any]] = {  # act'(y) from z
    "identity": torch.ones_like,
    "leaky_relu": lambda z: torch.where(z > 0, torch.ones_like(z), 0.01),
    "elu": lambda z: torch.where(z > 0, 1.0, z + 0.7), "sigmoid": lambda z: z * (1 - z),
    "tanh": lambda z: 1 - z * z,
    "softplus": lambda z: torch.where(z * 1.5 > 20, 1.0, -torch.expm1(-z * 1.5)),
}
RANGE = {"elu": (-0.7, np.inf), "sigmoid": (0, 1), "tanh": (-1, 1), "softplus": (0, np.inf)}


@dataclass(frozen=True)
class Layout:
    """(n, c, s) elements and how they are launched over; a tile means that channels come last."""

    n: int
    c: int
    s: int = 1
    parts: int = 1
    block: int = 32
    tile: int = 0

    def __str__(self) -> str:
        sizes = "x".join(map(str, (self.n, self.c, self.s)))
        return f"{'last' if self.tile else 'first'}-{sizes}-parts{self.parts}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.c) if self.tile else (self.n, self.c, self.s)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.n, self.c, self.tile or self.s

    @property
    def columns(self) -> int:
        return -(-self.c // self.tile) if self.tile else self.c

    def launch(
        self, executor: Any, file: str, name: str, dtype: np.dtype, args: list[Any]
    ) -> None:
        executor.raw(file, f"bn_act_{name}{'_last' if self.tile else ''}", dtype,
                     (self.columns, self.parts), (self.block,), args)

    def on_chip(
        self, executor: Any, name: str, dtype: np.dtype, arrays: int, args: list[Any]
    ) -> None:
        nbytes = arrays * self.n * self.s * dtype.itemsize
        executor.raw(FROM_Z, f"bn_act_{name}_on_chip", dtype, (self.c,), (self.block,), args,
                     shared_mem=nbytes)

    def workspace(self, numbers: int, dtype: np.dtype) -> list[Any]:
        if self.parts == 1:
            return [NULL, NULL]
        return [unwritten((self.parts, self.c, numbers), dtype), np.zeros(self.columns, np.uint32)]

    def wide(self, a: Any) -> Any:
        """Numbers of the channels beside arrays of this shape, in float64."""
        return None if a is NULL else exact(a).reshape(1, -1, *(1,) * (len(self.shape) - 2))

    def sums(self, a: torch.Tensor) -> torch.Tensor:
        return a.transpose(0, 1).flatten(1).sum(1)


class Setting:
    """Random arrays of a layout, the statistics' dtype, and formulas over them."""

    def __init__(
        self, layout: Layout, activation: str, dtype: np.dtype, rng: np.random.Generator,
        affine: bool = True, scale: float = 1.0, absolute: bool = False,
    ) -> None:
        self.layout, self.activation, self.dtype = layout, activation, dtype
        self.work = compute(dtype)
        self.x = (normal(rng, layout.shape, dtype, 1.5) + np.asarray(2).astype(dtype)).astype(dtype)
        self.g = normal(rng, layout.shape, dtype)
        self.weight: Any = NULL
        self.bias: Any = NULL
        if affine:
            self.weight = (rng.uniform(0.5, 2.0, layout.c) * scale).astype(self.work)
            self.bias = normal(rng, layout.c, self.work)
        self.sign = rng.choice([-1.0, 1.0], layout.c) if absolute else np.ones(layout.c)
        if absolute:
            self.weight *= self.sign.astype(self.work)
        self.absolute = absolute
        self.mean = unwritten(layout.c, self.work)
        self.var = unwritten(layout.c, self.work)
        self.options = [EPS, CODES[activation], PARAMETERS.get(activation, 0.0), int(absolute)]

    @property
    def affine(self) -> list[Any]:
        return [self.weight, self.bias]

    def statistics(self, executor: Any) -> None:
        self.layout.launch(executor, FROM_Z, "statistics", self.dtype, [
            self.x, self.mean, self.var, *self.layout.workspace(4, self.work), *self.layout.sizes])

    def check_statistics(self) -> None:
        x = exact(self.x).transpose(0, 1).flatten(1)
        if x.numel() == 0:  # 0, as on the CPU
            x = torch.zeros(self.layout.c, 1)
        assert_close(self.mean, x.mean(1), self.work)
        assert_close(self.var, x.var(1, correction=0), self.work)

    def averages(self, rng: np.random.Generator) -> list[Any]:
        """Arguments for running averages, which `check_averages` knows."""
        self.before = normal(rng, (2, self.layout.c), self.work)
        self.running = [*self.before.copy(), np.array(3)]
        return [*self.running, 0.25, 1.5]

    def check_averages(self) -> None:
        now = exact(self.mean), 1.5 * exact(self.var)
        for moved, before, target in zip(self.running, self.before, now, strict=False):
            assert_close(moved, exact(before) + 0.25 * (target - exact(before)), self.work)
        assert_equal(self.running[2], exact(np.array(4)))

    def normal_terms(self) -> tuple[Any, Any, Any, Any]:
        """mean, deviation, weight, bias: those that kernels were given, in float64."""
        wide = self.layout.wide
        weight, bias = (wide(a) for a in self.affine)
        if self.absolute:
            weight = weight.abs() + EPS
        return (wide(self.mean), torch.sqrt(wide(self.var) + EPS),
                1.0 if weight is None else weight, 0.0 if bias is None else bias)

    def forward(self) -> torch.Tensor:
        mean, deviation, weight, bias = self.normal_terms()
        return FORWARD[self.activation]((exact(self.x) - mean) / deviation * weight + bias)

    def terms(self, z: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """xhat and dy from z."""
        _, _, weight, bias = self.normal_terms()
        stored = exact(z)
        xhat = (INVERSE[self.activation](stored) - bias) / weight
        return xhat, exact(self.g) * SLOPE[self.activation](stored)

    def check_sums(self, given: np.ndarray, xhat: torch.Tensor, dy: torch.Tensor) -> None:
        """Relative to the sum of what is added up, without signs; xhat is no better than y is."""
        _, _, weight, bias = self.normal_terms()
        worst = xhat.abs() + torch.as_tensor(bias / weight).abs()
        for row, addends, sizes in zip(given, (dy, dy * xhat), (dy, dy * worst), strict=True):
            size = self.layout.sums(sizes.abs()) + 1e-30
            assert_close(row / size.numpy(), self.layout.sums(addends) / size, self.work, 8.0)

    def dx(
        self, xhat: torch.Tensor, dy: torch.Tensor, sums: Any, count: float
    ) -> torch.Tensor:
        """From the sums that the kernel was given; without them where it was given none."""
        _, deviation, weight, _ = self.normal_terms()
        if sums is not NOTHING:
            low, tilt = (self.layout.wide(row / max(1, count)) for row in sums.astype(np.float64))
            dy = dy - low - xhat * tilt
        return dy * (weight / deviation)


def _in_place(
    layout: Layout, activation: str = "leaky_relu", affine: bool = True, training: bool = True,
    absolute: bool = False,
) -> Case:
    """All phases from z, each over its input: statistics, z over x, sums, dx over g, x over z."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        s = Setting(layout, activation, dtype, rng, affine, absolute=absolute)
        s.statistics(executor)
        s.check_statistics()
        z = s.x.copy()
        layout.launch(executor, FROM_Z, "forward", dtype, [
            z, s.mean, s.var, *s.affine, z, *layout.sizes, *s.options, 1, *GIVEN, *STILL])
        assert_close(z, s.forward(), dtype, factor=4.0)

        xhat, dy = s.terms(z)
        sums = unwritten((2, layout.c), s.work)
        layout.launch(executor, FROM_Z, "reduce", dtype, [
            s.g, z, s.mean, s.var, *s.affine, *sums, *layout.workspace(2, s.work), *layout.sizes,
            *s.options])
        s.check_sums(sums, xhat, dy)
        dx, given = s.g.copy(), sums if training else NOTHING
        count = 2.5 * layout.n * layout.s  # of several replicas, say
        layout.launch(executor, FROM_Z, "backward", dtype, [
            dx, z, s.mean, s.var, *s.affine, *given, dx, *layout.sizes, *s.options, count,
            *GIVEN])
        assert_close(dx, s.dx(xhat, dy, given, count), dtype, factor=8.0)

        mean, deviation, _, _ = s.normal_terms()
        layout.launch(executor, FROM_Z, "input", dtype, [
            z, s.mean, s.var, *s.affine, z, *layout.sizes, *s.options])
        assert_close(z, xhat * deviation + mean, dtype, factor=8.0)

    more = [*([] if affine else ["plain"]), *([] if training else ["fixed"]),
            *(["absolute"] if absolute else [])]
    return Case("-".join(["bn_act", activation, str(layout), *more]), check)


def _in_two_launches(layout: Layout, file: str, absolute: bool = False) -> Case:
    """The second launch of a direction collects what the blocks of the first one have found."""
    of_z = file == FROM_Z

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        s = Setting(layout, "leaky_relu", dtype, rng, absolute=absolute)
        z, room = s.x.copy(), (layout.parts, layout.c)
        partials = unwritten((*room, 4), s.work)
        layout.launch(executor, FROM_Z, "statistics", dtype, [
            s.x, s.mean, s.var, partials, NULL, *layout.sizes])
        layout.launch(executor, FROM_Z, "forward", dtype, [
            z, s.mean, s.var, *s.affine, z, *layout.sizes, *s.options, int(of_z), partials,
            layout.parts, *s.averages(rng)])
        s.check_statistics()
        s.check_averages()
        assert_close(z, s.forward(), dtype, factor=4.0)
        saved, options = (z, s.options) if of_z else (s.x, s.options[:3])
        name = "" if of_z else "_from_x"
        arrays, sums = [s.g, saved, s.mean, s.var, *s.affine], unwritten((2, layout.c), s.work)
        layout.launch(executor, file, f"reduce{name}", dtype, [
            *arrays, *sums, *layout.workspace(2, s.work), *layout.sizes, *options])
        count, dx = float(layout.n * layout.s), unwritten(layout.shape, dtype)
        layout.launch(executor, file, f"backward{name}", dtype, [
            *arrays, *sums, dx, *layout.sizes, *options, count, *GIVEN])
        again, results = unwritten((*room, 2), s.work), (unwritten(sums.shape, s.work), dx.copy())
        layout.launch(executor, file, f"reduce{name}", dtype, [
            *arrays, *results[0], again, NULL, *layout.sizes, *options])
        layout.launch(executor, file, f"backward{name}", dtype, [
            *arrays, *results[0], results[1], *layout.sizes, *options, count, again, layout.parts])
        sums[1] *= s.sign.astype(s.work)
        assert_close(results[0], exact(sums), s.work)
        assert_close(results[1], exact(dx), dtype)
        layout.launch(executor, file, f"backward{name}", dtype, [
            *arrays, *results[0], results[1], *layout.sizes, *options, 0.0, again, layout.parts])
        layout.launch(executor, file, f"backward{name}", dtype, [
            *arrays, *NOTHING, dx, *layout.sizes, *options, count, *GIVEN])
        assert_close(results[1], exact(dx), dtype)

    more = ["absolute"] if absolute else []
    return Case("-".join(["bn_act-two", file, str(layout), *more]), check)


def _on_chip(
    layout: Layout, activation: str, affine: bool = True, training: bool = True,
    absolute: bool = False,
) -> Case:
    """The two kernels that do all with one launch."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        s = Setting(layout, activation, dtype, rng, affine, absolute=absolute)
        z = s.x.copy()
        layout.on_chip(executor, "forward", dtype, 1, [
            z, s.mean, s.var, *s.affine, z, *layout.sizes, *s.options, 1, *s.averages(rng)])
        s.check_statistics()
        s.check_averages()
        assert_close(z, s.forward(), dtype, factor=4.0)
        xhat, dy = s.terms(z)
        sums, dx = unwritten((2, layout.c), s.work), s.g.copy()
        layout.on_chip(executor, "backward", dtype, 2, [
            dx, z, s.mean, s.var, *s.affine, *sums, dx, *layout.sizes, *s.options, int(training)])
        sums[1] *= s.sign.astype(s.work)
        s.check_sums(sums, xhat, dy)
        wanted = s.dx(xhat, dy, sums if training else NOTHING, layout.n * layout.s)
        assert_close(dx, wanted, dtype, factor=8.0)

    more = [*([] if affine else ["plain"]), *([] if training else ["fixed"]),
            *(["absolute"] if absolute else [])]
    return Case("-".join(["bn_act-chip", activation, str(layout), *more]), check)


def _from_x(layout: Layout, activation: str, affine: bool = True, training: bool = True) -> Case:
    """Out of place: forward without a clamp, sums and dx from x, against PyTorch's gradients."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        s = Setting(layout, activation, dtype, rng, affine)
        s.statistics(executor)
        z = unwritten(layout.shape, dtype)
        layout.launch(executor, FROM_Z, "forward", dtype, [
            s.x, s.mean, s.var, *s.affine, z, *layout.sizes, *s.options, 0,
            *GIVEN, *STILL])
        assert_close(z, s.forward(), dtype, factor=4.0)

        mean, deviation, weight, bias = s.normal_terms()
        xhat = (exact(s.x) - mean) / deviation
        y = (xhat * weight + bias).requires_grad_()
        FORWARD[activation](y).backward(exact(s.g))
        assert y.grad is not None
        sums = unwritten((2, layout.c), s.work)
        layout.launch(executor, FROM_X, "reduce_from_x", dtype, [
            s.g, s.x, s.mean, s.var, *s.affine, *sums, *layout.workspace(2, s.work), *layout.sizes,
            *s.options[:3]])
        s.check_sums(sums, xhat, y.grad)
        dx, given, count = s.x.copy(), sums if training else NOTHING, layout.n * layout.s
        layout.launch(executor, FROM_X, "backward_from_x", dtype, [
            s.g, dx, s.mean, s.var, *s.affine, *given, dx, *layout.sizes, *s.options[:3],
            float(count), *GIVEN])
        assert_close(dx, s.dx(xhat, y.grad, given, count), dtype, factor=8.0)

    more = [*([] if affine else ["plain"]), *([] if training else ["fixed"])]
    return Case("-".join(["bn_act-from_x", activation, str(layout), *more]), check)


def _saturated(layout: Layout, activation: str) -> Case:
    """z stays inside the open range, so what is made of it is finite."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        s = Setting(layout, activation, dtype, rng, scale=2000.0)
        s.statistics(executor)
        z = s.x.copy()
        layout.launch(executor, FROM_Z, "forward", dtype, [
            z, s.mean, s.var, *s.affine, z, *layout.sizes, *s.options, 1, *GIVEN, *STILL])
        low, high = RANGE[activation]
        stored = z.astype(np.float64)
        assert (stored > low).all() and (stored < high).all()
        if high == 1:
            one = np.asarray(1).astype(dtype)
            assert (z == np.nextafter(one, np.zeros_like(one))).any()
        if low == 0:  # the smallest normal number
            smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
            assert (stored == smallest).any()
        sums, dx = unwritten((2, layout.c), s.work), s.g.copy()
        arrays = [s.mean, s.var, *s.affine]
        layout.launch(executor, FROM_Z, "reduce", dtype, [
            s.g, z, *arrays, *sums, *layout.workspace(2, s.work), *layout.sizes, *s.options])
        layout.launch(executor, FROM_Z, "backward", dtype, [
            dx, z, *arrays, *sums, dx, *layout.sizes, *s.options, float(layout.n * layout.s),
            *GIVEN])
        x = unwritten(layout.shape, dtype)
        layout.launch(executor, FROM_Z, "input", dtype, [
            z, *arrays, x, *layout.sizes, *s.options])
        for made in (sums, dx, x):
            assert np.isfinite(made.astype(np.float64)).all()

    return Case(f"bn_act-saturated-{activation}-{layout}", check)


def _huge_mean(layout: Layout) -> Case:
    """|mean| / deviation = 1e4; channels last the first value is far off: no shift could help."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        s = Setting(layout, "identity", dtype, rng)
        s.x = (rng.standard_normal(layout.shape) + 1e4).astype(dtype)
        if layout.tile:
            s.x[0, 0] = 0
        s.statistics(executor)
        x = exact(s.x).transpose(0, 1).flatten(1)
        wanted = x.var(1, correction=0).numpy()
        np.testing.assert_allclose(s.var, wanted, rtol=1e-5)
        np.testing.assert_allclose(s.mean, x.mean(1).numpy(), rtol=1e-6)

    return Case(f"bn_act-huge-mean-{layout}", check, ("float32", "float64"))


def _not_a_number(layout: Layout) -> Case:
    """NaN stays in its channel, and passes the clamp."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        s = Setting(layout, "tanh", dtype, rng)
        s.x[-1, 1] = np.nan
        s.statistics(executor)
        z = unwritten(layout.shape, dtype)
        layout.launch(executor, FROM_Z, "forward", dtype, [
            s.x, s.mean, s.var, *s.affine, z, *layout.sizes, *s.options, 1, *GIVEN, *STILL])
        bad = np.isnan(z.astype(np.float64)).swapaxes(0, 1).reshape(layout.c, -1)
        assert bad[1].all() and bad.sum() == bad[1].size

    return Case(f"bn_act-nan-{layout}", check)


ODD, WIDE = Layout(3, 2, 7, block=32), Layout(2, 2, 48, parts=2, block=32)
LAST, LAST_WIDE = Layout(9, 5, tile=4), Layout(21, 16, tile=8, parts=3)
LAYOUTS = [
    ODD, WIDE, LAST, LAST_WIDE, Layout(1, 1), Layout(1, 1, tile=1), Layout(0, 2, 3),
    Layout(0, 2, tile=2), Layout(5, 1, 61, parts=4, block=64), Layout(2, 3, 528, block=64),
    Layout(3, 2, 50, parts=7), Layout(150, 3, tile=4, parts=5, block=64),
    Layout(40, 24, tile=16, block=64), Layout(70, 64, tile=32, parts=2, block=64),
]
"""Rows with and without whole packs of 16 bytes, one part and several, more parts than steps."""

CASES = [
    *(_in_place(layout) for layout in LAYOUTS),
    *(_in_two_launches(layout, file) for layout in LAYOUTS if layout.n
      for file in (FROM_Z, FROM_X)),
    _in_two_launches(ODD, FROM_Z, absolute=True), _in_two_launches(LAST_WIDE, FROM_Z, True),
    *(_in_place(layout, name) for name in INVERSE if name != "leaky_relu"
      for layout in (ODD, WIDE, LAST, LAST_WIDE)),
    *(_in_place(layout, "elu", affine=False) for layout in (ODD, LAST_WIDE)),
    *(_in_place(layout, "tanh", training=False) for layout in (WIDE, LAST)),
    *(_on_chip(layout, name) for name in INVERSE for layout in (ODD, Layout(2, 2, 48))),
    *(_on_chip(Layout(3, 2, 528, block=64), name) for name in ("identity", "leaky_relu")),
    *(_in_place(layout, absolute=True) for layout in (ODD, LAST_WIDE)),
    _on_chip(ODD, "leaky_relu", absolute=True), _on_chip(ODD, "tanh", absolute=True),
    _on_chip(ODD, "leaky_relu", affine=False), _on_chip(ODD, "leaky_relu", training=False),
    *(_from_x(layout, name) for name in FORWARD for layout in (ODD, LAST_WIDE)),
    *(_from_x(layout, "silu") for layout in (WIDE, LAST, Layout(1, 1), Layout(2, 3, 528))),
    _from_x(WIDE, "gelu", affine=False), _from_x(LAST, "relu", training=False),
    *(_saturated(layout, name) for name in RANGE for layout in (WIDE, LAST)),
    _huge_mean(Layout(4, 2, 300, parts=2)), _huge_mean(Layout(600, 3, tile=4, block=64)),
    _not_a_number(ODD), _not_a_number(LAST_WIDE),
]
