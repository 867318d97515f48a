"""Cases of activation.cuh and of the optimizers' updates, through elementwise kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kernel_cases import Case, assert_close, exact, normal, unwritten
from ml_dtypes import finfo

import gtensor as gt
from gtensor import optim
from gtensor.backend.kernels import Elementwise, elementwise
from gtensor.engine.op import Op
from gtensor.ops.build.updates import Update
from gtensor.ops.updates import optimizer_kernels

# name: (parameters, PyTorch's function, whether the gradient can also come from the output)
_ACTIVATIONS: dict[str, tuple[dict[str, float], Callable[..., torch.Tensor], bool]] = {
    "relu": ({}, F.relu, True),
    "leaky_relu": ({"slope": 0.02}, lambda x, slope: F.leaky_relu(x, slope), True),
    "elu": ({"alpha": 1.3}, lambda x, alpha: F.elu(x, alpha), True),
    "gelu": ({}, F.gelu, False),
    "gelu_tanh": ({}, lambda x: F.gelu(x, approximate="tanh"), False),
    "sigmoid": ({}, torch.sigmoid, True),
    "softplus": (
        {"beta": 1.5, "threshold": 6.0}, lambda x, beta, threshold: F.softplus(x, beta, threshold),
        True,
    ),
    "tanh": ({}, torch.tanh, True),
    "silu": ({}, F.silu, False),
}
_SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-6, -1e-6, 30.0, -30.0, 4.0, 3.9, -120.0]
_THRESHOLD = 4.0  # times softplus' beta


def _declared(parameters: dict[str, float]) -> tuple[str, str]:
    return ("".join(f", float64 {name}" for name in parameters),
            "".join(f", {name}" for name in parameters))


def _activation_kernels(name: str) -> tuple[Elementwise, Elementwise, Elementwise | None]:
    parameters, _, inverts = _ACTIVATIONS[name]
    declared, passed = _declared(parameters)
    header = "activation.cuh"
    forward = elementwise("T x" + declared, "T y", f"y = gt_{name}(x{passed})", header)
    grad = elementwise("T g, T x" + declared, "T dx", f"dx = gt_{name}_grad(g, x{passed})", header)
    from_output = None
    if inverts:
        body = f"dx = gt_{name}_grad_from_output(g, y{passed})"
        from_output = elementwise("T g, T y" + declared, "T dx", body, header)
    return forward, grad, from_output


KERNELS = {name: _activation_kernels(name) for name in _ACTIVATIONS}


def _activation(name: str, size: int) -> Case:
    parameters, reference, _ = _ACTIVATIONS[name]
    forward, gradient, from_output = KERNELS[name]
    values = list(parameters.values())

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        special = np.array(_SPECIAL).astype(dtype)
        x = np.concatenate([special, normal(rng, size, dtype, 2.0)])
        g = normal(rng, x.shape, dtype)
        y = unwritten(x.shape, dtype)
        executor.elementwise(forward, dtype, [x, *values], [y])
        wanted = reference(exact(x), *values)
        assert_close(y, wanted, dtype)

        inside = np.isfinite(x)  # at infinity PyTorch's own formulas disagree between versions
        x, g, y = x[inside], g[inside], y[inside]
        leaf = exact(x).requires_grad_()
        reference(leaf, *values).backward(exact(g))
        dx = g.copy()
        executor.elementwise(gradient, dtype, [dx, x, *values], [dx])  # in place over g
        assert_close(dx, leaf.grad, dtype)
        if from_output is not None:
            dx = unwritten(x.shape, dtype)
            executor.elementwise(from_output, dtype, [g, y, *values], [dx])
            # y was rounded: a gradient from it knows the derivative to that precision only. And at
            # softplus' threshold the output cannot tell which side the input was on.
            dx[x == _THRESHOLD] = leaf.grad.numpy()[x == _THRESHOLD]
            assert_close(dx, leaf.grad, dtype, factor=4.0)

    return Case(f"{name}-{size}", check)


STEPS = 3
OPTIMIZER: list[Elementwise] = []  # the kernels of the updates in CASES


@contextmanager
def launched_by(executor: Any, dtype: np.dtype) -> Iterator[None]:
    """Within the block elementwise kernels go to the executor: an update's own launch is tried."""
    real = Elementwise.__call__

    def call(kernel: Elementwise, *inputs: Any, out: Any) -> None:
        Elementwise.__call__ = real  # by which an executor on a GPU launches
        try:
            executor.elementwise(kernel, dtype, list(inputs),
                                 list(out) if isinstance(out, tuple) else [out])
        finally:
            Elementwise.__call__ = call

    Elementwise.__call__ = call
    try:
        yield
    finally:
        Elementwise.__call__ = real


def _kernel(update: Op, states: int, params: dict[str, Any], number: bool = False) -> None:
    """List the kernel of an update with these parameters."""
    made: Update = update.gpu.__self__
    more = {"most": 1.0} if made.limits else {}
    kernel, _ = made.kernel_of(states, number, {**params, **more})
    if kernel not in OPTIMIZER:
        OPTIMIZER.append(kernel)


_LION = {"rate": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.3}
_HUGE = optim.Adam([gt.ones(1, requires_grad=True)], lr=0.1, amsgrad=True)
_kernel(optimizer_kernels.lion, 1, _LION)
_kernel(optimizer_kernels.adam, 3, _HUGE.options(_HUGE.param_groups[0], 1))
_kernel(optimizer_kernels.average, 0, {"weight": 0.3})
_kernel(optimizer_kernels.scale, 0, {})
_kernel(optimizer_kernels.clip, 0, {"limit": 0.5}, number=True)


def _optimizer(name: str, reference: Callable[..., Any], states: int, **options: Any) -> Case:
    """Steps of an optimizer's GPU update equal PyTorch's."""
    kind = getattr(optim, reference.__name__)
    made = kind([gt.ones(1, requires_grad=True)], **options)
    group = made.param_groups[0]
    for number in (1, 2):
        _kernel(made.update, states, made.options(group, number))

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        p = normal(rng, 301, dtype)
        gradients = [normal(rng, 301, dtype) for _ in range(STEPS)]
        parameter = exact(p)
        theirs = reference([parameter], **options)
        for gradient in gradients:
            parameter.grad = exact(gradient)
            theirs.step()
        # momentum is made by the first step, which must not read it; Adam's means start from zero
        state = [unwritten(301, dtype) if kind is optim.SGD else np.zeros(301, dtype)
                 for _ in range(states)]
        with launched_by(executor, dtype):
            for number, gradient in enumerate(gradients, start=1):
                made.update.gpu(p, gradient, scratch=None, state=tuple(state), out=p,
                                **made.options(group, number))
        assert_close(p, parameter, dtype, factor=2 * STEPS)

    return Case(name, check)


def _adam_huge(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    """Gradients whose squares do not fit: as on the CPU; the parameter moves, means are finite."""
    eps, huge = float(finfo(dtype).eps), float(finfo(dtype).max) / 2
    made, options = _HUGE, _HUGE.param_groups[0]
    ours = [np.ones(4, dtype), *(np.zeros(4, dtype) for _ in range(3))]
    cpu = [a.copy() for a in ours]
    for step, scale in enumerate((1.0, 1.0, -1.0, 1e-3), start=1):
        g = np.array([huge * scale, huge**0.5 * scale, scale, 0]).astype(dtype)
        known = made.options(options, step)
        with launched_by(executor, dtype):
            made.update.gpu(ours[0], g, scratch=None, state=tuple(ours[1:]), out=ours[0], **known)
        made.update.cpu(cpu[0], g, scratch=optimizer_kernels.workspace((4,), dtype),
                        state=tuple(cpu[1:]), out=cpu[0], **known)
    assert (np.abs(ours[0].astype(float)[:3] - 1) > 0.01).all()
    for a, b in zip(ours, cpu, strict=True):
        assert np.isfinite(a.astype(float)).all()
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=8 * eps, atol=eps)


def _lion(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    p, m = normal(rng, 301, dtype), np.zeros(301, dtype)
    wanted, mean = exact(p), exact(m)
    with launched_by(executor, dtype):
        for _ in range(STEPS):
            g = normal(rng, 301, dtype)
            g[0] = m[0] = mean[0] = 0  # where the direction has no sign
            direction = 0.8 * mean + 0.2 * exact(g)
            unsure = (direction.abs() < 0.02).numpy() & (g != 0)  # m was rounded
            g[unsure], mean[unsure] = 4, 4
            m[unsure] = 4
            wanted = wanted * (1 - 0.1 * 0.3) - 0.1 * (0.8 * mean + 0.2 * exact(g)).sign()
            mean = 0.9 * mean + 0.1 * exact(g)
            optimizer_kernels.lion.gpu(p, g, scratch=None, state=(m,), out=p, **_LION)
    assert_close(p, wanted, dtype, factor=2 * STEPS)
    assert_close(m, mean, dtype, factor=2 * STEPS)


def _average(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    average, x = normal(rng, 301, dtype), normal(rng, 301, dtype)
    wanted = torch.lerp(exact(average), exact(x), 0.3)
    with launched_by(executor, dtype):
        optimizer_kernels.average.gpu(average, x, weight=0.3, out=average)
    assert_close(average, wanted, dtype)


def _clipping(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5]).astype(dtype)
    g = np.concatenate([special, normal(rng, 301, dtype)])
    scaled, clipped = exact(g) * 0.25, exact(g).clamp(-0.5, 0.5)
    again = g.copy()
    with launched_by(executor, dtype):
        optimizer_kernels.scale.gpu(g, np.full(g.shape, 0.25, dtype), out=g)
        optimizer_kernels.clip.gpu(again, 0.5, out=again)
    assert_close(g, scaled, dtype)
    assert_close(again, clipped, dtype)


_DECAYED = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
CASES = [
    *(_activation(name, 1000) for name in _ACTIVATIONS),
    _optimizer("sgd", torch.optim.SGD, 0, lr=0.1, weight_decay=0.01),
    _optimizer("sgd-maximize", torch.optim.SGD, 0, lr=0.1, weight_decay=0.01, maximize=True),
    _optimizer("sgd-momentum", torch.optim.SGD, 1, lr=0.1, momentum=0.9, dampening=0.3,
               weight_decay=0.01),
    _optimizer("sgd-nesterov", torch.optim.SGD, 1, lr=0.1, momentum=0.9, nesterov=True,
               weight_decay=0.01, maximize=True),
    _optimizer("adam", torch.optim.Adam, 2, **_DECAYED),
    _optimizer("adamw", torch.optim.AdamW, 2, **_DECAYED),
    _optimizer("adamw-amsgrad", torch.optim.AdamW, 3, **_DECAYED, amsgrad=True, maximize=True),
    Case("adam-huge", _adam_huge), Case("lion", _lion), Case("average", _average),
    Case("clipping", _clipping),
]
BODIES = [kernel for kernels in KERNELS.values() for kernel in kernels if kernel is not None]
BODIES += OPTIMIZER
