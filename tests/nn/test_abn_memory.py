"""What batch norm with activation keeps and takes, in place and out of place, to the buffer.

Activations are one *unit* large, four times the tile of work memory that an op may have.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.tape.op import registry
from gtensor.nn import functional as F
from gtensor.system.bus import OpEvent

SHAPE = (4, 16, 64, 64)
CHANNELS = SHAPE[1]
UNIT = 2**20  # bytes of SHAPE in float32
TILE = 4 * 65_536  # work memory of one op
PYTHON = 64 * 2**10  # records, per-channel numbers, what the observer writes down
INVERTED = ("leaky_relu", "elu", "identity", "tanh", "sigmoid", "softplus")
KEPT = {"relu": 1, "gelu": 2, "silu": 2}  # have no inverse: the input is kept -> tiles of work

Norm = type[nn.ABN]


@pytest.fixture(autouse=True)
def _all_counts() -> Iterator[None]:
    """Arrays with an element per pixel come from the arena; those of a channel do not."""
    with gt.settings.override(arena_min_bytes=4096):
        yield
    gc.collect()


class Stack:
    """Convolutions, each with its norm, and a mean over pixels, of which backward needs nothing."""

    def __init__(self, norm: Norm, depth: int, activation: str) -> None:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
                       norm(CHANNELS, activation=activation)]
        self.network = nn.Sequential(*layers)
        self.x = gt.random.normal(SHAPE)

    def loss(self) -> gt.Tensor:
        return self.network(self.x).mean(axis=(2, 3)).sum()


def saved(run: Callable[[], gt.Tensor]) -> int:
    """Bytes that `run`'s result keeps alive, by the arena."""
    before = gt.memory.stats().allocated
    loss = run()
    kept = gt.memory.stats().allocated - before
    assert loss.requires_grad
    return kept


def traced(run: Callable[[], gt.Tensor]) -> int:
    """The same by tracemalloc, arrays of all sizes, from NumPy's allocator."""
    with gt.memory.use_arena(False):
        tracemalloc.start()
        try:
            loss = run()
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
    assert loss.requires_grad
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in snapshot.filter_traces([domain]).traces)


# -- what one call of an op takes ------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What was allocated while an op's path or rule ran."""

    name: str
    phase: str
    full: tuple[str, ...]  # labels of the arena's blocks that are as large as the activation
    peak: int  # most bytes at a time by tracemalloc, which sees what is not in the arena
    held: bool  # whether the result, or the gradient that it gave, lies where its first array lay


class Watch:
    """Every call of an op within the block: by the arena's events, or else by tracemalloc."""

    def __init__(self, arena: bool) -> None:
        self.calls: list[Call] = []
        self._arena = arena
        self._around = ExitStack()

    def __enter__(self) -> Watch:
        self._around.enter_context(gt.listen(self))
        if self._arena:
            self._events = self._around.enter_context(gt.memory.timeline())
        else:
            self._around.enter_context(gt.memory.use_arena(False))
            tracemalloc.start()
            self._around.callback(tracemalloc.stop)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._around.close()

    def op_begins(self, event: OpEvent) -> None:
        if self._arena:
            self._before = self._events.recorded
        else:
            tracemalloc.reset_peak()
            self._before = tracemalloc.get_traced_memory()[0]

    def op_ends(self, event: OpEvent) -> None:
        full: list[str] = []
        peak = 0
        if self._arena:
            full = [e.label for e in self._events.events[self._before:] if e.delta >= UNIT // 2]
        else:
            peak = tracemalloc.get_traced_memory()[1] - self._before
        first = next(iter(event.arrays), None)  # a path's first array; a rule's g
        given = event.result[0] if isinstance(event.result, tuple) else event.result
        if event.phase == "backward":
            _, step, _ = event.args
            given, _ = step.slots.get(step.parents[0], (None, None))
        held = address(given) == address(first) != 0
        self.calls.append(Call(event.name, event.phase, tuple(full), peak, held))

    def of(self, name: str, phase: str) -> Call:
        """The one call of that op."""
        found, = (c for c in self.calls if (c.name, c.phase) == (name, phase))
        return found


def address(a: Any) -> int:
    """Where an array lies; 0 for what is none."""
    return a.__array_interface__["data"][0] if isinstance(a, np.ndarray) else 0


def watched(activation: str, training: bool, arena: bool) -> tuple[Watch, Watch]:
    """Forward and backward of one norm in place, between two convolutions."""
    net = nn.Sequential(nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False),
                        nn.InPlaceABN(CHANNELS, activation=activation),
                        nn.Conv2d(CHANNELS, 1, 3, padding=1)).train(training)
    x = gt.random.normal((SHAPE[0], 1, *SHAPE[2:]))
    with Watch(arena) as forward:
        loss = net(x).mean()
    with Watch(arena) as backward:
        loss.backward()
    return forward, backward


def check(call: Call, arena: bool, *full: str, held: bool, tiles: int = 1) -> None:
    """Exactly these full-size buffers were taken, and at most so many tiles beside them."""
    assert call.held == held, call
    if arena:
        assert call.full == full, call
    else:
        assert 0 <= call.peak - len(full) * UNIT <= tiles * TILE + PYTHON, call


def check_inverted(activation: str, training: bool = True, arena: bool = True) -> None:
    """No full-size buffer: the output lies where the input did, the gradient where z's did."""
    forward, backward = watched(activation, training, arena)
    check(forward.of("inplace_abn", "forward"), arena, held=True)
    check(backward.of("inplace_abn", "backward"), arena, held=True)


def check_kept(activation: str, training: bool = True, arena: bool = True) -> None:
    """One buffer for z in forward, one for z made again in backward; dx lies where dz did."""
    forward, backward = watched(activation, training, arena)
    tiles = KEPT[activation]
    check(forward.of("batch_norm", "forward"), arena, "batch_norm", held=False, tiles=tiles)
    check(backward.of("batch_norm", "forward"), arena, "batch_norm", held=False, tiles=tiles)
    check(backward.of("batch_norm", "backward"), arena, held=True, tiles=tiles)


BOTH_COUNTS = pytest.mark.parametrize("arena", (True, False), ids=("arena", "tracemalloc"))


def in_both_modes(activations: Iterable[str], evaluated: str) -> pytest.MarkDecorator:
    """In training, and one of them in evaluation, whose paths differ only by a few sums."""
    cases = [(name, True) for name in activations] + [(evaluated, False)]
    return pytest.mark.parametrize("activation,training", cases)


@BOTH_COUNTS
@in_both_modes(INVERTED, "leaky_relu")
def test_an_inverted_activation_takes_no_full_size_buffer(
    activation: str, training: bool, arena: bool
) -> None:
    check_inverted(activation, training, arena)


@BOTH_COUNTS
@in_both_modes(KEPT, "relu")
def test_relu_takes_one_for_z_and_one_for_z_made_again(
    activation: str, training: bool, arena: bool
) -> None:
    check_kept(activation, training, arena)


@BOTH_COUNTS
@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
def test_replicas_exchange_numbers_of_channels_only(
    monkeypatch: pytest.MonkeyPatch, activation: str, arena: bool
) -> None:
    """No buffer more is taken or kept than by a norm alone."""
    monkeypatch.setattr(nn.InPlaceABN, "_gather", staticmethod(lambda array: array[None]))
    (check_kept if activation in KEPT else check_inverted)(activation, True, arena)
    check_saved(nn.InPlaceABN, activation)


@BOTH_COUNTS
@in_both_modes((*INVERTED, *KEPT), "relu")
def test_without_a_tape_every_activation_is_written_over_its_input(
    activation: str, training: bool, arena: bool
) -> None:
    norm = nn.InPlaceABN(CHANNELS, activation=activation).train(training)
    x = gt.random.normal(SHAPE)
    with gt.no_grad():
        y = x + 1.0
        with Watch(arena) as watch:
            y = norm(y)
    name = "inplace_abn" if activation in INVERTED else "batch_norm"
    check(watch.of(name, "forward"), arena, held=True, tiles=KEPT.get(activation, 1))


# -- what a stack keeps ----------------------------------------------------------------------------


def check_saved(norm: Norm, activation: str, most: int = 3) -> None:
    """A layer in place keeps one buffer; out of place two, but no record needs the last output."""
    for depth in range(1, most + 1):
        stack = Stack(norm, depth, activation)
        units = depth if norm is nn.InPlaceABN else 2 * depth - 1
        copies = gt.memory.copies()
        assert saved(stack.loss) == units * UNIT
        assert 0 <= traced(stack.loss) - units * UNIT <= PYTHON
        assert gt.memory.copies() == copies


@pytest.mark.parametrize("norm", (nn.ABN, nn.InPlaceABN))
@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
def test_a_layer_keeps_one_buffer_in_place_and_two_out_of_place(
    norm: Norm, activation: str
) -> None:
    check_saved(norm, activation)


@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
def test_the_convolution_alone_keeps_its_output_and_the_norm_in_place_adds_nothing(
    activation: str
) -> None:
    """im2col's columns live as long as their op; the first layer's input is the caller's."""
    conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
    norm = nn.InPlaceABN(CHANNELS, activation=activation)
    x = gt.random.normal(SHAPE)
    before = gt.memory.stats().allocated
    y = conv(x)
    assert gt.memory.stats().allocated - before == UNIT
    z = norm(y)
    held = 1 if activation == "leaky_relu" else 2  # z, while its handle lives
    assert gt.memory.stats().allocated - before == held * UNIT
    loss = z.mean()
    del z
    assert gt.memory.stats().allocated - before == UNIT
    del loss
    assert gt.memory.stats().allocated == before  # y is consumed: its handle holds nothing


@pytest.mark.parametrize("norm", (nn.ABN, nn.InPlaceABN))
@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
@pytest.mark.parametrize("how", ("no_grad", "evaluation"))
def test_evaluation_and_no_grad(norm: Norm, activation: str, how: str) -> None:
    """Without a tape nothing is kept; evaluation with one keeps what training keeps."""
    stack = Stack(norm, 2, activation)
    if how == "evaluation":
        stack.network.eval()
        units = 2 if norm is nn.InPlaceABN else 3
        assert saved(stack.loss) == units * UNIT
        return
    before = gt.memory.stats().allocated
    gt.memory.reset_peak()
    with gt.no_grad():
        y = stack.network(stack.x)
    assert gt.memory.stats().allocated - before == UNIT == y.nbytes


def test_all_is_given_back_after_backward() -> None:
    stack = Stack(nn.InPlaceABN, 2, "leaky_relu")
    stack.loss().backward()
    for p in stack.network.parameters():
        p.grad = None
    before = gt.memory.stats().allocated
    loss = stack.loss()
    loss.backward()
    for p in stack.network.parameters():
        p.grad = None
    assert gt.memory.stats().allocated == before


# -- planted faults --------------------------------------------------------------------------------


def extra_in_arena(a: np.ndarray) -> np.ndarray:
    return gt.device("cpu").empty(a.shape, a.dtype, "extra")


def extra_in_numpy(a: np.ndarray) -> np.ndarray:
    return a.copy()


@pytest.mark.parametrize("extra,arena", [
    (extra_in_arena, True), (extra_in_arena, False), (extra_in_numpy, False)])
@pytest.mark.parametrize("name,fails", [
    ("inplace_abn", check_inverted), ("inplace_abn_grad", check_inverted),
    ("batch_norm", check_kept), ("batch_norm_grads", check_kept)])
def test_a_full_size_copy_in_a_path_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, fails: Callable[..., None],
    extra: Callable[[np.ndarray], np.ndarray], arena: bool,
) -> None:
    right = registry[name].cpu

    def wrong(*arrays: Any, **params: Any) -> Any:
        copied = extra(arrays[0])
        result = right(*arrays, **params)
        del copied
        return result

    monkeypatch.setattr(registry[name], "cpu", wrong)
    monkeypatch.setattr(raw["cpu"], name, wrong)
    with pytest.raises(AssertionError, match="Call"):
        fails("leaky_relu" if fails is check_inverted else "relu", arena=arena)


@BOTH_COUNTS
@pytest.mark.parametrize("name,fails", [
    ("inplace_abn_grad", check_inverted), ("batch_norm_grads", check_kept)])
def test_a_gradient_beside_that_of_z_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, fails: Callable[..., None], arena: bool
) -> None:
    right = registry[name].cpu
    monkeypatch.setattr(raw["cpu"], name, lambda *arrays, out, **params: right(*arrays, **params))
    with pytest.raises(AssertionError, match="held=False"):
        fails("leaky_relu" if fails is check_inverted else "relu", arena=arena)


@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
def test_a_stack_that_does_not_take_its_input_is_noticed(
    monkeypatch: pytest.MonkeyPatch, activation: str
) -> None:
    """Out of place where in place was asked for: two buffers per layer."""
    monkeypatch.setattr(nn.InPlaceABN, "_activated", nn.ABN._activated)
    with pytest.raises(AssertionError):
        check_saved(nn.InPlaceABN, activation)


# -- the same gradients ----------------------------------------------------------------------------


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("activation", (*INVERTED, *KEPT, "gelu_tanh"))
def test_the_gradients_are_those_out_of_place(activation: str, training: bool) -> None:
    parameter = {"elu": 1.0, "softplus": 1.0}.get(activation, 0.01)
    nets = []
    for norm in (nn.ABN, nn.InPlaceABN):
        gt.manual_seed(3)
        net = nn.Sequential(*(part for _ in range(4) for part in (
            nn.Conv2d(3, 3, 3, padding=1),
            norm(3, activation=activation, activation_param=parameter)))).to(gt.float64)
        with gt.no_grad():
            for p in net.parameters():
                if p.ndim == 1:
                    p += 0.3 * gt.random.normal(p.shape, dtype=gt.float64)
        nets.append(net.train(training))
    x = gt.random.normal((3, 3, 7, 5), dtype=gt.float64)
    images = [x.clone().requires_grad_() for _ in nets]
    weights = gt.random.normal((3, 3, 7, 5), dtype=gt.float64)
    losses = [(net(image) * weights).sum() for net, image in zip(nets, images, strict=True)]
    assert abs(losses[0].item() - losses[1].item()) <= 1e-9 * abs(losses[0].item())
    for loss in losses:
        loss.backward()
    outside, inside = ([*net.parameters(), image] for net, image in zip(nets, images, strict=True))
    for i, (a, b) in enumerate(zip(outside, inside, strict=True)):
        wanted, given = a.grad.numpy(), b.grad.numpy()
        scale = max(np.linalg.norm(wanted), 1e-3)  # a bias before a norm in training has none
        assert np.linalg.norm(given - wanted) <= 1e-9 * scale, (i, a.shape)
    for a, b in zip(nets[0].buffers(), nets[1].buffers(), strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-9)


def test_the_function_consumes_as_the_module_does() -> None:
    leaf = gt.random.normal((2, 3, 4), requires_grad=True)
    x = leaf * 2.0
    memory = x._array.__array_interface__["data"][0]
    z = F.inplace_abn(x)
    assert z._array.__array_interface__["data"][0] == memory
