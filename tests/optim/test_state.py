"""State of optimizers: PyTorch's layout, exchanged with it; options changed between steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtensor as gt

KINDS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}),
    ("SGD", {"lr": 0.1}),
    ("Adam", {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.02, "eps": 1e-4}),
    ("AdamW", {"lr": 0.02, "amsgrad": True, "maximize": True}),
]


def parameters(count=3):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((3, 2)) for _ in range(count)]
    return ([gt.tensor(v, requires_grad=True) for v in values],
            [torch.tensor(v, requires_grad=True) for v in values])


def set_gradients(ours, theirs, seed):
    rng = np.random.default_rng(seed)
    for p, q in zip(ours, theirs, strict=True):
        g = rng.standard_normal(p.shape)
        p.grad, q.grad = gt.tensor(g), torch.tensor(g)


def values(tensors):
    return [p.detach().numpy().copy() for p in tensors]


@pytest.mark.parametrize("name,options", KINDS)
def test_pytorchs_state_is_taken_up(name, options):
    ours, theirs = parameters()
    other = getattr(torch.optim, name)(theirs, **options)
    for step in range(3):
        set_gradients(ours, theirs, step)
        theirs[2].grad = None  # this one is never stepped: it has no state
        other.step()
    mine = getattr(gt.optim, name)(ours, **{**options, "lr": 7.0, "weight_decay": 0.0})
    for p, q in zip(ours, theirs, strict=True):
        p.detach()[...] = q.detach().numpy()
    mine.load_state_dict(other.state_dict())
    assert mine.lr == options["lr"]
    for step in range(3, 6):
        set_gradients(ours, theirs, step)
        mine.step()
        other.step()
    for p, q in zip(values(ours), values(theirs), strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name,options", KINDS)
def test_names_are_pytorchs(name, options):
    ours, theirs = parameters()
    mine = getattr(gt.optim, name)(ours, **options)
    other = getattr(torch.optim, name)(theirs, **options)
    set_gradients(ours, theirs, 0)
    mine.step()
    other.step()
    a, b = mine.state_dict(), other.state_dict()
    assert set(a["param_groups"][0]) <= set(b["param_groups"][0])
    assert a["param_groups"][0]["params"] == b["param_groups"][0]["params"] == [0, 1, 2]
    for number in range(3):
        theirs_of = b["state"].get(number, {})
        assert set(a["state"][number]) - {"step"} == {
            n for n, v in theirs_of.items() if v is not None} - {"step"}
        for key in set(a["state"][number]) - {"step"}:
            np.testing.assert_allclose(a["state"][number][key].numpy(), theirs_of[key].numpy(),
                                       rtol=1e-12)


def test_state_that_does_not_fit_changes_nothing():
    (w, _, _), _ = parameters()
    optimizer = gt.optim.AdamW([w], lr=0.5)
    w.grad = gt.ones((3, 2), gt.float64)
    optimizer.step()
    before = optimizer.state_dict()["state"][0]["exp_avg"].tolist()
    good = gt.optim.AdamW([w], lr=0.1).state_dict()
    for state, message in [
        ({**good, "param_groups": [*good["param_groups"], {"params": []}]},
         r"\[1, 0\].*wanted \[1\]"),
        ({**good, "state": {0: {"exp_avg": gt.ones((3, 2))}}}, "'exp_avg_sq' .* is missing"),
        ({**good, "param_groups": [{**good["param_groups"][0], "lr": -1.0}]}, "lr=-1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(state)
        assert optimizer.state_dict()["state"][0]["exp_avg"].tolist() == before
        assert optimizer.lr == 0.5 and optimizer.state_dict()["state"][0]["step"] == 1
    with pytest.raises(ValueError, match="other state"):
        gt.optim.SGD([w]).load_state_dict(gt.optim.SGD([w], momentum=0.9).state_dict())


def stepped(make):
    w = gt.tensor(np.ones((3, 2)), requires_grad=True)
    optimizer = make([w])
    w.grad = gt.ones_like(w)
    optimizer.step()
    return optimizer


MAKERS = {"sgd": lambda p: gt.optim.SGD(p, momentum=0.9), "adamw": gt.optim.AdamW,
          "lion": gt.optim.Lion, "adagrad": gt.optim.Adagrad,
          "rmsprop": lambda p: gt.optim.RMSprop(p, momentum=0.9)}


@pytest.mark.parametrize("taken,given", [
    (a, b) for a in MAKERS for b in MAKERS if a != b])
@pytest.mark.parametrize("fresh", [False, True])
def test_state_of_another_kind_is_refused(taken, given, fresh):
    w = gt.tensor(np.ones((3, 2)), requires_grad=True)
    optimizer, other = stepped(MAKERS[taken]), stepped(MAKERS[given])
    state = MAKERS[given]([w]).state_dict() if fresh else other.state_dict()
    options = dict(optimizer.param_groups[0])
    before = {k: v.tolist() for k, v in optimizer.state_dict()["state"][0].items() if k != "step"}
    with pytest.raises(ValueError, match="nothing was loaded"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0] == options
    assert before == {k: v.tolist() for k, v in optimizer.state_dict()["state"][0].items()
                      if k != "step"}


def test_foreign_state_under_fitting_options_is_refused():
    optimizer, other = stepped(gt.optim.Lion), stepped(gt.optim.AdamW)
    state = {**optimizer.state_dict(), "state": other.state_dict()["state"]}
    with pytest.raises(ValueError, match="with exp_avg_sq of parameter 0 .* Lion keeps exp_avg;"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("name", ["RMSprop", "NAdam", "Adagrad"])
def test_kinds_that_only_pytorch_has_are_refused(name):
    ours, theirs = parameters()
    for mine in (gt.optim.SGD(ours), gt.optim.Adam(ours)):
        with pytest.raises(ValueError, match="nothing was loaded"):
            mine.load_state_dict(getattr(torch.optim, name)(theirs).state_dict())


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[::-1], lambda t: t.numpy()])
def test_state_in_the_memory_that_is_written_is_read_first(view):
    ours, theirs = parameters()
    optimizer = gt.optim.AdamW(ours)
    set_gradients(ours, theirs, 0)
    optimizer.step()
    state = optimizer.state_dict()
    a, b, c = ({name: view(value) for name, value in state["state"][i].items() if name != "step"}
               for i in range(3))
    wanted = [{name: gt.asarray(value).tolist() for name, value in entry.items()}
              for entry in (b, c, a)]
    optimizer.load_state_dict({**state, "state": {0: b, 1: c, 2: a}})
    found = optimizer.state_dict()["state"]
    assert wanted == [{name: value.tolist() for name, value in found[i].items() if name != "step"}
                      for i in range(3)]


def test_pytorchs_scheduled_groups_are_taken_up():
    ours, theirs = parameters()
    other = torch.optim.AdamW(theirs, lr=0.3)
    torch.optim.lr_scheduler.OneCycleLR(other, 0.5, 10)  # leaves notes of its own in the groups
    other.param_groups[0]["lr_scale"] = 0.5
    mine = gt.optim.AdamW(ours)
    mine.load_state_dict(other.state_dict())
    assert mine.lr == other.param_groups[0]["lr"]


@pytest.mark.parametrize("name,options,plain", [
    ("Adam", {"betas": [0.9, 0.99]}, {"betas": (0.9, 0.99)}),
    ("AdamW", {"betas": np.array([0.5, 0.75])}, {"betas": (0.5, 0.75)}),
    ("Lion", {"betas": [np.float32(0.5), gt.tensor(0.75)]}, {"betas": (0.5, 0.75)}),
    ("Adam", {"amsgrad": np.bool_(True), "maximize": 1}, {"amsgrad": True, "maximize": True}),
    ("SGD", {"lr": np.array(0.5), "momentum": gt.tensor(0.25), "nesterov": 1},
     {"lr": 0.5, "momentum": 0.25, "nesterov": True}),
    ("SGD", {"lr": float("inf")}, {"lr": float("inf")}),
    ("SGD", {"lr": np.float16(0.5), "weight_decay": 1}, {"lr": 0.5, "weight_decay": 1}),
])
def test_an_optimizer_takes_its_own_state(name, options, plain):
    (v, w, _), _ = parameters()
    make = getattr(gt.optim, name)
    added = make([v])
    added.add_param_group({"params": w, **options})
    for optimizer in (make([v], **options), added):
        group = optimizer.param_groups[-1]
        assert {n: group[n] for n in plain} == plain
        assert {n: type(group[n]) for n in plain} == {n: type(plain[n]) for n in plain}
        group.update(options)  # by hand, as between steps
        optimizer.load_state_dict(optimizer.state_dict())
        assert {n: group[n] for n in plain} == plain


def test_options_of_a_subclass_are_its_own():
    class Own(gt.optim.SGD):
        def __init__(self, params):
            super().__init__(params)
            self.defaults.update(rule="none", bound=None)
            self.param_groups[0].update(rule="some", bound=None)

    (w, _, _), _ = parameters()
    optimizer = Own([w])
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["rule"] == "some"


@pytest.mark.parametrize("change,message", [
    ({"lr": 10**400}, "'lr' .* wanted a number"), ({"lr": "1"}, "'lr' .* wanted a number"),
    ({"lr": np.ones(1)}, "'lr' .* wanted a number"), ({"lr": float("nan")}, "lr=nan"),
    ({"betas": [0.9]}, "'betas' .* wanted 2 numbers"), ({"betas": 0.9}, "wanted 2 numbers"),
    ({"betas": np.zeros((2, 1))}, "wanted 2 numbers"), ({"betas": (0.9, 1.0)}, "betas="),
    ({"maximize": 0.5}, "'maximize' .* wanted True or False"), ({"amsgrad": 2}, "True or False"),
])
def test_options_that_are_none_are_refused(change, message):
    (w, _, _), _ = parameters()
    optimizer = gt.optim.Adam([w])
    before, state = optimizer.state_dict(), optimizer.state_dict()
    state["param_groups"][0].update(change)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict() == before


def test_pytorchs_tensors_as_options_are_taken_up():
    ours, theirs = parameters()
    other = torch.optim.Adam(theirs, lr=torch.tensor(0.5), foreach=False)
    mine = gt.optim.Adam(ours)
    state = other.state_dict()
    state["param_groups"] = tuple({**g, "params": tuple(g["params"])} for g in
                                  state["param_groups"])
    mine.load_state_dict(state)
    assert type(mine.lr) is float and mine.lr == 0.5


def test_edited_lists_of_parameters_are_refused():
    (v, w, _), _ = parameters()
    edits = [lambda groups: groups[0].update(params=[w]),
             lambda groups: groups[0]["params"].append(w),
             lambda groups: groups.append({**groups[0], "params": [w]}),
             lambda groups: groups.clear()]
    for edit in edits:
        optimizer = gt.optim.SGD([v])
        v.grad, w.grad = gt.ones_like(v), gt.ones_like(w)
        before = values([v, w])
        edit(optimizer.param_groups)
        with pytest.raises(ValueError, match="param_groups of SGD were edited"):
            optimizer.step()
        assert all(np.array_equal(a, b) for a, b in zip(before, values([v, w]), strict=True))


def test_options_changed_between_steps():
    (v, w, _), _ = parameters()
    optimizer = gt.optim.SGD([{"params": v, "lr": 0.5}, {"params": [w]}], lr=0.1)
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.1] and optimizer.lr == 0.5
    optimizer.lr = 0.25
    assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.25]
    with pytest.raises(ValueError, match="lr=-1"):
        optimizer.lr = -1
    assert optimizer.lr == 0.25
    before = values([v, w])
    v.grad, w.grad = gt.ones_like(v), gt.ones_like(w)
    optimizer.param_groups[1]["momentum"] = 0.9
    with pytest.raises(ValueError, match="momentum_buffer, which it was made without"):
        optimizer.step()
    assert all(np.array_equal(a, b) for a, b in zip(before, values([v, w]), strict=True))


def test_parameters_without_a_gradient_are_left_alone():
    (v, w, frozen), _ = parameters()
    optimizer = gt.optim.AdamW([v, w, frozen])
    frozen.requires_grad_(False)
    w.grad = gt.ones_like(w)
    before = values([v, w, frozen])
    optimizer.step()
    after = values([v, w, frozen])
    assert np.array_equal(before[0], after[0]) and np.array_equal(before[2], after[2])
    assert not np.array_equal(before[1], after[1])
    assert list(optimizer.state_dict()["state"]) == [1]


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
@pytest.mark.parametrize("name,options", KINDS)
def test_half_types_follow_the_wide_update_within_their_precision(name, options, dtype):
    wide = gt.tensor(np.linspace(-2, 2, 40), requires_grad=True)
    half = wide.detach().astype(dtype).requires_grad_()
    a, b = (getattr(gt.optim, name)([p], **options) for p in (wide, half))
    rng = np.random.default_rng(0)
    for _ in range(4):
        g = rng.standard_normal(40)
        wide.grad, half.grad = gt.tensor(g), gt.tensor(g).astype(dtype)
        a.step()
        b.step()
    unit = 2**-10 if dtype == gt.float16 else 2**-7
    np.testing.assert_allclose(half.detach().astype(gt.float64).numpy(), wide.detach().numpy(),
                               rtol=8 * unit, atol=8 * unit)


def test_state_is_allocated_when_the_optimizer_is_made():
    w = gt.zeros((512, 1024), requires_grad=True)  # 2 MiB
    w.grad = gt.ones_like(w)
    before = gt.memory.stats().allocated
    optimizer = gt.optim.AdamW([w])
    made = gt.memory.stats().allocated
    assert made - before == 2 * w.nbytes
    optimizer.step()
    assert gt.memory.stats().allocated == made
