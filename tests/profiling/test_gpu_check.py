"""profiling/gpu_check.sh as far as it goes without a GPU; its kernel program on the CPU."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from gtensor.testing import TOLERANCES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "profiling" / "gpu_check.sh"
PROGRAM = ROOT / "profiling" / "touch_kernels.py"
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


def touch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAM), *arguments], env=NO_GPU, text=True,
                          capture_output=True, timeout=120)


def test_the_kernel_program_runs_every_op_on_the_cpu() -> None:
    call = touch("--device", "cpu", "--dtypes", "float32")
    assert call.returncode == 0, call.stdout + call.stderr
    assert re.search(r"^[1-9]\d+ run on cpu, 0 failed", call.stdout, re.MULTILINE)


FAULT = """
import runpy, sys
import gtensor
from gtensor.engine.op import registry

calls = []

def wrong(x, out=None, right=registry["tanh"].cpu):
    calls.append(0)
    return right(x, out=out) * (1.01 if len(calls) % 2 else 1.0)

registry["tanh"].cpu = wrong
program = sys.argv[1]
sys.argv[1:] = ["--device", "cpu", "--only", "tanh,exp", "--dtypes", "float64"]
runpy.run_path(program, run_name="__main__")
"""


def test_the_kernel_program_names_what_failed(tmp_path: Path) -> None:
    call = subprocess.run([sys.executable, "-c", FAULT, str(PROGRAM)], env=NO_GPU, cwd=tmp_path,
                          text=True, capture_output=True, timeout=60)
    assert call.returncode == 1, call.stdout + call.stderr
    assert "FAILED tanh: CheckError: sample 0, float64: the value" in call.stdout
    assert "2 run on cpu, 1 failed" in call.stdout


@pytest.mark.host_cuda  # on a GPU it is a step of the script
@pytest.mark.parametrize("dtype", [dtype.name for dtype in TOLERANCES])
def test_the_kernel_program_launches_every_kernel(dtype: str) -> None:
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    call = subprocess.run([sys.executable, str(PROGRAM), "--dtypes", dtype],
                          env={**os.environ, "PYTHONPATH": path}, text=True, capture_output=True)
    assert call.returncode == 0, call.stdout + call.stderr
    assert re.search(r"^[1-9]\d+ run on cuda, 0 failed; (\d+) of \1 kernels launched$",
                     call.stdout, re.MULTILINE)


def test_a_kernel_that_was_not_launched_fails_a_complete_run(
    capsys: pytest.CaptureFixture[str]
) -> None:
    program = runpy.run_path(str(PROGRAM))
    found = program["Outcome"](ran=["a"], launched={"a.cu: one"}, known={"a.cu: one", "a.cu: two"})
    assert program["report"](found, "cuda", complete=False) == 0
    assert program["report"](found, "cuda", complete=True) == 1
    assert "never launched: a.cu: two\n" in capsys.readouterr().out


def test_the_kernel_program_without_a_gpu() -> None:
    call = touch()
    assert (call.returncode, call.stdout) == (2, "")
    assert call.stderr == "no CUDA device on this machine; nothing was launched\n"


def test_the_kernel_program_refuses_unknown_names() -> None:
    call = touch("--device", "cpu", "--only", "tanh,nothing")
    assert call.returncode == 1 and call.stderr.startswith("nothing given; wanted some of ")
    assert touch("--device", "cpu", "--dtypes", "int8").returncode == 2
