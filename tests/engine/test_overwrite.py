"""Ops that take over their input's memory: the proof they need, and what is left of the input."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from memory.interrupts import interrupt_after
from together import in_threads

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle.consumed import Consumed, ConsumedStorage
from gtensor.engine.handle.errors import ConsumedError
from gtensor.engine.handle.storage import Storage
from gtensor.engine.run.take_over import apply_over, overwritable
from gtensor.engine.tape.op import Op, registry


def _scaled_path(x: Any, w: Any, *, by: float, out: Any = None) -> Any:
    return np.multiply(x, w * by, out=out), w


def _scaled_backward(ns: Any, step: Any, g: Any) -> None:
    """From the output alone, as in-place batch norm: x = out / (w * by)."""
    w, out = step.saved
    scale = ns.multiply(w, step.params["by"])
    if step.needs(1):
        step.give(1, ns.multiply(g, ns.divide(out, w)))
    if step.needs(0):
        step.give(0, ns.multiply(g, scale, out=step.reuse(g)))


SCALED = Op(
    "scaled", cpu=_scaled_path, gpu=None, inputs="x w", extras="factor", backward=_scaled_backward,
    tangent=None, samples=None, saves={"x": "w out", "w": "w out"}, owns=True)


def over(x: gt.Tensor, w: Any = 3.0, by: float = 1.0) -> gt.Tensor:
    w = w if isinstance(w, gt.Tensor) else gt.tensor(w, dtype=x.dtype)
    return apply_over(SCALED, (x, w), {"by": by})[0]


@pytest.fixture
def leaf(rng: np.random.Generator) -> gt.Tensor:
    return gt.tensor(rng.standard_normal((3, 5))).requires_grad_()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


# -- what is taken ---------------------------------------------------------------------------------


@pytest.mark.parametrize("recording", (True, False))
def test_the_output_of_an_op_is_overwritten(leaf: gt.Tensor, recording: bool) -> None:
    with gt.set_grad_enabled(recording):
        x = leaf + 1
        memory, wanted = x._array, 3 * (leaf.numpy() + 1)
        y = over(x)
    assert y._array is memory
    assert np.array_equal(y.numpy(), wanted)


def test_a_chain_keeps_one_buffer(leaf: gt.Tensor) -> None:
    """`y = bn(y)` although the caller's name still refers to the input when the call is made."""
    with gt.no_grad():
        y = leaf + 1
        memory = y._array
        for _ in range(3):
            y = over(y)
    assert y._array is memory


def test_the_gradient_is_that_of_the_op_out_of_place(leaf: gt.Tensor) -> None:
    w = gt.tensor(2.5).requires_grad_()
    (over(leaf * leaf, w, by=2.0) * gt.asarray(np.arange(15.0).reshape(3, 5))).sum().backward()
    g = np.arange(15.0).reshape(3, 5)
    x = leaf.numpy()
    np.testing.assert_allclose(leaf.grad.numpy(), g * 5.0 * 2 * x)
    np.testing.assert_allclose(w.grad.numpy(), (g * 2.0 * x * x).sum())


def exported_by_dlpack(x: gt.Tensor) -> Any:
    return np.from_dlpack(x.detach())


KEEPERS: dict[str, Callable[[gt.Tensor], Any]] = {
    "a view": lambda x: x[1:],
    "a reshaped view": lambda x: x.reshape(-1),
    "a detached handle": lambda x: x.detach(),
    "a copied handle": copy.copy,
    "a consumer that saved it": lambda x: x * x,
    "a consumer that saved a view of it": lambda x: x.T.exp() * x.T,
    "its array": lambda x: x.array,
    "NumPy": lambda x: x.numpy(),
    "DLPack": exported_by_dlpack,
    "a Python buffer": lambda x: np.asarray(x.detach()),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_memory_that_someone_else_can_see_is_left_alone(leaf: gt.Tensor, name: str) -> None:
    x = leaf + 1
    before = x._device.to_numpy(x._array).copy()
    kept = KEEPERS[name](x)
    copies = gt.memory.copies("cpu").get("scaled", (0, 0))
    y = over(x)
    count, total = gt.memory.copies("cpu")["scaled"]
    assert (count, total) == (copies[0] + 1, copies[1] + x.nbytes)
    assert not np.may_share_memory(x._array, y._array)
    assert np.array_equal(x.numpy(), before), kept


@pytest.mark.parametrize("make", [
    lambda: gt.tensor([1.0, 2.0]), lambda: gt.asarray(np.ones(3)), lambda: gt.ones(3),
    lambda: gt.tensor(gt.ones(3)),
    lambda: gt.tensor([1.0, 2.0]).requires_grad_(), lambda: gt.random.normal((3,)),
    lambda: gt.from_dlpack(np.ones(3)), lambda: copy.deepcopy(gt.ones(3) + 1),
    lambda: pickle.loads(pickle.dumps(gt.ones(3) + 1)), lambda: (gt.ones(3) + 1).requires_grad_(),
    lambda: gt.broadcast_to(gt.ones(3) + 1, (2, 3)), lambda: np_view(),
])
def test_what_no_op_made_is_left_alone(make: Callable[[], gt.Tensor]) -> None:
    x = make()
    assert not overwritable(x)
    y = over(x)
    np.testing.assert_allclose(y.detach().numpy(), 3 * x.detach().numpy())


def np_view() -> gt.Tensor:
    """A view op on the caller's own array: no tensor owns that memory."""
    return registry["reshape"](np.ones(6), shape=(2, 3))


def test_a_gradient_is_left_alone(leaf: gt.Tensor) -> None:
    (leaf * 2).sum().backward()
    over(leaf.grad)
    assert np.array_equal(leaf.grad.numpy(), np.full((3, 5), 2.0))


def test_a_producer_that_saved_its_output_keeps_it(leaf: gt.Tensor) -> None:
    x = leaf.exp()
    y = over(x)
    assert not np.may_share_memory(x._array, y._array)
    y.sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), 3 * np.exp(leaf.detach().numpy()))


def test_handles_that_died_do_not_count(leaf: gt.Tensor) -> None:
    x = leaf + 1
    rows = [x[i] for i in range(3)] + [x.detach(), copy.copy(x)]
    assert not overwritable(x)
    del rows
    memory = x._array
    assert over(x)._array is memory


def test_no_garbage_is_left_by_shared_storages(leaf: gt.Tensor) -> None:
    """The weak references to handles make no cycle that only the collector could free."""
    import gc

    gc.collect()
    gc.disable()
    try:
        x = leaf + 1
        views = [x[i] for i in range(3)]
        storage = weakref.ref(x._storage)
        del x, views
        assert storage() is None
    finally:
        gc.enable()


def test_ops_extras_are_not_their_output(leaf: gt.Tensor) -> None:
    """What a record saves beside inputs and output has no flag, so it must be other memory."""
    for name in ("batch_norm", "max_pool2d", "layer_norm", "group_norm", "rms_norm", "attention"):
        op = registry[name]
        for sample in op.samples:
            arrays = [None if s is None else np.abs(np.random.standard_normal(s)) + 0.1
                      for s in sample.shapes]
            if not op.extra_names:
                continue
            out, *extras = op.cpu(*arrays, **sample.params)
            assert not any(np.may_share_memory(out, e) for e in extras if e is not None), name


# -- what is left ----------------------------------------------------------------------------------

USES: dict[str, Callable[[gt.Tensor], Any]] = {
    "an op": lambda x: x.exp(), "an operand": lambda x: x + 1, "the second": lambda x: 1.0 - x,
    "both": lambda x: gt.ones((3, 5)) * x, "a reduction": lambda x: x.sum(),
    "a view": lambda x: x[0], "a reshape": lambda x: x.reshape(-1), "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(), "numpy": lambda x: x.numpy(), "array": lambda x: x.array,
    "tolist": lambda x: x.tolist(), "copy": copy.copy, "deepcopy": lambda x: copy.deepcopy(x),
    "np.asarray": np.asarray, "np.array": np.array, "dlpack": np.from_dlpack,
    "iteration": list, "in-place add": lambda x: x.__iadd__(1.0),
    "assignment": lambda x: x.__setitem__(0, 1.0), "index": lambda x: gt.arange(5)[x],
    "consumed again": over, "many inputs": lambda x: gt.concat([gt.ones((3, 5)), x]),
    "leaf again": lambda x: x.requires_grad_(), "pickle": pickle.dumps,
}


@pytest.mark.parametrize("name", USES)
def test_a_later_use_is_an_error_that_names_the_line(name: str) -> None:
    with gt.no_grad():
        x = gt.ones((3, 5)) + 1
        over(x)  # this line
    with pytest.raises(ConsumedError) as error:
        USES[name](x)
    said = str(error.value)
    assert "taken over by scaled" in said
    assert "over(x)  # this line" in said or "apply_over" in said  # the helper's line, by frames
    assert "clone()" in said
    assert "(3, 5)" in said


def test_a_scalar_is_not_readable_either() -> None:
    with gt.no_grad():
        x = gt.ones(()) + 1
        over(x)
    for use in (gt.Tensor.item, float, int, bool, complex, "{:.2f}".format):
        with pytest.raises(ConsumedError):
            use(x)


def test_shape_gradient_and_repr_survive(leaf: gt.Tensor) -> None:
    x = leaf + 1
    x.retain_grad()
    over(x).sum().backward()
    assert (x.shape, x.ndim, x.size, x.nbytes, len(x)) == ((3, 5), 2, 15, 120, 3)
    assert x.dtype == np.float64
    assert x.requires_grad
    assert not x.is_leaf
    assert np.array_equal(x.grad.numpy(), np.full((3, 5), 3.0))
    assert "taken over by scaled" in repr(x)
    assert "shape=(3, 5)" in repr(x)


def test_a_gradient_with_respect_to_it_can_be_asked(leaf: gt.Tensor) -> None:
    x = leaf + 1
    y = over(x)
    (g,) = gt.grad(y.sum(), [x])
    assert np.array_equal(g.numpy(), np.full((3, 5), 3.0))


def test_an_error_leaves_the_input_whole(leaf: gt.Tensor) -> None:
    x = leaf + 1
    with pytest.raises(ValueError, match="scaled of shapes"):
        over(x, gt.ones(4, dtype="float64"))
    assert np.array_equal(x.numpy(), leaf.numpy() + 1)


def test_an_interrupt_in_the_write_consumes_the_input(leaf: gt.Tensor) -> None:
    """Some of its elements may have been written, so every read raises."""

    def interrupted(x: Any, *, out: Any = None) -> Any:
        out[0] = 0
        raise KeyboardInterrupt

    broken = Op("broken", cpu=interrupted, gpu=None, backward=None, tangent=None, samples=None)
    x = leaf.detach() + 1
    with pytest.raises(KeyboardInterrupt):
        apply_over(broken, (x,), {})
    with pytest.raises(ConsumedError):
        x.numpy()


def test_an_input_is_readable_after_an_interrupt_only_if_it_is_unchanged(leaf: gt.Tensor) -> None:
    over(leaf.detach() + 1)  # a first call writes texts
    for place in itertools.count(1):
        x = leaf.detach() + 1
        there = interrupt_after(place, lambda x=x: over(x))
        consumed = isinstance(x._array, Consumed)
        assert consumed is isinstance(x._storage, ConsumedStorage), f"half taken at point {place}"
        assert consumed or np.array_equal(x._array, leaf._array + 1), f"overwritten, point {place}"
        if not there:
            break
    assert consumed and place > 10


# -- who shares ----------------------------------------------------------------------------------


def test_parameters_share_like_any_handle() -> None:
    """A frozen parameter has no leaf flag to protect it."""
    for make in (lambda: nn.Parameter(gt.ones((3, 2)) * 2.0, requires_grad=False),
                 lambda: copy.deepcopy(nn.Linear(2, 3, dtype="float64")).weight):
        parameter = make().requires_grad_(False)
        before = parameter.tolist()
        over(parameter.detach())
        over(parameter.T)
        assert parameter.tolist() == before
    made = gt.ones((3, 2)) * 2.0
    parameter = nn.Parameter(made, requires_grad=False)
    over(made)
    assert parameter.tolist() == [[2.0, 2.0]] * 3


def test_a_users_op_is_not_trusted_to_make_its_output(leaf: gt.Tensor) -> None:
    same = gt.op("the same again", cpu=lambda x: x, gpu=None, tangent=None, samples=None,
                 backward=lambda ns, step, g: step.give(0, g))
    try:
        before = leaf.detach().numpy().copy()
        over(same(leaf))
        assert np.array_equal(leaf.detach().numpy(), before)
    finally:
        del registry["the same again"]


def test_two_threads_that_share_at_once_make_one_storage() -> None:
    """Both would write their facts into storages of their own."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            x = gt.ones(3) + 1
            found: list[Any] = []
            in_threads(lambda _, x=x, f=found: f.append(x._own_storage()), range(2))
            assert found[0] is found[1]
    finally:
        sys.setswitchinterval(before)


# -- the checks are checked ------------------------------------------------------------------------


def test_a_proof_that_ignores_sharing_is_caught(monkeypatch: pytest.MonkeyPatch,
                                                leaf: gt.Tensor) -> None:
    monkeypatch.setattr(Storage, "shared_beside", lambda self, handle: False)
    with pytest.raises(AssertionError):
        test_memory_that_someone_else_can_see_is_left_alone(leaf, "a view")
