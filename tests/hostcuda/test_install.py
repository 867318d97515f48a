"""What a machine or a CuPy that cannot be used is told: one sentence, with what to install."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import pytest

from gtensor.hostcuda import Unusable, build, children, elf, install

module = sys.modules["gtensor.hostcuda.install"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"mode": "lazy"}, r"^mode is one of eager, deferred, got 'lazy'$"),
    ({"devices": 0}, r"^devices is 1 to 4, got 0$"),
    ({"devices": 5}, r"^devices is 1 to 4, got 5$"),
])
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        install(**arguments)


def test_another_platform(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(Unusable, match="^hostcuda runs on Linux x86-64, this is linux aarch64$"):
        install()


def test_after_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match="before it is imported; cupy"):
        install()


@pytest.mark.parametrize("version", ["13.6.0", "14.3.0"])
def test_another_cupy(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(Unusable, match=rf"found {version}; install cupy-cuda13x==14\.2\.\*$"):
        module._cupy()


def test_no_cupy(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(Unusable, match=r"not installed; install cupy-cuda13x==14\.2\.\*$"):
        module._cupy()


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unusable, match=r"g\+\+, which is not on PATH; install g\+\+"):
        build.compiler()


def test_no_headers(monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unusable, match=r"headers, which are not installed; install "):
        build.headers()


def test_a_file_without_symbols(tmp_path):
    text = tmp_path / "module.so"
    text.write_bytes(b"no ELF file at all" * 10)
    with pytest.raises(elf.NoSymbols, match="is not an x86-64 ELF file"):
        elf.functions(text)


def test_child_processes_find_the_settings(monkeypatch):
    environment = {"PYTHONPATH": "/mine"}
    children.inherit(environment, {"mode": "deferred", "devices": 3})
    monkeypatch.setenv(children.VARIABLE, environment[children.VARIABLE])
    assert children.settings() == {"mode": "deferred", "devices": 3}
    assert environment["PYTHONPATH"].startswith(str(children._SITE))
    assert environment["PYTHONPATH"].endswith(":/mine")
