"""Compare every op with the recorded files, or record all anew (`PYTHONPATH=tests`)."""

from __future__ import annotations

import argparse

from gtensor import hostcuda

parser = argparse.ArgumentParser("python -m guard", description=__doc__)
parser.add_argument("devices", nargs="*", metavar="cpu|cuda", help="by default both")
parser.add_argument("--record", action="store_true", help="rewrite the files")
arguments = parser.parse_args()
asked = arguments.devices or ["cpu", "cuda"]
if unknown := {*asked} - {"cpu", "cuda"}:
    parser.error(f"was given {', '.join(sorted(unknown))}; wanted cpu, cuda or both")
if "cuda" in asked:
    hostcuda.install("eager")  # before CuPy is imported

from . import measure, records  # noqa: E402

if arguments.record:
    if "cpu" in asked:
        records.write_cpu(measure.measured_on_cpu)
    if "cuda" in asked:
        records.write_cuda(measure.measured_on_cuda)
else:
    lines = []
    if "cpu" in asked:
        lines += records.all_changes(measure.measured_on_cpu)
    if "cuda" in asked:
        lines += records.all_launch_changes(measure.measured_on_cuda)
    print(*lines, sep="\n", end="\n" if lines else "")
    parser.exit(bool(lines), f"{len(lines)} differences from what is recorded\n")
