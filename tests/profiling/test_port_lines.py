"""The counter of statements that a port changes."""

from __future__ import annotations

from pathlib import Path

import port_lines
import pytest

ORIGINAL = '''
import torch

def step(x):
    """Words."""
    if x.is_cuda:
        x = x.view(-1)
    try:
        return x.repeat(2)
    except ValueError:
        return x
'''


@pytest.mark.parametrize(("old", "new", "differ"), [
    ("import torch", "import gtensor as torch", 0),
    ("Words.", "Other words.", 0),
    ("x.view(-1)", "x.reshape(-1)", 1),
    ("if x.is_cuda:", "if x.device == 'cuda':", 1),  # its first line, not what is inside
    ("        return x\n", "        x = x + 1\n        return x\n", 1),
])
def test_statements_are_counted_once(
    old: str, new: str, differ: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(ORIGINAL)
    (tmp_path / "model_gtensor.py").write_text(ORIGINAL.replace(old, new))
    assert port_lines.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [
        "model.py", str(differ), "of", "7", "statements", "differ"]


def test_a_folder_without_ports_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(ORIGINAL)
    assert port_lines.main([str(tmp_path)]) == 2
    assert "wanted ports beside programs" in capsys.readouterr().err
