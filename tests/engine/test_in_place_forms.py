"""In-place forms of activations, dropout and elementwise functions: the input becomes the result.

Against PyTorch, with the input used again afterwards. Where the result lies is asked of the memory:
the input's own, or new memory where only records read the old values.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
import gtensor.nn.functional as F
from gtensor import nn
from gtensor.nn.utils import checkpoint

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
START = np.linspace(-3.3, 3.2, 24).reshape(4, 6)
ACTIVATIONS: dict[str, tuple[Any, ...]] = {  # name in nn.functional -> arguments
    "relu": (), "leaky_relu": (0.1,), "elu": (1.5,), "selu": (), "silu": (), "mish": (),
    "hardswish": (), "hardsigmoid": (), "hardtanh": (-1.0, 2.0), "relu6": ()}
MODULES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "relu": ("ReLU", ()), "leaky_relu": ("LeakyReLU", (0.1,)), "elu": ("ELU", (1.5,)),
    "selu": ("SELU", ()), "silu": ("SiLU", ()), "mish": ("Mish", ()),
    "hardswish": ("Hardswish", ()), "hardsigmoid": ("Hardsigmoid", ()),
    "hardtanh": ("Hardtanh", (-1.0, 2.0)), "relu6": ("ReLU6", ())}
SAVES_ITS_INPUT = {"silu", "mish", "hardswish", "hardsigmoid"}
UNARY = ["abs", "acos", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
         "expm1", "floor", "negative", "reciprocal", "relu", "round", "sigmoid", "sign", "sin",
         "sinh", "square", "tan", "tanh", "trunc"]
OF_POSITIVE = ["acosh", "log", "log10", "log1p", "log2", "sqrt"]


def leaf(values: np.ndarray = START, device: str = "cpu", dtype: str = "float64") -> gt.Tensor:
    return gt.tensor(values, dtype=dtype, device=device, requires_grad=True)


def activated(lib: Any, name: str, y: Any) -> Any:
    return getattr(lib, name)(y, *ACTIVATIONS[name], inplace=True)


# -- values and gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_input_is_the_result_and_its_gradient_pytorchs(name: str, device: str) -> None:
    """z is y; both are read, and so is what y was made of."""
    x, reference = leaf(device=device), torch.tensor(START, requires_grad=True)
    y, w = x * 1.5, reference * 1.5
    z, v = activated(F, name, y), activated(torch.nn.functional, name, w)
    assert z is y and v is w
    ((z + y) * y * x).sum().backward()
    ((v + w) * w * reference).sum().backward()
    # PyTorch computes hardsigmoid with a float32 sixth
    rtol = 1e-6 if name == "hardsigmoid" else 1e-12
    np.testing.assert_allclose(y.detach().numpy(), w.detach().numpy(), rtol, 1e-14)
    np.testing.assert_allclose(x.grad.numpy(), reference.grad.numpy(), rtol, 1e-13)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_module_in_place_gives_the_bits_of_one_out_of_place(
        name: str, dtype: str, create_graph: bool) -> None:
    """More elements than a tile: no tile is read after it was written."""
    kind, args = MODULES[name]
    found = []
    for inplace in (False, True):
        module = getattr(nn, kind)(*args, inplace=inplace)
        assert ("inplace=True" in repr(module)) is inplace
        x = leaf(np.linspace(-5.1, 5.2, 600), dtype=dtype)
        with gt.settings.override(tile_elements=64):
            y = x * 0.75
            z = module(y)
            assert (z is y) is inplace
            (g,) = gt.grad((z * z).sum(), [x], create_graph=create_graph)
        found.append((z.detach().astype(gt.float32).numpy(), g.detach().astype(gt.float32).numpy()))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    np.testing.assert_array_equal(found[1][1], found[0][1])


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("name", [*UNARY, *OF_POSITIVE])
def test_methods_with_an_underscore(name: str, tracked: bool) -> None:
    values = START / 10 + 0.01 if name in UNARY else START + 4.5
    x, reference = gt.tensor(values), torch.tensor(values)
    if tracked:
        x.requires_grad_()
        reference.requires_grad_()
    y = x * 1.25
    saved = y * y  # a record has y's first values
    z, expected = getattr(y, f"{name}_")(), getattr(reference * 1.25, name)()
    assert z is y
    np.testing.assert_allclose(y.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    if tracked:
        (y * y + saved).sum().backward()
        (expected * expected + (reference * 1.25) ** 2).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), reference.grad.numpy(), rtol=1e-11)


def test_forms_with_arguments_and_functions_with_an_underscore() -> None:
    y = gt.tensor(START)
    assert y.clip_(-1.0, max=2.0) is y and y.triu_(diagonal=1) is y
    np.testing.assert_array_equal(y.numpy(), np.triu(START.clip(-1, 2), 1))
    for name in ("relu", "elu", "selu", "leaky_relu", "hardtanh"):
        y, w = gt.tensor(START), torch.tensor(START)
        assert getattr(F, f"{name}_")(y) is y
        getattr(torch.nn.functional, f"{name}_")(w)
        np.testing.assert_allclose(y.numpy(), w.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name, slope", [("leaky_relu", 0.0), ("leaky_relu", -0.5), ("elu", -1.5)])
def test_an_activation_of_several_ops_is_in_place_too(name: str, slope: float) -> None:
    x, reference = leaf(), torch.tensor(START, requires_grad=True)
    y, w = x * 1.5, reference * 1.5
    assert getattr(F, name)(y, slope, inplace=True) is y
    w = getattr(torch.nn.functional, name)(w, slope)  # in place it refuses a negative slope
    (y * y).sum().backward()
    (w * w).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), reference.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_in_place_has_the_mask_of_dropout(device: str) -> None:
    x = leaf(np.ones(1000), device)
    gt.manual_seed(3)
    expected = F.dropout(x * 2.0, 0.3)
    gt.manual_seed(3)
    y = x * 2.0
    memory = y._array
    assert nn.Dropout(0.3, inplace=True)(y) is y and y._array is memory
    np.testing.assert_array_equal(y.detach().numpy(), expected.detach().numpy())
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    assert F.dropout(y, 0.3, training=False, inplace=True) is y


# -- where the result lies -------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_memory_is_written_unless_a_record_has_it(name: str, device: str) -> None:
    """An op that saves its input leaves it that memory, without a copy."""
    y = leaf(device=device) * 1.5
    memory = y._array
    activated(F, name, y)
    assert (y._array is memory) is (name not in SAVES_ITS_INPUT)
    with gt.no_grad():
        memory = y._array
        saved = y._storage.saved
        activated(F, name, y)
    assert (y._array is memory) is not saved


def test_what_an_earlier_op_saved_stays_whole() -> None:
    """PyTorch refuses the backward here: exp saved its output."""
    x = leaf()
    y = gt.exp(x)
    y.clip_(0.5, 2.0)
    inside = (np.exp(START) > 0.5) & (np.exp(START) < 2)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(START) * inside)


def test_a_view_and_its_base_see_the_write() -> None:
    base = gt.zeros((2, 3)) - 1.0
    row = base[0]
    F.relu_(row)
    assert base.tolist() == [[0, 0, 0], [-1, -1, -1]]
    base.clip_(0.5)  # a function of several ops
    assert row.tolist() == [0.5, 0.5, 0.5]
    alone = (gt.zeros((2, 3)) - 1.0)[0]
    assert F.silu(alone, inplace=True) is alone


@pytest.mark.parametrize("name", ["relu", "silu"])
def test_a_view_with_a_history_is_as_for_the_operators(name: str) -> None:
    """Also if a save came first: the tensors that share the memory are known all the same."""
    for saved in (False, True):
        x = leaf()
        y = x * 1.5
        square = gt.square(y) if saved else None
        row = y[0]
        activated(F, name, row)
        with pytest.raises(gt.GradientError, match="sum reads a tensor recorded by multiply"):
            y.sum()
        (row * row).sum().backward(retain_graph=True)
        w = torch.tensor(START, requires_grad=True)
        v = activated(torch.nn.functional, name, (w * 1.5)[0])
        (v * v).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), w.grad.numpy(), rtol=1e-12)
        if square is not None:
            with pytest.raises(gt.GradientError, match="square .* saved for its gradient was over"):
                square.sum().backward()


def test_a_recorded_walk_does_not_hide_the_tensor_that_it_saved() -> None:
    """Its rules get handles of saved values; those were taken for all that share the memory."""
    x = leaf()
    y = x * 1.5
    gt.grad((y * y).sum(), [x], create_graph=True)
    y.data.floor_()
    np.testing.assert_array_equal(y.data.numpy(), np.floor(START * 1.5))


def test_memory_that_left_is_written() -> None:
    values = np.array([-1.0, 2.0])
    F.relu_(gt.asarray(values))
    assert values.tolist() == [0.0, 2.0]
    y = gt.tensor([1.0, -2.0]) * 1.0
    outside = y.numpy()
    gt.square(y.requires_grad_() * 1.0)
    with gt.no_grad():
        F.leaky_relu_(y, -0.5)
    assert outside.tolist() == y.tolist() == [1.0, 1.0]


def test_a_leaf_is_refused_and_written_under_no_grad() -> None:
    x = leaf()
    for write in (F.relu_, gt.Tensor.exp_, lambda x: F.leaky_relu(x, -1.0, inplace=True),
                  lambda x: F.dropout(x, inplace=True), lambda x: F.relu_(x[0])):
        with pytest.raises(gt.GradientError, match=r"in-place \w+ on a leaf that requires"):
            write(x)
    np.testing.assert_array_equal(x.detach().numpy(), START)
    memory = x._array
    gt.square(x)
    with gt.no_grad():
        F.relu_(x)
    assert x._array is memory and x.is_leaf and x.requires_grad
    np.testing.assert_array_equal(x.detach().numpy(), START.clip(0))


@pytest.mark.parametrize("write, error, message", [
    (lambda: gt.tensor([1, 2]).exp_(), TypeError, "result has shape .* and dtype float32"),
    (lambda: gt.tensor([1j]).abs_(), TypeError, "into shape .* and dtype complex64"),
    (lambda: F.relu(np.ones(2), inplace=True), TypeError, "was given ndarray; wanted a Tensor"),
    (lambda: F.relu_(gt.broadcast_to(gt.ones(3), (2, 3))), ValueError, "broadcast view of shape")])
def test_what_cannot_be_written_is_refused_with_a_sentence(
        write: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        write()


def test_a_refused_dropout_draws_nothing() -> None:
    gt.manual_seed(0)
    before = gt.random.get_state()
    with pytest.raises(gt.GradientError):
        F.dropout(leaf(), inplace=True)
    assert gt.random.get_state() == before


def test_a_kept_gradient_goes_with_the_handle() -> None:
    for name in ("relu", "silu"):  # written, and moved
        x = leaf()
        y = x * 1.5
        y.retain_grad()
        activated(F, name, y)
        (y * y).sum().backward()
        np.testing.assert_array_equal(y.grad.numpy(), 2 * y.detach().numpy())


@pytest.mark.parametrize("kind, fewer", [(nn.ReLU, 1), (nn.Dropout, 1), (nn.SiLU, 0)])
def test_a_network_in_place_peaks_no_higher(kind: Callable[..., nn.Module], fewer: int) -> None:
    """By the arena; forward takes one activation less where an op's input is not saved."""

    def peaks(inplace: bool) -> tuple[int, int]:
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Linear(64, 64), kind(inplace=inplace)]
        network = nn.Sequential(*layers)
        x = gt.random.normal((128, 64))
        gc.collect()
        gt.memory.reset_peak()
        before = gt.memory.stats().allocated
        loss = network(x).mean()
        forward = gt.memory.stats().peak_allocated - before
        loss.backward()
        return forward, gt.memory.stats().peak_allocated - before

    with gt.settings.override(arena_min_bytes=4096):
        (forward, step), (forward_out, step_out) = peaks(True), peaks(False)
    assert forward_out - forward == fewer * 128 * 64 * 4
    assert step <= step_out


@pytest.mark.gpu
@pytest.mark.parametrize("inplace", [False, True])
def test_replays_of_a_captured_step_in_place(inplace: bool) -> None:
    """A handle moves to the graph's memory, or its own is written again by each replay."""
    x = gt.tensor(START, device="cuda")
    w = leaf(np.ones((6, 6)) / 3, "cuda")

    def step() -> gt.Tensor:
        y = x @ w
        F.relu(y, inplace=True) if inplace else None
        z = y if inplace else F.relu(y)
        h = F.silu(z @ w, inplace)
        (g,) = gt.grad((h * z).sum(), [w])
        return g

    expected = step().numpy()
    graph = gt.Graph("cuda")
    with graph.capture():
        g = step()
    for _ in range(2):
        graph.replay()
        np.testing.assert_allclose(g.numpy(), expected, rtol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("written", ["input", "output", "state"])
@pytest.mark.parametrize("name", ["relu", "silu", "clip"])
def test_what_replays_read_or_write_is_written(name: str, written: str) -> None:
    """A handle that left the memory which a graph has would not see its replays, nor they it."""

    def write(x: gt.Tensor) -> None:
        with gt.no_grad():
            x.clip_(0.1, 0.9) if name == "clip" else activated(F, name, x)

    x = gt.tensor(START, device="cuda") * 1.0
    w = leaf(np.ones((6, 6)), "cuda")
    saved = [x @ w]  # so a record has x
    graph = gt.Graph("cuda")
    with graph.capture():
        out = x * 2.0
        saved.append(out @ w)
        if written == "state":
            write(x)
    graph.replay()
    if written != "state":
        write(x if written == "input" else out)
        graph.replay()
    expected = gt.tensor(START)
    if written != "output":
        write(expected)
    np.testing.assert_allclose(x.numpy(), expected.numpy(), rtol=1e-6)
    read = gt.tensor(START) if written == "state" else expected
    np.testing.assert_allclose(out.numpy(), (read * 2.0).numpy(), rtol=1e-6)


# -- transforms, checkpoints, autocast -------------------------------------------------------------


def _residual(inplace: bool) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        y = x * 1.5
        if not inplace:
            y = F.relu(y)
            h = F.silu(y * 2.0)
        else:
            F.relu_(y)
            h = F.silu(y * 2.0, inplace=True)
        return h * y + x

    return function


TRANSFORMS: dict[str, Callable[[Callable[[Any], Any], gt.Tensor], Any]] = {
    "grad": lambda f, x: gt.grad(lambda v: f(v).sum())(x),
    "vmap": lambda f, x: gt.vmap(f)(x),
    "vmap of grad": lambda f, x: gt.vmap(gt.grad(lambda v: f(v).sum()))(x),
    "jvp": lambda f, x: gt.jvp(f, (x,), (x * 2.0,))[1],
    "hessian": lambda f, x: gt.hessian(lambda v: f(v).sum())(x[0]),
    "jvp of vmap": lambda f, x: gt.jvp(gt.vmap(f), (x,), (x,))[1],
    "checkpoint": lambda f, x: gt.grad(lambda v: checkpoint(f, v * 1.0).sum())(x),
    "checkpoint of what is used again": lambda f, x: gt.grad(
        lambda v: (checkpoint(f, y := v * 1.0) * y).sum())(x),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_what_they_give_out_of_place(name: str, device: str) -> None:
    x = gt.tensor(START, device=device)
    found, expected = (TRANSFORMS[name](_residual(inplace), x) for inplace in (True, False))
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("write", [
    F.relu_, lambda x: F.dropout(x, 0.5, inplace=True), lambda x: x.exp_(), lambda x: x.clip_(0),
    lambda x: gt.jvp(F.relu_, (x * 2.0,), (x,))[0]])
def test_an_argument_of_a_transformed_function_is_refused(write: Callable[[Any], Any]) -> None:
    """Its memory is the caller's."""
    x = gt.tensor(START)
    with pytest.raises(gt.LevelError, match=r"in-place \w+ would overwrite a value within"):
        gt.vmap(write, randomness="different")(x)
    np.testing.assert_array_equal(x.numpy(), START)


def test_a_view_of_a_value_within_a_transform_is_not_left_behind() -> None:
    def through_a_view(x: gt.Tensor) -> gt.Tensor:
        y = x * 2.0
        F.relu_(y[:3])
        part = y[:3]
        F.relu_(part)
        return y

    with pytest.raises(gt.LevelError, match="in-place relu would overwrite a value within vmap"):
        gt.vmap(through_a_view)(gt.tensor(START))


@pytest.mark.parametrize("again", [False, True])
def test_a_checkpoint_whose_input_is_overwritten(again: bool) -> None:
    """The region's input is saved, so the caller's handle moves and the second run has the old."""
    x, reference = leaf(), torch.tensor(START, requires_grad=True)
    y = x * 1.5
    out = checkpoint(lambda v: F.relu_(v) * v, y)
    w = torch.relu(reference * 1.5)
    (out + y if again else out).sum().backward()
    (w * w + w if again else w * w).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), reference.grad.numpy(), rtol=1e-12)


def test_autocast_keeps_the_dtype_of_what_is_overwritten() -> None:
    x = leaf(dtype="float32")
    w = leaf(np.ones((6, 6)), dtype="float32")
    with gt.autocast(gt.bfloat16):
        y = x @ w
        F.silu(F.relu_(y), inplace=True)
        assert y.dtype == gt.bfloat16
        kept = F.relu_(x * 2.0)
        assert kept.dtype == gt.float32
    (y.astype(gt.float32).sum() + kept.sum()).backward()
    assert x.grad.dtype == gt.float32
