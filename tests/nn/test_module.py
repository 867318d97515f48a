"""Module: registration, names, state dicts, modes, moves; what it refuses, unchanged."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn


class Block(nn.Module):
    """A parameter, two kinds of buffers, a child, and a plain attribute."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(gt.ones(3))
        self.register_buffer("count", gt.zeros((), gt.int64))
        self.register_buffer("cache", gt.ones(2), persistent=False)
        self.inner = nn.Linear(3, 3)
        self.width = 3

    def forward(self, x):
        return self.inner(x) * self.scale


def values(module):
    return {name: t.numpy().copy() for name, t in module.state_dict().items()}


def same(before, module):
    after = module.state_dict()
    return all(np.array_equal(before[name], after[name].numpy()) for name in before)


# -- names -----------------------------------------------------------------------------------------


def test_members_are_registered_under_their_attribute_names():
    block = Block()
    assert [n for n, _ in block.named_parameters()] == ["scale", "inner.weight", "inner.bias"]
    assert [n for n, _ in block.named_buffers()] == ["count", "cache"]
    assert list(block.state_dict()) == ["scale", "count", "inner.weight", "inner.bias"]
    assert [n for n, _ in block.named_modules()] == ["", "inner"]
    assert block.width == 3 and block.inner.in_features == 3


def test_shared_members_are_listed_once_and_saved_under_each_name():
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert [n for n, _ in tied.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(tied.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    twice = nn.ModuleList([tied, tied])
    assert len(list(twice.modules())) == 4
    gt.optim.SGD(twice.parameters())  # no parameter is given twice


def test_assigning_replaces_what_the_name_stood_for():
    block = Block()
    block.inner = None
    assert [n for n, _ in block.named_parameters()] == ["scale"]
    block.inner = nn.ReLU()
    block.width = nn.Parameter(gt.zeros(1))
    assert "width" in dict(block.named_parameters()) and block.width.shape == (1,)
    block.scale = None
    assert block.scale is None and "scale" not in block.state_dict()
    del block.width
    assert not hasattr(block, "width")


def test_a_parameter_is_a_leaf_over_the_memory_it_was_given():
    data = gt.zeros(3)
    parameter = nn.Parameter(data)
    with gt.no_grad():
        parameter += 1
    assert data.tolist() == [1, 1, 1]
    assert isinstance(parameter, gt.Tensor) and parameter.is_leaf and parameter.requires_grad
    assert repr(parameter).startswith("Parameter(tensor([1.")
    assert not nn.Parameter([1, 2], requires_grad=False).requires_grad
    (parameter * 2).sum().backward()
    assert parameter.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("act,error,message", [
    (lambda b: setattr(b, "scale", gt.ones(3)), TypeError, "scale is a parameter.*wanted a Param"),
    (lambda b: setattr(b, "count", 3), TypeError, "buffer 'count' of Block was given int"),
    (lambda b: b.register_buffer("x", [1.0]), TypeError, "buffer 'x' of Block was given list"),
    (lambda b: b.register_parameter("x", gt.ones(1)), TypeError, "'x' was given Tensor"),
    (lambda b: b.register_module("x", 1), TypeError, "module 'x' was given int"),
    (lambda b: b.register_module("a.b", nn.ReLU()), ValueError, "'a.b' given; wanted"),
    (lambda b: setattr(b, "forward", nn.ReLU()), ValueError, "attribute 'forward' of its class"),
    (lambda b: b.nothing, AttributeError, "Block has no attribute 'nothing'"),
    (lambda b: b.paramters(), AttributeError, "'paramters'; did you mean 'parameters'"),
    (lambda b: b.register_full_backward_hook(print), AttributeError, "output.register_hook.f. c"),
    (lambda b: nn.Module()(1), TypeError, "has no forward"),
    (lambda b: nn.Sequential(nn.ReLU(), 3), TypeError, "modules=3; wanted a Module"),
    (lambda b: nn.Sequential(nn.ReLU())[1], IndexError, "module 1 of 1"),
    (lambda b: nn.Parameter([1, 2]), TypeError, "dtype int64"),
    (lambda b: b.to("float99"), TypeError, "'float99'"),
    (lambda b: b.to(gt.int64), TypeError, "floating"),
    (lambda b: b.to("cuda:77"), gt.DeviceError, "cuda:77"),
])
def test_mistakes_are_named_and_change_nothing(act, error, message):
    block = Block()
    before = values(block)
    with pytest.raises(error, match=message):
        act(block)
    assert same(before, block) and block.scale.dtype == gt.float32


def test_registering_before_set_up_is_named():
    class Early(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"Early .* super\(\).__init__"):
        Early()


# -- state -----------------------------------------------------------------------------------------


def test_state_round_trips_and_shares_memory():
    gt.manual_seed(1)
    first, second = Block(), Block()
    assert not same(values(first), second)
    state = first.state_dict()
    assert second.load_state_dict(state) == ([], [])
    assert same(values(first), second)
    with gt.no_grad():
        first.scale += 1
    assert state["scale"].tolist() == [2, 2, 2] and second.scale.tolist() == [1, 1, 1]


def test_what_does_not_fit_is_listed_whole_and_nothing_is_loaded():
    block = Block()
    before = values(block)
    state = {**block.state_dict(), "inner.weight": gt.zeros((2, 3)), "scale": gt.zeros(3),
             "extra": gt.ones(1), "count": gt.ones(1, gt.int64)}
    del state["inner.bias"]
    with pytest.raises(ValueError) as caught:
        block.load_state_dict(state)
    for part in ("missing 'inner.bias'", "unexpected 'extra'", "nothing was loaded",
                 "'inner.weight' has shape (2, 3), wanted (3, 3)", "'count' has shape (1,)"):
        assert part in str(caught.value)
    assert same(before, block)


def test_not_strict_loads_what_is_there_and_says_what_is_not():
    block = Block()
    found = block.load_state_dict({"scale": np.full(3, 2.0), "extra": 1}, strict=False)
    assert found.unexpected_keys == ["extra"]
    assert found.missing_keys == ["count", "inner.weight", "inner.bias"]
    assert block.scale.tolist() == [2, 2, 2] and block.scale.dtype == gt.float32
    with pytest.raises(ValueError, match=r"'scale' has shape \(2,\)"):
        block.load_state_dict({"scale": gt.ones(2)}, strict=False)


def test_loading_is_noticed_by_a_graph_that_saved_the_old_values():
    linear = nn.Linear(2, 2)
    y = linear(gt.ones((1, 2), requires_grad=True))
    linear.load_state_dict(linear.state_dict())
    with pytest.raises(gt.GradientError, match="overwritten"):
        y.sum().backward()


@pytest.mark.parametrize("copied", [
    copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_has_memory_of_its_own_and_keeps_what_is_shared(copied):
    net = nn.Sequential(Block(), nn.Linear(3, 3))
    net[1].weight = net[0].inner.weight
    net[1].bias.requires_grad_(False)
    other = copied(net)
    assert same(values(net), other) and other[1].weight is other[0].inner.weight
    assert isinstance(other[0].scale, nn.Parameter) and not other[1].bias.requires_grad
    assert list(other.state_dict()) == list(net.state_dict())
    before = values(net)
    other(gt.ones((1, 3))).sum().backward()
    gt.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=1.0).step()
    assert same(before, net) and not same(before, other) and net[0].scale.grad is None


# -- modes and moves -------------------------------------------------------------------------------


def test_modes_reach_everything_below():
    net = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    assert net.eval() is net and not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.zero_grad()  # nothing to drop, no error
    names = []
    net.apply(lambda m: names.append(type(m).__name__))
    assert names == ["Dropout", "BatchNorm1d", "Sequential", "Sequential"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_state_may_be_pytorchs_tensors(dtype: str):
    """Also parameters, and bfloat16, which PyTorch does not export."""
    theirs = torch.nn.BatchNorm1d(3).to(getattr(torch, dtype))
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor([1.5, -0.3, 1e-3]))
    for state in (theirs.state_dict(), {**theirs.state_dict(), **dict(theirs.named_parameters())}):
        mine = nn.BatchNorm1d(3)
        found = mine.load_state_dict(state_dict=state)
        assert found.missing_keys == found.unexpected_keys == []
        assert np.array_equal(mine.weight.numpy(), theirs.weight.detach().float().numpy())
    linear = nn.Linear(2, 3)
    weight = torch.arange(6).to(getattr(torch, dtype)).reshape(2, 3).T  # strided
    linear.load_state_dict({"weight": weight}, strict=False)
    assert np.array_equal(linear.weight.numpy(), weight.float().numpy())


def test_conversions_by_pytorchs_names():
    block = Block()
    for name, dtype in (("half", "float16"), ("double", "float64"), ("bfloat16", "bfloat16"),
                        ("float", "float32")):
        assert getattr(block, name)() is block
        assert block.scale.dtype == gt.zeros(1, dtype).dtype and block.count.dtype == gt.int64
    assert block.cpu() is block
    for device in (77, None):
        with pytest.raises(gt.DeviceError):
            block.cuda(device)


def test_zero_grad_drops_gradients():
    linear = nn.Linear(2, 1)
    linear(gt.ones((1, 2))).sum().backward()
    grad = linear.weight.grad
    assert grad is not None
    linear.zero_grad(set_to_none=False)
    assert linear.weight.grad is grad and grad.tolist() == [[0, 0]]
    linear.zero_grad()
    assert linear.weight.grad is None and linear.bias.grad is None


def test_a_dtype_converts_what_floats_and_keeps_identity_and_gradients():
    block = Block()
    scale = block.scale
    block(gt.ones((1, 3))).sum().backward()
    expected = scale.grad.tolist()
    assert block.to(gt.float64) is block
    assert block.scale is scale and scale.dtype == gt.float64 and scale.grad.dtype == gt.float64
    assert scale.grad.tolist() == expected
    assert block.cache.dtype == gt.float64 and block.count.dtype == gt.int64
    assert scale.is_leaf and scale.requires_grad
    weight = block.inner.weight
    block.to("cpu", gt.float64)
    assert block.inner.weight is weight
    optimizer = gt.optim.SGD(block.parameters(), lr=1.0)
    before = scale.tolist()
    block(gt.ones((1, 3), gt.float64)).sum().backward()
    optimizer.step()
    assert scale.tolist() != before


def test_an_optimizer_made_before_a_conversion_refuses_before_it_writes():
    block = Block()
    optimizer = gt.optim.AdamW(block.parameters())
    block.to(gt.float64)
    block(gt.ones((1, 3), gt.float64)).sum().backward()
    before = values(block)
    with pytest.raises(ValueError, match="float32.*float64; make the optimizer after"):
        optimizer.step()
    assert same(before, block)


def test_repr_is_pytorchs():
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Dropout(0.25)))
    other = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.25)))
    theirs = repr(other).replace("in_features=", "").replace("out_features=", "")
    assert repr(net) == theirs.replace(", inplace=False", "")


def test_containers_are_lists_of_modules():
    net = nn.Sequential({"first": nn.Linear(2, 3), "second": nn.Tanh()})
    assert [n for n, _ in net.named_children()] == ["first", "second"]
    assert net[-1] is net.second and len(net) == 2
    assert net(gt.ones((1, 2))).shape == (1, 3)
    layers = nn.ModuleList([nn.ReLU()]).append(nn.Tanh()).extend([nn.SiLU()])
    assert [type(m) for m in layers] == [nn.ReLU, nn.Tanh, nn.SiLU]
    layers.insert(1, nn.Mish())
    layers.insert(-1, nn.Identity())
    assert [type(m) for m in layers] == [nn.ReLU, nn.Mish, nn.Tanh, nn.Identity, nn.SiLU]
    assert [n for n, _ in layers.named_children()] == list("01234")
    with pytest.raises(TypeError):
        layers.insert(0, 5)
    assert len(layers) == 5 and len(nn.ModuleList()) == len(nn.ModuleList(None)) == 0


def test_slices_of_containers_share_their_modules():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    rest = net[1:]
    assert type(rest) is nn.Sequential and rest[-1] is net[2]
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))[1:]
    assert list(rest.state_dict()) == list(other.state_dict())
    x = gt.ones((4, 2))
    np.testing.assert_array_equal(rest(net[:1](x)).numpy(), net(x).numpy())
    rest.append(nn.ReLU())  # beside "2", which is taken
    assert [type(m) for m in rest] == [nn.Tanh, nn.Linear, nn.ReLU] and len(net) == 3
    layers = nn.ModuleList(net)[::-1]
    assert type(layers) is nn.ModuleList and list(layers) == list(net)[::-1]
    assert list(dict(layers.named_children())) == ["0", "1", "2"] and len(net[3:]) == 0


def test_members_by_dotted_name():
    net = nn.Sequential(Block(), nn.Identity(1, any=2))
    assert net.get_submodule("0.inner") is net[0].inner and net.get_submodule("") is net
    assert net.get_parameter("0.inner.bias") is net[0].inner.bias
    assert net.get_buffer("0.count") is net[0].count
    x = gt.ones(2)
    assert net[1](x) is x
    for call, name, message in (
            (net.get_submodule, "0.outer.x", "Block has no module 'outer'"),
            (net.get_parameter, "0.count", "Block has no parameter 'count'"),
            (net.get_buffer, "1.scale", "Identity has no buffer 'scale'")):
        with pytest.raises(AttributeError, match=message):
            call(name)


def test_own_members_without_those_below():
    block = Block()
    assert [n for n, _ in block.named_parameters(recurse=False)] == ["scale"]
    assert list(block.parameters(recurse=False)) == [block.scale]
    assert [n for n, _ in block.named_buffers("p", recurse=False)] == ["p.count", "p.cache"]


def test_module_dict_is_pytorchs():
    mine = nn.ModuleDict({"b": nn.Linear(1, 2), "a": nn.ReLU()})
    theirs = torch.nn.ModuleDict({"b": torch.nn.Linear(1, 2), "a": torch.nn.ReLU()})
    for held in (mine, theirs):
        held["c"] = held["a"]
        held.update({"d": held["b"]})
        del held["a"]
    assert list(mine) == list(theirs) == ["b", "c", "d"] and len(mine) == 3
    assert list(mine.keys()) == list(theirs.keys()) and "c" in mine and "a" not in mine
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert [type(m) for m in mine.values()] == [nn.Linear, nn.ReLU, nn.Linear]
    assert dict(mine.items())["d"] is mine["b"] and len(list(mine.parameters())) == 2
    with pytest.raises(KeyError, match="'z' asked of ModuleDict; it has 'b', 'c', 'd'"):
        mine["z"]
    with pytest.raises(TypeError, match="'e' was given int"):
        mine["e"] = 3


def test_parameter_containers():
    shared = nn.Parameter(gt.ones(2))
    rows = nn.ParameterList([shared, gt.zeros(1)]).append(shared)
    named = nn.ParameterDict({"x": shared, "y": gt.zeros(3)})
    assert list(rows.state_dict()) == ["0", "1", "2"] and len(rows) == 3
    assert rows[0] is shared and rows[-1] is shared and rows[1].requires_grad
    assert len(list(rows)) == 3 and list(named) == ["x", "y"] and named["x"] is shared
    net = nn.Sequential(rows, named)
    assert [n for n, _ in net.named_parameters()] == ["0.0", "0.1", "1.y"]
    with pytest.raises(IndexError, match="parameter 3 of 3"):
        rows[3]


@pytest.mark.parametrize("name,options", [
    ("ReLU6", {}), ("Hardtanh", {"min_val": -0.5, "max_val": 2.0}), ("Hardswish", {}),
    ("Hardsigmoid", {}), ("PReLU", {}), ("PReLU", {"num_parameters": 3}), ("SELU", {}),
    ("Mish", {}), ("GLU", {"dim": 2}), ("LogSigmoid", {}), ("Softsign", {}), ("ELU", {}),
    ("GELU", {}), ("SiLU", {}), ("Softplus", {"beta": 2.0}), ("Softmax", {"dim": 1}),
])
def test_activation_modules_are_pytorchs(name, options):
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32) * 3
    mine, theirs = getattr(nn, name)(**options), getattr(torch.nn, name)(**options)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    np.testing.assert_allclose(mine(gt.tensor(x)).numpy(),
                               theirs(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_softmax_without_a_dim_is_refused():
    for module in (nn.Softmax(), nn.LogSoftmax()):
        with pytest.raises(TypeError, match="softmax was given dim=None; wanted the axis"):
            module(gt.ones((2, 2)))


@pytest.mark.gpu
def test_a_module_moves_to_the_gpu_and_back():
    block = Block().to("cuda")
    scale = block.scale
    assert scale.device.type == "cuda" and block.cache.device.type == "cuda"
    assert block(gt.ones((1, 3), device="cuda")).device.type == "cuda"
    assert block.to("cpu").scale is scale and scale.device.type == "cpu"
