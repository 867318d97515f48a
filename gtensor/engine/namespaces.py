"""The two namespaces in which a rule can be run: raw arrays, and recorded ops on Tensors.

A backward rule is written once, as a function of a namespace `ns` with one function per registered
op, under its array API name. On the fast path `ns` is `raw[...]`: arrays in, arrays out, written
into `out=`. With `create_graph` it is `recorded`: Tensors in, Tensors out, every op recorded, `out`
and `beta` ignored. `gtensor.engine.op.op` adds the functions.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

recorded: Any = SimpleNamespace()
raw: dict[str, Any] = {"cpu": SimpleNamespace(), "cuda": SimpleNamespace()}
public: Any = SimpleNamespace()  # name -> the exported function, which checks and normalizes
