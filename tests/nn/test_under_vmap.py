"""Functions and modules under `vmap`, with gradients and tangents, against torch.func."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad as torch_grad
from torch.func import jvp as torch_jvp
from torch.func import vmap as torch_vmap

import gtensor as gt
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.tape.op import registry
from gtensor.ops.arrange import class_indices

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
F, T = gt.nn.functional, torch.nn.functional
RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def share(*shape: int) -> np.ndarray:
    return RNG.uniform(0.05, 0.95, shape)


def classes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 4, shape)


# name -> function of the namespace of functions and the arguments, the arguments, their axes
CASES: dict[str, tuple[Any, list[np.ndarray], tuple[int | None, ...]]] = {
    "linear": (lambda F, *a: F.linear(*a), [normal(3, 5, 4), normal(2, 4), normal(3, 2)],
               (0, None, 0)),
    "convolution, own weights": (
        lambda F, *a: F.conv2d(*a, padding=1),
        [normal(3, 2, 4, 6, 6), normal(3, 5, 4, 3, 3), normal(5)], (0, 0, None)),
    "convolution of an image": (
        lambda F, *a: F.conv2d(*a, groups=2), [normal(3, 4, 6, 6), normal(6, 2, 3, 3)], (0, None)),
    "convolution, shared images": (
        lambda F, *a: F.conv2d(*a, groups=2), [normal(2, 4, 6, 6), normal(3, 6, 2, 3, 3)],
        (None, 0)),
    "signals": (lambda F, *a: F.conv1d(*a, padding="same"), [normal(3, 2, 4, 6), normal(5, 4, 3)],
                (0, None)),
    "transposed convolution": (
        lambda F, *a: F.conv_transpose2d(*a, stride=2),
        [normal(3, 2, 4, 5, 5), normal(3, 4, 2, 3, 3)], (0, 0)),
    "layer norm": (lambda F, x, w: F.layer_norm(x, (4,), w), [normal(3, 5, 4), normal(3, 4)],
                   (0, 0)),
    "rms norm": (lambda F, x, w: F.rms_norm(x, (4,), w, 1e-5), [normal(3, 5, 4), normal(4)],
                 (0, None)),
    "group norm": (lambda F, x, w: F.group_norm(x, 2, w), [normal(3, 2, 4, 5), normal(4)],
                   (0, None)),
    "batch norm": (lambda F, x, w, b: F.batch_norm(x, None, None, w, b, training=True),
                   [normal(3, 6, 4, 2, 2), normal(4), normal(3, 4)], (0, None, 0)),
    "cross entropy": (lambda F, x, t: F.cross_entropy(x, t), [normal(3, 5, 4), classes(3, 5)],
                      (0, 0)),
    "cross entropy of a row": (lambda F, x, t: F.cross_entropy(x, t, label_smoothing=0.1),
                               [normal(3, 4), classes(3)], (0, 0)),
    "cross entropy, ignored": (
        lambda F, x, t: F.cross_entropy(x, t, ignore_index=2, reduction="sum"),
        [normal(3, 5, 4, 2), classes(5, 2)], (0, None)),
    "cross entropy, probabilities": (lambda F, x, t: F.cross_entropy(x, t),
                                     [normal(3, 5, 4), share(3, 5, 4)], (0, 0)),
    "nll": (lambda F, x, t: F.nll_loss(x, t), [normal(3, 5, 4), classes(3, 5)], (0, 0)),
    "mse": (lambda F, x, t: F.mse_loss(x, t), [normal(3, 5, 4), normal(3, 5, 4)], (0, 0)),
    "huber": (lambda F, x, t: F.huber_loss(x, t), [normal(3, 5), normal(3, 5)], (0, 0)),
    "bce": (lambda F, x, t: F.binary_cross_entropy(x, t), [share(3, 5), share(3, 5)], (0, 0)),
    "bce of logits": (
        lambda F, x, t, w: F.binary_cross_entropy_with_logits(x, t, pos_weight=w),
        [normal(3, 5, 4), share(3, 5, 4), share(4)], (0, 0, None)),
    "attention": (lambda F, *a: F.scaled_dot_product_attention(*a, is_causal=True),
                  [normal(3, 2, 4, 5), normal(2, 4, 5), normal(3, 2, 4, 5)], (0, None, 0)),
}


def close(ours: gt.Tensor, theirs: torch.Tensor) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-9, 1e-11)


@pytest.mark.parametrize("name", CASES)
def test_a_function_its_gradients_and_its_tangent_are_pytorchs(name: str) -> None:
    function, arrays, axes = CASES[name]
    given, wanted = [gt.asarray(a) for a in arrays], [torch.tensor(a) for a in arrays]

    def ours(*a: gt.Tensor) -> gt.Tensor:
        return function(F, *a)

    def theirs(*a: torch.Tensor) -> torch.Tensor:
        return function(T, *a)

    close(gt.vmap(ours, axes)(*given), torch_vmap(theirs, axes)(*wanted))
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    for i in floats:
        close(gt.vmap(gt.grad(lambda *a: (ours(*a) ** 2).sum(), i), axes)(*given),
              torch_vmap(torch_grad(lambda *a: (theirs(*a) ** 2).sum(), i), axes)(*wanted))
    if name == "attention":
        return  # which has no tangent in PyTorch
    moved = [normal(*arrays[i].shape) for i in floats]

    def along(vmap: Any, function: Any, all_of: list[Any]) -> Any:
        def run(*parts: Any) -> Any:
            return vmap(function, axes)(
                *[parts[floats.index(i)] if i in floats else x for i, x in enumerate(all_of)])
        return run

    close(gt.jvp(along(gt.vmap, ours, given), tuple(given[i] for i in floats),
                 tuple(map(gt.asarray, moved)))[1],
          torch_jvp(along(torch_vmap, theirs, wanted), tuple(wanted[i] for i in floats),
                    tuple(map(torch.tensor, moved)))[1])


# -- modules ---------------------------------------------------------------------------------------


def test_batch_norm_uses_its_averages_and_refuses_to_move_them() -> None:
    norm, x = gt.nn.BatchNorm2d(4, dtype=gt.float64), gt.asarray(normal(3, 6, 4, 2, 2))
    before = norm.running_mean.tolist()
    for transform in (gt.vmap(norm), lambda x: gt.jvp(norm, (x[0],), (x[0],))):
        with pytest.raises(gt.LevelError, match=r"batch_norm would move its running statistics "
                                                r"within \w+\(\)"):
            transform(x)
    assert norm.running_mean.tolist() == before and norm.num_batches_tracked.item() == 0
    norm.eval()
    np.testing.assert_allclose(gt.vmap(norm)(x).numpy(), np.stack([norm(e).numpy() for e in x]))


@pytest.mark.parametrize("activation", ["leaky_relu", "silu"])
def test_in_place_batch_norm_is_out_of_place_within_transforms(activation: str) -> None:
    x, v = gt.asarray(normal(3, 6, 4)), gt.asarray(normal(3, 6, 4))
    w = gt.asarray(normal(4))

    def loss(function: Any, x: gt.Tensor) -> gt.Tensor:
        return (function(x * 1, w, activation=activation) ** 3).sum()

    for run in (lambda f: gt.vmap(f)(x), lambda f: gt.vmap(gt.grad(f))(x),
                lambda f: gt.jvp(gt.vmap(gt.grad(f)), (x,), (v,))[1]):
        found, wanted = (run(lambda x, f=f: loss(f, x)) for f in (F.inplace_abn, F.abn))
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), 1e-12, 1e-12)


@pytest.mark.parametrize("function", (F.batch_norm, F.abn, F.inplace_abn))
def test_replicas_are_refused_within_transforms(function: Any) -> None:
    x = gt.asarray(normal(3, 6, 4))

    def synchronized(x: gt.Tensor) -> gt.Tensor:
        return function(x, None, None, training=True, gather=lambda a: a[None])

    for transform in (gt.vmap(synchronized), lambda x: gt.jvp(synchronized, (x,), (x,))):
        with pytest.raises(gt.LevelError, match=r"_(norm|abn) was given gather within \w+\(\)"):
            transform(x)


@pytest.mark.parametrize("training", [True, False])
def test_several_gradients_through_an_in_place_batch_norm(training: bool) -> None:
    """The walk recovers x from the output once, for all of them."""
    x, w, u = normal(6, 4, 2), normal(4), gt.asarray(normal(5, 6, 4, 2))
    means, spreads = gt.asarray(normal(4)), gt.asarray(share(4))

    def gradients(upstream: gt.Tensor, batched: bool) -> list[np.ndarray]:
        leaves = [gt.asarray(a).requires_grad_() for a in (x, w)]
        averages = (None, None) if training else (means, spreads)
        y = F.inplace_abn(leaves[0] * 1, leaves[1], None, *averages, training=training)
        y.backward(upstream, batched=batched)
        return [leaf.grad.numpy() for leaf in leaves]

    found = gradients(u, True)
    for k in range(5):
        for ours, wanted in zip(found, gradients(u[k], False), strict=True):
            np.testing.assert_allclose(ours[k], wanted, 1e-10, 1e-12)


def test_a_given_seed_is_one_mask_for_all_examples() -> None:
    x = gt.asarray(share(3, 5, 4))
    rows = gt.vmap(lambda x: F.dropout(x, 0.5, seed=3))(x).numpy()
    np.testing.assert_array_equal(rows, np.stack([F.dropout(e, 0.5, seed=3).numpy() for e in x]))
    q = gt.asarray(normal(3, 2, 4, 5))
    attend = registry["attention"]
    options = {"scale": 0.4, "is_causal": False, "dropout_p": 0.5, "seed": 3}
    found = gt.vmap(lambda q: attend(q, q, q, None, **options))(q)
    np.testing.assert_allclose(
        found.numpy(), np.stack([attend(e, e, e, None, **options).numpy() for e in q]))


# -- memory ----------------------------------------------------------------------------------------


EXAMPLES = 32
STATISTICS = [np.zeros(8), np.ones(8)]
RULES = {  # op -> the place and the shape of the array that is shared, the inputs, the parameters
    "batch_norm_sums": (1, (32, 8, 256), lambda g, x: [g, x, None, None, *STATISTICS], {
        "training": True, "eps": 1e-5, "activation": "identity", "parameter": 0.0}),
    "pick_class": (0, (512, 64), lambda t, x: [x, t], {"ignore_index": -1, "classes": 64}),
    "conv2d_grad_weight": (1, (2, 64, 64, 64), lambda g, x: [g, x], {
        "kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1),
        "groups": 4}),
}


@pytest.mark.parametrize("name", RULES)
def test_what_examples_share_is_not_copied_for_each(name: str) -> None:
    """The rule's peak of memory, in arrays of the size of the shared one."""
    place, shape, arranged, params = RULES[name]
    x = normal(*shape)
    own = {"batch_norm_sums": lambda: np.broadcast_to(x, (EXAMPLES, *shape)),
           "pick_class": lambda: classes(EXAMPLES, 512),
           "conv2d_grad_weight": lambda: normal(EXAMPLES, 2, 4, 64, 64)}[name]()
    inputs = arranged(own, x)
    mapped = [a is own for a in inputs]
    op = registry[name]
    tracemalloc.start()
    try:
        op.batch(raw["cpu"], op.cpu, inputs, mapped, params)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not mapped[place] and peak < EXAMPLES / 4 * x.nbytes


def test_a_rule_that_copies_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_indices, "spread", lambda ns, x, mapped, size: (
        x if mapped else np.stack([x] * size)))
    with pytest.raises(AssertionError):
        test_what_examples_share_is_not_copied_for_each("pick_class")
