"""A test file that rehearse.py plants: the machine lacks a package that it imports."""

import a_package_that_is_not_there
import pytest


@pytest.mark.gpu
def test_nothing():
    assert a_package_that_is_not_there
