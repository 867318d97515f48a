"""gt.random: values where they were asked for, and what it refuses in one sentence."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import gtensor as gt


def test_values_lie_where_they_were_asked_for():
    for dtype in (gt.float64, gt.float32, gt.float16):
        x = gt.random.normal((4000,), mean=3.0, std=0.5, dtype=dtype)
        assert x.dtype == dtype and abs(x.numpy().mean(dtype=float) - 3) < 0.1
        y = gt.random.uniform((4000,), low=-2.0, high=-1.0, dtype=dtype).numpy()
        assert -2 <= y.min() < -1.9 and -1.1 < y.max() <= -1
    assert set(gt.random.integers(2, 5, (500,)).tolist()) == {2, 3, 4}
    assert gt.random.normal(3, std=0).tolist() == [0.0] * 3
    assert gt.random.uniform(2, low=1, high=1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("call,kind,sentence", [
    (lambda r: r.uniform((3,), low=5, high=1), ValueError, "low=5 and high=1"),
    (lambda r: r.uniform((3,), high=np.inf), ValueError, "wanted finite low <= high"),
    (lambda r: r.integers(5, 1, (3,)), ValueError, "integers was given low=5 and high=1"),
    (lambda r: r.integers(5, 5, (3,)), ValueError, "wanted low < high"),
    (lambda r: r.normal((3,), std=-1), ValueError, "normal was given std=-1; wanted 0 or more"),
    (lambda r: r.normal((3,), dtype=gt.int64), TypeError, "normal was given dtype=int64"),
    (lambda r: r.uniform((3,), dtype=gt.complex64), TypeError, "wanted a floating-point dtype"),
    (lambda r: r.normal(2, 3), TypeError, "positional argument"),  # PyTorch's randn(2, 3)
    (lambda r: r.uniform(2, 3), TypeError, "positional argument"),
    (lambda r: r.normal(), TypeError, r"given \(\) .* wanted normal\(shape\) or normal\(mean, std"),
    (lambda r: r.normal(3, size=(3,), shape=2), TypeError, "wanted normal"),
    (lambda r: r.normal(0, 1, 2, 3), TypeError, "whose shape is one argument"),
    (lambda r: r.normal(gt.ones(3), 1.0, 3), TypeError, "given a tensor as its mean"),
    (lambda r: r.exponential(3, scale=-1), ValueError, "scale=-1; wanted 0 or more"),
    (lambda r: r.bernoulli(1.5), ValueError, "outside of 0 to 1"),
    (lambda r: r.bernoulli(gt.tensor([0.5, np.nan])), ValueError, "outside of 0 to 1"),
    (lambda r: r.bernoulli(gt.tensor([0.5]), (3,)), ValueError, "beside a tensor"),
    (lambda r: r.multinomial(gt.ones((2, 3)), 4), ValueError, r"num_samples=4 of weights of shape"),
    (lambda r: r.multinomial(gt.ones(()), 1), ValueError, r"wanted \(..., n\)"),
    (lambda r: r.multinomial(gt.tensor([-1.0, 2.0]), 1), ValueError, "negative or not finite"),
    (lambda r: r.multinomial(gt.tensor([[1.0, 2.0], [1.0, 0.0]]), 2), ValueError, "fewer weights"),
    (lambda r: r.multinomial(gt.tensor([0.0, 0.0]), 3, True), ValueError, "fewer weights"),
    (lambda r: r.multinomial(gt.tensor([1, 2]), 1), TypeError, "multinomial was given dtype=int64"),
    (lambda r: r.integers(0, 300, 5, dtype="uint8"), ValueError, "high=300 for uint8; wanted"),
    (lambda r: r.integers(-1, 2, 5, dtype="uint8"), ValueError, "low=-1 and high=2 for uint8"),
    (lambda r: r.permutation([1, 2]), TypeError, "permutation was given list; wanted an integer"),
    (lambda r: r.choice(3, 4, replace=False), ValueError, "larger sample"),
    (lambda r: r.choice(3, p=[0.5, 0.5]), ValueError, r"p=\[0.5, 0.5\] for 3 rows; wanted as many"),
    (lambda r: r.choice(2, p=gt.tensor([0.5, 0.6])), ValueError, "which add up to 1"),
    (lambda r: r.shuffle([1, 2]), TypeError, "given list; wanted a tensor"),
])
def test_mistakes_get_one_sentence(call, kind, sentence):
    before = gt.random.get_state()
    with pytest.raises(kind, match=sentence):
        call(gt.random)
    assert gt.random.get_state() == before


def changed(state, path, value):
    """A state with one field replaced, or left out (...)."""
    state = json.loads(json.dumps(state))
    place = state["state"] if path in ("counter", "key") else state
    if value is ...:
        del place[path]
    else:
        place[path] = value
    return state


BAD_FIELDS = [
    *(("buffer_pos", n) for n in (
        -1, -2**31, 5, 2**31, 2**63, 2**64, 10**400, 1.0, True, None, ...)),
    *((name, value) for name in ("counter", "key", "buffer") for value in (
        ..., None, 3, "1234", [1], [1] * 5, [-1] * 4, [-1] * 2, [2**64] * 4, [2**64] * 2,
        [10**400] * 2, [0.5] * 4, [float("nan")] * 2, [None] * 4, {"0": 1}, np.zeros((2, 2)))),
    *(("has_uint32", n) for n in (-1, 2, 10**400, 0.5, None, ...)),
    *(("uinteger", n) for n in (-1, 2**32, 10**400, "0", ...)),
    *(("state", value) for value in (None, 3, [], ...)),
    *(("bit_generator", name) for name in (
        "MT19937", "PCG64", "PCG64DXSM", "SFC64", "philox", "", 3, None, ["Philox"], ...))]


@pytest.mark.parametrize(("path", "value"), BAD_FIELDS)
def test_every_field_of_a_random_state_is_checked(path, value):
    before = gt.random.get_state()
    with pytest.raises(ValueError, match=r"^a random state .* given; wanted .*; nothing was chang"):
        gt.random.set_state(changed(before, path, value))
    assert gt.random.get_state() == before


@pytest.mark.parametrize("state", [None, 3, [], "Philox", {}, np.zeros(3), 10**400])
def test_what_is_no_random_state_is_refused(state):
    with pytest.raises(ValueError, match="wanted one of get_state"):
        gt.random.set_state(state)


def test_any_state_that_the_generator_can_be_in_is_taken():
    for position in range(5):
        state = changed(gt.random.get_state(), "buffer_pos", position)
        gt.random.set_state(state)
        assert gt.random.get_state() == state
        gt.random.set_state(gt.random.generator().bit_generator.state)  # with NumPy's own arrays
        assert gt.random.get_state() == state


def test_random_states_are_json():
    gt.random.normal(3)
    state = json.loads(json.dumps(gt.random.get_state()))
    first = gt.random.uniform(5).tolist()
    gt.random.set_state(state)
    assert gt.random.uniform(5).tolist() == first


def test_a_seeded_block_draws_its_own_numbers():
    gt.manual_seed(1)
    wanted = gt.random.normal(4).tolist()
    gt.manual_seed(1)
    with gt.random.seeded(7):
        first = gt.random.normal(3).tolist()
        gt.manual_seed(2)  # of this block
    with gt.random.seeded(7):
        assert gt.random.normal(3).tolist() == first
    assert gt.random.normal(4).tolist() == wanted
    with pytest.raises(ValueError, match="seed -1 given"):
        gt.random.seeded(-1)


def test_ranks_of_one_seed_have_streams_of_their_own():
    def drawn(rank, before=0):
        gt.manual_seed(5)
        gt.random.normal(before)
        gt.random.jump(rank)
        return gt.random.normal(1000).numpy()

    streams = [drawn(rank) for rank in range(3)]
    gt.manual_seed(5)
    assert np.array_equal(streams[0], gt.random.normal(1000).numpy())  # rank 0 goes on
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert abs(np.corrcoef(streams[a], streams[b])[0, 1]) < 0.15
    assert np.array_equal(drawn(2), streams[2]) and not np.array_equal(drawn(2, 3), streams[2])
    for wrong in (-1, 1.0):
        with pytest.raises(ValueError, match="wanted an integer of 0 or more"):
            gt.random.jump(wrong)


def test_numpys_and_pytorchs_orders_of_arguments_draw_the_same_values():
    r = gt.random
    for calls in (
        [lambda: r.normal((2, 3), mean=1.0, std=0.5), lambda: r.normal(1.0, 0.5, (2, 3)),
         lambda: r.normal(1.0, 0.5, size=(2, 3)), lambda: r.normal(size=(2, 3), mean=1, std=0.5)],
        [lambda: r.normal((2, 3)), lambda: r.randn(2, 3), lambda: r.randn((2, 3)),
         lambda: r.normal(shape=(2, 3))],
        [lambda: r.uniform((4,)), lambda: r.rand(4), lambda: r.uniform(0, 1, 4)],
        [lambda: r.uniform((4,), low=-1, high=2), lambda: r.uniform(-1, 2, (4,)),
         lambda: r.uniform(-1, size=4, high=2)],
        [lambda: r.exponential(5, scale=2.0), lambda: r.exponential(2.0, (5,))],
        [lambda: r.integers(0, 9, (5,)), lambda: r.integers(9, (5,)), lambda: r.integers(9, size=5),
         lambda: r.integers(0, 9, size=(5,))],
        [lambda: r.integers(0, 9, ()), lambda: r.integers(9)],
    ):
        found = []
        for call in calls:
            gt.manual_seed(3)
            found.append(call())
        assert all(x.shape == found[0].shape and x.tolist() == found[0].tolist() for x in found)
    assert r.randn().shape == () and r.randn(0, 2, dtype=gt.float64).dtype == gt.float64


def test_draws_have_their_probabilities():
    gt.manual_seed(0)
    p = gt.tensor([0.0, 0.1, 0.7, 1.0], requires_grad=True)
    drawn = gt.random.bernoulli(gt.broadcast_to(p, (20000, 4)))
    assert drawn.dtype == p.dtype and not drawn.requires_grad and set(drawn.flatten().tolist()) == {
        0.0, 1.0}
    np.testing.assert_allclose(drawn.mean(axis=0).numpy(), p.tolist(), atol=0.02)
    assert gt.random.bernoulli(1.0, (5,), dtype=gt.float16).tolist() == [1.0] * 5

    weights = gt.tensor([[1.0, 0.0, 3.0], [2.0, 2.0, 4.0]])
    many = gt.random.multinomial(weights, 20000, replacement=True)
    assert many.dtype == gt.int64 and many.shape == (2, 20000)
    shares = [np.bincount(row, minlength=3) / 20000 for row in many.numpy()]
    np.testing.assert_allclose(shares, [[0.25, 0, 0.75], [0.25, 0.25, 0.5]], atol=0.02)
    pairs = gt.random.multinomial(gt.broadcast_to(weights[1], (20000, 3)), 2).numpy()
    assert (pairs[:, 0] != pairs[:, 1]).all()
    np.testing.assert_allclose(np.bincount(pairs[:, 0]) / 20000, [0.25, 0.25, 0.5], atol=0.02)
    behind = pairs[pairs[:, 0] == 2, 1]  # of those left, by their own weights
    np.testing.assert_allclose(np.bincount(behind, minlength=3) / len(behind), [0.5, 0.5, 0],
                               atol=0.03)
    assert gt.random.multinomial(weights[0], 2).shape == (2,)
    assert gt.random.multinomial(gt.zeros((0, 3)), 2).shape == (0, 2)
    assert abs(gt.random.exponential(20000, scale=3.0).mean().item() - 3) < 0.1


def test_rows_are_chosen_and_shuffled():
    gt.manual_seed(0)
    x = gt.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    rows = gt.random.choice(x, (2, 3))
    assert rows.shape == (2, 3, 2)
    rows.sum().backward()
    assert x.grad.sum().item() == 12
    assert sorted(gt.random.choice(4, 4, replace=False).tolist()) == [0, 1, 2, 3]
    assert set(gt.random.choice([7, 8, 9], 50, p=gt.tensor([0.5, 0.0, 0.5])).tolist()) == {7, 9}
    assert gt.random.choice(3).shape == () and gt.random.choice(x.detach()).shape == (2,)
    y = gt.arange(20).reshape((10, 2))
    assert gt.random.shuffle(y[:, 1:]) is None  # a view: in place
    assert sorted(y[:, 1].tolist()) == list(range(1, 20, 2)) != y[:, 1].tolist()
    assert y[:, 0].tolist() == list(range(0, 20, 2))
    twice = [gt.arange(9), gt.arange(9)]
    for z in twice:
        gt.random.shuffle(z, generator=gt.random.key(1))
    assert twice[0].tolist() == twice[1].tolist() != [*range(9)]
    assert gt.randint_like(gt.zeros((50,)), 3).dtype == gt.float32
    assert set(gt.randint_like(gt.zeros((50,), gt.int32), 2, 4).tolist()) == {2, 3}
    assert sorted(gt.random.permutation(y)[:, 0].tolist()) == list(range(0, 20, 2))
    assert gt.random.permutation(gt.zeros((0, 2))).shape == (0, 2)


def test_within_vmap_each_example_draws_its_own():
    gt.manual_seed(0)
    p = gt.full((50, 3), 0.5)
    for draw in (gt.random.bernoulli, lambda p: gt.random.multinomial(p, 2),
                 lambda p: gt.random.choice(9, 3, replace=False)):
        found = gt.vmap(draw, randomness="different")(p).numpy()
        assert len({tuple(row) for row in found}) > 4
        if found.dtype.kind == "i":
            assert all(len(set(row)) == len(row) for row in found)
        same = gt.vmap(draw, randomness="same")(p).numpy()
        assert (same == same[0]).all()


DRAWS = {
    "randn": lambda g: gt.random.randn(2, 3, generator=g),
    "rand": lambda g: gt.random.rand(5, generator=g),
    "normal": lambda g: gt.random.normal(0.0, 2.0, (4,), generator=g),
    "exponential": lambda g: gt.random.exponential((4,), generator=g),
    "integers": lambda g: gt.random.integers(0, 100, (6,), generator=g),
    "permutation": lambda g: gt.random.permutation(20, generator=g),
    "bernoulli": lambda g: gt.random.bernoulli(gt.ones(30) / 2, generator=g),
    "multinomial": lambda g: gt.random.multinomial(gt.ones(30), 5, generator=g),
    "choice": lambda g: gt.random.choice(30, 6, generator=g),
    "laplace": lambda g: gt.random.laplace(1.0, gt.ones(4), generator=g),
    "gumbel": lambda g: gt.random.gumbel(size=4, generator=g),
    "truncated_normal": lambda g: gt.random.truncated_normal(size=4, generator=g),
    "poisson": lambda g: gt.random.poisson(gt.full((6,), 50.0), generator=g),
    "binomial": lambda g: gt.random.binomial(100, 0.5, (6,), generator=g),
    "gamma": lambda g: gt.random.gamma(3.0, 2.0, (4,), generator=g),
    "log_gamma": lambda g: gt.random.log_gamma(3.0, (4,), generator=g),
    "beta": lambda g: gt.random.beta(3.0, 2.0, (4,), generator=g),
    "dirichlet": lambda g: gt.random.dirichlet([3.0, 2.0], 4, generator=g),
    "categorical": lambda g: gt.random.categorical(gt.zeros((9, 9)), generator=g),
    "random_split": lambda g: gt.tensor(gt.data.random_split(
        range(20), [0.5, 0.5], generator=g)[0].indices),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_draws_what_the_process_draws_after_its_seed(name):
    """And leaves the process's numbers as they are. Two draws differ."""
    source = gt.Generator("cpu").manual_seed(5)
    assert source.initial_seed() == 5
    before = gt.random.get_state()
    first, state, second = DRAWS[name](source), source.get_state(), DRAWS[name](source)
    assert gt.random.get_state() == before
    with gt.random.seeded(5):
        assert DRAWS[name](None).tolist() == first.tolist() != second.tolist()
    source.set_state(state)
    assert DRAWS[name](source).tolist() == second.tolist()
    with pytest.raises(TypeError, match="generator.*; wanted a gt.Generator"):
        DRAWS[name](3)
    key = gt.random.key(5)  # which does not change
    assert [DRAWS[name](key).tolist() for _ in range(2)] == [first.tolist()] * 2


def test_keys_that_follow_from_one_are_independent():
    key = gt.random.key(0)
    keys = [key, *gt.random.split(key, 3), *(gt.random.fold_in(key, n) for n in (0, 1, 2**64 - 1))]
    assert len({*keys}) == 7 and keys[1:3] == gt.random.split(gt.random.key(0))
    assert pickle.loads(pickle.dumps(key)) == key != gt.random.key(1)
    drawn = np.stack([gt.random.normal(2000, generator=k).numpy() for k in keys])
    assert np.abs(np.corrcoef(drawn) - np.eye(7)).max() < 0.1
    assert gt.random.split(key, 0) == []
    for call, kind, sentence in (
        (lambda: gt.random.split(key, -1), ValueError, "num=-1; wanted an integer from 0 to"),
        (lambda: gt.random.split(3), TypeError, "split was given key=3; wanted one of gt.random.k"),
        (lambda: gt.random.fold_in(key, -1), ValueError, "data=-1; wanted an integer from 0 to"),
        (lambda: gt.random.key(1.5), ValueError, "seed 1.5 given"),
    ):
        with pytest.raises(kind, match=sentence):
            call()


def test_new_seeds_of_generators_differ():
    source = gt.Generator()
    assert source.seed() == source.initial_seed() != gt.Generator().initial_seed()


def test_scalars_stand_for_how_many():
    assert sorted(gt.random.permutation(gt.tensor(3)).tolist()) == [0, 1, 2]
    assert 0 <= gt.random.choice(gt.tensor(3)).item() < 3
    assert gt.randint(high=5, size=(2,)).shape == (2,)
    assert gt.random.integers(0, 256, 5, dtype="uint8").dtype == gt.uint8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_uniform_values_are_not_rounded_to_their_bound(dtype):
    with gt.random.seeded(0):
        x = gt.rand(50_000, dtype=dtype)
        assert 0.99 < x.max().item() < 1 and x.min().item() >= 0
        assert gt.random.uniform(3, low=2.0, high=2.0, dtype=dtype).tolist() == [2, 2, 2]
        assert gt.random.uniform(9, low=1.0, high=1.00001, dtype=dtype).tolist() == [1] * 9
