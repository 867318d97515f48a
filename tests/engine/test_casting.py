"""Casts under `gt.autocast`: recorded, kept for leaves, and switched off within an op."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.handle.context import current_casts
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run import call_text, casting
from gtensor.engine.tape import levels
from gtensor.engine.tape.op import Op, registry
from gtensor.engine.walk import walk
from gtensor.nn import functional as F
from gtensor.nn.utils import checkpoint
from gtensor.testing.cases import samples_of

NAMES = sorted(name for name, definition in registry.items() if definition.samples is not None)
TARGET = {"low": gt.bfloat16, "float32": gt.float32, None: None}
GIVEN = {"low": gt.float32, "float32": gt.bfloat16, None: gt.float32}


# -- every op --------------------------------------------------------------------------------------


def floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.kind in "fV"


def explicit(definition: Op, params: Any) -> Callable[..., Tensor]:
    """The op after the casts of its policy, written out."""
    target = TARGET[definition.autocast] if params.get("dtype") is None else None

    def run(*xs: Any) -> Tensor:
        return definition(*[x.astype(target) if target is not None and floating(x) else x
                            for x in xs], **params)
    return run


def outcome(program: Callable[[], list[Any]]) -> list[Any]:
    """Dtypes and values of the tensors that it returns, or the type of its error."""
    try:
        with np.errstate(all="ignore"):
            return [(x.dtype.name, np.array(x.numpy()).astype(np.complex128)) for x in program()]
    except Exception as error:
        return [type(error)]


def programs(run: Callable[..., Tensor], xs: list[Any]) -> list[Callable[[], list[Any]]]:
    """Values; gradients, raw and recorded; a tangent; a batch."""
    places = [i for i, x in enumerate(xs) if floating(x)]

    def gradients(create: bool) -> list[Any]:
        leaves = [x.clone().requires_grad_() if floating(x) else x for x in xs]
        y = run(*leaves)
        seed = np.linspace(0.3, 1.7, y.size).reshape(y.shape)
        y.backward(gt.asarray(seed, device=y.device).astype(y.dtype), create_graph=create)
        return [y, *[leaves[i].grad for i in places if leaves[i].grad is not None]]

    def tangent() -> list[Any]:
        def of(*given: Any) -> Tensor:
            values = [*xs]
            for i, x in zip(places, given, strict=True):
                values[i] = x
            return run(*values)

        primals = [xs[i] for i in places]
        return list(gt.jvp(of, tuple(primals), tuple(gt.ones_like(x) for x in primals)))

    def batch() -> list[Any]:
        def of(first: Any) -> Tensor:
            return run(*[first if i == places[0] else x for i, x in enumerate(xs)])

        return [gt.vmap(of)(gt.stack([xs[places[0]]] * 2))]

    plain: list[Callable[[], list[Any]]] = [
        lambda: [run(*xs)], lambda: gradients(False), lambda: gradients(True)]
    return [*plain, tangent, batch] if places else plain


def check(name: str, device: str = "cpu", most: int = 3) -> None:
    """The op under `gt.autocast` against the op after explicit casts, on its first samples.

    Gradients that it writes as float32 are those before the rounding of an explicit cast's.
    """
    definition, rng = registry[name], np.random.default_rng(0)
    for sample in samples_of(definition)[:most]:
        xs = [None if a is None else gt.asarray(a, device=device) for a in sample.arrays(rng)]
        xs = [x.astype(GIVEN[definition.autocast]) if floating(x) else x for x in xs]
        plain = programs(lambda *a, s=sample: definition(*a, **s.params), xs)
        for cast, program in zip(plain, programs(explicit(definition, sample.params), xs),
                                 strict=True):
            wanted = outcome(program)
            with gt.autocast("bfloat16"):
                found = outcome(cast)
            for one, other in zip(found, wanted, strict=True):
                if isinstance(other, tuple):
                    assert one[0] == other[0]
                    rounds = definition.autocast == "low" and one[0] == "float32"
                    np.testing.assert_array_equal(
                        one[1].astype(gt.bfloat16) if rounds else one[1], other[1])
                else:
                    assert one is other


@pytest.mark.parametrize("name", NAMES)
def test_an_op_runs_as_after_explicit_casts(name: str) -> None:
    """Without a policy as without the block; values, gradients, tangents and batches."""
    check(name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in NAMES if registry[name].autocast])
def test_an_op_on_cuda_runs_as_after_explicit_casts(name: str) -> None:
    check(name, "cuda", 1)


def test_ops_without_a_policy_ask_nothing() -> None:
    """Their calls are written as if there were no `autocast`."""
    for definition in registry.values():
        asks = "casts.run" in "".join(call_text._text(definition, False, call_text._ON_HOST))
        assert asks == (definition.autocast is not None), definition.name


def test_a_policy_is_one_of_three() -> None:
    with pytest.raises(TypeError, match="autocast='half'; wanted 'low', 'float32' or None"):
        Op("none", cpu=np.add, gpu=np.add, backward=None, tangent=None, samples=None,
           inputs="a b", autocast="half")


# -- leaves ----------------------------------------------------------------------------------------


class Counts:
    """How often `astype` runs."""

    def __init__(self) -> None:
        self.casts = 0

    def op_begins(self, event: Any) -> None:
        self.casts += event.op.name == "astype" and event.phase == "forward"


def casts_in(program: Callable[[], object]) -> int:
    counts = Counts()
    with gt.listen(counts):
        program()
    return counts.casts


def test_a_leaf_is_cast_once_until_the_outermost_block_ends() -> None:
    w, x = gt.ones((2, 2), requires_grad=True), gt.ones((2, 2), "bfloat16")

    def twice() -> None:
        with gt.autocast("bfloat16"):
            x @ w
            with gt.autocast("bfloat16"):
                x @ w
            x @ w

    assert casts_in(twice) == 1
    assert casts_in(lambda: [twice(), twice()]) == 2


def test_without_a_cache_each_use_is_a_cast() -> None:
    w, x = gt.ones((2, 2), requires_grad=True), gt.ones((2, 2), "bfloat16")
    constant = w.detach()
    with gt.autocast("bfloat16", cache_enabled=False):
        assert casts_in(lambda: [x @ w, x @ w]) == 2
    with gt.autocast("bfloat16"):
        assert casts_in(lambda: [x @ constant, x @ constant]) == 2


def test_a_written_leaf_is_cast_again() -> None:
    w, x = gt.ones((2, 2), requires_grad=True), gt.ones((2, 2))
    with gt.autocast("bfloat16"):
        first = x @ w
        with gt.no_grad():
            w *= 3.0
        second = x @ w
    assert first.tolist() == [[2.0] * 2] * 2 and second.tolist() == [[6.0] * 2] * 2


def test_a_cast_without_history_is_not_used_where_one_is_wanted() -> None:
    w, x = gt.ones((2, 2), requires_grad=True), gt.ones((2, 2), "bfloat16")
    with gt.autocast("bfloat16"):
        with gt.no_grad():
            x @ w
        y = (x @ w).sum()
        with gt.no_grad():
            assert casts_in(lambda: x @ w) == 0
    y.backward()
    assert w.grad is not None and w.grad.dtype == gt.float32


def test_losses_of_one_block_are_walked_one_after_the_other() -> None:
    """Gradients accumulate within one block and behind it, as in PyTorch."""
    w, x = gt.ones((2, 2), requires_grad=True), gt.ones((2, 2))
    with gt.autocast("bfloat16"):
        (x @ w).sum().backward()
        losses = [(x @ w).sum(), (x @ w * 2.0).sum()]
    for loss in losses:
        loss.backward()
    assert w.grad.tolist() == [[8.0] * 2] * 2


@pytest.mark.parametrize("cached", [True, False])
def test_a_product_writes_its_gradients_as_float32(cached: bool) -> None:
    """Those of a parameter and of a float32 value, added up and not rounded to the lower dtype."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, 3), (4, 3))]
    w, x = (gt.tensor(v, requires_grad=True) for v in values)
    low = [np.asarray(v.astype(gt.bfloat16), np.float64) for v in values]
    with gt.autocast("bfloat16", cache_enabled=cached):
        y = F.linear(x * 1.0, w)
        z = x @ w.mT
    (y + z).backward(gt.ones((4, 5), "bfloat16"))
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.tile(low[1].sum(axis=0), (5, 1)), rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.tile(low[0].sum(axis=0), (4, 1)), rtol=1e-6)


def test_the_casts_end_with_the_block() -> None:
    w, x = gt.ones((2, 2), requires_grad=True), gt.ones((2, 2), "bfloat16")
    with gt.autocast("bfloat16"):
        x @ w
        (kept,) = current_casts()._leaves.values()
        kept = weakref.ref(kept.result)
        assert kept() is not None
    assert kept() is None


# -- transforms and checkpoints --------------------------------------------------------------------


def layer(x: Tensor, w: Tensor) -> Tensor:
    return F.softmax(F.gelu(F.linear(x, w)), -1)


@pytest.mark.parametrize("inside", [False, True])
def test_a_checkpointed_function_runs_again_under_the_casts_of_its_first_run(inside: bool) -> None:
    """Whether the backward is within the block or outside; the cast of a leaf may be older.

    Each run has casts of its own, so that gradients are those without a cache.
    """
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2, 4, 4)).astype(np.float32)

    def gradients(region: Callable[..., Tensor], cached: bool) -> list[Any]:
        x, w = (gt.tensor(v, requires_grad=True) for v in values)
        with gt.autocast("bfloat16", cache_enabled=cached):
            early = F.linear(x, w)
            y = region(layer, region(layer, x, w), w)
            assert y.dtype == gt.float32
            loss = (y * y).sum() + early.sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        with gt.autocast("float16"):  # of no concern to the walk
            again = region(lambda v: v * 2.0, x).sum()
            again.backward()
        assert current_casts() is None
        return [x.grad.tolist(), w.grad.tolist()]

    assert gradients(checkpoint, True) == gradients(lambda f, *args: f(*args), False)


def test_derivatives_of_functions_are_those_of_explicit_casts() -> None:
    rng = np.random.default_rng(0)
    x, w = (gt.asarray(rng.standard_normal((4, 4)).astype(np.float32)) for _ in range(2))

    def auto(x: Tensor, w: Tensor) -> Tensor:
        return (layer(x, w) ** 2).sum()

    def written(x: Tensor, w: Tensor) -> Tensor:
        y = F.gelu(F.linear(x.astype("bfloat16"), w.astype("bfloat16")))
        return (F.softmax(y.astype("float32"), -1) ** 2).sum()

    def all_of(f: Callable[..., Tensor]) -> list[Any]:
        return [
            gt.grad(f)(x, w), gt.jvp(f, (x, w), (w, x))[1], gt.vmap(f, (0, None))(x, w),
            gt.per_example_grad(lambda w, x: f(x, w), w, x), gt.hvp(f, (x, w), (w, x))[1],
            gt.grad(lambda x: gt.jvp(f, (x, w), (w, x))[1])(x)]

    with gt.autocast("bfloat16"):
        found = all_of(auto)
    for one, other in zip(found, all_of(written), strict=True):
        pairs = [(one, other)] if isinstance(one, Tensor) else zip(one, other, strict=True)
        for a, b in pairs:
            assert a.dtype == b.dtype == gt.float32  # one of them rounded by the cast's gradient
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2**-6, atol=2**-6)


def test_a_leaf_outside_of_a_transform_gets_its_gradient() -> None:
    w = gt.ones((3, 3), requires_grad=True)
    with gt.autocast("bfloat16"):
        y = gt.vmap(lambda v: w @ v)(gt.ones((2, 3)))
    y.sum().backward()
    assert w.grad.dtype == gt.float32 and w.grad.tolist() == [[2.0] * 3] * 3


# -- planted faults --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "module"), [("solve", levels), ("conv2d_grad_weight", walk)])
def test_planted_fault_rules_that_cast_are_seen(name: str, module: Any) -> None:
    with patch.object(module, "current_casts", lambda: None), pytest.raises(AssertionError):
        check(name)


def test_planted_fault_compositions_that_cast_are_seen() -> None:
    right = call_text._COMPOSED
    fault = right.replace("current_casts() is not None", "False")
    definition = registry["summed_matmul"]
    with patch.object(call_text, "_COMPOSED", fault):
        definition.view = definition.view  # writes the call anew
    try:
        with pytest.raises(AssertionError):
            check("summed_matmul")
    finally:
        definition.view = definition.view


def test_planted_fault_a_cast_that_serves_for_ever_is_seen() -> None:
    with (patch.object(casting._LeafCast, "serves", lambda *_: True),
          pytest.raises(AssertionError)):
        test_a_written_leaf_is_cast_again()


def test_planted_fault_a_second_run_without_casts_is_seen() -> None:
    with (patch.object(casting.Casts, "apart", lambda _: None),
          pytest.raises((AssertionError, gt.GradientError))):
        test_a_checkpointed_function_runs_again_under_the_casts_of_its_first_run(False)
