"""Neural-network functions, with PyTorch's names, arguments and defaults.

Shapes: N images or rows, C channels or classes, H and W the height and width; `...` any axes. Tensors
of one call share one floating dtype and one device. Wrong shapes and values raise ValueError, wrong
dtypes TypeError, before anything is computed.
"""

from __future__ import annotations

import math

import numpy as np

from gtensor.core.namespaces import recorded
from gtensor.core.tensor import Tensor
from gtensor.ops import activation as records
from gtensor.ops import softmax as rows
from gtensor.ops.attention import causal_mask
from gtensor.ops.average_pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from gtensor.ops.batch_norm import batch_norm, batch_norm_act
from gtensor.ops.classes import class_targets, one_hot
from gtensor.ops.conv import conv2d
from gtensor.ops.dropout import dropout
from gtensor.ops.embedding import embedding
from gtensor.ops.layer_norm import layer_norm
from gtensor.ops.linear import linear
from gtensor.ops.loss import cross_entropy, mse_loss, nll_loss
