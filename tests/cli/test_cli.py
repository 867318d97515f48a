"""The command as a user meets it."""

from __future__ import annotations

import json

import pytest

from gtensor.cli import main


def test_info_names_devices_versions_and_what_is_missing(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("devices", "cpu", "numpy", "GTENSOR_ARENA_MIN_BYTES", "CUDA text"):
        assert word in out


def test_info_as_json(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"][0]["name"] == "cpu" and found["packages"]["numpy"]
    assert "softmax.cu" in found["cuda"]["files"]


@pytest.mark.parametrize("arguments,sentence", [
    (["train", "letters"], "unknown recipe 'letters'; wanted one of digits"),
    (["train", "digits", "--epochs", "0"], "--epochs 0 given; wanted more than 0"),
    (["train", "digits", "--device", "tpu"], "device 'tpu' given"),
    (["train", "digits", "--resume", "--out", "{tmp}"], "there is no checkpoint"),
])
def test_mistakes_get_one_sentence(arguments, sentence, capsys, tmp_path):
    assert main([a.format(tmp=tmp_path) for a in arguments]) == 1
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.err.count("\n") == 1


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--resume" in out and "digits" in out and "identical" in out


def test_no_command_is_misuse(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
