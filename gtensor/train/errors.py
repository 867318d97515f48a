"""Errors for the user of the command, each one sentence."""

from __future__ import annotations


class UserError(Exception):
    """A problem that the user can solve; the command prints its sentence without a traceback."""


def require(module: str, package: str, what: str = "training") -> None:
    """Raise UserError if a module of the `train` extra, which `what` needs, is not installed."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise UserError(f"{what} needs {package}, which is not installed; "
                        "pip install 'gtensor[train]'")
