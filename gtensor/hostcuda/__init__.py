"""CUDA without a GPU: the real CuPy on a host device.

`install()` replaces NVIDIA's runtime, driver, compiler and libraries under CuPy by stand-ins;
CuPy's files are not changed. Device memory is host memory, kernels are compiled by g++, streams are
queues. With `compiler="nvrtc"` NVIDIA's compiler makes the kernels, which are counted and not run.
`python -m gtensor.hostcuda SCRIPT` runs a program this way, `pytest --host-cuda` a test suite.

It imports nothing else of gtensor, and nothing of gtensor imports it.
"""

from __future__ import annotations

from gtensor.hostcuda.build import Unusable
from gtensor.hostcuda.card import Card
from gtensor.hostcuda.counters import Counters, counters, missing, reset_counters
from gtensor.hostcuda.install import configure, fail, forgive, install, installed
from gtensor.hostcuda.watching import Launch, watch

__all__ = ["Card", "Counters", "Launch", "Unusable", "configure", "counters", "fail", "forgive",
           "install", "installed", "missing", "reset_counters", "watch"]
