"""Complex values on the tape: PyTorch's convention, and a refusal where no rule is declared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor.engine.tape.op import registry


def pair(shape=(3, 4)):
    values = np.random.default_rng().standard_normal(shape)
    return gt.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)


def test_a_real_loss_through_complex_values_has_pytorchs_gradient():
    x, tx = pair()
    w = np.random.default_rng().standard_normal((3, 4)) * (1 + 2j)
    z, tz = x * gt.asarray(w), tx * torch.asarray(w)
    loss = (abs(z * z.conj() + z) * z.real).sum() + z.imag.sum()
    other = ((tz * tz.conj() + tz).abs() * tz.real).sum() + tz.imag.sum()
    loss.backward()
    other.backward()
    assert x.grad.dtype == gt.float64
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-12)


def test_second_derivatives_pass_complex_values():
    x, tx = pair((5,))
    w = np.random.default_rng().standard_normal(5) * (1 - 1j)

    def loss(abs_, real, x, w):
        z = x * x * w
        return (abs_(z) * real(z)).sum()

    (g,) = gt.grad(loss(abs, lambda z: z.real, x, gt.asarray(w)), [x], create_graph=True)
    (tg,) = torch.autograd.grad(loss(torch.abs, lambda z: z.real, tx, torch.asarray(w)), [tx],
                                create_graph=True)
    (g * g).sum().backward()
    (tg * tg).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-10)


def test_an_op_without_a_rule_for_complex_values_refuses_when_it_is_recorded():
    x, _ = pair()
    z = x * 1j
    with pytest.raises(gt.GradientError, match="sigmoid has no derivative for complex"):
        registry["sigmoid"](z)
    with gt.no_grad():
        registry["sigmoid"](z)
    registry["sigmoid"](z.detach())


def test_a_real_output_of_complex_values_refuses_in_the_walk_and_writes_nothing():
    x, _ = pair()
    z = x * 1j
    op = registry["isfinite"]
    assert not op(z).requires_grad  # a boolean carries no gradient
    own = gt.op("own_modulus", cpu=lambda x: np.abs(x), gpu=None, samples=None, tangent=None,
                backward=gt.pointwise(gt.d("x", lambda ns, g, x, out: g)))
    try:
        y = own(z)
        with pytest.raises(gt.GradientError, match="own_modulus has no derivative for complex"):
            y.sum().backward()
        assert x.grad is None
    finally:
        del registry["own_modulus"]


def test_a_complex_root_needs_a_gradient():
    x, tx = pair()
    z, tz = x * 1j, tx * 1j
    with pytest.raises(gt.GradientError, match="complex tensor without a gradient"):
        z[0, 0].backward()
    g = np.random.default_rng().standard_normal((3, 4)) + 1j
    z = x * 1j
    z.backward(gt.asarray(g))
    tz.backward(torch.asarray(g))
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy())


def test_complex_leaves_are_refused():
    with pytest.raises(TypeError, match="complex64; gradients need a floating-point dtype"):
        gt.tensor([1j], requires_grad=True)
