"""The table of kinds, and the entrances that read it: whose error is whose."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import kinds
from gtensor.system.written_code import checked, entrance


def kind_of(annotation: str, name: str = "x", default: Any = inspect.Parameter.empty) -> kinds.Kind:
    return kinds.kind_of(inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default))


@pytest.mark.parametrize(("annotation", "fits", "others"), [
    ("Tensor", [gt.ones(2), 1.0, [[1, 2]], np.ones(2)],
     ["abc", None, [[1], [1, 2]], np.array("a")]),
    ("int | Sequence[int] | None", [1, (1, 2), None, np.int64(2)], [1.5, "a", {1}, [None]]),
    ("float", [1, 0.5, np.float32(2), gt.ones(())], ["1", 1j, None, gt.ones(2)]),
    ("Literal['a', 'b'] | None", ["a", None], ["c", 1]),
    ("Callable[[int], float] | Sequence[Callable[[int], float]]", [abs, [abs]], [1, [1]]),
    ("DTypeLike | None", [gt.float32, "int8", None], ["float33", 1.5]),
    ("Device | str | None", ["cpu", gt.device("cpu"), None], [1, ["cpu"]]),
    ("PathLike", ["a/b"], ["", "a\0b", 1]),
    ("Iterable[Tensor] | Tensor", [gt.ones(2), [gt.ones(2)], iter([])], [1.0, "a", np.ones(2)]),
    ("Something", [1, None, "a"], []),
])
def test_what_fits_an_annotation(annotation: str, fits: list[Any], others: list[Any]) -> None:
    kind = kind_of(annotation)
    assert all(map(kind.fits, fits)) and not any(map(kind.fits, others))


def test_a_probability_is_one_by_its_name_and_default() -> None:
    assert not kind_of("float", "p", 0.5).fits(1.5) and kind_of("float", "p", 2.0).fits(1.5)


def test_an_error_of_the_users_function_stays_as_it_is() -> None:
    mine = KeyError("mine")

    def loss(x: gt.Tensor) -> gt.Tensor:
        raise mine

    for call in (lambda: gt.grad(loss)(gt.ones(3)), lambda: gt.vmap(loss)(gt.ones(3)),
                 lambda: gt.func.vjp(loss, gt.ones(3))):
        with pytest.raises(KeyError) as caught:
            call()
        assert caught.value is mine


def test_the_sentence_has_the_error_as_its_cause() -> None:
    with pytest.raises(TypeError, match="mean was given axis='rows'; wanted an integer") as caught:
        gt.mean(gt.ones(3), axis="rows")
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_sentence_of_the_functions_own_and_an_unexplained_error_stay() -> None:
    @entrance
    def function(x: int, error: Any = None) -> None:
        raise error

    for error in (ValueError("function was given x; wanted another"), AttributeError("inside")):
        with pytest.raises(type(error)) as caught:
            function("abc" if isinstance(error, ValueError) else 1, error)
        assert caught.value is error
    with pytest.raises(TypeError, match="function was given x='abc'; wanted an integer"):
        function("abc", AttributeError("inside"))


def test_what_is_checked_before_changes_nothing() -> None:
    calls = []

    @checked
    def function(x: int, *more: float, flag: bool = False) -> None:
        calls.append(x)

    for given, options, told in ((("a",), {}, "x='a'; wanted an integer"),
                                 ((1, 2.0, "b"), {}, "more='b'; wanted a number"),
                                 ((1,), {"flag": np.ones(2)}, "flag=ndarray of shape")):
        with pytest.raises(TypeError, match=told):
            function(*given, **options)
    function(1, 2.0, flag=True)
    assert calls == [1]


@pytest.mark.parametrize("function", [
    gt.zeros, gt.grad, gt.fft.fft, gt.linalg.norm, gt.random.normal, gt.median, gt.logspace,
    gt.memory.stats, gt.checkpoint.save, gt.nn.init.zeros_, gt.testing.gradcheck, gt.sum])
def test_an_entrance_is_pickled_by_its_name(function: Any) -> None:
    assert pickle.loads(pickle.dumps(function)) is function


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no repr")


def test_a_value_that_cannot_be_printed_is_named_by_its_type() -> None:
    with pytest.raises(TypeError, match="in_features=Unprintable; wanted an integer"):
        gt.nn.Linear(Unprintable(), 2)
