"""A captured step of a language model: one recording for all positions, the tokens of the model."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda
from gtensor.models import GPT, SSM, GPTConfig, SSMConfig, generate
from gtensor.nn.blocks import KVCache
from gtensor.settings import settings

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
VOCABULARY, CAPACITY = 13, 40
KINDS = {
    "rotary": GPTConfig(VOCABULARY, 2, 12, 2, length=CAPACITY),
    "learned": GPTConfig(VOCABULARY, 2, 15, 3, length=CAPACITY, rotary=False, bias=True,
                         norm="layer", activation="gelu_tanh", tied=True),
    "grouped": GPTConfig(VOCABULARY, 3, 24, 6, 2, length=CAPACITY, context=True),
    "one key for all": GPTConfig(VOCABULARY, 1, 10, 5, 1, length=CAPACITY),
}
ONE_GRAPH = "cannot be one graph"


def made(kind: str, device: str = "cpu", dtype: str = "float32") -> GPT:
    with gt.device(device):
        return GPT(KINDS[kind], dtype=getattr(gt, dtype)).eval()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


def drawn(rng: np.random.Generator, *shape: int, device: str = "cpu") -> gt.Tensor:
    return gt.tensor(rng.integers(0, VOCABULARY, shape), device=device)


def stepping(model: GPT, state: list[KVCache]) -> Callable[[gt.Tensor], gt.Tensor]:
    return lambda token: model.step(token, state)


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_program_serves_all_positions(
    kind: str, dtype: str, device: str, rng: np.random.Generator
) -> None:
    """After prompts of several lengths, and where positions were forgotten."""
    model, batch = made(kind, device, dtype), 3
    state, other = model.initial_state(batch), model.initial_state(batch)
    step, captured = stepping(model, state), gt.capture(stepping(model, other))
    replayed = 0
    for length in (5, 1, 12, 30):
        model.clear(state), model.clear(other)
        prompt = drawn(rng, batch, length, device=device)
        model.read(prompt, state), model.read(prompt, other)
        for i in range(8):
            if i == 5:
                state[0].length = other[0].length = length + 2
            token = drawn(rng, batch, device=device)
            assert step(token).numpy().tobytes() == captured(token).numpy().tobytes()
            replayed += 1
        assert [cache.length for cache in other] == [cache.length for cache in state]
    for one, two in zip(state, other, strict=True):
        for a, b in ((one.keys, two.keys), (one.values, two.values)):
            assert a[:, :, :one.length].numpy().tobytes() == b[:, :, :two.length].numpy().tobytes()
    (program,) = captured.programs
    assert type(program).__name__ == ("Program" if device == "cpu" else "Graphed")
    assert f"{replayed - 2} replays" in captured.report()


@DEVICES
@pytest.mark.parametrize("kind", ["rotary", "learned"])
def test_a_replay_beyond_the_capacity_is_an_error_with_nothing_done(
    kind: str, device: str, rng: np.random.Generator
) -> None:
    model = made(kind, device)
    state = model.initial_state(2, 9)
    captured = gt.capture(stepping(model, state))
    token = drawn(rng, 2, device=device)
    scores = [captured(token).numpy() for _ in range(9)]
    keys = [cache.keys.numpy().copy() for cache in state]
    for _ in range(2):
        with pytest.raises(ValueError, match="of 9 positions was given positions 9 to 10; wanted"):
            captured(token)
    assert [cache.length for cache in state] == [9, 9] and len(captured.programs) == 1
    assert all(np.array_equal(cache.keys.numpy(), k) for cache, k in zip(state, keys, strict=True))
    model.clear(state)
    assert np.array_equal(captured(token).numpy(), scores[0])


@DEVICES
def test_a_first_step_is_captured_without_a_prompt(
    device: str, rng: np.random.Generator
) -> None:
    """The table of angles grows within it."""
    with gt.device(device):
        model = GPT(GPTConfig(VOCABULARY, 2, 8, 2, length=300)).eval()
    state, other = model.initial_state(1), model.initial_state(1)
    captured = gt.capture(stepping(model, state))
    for _ in range(6):
        token = drawn(rng, 1, device=device)
        assert np.array_equal(captured(token).numpy(), model.step(token, other).numpy())
    assert "2 replays" in captured.report() or "3 replays" in captured.report()


def test_a_replay_that_fails_has_added_no_position(rng: np.random.Generator) -> None:
    model = made("rotary")
    state, other = model.initial_state(1), model.initial_state(1)
    captured = gt.capture(stepping(model, state))
    tokens = [drawn(rng, 1) for _ in range(5)]
    for token in tokens[:4]:
        captured(token), model.step(token, other)
    with pytest.raises(ValueError, match="index"):
        captured(gt.tensor([VOCABULARY]))
    assert state[0].length == 4
    assert np.array_equal(captured(tokens[4]).numpy(), model.step(tokens[4], other).numpy())


def test_a_length_that_is_read_is_refused(rng: np.random.Generator) -> None:
    """A branch on it would be that of the recording."""
    model = made("rotary")
    state = model.initial_state(1)

    @gt.capture
    def step(token: gt.Tensor) -> gt.Tensor:
        return model.step(token if state[0].length < 3 else token * 0, state)

    with pytest.raises(gt.CaptureError, match="the length of a cache was read"):
        step(drawn(rng, 1))


@DEVICES
def test_a_step_may_begin_anew(device: str, rng: np.random.Generator) -> None:
    """A captured step that empties the caches reads a short prompt and a token each time."""
    model = made("learned", device)
    state, other = model.initial_state(2), model.initial_state(2)

    def read(prompt: gt.Tensor, state: list[KVCache]) -> gt.Tensor:
        model.clear(state)
        return model.step(model.read(prompt, state).argmax(axis=1), state)

    captured = gt.capture(lambda prompt: read(prompt, other))
    for _ in range(5):
        prompt = drawn(rng, 2, 3, device=device)
        assert np.array_equal(captured(prompt).numpy(), read(prompt, state).numpy())
        assert other[0].length == 4
        model.step(prompt[:, 0], other)
    assert [type(program).__name__ for program in captured.programs] == [
        "Program" if device == "cpu" else "Graphed"]


def test_caches_that_are_replaced_are_found(rng: np.random.Generator) -> None:
    """As a beam search puts sequences into another order; the memory before stays alive."""
    model = made("grouped")
    state, other = model.initial_state(2), model.initial_state(2)
    captured = gt.capture(stepping(model, state))
    kept = []
    for i in range(10):
        token = drawn(rng, 2)
        assert np.array_equal(captured(token).numpy(), model.step(token, other).numpy())
        if i in (4, 8):
            for caches in (state, other):
                kept += [(cache.keys, cache.values) for cache in caches]
                for cache in caches:
                    cache.keys, cache.values = cache.keys.flip(0), cache.values.flip(0)


@DEVICES
def test_the_whole_loop_is_a_step(device: str, rng: np.random.Generator) -> None:
    """The likeliest token, and one drawn from the likeliest 3, written where the next step reads.
    """
    for greedy in (True, False):
        model = made("grouped", device)
        prompt = drawn(rng, 4, 5, device=device)
        found = []
        for capture in (False, True):
            gt.manual_seed(7)
            state, token = model.initial_state(4), prompt[:, -1].clone()
            model.read(prompt[:, :-1], state)

            def step(model=model, state=state, token=token, greedy=greedy) -> None:
                scores = model.step(token, state) / 0.7
                if not greedy:
                    least = gt.topk(scores, 3)[0][:, -1:]
                    noise = -gt.log(-gt.log(gt.random.uniform(0.01, 0.99, scores.shape,
                                                              device=device)))
                    scores = gt.where(scores < least, -float("inf"), scores + noise)
                token[...] = scores.argmax(axis=1)

            run, tokens = gt.capture(step) if capture else step, []
            for _ in range(12):
                run()
                tokens.append(token.tolist())
            found.append(tokens)
            if capture and device == "cuda":
                assert [type(program).__name__ for program in run.programs] == ["Graphed"]
        assert found[0] == found[1]


@pytest.mark.gpu
def test_a_graph_of_ones_own_goes_on_where_the_last_replay_ended(rng: np.random.Generator) -> None:
    """With two tokens in each replay."""
    model = made("rotary", "cuda")
    state, other = model.initial_state(1, 10), model.initial_state(1, 10)
    one, two = (drawn(rng, 1, device="cuda") for _ in range(2))
    model.step(one, other), model.step(one, state)
    graph = gt.Graph("cuda")
    with graph.capture():
        model.step(one, state)
        scores = model.step(two, state)
    assert state[0].length == 1
    for stop in range(3, 10, 2):
        graph.replay()
        model.step(one, other)
        assert np.array_equal(scores.numpy(), model.step(two, other).numpy())
        assert state[0].length == stop
    with pytest.raises(ValueError, match="of 10 positions was given positions 10 to 11"):
        graph.replay()
    assert state[0].length == 9


@pytest.mark.gpu
@pytest.mark.filterwarnings(f"ignore:.*{ONE_GRAPH}")
def test_what_no_kernel_serves_is_replayed_call_by_call(rng: np.random.Generator) -> None:
    model = made("rotary", "cuda", "float64")
    state, other = model.initial_state(2), model.initial_state(2)
    captured = gt.capture(stepping(model, state))
    for i in range(6):
        token = drawn(rng, 2, device="cuda")
        if i == 2:
            with pytest.warns(UserWarning, match=ONE_GRAPH):
                found = captured(token)
        else:
            found = captured(token)
        np.testing.assert_allclose(found.numpy(), model.step(token, other).numpy(), rtol=1e-12)
    assert state[0].length == 6


@pytest.mark.host_cuda
def test_a_token_is_one_launch(rng: np.random.Generator) -> None:
    """After copies of its position and of the token; nothing waits. A block's copy is inside."""
    model = made("grouped", "cuda")
    state = model.initial_state(2)
    captured = gt.capture(stepping(model, state), outputs="shared")
    for i in range(6):
        token = drawn(rng, 2, device="cuda")
        hostcuda.reset_counters()
        captured(token)
        work = hostcuda.counters()
        if i > 2:
            assert work.other == {"launch graph": 1} and not work.synchronizations
            assert work.copies == {"device to device": 1 + len(state), "host to device": 1}


# -- generate --------------------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("temperature,top_k", [(0, None), (0.9, 4), (1.3, None)])
@pytest.mark.parametrize("kind", ["rotary", "learned", "SSM"])
def test_captured_tokens_are_those_of_the_model(
    kind: str, temperature: float, top_k: int | None, device: str, rng: np.random.Generator
) -> None:
    """Beyond the limit, where the last half is read again."""
    with gt.device(device):
        model = SSM(SSMConfig(VOCABULARY, 2, 8)).eval() if kind == "SSM" else made(kind, device)
    prompt, seed = rng.integers(0, VOCABULARY, 3).tolist(), int(rng.integers(1000))
    given = model, prompt, 90, temperature, top_k, seed
    wanted = [*generate(*given, capture=False)]
    assert [*generate(*given, capture=True)] == wanted == [*generate(*given)]


class Counting:
    """A model that counts in Python."""

    limit = None

    def parameters(self) -> object:
        return iter([gt.zeros(1)])

    def initial_state(self, batch: int) -> list[int]:
        return [0]

    def step(self, tokens: gt.Tensor, state: list[int]) -> gt.Tensor:
        state[0] += 1
        return gt.arange(10.0).roll(state[0]).reshape((1, 10))


def test_a_model_that_cannot_be_captured_goes_on_as_it_is() -> None:
    """Unless it says that it can be, it is not tried."""
    wanted = [*generate(Counting(), [1], 80, 0)]
    assert len({*wanted}) == 10
    with pytest.raises(gt.CaptureError, match="cannot be captured"):
        list(generate(Counting(), [1], 80, 0, capture=True))
    model = Counting()
    model.capturable = True  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="tokens are not captured: .* cannot be captured"):
        assert [*generate(model, [1], 80, 0)] == wanted


def test_another_way_to_capture_is_named() -> None:
    with pytest.raises(ValueError, match="capture='always'; wanted 'auto', True or False"):
        generate(made("rotary"), [1], 3, capture="always")


def test_a_captured_text_keeps_no_memory() -> None:
    """Without the garbage collector."""
    model = made("rotary")
    with settings.override(arena_min_bytes=0):
        list(generate(model, [1], 30, capture=False))  # grows the workspace of the blocks
        gc.collect()
        gc.disable()
        try:
            before = gt.memory.stats().allocated
            assert len([*generate(model, [1], 30, capture=True)]) == 30
            assert gt.memory.stats().allocated <= before
        finally:
            gc.enable()
