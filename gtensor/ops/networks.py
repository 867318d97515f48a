"""The ops behind `gtensor.nn.functional` and `gtensor.optim`, which are imported when used.

Importing this module defines them, so that every op has its name from the start.
"""

from __future__ import annotations

from gtensor.core.namespaces import public
from gtensor.ops import (  # noqa: F401
    activation,
    attention,
    batch_norm,
    classes,
    conv_transpose,
    convolution,
    dropout,
    embedding,
    gates,
    group_norm,
    inplace_abn,
    interpolation,
    layer_norm,
    linear,
    loss,
    losses_pointwise,
    losses_probability,
    padding,
    pooling,
    rectifiers,
    rms_norm,
    softmax,
    special,
    updates,
)

# Methods of Tensor.
public.relu, public.sigmoid = activation.relu.__call__, activation.sigmoid.__call__
