"""The ops behind `gtensor.nn.functional` and `gtensor.optim`, which are imported when used.

Importing this module defines them, so that every op has its name from the start.
"""

from __future__ import annotations

from gtensor.engine.namespaces import public
from gtensor.ops.activations import (
    activation,
)

# Methods of Tensor.
public.relu, public.sigmoid = activation.relu.__call__, activation.sigmoid.__call__
