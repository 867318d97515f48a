"""Names of other libraries: each alias leads somewhere, each other name gets a sentence."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import re
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.composed import typed_names
from gtensor.engine.handle import foreign_methods
from gtensor.engine.handle.methods import Methods
from gtensor.system.foreign_names import ALIASES, SENTENCES

CLASSES = {"gtensor.Tensor": gt.ones(2), "gtensor.nn.Module": gt.nn.Identity()}
ROOMS = sorted({*ALIASES, *SENTENCES} - {*CLASSES})


def room_of(name: str) -> Any:
    """The room itself: a module, or an instance of a class."""
    return CLASSES[name] if name in CLASSES else import_module(name)


@pytest.mark.parametrize(("room", "name"), [
    (room, name) for room, names in ALIASES.items() for name in names])
def test_an_alias_leads_to_what_is_there(room: str, name: str) -> None:
    assert name not in SENTENCES.get(room, {})
    assert name not in getattr(room_of(room), "__all__", ())
    assert getattr(room_of(room), name) is not None


@pytest.mark.parametrize(("room", "name"), [
    (room, name) for room, names in SENTENCES.items() for name in names])
def test_a_name_that_is_no_alias_is_answered_with_what_to_type(room: str, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; here: ") as caught:
        getattr(room_of(room), name)
    assert str(caught.value).endswith(SENTENCES[room][name])


@pytest.mark.parametrize("room", SENTENCES)
def test_what_a_sentence_names_is_there(room: str) -> None:
    """The first word of a sentence's calls: `gt.checkpoint.load_file`, `F.one_hot`, `x.flatten`."""
    starts = {"gt": gt, "F": gt.nn.functional, "x": gt.ones((2, 3), "complex64"), "nn": gt.nn}
    for name, sentence in SENTENCES[room].items():
        for start, path in re.findall(r"(?<![\w.])(gt|F|x|nn)\.([a-zA-Z][\w.]*\w)", sentence):
            assert attrgetter(path)(starts[start]) is not None, f"{name}: {sentence}"


def code(room: str, name: str) -> str:
    """A sentence's call: its text up to the prose."""
    return re.split(r", with | counts | are n parts| orders |, which ", SENTENCES[room][name])[0]


def test_sentences_give_the_values_of_the_functions_that_they_stand_for(
    rng: np.random.Generator
) -> None:
    edges, x = np.array([0.0, 1.0, 2.0]), np.array([-1.0, 0.0, 0.5, 1.0, 1.0, 1.5, 7.0])
    for room, name in (("gtensor", "histc"), ("gtensor.Tensor", "histc")):
        found = eval(code(room, name), {"gt": gt, "x": gt.tensor(x), "edges": gt.tensor(edges)})
        assert found.tolist() == np.histogram(x, edges)[0].tolist()
    for name in ("array_split", "tensor_split"):
        parts = eval(code("gtensor", name), {"x": gt.arange(5), "n": 4})
        assert sorted(map(len, parts)) == sorted(map(len, np.array_split(np.arange(5), 4)))


@pytest.mark.parametrize("room", ROOMS)
def test_a_typing_slip_is_answered_with_the_nearest_name(room: str) -> None:
    """In every room, so every room asks the one place."""
    name = max((n for n in import_module(room).__all__ if n[0] != "_"), key=len)
    found = name.rstrip("_")  # of nn.init the name without its _ is an alias
    with pytest.raises(AttributeError, match=rf"module '{room}' has no .*; did you mean '{found}"):
        getattr(import_module(room), name[:-2])


def test_the_nearest_name_of_a_tensor_is_its_own_or_an_alias() -> None:
    with pytest.raises(AttributeError, match=r"a Tensor has no .* 'reshap'; did you mean 'reshape"):
        gt.ones(2).reshap(2)
    with pytest.raises(AttributeError, match="'veiw'; did you mean 'view'"):
        gt.ones(2).veiw(2)
    with pytest.raises(AttributeError, match="no attribute 'qqq'$"):
        gt.ones(2).qqq  # noqa: B018


def test_an_alias_is_found_once_and_then_is_there() -> None:
    vars(gt).pop("concatenate", None)
    assert gt.concatenate is gt.concat and vars(gt)["concatenate"] is gt.concat
    assert gt.ones(2).clamp(0, 1).tolist() == [1.0, 1.0] and "clamp" in vars(Methods)


def test_type_checkers_and_editors_are_shown_every_alias() -> None:
    for name in ALIASES["gtensor"]:
        shown, made = (inspect.unwrap(getattr(room, name)) for room in (typed_names, gt))
        assert shown is made, name
    [declared] = [node for node in ast.parse(inspect.getsource(foreign_methods)).body
                  if isinstance(node, ast.ClassDef)]
    names = [node.name for node in ast.walk(declared) if isinstance(node, ast.FunctionDef)]
    assert sorted(names) == sorted(ALIASES["gtensor.Tensor"])


@pytest.mark.parametrize("room", [
    room for room, names in ALIASES.items() if names and room not in ("gtensor", *CLASSES)])
def test_type_checkers_are_shown_the_aliases_of_every_room(room: str) -> None:
    shown = {name.asname or name.name if isinstance(name, ast.alias) else name.id
             for block in ast.parse(inspect.getsource(import_module(room))).body
             if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
             for part in block.body for name in ast.walk(part)
             if isinstance(name, ast.alias | ast.Name)}
    assert not ALIASES[room].keys() - shown


def test_asking_for_a_name_that_is_none_imports_nothing_but_the_table() -> None:
    """Nor `difflib`, which only the sentence needs; the table is not there before it is needed."""
    found = json.loads(subprocess.run([sys.executable, "-c", (
        "import json, sys, gtensor as gt\n"
        "first = 'gtensor.system.foreign_names' in sys.modules\n"
        "x, before = gt.ones(2), {*sys.modules}\n"
        "there = [hasattr(gt, 'compile'), hasattr(gt, 'summ'), hasattr(gt.linalg, 'chol'),"
        " hasattr(x, 'sort'), hasattr(x, '__array_struct__'), hasattr(x, 'summ')]\n"
        "print(json.dumps([first, there, sorted({*sys.modules} - before)]))")],
        capture_output=True, text=True, check=True).stdout)
    assert found == [False, [False] * 6, ["gtensor.system.foreign_names"]]


def test_the_error_can_be_sent_to_another_process() -> None:
    with pytest.raises(AttributeError) as caught:
        gt.summ  # noqa: B018
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and isinstance(again, AttributeError)
