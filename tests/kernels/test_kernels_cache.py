"""What compilers made is kept: what shares an entry, what is compiled anew, what is made again."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kernel_kept
import kernel_nvrtc
import kernel_sass
import kernel_toolchain
import pytest
from kernel_kept import content, kept
from kernel_nvrtc import CompileError, Compiler, Program
from kernel_toolchain import FIBERS, HOST, THREADS, Toolchain, sources

from gtensor.hostcuda import build
from gtensor.hostcuda.kernels import toolchain

Patch = pytest.MonkeyPatch
Change = Callable[[Patch, Path], object]

GPP = """#!/bin/sh
if [ "$1" = --version ]; then echo "g++ $GPP_VERSION"; exit; fi
echo compiles >> "$GPP_LOG"
while [ "$1" != -o ]; do shift; done
echo made > "$2"
"""
FIRST = 5  # an executable, of three objects and a precompiled header


@pytest.fixture
def compilations(monkeypatch: Patch, tmp_path: Path) -> Callable[[], int]:
    """How often g++ compiled; it is a script that makes files without contents."""
    log, script = tmp_path / "log", tmp_path / "bin" / "g++"
    log.touch()
    script.parent.mkdir()
    script.write_text(GPP)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setenv("GPP_LOG", str(log))
    monkeypatch.setattr(build, "version", build.version.__wrapped__)
    return lambda: len(log.read_text().splitlines())


def _changed_file(patch: Patch, room: Path, of: Path, where: object, name: str) -> None:
    """A copy of the folder of sources that `name` of `where` is, in which `of` differs."""
    folder: Path = getattr(where, name)
    copy = room / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    with (copy / of.relative_to(folder)).open("a") as file:
        file.write("// changed")
    patch.setattr(where, name, copy)


def _package(patch: Patch, _: Path) -> None:
    version = importlib.metadata.version
    patch.setattr(importlib.metadata, "version",
                  lambda name: "99" if name == "nvidia-cuda-runtime" else version(name))


CHANGES: dict[str, Change] = {
    "a header of the server": lambda patch, room: _changed_file(
        patch, room, HOST / "server.h", kernel_toolchain, "HOST"),
    "the machine of threads": lambda patch, room: _changed_file(
        patch, room, HOST / "threads.cpp", kernel_toolchain, "HOST"),
    "a header of the machines": lambda patch, room: _changed_file(
        patch, room, toolchain.FIBERS / "atomics.h", toolchain, "FIBERS"),
    "the interface of kernels": lambda patch, room: _changed_file(
        patch, room, toolchain.PACKAGE / "native" / "kernel_abi.h", toolchain, "PACKAGE"),
    "an option": lambda patch, _: patch.setattr(
        kernel_toolchain, "FLAGS", (*kernel_toolchain.FLAGS, "-O0")),
    "the version of g++": lambda patch, _: patch.setenv("GPP_VERSION", "99"),
    "the version of CUDA's headers": _package,
}


def test_what_is_the_same_is_compiled_once(
    compilations: Callable[[], int], tmp_path: Path
) -> None:
    entries = {Toolchain(tmp_path / "kept").executable("text") for _ in range(3)}
    assert len(entries) == 1 and compilations() == FIRST


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_compiled_anew(
    change: str, compilations: Callable[[], int], monkeypatch: Patch, tmp_path: Path
) -> None:
    before = Toolchain(tmp_path / "kept").executable("text")
    CHANGES[change](monkeypatch, tmp_path)
    assert Toolchain(tmp_path / "kept").executable("text") != before
    assert compilations() == 2 * FIRST


def test_texts_and_sanitizers_have_their_own_entries(
    compilations: Callable[[], int], tmp_path: Path
) -> None:
    tools = Toolchain(tmp_path / "kept")
    undefined = dataclasses.replace(FIBERS, flags=("-fsanitize=undefined",))
    entries = {tools.executable(text, build) for text in ("text", "other")
               for build in (FIBERS, THREADS, undefined)}
    assert len(entries) == 6 and compilations() == 3 * (FIRST + 1)


def test_the_key_knows_every_file_of_ours_that_is_included() -> None:
    for machine in (FIBERS, THREADS):
        listed = build.run(["-MM", *machine.flags, "-I", HOST, "-I", toolchain.FIBERS, "-isystem",
                            build.headers(), HOST / "server.cpp", toolchain.FIBERS / "block.cpp",
                            machine.machine]).stdout
        included = {Path(word).resolve() for word in listed.split() if "/" in word}
        assert len(included) > 8 and included <= {path.resolve() for path in sources()}


def _make(made: list[str]) -> Callable[[Path], Path]:
    """Makes an entry, and notes it."""
    def make(room: Path) -> Path:
        made.append("made")
        (room / "entry").write_bytes(b"contents")
        return room / "entry"

    return make


@pytest.mark.parametrize("damage", [
    lambda entry: entry.write_bytes(b""),
    lambda entry: entry.write_bytes(entry.read_bytes()[:-1]),
    lambda entry: entry.write_bytes(b"C" + entry.read_bytes()[1:]),
    lambda entry: entry.unlink(),
], ids=["empty", "short", "changed", "gone"])
def test_a_damaged_entry_is_made_again(damage: Callable[[Path], object], tmp_path: Path) -> None:
    made: list[str] = []
    for _ in range(2):
        entry = kept(tmp_path, "key", _make(made))
    assert made == ["made"]
    damage(entry)
    for _ in range(2):
        assert content(kept(tmp_path, "key", _make(made))) == b"contents"
    assert made == ["made"] * 2


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(room: Path) -> Path:
        (room / "entry").write_bytes(b"half")
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        kept(tmp_path, "key", fail)
    assert not list(tmp_path.iterdir())


MAKER = """
import sys
from pathlib import Path
from kernel_kept import kept

def make(room):
    with (room / "entry").open("w") as file:
        print("half", file=file, flush=True)
        print("makes", flush=True)
        sys.stdin.readline()
        print("whole", file=file)
    return room / "entry"

print("asks", flush=True)
kept(Path(sys.argv[1]), "key", make)
"""


def _maker(folder: Path) -> subprocess.Popen[str]:
    """A process that makes the entry "key", and waits for a line within."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen([sys.executable, "-c", MAKER, str(folder)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            env=os.environ | {"PYTHONPATH": path})


def _line(maker: subprocess.Popen[str]) -> str:
    assert maker.stdout is not None
    return maker.stdout.readline()


def test_processes_that_ask_at_once_make_it_once(tmp_path: Path) -> None:
    with _maker(tmp_path) as one, _maker(tmp_path) as other:
        assert _line(one) == _line(other) == "asks\n"
        for maker in (one, other):  # it is not known which of them makes
            print(file=maker.stdin, flush=True)
        assert sorted([_line(one), _line(other)]) == ["", "makes\n"]
    assert one.returncode == other.returncode == 0
    assert content(kept(tmp_path, "key", _make([]))) == b"half\nwhole\n"


def test_what_another_process_makes_meanwhile_is_taken(monkeypatch: Patch, tmp_path: Path) -> None:
    made: list[str] = []
    locked = build.locked

    def later(path: Path) -> contextlib.AbstractContextManager[Path]:
        monkeypatch.setattr(build, "locked", locked)
        kept(tmp_path, "key", _make(made))
        return locked(path)

    monkeypatch.setattr(build, "locked", later)
    kept(tmp_path, "key", _make(made))
    assert made == ["made"]


def test_a_process_that_is_killed_leaves_no_entry(tmp_path: Path) -> None:
    with _maker(tmp_path) as maker:
        assert [_line(maker) for _ in range(2)] == ["asks\n", "makes\n"]
        maker.kill()
    assert content(kept(tmp_path, "key", _make([]))) == b"contents"


def test_the_folder_is_cleared_of_what_is_long_unused(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("GTENSOR_HOSTCUDA_CACHE", str(tmp_path))
    old, new = (kept(kernel_kept.folder(), key, _make([])) for key in ("old", "new"))
    then = time.time() - 31 * 24 * 3600
    os.utime(old, (then, then))
    assert list(kernel_kept.folder().iterdir()) == [new]


PROGRAM = Program(b"ptx", b"cubin", "log")


@pytest.fixture(autouse=True)
def _alone(compiler: Compiler) -> None:
    """What these tests replace is the whole process's: its threads must not compile meanwhile."""
    compiler.wait()


@pytest.fixture
def programs(monkeypatch: Patch) -> list[object]:
    """What NVRTC was asked to compile; it answers PROGRAM, and refuses the text "wrong"."""
    asked: list[object] = []

    def compile_text(*each: object) -> Program:
        asked.append(each)
        if each[0] == "wrong":
            raise CompileError("wrong")
        return PROGRAM

    monkeypatch.setattr(kernel_nvrtc, "compile_text", compile_text)
    return asked


def _compile(folder: Path, *asked: object) -> Program:
    compiler = Compiler(folder)
    try:
        return compiler.text(*asked)
    finally:
        compiler.close()


def test_nvrtc_compiles_once_what_is_the_same(programs: list[object], tmp_path: Path) -> None:
    texts = [("text", ["name"], 80, False), ("other", ["name"], 80, False),
             ("text", ["other"], 80, False), ("text", ["name"], 90, False),
             ("text", ["name"], 80, True)]
    for asked in texts * 2:
        assert _compile(tmp_path, *asked) == PROGRAM
    assert len(programs) == len(texts)


@pytest.mark.parametrize("change", [
    lambda patch: patch.setattr(kernel_nvrtc, "OPTIONS", (*kernel_nvrtc.OPTIONS, "-G")),
    lambda patch: patch.setattr("cuda.bindings.nvrtc.nvrtcVersion", lambda: (0, 99, 9)),
    lambda patch: _package(patch, Path()),
], ids=["an option", "the version of NVRTC", "the version of CUDA's headers"])
def test_nvrtc_compiles_a_change_anew(
    change: Callable[[Patch], object], programs: list[object], monkeypatch: Patch, tmp_path: Path
) -> None:
    _compile(tmp_path, "text", ["name"], 80)
    change(monkeypatch)
    _compile(tmp_path, "text", ["name"], 80)
    assert len(programs) == 2


def test_what_nvrtc_refuses_is_not_kept(programs: list[object], tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="wrong"):
            _compile(tmp_path, "wrong", ["name"], 80)
    assert len(programs) == 2


def test_machine_code_is_that_of_a_cubin_and_a_version(monkeypatch: Patch, tmp_path: Path) -> None:
    runs: list[object] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        runs.append(command)
        return subprocess.CompletedProcess(command, 0, "\tFunction : scale\n code", "")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        for cubin in (b"one", b"other"):
            assert kernel_sass.disassembled(cubin, tmp_path) == {"scale": "\n code"}
    assert len(runs) == 2
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
    kernel_sass.disassembled(b"one", tmp_path)
    assert len(runs) == 3
