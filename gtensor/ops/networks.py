"""The ops behind `gtensor.nn.functional` and `gtensor.optim`, which are imported when used.

Importing this module defines them, so that every op has its name from the start.
"""

from __future__ import annotations

from gtensor.engine.namespaces import public
from gtensor.ops.activations import (  # noqa: F401
    activation,
    dropout,
    piecewise_activations,
    smooth_activations,
    softmax,
)
from gtensor.ops.arrange import class_indices, embedding, padding  # noqa: F401
from gtensor.ops.attention import attention  # noqa: F401
from gtensor.ops.conv import convolution  # noqa: F401
from gtensor.ops.elementwise import erf  # noqa: F401
from gtensor.ops.linalg import linear  # noqa: F401
from gtensor.ops.losses import cross_entropy, pointwise, probability  # noqa: F401
from gtensor.ops.norms import (  # noqa: F401
    batch_norm,
    group_norm,
    inplace_abn,
    layer_norm,
    rms_norm,
)
from gtensor.ops.pool import adaptive_pool, average_pool, interpolation, max_pool  # noqa: F401
from gtensor.ops.updates import optimizer_kernels  # noqa: F401

# Methods of Tensor.
public.relu, public.sigmoid = activation.relu_op.__call__, activation.sigmoid_op.__call__
