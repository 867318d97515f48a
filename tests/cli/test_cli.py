"""The command as a user meets it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from itertools import product

import pytest

from gtensor.cli import info, main
from gtensor.system.installation import installation_of


def test_info_names_devices_versions_and_what_is_missing(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("devices", "cpu", "numpy", "GTENSOR_ARENA_MIN_BYTES", "CUDA text"):
        assert word in out


def test_info_has_what_installs_a_package_in_a_line_of_its_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(info, "_version", lambda name: name if name == "numpy" else None)
    found = info.facts()
    lines = info.text(found).splitlines()
    place = lines.index("  sklearn, rich, matplotlib (gtensor train)")
    assert lines[place + 1].strip() == installation_of("train")
    assert [line for line in found["missing"] if "rich" in line] == [
        f"{lines[place].strip()}: {installation_of('train')}"]


def test_info_as_json_from_a_checkout_that_is_not_installed(capsys, monkeypatch):
    version = importlib.metadata.version

    def of_others(name):
        if name == "gtensor":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", of_others)
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"][0]["name"] == "cpu" and found["packages"]["numpy"]
    assert "softmax.cu" in found["cuda"]["files"]


@pytest.mark.parametrize("arguments,sentence", [
    (["train", "letters"], "unknown recipe 'letters'; wanted one of digits"),
    (["train", "digits", "--epochs", "0"], "--epochs 0 given; wanted more than 0"),
    (["train", "digits", "--device", "tpu"], "device 'tpu' given"),
    (["train", "digits", "--norm", "group"], "--norm group given; wanted one of abn, inplace"),
    (["train", "digits", "--resume", "--out", "{tmp}"], "there is no checkpoint"),
    (["train", "digits", "--out", "{tmp}/file/run"], "could not be written: Not a directory"),
])
def test_mistakes_get_one_sentence(arguments, sentence, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main([a.format(tmp=tmp_path) for a in arguments]) == 1
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.err.count("\n") == 1


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--resume" in out and "diffusion" in out and "identical" in out
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", "--help"])
    assert stop.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--norm abn|inplace" in out and "(inplace)" in out and "--epochs" in out


def test_options_before_the_recipe_are_told_their_place(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--epochs", "1", "digits"])
    assert stop.value.code == 2
    assert "unrecognized arguments: --epochs; a recipe's options follow its name" in (
        capsys.readouterr().err)


@pytest.mark.parametrize(("line", "wanted"), [
    ("gtensor tr", {"train"}), ("gtensor train di", {"digits", "diffusion"}),
    ("gtensor train mi", {"mine.py"}), ("gtensor train digits --ep", {"--epochs"}),
    ("gtensor train digits --lr 3 --norm ", {"abn", "inplace"}),
    ("gtensor train nothing --ep", set()), ("gtensor profile --by ph", {"phase"}),
])
def test_a_shell_completes_commands_recipes_and_their_options(tmp_path, line, wanted):
    pytest.importorskip("argcomplete")
    (tmp_path / "mine.py").write_bytes(b"")
    (tmp_path / "found").write_bytes(b"")
    command = [sys.executable, "-m", "gtensor"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env={
        **os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line,
        "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "found")})
    assert done.returncode == 0, done.stderr
    assert {word.strip() for word in (tmp_path / "found").read_text().split("\n")} - {""} == wanted


@pytest.mark.parametrize(("columns", "command"), [
    *product(["60", "72"], [[], ["train"], ["sample"], ["launch"], ["memory"], ["profile"]]),
    *product(["40", "72"], [["train", "digits"]])])
def test_help_fits_a_narrow_terminal(monkeypatch, capsys, columns, command):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    free = [line for line in lines if "gtensor" not in line and "[--" not in line]
    assert max(map(len, free)) <= int(columns)  # of usages argparse breaks what it can
    recipes = [at for at, line in enumerate(lines) if line.startswith("  text  ")]
    assert len(recipes) == (command == ["train"])
    for at in recipes:  # the second column goes on below itself
        assert lines[at + 1][:13].isspace() and lines[at + 1][13] != " " == lines[at][12]


def test_no_command_is_misuse_and_prints_the_help(capsys):
    assert main([]) == 2
    assert "gtensor train digits" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error():
    process = subprocess.Popen([sys.executable, "-m", "gtensor", "info", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # before anything is written, as `head` may
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
