"""Faults that rehearse.py plants among the tests: each may cost itself, and nothing beside it."""

import threading

import pytest

import gtensor as gt
from gtensor import hostcuda

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("number", range(4))
def test_before(number):
    assert gt.ones((2,), device="cuda").shape == (2,)


def test_loses_the_context():
    gt.ones((2,), device="cuda")  # there is a context
    hostcuda.fail(700)
    gt.ones((2,), device="cuda").numpy()


@pytest.mark.parametrize("number", range(3))
def test_between(number):
    assert gt.ones((2,), device="cuda").shape == (2,)


def test_never_ends():
    threading.Event().wait()


@pytest.mark.parametrize("number", range(4))
def test_after(number):
    assert gt.ones((2,), device="cuda").shape == (2,)
