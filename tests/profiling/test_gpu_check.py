"""profiling/gpu_check.sh as far as it goes without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "profiling" / "gpu_check.sh"
LIMIT = 540  # seconds for one call
MOST_FILES = 8
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHON": sys.executable,
          "PYTHONPATH": str(ROOT)}


def joined() -> str:
    """The script with continued lines joined."""
    return SCRIPT.read_text().replace("\\\n", " ")


def steps() -> list[tuple[str, int, str]]:
    """Name, seconds and log of every step."""
    found = re.findall(r"^\s*step (\w+) (\d+) (\S+) ", joined(), re.MULTILINE)
    return [(name, int(seconds), log) for name, seconds, log in found]


def constant(name: str) -> int:
    found = re.search(rf"^readonly {name}=(\d+)", SCRIPT.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("arguments", [[], ["out"], ["out", "more"]])
def test_without_a_gpu_it_says_so_and_does_nothing(arguments: list[str], tmp_path: Path) -> None:
    call = subprocess.run([str(SCRIPT), *arguments], env=NO_GPU, cwd=tmp_path, text=True,
                          capture_output=True, timeout=60)
    assert call.returncode == 2
    assert call.stderr == "gpu_check: no CUDA device on this machine; nothing was run\n"
    assert call.stdout == "" and list(tmp_path.iterdir()) == []


def test_the_script_parses() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)


def test_every_step_has_a_timeout_and_all_of_them_fit() -> None:
    lines = [line for line in joined().splitlines() if re.match(r"\s*step\b(?!\(\))", line)]
    found = steps()
    assert len(found) == len(lines) >= 9, "each step: a name, seconds, a log"
    assert len({name for name, _, _ in found}) == len(found)
    # The one place where a step's command is started, and the probe, run under timeout.
    assert joined().count('timeout -k "$GRACE" "$seconds" "$@"') == 1
    grace = constant("GRACE")
    always, parts = parts_of_the_script()
    for part, names in parts.items():
        total = constant("PROBE") + grace + sum(
            seconds + grace for name, seconds, _ in found if name in names | always)
        assert total < LIMIT, f"{part} may take {total} s; wanted less than {LIMIT}"


def parts_of_the_script() -> tuple[set[str], dict[str, set[str]]]:
    """The steps that every call runs, and those of each part."""
    before, *rest = re.split(r"if \[\[ \$PART =~ \^\(all\|(\w+)\)\$ \]\]; then", joined())
    names = [set(re.findall(r"step (\w+) \d+ ", text)) for text in (before, *rest[1::2])]
    return names[0], dict(zip(rest[::2], names[1:], strict=True))


def test_each_part_runs_its_steps_and_no_other() -> None:
    always, parts = parts_of_the_script()
    assert always == {"environment"}
    assert list(parts) == ["checks", "memory", "ladders"]
    assert "kernels" in parts["checks"] and "ladder_bn_act" in parts["memory"]
    ladders = parts["memory"] | parts["ladders"]
    assert not parts["memory"] & parts["ladders"]
    assert {name for name, _, _ in steps() if name.startswith("ladder")} == ladders


def test_it_leaves_few_files_with_plain_names() -> None:
    logs = {log for _, _, log in steps()} | {"ladders.json", "summary.txt"}
    written = set(re.findall(r'"\$OUT/([^"$]+)"', joined()))
    assert written <= logs and len(logs) <= MOST_FILES
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in logs)
    assert constant("LOG_BYTES") < 16 << 20


def test_every_ladder_has_its_step() -> None:
    for program in (ROOT / "profiling").glob("ladder*.py"):
        if program.stem not in ("ladder_command", "ladder_distributed"):  # of processes on CPUs
            assert f"profiling/{program.name} --device cuda" in joined(), (
                f"{program.name} has no step in gpu_check.sh; add one, within its {LIMIT} s")
