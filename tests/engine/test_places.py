"""A handle's place on the tape is taken with its values only where the two agree."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext

import numpy as np
import pytest

import gtensor as gt
from gtensor.nn import functional as F
from gtensor.nn.utils import checkpoint

START = np.array([1.0, 2.0, 3.0])


def leaf(values=START):
    return gt.tensor(values, dtype=gt.float64, requires_grad=True)


# Every reader of a handle's place on the tape, given a float64 tensor of shape (3,).
PLACE_READERS = {
    "an op": lambda y: y * 2.0, "a view": lambda y: y[0], "a target": lambda y: y.__iadd__(1.0),
    "a value": lambda y: gt.zeros(3, dtype=gt.float64).__iadd__(y),
    "backward": lambda y: y.backward(gt.ones(3, dtype=gt.float64)),
    "grad of": lambda y: gt.grad(y, [y], gt.ones(3, dtype=gt.float64)),
    "grad at": lambda y: gt.grad(leaf().sum(), [y], allow_unused=True),
    "argument": lambda y: gt.grad(lambda v: v.sum())(y),
    "argument, unrecorded": lambda y: gt.no_grad()(gt.grad(lambda v: v.sum()))(y),
    "result": lambda y: gt.grad(lambda v: y)(leaf()),
    "register_hook": lambda y: y.register_hook(print), "retain_grad": lambda y: y.retain_grad(),
    "requires_grad_": lambda y: y.requires_grad_(), "copy": copy.copy, "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps, "tensor": gt.tensor, "a list": lambda y: gt.tensor([y, y]),
    "np.asarray": np.asarray, "DLPack": np.from_dlpack, "a buffer": lambda y: y.__buffer__(0),
    "checkpoint": lambda y: checkpoint(gt.exp, y),
    "weights": lambda y: F.cross_entropy(leaf(), gt.tensor(1), weight=y),
}


def written_elsewhere(kind):
    """A tensor, never read since its memory was overwritten through another handle."""
    y = {"recorded": lambda: leaf() * 2.0, "recorded, written unseen": lambda: leaf() * 2.0,
         "history lost": lambda: gt.zeros(3, dtype=gt.float64),
         "leaf": lambda: leaf(), "constant": lambda: gt.tensor(START)}[kind]()
    recorded = kind in ("recorded", "history lost")
    with nullcontext() if recorded else gt.no_grad():
        part = y[:]
        part += leaf() if recorded else 10.0
    return y


@pytest.mark.parametrize("reader", PLACE_READERS)
def test_readers_of_place_and_values_are_refused_where_the_two_differ(reader):
    """As an op is; before anything is changed."""
    for kind in ("recorded", "recorded, written unseen", "history lost"):
        y = written_elsewhere(kind)
        node = y._node
        with pytest.raises(gt.GradientError, match=r" reads a .* overwr"):
            PLACE_READERS[reader](y)
        assert y._node is node and (node is None or not (node.hooks or node.retain)), kind


def test_a_loss_written_through_a_view_is_refused_by_its_old_handle():
    x = leaf([3.0])
    loss = x * x
    view = loss[:]
    view *= 10
    with pytest.raises(gt.GradientError, match=r"backward\(\) reads a tensor recorded by multiply"):
        loss.backward()
    assert x.grad is None
    view.backward()
    assert x.grad.tolist() == [60.0]


def test_readers_of_the_values_alone_see_what_was_written():
    for kind in ("recorded", "history lost", "leaf", "constant"):
        y = written_elsewhere(kind)
        wanted = y._array.tolist()
        for found in (y.tolist(), y.numpy(), y.array, y.detach()):
            assert np.array_equal(np.asarray(found), wanted), kind
        assert y.requires_grad == (kind in ("recorded", "leaf")) and y.grad is None
        assert repr(y).startswith(repr(y.detach())[:-1])
        assert y._version != y._storage.version, "reading the values renewed the handle"


def test_unrecorded_writes_elsewhere_change_nothing_for_readers_of_the_place():
    def outcome(reader, y):
        try:
            reader(y)
        except (gt.GradientError, TypeError, ValueError) as error:
            return str(error)

    for kind, tracked in (("leaf", True), ("constant", False)):
        for name, reader in PLACE_READERS.items():
            y = written_elsewhere(kind)
            same = gt.tensor(y.numpy(), requires_grad=tracked)
            assert outcome(reader, y) == outcome(reader, same), (kind, name)
