"""Sessions of Nsight Systems: a program run under `nsys profile`, and its report exported.

Only the steady state is recorded: the program itself opens a range after some optimizer steps
(`capture.py`), and nsys records while it is open.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from gtensor.backend.nvtx import DOMAIN
from gtensor.profiler.capture import LABEL
from gtensor.profiler.spans import ProfileError
from gtensor.system.files import printable

OLDEST_NVTX = (0, 2, 14)  # the first whose domains push ranges with payloads
OLDEST_NSYS = (2024,)  # 2022.4 and 2023.4 disable the domains of these nvtx packages
WHERE = "https://developer.nvidia.com/nsight-systems"
REPORTS = ("nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum")
STEPS = 10, 20  # optimizer steps passed over, and recorded
_SECONDS = 60  # that nsys may take to say its version


def found_nsys(variables: Mapping[str, str]) -> str:
    """nsys, of a version that talks with the nvtx package.

    Raises ProfileError, in one sentence, if there is none, or one whose report would hold no range.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise ProfileError("gtensor profile --nsys needs nsys of Nsight Systems 2024 or newer, "
                           f"which is not on the PATH; it is at {WHERE}, and in the CUDA toolkit")
    if variables.get("NVTX_DISABLE"):
        raise ProfileError("NVTX_DISABLE is set, which stops all ranges; unset it for gtensor "
                           "profile --nsys")
    try:
        package = metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        raise ProfileError("gtensor profile --nsys needs the nvtx package, which is not installed; "
                           "pip install nvtx") from None
    if _numbers(package) < OLDEST_NVTX:
        raise ProfileError(f"nvtx {package} is installed, which cannot write gtensor's ranges; "
                           "wanted 0.2.14 or newer: pip install -U nvtx")
    version = _version(nsys)
    if version and _numbers(version) < OLDEST_NSYS:
        raise ProfileError(f"nsys {version} ({nsys}) and nvtx {package} do not talk: nsys before "
                           "2024 disables the domains of nvtx 0.2.12 and newer, so that no range "
                           f"is recorded; wanted a newer nsys, from {WHERE}")
    return nsys


def _version(nsys: str) -> str:
    """Its version, "" if it does not say one."""
    try:
        said = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False,
                              timeout=_SECONDS, errors="replace").stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfileError(f"{nsys} cannot be run: {error}") from None
    found = re.search(r"\d{4}(\.\d+)+", said)
    return found[0] if found else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def environment(steps: tuple[int, int], variables: Mapping[str, str]) -> dict[str, str]:
    """The program's variables: all ranges on, and the steps that nsys captures."""
    shapes = variables.get("GTENSOR_NVTX") == "2"
    return {**variables, "GTENSOR_NVTX": "2" if shapes else "1",
            "GTENSOR_CAPTURE_AFTER": str(steps[0]), "GTENSOR_CAPTURE_STEPS": str(steps[1])}


def profile(nsys: str, command: Sequence[str], report: Path, steps: tuple[int, int]) -> int:
    """Run a command under nsys; its exit status. nsys writes `report` if it recorded something."""
    output = str(report.with_suffix("")).replace("%", "%%")
    # Ctrl-C reaches nsys, too, which writes the report then. A KeyboardInterrupt here may lose the
    # exit status that the wait was just about to return, so the first one only restores this.
    before = signal.getsignal(signal.SIGINT)
    raises = before is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, before))
    try:
        with subprocess.Popen(
            [nsys, "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none",
             "--capture-range=nvtx", f"--nvtx-capture={LABEL}@{DOMAIN}",
             "--capture-range-end=stop", f"--output={output}", *command],
            env=environment(steps, os.environ),
        ) as process:
            try:
                status = process.wait()
            finally:
                if process.poll() is None:
                    process.kill()
    finally:
        if raises:
            signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def export(nsys: str, report: Path, target: Path) -> None:
    """Write the report as SQLite. Raises ProfileError if nsys does not."""
    done = subprocess.run([nsys, "export", "--type=sqlite", "--quiet=true", f"--output={target}",
                           str(report)], capture_output=True, text=True, check=False,
                          errors="replace")
    if done.returncode or not target.exists():
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise ProfileError(f"nsys could not export the report {report}, which is kept: "
                           f"{printable(said)}")


def print_statistics(nsys: str, exported: Path) -> None:
    """nsys's own tables of ranges, kernels, memory and API, printed by it."""
    sys.stdout.flush()
    subprocess.run([nsys, "stats", "--quiet", f"--report={','.join(REPORTS)}", str(exported)],
                   check=False)
