"""Replacing what call paths name: in the modules, and in the texts that are written of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from gtensor.engine.handle import context
from gtensor.engine.run import bind, call_text
from gtensor.engine.tape.op import registry


@contextmanager
def replaced(name: str, value: Any) -> Iterator[None]:
    """Every call path finds `value` under that name within the block."""
    scopes = [vars(bind), vars(context), call_text.SCOPE]
    scopes += [op.call.__globals__ for op in registry.values()]
    with ExitStack() as stack:
        for scope in scopes:
            if name in scope:
                stack.enter_context(patch.dict(scope, {name: value}))
        yield
