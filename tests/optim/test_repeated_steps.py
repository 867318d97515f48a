"""A step checks only what changed since the last one: whatever changes is still refused."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn, optim
from gtensor.backend import DeviceError
from gtensor.optim import optimizer as module


def ones(shape: tuple[int, ...], dtype: str = "float32") -> gt.Tensor:
    return gt.ones(shape, dtype=dtype, device="cpu")


class Trained:
    """A parameter and its optimizer, after two steps."""

    def __init__(self) -> None:
        self.parameter = nn.Parameter(ones((2, 3)))
        self.optimizer = optim.AdamW([self.parameter])
        self.group = self.optimizer.param_groups[0]
        self.group["betas"] = [0.9, 0.99]  # a list, which can change in place
        self.parameter.grad = ones((2, 3))
        self.optimizer.step()
        self.optimizer.step()

    def become(self, other: gt.Tensor) -> None:
        """As `Module.to` moves or converts it."""
        self.parameter.become(other)
        self.parameter.requires_grad_()
        self.parameter.grad = other

    def given(self, gradient: gt.Tensor) -> None:
        """A gradient that the setter of `grad` would refuse."""
        self.parameter._node.grad = gradient


CHANGES = {
    "option": (lambda it: it.group.update(lr=-1.0), "lr=-1.0"),
    "option in place": (lambda it: it.group["betas"].__setitem__(1, 2.0), "betas"),
    "option and state": (lambda it: it.group.update(amsgrad=True), "max_exp_avg_sq"),
    "dtype": (lambda it: it.become(ones((2, 3), dtype="float64")), "float64"),
    "shape": (lambda it: it.become(ones((3, 2))), "shape"),
    "dtype of the gradient": (lambda it: it.given(ones((2, 3), dtype="float64")), "float64"),
    "shape of the gradient": (lambda it: it.given(ones((3, 2))), "a gradient of shape"),
}


def unnoticed() -> set[str]:
    """The changes that the next step does not refuse before it changes anything."""
    found = set()
    for name, (change, words) in CHANGES.items():
        it = Trained()
        change(it)
        before = it.parameter.numpy().copy()
        try:
            with np.errstate(all="ignore"):
                it.optimizer.step()
        except (TypeError, ValueError) as error:
            if words in str(error) and np.array_equal(before, it.parameter.numpy()):
                continue
        found.add(name)
    return found


def test_changes_between_steps_are_refused():
    assert unnoticed() == set()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_foreign_gradient_late_in_the_list_changes_nothing_before_it(device):
    parameters = [nn.Parameter(gt.ones((3,), device=device)) for _ in range(8)]
    optimizer = optim.AdamW(parameters)
    for p in parameters:
        p.grad = gt.ones((3,), device=device)
    parameters[6]._node.grad = gt.ones((3,), dtype="float16", device=device)
    with pytest.raises(ValueError, match="a gradient of shape .* and dtype float16"):
        optimizer.step()
    locked = nn.Parameter(gt.asarray(np.ones(3, np.float32)))
    if device == "cpu":  # CuPy has no such flag
        locked._array.flags.writeable = False
        parameters[6].grad = gt.ones((3,), device=device)
        locked.grad = gt.ones((3,), device=device)
        optimizer.add_param_group({"params": [locked]})
        with pytest.raises(ValueError, match="read-only memory"):
            optimizer.step()
    assert not optimizer.state_dict()["state"]
    assert all(p.tolist() == [1.0] * 3 for p in parameters)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_update_is_one_event_and_counts_as_a_write_of_each_parameter(device):
    heard = []

    class Listener:
        def op_ends(self, event):
            heard.append((event.name, len(event.params["out"])))

    parameters = [nn.Parameter(gt.ones((3,), device=device)) for _ in range(3)]
    optimizer = optim.AdamW(parameters)
    recorded = [(p * p).sum() for p in parameters]
    for p in parameters[:2]:
        p.grad = gt.ones((3,), device=device)
    with gt.listen(Listener()):
        optimizer.step()
    assert heard == [("adam", 2)]
    recorded[2].backward()
    for stale in recorded[:2]:
        with pytest.raises(gt.GradientError, match="overwritten|written"):
            stale.backward()


@pytest.mark.gpu
def test_a_move_between_steps_is_refused():
    it = Trained()
    it.become(it.parameter.detach().to("cuda"))
    with pytest.raises(DeviceError, match="make the optimizer after moving"):
        it.optimizer.step()


def test_planted_fault_a_change_that_is_not_looked_for_is_seen(monkeypatch):
    def once(self, group, known):
        checked_in_full(self, group, known)
        known.options = {**group, "params": None}

    checked_in_full = optim.Optimizer._check_group
    with monkeypatch.context() as patch:
        patch.setattr(optim.Optimizer, "_check_group", once)
        assert unnoticed() == {"option in place"}
    with monkeypatch.context() as patch:
        patch.setattr(module, "is_like", lambda value, node: True)
        assert unnoticed() == {"dtype of the gradient", "shape of the gradient"}
    with monkeypatch.context() as patch:
        patch.setattr(optim.Optimizer, "_check", lambda self, slot, grad, states: None)
        assert unnoticed() >= {"option and state", "dtype"}


def test_what_has_not_changed_is_not_checked_again(monkeypatch):
    it = Trained()
    it.group["betas"] = 0.9, 0.99
    it.optimizer.step()
    for name in ("check_options", "states_of", "_check"):
        monkeypatch.setattr(optim.AdamW, name, None)
    it.parameter.grad = ones((2, 3)) * 2
    it.optimizer.step()


def test_a_copy_steps_its_own_parameters():
    it = Trained()
    other = deepcopy(it)
    it.optimizer.step()
    other.optimizer.step()
    np.testing.assert_array_equal(it.parameter.numpy(), other.parameter.numpy())
    assert other.group["params"][0] is other.parameter is not it.parameter
