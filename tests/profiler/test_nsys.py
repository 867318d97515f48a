"""Sessions of nsys, with a program in its place that records how it is called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from gtensor.cli import main
from gtensor.cli.nsys import session
from gtensor.profiler.nsys.sessions import REPORTS
from gtensor.profiler.nsys.tables import NO_RANGES
from gtensor.train import UserError
from tests.profiler.nsys_files import Task, a_step, write

pytestmark = pytest.mark.thorough  # each test starts some programs

FAKE = """#!{python}
import json, os, shutil, subprocess, sys
folder = os.path.dirname(os.path.abspath(__file__))
facts = json.load(open(folder + "/facts.json"))
what, *words = sys.argv[1:]
with open(folder + "/calls.txt", "a") as log:
    print(json.dumps([what, words, {{name: value for name, value in os.environ.items()
                                     if name.startswith("GTENSOR_")}}]), file=log)
output = next((word.split("=", 1)[1] for word in words if word.startswith("--output=")), "")
if what == "--version":
    print("NVIDIA Nsight Systems version", facts["version"])
elif what == "profile":
    program = subprocess.Popen([word for word in words if not word.startswith("--")])
    try:
        status = program.wait()
    except KeyboardInterrupt:
        program.wait()
        status = 130
    if facts["report"]:
        with open(output.replace("%%", "%") + ".nsys-rep", "w") as report:
            report.write("a report")
    sys.exit(status)
elif what == "export":
    if facts["export"] is None:
        sys.exit("the importer\\nwas \\x1b[31mnot found")
    shutil.copy(facts["export"], output)
elif what == "stats":
    print("statistics of", os.path.basename(words[-1]))
"""


class Nsys:
    """The program in nsys's place, on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = {"version": "2025.1.2.3-2025v0", "report": True,
                      "export": str(a_step(folder / "step.sqlite"))}
        path = folder / "nsys"
        path.write_text(FAKE.format(python=sys.executable))
        path.chmod(0o755)
        self.set()

    def set(self, **facts: Any) -> None:
        """What it answers."""
        (self.folder / "facts.json").write_text(json.dumps(self.facts | facts))

    def calls(self) -> list[tuple[str, list[str], dict[str, str]]]:
        """What it was called with: command, words, variables of gtensor."""
        log = self.folder / "calls.txt"
        return [tuple(json.loads(line)) for line in log.read_text().splitlines()] if (
            log.exists()) else []


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nsys:
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("NVTX_DISABLE", *(name for name in os.environ if name.startswith("GTENSOR_"))):
        monkeypatch.delenv(name, raising=False)
    Path("program.py").write_text("import sys; print('ran', *sys.argv[1:]); "
                                  "sys.exit(int(sys.argv[1]))")
    return Nsys(tmp_path / "bin")


def test_a_session(nsys: Nsys, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert session(["--", "python", "program.py", "0", "--lr", "1"], None, (5, 7)) == 0
    (_, _, _), (what, words, variables), export, stats = nsys.calls()
    temporary = next(word for word in words if word.startswith("--output="))
    assert [what, *words] == [
        "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none",
        "--capture-range=nvtx", "--nvtx-capture=steps@gtensor", "--capture-range-end=stop",
        temporary, sys.executable, "program.py", "0", "--lr", "1"]
    assert variables == {"GTENSOR_NVTX": "1", "GTENSOR_CAPTURE_AFTER": "5",
                         "GTENSOR_CAPTURE_STEPS": "7"}
    assert export[1][:2] == ["--type=sqlite", "--quiet=true"]
    assert export[1][3] == "runs/nsys/session.nsys-rep"
    assert stats[1] == ["--quiet", f"--report={','.join(REPORTS)}", "runs/nsys/session.sqlite"]
    said = capfd.readouterr().out
    places = [said.index(text) for text in (
        "ran 0", "statistics of session.sqlite", "captured steps", "Kernels by op",
        "Open runs/nsys/session.nsys-rep in nsys-ui")]
    assert places == sorted(places)
    assert sorted(path.name for path in Path("runs/nsys").iterdir()) == [
        "session.nsys-rep", "session.sqlite"]  # and nothing temporary
    assert Path("runs/nsys/session.nsys-rep").read_text() == "a report"


def test_the_command(nsys: Nsys, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--nsys", "--steps", "2:3", "--out", "x", "--", "python", "program.py",
                 "6", "--steps", "9"]) == 6
    assert nsys.calls()[1][1][-4:] == ["program.py", "6", "--steps", "9"]
    assert nsys.calls()[1][2]["GTENSOR_CAPTURE_STEPS"] == "3"
    assert "Kernels by op" in capfd.readouterr().out
    assert main(["profile", "--most", "1", "x/session.sqlite"]) == 0
    assert "5 more" in capfd.readouterr().out
    assert main(["profile", "y.sqlite"]) == 1
    assert capfd.readouterr().err == "gtensor: there is no file y.sqlite\n"


def test_steps_that_are_not_given_and_a_name_like_a_pattern(nsys: Nsys) -> None:
    assert session(["python", "program.py", "0"], Path("a%b"), None) == 0
    assert nsys.calls()[1][2] == {"GTENSOR_NVTX": "1", "GTENSOR_CAPTURE_AFTER": "10",
                                  "GTENSOR_CAPTURE_STEPS": "20"}
    assert Path("a%b/session.nsys-rep").exists() and Path("a%b/session.sqlite").exists()


def test_shapes_stay_asked_for(nsys: Nsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GTENSOR_NVTX", "2")
    assert session(["python", "program.py", "0"], None, None) == 0
    assert nsys.calls()[1][2]["GTENSOR_NVTX"] == "2"


def test_a_program_that_fails_has_its_status_and_its_tables(
        nsys: Nsys, capfd: pytest.CaptureFixture[str]) -> None:
    assert session(["python", "program.py", "3"], None, None) == 3
    assert "Kernels by op" in capfd.readouterr().out
    nsys.set(report=False)
    assert session(["python", "program.py", "4"], None, None) == 4
    assert capfd.readouterr().err == (
        "gtensor: the program ended with exit status 4, and nsys wrote no report: it records when "
        "10 optimizer steps have ended, which the program did not reach, or no range reached nsys; "
        "wanted more steps, or a smaller number in front of --steps FIRST:COUNT\n")


def test_ctrl_c_ends_the_program_and_shows_what_was_recorded(nsys: Nsys) -> None:
    Path("endless.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    run = ("import sys; from gtensor.cli.nsys import session; "
           "sys.exit(session(sys.argv[1:], None, None))")
    process = subprocess.Popen([sys.executable, "-c", run, "python", "endless.py"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 130 and "Kernels by op" in said


def test_ctrl_c_does_not_lose_a_status_that_is_just_there(
        nsys: Nsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def waitpid(process: int, options: int, wait: Any = os.waitpid) -> tuple[int, int]:
        found = wait(process, options)
        if found[1]:
            signal.raise_signal(signal.SIGINT)
        return found

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(os, "waitpid", waitpid)
    monkeypatch.setattr(signal, "default_int_handler", before)  # whatever runs the tests has one
    assert session(["python", "program.py", "7"], None, None) == 7
    assert signal.getsignal(signal.SIGINT) is before


def test_an_old_report_is_not_taken_for_a_new_one(nsys: Nsys) -> None:
    Path("runs/nsys").mkdir(parents=True)
    Path("runs/nsys/session.nsys-rep").write_text("of yesterday")
    nsys.set(report=False)
    with pytest.raises(UserError, match="^nsys wrote no report: it records when 3 optimizer"):
        session(["python", "program.py", "0"], None, (3, 4))
    assert Path("runs/nsys/session.nsys-rep").read_text() == "of yesterday"


def test_a_report_without_ranges_is_shown_and_fails(
        nsys: Nsys, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nsys.set(export=str(write(tmp_path / "kernels.sqlite", work=[Task("k", 0, 9, 1)])))
    assert session(["python", "program.py", "0"], None, None) == 1
    assert NO_RANGES in capfd.readouterr().out
    assert session(["python", "program.py", "5"], None, None) == 5


def test_a_report_that_cannot_be_exported_is_kept(nsys: Nsys) -> None:
    nsys.set(export=None)
    with pytest.raises(UserError) as error:
        session(["python", "program.py", "0"], None, None)
    assert str(error.value) == ("nsys could not export the report runs/nsys/session.nsys-rep, "
                                "which is kept: was ?[31mnot found")
    assert [path.name for path in Path("runs/nsys").iterdir()] == ["session.nsys-rep"]


@pytest.mark.parametrize("version,nvtx,sentence", [
    ("2023.4.4.54-234433681190v0", "0.2.17", r"nsys 2023\.4\.4\.54 \(.*bin/nsys\) and nvtx "
     r"0\.2\.17 do not talk: .* no range is recorded; wanted a newer nsys"),
    ("2025.1", "0.2.11", r"nvtx 0\.2\.11 is installed, which cannot write gtensor's ranges; wanted "
     r"0\.2\.14 or newer"),
])
def test_versions_that_do_not_talk_are_told_before_anything_is_run(
        version: str, nvtx: str, sentence: str, nsys: Nsys,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"nvtx": nvtx}.__getitem__)
    nsys.set(version=version)
    with pytest.raises(UserError, match=sentence):
        session(["python", "program.py", "0"], None, None)
    assert not any(call[0] == "profile" for call in nsys.calls())


def test_an_nsys_that_does_not_say_its_version_is_tried(nsys: Nsys) -> None:
    nsys.set(version="of a name")
    assert session(["python", "program.py", "0"], None, None) == 0


def test_what_is_missing_is_one_sentence(nsys: Nsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(words: list[str], out: str | None = None) -> str:
        with pytest.raises(UserError) as error:
            session(words, None if out is None else Path(out), None)
        assert "\n" not in str(error.value)
        return str(error.value)

    run = ["python", "program.py", "0"]
    assert refusal([]).startswith("gtensor profile --nsys was given no command; wanted one")
    assert refusal(["--", "nonesuch"]).startswith(
        "gtensor profile --nsys was given the command 'nonesuch', which was not found")
    assert refusal(["python", "absent.py"]) == (
        "there is no script absent.py; wanted the path of one")
    Path("folder/session.sqlite").mkdir(parents=True)
    assert "session.sqlite could not be written: it is a folder" in refusal(run, "folder")
    assert refusal(run, "program.py") == (
        "program.py/session.nsys-rep could not be written: File exists ('program.py')")
    monkeypatch.setenv("NVTX_DISABLE", "0")
    assert refusal(run).startswith("NVTX_DISABLE is set, which stops all ranges; unset it")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert refusal(run) == (
        "gtensor profile --nsys needs nsys of Nsight Systems 2024 or newer, which is not on the "
        "PATH; it is at https://developer.nvidia.com/nsight-systems, and in the CUDA toolkit")
    assert not any(call[0] == "profile" for call in nsys.calls())


def test_the_script_runs_a_recipe(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "profiling" / "nsys.sh"
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; exit 3\n')
    python.chmod(0o755)

    def run(*words: str, **variables: str) -> tuple[int, list[str]]:
        done = subprocess.run([script, *words], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHON": str(python), **variables})
        return done.returncode, done.stdout.splitlines()

    status, words = run("digits", "--device", "cuda")
    folder = words.pop(words.index("--out", 8) + 1)
    assert status == 3 and not Path(folder).parent.exists()
    assert words == ["-m", "gtensor", "profile", "--nsys", "--steps", "3:16", "--out",
                     "runs/nsys-digits", "--", "gtensor", "train", "digits", "--epochs", "1",
                     "--out", "--device", "cuda"]
    assert run("text", STEPS="5:1", OUT="a b")[1][4:8] == ["--steps", "5:1", "--out", "a b"]
    assert run("--help")[0] == 0 and run()[0] == 64
    assert run("-h")[1][0].startswith("Records steps of a recipe's training")
