"""The cache of compiled kernels: what shares an entry, what is removed, its locks."""

from __future__ import annotations

import errno
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


def test_headers_without_a_version_are_known_by_their_contents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of a CuPy that was built here."""
    version = toolchain._version
    monkeypatch.setattr(toolchain, "_version", lambda name: "" if "cupy" in name else version(name))
    keys = set()
    for number in (1, 2, 2):
        include = tmp_path / f"{number}{len(keys)}"
        include.mkdir()
        (include / "complex.cuh").write_text(f"#define X {number}")
        monkeypatch.setattr(toolchain, "cupy_include", lambda include=include: include)
        keys.add(toolchain.key.__wrapped__())
    assert len(keys) == 2


def age(path: Path, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(path, (then, then))


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
        (tmp_path / "old.123").mkdir()  # of a process that was killed while it removed
        (tmp_path / "old.123" / "module.so").touch()
        for name in ("device.o", "fresh.o"):
            (tmp_path / name).touch()
        age(folders["recent"] / "used", 29)
        for name in ("old/used", "others/used", "old.123", "device.o"):
            age(tmp_path / name, 31)
        before = (tmp_path / "fresh.o").stat().st_mtime
        assert build.used(folders["now"]) == folders["now"]
        assert {path.name for path in tmp_path.iterdir()} == {
            "now", "recent", "others", "foreign", "fresh.o"}
    finally:
        holder.communicate()
    assert (folders["now"] / "used").stat().st_mtime >= before


def test_what_is_asked_for_is_not_old(tmp_path: Path) -> None:
    made = build.made(tmp_path / "stub.so", lambda room: Path(shutil.copy(__file__, room / "made")))
    age(made, 31)
    build.made(made, lambda room: room)
    build.clear(tmp_path)
    assert made.exists()
    age(made, 31)
    build.clear(tmp_path)
    assert not made.exists()


def test_a_folder_that_another_process_removes_meanwhile_stays_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "used").touch()
    age(old / "used", 31)
    real, removed = build._is_old, []

    def is_old(folder: Path) -> bool:
        answer = real(folder)
        if folder == old and not removed:
            shutil.rmtree(old)
            removed.append(folder)
        return answer

    monkeypatch.setattr(build, "_is_old", is_old)
    build.used(tmp_path / "now")
    assert removed == [old] and not old.exists()


def test_a_file_system_without_locks_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def flock(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(build.Unusable, match=r"cannot lock .*module.lock \(No locks available\)"), \
            build.locked(tmp_path / "module"):
        pass
    assert build.used(tmp_path / "kernels") == tmp_path / "kernels"


def test_a_stamp_that_is_held_is_not_warned_of(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", "from pathlib import Path\n"
         "from gtensor.hostcuda import build\n"
         f"build.used(Path({str(tmp_path / 'now')!r})); build._held.clear()"],
        capture_output=True, text=True, timeout=900)
    assert (ran.returncode, ran.stderr) == (0, "")


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
