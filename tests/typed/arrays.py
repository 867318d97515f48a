"""Mathematics on arrays as users write it."""

from typing import assert_type

import numpy as np

import gtensor as gt


def arithmetic() -> float:
    """Numbers, lists and NumPy arrays beside tensors."""
    x = gt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = 2 * x + 1 - x / 3 + x**2 + np.ones((2, 2)) @ x
    y = assert_type(gt.maximum(y, 0.0) + gt.add(y, [1.0, 2.0]) + gt.exp(-x), gt.Tensor)
    assert_type(gt.sqrt(4.0) + gt.abs((1, 2)) + gt.sign(np.float32(3)), gt.Tensor)
    mask = assert_type((x > 1) & (y != 0), gt.Tensor)
    total = assert_type(gt.where(mask, y, 0.0).sum(), gt.Tensor)
    total.backward()
    assert x.grad is not None
    return float(x.grad.mean()) + total.item()


def shapes() -> tuple[int, ...]:
    """Indices, axes and pieces."""
    x = gt.arange(24).reshape(2, 3, 4)
    first, second = x
    assert_type(first, gt.Tensor)
    part = assert_type(x[..., 1:, None], gt.Tensor)
    x[0, :, 1] = 5
    both = gt.concat([first, second], axis=0)
    stacked = gt.stack([both, both]).permute_dims(1, 2, 0)
    values, places = gt.topk(both, 2)
    assert_type(values + places, gt.Tensor)
    columns = {name: both[:, i] for i, name in enumerate("abcd")}
    return (*stacked.shape, part.ndim, len(columns), int(gt.argmax(x).item()))


def algebra() -> np.ndarray:
    """Matrices, spectra and random numbers."""
    gt.manual_seed(0)
    a = gt.random.normal((4, 4), dtype=gt.float64)
    a = a @ a.T + gt.eye(4, dtype=gt.float64)
    solution = gt.linalg.solve(a, gt.ones((4, 1), dtype=gt.float64))
    values, vectors = gt.linalg.eigh(a)
    u, s, vh = gt.linalg.svd(a)
    product = gt.einsum("ij,jk->ik", vectors * values, vectors.T)
    spectrum = assert_type(gt.fft.rfft(product).real, gt.Tensor)
    assert_type(a.to("cpu").device, gt.Device)
    return (spectrum.sum() + solution.mean() + (u * s @ vh).max()).numpy()


def run() -> None:
    """All of it."""
    assert arithmetic() > 0
    assert len(shapes()) == 6
    assert np.isfinite(algebra())
