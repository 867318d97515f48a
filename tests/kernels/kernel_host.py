"""Kernels on the CPU: compiled by g++ with sanitizers behind host/cuda_host.h, run in a child.

`HostMachine(text)` is one child for one CUDA text; `HostExecutor` runs the case table
(kernel_cases.py) on machines for all kernel files, under several thread schedules that must agree
bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from kernel_text import HOST, cuda_include, element_name, elementwise_text, is_array

from gtensor.backend import kernels
from gtensor.backend.kernels import Elementwise

FLAGS = [
    "-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
]
SCHEDULES = (0, 1, 20, 21)
"""First to last, last to first, and two random orders."""


class KernelFault(Exception):
    """A launch ended in a sanitizer report or in a complaint of the machine; the text of it."""


class Toolchain:
    """Compiles CUDA text to executables, kept in a folder under a hash of what goes into them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = shutil.which("g++")
        if found is None:
            raise FileNotFoundError(
                "no g++ on the PATH; the tests run every CUDA kernel on the CPU and want g++ with "
                "its sanitizer libraries (Debian and Ubuntu: apt-get install g++)"
            )
        self.compiler = found
        version = subprocess.run([found, "--version"], capture_output=True, check=True).stdout
        shim = b"".join(path.read_bytes() for path in sorted(HOST.iterdir()))
        self.key = version + shim + " ".join(FLAGS).encode() + str(cuda_include()).encode()

    def executable(self, text: str) -> Path:
        """The executable for a text that already holds its registrations."""
        path = self._path(text.encode(), ".exe")
        if not path.exists():
            unit = path.with_suffix(".cpp")
            unit.write_text(text, encoding="utf-8")
            self._compile([str(unit), str(self.machine())], path)
        return path

    def machine(self) -> Path:
        """The object file of the machine itself."""
        path = self._path(b"", ".o")
        if not path.exists():
            self._compile(["-c", str(HOST / "machine.cpp")], path)
        return path

    def _path(self, text: bytes, suffix: str) -> Path:
        return self.folder / (hashlib.sha256(self.key + text).hexdigest()[:24] + suffix)

    def _compile(self, arguments: list[str], path: Path) -> None:
        part = path.with_suffix(f".{os.getpid()}.part")
        command = [self.compiler, *FLAGS, "-I", str(HOST), "-isystem", str(cuda_include()),
                   *arguments, "-o", str(part)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"g++ refuses a kernel:\n{result.stderr[:6000]}")
        part.replace(path)  # another process may build the same file at the same time


def file_text(file: str, text: str | None = None) -> str:
    """A kernel file for the machine: its text (or a changed one), and its kernels registered."""
    names = [f"{function}<{ctype}>" for function in kernels.functions(file)
             for ctype in kernels.C_TYPES.values()]
    return _with_registrations(text or kernels.source(file), names)


def bodies_text(bodies: list[Elementwise]) -> str:
    """Elementwise kernels for the machine."""
    names = [element_name(index, body, dtype) for index, body in enumerate(bodies)
             for dtype in kernels.C_TYPES]
    text = '#include "elementwise_half.h"\n' + elementwise_text(bodies)
    return _with_registrations(text, list(dict.fromkeys(names)))


def _with_registrations(text: str, names: list[str]) -> str:
    lines = [f"GT_HOST_REGISTER({index}, {name});" for index, name in enumerate(names)]
    return "\n".join(['#include "cuda_host.h"', text, '#line 1 "registrations"', *lines, ""])


class HostMachine:
    """A child process that serves launches of the kernels of one text."""

    def __init__(self, executable: Path) -> None:
        self.executable = executable
        self.child: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        if self.child is not None:
            assert self.child.stdin is not None and self.child.stdout is not None
            self.child.stdin.close()
            self.child.wait()
            self.child.stdout.close()
            self._errors.close()
            self.child = None

    def launch(
        self, name: str, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any],
        schedule: int = 0,
    ) -> list[np.ndarray]:
        """Run one kernel; returns new arrays, one for each distinct array of `args`, in order.

        Raises:
            KernelFault: with the sanitizer's report, or the machine's complaint.
        """
        head = [name, *_three(grid), *_three(block), schedule, len(args)]
        request = [" ".join(map(str, head)).encode() + b"\n"]
        arrays: list[np.ndarray] = []
        first: dict[int, int] = {}
        for index, value in enumerate(args):
            if isinstance(value, np.ndarray) and id(value) in first:
                request.append(b"r %d\n" % first[id(value)])
            elif isinstance(value, np.ndarray):
                first[id(value)] = index
                arrays.append(value)
                request.append(b"b %d\n" % value.nbytes + value.tobytes())
            elif isinstance(value, float):
                request.append(f"d {value.hex()}\n".encode())
            else:
                request.append(b"i %d\n" % int(value))
        return self._converse(b"".join(request), arrays)

    def _converse(self, request: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
        if self.child is None:
            # A file and not a pipe: nobody reads it while the child runs.
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
            environment = os.environ | {
                "ASAN_OPTIONS": "detect_leaks=0:exitcode=71", "UBSAN_OPTIONS": "print_stacktrace=1",
            }
            self.child = subprocess.Popen(
                [str(self.executable)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, env=environment,
            )
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            self.child.stdin.write(request)
            self.child.stdin.flush()
        except BrokenPipeError:
            self._fault()
        if self.child.stdout.readline() != b"ok\n":
            self._fault()
        results = []
        for array in arrays:
            data = self.child.stdout.read(array.nbytes)
            results.append(np.frombuffer(data, array.dtype).reshape(array.shape))
        return results

    def _fault(self) -> None:
        child, self.child = self.child, None
        assert child is not None and child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # flushes what the child no longer reads
            child.stdin.close()
        child.wait()
        child.stdout.close()
        self._errors.seek(0)
        report = self._errors.read().decode(errors="replace")
        self._errors.close()
        raise KernelFault(report[:4000] or f"the child exited with {child.returncode}")


def _three(size: tuple[int, ...]) -> tuple[int, ...]:
    return (*size, 1, 1)[:3]


class HostExecutor:
    """Runs cases on the host: every launch under all `SCHEDULES`, which must agree bit for bit."""

    def __init__(self, toolchain: Toolchain, bodies: list[Elementwise]) -> None:
        self.bodies = bodies
        texts = [file_text(file) for file in kernels.files()] + [bodies_text(bodies)]
        toolchain.machine()
        with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as pool:
            machines = [HostMachine(path) for path in pool.map(toolchain.executable, texts)]
        self.machines = dict(zip(kernels.files(), machines[:-1], strict=True))
        self.body_machine = machines[-1]

    def close(self) -> None:
        for machine in (*self.machines.values(), self.body_machine):
            machine.close()

    def raw(
        self, file: str, function: str, dtype: Any, grid: tuple[int, ...], block: tuple[int, ...],
        args: list[Any],
    ) -> None:
        """Launch a raw kernel; the arrays among `args` are updated in place."""
        name = f"{function}<{kernels.c_type(dtype)}>"
        launch_all_schedules(self.machines[file], name, grid, block, args)

    def elementwise(
        self, kernel: Elementwise, dtype: Any, inputs: list[Any], outputs: list[np.ndarray]
    ) -> None:
        """Launch an elementwise kernel over dense arrays, updating `outputs` in place."""
        name = element_name(self.bodies.index(kernel), kernel, np.dtype(dtype).name)
        args: list[Any] = [outputs[0].size, *map(_number, inputs), *outputs]
        assert all(isinstance(value, np.ndarray) == is_array(parameter)
                   for value, parameter in zip(inputs, kernel.inputs, strict=True))
        grid, _ = kernels.flat_launch(outputs[0].size)
        launch_all_schedules(self.body_machine, name, grid, (kernels.BLOCK,), args)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def launch_all_schedules(
    machine: HostMachine, name: str, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any]
) -> None:
    """Launch under every schedule, compare the results, and write them to the arrays of `args`."""
    if 0 in grid:
        return  # as kernels.Launcher does
    runs = [machine.launch(name, grid, block, args, schedule) for schedule in SCHEDULES]
    for schedule, run in zip(SCHEDULES[1:], runs[1:], strict=True):
        for at, (one, other) in enumerate(zip(runs[0], run, strict=True)):
            assert one.tobytes() == other.tobytes(), (
                f"{name}: array argument {at} differs between thread schedules 0 and {schedule}; "
                "wanted equal bits (a missing barrier?)"
            )
    distinct = {id(value): value for value in args if isinstance(value, np.ndarray)}
    for array, result in zip(distinct.values(), runs[0], strict=True):
        array[...] = result
