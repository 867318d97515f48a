"""The folder of what was compiled: who shares it, what is removed from it, its locks."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gtensor.hostcuda import build
from gtensor.hostcuda.kernels import compiler, toolchain


def test_the_key_knows_no_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "g++").symlink_to(build.compiler())
    here = toolchain.key()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "headers", lambda: tmp_path)
    monkeypatch.setattr(toolchain, "cupy_include", lambda: tmp_path)
    build.version.cache_clear()
    assert toolchain.key.__wrapped__() == here


def test_installations_share_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = [f"-I{build.headers()}", f"-I{toolchain.PACKAGE}"]
    first = compiler.load(compiler.compile("", options).image)
    other = tmp_path / "include"
    shutil.copytree(build.headers(), other)
    monkeypatch.setattr(build, "headers", lambda: other)
    options[0] = f"-I{other}"
    assert compiler.load(compiler.compile("", options).image) == first


def test_precompiled_headers_are_an_installations_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = compiler._options([])
    first = compiler._prelude("", options)
    other = tmp_path / "include"
    shutil.copytree(build.headers(), other)
    monkeypatch.setattr(build, "headers", lambda: other)
    assert compiler._prelude("", options) != first


def age(folder: Path, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(folder / "used", (then, then))


def test_folders_that_no_process_uses_any_more_are_removed(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("now", "recent", "old", "others", "foreign")}
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; from pathlib import Path\n"
         "from gtensor.hostcuda import build\n"
         f"build.used(Path({str(folders['others'])!r})); print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        for name in ("recent", "old"):
            folders[name].mkdir()
            (folders[name] / "used").touch()
            (folders[name] / "module.so").touch()
        folders["foreign"].mkdir()
        age(folders["recent"], 29)
        age(folders["old"], 31)
        age(folders["others"], 31)
        assert build.used(folders["now"]) == folders["now"]
        assert {path.name for path in tmp_path.iterdir()} == {"now", "recent", "others", "foreign"}
    finally:
        holder.communicate()
    assert time.time() - (folders["now"] / "used").stat().st_mtime < 60


def test_a_lock_is_that_of_the_file_which_has_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process before removes the file of its lock, while this one waits for it."""
    lock, taken = tmp_path / "module.lock", []
    real = fcntl.flock

    def flock(file: Any, how: int) -> None:
        real(file, how)
        taken.append(how)
        if len(taken) == 1:
            lock.unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with build.locked(tmp_path / "module"), lock.open() as other, pytest.raises(BlockingIOError):
        real(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not lock.exists()
