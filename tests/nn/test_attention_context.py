"""SharedAttentionContext against the plain formula in float64, its buffers, and its state."""

from __future__ import annotations

import gc
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.nn.utils import checkpoint
from gtensor.ops.attention import context as ops
from gtensor.settings import settings
from gtensor.testing import gradcheck
from gtensor.testing.compare import close

WIDTH, RATE, STRENGTH = 6, 0.3, 0.7
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}
DEVICES = pytest.mark.parametrize("device", [
    "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


def moved(context: np.ndarray | None, x: np.ndarray, y: np.ndarray, rate: float) -> np.ndarray:
    """The plain formula of an update."""
    width = x.shape[-1]
    x, y = (np.array(a, np.float64).reshape(-1, width) for a in (x, y))
    step = max(1, len(x) // 32)
    x, y = x[::step][:32], y[::step][:32]
    x, y = (np.where(np.isfinite(a), a, 0) for a in (x, y))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    cov = x.T @ y
    denom = np.outer(np.linalg.norm(x, axis=0), np.linalg.norm(y, axis=0))
    alike = denom > 1e-12
    similarity = np.where(alike, np.tanh(cov / np.where(alike, denom, 1)), 0)
    return (1 - rate) * (0 if context is None else context) + rate * similarity


def drawn(*shape: int, dtype: str = "float32", device: str = "cpu") -> gt.Tensor:
    values = gt.tensor(np.random.standard_normal(shape), dtype="float64")
    return values.to(dtype).to(device)


def exact(x: gt.Tensor) -> np.ndarray:
    return x.detach().to("cpu").to("float64").numpy().copy()


def updated(strength: Any = STRENGTH, dtype: str = "float32", device: str = "cpu", times: int = 1
            ) -> nn.SharedAttentionContext:
    context = nn.SharedAttentionContext(WIDTH, RATE, strength)
    for _ in range(times):
        context.update(*(drawn(40, WIDTH, dtype=dtype, device=device) for _ in range(2)))
    return context


def buffers(context: nn.SharedAttentionContext, which: str = "contexts") -> int:
    return len(getattr(context._memory, which)._buffers)


# -- values ----------------------------------------------------------------------------------------


@DEVICES
@DTYPES
@pytest.mark.parametrize("lead", [(1,), (5,), (32,), (7, 9), (64,), (3, 50), ()])
def test_update_is_the_formula(lead: tuple[int, ...], dtype: str, device: str) -> None:
    context = nn.SharedAttentionContext(WIDTH, RATE)
    wanted = None
    for _ in range(3):
        x, y = (drawn(*lead, WIDTH, dtype=dtype, device=device) + 3 for _ in range(2))
        context.update(x, y)
        wanted = moved(wanted, exact(x), exact(y), RATE)
    assert context.context is not None
    assert context.context.dtype == (dtype if dtype == "float64" else "float32")
    close("context", exact(context.context), wanted, max(1e-12, min(1e-5, TOLERANCE[dtype])))


@DEVICES
def test_update_reads_any_strides_and_counts_what_is_not_finite_as_zero(device: str) -> None:
    x, y = drawn(WIDTH, 9, 11, device=device), drawn(9, 11, 2 * WIDTH, device=device)
    x[0, 0, 0], x[2, 3, 4], y[0, 0, 2] = float("nan"), float("inf"), float("-inf")
    x[5], y[..., 4] = 1.5, 1e-20  # columns without a length, and almost without one
    context = nn.SharedAttentionContext(WIDTH, RATE)
    for a, b in ((x.permute_dims(1, 2, 0), y[..., ::2]), (x.permute_dims(2, 1, 0)[::-1],
                                                          y.permute_dims(1, 0, 2)[..., :WIDTH])):
        before = None if context.context is None else exact(context.context)
        context.update(a, b)
        close("context", exact(context.context), moved(before, exact(a), exact(b), RATE), 1e-5)


@DEVICES
def test_lengths_that_overflow_leave_the_context_finite(device: str) -> None:
    context = updated(device=device)
    context.update(drawn(9, WIDTH, device=device) * 1e30, drawn(9, WIDTH, device=device) * 1e37)
    assert np.isfinite(exact(context.context)).all()


@DEVICES
@DTYPES
@pytest.mark.parametrize("lead", [(5,), (), (2, 3), (0,)])
@pytest.mark.parametrize("learned", [False, True])
def test_apply_and_its_gradients_are_the_formula(
    lead: tuple[int, ...], dtype: str, device: str, learned: bool
) -> None:
    strength = nn.Parameter(gt.tensor(STRENGTH, dtype=dtype, device=device))
    context = updated(strength if learned else STRENGTH, dtype, device)
    c = exact(context.context)
    x = drawn(*lead, WIDTH, dtype=dtype, device=device).requires_grad_()
    y, g = context.apply(x), drawn(*lead, WIDTH, dtype=dtype, device=device)
    s = exact(strength) if learned else STRENGTH
    close("y", exact(y), exact(x) + s / WIDTH * exact(x) @ c, TOLERANCE[dtype])
    y.backward(g)
    close("dx", exact(x.grad), exact(g) + s / WIDTH * exact(g) @ c.T, TOLERANCE[dtype])
    if learned:
        wanted = (exact(g) * (exact(x) @ c)).sum() / WIDTH
        close("dstrength", exact(strength.grad), wanted, TOLERANCE[dtype])


@DEVICES
@pytest.mark.parametrize("learned", [False, True])
def test_a_gradient_is_added_to_the_one_that_is_there(device: str, learned: bool) -> None:
    strength = nn.Parameter(gt.tensor(STRENGTH, device=device))
    context = updated(strength if learned else STRENGTH, device=device)
    c, s = exact(context.context), exact(strength)
    x = drawn(5, WIDTH, device=device).requires_grad_()
    g = drawn(5, WIDTH, device=device)
    ((context.apply(x) + x * 2 + context.apply(x)) * g).sum().backward()
    close("dx", exact(x.grad), 4 * exact(g) + 2 * s / WIDTH * exact(g) @ c.T, 1e-5)
    if learned:
        close("ds", exact(strength.grad), 2 * (exact(g) * (exact(x) @ c)).sum() / WIDTH, 1e-5)


@DEVICES
def test_the_gradient_of_strength_is_added_up_in_float64(device: str) -> None:
    """Terms of 1e4 that cancel: sums in float32 would be off by far more."""
    strength = nn.Parameter(gt.tensor(STRENGTH, device=device))
    context = nn.SharedAttentionContext(2, strength=strength)
    context.context = gt.eye(2, device=device)
    x = np.ones((40_001, 2), np.float32)
    half = 1e4 * np.random.standard_normal(40_000).astype(np.float32)
    values = np.random.permutation(np.concatenate([half, -half, np.float32([0.25, 0.25])]))
    g = values.reshape(40_001, 2)
    context.apply(gt.tensor(x, device=device)).backward(gt.tensor(g, device=device))
    assert exact(strength.grad) == 0.25


@DEVICES
def test_derivatives_of_both_orders_are_right(device: str) -> None:
    strength = gt.tensor(STRENGTH, dtype="float64", device=device)
    context = updated(1.0, "float64", device)

    def mixed(x: gt.Tensor, s: gt.Tensor) -> gt.Tensor:
        context.strength = s
        return (context.apply(x) ** 2).sum()

    x = drawn(3, WIDTH, dtype="float64", device=device)
    gradcheck(mixed, (x.requires_grad_(), strength.requires_grad_()), order=2)


def test_under_transforms_it_is_the_formula_and_is_not_updated() -> None:
    context = updated()
    c = gt.tensor(exact(context.context), dtype="float32")
    x, s = drawn(4, 3, WIDTH), drawn(4)

    def mixed(x: gt.Tensor, s: Any = STRENGTH) -> gt.Tensor:
        context.strength = s
        return context.apply(x)

    def plain(x: gt.Tensor, s: Any = STRENGTH) -> gt.Tensor:
        return x + s / WIDTH * (x @ c)

    for inputs in ((x,), (x, s), (x[:, 0],), (x[:, 0], s)):
        close("vmap", gt.vmap(mixed)(*inputs).numpy(), gt.vmap(plain)(*inputs).numpy(), 1e-5)
    for given, tangents in (((x,), (x * 2,)), ((x, s[0]), (x * 2, s[1]))):
        close("jvp", *(gt.jvp(f, given, tangents)[1].numpy() for f in (mixed, plain)), 1e-5)
    with pytest.raises(gt.LevelError, match="wanted no update there"):
        gt.vmap(lambda x: context.update(x, x) or x)(x)


# -- what apply returns ----------------------------------------------------------------------------


def test_without_a_context_or_strength_apply_is_x_itself() -> None:
    x, out = drawn(5, WIDTH), gt.empty((5, WIDTH))
    learned = nn.SharedAttentionContext(WIDTH, strength=nn.Parameter(gt.tensor(0.0)))
    assert nn.SharedAttentionContext(WIDTH, strength=1.0).apply(x) is x
    assert updated(0.0).apply(x) is x
    assert learned.apply(x) is x
    learned.update(x, x)
    assert learned.apply(x) is not x
    assert updated(0.0).apply_into(x, out) is out
    assert (out.numpy() == x.numpy()).all()


@DEVICES
def test_apply_into_writes_and_records_what_apply_does(device: str) -> None:
    strength = nn.Parameter(gt.tensor(STRENGTH, device=device))
    context = updated(strength, device=device)
    for lead in ((5,), (), (2, 3)):
        found = []
        for into in (False, True):
            strength.grad = None
            x = drawn(*lead, WIDTH, device=device).detach()
            x[...] = 0.5
            x.requires_grad_()
            out = gt.zeros(x.shape, device=device)
            y = context.apply_into(x * 1, out) if into else context.apply(x * 1)
            (y * y).sum().backward()
            found.append([exact(a) for a in (y, x.grad, strength.grad)])
            assert not into or y is out
        for one, other in zip(*found, strict=True):
            close("into", other, one, 1e-5)


@pytest.mark.parametrize(("out", "wanted"), [
    (lambda x: x, "overlaps an input"), (lambda x: x[::-1], "overlaps an input"),
    (lambda x: gt.zeros((4, WIDTH)), r"out of shape \(4, 6\).*wanted shape \(5, 6\)"),
    (lambda x: gt.zeros((5, WIDTH), "float64"), "float64.*wanted shape"),
    (lambda x: gt.broadcast_to(gt.zeros(WIDTH), (5, WIDTH)), "elements at one place"),
    (lambda x: [1.0], "an out of type list"),
])
def test_apply_into_refuses_an_out_that_does_not_fit(
    out: Callable[[gt.Tensor], Any], wanted: str
) -> None:
    x = drawn(5, WIDTH)
    before = exact(x)
    with pytest.raises(ValueError, match=wanted):
        updated().apply_into(x, out(x))
    assert (exact(x) == before).all()


def test_apply_into_refuses_an_out_that_a_record_saved() -> None:
    x, out = drawn(5, WIDTH), drawn(5, WIDTH).requires_grad_() * 1
    kept = out * out
    with pytest.raises(gt.GradientError, match="an op saved for its gradient"):
        updated().apply_into(x, out)
    kept.sum().backward()


# -- buffers and tapes -----------------------------------------------------------------------------


@DEVICES
@DTYPES
def test_no_update_writes_what_an_open_tape_has_saved(dtype: str, device: str) -> None:
    context = updated(dtype=dtype, device=device)
    tapes = []
    for number in range(4):
        x = drawn(5, WIDTH, dtype=dtype, device=device).requires_grad_()
        tapes.append((context.apply(x), x, exact(context.context)))
        for _ in range(3):
            context.update(*(drawn(9, WIDTH, dtype=dtype, device=device) for _ in range(2)))
        rounded = "16" in dtype  # then that copy of the context is saved
        assert buffers(context) == (1 if rounded else number + 2)
        assert not rounded or buffers(context, "rounded") <= number + 2
    for y, x, c in tapes:
        g = gt.ones(y.shape, dtype=dtype, device=device)
        y.backward(g)
        close("dx", exact(x.grad), exact(g) + STRENGTH / WIDTH * exact(g) @ c.T, TOLERANCE[dtype])


def test_a_buffer_is_free_when_the_tape_is_walked_or_dropped() -> None:
    gc.disable()
    try:
        context = updated()
        x = drawn(5, WIDTH).requires_grad_()
        kept = []
        for end in ("walked", "dropped", "walked twice", "differentiated"):
            for _ in range(3):
                y = context.apply(x)
                context.update(x, x * 2)
                assert buffers(context) == 2
                if end == "walked":
                    y.sum().backward()
                    kept.append(y)  # a handle of a consumed record has no context
                elif end == "walked twice":
                    y.sum().backward(retain_graph=True)
                    context.update(x, x)
                    assert buffers(context) == 2
                    y.sum().backward()
                elif end == "differentiated":
                    (y ** 2).sum().backward(create_graph=True)
                    context.update(x, x)
                    assert buffers(context) == 2
                    x.grad.sum().backward()
                x.grad = None
                del y
        with gt.no_grad():
            context.update(x, x)
        assert buffers(context) == 1
    finally:
        gc.enable()


def test_a_second_order_tape_keeps_its_context() -> None:
    context = updated()
    c = exact(context.context)
    x = drawn(5, WIDTH).requires_grad_()
    (context.apply(x) ** 3).sum().backward(create_graph=True)
    dx = x.grad
    x.grad = None
    for _ in range(3):
        context.update(drawn(9, WIDTH), drawn(9, WIDTH))
    dx.sum().backward()
    a = np.eye(WIDTH) + STRENGTH / WIDTH * c
    wanted = 6 * (exact(x) @ a) * (np.ones((5, WIDTH)) @ a) @ a.T
    close("second order", exact(x.grad), wanted, 1e-5)


def test_a_handle_keeps_its_values_and_the_memory() -> None:
    context = updated()
    before = context.context
    assert before is not None
    values = exact(before)
    context.update(drawn(9, WIDTH), drawn(9, WIDTH))
    assert (exact(before) == values).all()
    assert buffers(context) == 2
    del before
    context.update(drawn(9, WIDTH), drawn(9, WIDTH))
    assert buffers(context) == 1 + 1  # the free one waits for the next tape
    context.release_workspace()
    assert buffers(context) == 1


def test_a_view_that_is_assigned_is_not_written_while_it_is_saved() -> None:
    context = updated()
    context.context = context.context.reshape(WIDTH, WIDTH).detach()
    x = drawn(5, WIDTH).requires_grad_()
    y, c = context.apply(x), exact(context.context)
    for _ in range(3):
        context.update(drawn(9, WIDTH), drawn(9, WIDTH))
    y.sum().backward()
    close("dx", exact(x.grad), np.ones((5, WIDTH)) @ (np.eye(WIDTH) + STRENGTH / WIDTH * c).T, 1e-5)


def test_a_thread_that_mixes_during_an_update_saves_no_value_that_is_being_written(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    context, update = updated(), ops.context_update
    failures: list[BaseException] = []
    held_back_or_mixed, written = threading.Event(), threading.Event()

    class Watched:
        """The context's lock, which tells of a thread that has to wait for it."""

        lock = context._memory.lock

        def __enter__(self) -> None:
            if not self.lock.acquire(blocking=False):
                held_back_or_mixed.set()
                self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.lock.release()

    def mix() -> None:
        try:
            y = context.apply(gt.ones((5, WIDTH)).requires_grad_())
            held_back_or_mixed.set()
            written.wait(60)
            y.sum().backward()
        except BaseException as error:
            failures.append(error)

    mixing = threading.Thread(target=mix)

    def late(*inputs: Any) -> None:
        mixing.start()
        held_back_or_mixed.wait(60)
        update(*inputs)

    monkeypatch.setattr(ops, "context_update", late)
    monkeypatch.setattr(context._memory, "lock", Watched())
    context.update(drawn(9, WIDTH), drawn(9, WIDTH))
    written.set()
    mixing.join(60)
    assert not failures


def test_two_threads_that_update_one_context_leave_tapes_whole() -> None:
    context = updated()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                x = gt.ones((5, WIDTH)).requires_grad_()
                y = context.apply(x)
                context.update(gt.ones((5, WIDTH)), gt.ones((5, WIDTH)))
                y.sum().backward()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert buffers(context) <= 2 * len(threads) + 1


# -- recomputation ---------------------------------------------------------------------------------


class Layer(nn.Module):
    """Two layers that share a context, each in a checkpoint or not."""

    def __init__(self, strength: Any, nested: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.shared = nn.SharedAttentionContext(WIDTH, RATE, strength)
        self.nested = nested

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        if self.nested:
            return checkpoint(self.layer, checkpoint(self.layer, x))
        return self.layer(self.layer(x))

    def layer(self, x: gt.Tensor) -> gt.Tensor:
        start = self.shared.apply(x)
        y = self.linear(start).tanh()
        self.shared.update(x, y)
        return y


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_a_checkpoint_has_the_contexts_of_its_first_run(
    outer: bool, nested: bool, learned: bool
) -> None:
    found = []
    for checkpointed in (False, True):
        gt.manual_seed(1)
        model = Layer(nn.Parameter(gt.tensor(3.0)) if learned else 3.0, nested and checkpointed)
        x = gt.tensor(np.arange(5 * WIDTH, dtype=np.float32).reshape(5, WIDTH) % 7).requires_grad_()
        for _ in range(3):
            y = checkpoint(model, x) if outer and checkpointed else model(x)
            y.sum().backward(retain_graph=True)
            y.sum().backward()
        found.append([exact(model.shared.context), exact(x.grad),
                      *(exact(p.grad) for p in model.parameters())])
        assert buffers(model.shared) <= 3
    for one, other in zip(*found, strict=True):
        close("checkpointed", other, one, 1e-5)


# -- memory ----------------------------------------------------------------------------------------


def allocations(function: Callable[[], object], device: str) -> tuple[Any, int]:
    """What a call gives, and how many blocks it takes from the arena."""
    before = gt.memory.stats(device)
    result = function()
    after = gt.memory.stats(device)
    return result, after.hits + after.misses - before.hits - before.misses


@DEVICES
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_after_warm_up_only_results_are_allocated(learned: bool, dtype: str, device: str) -> None:
    """A step of three layers that share a context, and what each call takes."""
    if (dtype, device) == ("float16", "cpu"):
        pytest.skip("products of half types take tiles on the CPU")
    wide = "float64" if dtype == "float64" else "float32"
    strength = nn.Parameter(gt.tensor(STRENGTH, dtype=wide, device=device))
    context = updated(strength if learned else STRENGTH, dtype, device)
    x = drawn(40, WIDTH, dtype=dtype, device=device).requires_grad_()
    g, out = drawn(40, WIDTH, dtype=dtype, device=device), gt.empty_like(x)
    with settings.override(arena_min_bytes=0):
        for warm in (False, False, True):
            y: Any = x
            for _ in range(3):
                y, of_apply = allocations(lambda y=y: context.apply(y), device)
                _, of_update = allocations(lambda y=y: context.update(y, y), device)
                assert not warm or (of_apply, of_update) == (1, 0)
            _, of_backward = allocations(lambda y=y: y.backward(g), device)
            assert not warm or of_backward == (6 if learned else 3)
            x.grad = strength.grad = None
        del y
        with gt.no_grad():
            for _ in range(2):
                _, of_into = allocations(lambda: context.apply_into(x, out), device)
                _, of_update = allocations(lambda: context.update(x, out), device)
        assert (of_into, of_update) == (0, 0)


@pytest.mark.parametrize("learned", [False, True])
def test_nothing_is_allocated_behind_the_arena(learned: bool) -> None:
    context = nn.SharedAttentionContext(512, strength=nn.Parameter(gt.tensor(0.5)) if learned
                                        else 0.5)
    x, g = (drawn(1024, 512) for _ in range(2))
    x.requires_grad_()
    for warm in (False, True):
        tracemalloc.start()
        context.apply(x).backward(g)
        context.update(x, g)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        x.grad = None
        assert not warm or peak < 256 * 1024  # Python's objects, NumPy's buffers for casts, a tile


# -- state -----------------------------------------------------------------------------------------


def test_the_state_is_the_context_if_there_is_one() -> None:
    fresh = nn.SharedAttentionContext(WIDTH)
    model = nn.ModuleList([updated()])
    other = nn.ModuleList([nn.SharedAttentionContext(WIDTH, RATE)])
    assert not fresh.state_dict() and "context" not in dict(fresh.named_buffers())
    assert list(model.state_dict()) == ["0.context"]
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    other.load_state_dict(kept)
    for each in (model, other):
        each[0].update(gt.ones((4, WIDTH)), gt.ones((4, WIDTH)))
    assert (exact(model[0].context) == exact(other[0].context)).all()
    assert (exact(kept["0.context"]) != exact(other[0].context)).any()
    other.load_state_dict({})  # of before the first update
    assert other[0].context is None
    mismatch = model.load_state_dict({}, strict=False)
    assert model[0].context is not None and mismatch == ([], [])
    with pytest.raises(ValueError, match=r"'0.context' has shape \(2, 2\), wanted \(6, 6\)"):
        other.load_state_dict({"0.context": np.zeros((2, 2))})
    with pytest.raises(ValueError, match="unexpected '0.similarity'"):
        other.load_state_dict({"0.similarity": np.zeros((WIDTH, WIDTH))})
    assert other[0].context is None


def test_copies_and_pickles_have_a_context_and_memory_of_their_own() -> None:
    context = updated(nn.Parameter(gt.tensor(STRENGTH)))
    x = drawn(9, WIDTH)
    context.apply(x)
    for copy in (deepcopy(context), pickle.loads(pickle.dumps(context))):
        assert (exact(copy.apply(x)) == exact(context.apply(x))).all()
        copy.update(x, x)
        assert (exact(copy.context) != exact(context.context)).any()


@pytest.mark.gpu
def test_a_module_that_moves_takes_its_context_along() -> None:
    context = updated(nn.Parameter(gt.tensor(STRENGTH, device="cpu")), device="cpu")
    x, y = drawn(9, WIDTH), drawn(9, WIDTH)
    wanted = exact(context.apply(x))
    with pytest.raises(gt.DeviceError, match=r"wanted|move the module"):
        context.apply(x.to("cuda"))
    context.to("cuda")
    close("moved", exact(context.apply(x.to("cuda"))), wanted, 1e-5)
    context.to("float64")
    context.update(x.to("cuda").to("float64"), y.to("cuda").to("float64"))
    assert context.context.dtype == "float64"
    context.half()
    context.update(*(a.to("cuda").to("float16") for a in (x, y)))
    assert context.context.dtype == "float32"


def test_functions_that_are_applied_to_a_model_reach_its_contexts() -> None:
    seen: list[str] = []
    model = nn.Sequential(nn.Linear(2, 2), nn.SharedAttentionContext(WIDTH))
    model.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "SharedAttentionContext", "Sequential"]


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "wanted"), [
    ({"width": 0}, "width=0"), ({"width": 2.0}, "width=2.0"), ({"width": True}, "width=True"),
    ({"rate": -0.1}, "rate=-0.1"), ({"rate": float("nan")}, "rate=nan"),
    ({"strength": float("inf")}, "strength=inf"),
    ({"strength": gt.zeros(2)}, r"strength of shape \(2,\)"),
    ({"strength": gt.zeros((), "int64")}, "dtype int64"),
])
def test_construction_refuses_what_is_no_context(options: dict[str, Any], wanted: str) -> None:
    with pytest.raises((ValueError, TypeError), match=wanted):
        nn.SharedAttentionContext(**{"width": WIDTH, **options})


def test_tensors_that_do_not_fit_are_refused_before_anything_is_changed() -> None:
    context = updated()
    c = exact(context.context)
    for call, error, wanted in (
        (lambda: context.apply(drawn(5, 4)), ValueError, r"shape \(5, 4\).*wanted \(\.\.\., 6\)"),
        (lambda: updated(0.0).apply(drawn(5, 4)), ValueError, "width 6"),
        (lambda: nn.SharedAttentionContext(WIDTH).apply(gt.tensor(1.0)), ValueError, "width 6"),
        (lambda: context.apply(gt.zeros((5, WIDTH), "int64")), TypeError, "dtype int64"),
        (lambda: context.apply(np.zeros((5, WIDTH))), TypeError, "wanted a Tensor"),
        (lambda: context.update(drawn(5, WIDTH), drawn(4, WIDTH)), ValueError, "one kind"),
        (lambda: context.update(drawn(5, WIDTH), drawn(5, WIDTH, dtype="float64")), ValueError,
         "one kind"),
        (lambda: context.update(drawn(5, WIDTH), None), TypeError, "wanted a Tensor"),
        (lambda: context.apply_into(drawn(5, 4), drawn(5, 4)), ValueError, "width 6"),
    ):
        with pytest.raises(error, match=wanted):
            call()
    assert (exact(context.context) == c).all()
    context.update(drawn(0, WIDTH), drawn(0, WIDTH))  # nothing to see
    assert (exact(context.context) == c).all()


# -- graphs ----------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_replay_moves_the_context_and_a_saved_one_is_not_captured() -> None:
    context = updated(device="cuda")
    x, y = (drawn(9, WIDTH, device="cuda") for _ in range(2))
    context.update(x, y)
    wanted = moved(exact(context.context), exact(x), exact(y), RATE)
    graph = gt.Graph("cuda")
    with graph.capture():
        context.update(x, y)
    for _ in range(2):
        graph.replay()
        close("replayed", exact(context.context), wanted, 1e-5)
        wanted = moved(wanted, exact(x), exact(y), RATE)
    leaf = x.detach().requires_grad_()
    other = gt.Graph("cuda")
    with pytest.raises(gt.GradientError, match=r"wanted the update after backward\(\)"), \
            other.capture():
        z = context.apply(leaf)
        context.update(leaf, z)
