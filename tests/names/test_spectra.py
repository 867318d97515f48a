"""Spectra of frames, windows, and matrices' exponentials: PyTorch's, NumPy's and SciPy's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from against_torch import compare

import gtensor as gt

# n_fft, hop_length, win_length, whether there is a window, center, pad_mode, normalized, onesided
FRAMES: tuple[tuple[Any, ...], ...] = (
    (12, None, None, False, True, "reflect", False, None),
    (12, 5, 11, True, True, "constant", True, None),
    (16, 4, 12, True, False, "reflect", False, False),
    (13, 7, None, False, True, "circular", False, True),
    (8, 8, None, True, False, "reflect", False, None),
    (6, 9, None, False, True, "replicate", False, None),
    (5, 1, 3, True, True, "reflect", False, None),
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


@pytest.mark.filterwarnings("ignore:A window was not|The length of signal")  # PyTorch's
@pytest.mark.parametrize("frames", FRAMES, ids=str)
def test_spectra_of_frames_are_pytorchs(frames: Any, rng: np.random.Generator) -> None:
    n_fft, hop, size, windowed, center, mode, normalized, onesided = frames
    x, w = rng.standard_normal((2, 41)), [rng.random(size or n_fft) + 0.1] if windowed else []
    compare(lambda x, w=None: gt.stft(x, n_fft, hop, size, w, center, mode, normalized, onesided),
            lambda x, w=None: torch.stft(x, n_fft, hop, size, w, center, mode, normalized, onesided,
                                         return_complex=True), [x, *w], layouts=["contiguous"])
    theirs = torch.stft(torch.tensor(x), n_fft, hop, size, *map(torch.tensor, w or [None] * 0),
                        center=center, pad_mode=mode, normalized=normalized, onesided=onesided,
                        return_complex=True)
    for length in (None, 37, 50):
        options = {"center": center, "normalized": normalized, "onesided": onesided,
                   "length": length}
        try:
            torch.istft(theirs, n_fft, hop, size, *map(torch.tensor, w), **options)
        except RuntimeError as error:  # the windows do not cover the signal
            assert "window overlap" in str(error) or hop > n_fft
            continue
        compare(lambda z, w=None, o=options: gt.istft(z, n_fft, hop, size, w, **o),
                lambda z, w=None, o=options: torch.istft(z, n_fft, hop, size, w, **o),
                [theirs.numpy(), *w], layouts=["contiguous"], second=False)


def test_spectra_of_complex_signals_and_what_no_window_reaches(rng: np.random.Generator) -> None:
    z = rng.standard_normal((2, 40)) + 1j * rng.standard_normal((2, 40))
    spectra = gt.stft(gt.tensor(z), 8, window=gt.hanning(8, dtype="float64"))
    window = torch.hann_window(8, periodic=False, dtype=torch.float64)
    wanted = torch.stft(torch.tensor(z), 8, window=window, return_complex=True)
    np.testing.assert_allclose(spectra.numpy(), wanted, rtol=1e-10, atol=1e-12)
    back = gt.istft(spectra, 8, window=gt.hanning(8, dtype="float64"), onesided=False, length=40,
                    return_complex=True)
    np.testing.assert_allclose(back.numpy(), z, rtol=1e-10, atol=1e-12)
    signal = rng.standard_normal(20)
    gaps = gt.istft(gt.stft(gt.tensor(signal), 4, 5, center=False), 4, 5, center=False)
    assert gaps[4::5].tolist() == [0, 0, 0]  # PyTorch raises
    np.testing.assert_allclose(gaps[5:9].numpy(), signal[5:9], rtol=1e-10)


@pytest.mark.parametrize("length", [0, 1, 2, 5, 6])
def test_windows_are_numpys_and_pytorchs(length: int) -> None:
    for name in ("bartlett", "blackman", "hamming", "hanning"):
        found = getattr(gt, name)(length, dtype="float64")
        assert found.tolist() == getattr(np, name)(length).tolist()
    assert gt.kaiser(length, 5, dtype="float64").tolist() == np.kaiser(length, 5).tolist()
    for name in ("bartlett", "blackman", "hamming", "hann", "kaiser"):
        for periodic in (True, False):
            found = getattr(gt, f"{name}_window")(length, periodic)
            wanted = getattr(torch, f"{name}_window")(length, periodic=periodic)
            assert found.dtype == gt.float32
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gt.hamming_window(length, True, 0.6, 0.3).numpy(),
                               torch.hamming_window(length, True, 0.6, 0.3), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_exponentials_of_matrices_are_scipys(dtype: str, rng: np.random.Generator) -> None:
    for size in (1e-3, 0.1, 0.5, 1.5, 5, 30):
        x = rng.standard_normal((5, 4, 4)) * size
        x = (x + 1j * rng.standard_normal(x.shape) if dtype[0] == "c" else x).astype(dtype)
        wanted = scipy.linalg.expm(x.astype("c16"))
        error = np.abs(gt.linalg.expm(gt.tensor(x)).numpy() - wanted).max(axis=(1, 2))
        assert (error <= 1e3 * np.finfo(dtype).eps * np.abs(wanted).max(axis=(1, 2))).all(), size
    lost = gt.tensor(np.stack([np.eye(2), [[np.inf, 0], [0, 0]]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gt.linalg.expm(lost).numpy()
    assert np.isnan(found[1]).all() and found[0, 0, 0] == pytest.approx(np.e)


def test_the_gradient_of_a_complex_exponential_is_pytorchs(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 3)) + 1j * rng.standard_normal((2, 3, 3))
    compare(gt.linalg.expm, torch.linalg.matrix_exp, [x], tolerance=1e-9)


def test_systems_with_a_factor_are_solved_as_pytorchs(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3, 2))
    for upper in (False, True):
        part = "triu" if upper else "tril"  # PyTorch's gradient is not 0 outside of it
        compare(lambda b, a, u=upper, p=part: gt.linalg.cholesky_solve(
            b, getattr(gt, p)(a + 3 * np.eye(3)), upper=u), lambda b, a, u=upper, p=part: (
                torch.cholesky_solve(b, getattr(torch, p)(a + 3 * torch.eye(3)), upper=u)),
                [b, a], tolerance=1e-9)
    z = a + 1j * rng.standard_normal(a.shape)
    factor = np.linalg.cholesky(z @ z.conj().swapaxes(1, 2) + np.eye(3))
    found = gt.cholesky_solve(gt.tensor(b + 0j), gt.tensor(factor))
    np.testing.assert_allclose(found.numpy(), torch.cholesky_solve(
        torch.tensor(b + 0j), torch.tensor(factor)), rtol=1e-9)


WRONG: dict[str, Any] = {
    r"stft was given n_fft=9 for a signal of 8 points": lambda x: gt.stft(x, 9, center=False),
    r"hop_length=0 and win_length=4; wanted 1": lambda x: gt.stft(x, 4, 0),
    r"window of shape \(3,\); wanted \(4,\)": lambda x: gt.stft(x, 4, window=gt.ones(3)),
    r"istft of shape \(8,\) with n_fft=4; wanted": lambda x: gt.istft(x, 4),
    r"return_complex=True for half": lambda x: gt.istft(gt.stft(x, 4), 4, return_complex=True),
    r"a window of window_length=-1": lambda x: gt.hann_window(-1),
    r"cholesky_solve of shapes \(2, 4\) and \(3, 3\)": lambda x: gt.linalg.cholesky_solve(
        gt.reshape(x, (2, 4)), gt.eye(3)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG[message](gt.ones(8))
