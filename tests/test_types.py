"""What type checkers see of gtensor; its lists of public names are what the modules declare."""

from __future__ import annotations

import ast
import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import reference

import gtensor as gt
import gtensor.creation.dtypes
from gtensor.engine.handle.methods import Methods, functions
from gtensor.engine.tape.op import Op
from gtensor.system.foreign_names import ALIASES
from tests import op_stubs
from tests.typed import arrays, classifier, derivatives, loading, measuring, networks, training
from tests.typed.mistakes import BEFORE, MISTAKES, PROGRAM

ROOT = Path(__file__).resolve().parents[1]
TYPED = ROOT / "tests" / "typed"
MODULES = [gt, gt.linalg, gt.fft, gt.random, gt.special, gt.memory, gt.nn, gt.nn.functional,
           gt.nn.init, gt.nn.utils, gt.optim, gt.optim.lr_scheduler, gt.data, gt.checkpoint,
           gt.profiler, gt.testing, gt.train]


def mypy(*files: Path) -> list[str]:
    """What mypy --strict says of a user's files, line by line; gtensor itself is not reported on.

    It keeps what it found beside that of `make style`, which has other options.
    """
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=",
         "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache" / "strict"),
         *map(str, files)],
        capture_output=True, text=True, cwd=files[0].parent,
        env={**os.environ, "MYPYPATH": str(ROOT)})
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_mypy_sees_every_public_name(tmp_path: Path) -> None:
    """A name whose type it does not know is Any: every use of it would pass."""
    names = [f"{module.__name__}.{name}" for module in MODULES for name in public_names(module)]
    names += [f"{room}.{name}" for room, found in ALIASES.items() for name in found
              if room != "gtensor.Tensor"]
    names += [f"gtensor.ones(2).{name}" for name in ALIASES["gtensor.Tensor"]]
    revealed = tmp_path / "names.py"
    revealed.write_text("import gtensor\n" + "".join(f"reveal_type({name})\n" for name in names))
    said = mypy(revealed)
    unknown = [line for line in said if "Revealed type is" not in line or 'is "Any"' in line]
    assert len(said) == len(names) > 400 and not unknown


def public_names(module: ModuleType) -> list[str]:
    """Those of its `__all__`, or those it defines."""
    defined = [name for name, value in vars(module).items()
               if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", defined))


@pytest.mark.thorough
def test_mypy_accepts_the_programs_of_users_and_finds_their_mistakes(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(PROGRAM + "gt.TYPE_CHECKING\n")
    said = [re.fullmatch(r"(.*?)(\d+): error: (.*)", line)
            for line in mypy(planted, *sorted(TYPED.glob("*.py"))) if ": note: " not in line]
    found: dict[int, str] = {}
    for match in said:
        assert match and match[1].endswith("planted.py:"), match
        found.setdefault(int(match[2]), match[3])
    unlisted = found.pop(PROGRAM.count("\n") + 1)
    assert 'does not explicitly export attribute "TYPE_CHECKING"' in unlisted
    first = BEFORE.count("\n") + 1
    assert len(MISTAKES) == 43 and [*found] == [*range(first, first + 43)]
    for sentence, (mistake, wanted) in zip(found.values(), MISTAKES.items(), strict=True):
        assert wanted in sentence, mistake


@pytest.mark.thorough
def test_the_programs_of_users_run(tmp_path: Path) -> None:
    net = classifier.Classifier(8)
    assert classifier.train(net, tmp_path) > 0
    assert classifier.look(net) >= 0
    for program in (arrays, derivatives, loading, networks, training):
        program.run()
    measuring.run(tmp_path)


# -- what editors show -----------------------------------------------------------------------------


def test_the_stubs_of_ops_are_those_of_their_definitions() -> None:
    for path, text in op_stubs.stubs().items():
        assert path.read_text(encoding="utf-8") == text, "PYTHONPATH=tests python -m op_stubs"


def test_an_editor_sees_a_function_with_words_for_each_elementwise_op() -> None:
    ops = {name: op for name in gt.__all__ if isinstance(op := getattr(gt, name), Op)}
    seen = {node.name: node for path in op_stubs.stubs()
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)}
    assert len(ops) > 60 and seen.keys() == ops.keys()
    for name, op in ops.items():
        declared = [*seen[name].args.posonlyargs, *seen[name].args.kwonlyargs]
        assert [argument.arg for argument in declared] == [*inspect.signature(op).parameters]
        assert all(argument.annotation for argument in declared) and seen[name].returns
        words = " ".join((ast.get_docstring(seen[name]) or "").split())
        assert words == op.__doc__ and len(words) > 5
        printed = pydoc.plain(pydoc.render_doc(op))  # by help()
        assert f"{name}(x" in printed and "-> Tensor" in printed and op.__doc__ in printed


# -- the lists -------------------------------------------------------------------------------------


def declared_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Every name in an `__all__` that is written out in a file of the folder, and the file."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [
                node.target] if isinstance(node, ast.AnnAssign) else []
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                assert isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
                yield from ((str(name), path.stem) for name in ast.literal_eval(node.value))


def test_what_the_modules_of_ops_declare_is_public() -> None:
    """Each name once, and none that hides a family or a module."""
    declared = [name for name, _ in declared_in(ROOT / "gtensor" / "ops")]
    assert sorted(declared) == gt.ops.__all__
    assert {*declared, *gtensor.creation.dtypes.__all__} <= {*gt.__all__}
    assert len(gt.__all__) == len({*gt.__all__})
    folders = {path.stem for path in (ROOT / "gtensor" / "ops").glob("*/")}
    assert not folders & {*declared}
    assert isinstance(gt.ops.fft, ModuleType) and isinstance(gt.ops.linalg, ModuleType)


def test_dir_shows_public_names_only() -> None:
    rooms = {**reference.namespaces()}
    assert {*dir(rooms.pop("gtensor"))} == {*gt.__all__, "testing"}
    assert len(rooms) > 15
    for name, room in rooms.items():
        assert {*dir(room)} == {*room.__all__}, name


def test_the_methods_that_are_declared_take_what_their_functions_take() -> None:
    """`Methods` declares them, since it lies below `gtensor.ops`; at run time they are these."""
    declared = {node.name: node.args for node in ast.walk(ast.parse(inspect.getsource(Methods)))
                if isinstance(node, ast.FunctionDef)}
    names = [name for name, function in functions() if name == function and name in declared
             and name in gt.__all__ and inspect.isfunction(getattr(gt, name))]
    assert len(names) > 15
    for name in names:
        _, *wanted = inspect.signature(getattr(gt, name)).parameters.values()
        given = declared[name]
        by_position = [argument.arg for argument in (*given.posonlyargs, *given.args)][1:]
        assert by_position == [p.name for p in wanted if p.kind is not p.KEYWORD_ONLY], name
        assert [a.arg for a in given.kwonlyargs] == [
            p.name for p in wanted if p.kind is p.KEYWORD_ONLY and p.name != "out"], name
