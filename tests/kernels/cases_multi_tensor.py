"""Cases of the kernels over many tensors: the optimizers' updates, clipping, and the loss scale.

A launch has three tensors: one that begins aligned, an empty one, and one that begins unaligned and
takes its numbers from device memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, compute, exact, normal
from ml_dtypes import finfo

import gtensor as gt
from gtensor import optim
from gtensor.backend.multi_tensor import CHUNK, LARGE, SMALL, MultiTensor
from gtensor.engine.tape.op import Op
from gtensor.ops.define.updates import update_of
from gtensor.ops.updates import clipping, loss_scale, moving_average, optimizers
from gtensor.ops.updates.casts import cast_kernel

CUT, SIZE = 37, 37 + CHUNK + 40  # where the last tensor begins; elements of all
STEPS = 3
KERNELS: list[MultiTensor] = []  # those of the cases, in the order of their wrappers


def listed(kernel: MultiTensor) -> MultiTensor:
    if kernel not in KERNELS:
        KERNELS.append(kernel)
    return kernel


def kernel_of(update: Op, states: int, params: dict[str, Any]) -> MultiTensor:
    return listed(update_of(update).kernel_of(states, params))


def kernels_text() -> str:
    """CUDA text of all kernels, each in a namespace."""
    return "\n".join(['#include "multi_tensor.cuh"', *[
        f"namespace gt_{k} {{\n{kernel.text.split(chr(10), 1)[1]}\n}}"
        for k, kernel in enumerate(KERNELS)]])


def kernel_names(ctype: str) -> list[str]:
    """Of all kernels for arrays of one type, with the rooms of both tables."""
    return [f"gt_{k}::{kernel.expression([ctype] * kernel.positions, room)}"
            for k, kernel in enumerate(KERNELS) for room in (SMALL, LARGE)]


# -- wrappers --------------------------------------------------------------------------------------


def more_of(kernel: MultiTensor) -> str:
    """The further arguments of a kernel."""
    text = kernel.text.split("rows> table", 1)[1].split(")", 1)[0]
    return text.removeprefix(",").strip()


def cases_text(kernels: Sequence[MultiTensor]) -> str:
    """CUDA text for the host, where a kernel can be called: wrappers that fill the table."""
    return "\n".join(['#include "multi_tensor.cuh"', *[
        f"namespace gt_{k} {{\n{kernel.text.split(chr(10), 1)[1]}\n{_wrapper(k, kernel)}\n}}"
        for k, kernel in enumerate(kernels)]])


def _wrapper(k: int, kernel: MultiTensor) -> str:
    arrays, numbers = range(kernel.positions), max(1, kernel.numbers)
    more = more_of(kernel)
    names = "".join(f", {part.split()[-1].lstrip('*')}" for part in more.split(",") if part)
    return "\n".join([
        "template <typename T>",
        f"__global__ void gt_case({', '.join(f'T *a{n}' for n in arrays)}, gt_index size,",
        "    gt_index cut, double *numbers, gt_index *steps, float *skip"
        f"{', ' if more else ''}{more}) {{",
        f"  gt_table<{kernel.positions}, {numbers}, 4, 2> table = {{}};",
        "  table.ticket = reinterpret_cast<unsigned *>(steps + 3);",
        "  table.skip = skip;",
        f"  for (int k = 0; k < {kernel.numbers}; ++k) table.own[0][k] = numbers[k];",
        f"  table.live[1] = numbers + {kernel.numbers};",
        "  const gt_index begin[3] = {0, cut, cut}, count[3] = {cut, 0, size - cut};",
        "  int first = 0;",
        "  for (int t = 0; t < 3; ++t) {",
        *[f"    table.at[{n}][t] = a{n} + begin[t];" for n in arrays],
        "    table.steps[t] = steps + t;",
        "    table.counts[t] = count[t];",
        "    table.first[t] = first;",
        "    table.row[t] = t == 2;",
        "    first += static_cast<int>((count[t] + gt_chunk - 1) / gt_chunk);",
        "  }",
        "  table.size = 3;",
        f"  gt_{kernel.name}<{', '.join(['T'] * kernel.positions)}, 4, 2>(table{names});",
        "}"])


def case_name(kernel: MultiTensor, ctype: str) -> str:
    return f"gt_{KERNELS.index(kernel)}::gt_case<{ctype}>"


def blocks(size: int = SIZE, cut: int = CUT) -> int:
    return -(-cut // CHUNK) - (-(size - cut) // CHUNK)


class Launch:
    """The tensors of a case, and what its kernel counts."""

    def __init__(self, executor: Any, dtype: np.dtype) -> None:
        self.executor = executor
        self.dtype = dtype
        self.steps = np.array([0, 0, 0, 0])  # and the ticket
        self.skip = np.zeros(1, np.float32)

    def __call__(
        self, kernel: MultiTensor, arrays: list[np.ndarray], rows: Sequence[tuple[float, ...]],
        *more: np.ndarray,
    ) -> None:
        numbers = np.array([*rows, *rows][:2], np.float64).reshape(-1)
        self.executor.multi(kernel, self.dtype, arrays, numbers, self.steps, self.skip, more)


# -- optimizers ------------------------------------------------------------------------------------


def _made(name: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    made = getattr(optim, name)([gt.ones(1, requires_grad=True)], **options)
    return made, made.options(made.param_groups[0])


def _optimizer(name: str, reference: Callable[..., Any], states: int, **options: Any) -> Case:
    """Steps of an optimizer's kernel equal PyTorch's; the last tensor has a rate of its own."""
    made, params = _made(reference.__name__, **options)
    kernel = kernel_of(made.update, states, params)
    update = update_of(made.update)

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        p = normal(rng, SIZE, dtype)
        gradients = [normal(rng, SIZE, dtype) for _ in range(STEPS)]
        leaves = [exact(p[:CUT]), exact(p[CUT:])]
        theirs = reference([{"params": leaves[:1]}, {"params": leaves[1:],
                                                     "lr": options["lr"] / 2}], **options)
        state = [np.zeros(SIZE, dtype) for _ in range(states)]
        launch = Launch(executor, dtype)
        rows = [update.numbers(params), update.numbers({**params, "rate": options["lr"] / 2})]
        for gradient in gradients:
            leaves[0].grad, leaves[1].grad = exact(gradient[:CUT]), exact(gradient[CUT:])
            theirs.step()
            launch(kernel, [p, gradient, *state], rows)
        assert launch.steps.tolist() == [STEPS, STEPS, STEPS, 0]
        assert_close(p, torch.cat(leaves), dtype, factor=2 * STEPS)
        before = [p.tobytes(), *[s.tobytes() for s in state]]
        launch.skip[0] = 1
        launch(kernel, [p, gradients[0], *state], rows)
        assert before == [p.tobytes(), *[s.tobytes() for s in state]]
        assert launch.steps.tolist() == [STEPS, STEPS, STEPS, 0]

    return Case(name, check)


_HUGE = _made("Adam", lr=0.1, amsgrad=True)
kernel_of(optimizers.adam, 3, _HUGE[1])


def _adam_huge(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    """Gradients whose squares do not fit: as on the CPU; the parameter moves, means are finite."""
    eps, huge = float(finfo(dtype).eps), float(finfo(dtype).max) / 2
    params = _HUGE[1]
    update = update_of(optimizers.adam)
    ours = [np.ones(SIZE, dtype), *(np.zeros(SIZE, dtype) for _ in range(3))]
    cpu = [a.copy() for a in ours]
    launch = Launch(executor, dtype)
    kernel = kernel_of(optimizers.adam, 3, params)
    for step, scale in enumerate((1.0, 1.0, -1.0, 1e-3), start=1):
        g = np.resize(np.array([huge * scale, huge**0.5 * scale, scale, 0]), SIZE).astype(dtype)
        launch(kernel, [ours[0], g, *ours[1:]], [update.numbers(params)])
        update.cpu(cpu[0], g, out=(cpu[0],), state=tuple(cpu[1:]), options=[params], rows=[0],
                   steps=[step])
    moved = np.abs(ours[0].astype(float) - 1) > 0.01
    assert np.array_equal(moved, np.arange(SIZE) % 4 != 3)
    for a, b in zip(ours, cpu, strict=True):
        assert np.isfinite(a.astype(float)).all()
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=8 * eps, atol=eps)


_LION = _made("Lion", lr=0.1, betas=(0.8, 0.9), weight_decay=0.3)
kernel_of(optimizers.lion, 1, _LION[1])


def _lion(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    p, m = normal(rng, SIZE, dtype), np.zeros(SIZE, dtype)
    wanted, mean = exact(p), exact(m)
    launch = Launch(executor, dtype)
    kernel = kernel_of(optimizers.lion, 1, _LION[1])
    for _ in range(STEPS):
        g = normal(rng, SIZE, dtype)
        g[0] = m[0] = mean[0] = 0  # where the direction has no sign
        direction = 0.8 * mean + 0.2 * exact(g)
        unsure = (direction.abs() < 0.02).numpy() & (g != 0)  # m was rounded
        g[unsure], mean[unsure] = 4, 4
        m[unsure] = 4
        wanted = wanted * (1 - 0.1 * 0.3) - 0.1 * (0.8 * mean + 0.2 * exact(g)).sign()
        mean = 0.9 * mean + 0.1 * exact(g)
        launch(kernel, [p, g, m], [update_of(optimizers.lion).numbers(_LION[1])])
    assert_close(p, wanted, dtype, factor=2 * STEPS)
    assert_close(m, mean, dtype, factor=2 * STEPS)


# -- the moving average, clipping, the loss scale --------------------------------------------------


_ONE_NUMBER = {
    moving_average.average: {"weight": 0.3}, clipping.scale: {"factor": 0.25},
    clipping.clip: {"limit": 0.5}}
for _op, _params in _ONE_NUMBER.items():
    kernel_of(_op, 0, _params)
for _kernel in (*clipping.NORMS, loss_scale.unscale_kernel, cast_kernel):
    listed(_kernel)


def _one_number(executor: Any, dtype: np.dtype, op: Op, *arrays: np.ndarray) -> None:
    """A kernel that counts nothing."""
    launch = Launch(executor, dtype)
    number = tuple(_ONE_NUMBER[op].values())
    launch(kernel_of(op, 0, _ONE_NUMBER[op]), list(arrays), [number])
    assert not launch.steps.any()


def _average(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    average, x = normal(rng, SIZE, dtype), normal(rng, SIZE, dtype)
    wanted = torch.lerp(exact(average), exact(x), 0.3)
    _one_number(executor, dtype, moving_average.average, average, x)
    assert_close(average, wanted, dtype)


def _special(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5]).astype(dtype)
    return np.concatenate([special, normal(rng, SIZE - len(special), dtype)])


def _clipping(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    g = _special(rng, dtype)
    scaled, clipped = exact(g) * 0.25, exact(g).clamp(-0.5, 0.5)
    again = g.copy()
    _one_number(executor, dtype, clipping.scale, g)
    _one_number(executor, dtype, clipping.clip, again)
    assert_close(g, scaled, dtype)
    assert_close(again, clipped, dtype)


def _norm(bad: bool) -> Callable[[Any, np.dtype, np.random.Generator], None]:
    """Sums of blocks, and the norm of these; NaN wins."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        g = normal(rng, SIZE, dtype)
        if bad:
            g[[3, 300]] = np.nan, np.inf
        for kernel, order in zip(
                clipping.NORMS, (2.0, 1.0, 3.5, np.inf), strict=True):
            parts = np.full(blocks(), 77.0)
            Launch(executor, dtype)(kernel, [g], [(order,)], parts)
            norm, factor = np.full(1, 77, compute(dtype)), np.full(1, 77.0)
            executor.raw("gradient_norm.cu", "gradient_norm", dtype, (1,), (256,),
                         [parts, len(parts), float(order), 0.5, norm, factor])
            wanted = torch.linalg.vector_norm(exact(g), order)
            assert_close(norm, wanted[None], dtype)
            assert_close(factor, (0.5 / (wanted[None] + 1e-6)), dtype)

    return check


def _unscale(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    g = normal(rng, SIZE, dtype)
    for bad in (0.0, np.inf, np.nan):
        if bad:
            g[SIZE - 1] = bad
        wanted = exact(g) / 8
        found, scale = np.zeros(1, np.float32), np.full(1, 8, np.float32)
        Launch(executor, dtype)(loss_scale.unscale_kernel, [g], [(0.0,)], scale, found)
        assert found[0] == bool(bad)
        assert_close(g, wanted, dtype)


def _cast(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    """To the same type: what is between two types is the compilers'."""
    made, x = np.full(SIZE, 77, dtype), _special(rng, dtype)
    Launch(executor, dtype)(cast_kernel, [made, x], [(0.0,)])
    np.testing.assert_array_equal(made.astype(np.float64), x.astype(np.float64))


_DECAYED = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
_SQUARES = {"lr": 0.01, "alpha": 0.9, "eps": 0.1, "weight_decay": 0.1}
CASES = [
    _optimizer("sgd", torch.optim.SGD, 0, lr=0.1, weight_decay=0.01),
    _optimizer("sgd-maximize", torch.optim.SGD, 0, lr=0.1, weight_decay=0.01, maximize=True),
    _optimizer("sgd-momentum", torch.optim.SGD, 1, lr=0.1, momentum=0.9, dampening=0.3,
               weight_decay=0.01),
    _optimizer("sgd-nesterov", torch.optim.SGD, 1, lr=0.1, momentum=0.9, nesterov=True,
               weight_decay=0.01, maximize=True),
    _optimizer("adam", torch.optim.Adam, 2, **_DECAYED),
    _optimizer("adamw", torch.optim.AdamW, 2, **_DECAYED),
    _optimizer("adamw-amsgrad", torch.optim.AdamW, 3, **_DECAYED, amsgrad=True, maximize=True),
    _optimizer("rmsprop", torch.optim.RMSprop, 1, **_SQUARES),
    _optimizer("rmsprop-momentum", torch.optim.RMSprop, 2, **_SQUARES, momentum=0.8),
    _optimizer("rmsprop-centered", torch.optim.RMSprop, 3, **_SQUARES, momentum=0.8, centered=True,
               maximize=True),
    _optimizer("adagrad", torch.optim.Adagrad, 1, lr=0.1, lr_decay=0.1, weight_decay=0.1),
    Case("adam-huge", _adam_huge), Case("lion", _lion), Case("average", _average),
    Case("clipping", _clipping), Case("norm", _norm(False)), Case("norm-nan", _norm(True)),
    Case("unscale", _unscale), Case("cast", _cast),
]
