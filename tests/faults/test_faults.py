"""The check that the table names fails with each planted fault, and passes without it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hostcuda.conftest import _as_before  # noqa: F401  (faults of the device end with their test)

from gtensor.testing import CHECKS, OpcheckError

from .table import FAULTS, ByHostTest, ByOpcheck, ByRaces, ByTest, Fault, markdown

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
NAMES = [fault.name for fault in FAULTS]
KILLERS = {fault.killer.name: fault.killer for fault in FAULTS}


def marks(killer: object) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.host_cuda,) if isinstance(killer, (ByHostTest, ByRaces)) else ()


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [
    pytest.param(fault, id=fault.name, marks=marks(fault.killer)) for fault in FAULTS])
def test_the_fault_is_caught(fault: Fault) -> None:
    if isinstance(fault.killer, ByTest):  # import the test's module without the fault
        importlib.import_module(fault.killer.module)
    with fault.plant():
        if isinstance(fault.killer, ByOpcheck):
            with pytest.raises(OpcheckError) as caught:
                fault.killer()
            assert caught.value.check in fault.killer.names, str(caught.value)
            cause = caught.value.__cause__
            assert cause is None or isinstance(cause, fault.raises)
        else:
            with pytest.raises((AssertionError, pytest.fail.Exception, fault.raises)):
                fault.killer()


@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=marks(killer)) for name, killer in KILLERS.items()])
def test_without_the_fault_the_check_passes(name: str) -> None:
    KILLERS[name]()


def test_the_names_are_different() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_every_check_of_opcheck_kills_a_fault() -> None:
    """`device` compares with a GPU, so it fails only where there is one."""
    killing = {name for f in FAULTS if isinstance(f.killer, ByOpcheck) for name in f.killer.names}
    assert killing == set(CHECKS) - {"device"}


def test_the_document_is_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == markdown()
