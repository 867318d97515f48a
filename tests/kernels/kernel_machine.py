"""A child process that runs the kernels of one text (host/server.cpp says how to talk to it)."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=71",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # No second at the end for threads that run: none has work by then.
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:detect_deadlocks=0:atexit_sleep_ms=0",
}


class KernelFault(Exception):
    """A launch ended in a sanitizer report or in a complaint of the machine; the text of it."""


class HostMachine:
    """A child process that serves launches of the kernels of one text.

    `fault` is the number of the one that a text of kernel_plants.py has there.
    """

    def __init__(self, executable: Path, fault: int = 0) -> None:
        self.executable = executable
        self.fault = fault
        self.child: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        if self.child is not None:
            self._end()

    def launch(
        self, name: str, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any],
        schedule: int = 0, shared_mem: int = 0,
    ) -> list[np.ndarray]:
        """Run one kernel; returns new arrays, one for each distinct array of `args`, in order.

        `shared_mem` is the size of the dynamic shared memory in bytes.

        Raises:
            KernelFault: with the sanitizer's report, or the machine's complaint.
        """
        head = [*_three(grid), *_three(block), schedule, shared_mem, len(args)]
        request = [f"{name}\n{' '.join(map(str, head))}\n".encode()]
        arrays: list[np.ndarray] = []
        first: dict[int, int] = {}
        for index, value in enumerate(args):
            if isinstance(value, np.ndarray) and id(value) in first:
                request.append(b"r %d\n" % first[id(value)])
            elif isinstance(value, np.ndarray):
                first[id(value)] = index
                arrays.append(value)
                request.append(b"b %d\n" % value.nbytes + value.tobytes())
            elif isinstance(value, np.void):
                request.append(b"s %d\n" % value.nbytes + value.tobytes())
            elif isinstance(value, float):
                request.append(f"d {value.hex()}\n".encode())
            else:
                request.append(b"i %d\n" % int(value))
        return self._converse(b"".join(request), arrays)

    def _converse(self, request: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
        if self.child is None:
            self._start()
        assert self.child is not None
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            self.child.stdin.write(request)
            self.child.stdin.flush()
        except BrokenPipeError:
            raise KernelFault(self._end()) from None
        if self.child.stdout.readline() != b"ok\n":
            raise KernelFault(self._end())
        results = []
        for array in arrays:
            data = self.child.stdout.read(array.nbytes)
            results.append(np.frombuffer(data, array.dtype).reshape(array.shape))
        return results

    def _start(self) -> None:
        """Start the child; without address space randomization where a sanitizer wants that.

        ThreadSanitizer cannot map its memory where vm.mmap_rnd_bits is large.
        """
        plain = [str(self.executable)]
        reports = []
        for command in (plain, [shutil.which("setarch") or "setarch", platform.machine(), "-R",
                                *plain]):
            try:
                self._spawn(command)
            except OSError as error:
                reports.append(str(error))
                continue
            assert self.child is not None and self.child.stdout is not None
            if self.child.stdout.readline() == b"ready\n":
                return
            reports.append(self._end())
        raise RuntimeError(
            "a sanitizer's executable does not start here, neither as it is nor with address space "
            "randomization off (setarch -R); on Linux, `sysctl vm.mmap_rnd_bits=28` lets "
            "ThreadSanitizer start. What they said:\n" + "\n".join(reports)
        )

    def _spawn(self, command: list[str]) -> None:
        # A file and not a pipe: a pipe would not be read while the child runs.
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        try:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=os.environ | OPTIONS | {"GT_PLANTED": str(self.fault)},
            )
        except OSError:
            errors.close()
            raise
        self._errors = errors

    def _end(self) -> str:
        """End the child, and what it wrote to standard error."""
        child, self.child = self.child, None
        assert child is not None and child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # flushes what the child no longer reads
            child.stdin.close()
        child.wait()
        child.stdout.close()
        self._errors.seek(0)
        report = self._errors.read().decode(errors="replace")
        self._errors.close()
        return report[:6000] or f"the child exited with {child.returncode}"


def _three(size: tuple[int, ...]) -> tuple[int, ...]:
    return (*size, 1, 1)[:3]
