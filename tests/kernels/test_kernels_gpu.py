"""The case table on a GPU, through the library's own loader and launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases_multi_tensor import CUT, SIZE
from kernel_cases import DTYPES, Case, parameters

from gtensor.backend import kernels
from gtensor.backend.kernels import Elementwise
from gtensor.backend.multi_tensor import MultiTensor, Tensors

pytestmark = pytest.mark.gpu


class DeviceExecutor:
    """Copies the arrays to the device, launches, and copies them back."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def raw(
        self, file: str, function: str, dtype: Any, grid: tuple[int, ...], block: tuple[int, ...],
        args: list[Any], shared_mem: int = 0,
    ) -> None:
        copies = self._copies(args)
        given = tuple(copies.get(id(value), value) for value in args)
        kernels.raw(file, function)[dtype](grid, block, given, shared_mem=shared_mem)
        self._back(args, copies)

    def elementwise(
        self, kernel: Elementwise, dtype: Any, inputs: list[Any], outputs: list[np.ndarray]
    ) -> None:
        copies = self._copies([*inputs, *outputs])
        given = [copies.get(id(value), value) for value in inputs]
        kernel(*given, out=tuple(copies[id(output)] for output in outputs))
        self._back(outputs, copies)

    def multi(
        self, kernel: MultiTensor, dtype: Any, arrays: list[np.ndarray], numbers: np.ndarray,
        steps: np.ndarray, skip: np.ndarray, more: tuple[np.ndarray, ...]
    ) -> None:
        copies = self._copies([*arrays, numbers, steps, skip, *more])
        ends = [slice(0, CUT), slice(CUT, CUT), slice(CUT, SIZE)]
        count, given = copies[id(steps)], copies[id(numbers)].reshape(2, -1)
        kernel(Tensors(
            [[copies[id(array)][part] for part in ends] for array in arrays], [0, 0, 1],
            [tuple(numbers.reshape(2, -1)[0].tolist())] * 2, [None, given[1]],
            [(count, t) for t in range(3)], (count, 3), copies[id(skip)]),
            *[copies[id(value)] for value in more])
        self._back([*arrays, steps, *more], copies)

    def _copies(self, values: list[Any]) -> dict[int, Any]:
        """A device array for each distinct array; the same one where an array is given twice."""
        arrays = {id(value): value for value in values if isinstance(value, np.ndarray)}
        return {key: self.cupy.asarray(array) for key, array in arrays.items()}

    def _back(self, values: list[Any], copies: dict[int, Any]) -> None:
        for value in values:
            if isinstance(value, np.ndarray):
                value[...] = self.cupy.asnumpy(copies[id(value)])


@pytest.fixture(scope="module")
def device() -> DeviceExecutor:
    return DeviceExecutor()


@pytest.mark.parametrize(("case", "dtype"), parameters())
def test_kernel_on_the_device(
    case: Case, dtype: np.dtype, device: DeviceExecutor, rng: np.random.Generator
) -> None:
    case.check(device, dtype, rng)


def test_elementwise_allocates_through_cupy(rng: np.random.Generator) -> None:
    import cupy

    double = kernels.elementwise("T x, float64 factor", "T y", "y = T(x * factor)")
    x = cupy.asarray(rng.standard_normal((3, 1, 5)))
    assert cupy.array_equal(double(x, factor=2.0, unused=1), x * 2)
    assert double(cupy.empty((0, 4)), 2.0).shape == (0, 4)


@pytest.mark.parametrize("name", DTYPES)
def test_results_repeat_bit_for_bit(name: str, rng: np.random.Generator) -> None:
    import cupy

    x = cupy.asarray(rng.standard_normal((64, 1000)).astype(DTYPES[name]))
    launch = kernels.raw("softmax.cu", "softmax_forward")[x.dtype]
    runs = []
    for _ in range(100):
        y = cupy.empty_like(x)
        launch(*kernels.row_launch(64), (x, y, 64, 1000))
        runs.append(cupy.asnumpy(y).tobytes())
    assert len(set(runs)) == 1
