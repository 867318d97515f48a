"""The two namespaces in which a rule can be run: raw arrays, and recorded ops on Tensors.

A backward rule is written once, as a function of a namespace `ns` with one function per registered
op. On the fast path `ns` is `raw[...]`: arrays in, arrays out, `out=` honoured. When a graph is
asked for it is `recorded`: Tensors in, Tensors out, `out` and `beta` ignored, everything recorded.
The array API names make both read alike. Filled by `gtensor.core.op.op`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

recorded: Any = SimpleNamespace()
raw: dict[str, Any] = {"cpu": SimpleNamespace(), "cuda": SimpleNamespace()}
public: Any = SimpleNamespace()  # name -> the exported function, which checks and normalizes
