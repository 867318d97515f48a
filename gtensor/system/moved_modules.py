"""Pickles name modules: where those of earlier releases that pickles may name lie now.

Only what a pickle can hold is listed: public functions and classes, and values that modules keep.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MOVED = {
    "array": "creation", "array.array_api": "creation.array_api",
    "array.creation": "creation.new_tensors", "array.dtypes": "creation.dtypes",
    "engine.anomaly": "engine.walk.anomaly", "engine.cached_values": "engine.run.cached_values",
    "engine.context": "engine.handle.context", "engine.errors": "engine.handle.errors",
    "engine.op": "engine.tape.op", "engine.samples": "engine.tape.samples",
    "engine.tensor": "engine.handle.tensor",
    "ops.build": "ops.define", "ops.build.pointwise": "ops.define.pointwise",
}
MOVED = {f"gtensor.{old}": f"gtensor.{new}" for old, new in _MOVED.items()}


class _Moved:
    """Finds and loads a module under its earlier name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(name, loader, is_package=True) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an empty module, until it is replaced."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])


def find_moved() -> None:
    """Let pickles that name the earlier modules load."""
    finder: Any = _Moved()  # `importlib.abc` would load much
    sys.meta_path.insert(0, finder)  # else a package would find its modules under two names
    # `gt.array` is a function now: an import of the module would put the module in its place
    sys.modules["gtensor.array"] = sys.modules[MOVED["gtensor.array"]]
