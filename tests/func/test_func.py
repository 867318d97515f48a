"""What gt.func promises beside values: trees, counts, chunks, randomness, modules, bad input."""

from __future__ import annotations

import gc
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle.context import STATE
from gtensor.engine.tape.op import registry
from gtensor.func import batching, trees
from gtensor.settings import settings

RNG = np.random.default_rng()


def random(*shape: int) -> gt.Tensor:
    return gt.asarray(RNG.uniform(-1, 1, shape))


def close(found: gt.Tensor, wanted: Any) -> None:
    np.testing.assert_allclose(found.numpy(), np.asarray(
        wanted.numpy() if isinstance(wanted, gt.Tensor) else wanted), rtol=1e-10, atol=1e-12)


class Calls:
    """A listener that counts the ops that run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def op_begins(self, event: Any) -> None:
        self.counts[event.name] += 1


def calls(run: Callable[[], Any]) -> Counter[str]:
    with gt.listen(Calls()) as counted:
        run()
    return counted.counts


def f(x: gt.Tensor, w: gt.Tensor) -> gt.Tensor:
    return gt.tanh(x @ w) * x.sum()


def test_the_names_are_gtensors_too() -> None:
    assert all(getattr(gt, name) is getattr(gt.func, name) for name in gt.func.__all__)


@pytest.mark.parametrize("inner", ["grad", "jvp", "vjp", "jacfwd", "jacrev"])
@pytest.mark.parametrize("outer", ["grad", "jvp", "vjp", "jacfwd", "jacrev"])
def test_an_inner_derivative_does_not_take_the_outer_ones_direction(inner: str, outer: str) -> None:
    """d/dx (x * d/dy (x + y)) is 1; a derivative that confuses its levels says 2."""
    one = gt.asarray(1.0)
    ways: dict[str, Callable[..., gt.Tensor]] = {
        "grad": lambda f, x: gt.grad(f)(x), "jvp": lambda f, x: gt.jvp(f, (x,), (one,))[1],
        "vjp": lambda f, x: gt.vjp(f, x)[1](one)[0], "jacfwd": lambda f, x: gt.jacfwd(f)(x),
        "jacrev": lambda f, x: gt.jacrev(f)(x)}
    found = ways[outer](lambda x: x * ways[inner](lambda y: x + y, gt.asarray(2.0)),
                        gt.asarray(3.0))
    assert found.item() == 1.0


# -- shadows, cotangents and examples --------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 7])
def test_n_shadows_are_n_runs(n: int) -> None:
    x, w = random(3, 4), random(4, 4)
    dx, dw = random(n, 3, 4), random(n, 4, 4)
    value, found = gt.jvp_batched(f, (x, w), (list(dx), dw))
    close(value, f(x, w))
    assert found.shape == (n, 3, 4)
    for k in range(n):
        close(found[k], gt.jvp(f, (x, w), (dx[k], dw[k]))[1])
    v = random(5)
    flat = gt.jvp_batched(lambda v: v * v, (v,), (random(n * 5),), "concat")[1]
    assert flat.shape == (n, 5)
    close(gt.jvp_batched(lambda v: v * v, (v,), (gt.ones(n * 5, dtype=gt.float64),), "concat")[1],
          np.tile(2 * v.numpy(), (n, 1)))


@pytest.mark.parametrize("n", [0, 1, 7])
def test_n_cotangents_are_n_pullbacks_again_and_again(n: int) -> None:
    x, w = random(3, 4), random(4, 4)
    value, pullback = gt.vjp(f, x, w)
    close(value, f(x, w))
    u = random(n, 3, 4)
    for _ in range(2):
        dx, dw = pullback(u, batched=True)
        assert dx.shape == (n, 3, 4) and dw.shape == (n, 4, 4)
        for k in range(n):
            for found, wanted in zip((dx[k], dw[k]), pullback(u[k]), strict=True):
                close(found, wanted)
    assert not any(t.requires_grad for t in (value, dx, dw, *pullback(random(3, 4))))


@pytest.mark.parametrize("n", [0, 1, 7])
def test_n_examples_are_a_loop(n: int) -> None:
    x, w = random(n, 3, 4), random(4, 4)
    found = gt.vmap(f, (0, None))(x, w)
    assert found.shape == (n, 3, 4)
    for k in range(n):
        close(found[k], f(x[k], w))


def test_batching_computes_no_value_twice_and_hides_no_loop() -> None:
    x, w = random(3, 4), random(4, 4)
    once = calls(lambda: gt.jvp(f, (x, w), (random(3, 4), random(4, 4))))
    for n in (2, 16):
        given = (random(n, 3, 4), random(n, 4, 4))
        many = calls(lambda given=given: gt.jvp_batched(f, (x, w), given))
        assert many["tanh"] == once["tanh"] == 1
        assert sum(many.values()) <= 1.1 * sum(once.values()) + 4  # broadcasts, reshapes
    _, pullback = gt.vjp(f, x, w)
    one, many = calls(lambda: pullback(random(3, 4))), calls(
        lambda: pullback(random(16, 3, 4), batched=True))
    assert sum(many.values()) <= sum(one.values())


def test_zeros_where_nothing_depends() -> None:
    x, w = random(3), random(2)
    value, pullback = gt.vjp(lambda x, w: {"y": x * 2, "constant": gt.ones(2, dtype=gt.float64)},
                             x, w)
    found = pullback({"y": random(3), "constant": None})
    close(found[1], np.zeros(2))
    close(pullback({"y": random(4, 3), "constant": None}, batched=True)[1], np.zeros((4, 2)))
    close(gt.jacfwd(lambda x, w: x * 2, 1)(x, w), np.zeros((3, 2)))
    close(gt.jacrev(lambda x, w: x * 2, 1)(x, w), np.zeros((3, 2)))
    close(gt.hessian(lambda x: x.sum())(x), np.zeros((3, 3)))
    assert value["y"].shape == (3,)


def test_what_a_pullback_gives_is_differentiated_further() -> None:
    """Values and gradients keep a history only if an outer derivative can reach them."""
    x = random(4).requires_grad_()
    value, pullback = gt.vjp(lambda x: x**3, x)
    total = value.sum() + pullback(gt.ones(4, dtype=gt.float64))[0].sum()
    total.backward(retain_graph=True)
    close(x.grad, 3 * x.detach().numpy()**2 + 6 * x.detach().numpy())
    x.grad = None
    batched = pullback(gt.ones((2, 4), dtype=gt.float64), batched=True)[0]
    batched.sum().backward()
    close(x.grad, 12 * x.detach().numpy())
    v, u = random(4), random(4)
    _, pullback = gt.vjp(lambda x: x**3, v)
    close(gt.grad(lambda u: (pullback(u)[0] ** 2).sum())(u), 18 * v.numpy()**4 * u.numpy())
    with gt.no_grad():
        assert not gt.vjp(lambda x: x**3, x)[0].requires_grad
    close(gt.vmap(pullback)(random(3, 4) * 0)[0], np.zeros((3, 4)))


def test_jacobian_takes_the_mode_with_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from gtensor.func import jacobians

    taken = []
    right = jacobians.along_all
    monkeypatch.setattr(jacobians, "along_all", lambda *args: taken.append(1) or right(*args))
    tall, wide, x = random(6, 2), random(2, 6), random(2)
    close(gt.jacobian(lambda x: tall @ x)(x), tall)
    assert taken
    taken.clear()
    close(gt.jacobian(lambda x: wide @ x)(random(6)), wide)
    assert not taken


# -- trees -----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Layer:
    w: Any
    bias: Any = None


TREES: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda x, y: {"x": x, 2: y}, "list": lambda x, y: [x, [y]],
    "tuple": lambda x, y: (x, (y,)), "named tuple": Pair, "dataclass": Layer,
    "with None": lambda x, y: {"x": x, "none": None, "more": [y]},
    "ordered": lambda x, y: OrderedDict(a=x, b=y),
    "default": lambda x, y: defaultdict(list, {"a": x, "b": y}),
    "nested": lambda x, y: Layer(Pair(x, {"deep": [y]}))}


@pytest.mark.parametrize("kind", TREES)
def test_trees_keep_their_structure(kind: str) -> None:
    x, y = random(3), random(2)
    tree = TREES[kind](x, y)

    def total(tree: Any) -> gt.Tensor:
        a, b = (leaf for _, leaf in trees.leaves(tree) if leaf is not None)
        return (a**2).sum() + (b**3).sum()

    gradient = gt.grad(total)(tree)
    assert type(gradient) is type(tree)
    a, b = (leaf for _, leaf in trees.leaves(gradient) if leaf is not None)
    close(a, 2 * x.numpy())
    close(b, 3 * y.numpy() ** 2)
    if all(leaf is not None for _, leaf in trees.leaves(tree)):
        _, tangent = gt.jvp(lambda t: trees.mapped(lambda v: v * 2, t), (tree,),
                            (TREES[kind](x, None),))
        assert type(tangent) is type(tree)
        close(trees.leaves(tangent)[0][1], 2 * x.numpy())
    rows = gt.vmap(total)(TREES[kind](random(5, 3), random(5, 2)))
    assert rows.shape == (5,)


def test_a_type_that_optree_knows_is_a_container() -> None:
    optree = pytest.importorskip("optree")

    class Box:
        def __init__(self, inside: Any) -> None:
            self.inside = inside

    optree.register_pytree_node(
        Box, lambda box: ((box.inside,), None), lambda _, parts: Box(*parts),
        namespace=optree.registry.__GLOBAL_NAMESPACE)
    x = random(3)
    assert isinstance(gt.grad(lambda box: (box.inside**2).sum())(Box(x)), Box)


def test_axes_are_trees_too() -> None:
    x, y = random(3, 5), random(5, 2)
    found = gt.vmap(lambda t, n=1: {"rows": t["x"] * n, "sum": t["y"].sum(), "shared": gt.ones(2)},
                    ({"x": 1, "y": 0, "k": None},), {"rows": -1, "sum": 0, "shared": None})(
                        {"x": x, "y": y, "k": 3}, n=2.0)
    close(found["rows"], 2 * x.numpy())
    close(found["sum"], y.numpy().sum(1))
    assert found["shared"].shape == (2,)


def test_more_results_beside_the_differentiated_one() -> None:
    x = random(3)

    def both(x: gt.Tensor) -> tuple[gt.Tensor, dict[str, Any]]:
        return (x**2).sum(), {"cube": x**3, "note": "text"}

    found = {
        "grad": gt.grad(both, has_aux=True)(x), "value": gt.value_and_grad(both, has_aux=True)(x),
        "jvp": gt.jvp(both, (x,), (x,), has_aux=True)[1:],
        "batched": gt.jvp_batched(both, (x,), ([x, x],), has_aux=True)[1:],
        "vjp": gt.vjp(both, x, has_aux=True)[1:], "jacfwd": gt.jacfwd(both, has_aux=True)(x),
        "jacrev": gt.jacrev(both, has_aux=True)(x), "jacobian": gt.jacobian(both, has_aux=True)(x)}
    for name, (first, second) in found.items():
        more = first[1] if name == "value" else second
        assert more["note"] == "text"
        assert not more["cube"].requires_grad
        close(more["cube"], x.numpy() ** 3)
    close(found["grad"][0], 2 * x.numpy())
    close(found["jacfwd"][0], found["jacrev"][0])


# -- chunks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 7, 100, "auto"])
def test_chunks_give_the_same(size: Any) -> None:
    x, w = random(7, 3, 4), random(4, 4)
    close(gt.vmap(f, (0, None), 1, chunk_size=size)(x, w), gt.vmap(f, (0, None), 1)(x, w))
    assert gt.vmap(f, (0, None), chunk_size=size)(x[:0], w).shape == (0, 3, 4)
    for jacobian in (gt.jacfwd, gt.jacrev, gt.jacobian):
        close(jacobian(f, 1, chunk_size=size)(x[0], w), jacobian(f, 1)(x[0], w))


def test_a_chunk_bounds_the_bytes() -> None:
    x = random(64, 1000)

    def peak(**options: Any) -> int:
        with settings.override(arena_min_bytes=0):
            gt.memory.reset_peak()
            before = gt.memory.stats().allocated
            gt.vmap(lambda row: gt.tanh(row).sum(), **options)(x)
            return gt.memory.stats().peak_allocated - before

    whole = peak()
    assert whole >= 64 * 8000
    assert peak(chunk_size=4) <= whole / 8


def test_automatic_chunks_fit_into_half_of_the_free_bytes() -> None:
    sizes = []

    def row(x: gt.Tensor) -> gt.Tensor:
        sizes.append(STATE.levels[-1].size)
        return gt.tanh(x).sum()

    x = random(64, 1000)
    with settings.override(chunk_bytes=400_000):
        gt.vmap(row, chunk_size="auto")(x)
    assert sizes[:2] == [1, 2] and sum(sizes) == 64
    assert 8 <= sizes[2] <= 25  # of 8,000 bytes or some more each, in 200,000
    sizes.clear()
    limit = gt.memory.arena_of("cpu").limit
    try:
        gt.memory.set_limit(gt.memory.stats("cpu").allocated + 10**9, "cpu")
        gt.vmap(row, chunk_size="auto")(x)
    finally:
        gt.memory.set_limit(limit, "cpu")
    assert sizes == [1, 2, 61]


# -- randomness ------------------------------------------------------------------------------------


DRAWS: dict[str, Callable[[gt.Tensor], gt.Tensor]] = {
    "normal": lambda x: gt.random.normal((6,)) + x[0] * 0,
    "uniform": lambda x: gt.random.uniform(6) + x[0] * 0,
    "integers": lambda x: gt.random.integers(0, 1000, (6,)),
    "permutation": lambda x: gt.random.permutation(20),
    "dropout": lambda x: nn.functional.dropout(x),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(
        x.reshape(8, 4), x.reshape(8, 4), x.reshape(8, 4), dropout_p=0.5)}


@pytest.mark.parametrize("name", DRAWS)
def test_randomness_is_refused_the_same_or_of_each_example(name: str) -> None:
    x = gt.ones((3, 32))
    with pytest.raises(gt.LevelError, match=r"to draw random values within vmap.*test_func\.py"):
        gt.vmap(DRAWS[name])(x)
    same = gt.vmap(DRAWS[name], randomness="same", chunk_size=2)(x).numpy()
    assert (same == same[:1]).all()
    apart = gt.vmap(DRAWS[name], randomness="different")(x).numpy()
    assert len({values.tobytes() for values in apart}) == 3
    nested = gt.vmap(lambda x: gt.vmap(DRAWS[name], randomness="same")(x),
                     randomness="different")(gt.ones((2, 2, 32))).numpy()
    assert (nested[:, 0] == nested[:, 1]).all() and (nested[0] != nested[1]).any()


def test_a_seed_gives_every_example_its_mask() -> None:
    x = gt.ones((3, 32))
    found = gt.vmap(lambda x: nn.functional.dropout(x, seed=4))(x)
    assert found.tolist() == [nn.functional.dropout(x[0], seed=4).tolist()] * 3
    broken = gt.tensor([[np.nan, np.inf, 1.0, -np.inf] * 4] * 2)
    found = gt.vmap(lambda x: nn.functional.dropout(x, seed=4))(broken).numpy()
    np.testing.assert_array_equal(found[1], nn.functional.dropout(broken[0], seed=4).numpy())


# -- modules ---------------------------------------------------------------------------------------


def test_per_example_gradients_of_a_module_are_pytorchs() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    for p, q in zip(theirs.parameters(), net.parameters(), strict=True):
        p.data = torch.tensor(q.detach().numpy()).double()
    params = {name: p.detach().astype(gt.float64) for name, p in net.named_parameters()}
    x, y = random(6, 4), random(6, 1)

    def loss(params: Any, example: Any) -> gt.Tensor:
        return ((gt.functional_call(net, params, example["x"]) - example["y"]) ** 2).sum()

    found = gt.per_example_grad(loss, params, {"x": x, "y": y})
    tp, tx, ty = (dict(theirs.named_parameters()), torch.tensor(x.numpy()), torch.tensor(y.numpy()))
    wanted = torch.func.vmap(torch.func.grad(lambda p, x, y: (
        (torch.func.functional_call(theirs, p, (x,)) - y) ** 2).sum()), (None, 0, 0))(tp, tx, ty)
    assert found.keys() == wanted.keys()
    for name in found:
        close(found[name], wanted[name].detach())


def test_functional_call_leaves_the_module_as_it_was() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.b = self.a
            self.c = nn.Linear(2, 2, bias=False)
            self.c.weight = self.a.weight
            self.register_buffer("scale", gt.ones(2))

        def forward(self, x: gt.Tensor) -> gt.Tensor:
            return self.c(self.b(self.a(x))) * self.scale

    net, x = Tied(), gt.ones((1, 2))
    before = dict(net.named_parameters())
    double = gt.functional_call(net, {"a.weight": 2 * gt.eye(2), "scale": gt.ones(2) * 3}, (x,))
    assert double.tolist() == [[24.0, 24.0]]
    for params, error, words in (
            ({"b": x}, KeyError, "'b', which Tied does not have"),
            ({"a.weight": x}, ValueError, r"shape \(1, 2\) for 'a.weight' of shape \(2, 2\)"),
            ({"scale": [1.0, 2.0]}, TypeError, "list for 'scale'")):
        with pytest.raises(error, match=words):
            gt.functional_call(net, params, (x,))
    with pytest.raises(ValueError, match="matmul|linear|shape"):
        gt.functional_call(net, {"scale": gt.zeros(2)}, (gt.ones((1, 3)),))
    assert all(dict(net.named_parameters())[name] is p for name, p in before.items())
    assert net.scale.tolist() == [1.0, 1.0]


# -- bad input -------------------------------------------------------------------------------------

X = gt.asarray(np.ones((3, 4)))
NUMBERS = gt.asarray(np.arange(3))
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "counts": (lambda: gt.jvp_batched(gt.add, (X, X), ([X], [X, X])), ValueError,
               "1 for argument 0, 2 for argument 1"),
    "shape in a list": (lambda: gt.jvp_batched(gt.sin, (X,), ([X, X[0]],)), ValueError,
                        r"shadow 1 of argument 0 of shape \(4,\)"),
    "shape of a stack": (lambda: gt.jvp_batched(gt.sin, (X,), (X,)), ValueError,
                         r"shape \(3, 4\) for argument 0 .*along a first axis"),
    "length": (lambda: gt.jvp_batched(gt.sin, (X[0],), (gt.ones(7),), "concat"), ValueError,
               "or of 4 times N elements"),
    "dtype": (lambda: gt.jvp_batched(gt.sin, (X[0],), (gt.ones((2, 4)),)), TypeError,
              "dtype float32 on cpu for argument 0 of dtype float64"),
    "all constant": (lambda: gt.jvp_batched(gt.sin, (X,), (None,)), ValueError, "0 arguments"),
    "layout": (lambda: gt.jvp_batched(gt.sin, (X,), ([X],), "list"), ValueError, "layout='list'"),
    "structure": (lambda: gt.jvp(lambda t: t["a"], ({"a": X},), ({"b": X},)), ValueError,
                  r"tangents of argument 0 has 1 parts \(\['b'\]\)"),
    "shadow of a number": (lambda: gt.jvp(gt.add, (X, 2.0), (X, X)), TypeError,
                           "float as argument 1"),
    "non-scalar": (lambda: gt.grad(gt.sin)(X), gt.GradientError, r"shape \(3, 4\); wanted one"),
    "integers, grad": (lambda: gt.grad(gt.sum)({"w": NUMBERS}), TypeError,
                       r"argument 0\['w'\] .* int64"),
    "integers, jvp": (lambda: gt.jvp(gt.sum, (NUMBERS,), (NUMBERS,)), TypeError,
                      "argument 0 of dtype int64"),
    "integers, jacfwd": (lambda: gt.jacfwd(gt.sum)(NUMBERS), TypeError, "argument 0 of .* int64"),
    "integers, jacrev": (lambda: gt.jacrev(lambda a, b: a, 1)(X, NUMBERS), TypeError,
                         "argument 1 of .* int64"),
    "no tensor, vjp": (lambda: gt.vjp(lambda x: [x, 3], X), TypeError, r"int as result\[1\]"),
    "nothing, jvp": (lambda: gt.jvp(lambda x: [], (X,), (X,)), TypeError, "returned list"),
    "nothing, jacfwd": (lambda: gt.jacfwd(lambda x: None)(X), TypeError, "returned NoneType"),
    "an integer result": (lambda: gt.vjp(lambda x: gt.argmax(x), X), TypeError, "dtype int64"),
    "cotangent": (lambda: gt.vjp(gt.sin, X)[1](X[0]), ValueError, r"wanted \(3, 4\)"),
    "cotangents": (lambda: gt.vjp(gt.sin, X)[1](X, batched=True), ValueError,
                   r"wanted \(N, 3, 4\)"),
    "no cotangent": (lambda: gt.vjp(gt.sin, X)[1](None), ValueError, "no cotangents"),
    "no pair": (lambda: gt.grad(gt.sum, has_aux=True)(X), TypeError, r"tuple \(result, more\)"),
    "argnums": (lambda: gt.jacfwd(gt.sin, 1)(X), ValueError, "argument 1 .* 1 positional"),
    "write": (lambda: gt.jvp_batched(lambda x: x.__iadd__(1), (X,), ([X],)), gt.LevelError,
              r"in-place add would overwrite .*test_func\.py:\d+"),
    "write of a view": (lambda: gt.vmap(lambda x: x[1:].__setitem__(0, 1.0))(X), gt.LevelError,
                        r"x\[key\] = value would overwrite .*test_func\.py:\d+"),
    "host read": (lambda: gt.vmap(lambda x: x.sum().item())(X), gt.LevelError,
                  r"within vmap\(\) were asked for.*test_func\.py:\d+"),
    "branch": (lambda: gt.vmap(lambda x: x if x.sum() > 0 else -x)(X), gt.LevelError,
               r"test_func\.py:\d+"),
    "shape of values": (lambda: gt.vmap(gt.nonzero)(X), gt.LevelError,
                        r"nonzero .*test_func\.py:\d+"),
    "mask": (lambda: gt.vmap(lambda x: x[x > 0])(X), gt.LevelError, r"test_func\.py:\d+"),
    "randomness": (lambda: gt.vmap(gt.sin, randomness="some"), ValueError, "randomness='some'"),
    "chunk": (lambda: gt.vmap(gt.sin, chunk_size=0), ValueError, "chunk_size 0"),
    "chunk of jacrev": (lambda: gt.jacrev(gt.sin, chunk_size="all"), ValueError, "'all'"),
    "out_axes None": (lambda: gt.vmap(gt.sin, out_axes=None)(X), ValueError, "differs between"),
    "out_axes": (lambda: gt.vmap(gt.sin, out_axes=1.5), TypeError, "out_axes 1.5"),
    "number with an axis": (lambda: gt.vmap(gt.add)(X, 2.0), TypeError, "argument 1 of type float"),
    "sizes": (lambda: gt.vmap(lambda t: t["a"])({"a": X, "b": [X.mT]}), ValueError,
              r"3 in argument 0\['a'\], 4 in argument 0\['b'\]\[0\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str) -> None:
    call, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert STATE.levels == ()
    assert X.tolist() == np.ones((3, 4)).tolist()


# -- what is left behind ---------------------------------------------------------------------------


def test_a_pullback_frees_its_graph() -> None:
    x = random(3)
    refs = []

    def f(x: gt.Tensor) -> gt.Tensor:
        y = gt.tanh(x)
        refs.append(weakref.ref(y._node))
        return y * y

    gc.collect()
    gc.disable()
    try:
        _, pullback = gt.vjp(f, x)
        assert refs[0]() is not None
        pullback(x)
        del pullback
        assert refs[0]() is None
        gt.jacrev(f)(x)
        gt.hessian(lambda x: f(x).sum())(x)
        assert all(ref() is None for ref in refs)
    finally:
        gc.enable()


def test_planted_faults_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk too few, and a chunk size that forgets what an example takes."""
    with monkeypatch.context() as plant:
        plant.setattr(batching, "joined", lambda parts, axis: parts[0])
        with pytest.raises(AssertionError):
            test_chunks_give_the_same(3)
    with monkeypatch.context() as plant:
        plant.setattr(batching, "_fitting", lambda peaks, device: 64)
        with pytest.raises(AssertionError):
            test_automatic_chunks_fit_into_half_of_the_free_bytes()


def test_an_op_without_a_batch_rule_loops_on_request() -> None:
    def rule(ns: Any, step: Any, g: Any) -> None:
        if step.needs(0):
            step.give(0, ns.multiply(g, step.saved[0]))
        if step.needs(1):
            step.give(1, ns.multiply(g, step.params["by"]))

    own = gt.op("own_loop", cpu=lambda x, y, *, by, out=None: x ** 2 / 2 + by * y, gpu=None,
                saves={"x": "x"}, samples=None, backward=rule, tangent=None)
    try:
        x, y = random(3, 4), random(4)
        with pytest.raises(gt.LevelError, match="own_loop has no batch rule.*fallback='loop'"):
            gt.vmap(lambda x: own(x, y, by=2.0))(x)
        looped = gt.vmap(lambda x: own(x, y, by=2.0), fallback="loop")
        close(looped(x), x * x / 2 + 2 * y)
        close(gt.vmap(gt.grad(lambda x: own(x, y, by=2.0).sum()), fallback="loop")(x), x)
        with pytest.raises(gt.LevelError, match="to run for no examples"):
            looped(x[:0])
        with pytest.raises(ValueError, match="fallback='each'; wanted one of 'loop' or None"):
            gt.vmap(own, fallback="each")
    finally:
        del registry["own_loop"]
