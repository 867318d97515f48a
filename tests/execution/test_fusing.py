"""Fused elementwise calls: the same bits as unfused and as eager, in fewer calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.tape.op import registry
from gtensor.execution.steps.listing import listed
from gtensor.execution.steps.pieces import piece_of
from gtensor.execution.steps.recorder import Call

UNARY = ("exp", "tanh", "sin", "log1p", "sqrt", "abs", "negative", "square", "reciprocal",
         "expm1", "sign", "floor", "isfinite", "logical_not")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "equal", "hypot")
SMOOTH = ("gelu", "silu", "sigmoid", "softplus", "elu", "leaky_relu", "relu", "mish", "hardswish")
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (64,), (3, 5), (3, 1), (5,), (0, 4), (2, 3, 5)]
LARGE: list[tuple[int, ...]] = [(40_000,), (200, 301), (301,), (200, 1), ()]


def bits(x: Any) -> bytes:
    array = x.numpy()
    return str((array.shape, array.dtype)).encode() + np.ascontiguousarray(array).tobytes()


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> gt.Tensor:
    """A tensor, now and then a strided view."""
    values = rng.standard_normal((*shape[:-1], 2 * shape[-1]) if shape else ()) * 2
    if dtype == "bool":
        values = values > 0
    if shape and rng.random() < 0.3:
        return gt.asarray(np.asarray(values, dtype))[..., ::2]
    dense = np.ascontiguousarray(values[..., ::2]) if shape else values
    return gt.asarray(np.asarray(dense, dtype))


def program(seed: int, shapes: list[tuple[int, ...]], steps: int) -> tuple[Callable[..., Any], Any]:
    """A random function of tensors, with gradients, and a function that draws its arguments."""
    rng = np.random.default_rng(seed)
    one = rng.integers(len(shapes))
    kinds = [(shapes[one if rng.random() < 0.5 else rng.integers(len(shapes))],
              str(rng.choice(["float32"] * 6 + ["float64", "float16"]))) for _ in range(4)]
    plan = [(rng.choice(["unary", "binary", "binary", "number", "smooth", "where", "sum", "view"]),
             rng.integers(1 << 30, size=4)) for _ in range(steps)]

    def function(*given: gt.Tensor) -> Any:
        for x in given[:3]:
            x.grad = None
        known = [*given]
        for kind, r in plan:
            x, y = known[r[0] % len(known)], known[r[1] % len(known)]
            try:
                known.append(step(kind, x, y, r))
            except (TypeError, ValueError):  # shapes that do not broadcast, dtypes that are refused
                continue
        floats = [x for x in known[len(given):] if x.dtype.kind == "f"]
        if floats:
            total = sum([x.astype("float32").sum() for x in floats[-4:]], start=gt.zeros(()))
            if total.requires_grad:
                total.backward()
        return known[len(given):][-6:]

    def step(kind: str, x: gt.Tensor, y: gt.Tensor, r: Any) -> gt.Tensor:
        if kind == "unary":
            return getattr(gt, UNARY[r[2] % len(UNARY)])(x)
        if kind == "binary":
            return getattr(gt, BINARY[r[2] % len(BINARY)])(x, y)
        if kind == "number":
            number = [0.1, 3, -2.5, 0.0, -0.0, 1, 1.0, 0.5, True][r[3] % 9]
            return [x * number, x + number, number - x, x / (number or 7), gt.maximum(x, number),
                    x > number][r[2] % 6]
        if kind == "smooth":
            return getattr(gt.nn.functional, SMOOTH[r[2] % len(SMOOTH)])(x)
        if kind == "where":
            return gt.where(x > 0, y, 0.0 if r[2] % 2 else x)
        if kind == "sum":
            return x.sum(axis=-1, keepdims=True) if x.ndim else x.sum()
        return x.reshape((-1,)) if r[2] % 2 else gt.permute_dims(x, tuple(range(x.ndim))[::-1])

    def arguments(draw: int) -> list[gt.Tensor]:
        rng = np.random.default_rng(draw)
        found = [drawn(rng, *kind) for kind in kinds]
        for x in found[:3]:
            x.requires_grad_()
        return found

    return function, arguments


def compared(
    function: Any, arguments: Any, fuse: bool | str, draws: int = 4
) -> tuple[Any, list[str]]:
    """The captured function, and what in its replays differs from eager calls."""
    with np.errstate(all="ignore"):
        return _compared(function, arguments, fuse, draws)


def _compared(
    function: Any, arguments: Any, fuse: bool | str, draws: int
) -> tuple[Any, list[str]]:
    step = gt.capture(function, fuse=fuse)
    wrong: list[str] = []
    given, same = arguments(0), arguments(0)
    data = [arguments(draw) for draw in range(draws)]  # new leaves have a step recorded anew
    for draw in range(draws):
        for mine in (given, same):
            for x, new in zip(mine, data[draw], strict=True):
                x.detach()[...] = new.detach()
        found, wanted = step(*given), function(*same)
        if isinstance(found, gt.Tensor):
            found, wanted = [found], [wanted]
        for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
            if bits(x) != bits(y):
                wrong.append(f"draw {draw}: result {i}")
        for i, (x, y) in enumerate(zip(given, same, strict=True)):
            if bits(x) != bits(y):
                wrong.append(f"draw {draw}: argument {i}")
            if (x.grad is None) is not (y.grad is None) or (
                    x.grad is not None and bits(x.grad) != bits(y.grad)):
                wrong.append(f"draw {draw}: gradient {i}")
    assert f"{draws - 2} replays" in step.report(), step.report()
    return step, wrong


@pytest.mark.parametrize("seed", range(16))
def test_random_programs_have_the_same_bits(seed: int) -> None:
    function, arguments = program(seed, SHAPES if seed % 4 else LARGE, 14)
    for fuse in (False, True):
        step, wrong = compared(function, arguments, fuse)
        assert not wrong, f"fuse={fuse}: {wrong}\n{step.text()}"


# -- every op that is a formula or a function of NumPy's, as producer and consumer -----------------

APART = {  # for integers, or with exponents that vary; the last three are no primitives of formulas
    "power", "pow_grad", "pow_grad_exponent", "floor_divide", "remainder", "remainder_grad",
    "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_invert", "bitwise_left_shift", "bitwise_right_shift"}


def elementwise() -> list[str]:
    """The ops that have an elementwise path of one of the known kinds."""
    return [name for name, op in registry.items() if name not in APART and op.samples and (
        hasattr(op.cpu, "made") or hasattr(op.cpu, "plain")) and any(
            len({*s.shapes}) == 1 and None not in s.shapes for s in op.samples)]


def pairs(shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """A step of all these ops, each of the result of another one, and its arguments."""
    names = elementwise()
    order = np.random.default_rng(len(shape)).permutation(len(names))

    def applied(name: str, *given: gt.Tensor) -> gt.Tensor:
        op = registry[name]
        sample = next(s for s in op.samples if len({*s.shapes}) == 1 and None not in s.shapes)
        return op(*given[:len(op.input_names)], **dict(sample.params or {}))

    def function(*given: gt.Tensor) -> list[gt.Tensor]:
        found = []
        for i, name in enumerate(names):
            first = applied(name, *given)
            if first.dtype == gt.bool:
                first = gt.where(first, given[0], given[1])
            found.append(applied(names[order[i]], first, *given[1:]))
        return found

    def arguments(draw: int) -> list[gt.Tensor]:
        rng = np.random.default_rng(draw)
        return [gt.asarray(np.asarray(rng.uniform(0.1, 0.9, shape), dtype)) for _ in range(5)]

    return function, arguments


@pytest.mark.parametrize(("shape", "dtype"), [((37,), "float32"), ((3, 7), "float64"),
                                              ((20_001,), "float32"), ((), "float32")])
def test_all_formulas_fuse_with_the_same_bits(shape: tuple[int, ...], dtype: str) -> None:
    function, arguments = pairs(shape, dtype)
    if np.prod(shape) > 10_000:  # where kernels in C take part, which are not fused
        assert not compared(function, arguments, True)[1]
    with gt.settings.override(compiled=0):
        step, wrong = compared(function, arguments, True)
        assert not wrong
        apart = [call.name for call in step.programs[0].recording.calls if isinstance(call, Call)
                 and piece_of(call, listed(step.programs[0].recording, ())) is None]
    assert {*apart} <= {"ceil", "trunc", "positive", "conj", "nextafter", "logaddexp", "atan2",
                        "isnan", "isinf", "signbit", "log2", "log10"}, {*apart}


# -- calls -----------------------------------------------------------------------------------------


def chain(x: gt.Tensor) -> gt.Tensor:
    x.grad = None
    y = x
    for _ in range(300):
        y = y * 1.01 + 0.01
    y.sum().backward()
    return y


def test_a_chain_is_one_call() -> None:
    step = gt.capture(chain)
    x = gt.ones((64,), requires_grad=True)
    for _ in range(3):
        step(x)
    assert step.text().count("fused") == 1
    assert "multiply" not in step.text()


def test_a_write_follows_what_read_the_memory_before() -> None:
    """The product reads the buffer before it is written, also where its group runs after that."""
    def function(x: gt.Tensor, buffer: gt.Tensor) -> gt.Tensor:
        product = x * buffer
        buffer[...] = x
        return gt.exp(product) - x * buffer

    _, wrong = compared(
        function, lambda draw: [gt.full((5,), 1.5 + draw), gt.full((5,), 2.0)], True)
    assert not wrong


def test_views_of_memory_that_is_overwritten() -> None:
    """A view made before a write shows what was written."""
    def function(x: gt.Tensor) -> list[gt.Tensor]:
        y = x * 2.0
        row, flat = y[1], y.reshape((-1,))
        y += x
        doubled = row + row
        y *= 3.0
        return [doubled, row * 1.0, flat + 1.0, y]

    _, wrong = compared(function, lambda draw: [gt.full((3, 4), 1.0 + draw)], True)
    assert not wrong


def test_results_are_new_each_time() -> None:
    """No replay writes into what an earlier one returned or stored."""
    def function(x: gt.Tensor) -> gt.Tensor:
        x.grad = None
        y = gt.exp(x) * 2.0 + 1.0
        (y * y).sum().backward()
        return y

    step, kept = gt.capture(function), []
    x = gt.zeros((4,), requires_grad=True)
    for draw in range(5):
        x.detach()[...] = float(draw)
        kept.append((step(x), x.grad))
    assert "3 replays" in step.report()
    for draw, (y, grad) in enumerate(kept):
        x.detach()[...] = float(draw)
        assert bits(function(x)) == bits(y)
        assert grad is not None
        assert x.grad is not None
        assert bits(grad) == bits(x.grad)


def test_relaxed_fusing_folds_numbers() -> None:
    def function(x: gt.Tensor) -> gt.Tensor:
        return x * 1.1 * 1.3 * 1.7

    exact, relaxed = gt.capture(function), gt.capture(function, fuse="relaxed")
    for _ in range(3):
        x = gt.asarray(np.random.default_rng(0).standard_normal(64).astype(np.float32))
        one, other = exact(x), relaxed(x)
    assert bits(one) == bits(function(x))
    assert bits(other) != bits(one)
    np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-6)


# -- rows ------------------------------------------------------------------------------------------


ROWS = [((140,), 140), ((300,), 257), ((9000,), 3), ((7, 60), 130)]


def rows_program(seed: int, sizes: list[tuple[tuple[int, ...], int]] = ROWS) -> tuple[Any, Any]:
    """A random function of arrays, their rows' reductions, and sums of all."""
    rng = np.random.default_rng(seed)
    lead, width = sizes[seed % len(sizes)]
    dtype = "float64" if seed % 5 == 4 else "float32"
    kinds = [(*lead, width), (*lead, width), (width,), (*lead, 1), lead, ()]
    plan = [(rng.choice(["one", "two", "two", "two", "reduce", "reduce", "column", "total"]),
             rng.integers(1 << 30, size=4)) for _ in range(16)]

    def function(*given: gt.Tensor) -> Any:
        given[0].grad = given[3].grad = None
        known, found = [*given], []
        for kind, r in plan:
            x, y = known[-1 - r[0] % 5], known[r[1] % len(known)]
            if kind == "one":
                x = [gt.exp, gt.abs, gt.nn.functional.gelu, gt.sign, gt.square][r[2] % 5](x * 0.25)
            elif kind == "two" and (x.shape == y.shape or x.ndim == len(lead) + 1):
                x = [gt.add, gt.subtract, gt.multiply, gt.maximum][r[2] % 4](x, y) if (
                    y.shape != lead or lead == (width,) or x.shape == lead) else x + y[..., None]
            elif kind == "reduce" and x.shape == (*lead, width):
                name = ["sum", "max", "mean", "min"][r[2] % 4]
                x = getattr(x, name)(axis=-1, keepdims=bool(r[3] % 2))
            elif kind == "column" and x.shape == lead:
                x = x.reshape((*lead, 1))
            elif kind == "total":
                found.append([x.sum, x.mean][r[2] % 2]())
                continue
            else:
                continue
            known.append(x)
        total = sum([x.mean() for x in known[len(given):]], start=gt.zeros((), dtype=dtype))
        if total.requires_grad:
            total.backward()
        return [*found, total, *known[len(given):][-3::2]]

    def arguments(draw: int) -> list[gt.Tensor]:
        rng = np.random.default_rng(draw)
        given = [gt.asarray(np.asarray(rng.standard_normal(shape), dtype)) for shape in kinds]
        given[0].requires_grad_()
        given[3].requires_grad_()
        return given

    return function, arguments


def test_a_mean_of_all_is_taken_on_the_way() -> None:
    """Of a value that nothing else reads; of one that is read again it is taken afterwards."""
    def function(z: gt.Tensor, t: gt.Tensor) -> list[gt.Tensor]:
        size = gt.abs(z - t)
        return [gt.square(size).mean(), size.sum(), size.mean(axis=(0, 1), keepdims=True)]

    def arguments(draw: int) -> list[gt.Tensor]:
        rng = np.random.default_rng(draw)
        return [gt.asarray(rng.standard_normal((257, 129)).astype(np.float32)) for _ in "zt"]

    step, wrong = compared(function, arguments, True, draws=12)
    assert not wrong
    calls = [call.name for call in step.programs[0].listing.calls if isinstance(call, Call)]
    assert sorted(calls) == ["fused_6", "mean", "sum"]


@pytest.mark.parametrize("seed", [*range(12), 604])
def test_random_programs_on_rows_have_the_same_bits(seed: int) -> None:
    function, arguments = rows_program(seed)
    step, wrong = compared(function, arguments, True)
    assert not wrong, f"{wrong}\n{step.text()}"


def test_a_loss_over_rows_is_one_call() -> None:
    """Cross entropy by hand, with its gradient: one loop, and what is left of single numbers."""
    def function(z: gt.Tensor, t: gt.Tensor) -> gt.Tensor:
        z.grad = None
        shifted = z - z.max(axis=1, keepdims=True)
        logs = shifted - gt.log(gt.exp(shifted).sum(axis=1, keepdims=True))
        loss = -(t * logs).sum() / z.shape[0]
        loss.backward()
        return loss

    def arguments(draw: int) -> list[gt.Tensor]:
        rng = np.random.default_rng(draw)
        z, t = (gt.asarray(rng.standard_normal((333, 130)).astype(np.float32)) for _ in "zt")
        return [z.requires_grad_(), t]

    step, wrong = compared(function, arguments, True, draws=12)
    assert not wrong
    calls = [call for call in step.programs[0].listing.calls if isinstance(call, Call)]
    assert [call.name.rstrip("0123456789") for call in calls] == ["fused_rows_", "fused_"]


# -- memory ----------------------------------------------------------------------------------------


def test_a_replay_needs_a_plan_of_what_lives_at_once() -> None:
    """Planned over a replay, memory is what lives at once, and results stay new."""
    def function(x: gt.Tensor) -> gt.Tensor:
        x.grad = None
        y = x
        for _ in range(5):
            y = gt.sort(gt.tanh(y * 0.5) + 0.25)  # a sort ends each group
        (y * y).mean().backward()
        return y

    x = gt.asarray(np.random.default_rng(0).standard_normal((300, 1001)).astype(np.float32))
    x.requires_grad_()
    step = gt.capture(function)
    for _ in range(2):
        wanted = step(x), x.grad
    with gt.memory.record("cpu") as recording:
        step(x)
        recording.mark()
        step(x)
    plan = recording.plan()
    assert plan.reservation <= 1.05 * plan.peak_live
    kept = []
    for _ in range(3):
        with gt.memory.planned(plan, "cpu"):
            kept.append((step(x), x.grad))
    assert plan.counts.served > 0
    assert not plan.counts.deviating, plan.counts.first
    assert {(bits(y), bits(grad)) for y, grad in kept} == {tuple(map(bits, wanted))}


# -- writes ----------------------------------------------------------------------------------------


def writing_program(seed: int) -> tuple[Any, Any]:
    """A random function that writes in place: into what it makes, its arguments, and views."""
    rng = np.random.default_rng(seed)
    plan = rng.integers(1 << 30, size=(16, 5))

    def function(*given: gt.Tensor) -> list[gt.Tensor]:
        known = [*given]
        for kind, i, j, k, m in plan:
            x, y = known[i % len(known)], known[j % len(known)]
            kind %= 9
            if kind == 0:
                known.append(gt.exp(x * 0.1))
            elif kind == 1:
                known.append(x * 0.5 + (y if y.shape == x.shape else 1.0))
            elif kind == 2 and x.shape == y.shape:
                x += y * 0.25
            elif kind == 3:
                x *= 0.75
            elif kind == 4 and x.ndim == 2:
                known.append(x[k % x.shape[0]] if m % 2 else x.reshape((-1,)))
            elif kind == 5 and x.ndim == 2:
                x[k % x.shape[0]] = y if y.shape == x.shape[1:] else 0.5
            elif kind == 6:
                x[...] = y if y.shape == x.shape else gt.abs(x)
            elif kind == 7:
                known.append(gt.nn.functional.gelu(x) - x)
            elif kind == 8 and x.ndim == 2:
                known.append(x.T.reshape(x.shape) if m % 2 else x.sum(axis=0))
        return [x * 1.0 for x in known[len(given):][-4:]] + known[-1:]

    def arguments(draw: int) -> list[gt.Tensor]:
        rng = np.random.default_rng(draw)
        return [gt.asarray(rng.standard_normal(shape).astype(np.float32))
                for shape in ((3, 4), (3, 4), (4,))]

    return function, arguments


@pytest.mark.parametrize("seed", [*range(20), 214])
def test_random_writes_have_the_same_bits(seed: int) -> None:
    function, arguments = writing_program(seed)
    step, wrong = compared(function, arguments, True)
    assert not wrong, f"{wrong}\n{step.text()}"
