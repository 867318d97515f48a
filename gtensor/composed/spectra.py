"""Spectra of short stretches of a signal, and the signal from them.

Frames are made of views: a signal in blocks of one hop, of which each frame has several in a
row. So gradients are sums of views, which repeat bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import ones
from gtensor.fft import fft, ifft, irfft, rfft
from gtensor.nn.functional import pad
from gtensor.ops import concat, matrix_transpose, real, reshape, square, where
from gtensor.ops.arrange.shape import broadcast_to
from gtensor.ops.define.arguments import floats, takes_arrays
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor

__all__ = ["istft", "stft"]

_LEAST = 1e-11  # sums of squared windows from which PyTorch, too, divides by them


@takes_arrays
def stft(
    x: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, pad_mode: str = "reflect",
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
) -> Tensor:
    """The spectra of overlapping frames of x (..., T): (..., bins, frames), complex. PyTorch's.

    Args:
        x: real or complex signals. Half types are transformed in float32.
        n_fft: points of a frame.
        hop_length: points from a frame to the next; n_fft // 4 by default.
        win_length: of the window, n_fft by default; a shorter one stands in the middle of a frame.
        window: (win_length,), which multiplies each frame; ones by default. Gradients reach it.
        center: whether frame t is centered at t * hop_length; the signal is then padded by
            n_fft // 2 at both ends, as `pad_mode` of `nn.functional.pad` says.
        normalized: whether to divide by the root of n_fft.
        onesided: the first n_fft // 2 + 1 bins alone, as by default where signal and window are
            real.
        return_complex: True or None; the parts are gt.real and gt.imag of the result.

    Raises ValueError for sizes that do not fit, TypeError for return_complex=False.

        spectra = gt.stft(signal, 512, window=gt.hann_window(512))     # (257, frames)
    """
    if return_complex is False:
        raise TypeError("stft was given return_complex=False; wanted True: gt.real and gt.imag of "
                        "the result are its parts")
    x = floats(x)
    hop, taps = _frame("stft", x, n_fft, hop_length, win_length, window)
    if not x.ndim:
        raise ValueError("stft of a 0-d tensor; wanted (..., T)")
    if center:
        x = pad(x, (n_fft // 2, n_fft // 2), pad_mode)
    if x.shape[-1] < n_fft:
        raise ValueError(f"stft was given n_fft={n_fft} for a signal of {x.shape[-1]} points, with "
                         "its padding; wanted at most as many")
    frames = _frames(x, n_fft, hop)
    frames = frames if taps is None else frames * taps
    halved = frames.dtype.kind != "c" if onesided is None else onesided
    spectra = (rfft if halved else fft)(frames, norm="ortho" if normalized else None)
    return matrix_transpose(spectra)


@takes_arrays
def istft(
    x: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, normalized: bool = False,
    onesided: bool | None = None, length: int | None = None, return_complex: bool = False,
) -> Tensor:
    """The signal (..., T) with spectra x (..., bins, frames): the inverse of `stft`. PyTorch's.

    Frames are added with the window's weight, and divided by the sum of its squares (Griffin and
    Lim, 1984). Where no window reaches, the signal is 0 (PyTorch raises).

    Args:
        x: as `stft` gives it; other arguments as there.
        onesided: whether x has the first n_fft // 2 + 1 bins alone; by its bins by default.
        length: points of the signal, which is cut or filled with zeros; without it the last frame
            ends it.
        return_complex: whether the signal is complex, of all bins.

    Raises ValueError for sizes that do not fit.

        signal = gt.istft(spectra, 512, window=gt.hann_window(512), length=signal.size)
    """
    hop, taps = _frame("istft", x, n_fft, hop_length, win_length, window)
    bins = x.shape[-2] if x.ndim > 1 else 0
    halved = bins == n_fft // 2 + 1 if onesided is None else onesided
    if bins != (n_fft // 2 + 1 if halved else n_fft) or not x.shape[-1]:
        raise ValueError(f"istft of shape {x.shape} with n_fft={n_fft}; wanted (..., bins, frames) "
                         f"of {n_fft // 2 + 1 if halved else n_fft} bins, and a frame or more")
    if return_complex and halved:
        raise ValueError("istft was given return_complex=True for half of the bins; wanted all of "
                         "them, as stft(onesided=False) gives")
    norm = "ortho" if normalized else None
    rows = matrix_transpose(x)
    if halved:
        frames = irfft(rows, n_fft, norm=norm)
    else:
        frames = ifft(rows, n_fft, norm=norm)
        frames = frames if return_complex else real(frames)
    weights = ones(n_fft, frames.dtype, x.device) if taps is None else taps
    total = _added(frames * weights, hop)
    share = _added(broadcast_to(square(weights), (frames.shape[-2], n_fft)), hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total.shape[-1] - start
    total, share = total[..., start:end], share[start:end]
    reached = share > _LEAST
    signal = where(reached, total / where(reached, share, 1.0), 0.0)
    missing = 0 if length is None else length - signal.shape[-1]
    return pad(signal, (0, missing)) if missing > 0 else signal


def _frame(
    name: str, x: Tensor, n_fft: int, hop_length: int | None, win_length: int | None,
    window: Tensor | None,
) -> tuple[int, Tensor | None]:
    """The hop, and the window of a whole frame, None for ones."""
    hop = n_fft // 4 if hop_length is None else hop_length
    size = n_fft if win_length is None else win_length
    if n_fft < 1 or hop < 1 or not 0 < size <= n_fft:
        raise ValueError(f"{name} was given n_fft={n_fft}, hop_length={hop} and win_length={size}; "
                         "wanted 1 or more of each, and a window within a frame")
    if window is None and size == n_fft:
        return hop, None
    taps = ones(size, x.real.dtype if x.dtype.kind == "c" else x.dtype, x.device) if (
        window is None) else floats(window)
    if taps.shape != (size,):
        raise ValueError(f"{name} was given a window of shape {taps.shape}; wanted ({size},)")
    before = (n_fft - size) // 2
    return hop, taps if size == n_fft else pad(taps, (before, n_fft - size - before))


def _frames(x: Tensor, size: int, hop: int) -> Tensor:
    """Frames of x (..., T), `hop` apart: (..., frames, size)."""
    count, several = (x.shape[-1] - size) // hop + 1, -(-size // hop)
    whole = (count - 1 + several) * hop
    x = x[..., :whole] if whole <= x.shape[-1] else pad(x, (0, whole - x.shape[-1]))
    blocks = reshape(x, (*x.shape[:-1], count - 1 + several, hop))
    parts = [blocks[..., i:i + count, :min(hop, size - i * hop)] for i in range(several)]
    return parts[0] if several == 1 else concat(parts, -1)


def _added(frames: Tensor, hop: int) -> Tensor:
    """The sum (..., T) of frames (..., frames, size), each `hop` later than the one before."""
    *lead, count, size = frames.shape
    several = -(-size // hop)
    frames = pad(frames, (0, several * hop - size))
    total = None
    for i in range(several):
        part = pad(frames[..., i * hop:(i + 1) * hop], (0, 0, i, several - 1 - i))
        total = part if total is None else total + part
    assert total is not None  # a frame has a point
    return reshape(total, (*lead, (count - 1 + several) * hop))[..., :(count - 1) * hop + size]


enter(globals())
