"""Rehearse `gpu_check.sh OUTDIR first` without a GPU, so that the one call on a GPU is not wasted.

    profiling/rehearse.sh OUTDIR                     # about half an hour on two cores
    profiling/rehearse.sh OUTDIR --bundle gpu_bundle # with compiled kernels

Run it whenever the checks or the tests marked gpu change. It takes the tracked files only, as they
are now, into an environment with nothing but the machine's packages, without network, and runs the
call there on a host device (docs/testing.md): NVIDIA's own NVRTC compiles every kernel, and no
kernel runs. So values are wrong, and nothing compares them; what counts is that every step begins
and ends, and what it costs.

It plants faults: a test and an op that lose the context, a test and an op that never end, a test
file that imports a package that is not there. Each may cost itself and nothing more.

The machine has Python 3.12 and a PyTorch with CUDA, which cannot be loaded on a host device. So the
call is rehearsed in this Python with the PyTorch that the tests pin, and with Python 3.12, if there
is one, and the machine's versions (gpu_machine.txt, 5 GB) the tests are only collected.

It fails if
- a step cannot start, or does not end by itself;
- a test file is not collected, under either Python;
- a planted fault costs more than itself;
- the processors' seconds of a step, host code and NVRTC, divided by its processes, exceed 60 % of
  its limit.

Exit status: 0; 1 if it fails; 2 if it cannot run; 64 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gpu_bundle
import gpu_machine
import gpu_steps
from gpu_machine import Impossible
from gpu_steps import CHECKOUT, files_with_gpu_tests

SHARE = 0.6  # of a step's limit that the processors may take, per process
PLANTS = {  # file -> where it is put; they are no tests of this project's own
    "planted_tests.py": "tests/memory/test_planted.py",
    "planted_import.py": "tests/backend/test_planted_import.py",
    "planted_checks.py": "profiling/planted_checks.py",
}
FAULTS = Path(__file__).parent / "planted"
# What a planted fault may fail: itself.
EXPECTED = {"tests/memory/test_planted.py::test_loses_the_context",
            "tests/memory/test_planted.py::test_never_ends",
            "tests/backend/test_planted_import.py"}
EXPECTED_OPS = {"planted loss", "planted hang"}


# -- the machine -----------------------------------------------------------------------------------


def checkout(place: Path) -> None:
    """The tracked files of the working tree, and the plants."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, text=True,
                           capture_output=True).stdout.split("\0")
    for name in filter(None, names):
        if (CHECKOUT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, place / name)
    for name, target in PLANTS.items():
        shutil.copy2(FAULTS / name, place / target)


def tools(place: Path) -> Path:
    """A compute-sanitizer that only runs its program, as the machine has one."""
    place.mkdir()
    stand_in = place / "compute-sanitizer"
    stand_in.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do case "$1" in *python*) exec "$@";; esac; shift; done\n')
    stand_in.chmod(0o755)
    return place


def alone() -> list[str]:
    """A prefix for commands that cuts the network; empty where the system does not allow it."""
    cut = ["unshare", "--net", "--map-root-user", "sh", "-c",
           'ip link set lo up 2>/dev/null; exec "$0" "$@"']
    if shutil.which("unshare") and not subprocess.run([*cut, "true"],
                                                      capture_output=True).returncode:
        return cut
    print("note: this system does not let the network be cut; the rehearsal goes on with it")
    return []


# -- what it finds ---------------------------------------------------------------------------------


def collected_on_the_machine(site: Path) -> list[str]:
    """What is not collected with the machine's packages and a bundle's. It takes 5 GB."""
    interpreter = gpu_machine.interpreter()
    if interpreter is None:
        print(f"note: no Python {gpu_machine.PYTHON} here, so the tests were not collected with "
              "the machine's versions")
        return []
    python = gpu_machine.environment(site, interpreter, gpu_machine.requirements().values())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as room:
        wheels, brought = Path(room) / "wheels", Path(room) / "site"
        gpu_bundle.wheels(wheels, gpu_machine.PYTHON, python)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                        "--disable-pip-version-check", "--target", brought,
                        *wheels.glob("*.whl")], check=True)
        environment["PYTHONPATH"] = f"{CHECKOUT}{os.pathsep}{brought}"
        call = subprocess.run(
            [python, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
             "--continue-on-collection-errors", *files_with_gpu_tests()],
            cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    lost = re.findall(r"^ERROR (\S+)", call.stdout, re.MULTILINE)
    lacking = gpu_machine.absent(python)
    return ([f"{name} is not collected with the machine's versions" for name in lost]
            + [f"tests import {name}, which the machine lacks" for name in lacking])


def verdicts(out: Path) -> list[str]:
    """What is wrong with a rehearsed call, from the files that it left."""
    summary = (out / "summary.txt").read_text()
    wrong = []
    rows = re.findall(r"^(\w+) +(.+?) +([\d.]+) +(\d+) +([\d.]+) +(\d+)$", summary, re.MULTILINE)
    ran = {name for name, *_ in rows}
    wanted = {step.name for step in (*gpu_steps.environment(), gpu_steps.smoke(),
                                     *gpu_steps.first())}
    wrong += [f"the step {name} was not reached" for name in sorted(wanted - ran)]
    for name, status, _, limit, cpu, processes in rows:
        if re.match(r"skipped|not started|refused|FAILED: over", status):
            wrong.append(f"the step {name}: {status}")
        share = float(cpu) / int(processes) / max(float(limit) / gpu_steps.SCALE, 1)
        print(f"   {name}: {share:.0%} of its limit")
        if share > SHARE:
            wrong.append(f"the step {name} takes {share:.0%} of its limit, {cpu} s of processors "
                         f"by {processes} processes; wanted at most {SHARE:.0%}")
    return wrong + _tests(out) + _ops(out)


def _tests(out: Path) -> list[str]:
    log = (out / "gpu_tests.log").read_text()
    wrong = [f"{name} is not collected" for name in re.findall(
        r"^FAILED (\S+)\n    reason: not collected", log, re.MULTILINE)
        if name not in EXPECTED]
    planted = set(re.findall(r"^FAILED (tests/\w+/test_planted\S*)", log, re.MULTILINE))
    if planted != EXPECTED:
        wrong.append(f"of the planted tests {', '.join(sorted(planted)) or 'none'} failed; wanted "
                     f"{', '.join(sorted(EXPECTED))}")
    ran = re.findall(r"^(\d+) of (\d+) run", log, re.MULTILINE)
    if not ran or ran[-1][0] != ran[-1][1]:
        wrong.append(f"{ran[-1] if ran else 'none'} of the tests ran; wanted all")
    return wrong


def _ops(out: Path) -> list[str]:
    log = (out / "kernels.log").read_text()
    if not re.search(r"^\d+ run on cuda, ", log, re.MULTILINE):
        return ["the step of all ops did not report at its end"]
    planted = set(re.findall(r"^FAILED (planted \w+)", log, re.MULTILINE))
    lost = re.findall(r"^FAILED (?!planted)(.+?): (?:context lost|no result|the process ended)",
                      log, re.MULTILINE)
    wrong = [f"the op {name} failed with a planted fault" for name in lost]
    if planted != EXPECTED_OPS:
        wrong.append(f"of the planted ops {', '.join(sorted(planted)) or 'none'} failed; wanted "
                     f"{', '.join(sorted(EXPECTED_OPS))}")
    return wrong


# -- the rehearsal ---------------------------------------------------------------------------------


def rehearse(out: Path, bundle: Path | None, processes: int, scale: float, collect: bool) -> int:
    """Run the call; how much is wrong, printed."""
    wrong = collected_on_the_machine(gpu_machine.CACHE / "machine") if collect else []
    python = gpu_machine.rehearsing()
    print(f"rehearsing with Python {sys.version.split()[0]}; the machine has "
          f"{gpu_machine.PYTHON}")
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        room = Path(folder)
        tree, brought = room / "checkout", room / "bundle"
        checkout(tree)
        gpu_bundle.wheels(brought / "wheels", "{}.{}".format(*sys.version_info), python)
        if bundle is not None:
            for name in ("kernels.tar.xz", "about.json"):
                (brought / name).symlink_to((bundle / name).resolve())
        environment = gpu_machine.on_host_device(python, room / "unused", tree)
        environment |= {
            "PATH": f"{tools(room / 'bin')}{os.pathsep}{environment['PATH']}",
            "GPU_CHECK_PROCESSES": str(processes), "GPU_CHECK_SCALE": str(scale),
            "GPU_CHECK_TEST_SECONDS": "200",  # a test shares two cores with many others
            "GPU_CHECK_REHEARSAL": "1", "PYTHONOPTIMIZE": "1",  # asserts would end most tests early
            "GPU_CHECK_STATE": str(room / "state"),
            "GPU_CHECK_BUNDLE": str(brought),
            "GPU_CHECK_WITH": str(tree / PLANTS["planted_checks.py"]),
        }
        gpu_steps.SCALE = scale
        subprocess.run([*alone(), tree / "profiling" / "gpu_check.sh", out, "first"], cwd=room,
                       env=environment)
    if not (out / "summary.txt").exists():
        wrong.append("the call left no summary")
    else:
        wrong += verdicts(out)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    print(f"{len(wrong)} wrong" if wrong else "the call is ready for a GPU")
    return len(wrong)


def main() -> int:
    """Parse, rehearse."""
    parser = argparse.ArgumentParser(
        prog="rehearse.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUTDIR", help="where the call writes to")
    parser.add_argument("--bundle", type=Path, help="what gpu_bundle.sh made: its kernels, "
                        "which are found if its site is that of the rehearsal (default: none)")
    parser.add_argument("--processes", type=int, default=14, help="as on the machine (default 14)")
    parser.add_argument("--scale", type=float, default=14 / (os.cpu_count() or 1) * 1.5,
                        help="of the limits, for fewer cores (default %(default)s)")
    parser.add_argument("--no-collect", action="store_true",
                        help="do not collect the tests with the machine's versions")
    try:
        given = parser.parse_args()
    except SystemExit as end:
        return 64 if end.code else 0
    if given.bundle and not (given.bundle / "about.json").exists():
        print(f"rehearse: {given.bundle} is no bundle; gpu_bundle.sh makes one", file=sys.stderr)
        return 64
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        return int(bool(rehearse(given.out.resolve(), given.bundle, given.processes, given.scale,
                                 not given.no_collect)))
    except (Impossible, OSError, subprocess.CalledProcessError) as error:
        print(f"rehearse: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
