"""Arguments of PyTorch's signatures that gtensor does not support."""

from __future__ import annotations

from typing import Any


def only(wanted: Any, name: str, **given: Any) -> None:
    """Raise ValueError unless every given argument is `wanted`, PyTorch's default.

    The arguments are kept in the signatures so that positional arguments mean the same.
    """
    for argument, value in given.items():
        if value != wanted:
            raise ValueError(f"{name} was given {argument}={value!r}; wanted {wanted!r}: nothing "
                             "else is supported")
