"""Errors for the user of the command, each one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gtensor.system.files import brief
from gtensor.system.installation import installation_of


class UserError(Exception):
    """A problem that the user can solve; the command prints its sentence without a traceback.

    It may quote a file, so it is cut, and what moves a terminal in it becomes "?".
    """

    def __init__(self, text: str) -> None:
        super().__init__(brief(text))


class NotFinite(UserError):
    """A loss or a gradient is infinite or NaN, so a step was not taken."""


def require(module: str, package: str, what: str = "training") -> None:
    """Raise UserError if a module of the `train` extra, which `what` needs, is not installed."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise UserError(f"{what} needs {package}, which is not installed; "
                        f"{installation_of('train')}")


@contextmanager
def told_to_user() -> Iterator[None]:
    """An OSError of the block, such as a full disk, becomes a UserError of the same words."""
    try:
        yield
    except OSError as error:
        raise UserError(error.strerror or str(error)) from error
