"""`PYTHONPATH=tests python -m guard [cpu] [cuda]`: measure everything and rewrite the files."""

from __future__ import annotations

import sys

from gtensor import hostcuda

asked = sys.argv[1:] or ["cpu", "cuda"]
if "cuda" in asked:
    hostcuda.install("eager")  # before CuPy is imported

from . import measure, records  # noqa: E402

if "cpu" in asked:
    records.write_cpu(measure.measured_on_cpu)
if "cuda" in asked:
    records.write_cuda(measure.measured_on_cuda)
