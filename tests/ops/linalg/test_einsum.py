"""einsum against NumPy and PyTorch: every form of subscripts, gradients, paths, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from against_torch import compare
from hypothesis import given, settings
from hypothesis import strategies as st

import gtensor as gt
from gtensor.system.bus import OpEvent

CASES: dict[str, list[tuple[int, ...]]] = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "ij,jk": [(2, 3), (3, 4)],
    "ba,cb": [(2, 3), (4, 2)],
    "i,i->": [(5,), (5,)],
    "i,j->ij": [(2,), (3,)],
    "ij->ji": [(2, 3)],
    "ij->": [(2, 3)],
    "ij->j": [(2, 3)],
    "ii->i": [(3, 3)],
    "ii": [(3, 3)],
    "iji->j": [(3, 2, 3)],
    "iii->i": [(2, 2, 2)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "bij,jk->bik": [(2, 3, 4), (4, 5)],
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "bij,bj->bi": [(2, 3, 4), (2, 4)],
    "ij,ij->ij": [(2, 3), (2, 3)],
    "ij,ji->": [(2, 3), (3, 2)],
    "ij,kl->": [(2, 3), (2, 2)],
    "ij,kl->ik": [(2, 3), (2, 2)],
    "ii,ij->j": [(3, 3), (3, 2)],
    "iij,jkk->ik": [(2, 2, 3), (3, 4, 4)],
    "...ij,...jk->...ik": [(2, 1, 3, 4), (5, 4, 2)],
    "...ij,jk": [(2, 3, 4), (4, 2)],
    "...,...->...": [(2, 3), (3,)],
    "i...->...": [(2, 3, 4)],
    "i...,i...->...": [(2, 3), (2,)],
    "...->...": [(2, 3)],
    "...i,...i,...j->...": [(2, 3), (4, 1, 3), (2, 2)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
    "ij,jk,ki->": [(2, 3), (3, 4), (4, 2)],
    "i,i,i->i": [(3,), (3,), (3,)],
    "i,j,k->ijk": [(2,), (3,), (4,)],
    "ab,bc,cd,de->ae": [(2, 3), (3, 2), (2, 4), (4, 2)],
    ",ij->ij": [(), (2, 3)],
    ",": [(), ()],
    "->": [()],
    " ij , jk -> ik ": [(2, 3), (3, 4)],
    "ij,jk->ik ": [(0, 3), (3, 4)],
    "ij , jk->ik": [(2, 0), (0, 4)],
    "ij,jk ->ik": [(2, 1), (3, 4)],  # an axis of size 1 goes with any
    "Ab,bA->A": [(2, 3), (3, 2)],
}


def operands(shapes: list[tuple[int, ...]], dtype: str = "float64") -> list[np.ndarray]:
    arrays = [np.asarray(np.random.standard_normal(s)) for s in shapes]
    if dtype.startswith("complex"):
        arrays = [a + 1j * np.random.standard_normal(a.shape) for a in arrays]
    return [np.asarray(3 * a).astype(dtype) for a in arrays]


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64"])
@pytest.mark.parametrize("subscripts", CASES)
def test_values_are_numpys(subscripts: str, dtype: str) -> None:
    arrays = operands(CASES[subscripts], dtype)
    given = gt.einsum(subscripts, *map(gt.asarray, arrays))
    wanted = np.asarray(np.einsum(subscripts, *arrays))
    assert given.shape == wanted.shape and given.dtype == wanted.dtype
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(given.numpy(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("subscripts", CASES)
def test_gradients_are_pytorchs(subscripts: str) -> None:
    compare(partial(gt.einsum, subscripts), partial(torch.einsum, subscripts),
            operands(CASES[subscripts]))


def test_a_complex_gradient_reaches_real_operands() -> None:
    def loss(library: Any, x: Any, y: Any) -> Any:
        product = library.einsum("ij,jk->ki", x * (1 + 2j), y * (2 - 1j))
        return (product * product).sum().real

    compare(partial(loss, gt), partial(loss, torch), operands([(2, 3), (3, 4)]))


def test_a_sum_over_one_pair_of_axes_is_a_single_matrix_product() -> None:
    calls: list[str] = []

    class Watch:
        def op_ends(self, event: OpEvent) -> None:
            calls.append(event.name)

    arrays = [gt.asarray(a) for a in operands([(2, 3, 4), (4, 5)])]
    with gt.listen(Watch()):
        gt.einsum("bij,jk->bik", *arrays)
    assert calls.count("matmul") == 1
    assert not {"sum", "multiply", "clone"} & set(calls)


def test_a_chain_is_contracted_in_the_cheap_order() -> None:
    """(200, 2) (2, 200) (200, 2): from the left through 200 x 200, from the right through 2 x 2."""
    arrays = [gt.asarray(a) for a in operands([(200, 2), (2, 200), (200, 2)])]
    sizes: list[int] = []

    class Watch:
        def op_ends(self, event: OpEvent) -> None:
            sizes.append(event.result.size)

    with gt.listen(Watch()):
        found = gt.einsum("ij,jk,kl->il", *arrays)
    assert max(sizes) <= 400
    a, b, c = (x.numpy() for x in arrays)
    np.testing.assert_allclose(found.numpy(), a @ b @ c, rtol=1e-10)


def test_one_operand_only_rearranged_is_a_view() -> None:
    x = gt.asarray(operands([(3, 3)])[0])
    for subscripts in ("ij->ji", "ii->i"):
        view = gt.einsum(subscripts, x)
        view[...] = 7.0
    assert np.all(np.diagonal(x.numpy()) == 7.0)


@st.composite
def programs(draw: Any) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Random subscripts of up to four operands and an output of some of their letters."""
    sizes = dict(zip("abcde", draw(st.lists(st.integers(1, 3), min_size=5, max_size=5)),
                     strict=True))
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    letters = sorted(set("".join(terms)))
    output = draw(st.permutations(letters))[:draw(st.integers(0, len(letters)))]
    shapes = [tuple(sizes[k] for k in term) for term in terms]
    return ",".join(terms) + "->" + "".join(output), shapes  # type: ignore[return-value]


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_subscripts(program: tuple[str, list[tuple[int, ...]]]) -> None:
    subscripts, shapes = program
    arrays = operands(shapes)
    given = gt.einsum(subscripts, *map(gt.asarray, arrays))
    wanted = np.einsum(subscripts, *arrays)
    np.testing.assert_allclose(given.numpy(), wanted, rtol=1e-9, atol=1e-9)


WRONG: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "names 2 operands and was given 1": ("ij,jk->ik", [(2, 3)]),
    r"'ij' does not fit an operand of shape \(2,\)": ("ij->i", [(2,)]),
    r"'ij\.\.\.' does not fit an operand of shape \(2,\)": ("ij...->i", [(2,)]),
    "goes with one of size 3": ("ij,jk->ik", [(2, 3), (4, 2)]),
    "goes with one of size 2; wanted equal": ("ii->i", [(2, 3)]),
    "wanted an output with letters": ("ij->ik", [(2, 3)]),
    "each at most once": ("ij->ii", [(2, 3)]),
    "wanted letters, commas": ("i1->i", [(2, 3)]),
    "at most one": ("i->j->i", [(2,)]),
}


@pytest.mark.parametrize("message", WRONG)
def test_subscripts_that_do_not_fit_are_named(message: str) -> None:
    subscripts, shapes = WRONG[message]
    with pytest.raises(ValueError, match=message):
        gt.einsum(subscripts, *[gt.ones(s) for s in shapes])


def test_what_does_nothing_is_a_view_too() -> None:
    x = gt.ones((2, 2))
    for subscripts in ("ij->ij", "ij", "...", "i...->i..."):
        y = gt.einsum(subscripts, x)
        assert y is not x and np.shares_memory(y.numpy(), x.numpy())


def test_subscripts_must_be_a_text() -> None:
    with pytest.raises(TypeError, match="einsum was given Tensor as subscripts; wanted a text"):
        gt.einsum(gt.ones((2, 2)), [0, 0])  # type: ignore[arg-type]
