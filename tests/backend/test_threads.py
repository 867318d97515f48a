"""`gt.set_num_threads`: which number is in force, and who is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gtensor as gt
from gtensor.backend import blas, threads


@pytest.fixture(autouse=True)
def _number_restored() -> Iterator[None]:
    before, products = threads._count, blas.threads()
    yield
    threads._set(before)
    blas.set_threads(products or 1)


@pytest.mark.parametrize(("variables", "wanted"), [
    ({}, 6), ({"OMP_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "4,2"}, 4),
    ({"OMP_NUM_THREADS": "x"}, 6), ({"OMP_NUM_THREADS": "0"}, 6),
    ({"OMP_NUM_THREADS": "99999"}, threads.MOST), ({"MPI_LOCALNRANKS": "2"}, 3),
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 1), ({"LOCAL_WORLD_SIZE": "9"}, 1),
    ({"OMP_NUM_THREADS": "5", "MPI_LOCALNRANKS": "2"}, 5),
])
def test_the_first_number_is_of_the_environment_or_a_ranks_part_of_the_cores(
    variables: dict[str, str], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 6)
    for name in ("OMP_NUM_THREADS", *threads._RANKS):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert threads._default() == wanted


def test_the_number_is_that_of_products_too() -> None:
    gt.set_num_threads(2)
    assert gt.get_num_threads() == 2 and blas.threads() in (0, 2)
    with pytest.raises(ZeroDivisionError), threads.one_thread():
        assert gt.get_num_threads() == 1 and blas.threads() in (0, 1)
        1 / 0  # noqa: B018
    assert gt.get_num_threads() == 2 and blas.threads() in (0, 2)


@pytest.mark.parametrize(("count", "error", "said"), [
    (0, ValueError, "count=0 given to set_num_threads; wanted 1 to 256 threads"),
    (257, ValueError, "count=257 given to set_num_threads; wanted 1 to 256 threads"),
    (2.0, TypeError, "2.0"), (True, TypeError, "True"), ("2", TypeError, "'2'"),
])
def test_a_wrong_number_changes_nothing(count, error: type[Exception], said: str) -> None:
    before = gt.get_num_threads()
    with pytest.raises(error, match=said):
        gt.set_num_threads(count)
    assert gt.get_num_threads() == before
