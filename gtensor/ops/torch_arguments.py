"""Arguments that have a place in PyTorch's signatures and no meaning here."""

from __future__ import annotations

from typing import Any


def only(wanted: Any, name: str, **given: Any) -> None:
    """Raise ValueError unless all that is given is `wanted`, PyTorch's default.

    Their places are kept so that what PyTorch takes by position is not taken for something else.
    """
    for argument, value in given.items():
        if value != wanted:
            raise ValueError(f"{name} was given {argument}={value!r}; wanted {wanted!r}: nothing "
                             "else is supported")
