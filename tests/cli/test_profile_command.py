"""`gtensor profile` as a user meets it."""

from __future__ import annotations

import os

import pytest

from gtensor.cli import main
from gtensor.profiler import Profile

STEPS = """
import sys
import beside
import gtensor as gt

w = gt.ones(3, requires_grad=True)
optimizer = gt.optim.SGD([w], lr=0.1)
for step in range(4):
    (w * w).sum().backward()  # the user's line
    optimizer.step()
    beside.done.append(step)
print("arguments", sys.argv[1:], __name__)
"""
FILES = {"profile.html", "profile.json", "trace.json.gz", "flame.png", "roofline.png"}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """The working folder, with a program and a module beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delitem(__import__("sys").modules, "beside", raising=False)
    (tmp_path / "stepping.py").write_text(STEPS)
    (tmp_path / "beside.py").write_text("done = []\n")


def counted(folder):
    """How often each op was recorded in a saved profile."""
    names = [f"{span.name} {span.phase}" for span in Profile.load(f"{folder}/profile.json").spans
             if span.kind == "op"]
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize("words", [["stepping.py"], ["-m", "stepping"], ["--", "stepping.py"]])
def test_a_program_runs_as_python_runs_it(words, capsys, tmp_path):
    assert main(["profile", *words, "--out", "theirs", "-x"]) == 0
    out = capsys.readouterr().out
    assert "arguments ['--out', 'theirs', '-x'] __main__" in out
    assert "multiply forward" in out and "Wrote runs/profile-stepping/profile.html" in out
    assert {path.name for path in (tmp_path / "runs/profile-stepping").iterdir()} == FILES
    assert counted("runs/profile-stepping")["multiply forward"] == 4
    lines = {span.source for span in Profile.load("runs/profile-stepping/profile.json").spans}
    assert any("the user's line" in line for line in lines)


@pytest.mark.parametrize(("words", "told"), [
    (["stepping.py", "--lr", "1", "--by", "line", "--most", "3"], "is given --by, --most, as what"),
    (["--", "stepping.py", "--by", "line"], ""), (["stepping.py", "--by", "letter"], ""),
    (["stepping.py", "--out", "x", "--steps", "3"], "")])
def test_options_of_the_command_behind_a_program_are_told_to_be_its_own(words, told, capsys):
    assert main(["profile", *words]) == 0
    err = capsys.readouterr().err
    assert told in err and bool(told) == bool(err)


def test_some_steps_after_others(capsys):
    assert main(["profile", "--steps", "1:2", "--out", "x", "stepping.py"]) == 0
    found = counted("x")
    assert [found[name] for name in ("multiply forward", "sum backward", "sgd update")] == [2, 2, 2]


@pytest.mark.parametrize(("end", "status", "told"), [
    ("raise ValueError('planted')", 1, "ValueError: planted"), ("sys.exit(3)", 3, ""),
    ("sys.exit('planted')", 1, "planted\n"), ("raise KeyboardInterrupt", 130, "interrupted")])
def test_a_program_that_fails_leaves_its_profile_and_its_status(end, status, told, capsys):
    with open("stepping.py", "a") as file:
        file.write(end + "\n")
    assert main(["profile", "--out", "x", "stepping.py"]) == status
    err = capsys.readouterr().err
    assert told in err and "runpy" not in err and "cli/profile.py" not in err
    assert counted("x")["sgd update"] == 4


def test_a_program_may_change_its_folder_and_close_its_stdout(capsys, tmp_path):
    (tmp_path / "other").mkdir()
    with open("stepping.py", "a") as file:
        file.write("import os\nos.chdir('other')\nsys.stdout = open('theirs', 'w')\n"
                   "sys.stdout.close()\n")
    assert main(["profile", "stepping.py"]) == 0
    assert "4 steps took" in capsys.readouterr().out
    assert (tmp_path / "runs/profile-stepping/profile.html").exists()


def test_a_recipe_is_profiled_without_a_run(capsys, tmp_path):
    assert main(["profile", "--steps", "1:2", "--recipe", "digits", "--batch-size", "8",
                 "--by", "line", "--out", "x/y"]) == 0  # options of the command, before and after
    out = capsys.readouterr().out
    assert "gtensor/train/digits.py:" in out and counted("x/y")["adam update"] == 2
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"y"}
    with pytest.raises(SystemExit):
        main(["profile", "--recipe", "digits", "--compare"])
    assert "--recipe digits: error: unrecognized arguments: --compare" in capsys.readouterr().err


def test_saved_profiles_are_shown_and_compared(capsys):
    for folder, steps in (("before", "0:1"), ("after", "0:3")):
        main(["profile", "--steps", steps, "--out", folder, "stepping.py"])
    capsys.readouterr()
    assert main(["profile", "--most", "1", "before"]) == 0
    assert main(["profile", "after/profile.json", "--by", "phase"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("6 ops of 1 step took") and "5 more" in out and "update " in out
    for words in (["--compare", "before", "after/profile.json", "--by", "op"],
                  ["before", "--most", "3", "after", "--compare"]):
        assert main(["profile", *words]) == 0
        assert "1 > 3" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "sentence"), [
    ([], "nothing to profile was given; wanted a script"),
    (["none.py"], "there is no script none.py; wanted a Python program"),
    (["-m", "none.such"], "there is no module none.such; wanted one that python -m can run"),
    (["--recipe", "letters"], "unknown recipe 'letters'; wanted one of digits"),
    (["--recipe", "digits", "--lr", "0"], "--lr 0.0 given; wanted more than 0"),
    (["--recipe", "digits", "--epochs", "0"], "--epochs 0 given; wanted more than 0"),
    (["--steps", "9:999", "--recipe", "digits"], "--steps 9:999 given for digits; wanted at most"),
    (["--steps", "9:9", "stepping.py"], "no op of gtensor ran in stepping.py after 9 updates of"),
    (["beside.py"], "no op of gtensor ran in beside.py, so there is no profile"),
    (["--compare", "a.json"], "a.json given; wanted two profiles, before and after"),
    (["bad.json", "b.json", "--by", "line"], "bad.json b.json given; wanted one file"),
    (["folder"], "folder is a folder without profile.json or __main__.py; wanted one of a profile"),
    (["--compare", "a.json", "b.json"], "there is no file a.json"),
    (["bad.json"], "bad.json is no profile, or a truncated one"),
])
def test_mistakes_get_one_sentence(words, sentence, capsys):
    with open("bad.json", "w") as file:
        file.write('{"format": "gtensor profile 1", "seconds"')
    os.mkdir("folder")
    assert main(["profile", *words]) == 1
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1
    assert not os.path.exists("runs") or not os.listdir("runs")


def test_a_folder_that_cannot_be_written_is_told_before_the_program_runs(capsys):
    with open("file", "w"):
        pass
    assert main(["profile", "--out", "file/x", "stepping.py"]) == 1
    told = capsys.readouterr()
    assert "could not be written" in told.err and "arguments" not in told.out


def test_steps_that_are_no_steps_are_misuse(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["profile", "--steps", "5", "stepping.py"])
    assert stop.value.code == 2
    assert "'5' given; wanted FIRST:COUNT, such as 5:20" in capsys.readouterr().err
