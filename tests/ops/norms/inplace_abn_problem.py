"""In-place activated batch norm on raw arrays beside float64 PyTorch batch norm and activation.

A tolerance is a dtype's base times max(1, |bias| / weight, max 1 / act'(y)): how much the inversion
of z magnifies what storing it rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as TF

from gtensor.ops.norms import inplace_abn as paths
from gtensor.testing.compare import close

EPS = 1e-5
Case = tuple[str, float]
FUNCTIONS: dict[str, Callable[[Any, float], Any]] = {
    "identity": lambda y, p: y * 1,
    "leaky_relu": TF.leaky_relu,
    "elu": TF.elu,
    "tanh": lambda y, p: torch.tanh(y),
    "sigmoid": lambda y, p: torch.sigmoid(y),
    "softplus": TF.softplus,
}
CASES: list[Case] = [
    ("identity", 1.0),
    ("leaky_relu", 0.01),
    ("leaky_relu", 3.0),
    ("elu", 1.0),
    ("elu", 0.3),
    ("elu", 2.5),
    ("tanh", 1.0),
    ("sigmoid", 1.0),
    ("softplus", 1.0),
    ("softplus", 2.5),
]
SATURATING = [
    *CASES[3:],
    ("elu", 0.7),  # float32's 0.7 is less
    ("elu", 0.1),  # and 0.1 more
    ("softplus", 0.25),
    ("softplus", 40.0),
]
DTYPES = [np.dtype(d) for d in ("float64", "float32", "float16", ml_dtypes.bfloat16)]
BASE = dict(zip(DTYPES, (1e-10, 1e-5, 2e-2, 2e-2), strict=True))


class Problem:
    """Arrays of a dtype, and what float64 PyTorch makes of these very numbers."""

    def __init__(
        self, rng: np.random.Generator, case: Case, shape: tuple[int, ...] = (6, 3, 5),
        dtype: Any = np.float64, training: bool = True, **given: Any
    ) -> None:
        self.case, self.training = case, training
        channels, self.dtype = shape[1], np.dtype(dtype)
        self.work = np.dtype(np.float32) if self.dtype.itemsize == 2 else self.dtype
        arrays: dict[str, Any] = {
            "x": rng.standard_normal(shape) * 2 + 1,
            "g": rng.standard_normal(shape),
            "weight": rng.uniform(0.3, 1.5, channels),
            "bias": rng.uniform(-1, 1, channels),
            "mean": rng.standard_normal(channels),
            "var": rng.uniform(0.5, 4, channels),
        } | given
        for name, a in arrays.items():
            kept = self.dtype if name in "xg" else self.work
            setattr(self, name, None if a is None else a.astype(kept, copy=False))
        self._solve()

    x: Any
    g: Any
    weight: Any
    bias: Any
    mean: Any
    var: Any

    def _solve(self) -> None:
        def double(a: Any) -> Any:
            return torch.tensor(np.asarray(a, np.float64))

        channels = self.x.shape[1]
        kept = (1, -1) + (1,) * (self.x.ndim - 2)
        weight, bias = (double(np.full(channels, other) if a is None else a).requires_grad_() for a,
                        other in ((self.weight, 1.0), (self.bias, 0.0)))
        x, g = double(self.x).requires_grad_(), double(self.g)
        given = [double(a) for a in (self.mean, self.var)]
        xhat = TF.batch_norm(x, *given, training=self.training, momentum=0, eps=EPS)
        y = xhat * weight.reshape(kept) + bias.reshape(kept)
        z = FUNCTIONS[self.case[0]](y, self.case[1])
        slope = torch.autograd.grad(z.sum(), y, retain_graph=True)[0]
        self.dx, self.dweight, self.dbias = (
            a.numpy() for a in torch.autograd.grad(z, (x, weight, bias), g))
        axes = (0, *range(2, x.ndim))
        var = double(self.var) if not self.training else x.detach().var(axes, correction=0)
        scale = weight.detach() / torch.sqrt(var + EPS)
        # dx may cancel: its size is that of what is summed
        self.dx_size = (g * slope * scale.reshape(kept)).abs().numpy().max(initial=0)
        self.sizes = np.stack(
            [t.abs().sum(axes).detach().numpy() for t in (g * slope, g * slope * xhat)])
        self.z = z.detach().numpy()
        with torch.no_grad():
            worst = torch.cat([bias.abs() / weight, 1 / slope.abs().reshape(-1), torch.ones(1)])
            condition = float(worst.max())
        self.base = BASE[self.dtype]
        self.tolerance = self.base * condition

    @property
    def options(self) -> dict[str, Any]:
        return {"eps": EPS, "activation": self.case[0], "parameter": self.case[1]}

    def forward(self, x: Any, out: Any = None) -> tuple[Any, Any, Any]:
        statistics = (None, None) if self.training else (self.mean, self.var)
        return paths.forward_cpu(x, self.weight, self.bias, *statistics, training=self.training,
                                 out=out, **self.options)

    def grad(self, g: Any, z: Any, mean: Any, var: Any, **extra: Any) -> tuple[Any, Any]:
        dx, *sums = paths.grad_cpu(g, z, self.weight, self.bias, mean, var, **extra,
                                   training=self.training, **self.options)
        return dx, np.stack(sums)

    def check(self, z: Any, dx: Any, sums: Any) -> None:
        """Assert that these are PyTorch's."""
        size = float(np.abs(self.z).max(initial=1))
        close("z", z, self.z, (0.0, self.base * size))
        close("dx", dx, self.dx, (0.0, self.tolerance * self.dx_size))
        close("dbias", sums[0], self.dbias, (0.0, self.tolerance * self.sizes[0]))
        size = np.maximum(self.sizes[1], 1e-2 * self.sizes[0])  # xhat may be 0 everywhere
        close("dweight", sums[1], self.dweight, (0.0, self.tolerance * size))

    def check_all(self, layout: Callable[[Any], Any] = np.copy) -> None:
        """Forward over x, backward over g, x again over z; all in arrays of the layout."""
        x, g = layout(self.x), layout(self.g)
        z, mean, var = self.forward(x, out=x)
        assert z is x and mean.dtype == var.dtype == self.work
        before = z.copy()
        dx, sums = self.grad(g, z, mean, var, out=g)
        assert dx is g and sums.dtype == self.work and sums.shape == (2, x.shape[1])
        np.testing.assert_array_equal(bits(z), bits(before), "z was written")
        self.check(z, dx, sums)
        again = paths.input_cpu(z, self.weight, self.bias, mean, var, **self.options, out=z)
        assert again is z
        deviation = float(np.sqrt(np.asarray(var, np.float64) + EPS).max(initial=0))
        # the inversion restores xhat within the tolerance; x itself was rounded
        slack = self.tolerance * deviation * max(1, float(np.abs(self.z).max(initial=0)))
        close("x", again, self.x, (0.0, slack + self.base * np.abs(self.x.astype(np.float64))))


def bits(a: Any) -> Any:
    return np.ascontiguousarray(a).view(f"u{a.itemsize}")


def strided(a: Any) -> Any:
    big = np.full([2 * n + 1 for n in a.shape], 7, a.dtype)
    view = big[(slice(1, None, 2),) * a.ndim]
    view[...] = a
    return view


def channels_last(a: Any) -> Any:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)


def reversed_(a: Any) -> Any:
    return a[::-1].copy()[::-1]
