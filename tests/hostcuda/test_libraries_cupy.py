"""The stand-ins under the real CuPy, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .through import outside

pytest.importorskip("cupy")
SAMPLE = Path(__file__).parent / "cupy_sample.py"


def run(script: Path, *options: str) -> list[str]:
    """A program on the host device; the lines that it printed, errors last."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "gtensor.hostcuda", *options, str(script)],
        capture_output=True,
        text=True,
        timeout=600,
        env=outside(),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("mode", ["eager", pytest.param("deferred", marks=pytest.mark.slow)])
def test_cupys_functions_are_numpys(mode: str) -> None:
    printed = run(SAMPLE, "--mode", mode)  # not even the dynamic loader has a word to say
    assert printed == ["190 compared"], "\n".join(printed)


CAPTURED = """
import ctypes, cupy, numpy as np
blas = ctypes.CDLL("libcublas.so.13")
handle = ctypes.c_void_p()
assert blas.cublasCreate_v2(ctypes.byref(handle)) == 0
a, c = cupy.arange(12.0).reshape(3, 4), cupy.zeros((3, 3))
dots = cupy.zeros(1)
stream = cupy.cuda.Stream(non_blocking=True)
scale, zero = ctypes.c_double(2), ctypes.c_double(0)
cupy.cuda.Device().synchronize()
assert blas.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr)) == 0
p = lambda x: ctypes.c_void_p(x.data.ptr)
stream.begin_capture()
assert blas.cublasDgemm_v2(handle, 1, 0, 3, 3, 4, ctypes.byref(scale), p(a), 4, p(a), 4,
                           ctypes.byref(zero), p(c), 3) == 0
assert blas.cublasDdot_v2(handle, 12, p(a), 1, p(a), 1, ctypes.byref(zero)) == 13
graph = stream.end_capture()
scale.value = 7  # captured as 2
assert not c.any()
for factor in (1, 2):
    a *= factor
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    x = a.get()
    np.testing.assert_allclose(c.get(), 2 * (x @ x.T))
from cupy_backends.cuda.libs import cusparse
try:
    cusparse.create()
except cusparse.CuSparseError as error:
    assert "NOT_SUPPORTED" in str(error)
import gtensor.hostcuda
assert gtensor.hostcuda.missing() == {"cusparseCreate": 1}, gtensor.hostcuda.missing()
print("captured")
"""

SLOWLY = pytest.param("eager", marks=pytest.mark.slow)


@pytest.mark.parametrize("mode", ["deferred", SLOWLY])
def test_a_product_is_captured_and_what_is_not_there_is_listed(mode: str, tmp_path: Path) -> None:
    """Host scalars are kept, operands read at each launch; a result on the host is refused."""
    script = tmp_path / "program.py"
    script.write_text(CAPTURED)
    assert run(script, "--mode", mode) == [
        "captured",
        "hostcuda: not supported, but called: {'cusparseCreate': 1}",
    ]
