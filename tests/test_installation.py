"""What gtensor tells a user to type for what is missing: it works from where it was installed."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gtensor.system import installation


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let gtensor be installed into a folder, with a record of its origin."""
    home = tmp_path / "site-packages"

    def installed(record: object, package: Path = home / "gtensor") -> list[str]:
        monkeypatch.setattr(installation, "_PACKAGE", package)
        found = SimpleNamespace(locate_file=lambda name: home / name,
                                read_text=lambda name: record and json.dumps(record))
        monkeypatch.setattr(metadata, "distribution", lambda name: found)
        words = shlex.split(installation.installation_of("train"))
        assert words[:1] != ["uv"] and "install" in words
        return words[words.index("install") + 1:]

    return installed


def test_a_checkout_a_wheel_and_a_repository_are_installed_from_again(installed, tmp_path) -> None:
    checkout = tmp_path / "a folder"
    (checkout / "gtensor").mkdir(parents=True)
    (checkout / "gtensor-1.whl").write_bytes(b"")
    url = f"file://{tmp_path}/a%20folder"
    assert installed({"url": url, "dir_info": {"editable": True}}, checkout / "gtensor") == [
        "-e", f"{checkout}[train]"]
    assert installed({"url": url, "dir_info": {}}) == [f"{checkout}[train]"]
    assert installed({"url": f"{url}/gtensor-1.whl", "archive_info": {}}) == [
        f"{checkout}/gtensor-1.whl[train]"]
    assert installed({"url": "https://a.b/c.git", "vcs_info": {"vcs": "git", "commit_id": "12f"}}
                     ) == ["gtensor[train] @ git+https://a.b/c.git@12f"]
    assert installed({"url": "https://a.b/gtensor.whl", "archive_info": {}}) == [
        "gtensor[train] @ https://a.b/gtensor.whl"]


def test_without_a_record_it_came_from_an_index_and_may_be_a_checkout_on_the_path(
    installed, tmp_path, monkeypatch
) -> None:
    for record in (None, [], {"url": 3}, "text"):
        assert installed(record) == ["gtensor[train]"]
    (tmp_path / "pyproject.toml").write_bytes(b"")
    other = {"url": f"file://{tmp_path}/other", "dir_info": {"editable": True}}
    assert installed(other, tmp_path / "gtensor") == ["-e", f"{tmp_path}[train]"]
    monkeypatch.chdir(tmp_path)
    assert installed(other, tmp_path / "gtensor") == ["-e", ".[train]"]


def test_where_the_origin_is_gone_the_packages_are_named(installed, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: [
        "numpy>=2.1", 'rich>=13; extra == "train"', 'mpi4py>=4; extra == "mpi"'])
    assert installed({"url": f"file://{tmp_path}/gone.whl", "archive_info": {}}) == ["rich>=13"]


def test_the_installer_is_that_of_this_python(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(installation, "find_spec", lambda name: True)
    monkeypatch.setattr(installation.shutil, "which", lambda name: "/usr/bin/pip")
    assert installation.installation_of_package("x") == f"{tmp_path}/bin/python -m pip install x"
    monkeypatch.chdir(tmp_path)
    assert installation.installation_of_package("x") == "bin/python -m pip install x"
    monkeypatch.setattr(installation.shutil, "which", lambda name: f"{tmp_path}/bin/pip")
    assert installation.installation_of_package("x>1") == "pip install 'x>1'"
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    assert installation.installation_of_package("x") == (
        f"uv pip install --python {tmp_path}/bin/python x")


@pytest.mark.parametrize(("driver", "extra"), [
    (None, "cuda13"), ("unknown", "cuda13"), ("570.86", "cuda12"), ("580.65.06", "cuda13")])
def test_an_older_driver_gets_cuda_12(monkeypatch, driver: str | None, extra: str) -> None:
    monkeypatch.setattr(installation, "driver", lambda: driver)
    assert installation.cuda_extra() == extra
