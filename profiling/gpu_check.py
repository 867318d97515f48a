"""Everything that wants a GPU, in calls of less than ten minutes each.

    profiling/gpu_check.sh OUTDIR first          # what would stop everything else comes first
    profiling/gpu_check.sh OUTDIR again          # reruns what failed, with full output
    profiling/gpu_check.sh OUTDIR rest [STEP..]  # the remaining ladders, or any steps by name

It runs from a checkout that need not be installed, without network, and only reads the card's
settings. Each step prints what it found when it finds it, and ends at its limit: it is interrupted,
so that it can still report, and killed 15 s later. A call takes at most 560 s; a step for which no
time is left is not started, and the summary says so.

OUTDIR gets at most 8 files: a log per kind of step, ladders.json, and summary.txt, a table of steps
with the most frequent reasons of failures, and all that failed by name. Results that are there
already are moved into a folder earlier-1, earlier-2, ... in OUTDIR, and none is ever removed.

A bundle (`gpu_bundle.sh` makes it) in the folder gpu_bundle of the checkout, or where
GPU_CHECK_BUNDLE says, brings packages and compiled kernels that the machine lacks. ~/.gtensor-gpu,
or GPU_CHECK_STATE, keeps the compiled kernels and the last summary for the next call.

Exit status: 0; 1 if a step failed, could not start or ran out of its time; 2 without a usable GPU;
64 for wrong usage; 73 if OUTDIR cannot be written or the disk is full.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gpu_command
from gpu_probe import installed
from gpu_steps import (
    CHECKOUT,
    REHEARSAL,
    SCALE,
    Failed,
    Step,
    again,
    environment,
    every_step,
    first,
    named,
    rest,
    smoke,
    smoke_tests,
)

PROFILING = CHECKOUT / "profiling"
CALL = 560  # seconds that a call may take
PROBE = 60  # seconds to find out whether there is a GPU: a cold driver takes some
REFUSAL = 10  # seconds to find out whether a tool accepts the device
LOG_BYTES = 8 << 20  # a longer log loses its middle
MOST_REASONS = 24
LOGS_BYTES, CACHE_BYTES = 64 << 20, 1 << 30  # that have to be free
OUTPUTS = ("environment.txt", "alone.log", "gpu_tests.log", "kernels.log", "sanitizer.log",
           "ladders.log", "ladders.json", "summary.txt")
CUDA_TOOLS = "/usr/local/cuda/bin"


class Unusable(Exception):
    """The call cannot begin: one sentence, and the exit status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


# -- running a step --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a step ended; seconds on the wall and of the processors, and its limit."""

    step: Step
    status: str
    wall: float = 0.0
    cpu: float = 0.0
    limit: float = 0.0

    @property
    def ok(self) -> bool:
        """A tool that refuses the device is the machine's, no fault of what is checked."""
        return self.status == "ok" or self.status.startswith("refused")

    def row(self) -> str:
        return (f"{self.step.name:16} {self.status:40} {self.wall:7.1f} {self.limit:7.0f} "
                f"{self.cpu:8.1f} {self.step.processes:9}")


HEAD = f"{'step':16} {'status':40} {'s':>7} {'limit':>7} {'CPU s':>8} {'processes':>9}"


class Call:
    """One call: the time that is left, the folders, and what its steps came to."""

    def __init__(self, out: Path, state: Path, began: float) -> None:
        self.out, self.state, self.began = out, state, began
        self.room = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.outcomes: list[Outcome] = []
        self.refusals: dict[str, str] = {}  # by tool
        self.pending = Failed([], [], [])  # what `again` is still to run: kept if it is cut off
        self.status = 0
        self.environment = settings(self.room, state)

    def left(self) -> float:
        return CALL * SCALE - (time.monotonic() - self.began)

    def run(self, step: Step) -> Outcome:
        """Run a step within its time and the call's; its output goes to its log."""
        log = Log(self.out / step.log, step)
        reason = missing(step, self.environment) or self.late(step) or self.refusal(step.tool)
        reason = reason or self.late(step)
        limit = min(step.seconds * SCALE, self.left() - gpu_command.GRACE)
        print(f"== {step.name}" + (f": {reason}" if reason else f", at most {limit:.0f} s"),
              flush=True)
        if reason:
            log.keep(f"== {step.name}: {reason}\n".encode())
            return self.note(Outcome(step, reason))
        log.keep(f"== {step.name}: {short(step.command)}\n".encode())
        words = [word.replace("@ROOM", str(self.room)) for word in step.command]
        try:
            ended = gpu_command.run(words, limit, log.write, environment=self.environment,
                                    folder=CHECKOUT, group=bool(step.tool))
        except OSError as error:  # no memory for a process, say
            return self.note(Outcome(step, f"FAILED: could not start: {error}"))
        log.end()
        failure = ended.failure(limit)
        outcome = self.note(Outcome(step, f"FAILED: {failure}" if failure else "ok", ended.wall,
                                    ended.cpu, limit))
        print(f"== {step.name}: {outcome.status}, {outcome.wall:.1f} s, {outcome.cpu:.1f} s of "
              "processors", flush=True)
        if ended.interrupted:
            raise KeyboardInterrupt
        return outcome

    def late(self, step: Step) -> str:
        """A sentence if no time is left for a step; empty if there is."""
        left = self.left() - gpu_command.GRACE
        return ("not started: the call's time is over"
                if left < min(10, step.seconds) * min(SCALE, 1) else "")

    def refusal(self, tool: str) -> str:
        """A sentence if a tool does not accept the device, which is asked once; else empty."""
        if tool and tool not in self.refusals:
            self.refusals[tool] = refusal(tool, self.environment)
        return self.refusals.get(tool, "")

    def note(self, outcome: Outcome) -> Outcome:
        """Keep an outcome; the files are complete after each step, should the call be cut off."""
        self.outcomes.append(outcome)
        self.gather()
        self.summarize()
        return outcome

    def gather(self) -> None:
        """All ladders' results in one file; of one that was cut off as far as it came."""
        found = {}
        for suffix in ("part", "json"):
            for path in sorted((self.room / "ladders").glob(f"*.{suffix}")):
                with contextlib.suppress(OSError, ValueError):
                    found[path.stem] = json.loads(path.read_text())
        if found:
            with contextlib.suppress(OSError):  # the summary says that the disk is full
                part = self.out / "ladders.part"
                part.write_text(json.dumps(found, indent=1) + "\n")
                part.replace(self.out / "ladders.json")

    def summarize(self) -> str:
        """Write the table of steps, which is returned, and what failed, which `again` reads."""
        failed = failures(self.out, self.outcomes)
        broken = sum(not outcome.ok for outcome in self.outcomes)
        table = "\n".join([
            HEAD, *(outcome.row() for outcome in self.outcomes), *reasons(self.out),
            f"{broken} of {len(self.outcomes)} steps failed, {len(failed.tests)} tests, "
            f"{len(failed.ops)} ops; {time.monotonic() - self.began:.0f} s in all", ""])
        names = "".join(f"failed {kind} {name}\n" for kind, names in (
            ("step", [*failed.steps, *self.pending.steps]),
            ("test", [*failed.tests, *self.pending.tests]),
            ("op", [*failed.ops, *self.pending.ops]),
            ("unfinished", [*failed.unfinished, *self.pending.unfinished]))
            for name in dict.fromkeys(names))
        for folder in (self.out, self.state):
            part = folder / "summary.part"
            try:
                part.write_text(table + names)
                part.replace(folder / "summary.txt")
            except OSError as error:
                print(f"== {folder}/summary.txt cannot be written: {error.strerror}", flush=True)
                self.status = 73
        return table

    def end(self) -> int:
        """Print the summary; the exit status."""
        if not any(outcome.status == "FAILED: interrupted" for outcome in self.outcomes):
            self.pending = Failed([], [], [])
        shutil.rmtree(self.room, ignore_errors=True)
        print(self.summarize(), end="", flush=True)
        return self.status or int(not all(outcome.ok for outcome in self.outcomes))


def settings(room: Path, state: Path) -> dict[str, str]:
    """The environment of all steps."""
    path = [str(CHECKOUT), str(PROFILING), str(room / "site"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(room / "matplotlib"), "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(room / "hypothesis"),
        "CUPY_CACHE_DIR": str(state / "cupy"),  # stays: what is compiled once is found again
        "GPU_CHECK_TEST_SECONDS": os.environ.get("GPU_CHECK_TEST_SECONDS", "45"),
        "GPU_CHECK_BUNDLE": str(bundle()),
        "PATH": os.environ.get("PATH", "") + os.pathsep + CUDA_TOOLS,
    }


class Log:
    """Where the output of a step goes: all of it to a file, lines of interest to this output, too.

    A disk that is full must not stop the command, which waits until its output is read.
    """

    def __init__(self, path: Path, step: Step) -> None:
        self._path, self._step = path, step
        self._wanted = re.compile(step.shows)
        self._shown, self._lost = 0, False

    def write(self, line: bytes) -> None:
        """Keep a line, and print it if it is of interest."""
        self.keep(line)
        text = line.decode(errors="replace").rstrip()
        if self._wanted.search(text):
            self._shown += 1
            if self._shown <= self._step.most:
                with contextlib.suppress(OSError):  # its reader has ended; the command goes on
                    print(f"   {text[:300]}", flush=True)

    def keep(self, line: bytes) -> None:
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            if not self._lost:
                print(f"   {self._path.name} cannot be written: {error.strerror}", flush=True)
            self._lost = True

    def end(self) -> None:
        if self._shown > self._step.most:
            print(f"   ... {self._shown - self._step.most} more such lines in {self._path.name}",
                  flush=True)
        with contextlib.suppress(OSError):
            shorten(self._path)


def shorten(log: Path) -> None:
    """Take the middle out of a log that is too long to be brought home."""
    size = log.stat().st_size
    if size > LOG_BYTES:
        with log.open("rb") as file:
            head = file.read(LOG_BYTES // 2)
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            tail = file.read()
        note = f"\n... {size - LOG_BYTES} bytes were left out here ...\n".encode()
        part = log.with_suffix(".part")
        part.write_bytes(head + note + tail)
        part.replace(log)


def short(command: tuple[str, ...]) -> str:
    text = shlex.join(Path(command[0]).name if place == 0 else word
                      for place, word in enumerate(command))
    return text if len(text) < 400 else text[:400] + " ..."


def missing(step: Step, environment: dict[str, str]) -> str:
    """Which packages or tools of a step are not there; empty if all are."""
    path = environment["PYTHONPATH"].split(os.pathsep)
    absent = [name for name in step.modules
              if importlib.util.find_spec(name) is None
              and importlib.machinery.PathFinder.find_spec(name, path) is None]
    if step.tool and shutil.which(step.tool, path=environment["PATH"]) is None:
        absent.append(step.tool)
    return f"skipped: no {', '.join(absent)}" if absent else ""


def refusal(tool: str, environment: dict[str, str]) -> str:
    """One sentence if a tool does not accept the device; empty if it does."""
    words = [shutil.which(tool, path=environment["PATH"]) or tool, sys.executable, "-c",
             TOUCH_DEVICE]
    ended, said = gpu_command.output_of(words, REFUSAL * SCALE, environment)
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.late:
        return f"FAILED: {tool} gave no answer in {REFUSAL * SCALE:.0f} s"
    said = [line.strip("= ") for line in said]
    named = [line for line in said if "not supported" in line.lower()]
    if not ended.code and not named:
        return ""
    return f"refused: {next(filter(None, named + said[::-1]), f'exit status {ended.code}')[:120]}"


TOUCH_DEVICE = """
import ctypes
driver, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
for failed in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
               driver.cuCtxSetCurrent(context), driver.cuMemAlloc_v2(ctypes.byref(memory), 4096)):
    if failed:
        raise SystemExit(f"CUDA error {failed}")
"""


# -- what failed -----------------------------------------------------------------------------------


FAILED_TEST = r"^FAILED (tests/.+)\n    reason: (.+)$"  # as gpu_tests.py writes it
FAILED_OP = r"^FAILED ([^:\n]+): (.+)$"  # as touch_kernels.py writes it


def failures(out: Path, outcomes: list[Outcome]) -> Failed:
    """What the logs say: gpu_tests.py and touch_kernels.py write a line for each failure."""
    def found(pattern: str, *names: str) -> list[str]:
        matches = [match[0] for name in names
                   for match in re.findall(pattern, logged(out / name), re.MULTILINE)]
        return list(dict.fromkeys(matches))

    return Failed([outcome.step.name for outcome in outcomes if not outcome.ok],
                  found(FAILED_TEST, "gpu_tests.log"),  # not those that run alone: by their step
                  found(FAILED_OP, "alone.log", "kernels.log"),
                  tuple(outcome.step.name for outcome in outcomes
                        if not outcome.ok and outcome.status != "FAILED: exit status 1"))


def reasons(out: Path) -> list[str]:
    """Why tests and ops failed, the most frequent reason first, with one of them as an example."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, pattern in (("alone.log", FAILED_OP), ("alone.log", FAILED_TEST),
                          ("gpu_tests.log", FAILED_TEST), ("kernels.log", FAILED_OP)):
        for failed, reason in re.findall(pattern, logged(out / name), re.MULTILINE):
            same = re.sub(r"'.*?'|[\d.]+(e[-+]?\d+)?", "#", reason)[:100]  # but for its numbers
            found.setdefault(same, []).append((failed, reason))
    most = sorted(found.values(), key=len, reverse=True)
    return [f"{len(each):5} x {each[0][1][:160]}\n        {each[0][0][:160]}"
            for each in most[:MOST_REASONS]] + (
        [f"      and {len(most) - MOST_REASONS} more reasons"] if len(most) > MOST_REASONS else [])


def logged(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def noted(*folders: Path) -> Failed:
    """The failures of the last call, from the first of these folders that has a summary."""
    for folder in folders:
        summary = folder / "summary.txt"
        if summary.exists():
            lines = re.findall(r"^failed (step|test|op|unfinished) (.+)$", summary.read_text(),
                               re.MULTILINE)
            of = {kind: [name for each, name in lines if each == kind]
                  for kind in ("step", "test", "op", "unfinished")}
            if not any(of.values()):
                raise Unusable(f"{folder.name}/summary.txt names nothing that failed; there is "
                               "nothing to run again", 64)
            return Failed(of["step"], of["test"], of["op"], tuple(of["unfinished"]))
    raise Unusable("no summary of an earlier call, neither in OUTDIR nor in the state folder; run "
                   "`first` before `again`", 64)


# -- the machine -----------------------------------------------------------------------------------


def probe() -> None:
    """Raise Unusable with the reason if this machine has no GPU that CuPy can use."""
    ended, said = gpu_command.output_of([sys.executable, PROFILING / "gpu_probe.py"],
                                        PROBE * SCALE)
    if ended.interrupted:
        raise Unusable("interrupted while the driver was asked; nothing was run", 1)
    if ended.late:
        raise Unusable(f"the driver gave no answer in {PROBE * SCALE:.0f} s, so nothing was run; "
                       "nvidia-smi tells whether the GPU works", 2)
    if ended.code:
        raise Unusable(said[-1] if said else f"the probe ended with {ended.code}", 2)
    print(*said, sep="\n", flush=True)


def bundle() -> Path:
    return Path(os.environ.get("GPU_CHECK_BUNDLE") or CHECKOUT / "gpu_bundle")


def unpack(call: Call) -> None:
    """Unpack the packages of the bundle that this Python lacks, for this call only."""
    lacking = [wheel for wheel in sorted((bundle() / "wheels").glob("*.whl"))
               if not installed(wheel.name.split("-")[0])]
    for wheel in lacking:  # they have no programs, so there is nothing to do but to unpack
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(call.room / "site")
        except (OSError, zipfile.BadZipFile) as error:
            print(f"== {wheel.name} cannot be unpacked: {error}", flush=True)
    print(f"== packages of the bundle: {len(lacking)}", flush=True)


# -- the call --------------------------------------------------------------------------------------


def prepared(given: Path) -> Path:
    """A folder, made if it is not there, that can be written. What it holds is left alone."""
    try:
        given.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=given):
            pass
    except OSError as error:
        raise Unusable(f"the folder {given} cannot be written ({error.strerror}); nothing was run",
                       73) from None
    return given.resolve()


def state_folder() -> Path:
    """Where the next call finds compiled kernels: of the user, else a temporary one."""
    given = os.environ.get("GPU_CHECK_STATE")
    if given:
        return prepared(Path(given))
    try:
        return prepared(Path.home() / ".gtensor-gpu")
    except (Unusable, RuntimeError):  # no home, or one that is only read
        other = Path(tempfile.gettempdir()) / "gtensor-gpu"
        print(f"the home folder cannot be written; compiled kernels are kept in {other}")
        return prepared(other)


def with_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise Unusable(f"{free >> 20} MiB are free where {folder} lies, and {nbytes >> 20} MiB are "
                       "needed; nothing was run", 73)


def put_aside(out: Path) -> None:
    """Move the results of an earlier call into a folder of their own."""
    there = [out / name for name in OUTPUTS if (out / name).exists()]
    if not there:
        return
    number = next(k for k in range(1, 10**6) if not (out / f"earlier-{k}").exists())
    earlier = out / f"earlier-{number}"
    earlier.mkdir()
    for path in there:
        path.rename(earlier / path.name)


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """SIGTERM ends a call as SIGINT does: with its summary."""
    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def steps_of(call: Call, part: str, names: list[str], failed: Failed | None) -> None:
    if failed is not None:
        call.pending = failed
        (call.room / "ids").write_text("\n".join(failed.tests))
    for step in environment():
        call.run(step)
    if part == "first" and not works(call, call.run(smoke())):
        call.run(smoke_tests())
        print("== the smoke failed, so nothing else was started; when it is mended, call `first` "
              "once more", flush=True)
        return
    chosen = {"first": first, "again": lambda: again(failed or Failed([], [], [])),
              "rest": lambda: named(names) if names else rest()}[part]()
    for step in chosen:
        call.run(step)


def works(call: Call, outcome: Outcome) -> bool:
    """Whether the smoke found nothing wrong; that it is slow does not stop a call."""
    text = logged(call.out / outcome.step.log)
    return outcome.ok or REHEARSAL or (
        "over its" in outcome.status and "\nok " in text and "\nFAILED " not in text)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_check.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [step.name for step in every_step()]
    parser.add_argument("out", type=Path, metavar="OUTDIR", help="the folder of the results")
    parser.add_argument("part", choices=["first", "again", "rest"], help="what to run")
    parser.add_argument("steps", nargs="*", metavar="STEP",
                        help=f"with rest: only these, of {', '.join(known)}")
    try:
        given = parser.parse_args(arguments)
    except SystemExit as end:
        return 64 if end.code else 0
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how commands end
    try:
        unknown = sorted(set(given.steps) - set(known))
        if given.steps and (given.part != "rest" or unknown):
            raise Unusable(f"{', '.join(unknown or given.steps)} given as steps of {given.part}; "
                           f"wanted rest and some of {', '.join(known)}", 64)
        probe()
        out, state = prepared(given.out), state_folder()
        with_room(out, LOGS_BYTES)
        with_room(state, CACHE_BYTES)
        failed = noted(out, state) if given.part == "again" else None
        put_aside(out)
        call = Call(out, state, began)
        unpack(call)
    except Unusable as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"gpu_check: {error}; nothing was run", file=sys.stderr)
        return 73
    try:
        with interrupted():
            steps_of(call, given.part, given.steps, failed)
    except KeyboardInterrupt:
        call.end()
        return 1
    return call.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
