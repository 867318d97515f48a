"""The walk: what it adds up, what it refuses, and what it leaves behind when a rule fails."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.tape.op import Op
from gtensor.engine.walk.slots import RawStep


def leaf(*values: float) -> gt.Tensor:
    return gt.tensor(list(values), dtype=gt.float64, requires_grad=True)


def equal(tensor: gt.Tensor | None, *values: float) -> bool:
    return tensor is not None and np.array_equal(tensor.numpy(), values)


def failing_op(name: str = "failing", error: str = "the rule failed") -> Op:
    """x * 1, whose backward rule raises after it has given half of its gradients."""
    def rule(ns, step, g):
        step.lend(0, g)
        raise ValueError(error)

    return Op(name, inputs="a b", cpu=lambda a, b, out=None: np.array(a), gpu=None, backward=rule,
              tangent=None, saves={"a": "b"}, samples=None)


# -- sums -----------------------------------------------------------------------------------------


def test_one_input_twice():
    x = leaf(1, 2)
    ((x + x) * 2.0).sum().backward()
    assert equal(x.grad, 4, 4)


def test_a_broadcast_view_of_g_is_not_disturbed_by_a_later_sum():
    """y's gradient is a view of x's; the second arrival at x must not be added into it."""
    x, y = gt.tensor(1.0, requires_grad=True), leaf(1, 2, 3)
    early = x * 3.0
    (gt.add(x, y.sum()) * 2.0 + early * 5.0).backward()
    assert x.grad.item() == 17
    assert equal(y.grad, 2, 2, 2)


def test_gradients_of_scalars_are_arrays():
    x = leaf(1, 2)
    total = x.sum()
    (total * total * 0.5).backward()
    assert equal(x.grad, 3, 3)
    assert isinstance(x.grad.numpy(), np.ndarray)


def test_dtypes_and_shapes_are_fitted():
    x = gt.tensor([1.0, 2.0], dtype=gt.float32, requires_grad=True)
    y = gt.tensor([[1.0], [2.0], [3.0]], dtype=gt.float64, requires_grad=True)
    (x * y).sum().backward()
    assert x.grad.dtype == gt.float32 and equal(x.grad, 6, 6)
    assert y.grad.dtype == gt.float64 and y.grad.tolist() == [[3.0], [3.0], [3.0]]


def test_a_second_backward_adds():
    x = leaf(1, 2)
    (x * 2.0).sum().backward()
    first = x.grad
    (x * 3.0).sum().backward()
    assert equal(x.grad, 5, 5)
    assert equal(first, 2, 2)  # the user's handle is replaced, not written


def test_grad_is_assignable():
    x = leaf(1, 2)
    mine = gt.tensor([10.0, 20.0], dtype=gt.float64)
    x.grad = mine
    (x * 2.0).sum().backward()
    assert equal(x.grad, 12, 22) and equal(mine, 10, 20)
    x.grad = None
    assert x.grad is None
    (x * 2.0).sum().backward()
    assert equal(x.grad, 2, 2)


@pytest.mark.parametrize("value, error, message", [
    (gt.zeros(3, dtype=gt.float64), ValueError, r"grad of shape \(3,\) given for .* shape \(2,\)"),
    (gt.zeros(2), TypeError, "grad of dtype float32 given for a tensor of dtype float64"),
    (np.zeros(2), TypeError, "grad was given ndarray; wanted a Tensor or None"),
])
def test_grad_must_fit(value, error, message):
    x = leaf(1, 2)
    with pytest.raises(error, match=message):
        x.grad = value
    assert x.grad is None


def test_grad_of_a_constant_cannot_be_assigned():
    with pytest.raises(gt.GradientError, match="requires_grad_"):
        gt.zeros(2).grad = gt.zeros(2)


def test_retain_grad():
    x = leaf(1, 2)
    y = x * 2.0
    y.retain_grad()
    z = y * y
    z.sum().backward()
    assert equal(y.grad, 4, 8) and equal(x.grad, 8, 16)
    assert z.grad is None


def test_a_retained_gradient_has_memory_of_its_own():
    x = leaf(1, 2)
    y = x * 1.0
    y.retain_grad()
    z = y.reshape((2, 1))
    z.retain_grad()
    (z * 3.0).sum().backward()
    with gt.no_grad():
        x.grad += 1.0
    assert equal(x.grad, 4, 4) and equal(y.grad, 3, 3) and z.grad.tolist() == [[3.0], [3.0]]
    assert not np.shares_memory(y.grad.numpy(), z.grad.numpy())


def test_the_caller_keeps_his_gradient():
    """backward(dz) never writes dz, whatever the first op does with it, in either mode."""
    dz = gt.tensor([1.0, 2.0], dtype=gt.float64)
    for create_graph in (False, True):
        x, y = leaf(1, 2), leaf(3, 4)
        for build in (lambda x, y: x + y, lambda x, y: x + x, lambda x, y: -x, lambda x, y: x,
                      lambda x, y: x.reshape((2,)), lambda x, y: gt.tanh(x), lambda x, y: x * y,
                      lambda x, y: x.clone()):
            for _ in range(2):
                build(x, y).backward(dz, create_graph=create_graph)
                assert equal(dz, 1, 2)
        for kept in (x.grad, y.grad):
            assert not np.shares_memory(kept.numpy(), dz.numpy())
        assert not np.shares_memory(x.grad.numpy(), y.grad.numpy())


def test_grad_of_one_output_given_twice():
    x = leaf(1, 2)
    y, dy = x * 2.0, leaf(1, 1).detach()
    assert equal(gt.grad([y, y], [x], [dy, dy])[0], 4, 4)
    assert equal(dy, 1, 1)


def test_grad_with_respect_to_a_tensor_in_the_middle():
    x = leaf(1, 2)
    total = x.sum()
    assert gt.grad(total * total, total)[0].item() == 6
    assert x.grad is None
    total.backward()  # what lies behind the end of that walk is still there
    assert equal(x.grad, 1, 1)


def test_grad_of_a_leaf_and_of_what_it_made():
    x = leaf(1, 2)
    y = x * 3.0
    of_x, of_y = gt.grad((y * y).sum(), [x, y])
    assert equal(of_x, 18, 36) and equal(of_y, 6, 12)


def test_unused_inputs():
    x, y = leaf(1, 2), leaf(1, 2)
    with pytest.raises(gt.GradientError, match=r"inputs \[1\].*allow_unused"):
        gt.grad((x * 1.0).sum(), [x, y])
    assert gt.grad((x * 1.0).sum(), [x, y], allow_unused=True)[1] is None


# -- bad input ------------------------------------------------------------------------------------


def test_a_gradient_must_start_somewhere():
    x = leaf(1, 2)
    with pytest.raises(gt.GradientError, match=r"shape \(2,\) without a gradient; give one"):
        (x * 2.0).backward()
    with pytest.raises(gt.GradientError, match="does not require a gradient"):
        gt.zeros(()).backward()
    with pytest.raises(ValueError, match=r"gradient of shape \(3,\) given for .* \(2,\)"):
        (x * 2.0).backward(gt.zeros(3, dtype=gt.float64))
    with pytest.raises(TypeError, match=r"gradient of dtype float32 given for .* float64"):
        (x * 2.0).backward(gt.zeros(2))
    with pytest.raises(TypeError, match="the gradient given is ndarray; wanted a Tensor"):
        (x * 2.0).backward(np.zeros(2))
    assert x.grad is None


def test_integers_have_no_gradient():
    with pytest.raises(TypeError, match="dtype int64; gradients need a floating-point dtype"):
        gt.tensor([1, 2], requires_grad=True)
    with pytest.raises(TypeError, match="dtype bool"):
        gt.tensor([True]).requires_grad_()


def test_an_op_without_a_derivative_is_named():
    stuck = Op("stuck", inputs="a", cpu=lambda a, out=None: np.array(a), gpu=None, backward=None,
               tangent=None, samples=None)
    x = leaf(1, 2)
    y = x * 2.0
    z = stuck(y) + y
    with pytest.raises(gt.GradientError, match=(
            r"stuck \(.*test_walk\.py:\d+: z = stuck\(y\) \+ y\) has no derivative; detach")):
        z.sum().backward()
    assert x.grad is None
    y.sum().backward()  # nothing was consumed
    assert equal(x.grad, 2, 2)


# -- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ns", [raw["cpu"], recorded], ids=["raw", "recorded"])
def test_a_function_of_a_rule_that_is_no_op_is_named(ns):
    with pytest.raises(AttributeError, match="no op is named 'expand_dims', .* such as 'reshape'"):
        ns.expand_dims(np.ones(3), axis=0)


def test_no_grad_and_enable_grad():
    x = leaf(1, 2)
    with gt.no_grad():
        assert not (x * 2.0).requires_grad
        with gt.enable_grad():
            assert (x * 2.0).requires_grad
        assert not gt.is_grad_enabled()
    assert (x * 2.0).requires_grad
    assert not gt.no_grad()(lambda: x * 2.0)().requires_grad


def test_detach_shares_memory_but_not_history():
    x = leaf(1, 2)
    y = (x * 2.0).detach()
    assert not y.requires_grad and y.is_leaf
    (y * x).sum().backward()
    assert equal(x.grad, 2, 4)
    assert np.shares_memory(x.detach().numpy(), x.numpy())


def test_requires_grad_cannot_be_taken_from_the_middle():
    x = leaf(1, 2)
    with pytest.raises(gt.GradientError, match=r"requires_grad_\(False\) on the output of mul"):
        (x * 2.0).requires_grad_(False)
    with pytest.raises(gt.GradientError, match=r"requires_grad_\(False\) on the output of mul"):
        (x * 2.0).requires_grad = False
    with pytest.raises(TypeError, match="requires_grad was given str; wanted True or False"):
        x.requires_grad = "no"
    x.grad = gt.ones(2, dtype=gt.float64)
    x.requires_grad = True
    assert x.grad is not None  # it was a leaf, so nothing changed
    x.requires_grad = False
    assert not x.requires_grad and x.grad is None


# -- an error in the middle -----------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_an_error_in_the_middle_of_a_walk(keep):
    """Every slot is empty, no `.grad` changed, and the next step is right."""
    x, w = leaf(1, 2), leaf(3, 4)
    before = gt.tensor([5.0, 5.0], dtype=gt.float64)
    x.grad = before
    failing = failing_op()

    def build(op):
        early = x * w
        middle = op(early, w)
        return (middle * 2.0 + w * x).sum()

    loss = build(failing)
    with pytest.raises(ValueError, match="the rule failed") as caught:
        loss.backward(retain_graph=keep)
    steps = [frame.frame.f_locals["step"] for frame in caught.traceback
             if isinstance(frame.frame.f_locals.get("step"), RawStep)]
    assert steps and all(not step.slots and step.g is None and step.saved == () for step in steps)
    assert x.grad is before and equal(before, 5, 5) and w.grad is None
    if not keep:
        with pytest.raises(gt.GradientError, match="consumed"):
            loss.backward()
    build(gt.multiply).backward()
    assert equal(w.grad, 2 * 2 * 3 * 1 + 1, 2 * 2 * 4 * 2 + 2)
    assert equal(x.grad, 5 + 2 * 9 + 3, 5 + 2 * 16 + 4)


def test_a_record_whose_own_rule_failed_is_consumed():
    """Its saved arrays are gone, so it says so instead of calling the rule without them."""
    x, w = leaf(1, 2), leaf(3, 4)
    y = failing_op("broken")(x, w)
    with pytest.raises(ValueError):
        y.backward(w.detach())
    with pytest.raises(gt.GradientError, match=r"broken .* was consumed"):
        y.backward(w.detach())


def test_a_kept_record_can_be_walked_again_after_an_error():
    x, w = leaf(1, 2), leaf(3, 4)
    failing = failing_op()
    y = x * w
    z = failing(y, w)
    with pytest.raises(ValueError):
        z.backward(w.detach(), retain_graph=True)
    with pytest.raises(ValueError):  # not "consumed": the graph was to be kept
        z.backward(w.detach(), retain_graph=True)
    y.backward(w.detach())
    assert equal(x.grad, 9, 16)


def test_an_error_in_the_recorded_walk():
    x, w = leaf(1, 2), leaf(3, 4)
    with pytest.raises(ValueError, match="the rule failed"):
        failing_op()(x * w, w).sum().backward(create_graph=True)
    assert x.grad is None and w.grad is None and gt.is_grad_enabled()


# -- anomaly --------------------------------------------------------------------------------------


def test_detect_anomaly_names_the_forward_line():
    x = leaf(0, 4)
    y = gt.sqrt(x)  # the culprit: 0 * inf
    loss = (y * gt.tensor([0.0, 1.0], dtype=gt.float64)).sum()
    with gt.detect_anomaly(), np.errstate(all="ignore"), pytest.raises(
            gt.AnomalyError, match=r"NaN .* sqrt \(.*test_walk\.py:\d+: y = gt\.sqrt\(x\)  # the"):
        loss.backward()
    assert x.grad is None


def test_detect_anomaly_in_the_callers_gradient():
    x = leaf(1, 2)
    with gt.detect_anomaly(), pytest.raises(
            gt.AnomalyError, match=r"NaN in the gradient that backward\(\) or grad\(\) was given"):
        (x * 2.0).backward(gt.tensor([np.nan, 1.0], dtype=gt.float64))


def test_detect_anomaly_passes_what_is_finite():
    x = leaf(1, 2)
    with gt.detect_anomaly():
        (x * x + x).sum().backward()
    assert equal(x.grad, 3, 5)
