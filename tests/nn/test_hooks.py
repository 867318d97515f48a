"""Forward hooks: order, replacement, removal; nothing happens without them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn


class Affine(nn.Module):
    """x * scale + shift."""

    def forward(self, x, scale=1.0, *, shift=0.0):
        return x * scale + shift


def add_one_to_input(module, args):
    return args[0] + 1


def add_ten_to_output(module, args, output):
    return output + 10


def x():
    return gt.tensor([1.0, 2.0])


def test_hooks_see_and_replace_in_order():
    module, seen = Affine(), []
    module.register_forward_pre_hook(lambda m, args: seen.append(("pre", m is module, len(args))))
    module.register_forward_pre_hook(add_one_to_input)
    module.register_forward_hook(add_ten_to_output)
    module.register_forward_hook(lambda m, args, out: seen.append((args[0].tolist(), out.tolist())))
    module.register_forward_hook(lambda m, args, out: out * 2)
    assert module(x()).tolist() == [24, 26]
    assert seen == [("pre", True, 1), ([2, 3], [12, 13])]


@pytest.mark.parametrize("kind", [nn.Identity, torch.nn.Identity])
def test_the_order_is_pytorchs_and_prepend_comes_first(kind):
    module, seen = kind(), []
    for name in "abc":
        module.register_forward_hook(lambda m, a, o, name=name: seen.append(name))
    module.register_forward_hook(lambda m, a, o: seen.append("d"), prepend=True)
    for name in "pq":
        module.register_forward_pre_hook(lambda m, a, name=name: seen.append(name), prepend=True)
    module(1)
    assert seen == ["q", "p", "d", "a", "b", "c"]


def test_hooks_with_keyword_arguments():
    module, seen = Affine(), []
    module.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {**kwargs, "shift": 5.0}), with_kwargs=True)
    module.register_forward_hook(
        lambda m, args, kwargs, out: seen.append((len(args), kwargs)), with_kwargs=True)
    assert module(x(), 2.0, shift=1.0).tolist() == [7, 9]
    assert seen == [(2, {"shift": 5.0})]


def test_a_pre_hook_may_return_all_arguments():
    module = Affine()
    module.register_forward_pre_hook(lambda m, args: (args[0], 3.0))
    assert module(x()).tolist() == [3, 6]


def test_a_handle_removes_its_hook():
    module = Affine()
    handle = module.register_forward_hook(add_ten_to_output)
    assert module(x()).tolist() == [11, 12]
    handle.remove()
    handle.remove()
    assert module(x()).tolist() == [1, 2]
    with module.register_forward_pre_hook(add_one_to_input):
        assert module(x()).tolist() == [2, 3]
    assert module(x()).tolist() == [1, 2]


def test_a_hook_may_remove_itself():
    module, seen = Affine(), []
    module.register_forward_hook(lambda m, args, out: (seen.append(1), handle.remove())[1])
    handle = module.register_forward_hook(lambda m, args, out: seen.append(2))
    module(x())
    module(x())
    assert seen == [1, 2, 1]


def test_gradients_flow_through_what_hooks_return():
    module = nn.Linear(2, 1, bias=False)
    module.register_forward_hook(lambda m, args, out: out * 3)
    module(gt.ones((1, 2))).sum().backward()
    assert module.weight.grad.tolist() == [[3, 3]]


def test_hooks_of_inner_modules_run_in_a_container():
    net = nn.Sequential(nn.Identity(), nn.Identity())
    net[0].register_forward_hook(add_ten_to_output)
    assert net(x()).tolist() == [11, 12]


@pytest.mark.parametrize("copied", [
    copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_keep_their_hooks_apart(copied):
    module = Affine()
    handle = module.register_forward_hook(add_ten_to_output)
    other = copied(module)
    handle.remove()
    assert module(x()).tolist() == [1, 2]
    np.testing.assert_array_equal(other(x()).numpy(), [11, 12])


def test_a_wrong_answer_is_named():
    module = Affine()
    module.register_forward_pre_hook(lambda m, args, kwargs: args, with_kwargs=True)
    with pytest.raises(TypeError, match="with_kwargs=True returned .*; wanted None or a pair"):
        module(x())


@pytest.mark.parametrize("path", ["self_attn.out_proj", "dropout1", "linear1", "linear2", "norm1"])
def test_a_layer_calls_a_forward_that_was_put_on_one_of_its_layers(path: str) -> None:
    """Wrappers that add adapters do so; ops that do the work of several layers must not skip it."""
    layer = nn.TransformerEncoderLayer(8, 2, 4, dropout=0.3, batch_first=True)
    layer.train(path == "dropout1")
    part = layer.get_submodule(path)
    forward, calls = part.forward, []

    def counted(x: gt.Tensor) -> gt.Tensor:
        calls.append(x.shape)
        return forward(x)

    part.forward = counted
    layer(gt.ones((2, 5, 8)))
    assert len(calls) == 1
