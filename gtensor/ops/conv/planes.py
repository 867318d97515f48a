"""Grouped convolution with few channels to a group (depthwise), plane by plane, on the CPU.

As matrix products these would be as thin as a group. Here a tile of planes is copied into a padded
buffer, and every tap is one multiply and one add of whole planes. With stride 1 a tap is a shift of
the padded buffer as one flat run, so the innermost loops are as long as a plane; what the shift
carries from one row's end into the next lies beyond the output's width and is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend import host
from gtensor.ops.build.cpu_tiles import computed_in
from gtensor.ops.conv.paths import Geometry, overlap
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

MOST_PRODUCTS = 4  # input times output channels of a group: with more, matrix products are faster


def use_planes(weight_shape: tuple[int, ...], groups: int) -> bool:
    """Whether a convolution with a weight of this shape is better done by planes."""
    outputs, channels = weight_shape[0] // groups, weight_shape[1]
    return groups > 1 and channels * outputs <= MOST_PRODUCTS


def kernels_of(weight: np.ndarray, groups: int) -> np.ndarray:
    """(groups, outputs of a group, channels of a group, height, width)."""
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return split.astype(computed_in(weight.dtype), copy=False)


class _Planes:
    """Tiles of groups of one image each, and the buffers that all of them use."""

    def __init__(self, n: int, channels: int, outputs: int, g: Geometry, dtype: np.dtype) -> None:
        self.n, self.g = n, g
        tall, wide = g.reach()
        self.height = (g.out[0] - 1) * g.stride[0] + tall
        self.width = (g.out[1] - 1) * g.stride[1] + wide
        self.flat = g.stride == (1, 1)
        self.row = self.width if self.flat else g.out[1]  # of the buffers of outputs
        vertical = overlap(-g.before[0], self.height, g.size[0])
        horizontal = overlap(-g.before[1], self.width, g.size[1])
        self.inside = (..., vertical[0], horizontal[0])
        self.source = (..., vertical[1], horizontal[1])
        self.channels, self.outputs = channels // g.groups, outputs // g.groups
        plane = self.height * self.width
        largest = plane * max(self.channels, self.outputs)
        count = self._count = max(1, min(g.groups, settings.tile_elements // max(1, largest)))
        self._padded = host().workspace(count * self.channels * plane, dtype)
        self._products = host().workspace(count * self.outputs * g.out[0] * self.row, dtype, 2)

    def tiles(self) -> Iterator[tuple[int, slice]]:
        """Keys (image, groups)."""
        for i in range(self.n):
            for first in range(0, self.g.groups, self._count):
                yield i, slice(first, min(first + self._count, self.g.groups))

    def split(self, a: np.ndarray) -> np.ndarray:
        """A view (N, groups, channels of a group, height, width) of images."""
        return a.reshape(a.shape[0], self.g.groups, a.shape[1] // self.g.groups, *a.shape[2:])

    def padded(self, key: tuple[int, slice]) -> np.ndarray:
        """The buffer of padded planes (groups, channels, height, width)."""
        shape = (key[1].stop - key[1].start, self.channels, self.height, self.width)
        return self._padded(0, shape)

    def products(self, which: int, key: tuple[int, slice]) -> np.ndarray:
        """Buffer 0 or 1 for outputs (groups, outputs, output height, row)."""
        shape = (key[1].stop - key[1].start, self.outputs, self.g.out[0], self.row)
        return self._products(which, shape)

    def runs(self, a: np.ndarray) -> np.ndarray:
        """What of a buffer of outputs the taps fill: flat runs, or the planes as they are."""
        if not self.flat:
            return a
        reached = (self.g.out[0] - 1) * self.width + self.g.out[1]
        return a.reshape(*a.shape[:2], -1)[..., :reached]

    def taps(self, padded: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Each tap's place in the kernel, and what it reads of the padded planes."""
        g = self.g
        flat = padded.reshape(*padded.shape[:2], -1)
        reached = (g.out[0] - 1) * self.width + g.out[1]
        for i in range(g.kernel[0]):
            top = i * g.dilation[0]
            for j in range(g.kernel[1]):
                left = j * g.dilation[1]
                if self.flat:
                    start = top * self.width + left
                    yield i, j, flat[..., start:start + reached]
                else:
                    yield i, j, padded[
                        ..., top:top + (g.out[0] - 1) * g.stride[0] + 1:g.stride[0],
                        left:left + (g.out[1] - 1) * g.stride[1] + 1:g.stride[1]]

    def factor(self, weights: np.ndarray) -> np.ndarray:
        """One number per plane, shaped to multiply what a tap reads."""
        return weights.reshape(*weights.shape, *(1,) * (1 if self.flat else 2))


def correlate(
    x: np.ndarray, kernels: np.ndarray, bias: Array | None, g: Geometry, out: np.ndarray,
    beta: float,
) -> np.ndarray:
    """out = x convolved with `kernels_of` a weight + bias + beta * out."""
    space = _Planes(x.shape[0], x.shape[1], out.shape[1], g, kernels.dtype)
    planes, results = space.split(x), space.split(out)
    shift = None if bias is None else bias.reshape(g.groups, -1, 1, 1)
    space.padded((0, slice(0, space._count)))[...] = 0  # the border stays so from tile to tile
    for key in space.tiles():
        padded, total = space.padded(key), space.products(0, key)
        padded[space.inside] = planes[key][space.source]
        sums, terms = space.runs(total), space.runs(space.products(1, key))
        weights = kernels[key[1]]
        first = True
        for i, j, part in space.taps(padded):
            for c in range(space.channels):
                factor = space.factor(weights[:, :, c, i, j])
                np.multiply(part[:, c:c + 1], factor, out=sums if first else terms)
                if not first:
                    np.add(sums, terms, out=sums)
                first = False
        result = total[..., :g.out[1]]
        if shift is not None:
            result += shift[key[1]]
        if beta:
            results[key] += result
        else:
            results[key] = result
    return out


def input_gradient(
    g: np.ndarray, kernels: np.ndarray, bias: Array | None, geo: Geometry, out: np.ndarray,
    beta: float,
) -> np.ndarray:
    """out = the gradient of the convolution's input + bias + beta * out."""
    if geo.stride == (1, 1):
        flipped = kernels[..., ::-1, ::-1].swapaxes(1, 2)
        return correlate(g, flipped, bias, geo.adjoint(), out, beta)
    space = _Planes(g.shape[0], out.shape[1], g.shape[1], geo, kernels.dtype)
    grads, results = space.split(g), space.split(out)
    shift = None if bias is None else bias.reshape(geo.groups, -1, 1, 1)
    for key in space.tiles():
        padded, product = space.padded(key), space.products(0, key)
        term = space.products(1, key)
        padded[...] = 0
        product[...] = grads[key]
        for i, j, part in space.taps(padded):
            for c in range(space.channels):
                np.multiply(product, space.factor(kernels[key[1], :, c, i, j]), out=term)
                for q in range(space.outputs):
                    part[:, c] += term[:, q]
        target = results[key]
        if not beta:
            target[...] = 0
        target[space.source] += padded[space.inside]
        if shift is not None:
            target += shift[key[1]]
    return out


def weight_gradient(
    g: np.ndarray, x: np.ndarray, geo: Geometry, out: np.ndarray, beta: float
) -> np.ndarray:
    """out = the gradient of the convolution's weight + beta * out."""
    space = _Planes(x.shape[0], x.shape[1], g.shape[1], geo, computed_in(g.dtype))
    planes, grads = space.split(x), space.split(g)
    shape = (geo.groups, space.outputs, space.channels, *geo.kernel)
    total = np.zeros(shape, computed_in(g.dtype))
    whole = (0, slice(0, space._count))
    space.padded(whole)[...] = 0
    space.products(0, whole)[...] = 0  # beyond the output's width nothing may be added
    for key in space.tiles():
        padded, product = space.padded(key), space.products(0, key)
        padded[space.inside] = planes[key][space.source]
        product[..., :geo.out[1]] = grads[key]
        left = space.runs(product)
        for i, j, part in space.taps(padded):
            total[key[1], :, :, i, j] += (
                np.vecdot(left[:, :, None], part[:, None]) if space.flat
                else np.einsum("goij,gaij->goa", left, part))
    result = total.reshape(prod(shape[:2]), *shape[2:])
    if beta:
        out += result
    else:
        out[...] = result
    return out
