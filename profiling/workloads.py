"""The work that is measured, in every library: chains of tiny ops, single ops, a step of an MLP.

Each is written as its library's own documentation would write it. The NumPy versions are what a
competent person writes by hand: no library, no tricks, gradients derived on paper. `xp` is NumPy or
CuPy, so the same text is the hand-written version on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np

import gtensor as gt

CHAIN = 300  # multiply-adds
WIDTH = 32  # float32 elements
LAYERS = (256, 512, 512, 10)
BATCH = 128


class Chain:
    """300 times y = y * 1.01 + 0.01 on 32 elements, and the gradient of the sum."""

    def __init__(self, device: str) -> None:
        self.x = np.random.default_rng(0).standard_normal(WIDTH).astype(np.float32)
        self.device = device
        self.steps = [(1.01, 0.01)] * CHAIN

    def reference(self) -> np.ndarray:
        """The gradient, by hand."""
        return np.full(WIDTH, 1.01**CHAIN)

    def forward(self, y: Any) -> Any:
        """The chain, in any library whose arrays have operators."""
        for a, b in self.steps:
            y = y * a + b
        return y

    def gtensor(self) -> Callable[[], Any]:
        x = gt.tensor(self.x, device=self.device, requires_grad=True)

        def run() -> Any:
            x.grad = None
            self.forward(x).sum().backward()
            return x.grad

        return run

    def torch(self) -> Callable[[], Any]:
        import torch

        x = torch.tensor(self.x, device=self.device, requires_grad=True)

        def run() -> Any:
            x.grad = None
            self.forward(x).sum().backward()
            return x.grad

        return run

    def autograd(self) -> Callable[[], Any]:
        from autograd import grad

        gradient = grad(lambda x: self.forward(x).sum())
        return lambda: gradient(self.x)

    def mygrad(self) -> Callable[[], Any]:
        """As it comes: it guards saved arrays against writes, as gtensor and PyTorch do."""
        import mygrad

        return self._mygrad(mygrad.mem_guard_on)

    def mygrad_unguarded(self) -> Callable[[], Any]:
        """Without the guard, its own advice for speed: a write to a saved array goes unnoticed."""
        import mygrad

        return self._mygrad(mygrad.mem_guard_off)

    def _mygrad(self, guard: Any) -> Callable[[], Any]:
        import mygrad

        leaves = [mygrad.tensor(v) for v in self.arrays()]
        inputs = leaves if len(leaves) > 1 else leaves[0]

        def run() -> Any:
            with guard:
                for leaf in leaves:
                    leaf.null_grad()
                self.forward(inputs).sum().backward()
                grads = [leaf.grad for leaf in leaves]
            return grads if len(grads) > 1 else grads[0]

        return run

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The inputs that get a gradient."""
        return (self.x,)

    def by_hand(self, xp: Any) -> Callable[[], Any]:
        """The forward pass alone: what the arithmetic costs."""
        x = xp.asarray(self.x)
        return lambda: self.forward(x).sum()


class TensorChain(Chain):
    """The chain with tensors in place of the numbers, each with a gradient: y = y * a + b."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.a, self.b = np.full(WIDTH, 1.01, np.float32), np.full(WIDTH, 0.01, np.float32)

    def forward(self, y: Any) -> Any:
        x, a, b = y
        for _ in range(CHAIN):
            x = x * a + b
        return x

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.x, self.a, self.b

    def reference(self) -> list[np.ndarray]:
        """The gradients of x, a and b, by hand in float64."""
        x, (a, b) = self.x.astype(np.float64), (1.01, 0.01)
        ys = [x]
        for _ in range(CHAIN):
            ys.append(ys[-1] * a + b)
        powers = a ** np.arange(CHAIN)[::-1]  # of the ops behind each one
        return [np.full(WIDTH, a**CHAIN), sum(y * p for y, p in zip(ys, powers, strict=False)),
                np.full(WIDTH, powers.sum())]

    def gtensor(self) -> Callable[[], Any]:
        leaves = [gt.tensor(v, device=self.device, requires_grad=True) for v in self.arrays()]
        return _eager(leaves, lambda: self.forward(leaves).sum())

    def torch(self) -> Callable[[], Any]:
        import torch

        leaves = [torch.tensor(v, device=self.device, requires_grad=True) for v in self.arrays()]
        return _eager(leaves, lambda: self.forward(leaves).sum())

    def autograd(self) -> Callable[[], Any]:
        from autograd import grad

        gradient = grad(lambda arrays: self.forward(arrays).sum())
        return lambda: list(gradient(self.arrays()))

    def by_hand(self, xp: Any) -> Callable[[], Any]:
        arrays = [xp.asarray(v) for v in self.arrays()]
        return lambda: self.forward(arrays).sum()


class SavingChain(Chain):
    """300 times y = sin(y * c), where c is 1.1: each sine saves its input, which backward reads.

    With `tensors` c is an array of 32 such numbers, without a gradient, and the products save it.
    """

    factor = 1.1

    def __init__(self, device: str, tensors: bool) -> None:
        super().__init__(device)
        self.tensors = tensors
        self.factors: dict[Any, Any] = {}  # by library

    def reference(self) -> np.ndarray:
        """The gradient, by hand in float64."""
        y, slope = self.x.astype(np.float64), np.ones(WIDTH)
        for _ in range(CHAIN):
            slope = slope * self.factor * np.cos(y * self.factor)
            y = np.sin(y * self.factor)
        return slope

    def forward(self, y: Any) -> Any:
        library = sys.modules[type(y).__module__.partition(".")[0]]  # that made y
        if library not in self.factors:
            self.factors[library] = self._factor(library)
        sin, c = library.sin, self.factors[library]
        for _ in range(CHAIN):
            y = sin(y * c)
        return y

    def _factor(self, library: Any) -> Any:
        if not self.tensors:
            return self.factor
        array = np.full(WIDTH, self.factor, np.float32)
        if hasattr(library, "tensor"):
            return library.tensor(array, device=self.device)
        return library.asarray(array)


# What is done to 32 values, in the words of gtensor and PyTorch alike.
SMALL_OPS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(), "reshape": lambda x: x.reshape(4, 8), "slice": lambda x: x[8:24],
}


class SmallOp:
    """One op on 32 elements, and its gradient for a given gradient of the output."""

    def __init__(self, name: str, device: str) -> None:
        rng = np.random.default_rng(0)
        self.op, self.device = SMALL_OPS[name], device
        self.x = rng.standard_normal(WIDTH).astype(np.float32)
        self.g = rng.standard_normal(np.shape(self.op(self.x))).astype(np.float32)

    def reference(self) -> np.ndarray:
        """The gradient: each element's, at its place."""
        dx, where = np.zeros(WIDTH), np.arange(WIDTH)
        picked = where if self.g.ndim == 0 else self.op(where)
        dx[picked] = self.g
        return dx

    def gtensor(self) -> Callable[[], Any]:
        return self._eager(gt)

    def torch(self) -> Callable[[], Any]:
        import torch

        return self._eager(torch)

    def _eager(self, library: Any) -> Callable[[], Any]:
        op = self.op
        x = library.tensor(self.x, device=self.device, requires_grad=True)
        g = library.tensor(self.g, device=self.device)

        def run() -> Any:
            x.grad = None
            op(x).backward(g)
            return x.grad

        return run


@dataclass(frozen=True)
class LargeOp:
    """An op of 10^6 float32 in gtensor and PyTorch, alone or with the gradients of its inputs.

    `op(functional, x, *parameters)` does it in the words of either library's `nn.functional`.
    `by_hand(g, x, *parameters)` gives the output and all gradients, in NumPy. Parameters are as
    long as a row. The targets are times of PyTorch's: `forward`, and `both` with backward.
    """

    op: Callable[..., Any]
    by_hand: Callable[..., list[np.ndarray]]
    parameters: int = 0
    forward: float = 2.0
    both: float = 2.0

    def arrays(self, shape: tuple[int, ...]) -> list[np.ndarray]:
        """The gradient of the output, x and the parameters."""
        rng = np.random.default_rng(0)
        shapes = [shape, shape] + [shape[-1:]] * self.parameters
        return [rng.standard_normal(s).astype(np.float32) for s in shapes]

    def reference(self, shape: tuple[int, ...], backward: bool) -> list[np.ndarray]:
        """What the rungs give, in float64."""
        y, *gradients = self.by_hand(*(a.astype(np.float64) for a in self.arrays(shape)))
        return gradients if backward else [y]

    def gtensor(self, shape: tuple[int, ...], backward: bool) -> Callable[[], Any]:
        """The output, or the gradients of a forward and a backward pass."""
        return self._eager(gt, shape, backward)

    def torch(self, shape: tuple[int, ...], backward: bool) -> Callable[[], Any]:
        import torch

        return self._eager(torch, shape, backward)

    def _eager(self, library: Any, shape: tuple[int, ...], backward: bool) -> Callable[[], Any]:
        g, *inputs = self.arrays(shape)
        functional, op = library.nn.functional, self.op
        leaves = [library.tensor(a, requires_grad=backward) for a in inputs]
        if not backward:
            return lambda: [op(functional, *leaves)]
        upstream = library.tensor(g)

        def run() -> Any:
            for leaf in leaves:
                leaf.grad = None
            op(functional, *leaves).backward(upstream)
            return [leaf.grad for leaf in leaves]

        return run


def softmax_by_hand(g: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """Over the last axis."""
    terms = np.exp(x - x.max(axis=-1, keepdims=True))
    y = terms / terms.sum(axis=-1, keepdims=True)
    return [y, y * (g - (g * y).sum(axis=-1, keepdims=True))]


def log_softmax_by_hand(g: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """Over the last axis."""
    y = np.log(softmax_by_hand(g, x)[0])
    return [y, g - np.exp(y) * g.sum(axis=-1, keepdims=True)]


def layer_norm_by_hand(g: np.ndarray, x: np.ndarray, *parameters: np.ndarray) -> list[np.ndarray]:
    """Over the last axis, by the default eps; without parameters, or with a weight and a bias."""
    weight, bias = parameters or (1.0, 0.0)
    deviation = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((deviation**2).mean(axis=-1, keepdims=True) + 1e-5)
    xhat, h = deviation * rstd, g * weight
    slope = (h * xhat).mean(axis=-1, keepdims=True)
    dx = rstd * (h - h.mean(axis=-1, keepdims=True) - xhat * slope)
    rows = tuple(range(x.ndim - 1))
    sums = [(g * xhat).sum(axis=rows), g.sum(axis=rows)] if parameters else []
    return [xhat * weight + bias, dx, *sums]


def gelu_by_hand(g: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """By the error function."""
    below = 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return [x * below, g * (below + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))]


def softplus_by_hand(g: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """log(1 + exp(x))."""
    return [np.logaddexp(0, x), g / (1 + np.exp(-x))]


def elu_by_hand(g: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """exp(x) - 1 below 0."""
    low = np.minimum(x, 0)
    return [np.where(x > 0, x, np.expm1(low)), g * np.exp(low)]


LARGE_OPS = {
    "softmax": LargeOp(lambda nn, x: nn.softmax(x, -1), softmax_by_hand),
    "log_softmax": LargeOp(lambda nn, x: nn.log_softmax(x, -1), log_softmax_by_hand),
    "layer_norm": LargeOp(lambda nn, x: nn.layer_norm(x, x.shape[-1:]), layer_norm_by_hand),
    "layer_norm weighted": LargeOp(
        lambda nn, x, weight, bias: nn.layer_norm(x, x.shape[-1:], weight, bias),
        layer_norm_by_hand, parameters=2),
    "gelu": LargeOp(lambda nn, x: nn.gelu(x), gelu_by_hand, forward=6.0, both=3.0),
    "softplus": LargeOp(lambda nn, x: nn.softplus(x), softplus_by_hand),
    "elu": LargeOp(lambda nn, x: nn.elu(x), elu_by_hand),
}


class Mlp:
    """Loss and gradients of all parameters, 128 rows, 256-512-512-10, relu, cross entropy."""

    def __init__(self, device: str) -> None:
        rng = np.random.default_rng(0)
        self.device = device
        self.x = rng.standard_normal((BATCH, LAYERS[0])).astype(np.float32)
        self.target = rng.integers(0, LAYERS[-1], BATCH)
        self.parameters: list[np.ndarray] = []  # weight (out, in), bias (out), layer by layer
        for inner, outer in zip(LAYERS, LAYERS[1:], strict=False):
            scale = np.sqrt(2 / inner)
            self.parameters.append((rng.standard_normal((outer, inner)) * scale).astype(np.float32))
            self.parameters.append((rng.standard_normal(outer) * 0.1).astype(np.float32))

    def flops(self) -> int:
        """Of the matrix products; the first layer's input needs no gradient."""
        products = [2 * BATCH * a * b for a, b in zip(LAYERS, LAYERS[1:], strict=False)]
        return 3 * sum(products) - products[0]

    def reference(self) -> list[np.ndarray]:
        """By hand, in float64."""
        wide = [p.astype(np.float64) for p in self.parameters]
        loss, gradients = numpy_step(np, self.x.astype(np.float64), self.target, wide)
        return [np.asarray(loss), *gradients]

    def gtensor(self) -> Callable[[], Any]:
        functional = gt.nn.functional
        x, target = (gt.tensor(v, device=self.device) for v in (self.x, self.target))
        leaves = [gt.tensor(p, device=self.device, requires_grad=True) for p in self.parameters]

        def loss() -> Any:
            w1, b1, w2, b2, w3, b3 = leaves
            h = functional.relu(functional.linear(x, w1, b1))
            h = functional.relu(functional.linear(h, w2, b2))
            return functional.cross_entropy(functional.linear(h, w3, b3), target)

        return _eager(leaves, loss, with_loss=True)

    def torch(self) -> Callable[[], Any]:
        import torch
        from torch.nn import functional

        x, target = (torch.tensor(v, device=self.device) for v in (self.x, self.target))
        leaves = [torch.tensor(p, device=self.device, requires_grad=True) for p in self.parameters]

        def loss() -> Any:
            w1, b1, w2, b2, w3, b3 = leaves
            h = functional.relu(functional.linear(x, w1, b1))
            h = functional.relu(functional.linear(h, w2, b2))
            return functional.cross_entropy(functional.linear(h, w3, b3), target)

        return _eager(leaves, loss, with_loss=True)

    def by_hand(self, xp: Any) -> Callable[[], Any]:
        x, target = xp.asarray(self.x), xp.asarray(self.target)
        parameters = [xp.asarray(p) for p in self.parameters]

        def run() -> Any:
            loss, gradients = numpy_step(xp, x, target, parameters)
            return [loss, *gradients]

        return run


def numpy_step(xp: Any, x: Any, target: Any, parameters: list[Any]) -> tuple[Any, list[Any]]:
    """Loss and gradients by hand. x (N, in), target (N) class numbers."""
    w1, b1, w2, b2, w3, b3 = parameters
    rows = xp.arange(len(x))
    h1 = xp.maximum(x @ w1.T + b1, 0)  # (N, 512)
    h2 = xp.maximum(h1 @ w2.T + b2, 0)
    z = h2 @ w3.T + b3  # (N, 10)
    shifted = z - z.max(axis=1, keepdims=True)
    e = xp.exp(shifted)
    total = e.sum(axis=1, keepdims=True)
    loss = (xp.log(total[:, 0]) - shifted[rows, target]).mean()

    dz = e / total
    dz[rows, target] -= 1
    dz /= len(x)
    dw3, db3 = dz.T @ h2, dz.sum(axis=0)
    da2 = (dz @ w3) * (h2 > 0)
    dw2, db2 = da2.T @ h1, da2.sum(axis=0)
    da1 = (da2 @ w2) * (h1 > 0)
    dw1, db1 = da1.T @ x, da1.sum(axis=0)
    return loss, [dw1, db1, dw2, db2, dw3, db3]


def values(results: Any) -> Any:
    """Tensors of any library, or a list of them, as NumPy arrays."""
    if isinstance(results, (list, tuple)):
        return [values(result) for result in results]
    if hasattr(results, "detach") and hasattr(results, "cpu"):  # PyTorch
        return results.detach().cpu().numpy()
    return results.numpy() if isinstance(results, gt.Tensor) else results


def _eager(
    leaves: list[Any], loss: Callable[[], Any], with_loss: bool = False
) -> Callable[[], Any]:
    """Loss, backward, gradients: the same words in gtensor and PyTorch."""

    def run() -> Any:
        for leaf in leaves:
            leaf.grad = None
        value = loss()
        value.backward()
        gradients = [leaf.grad for leaf in leaves]
        return [value, *gradients] if with_loss else gradients

    return run
