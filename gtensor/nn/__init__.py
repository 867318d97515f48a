"""Neural networks with PyTorch's names: `gt.nn`, and its functions `gt.nn.functional`.

`gt.nn.blocks` is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from gtensor.nn import functional, init, utils
from gtensor.nn.abn import ABN, InPlaceABN
from gtensor.nn.activations import (
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from gtensor.nn.attention import MultiheadAttention, TransformerEncoderLayer
from gtensor.nn.containers import (
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from gtensor.nn.context import SharedAttentionContext
from gtensor.nn.convolution import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from gtensor.nn.layers import Dropout, Embedding, Flatten, Linear
from gtensor.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from gtensor.nn.module import Mismatch, Module
from gtensor.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    GroupNorm,
    LayerNorm,
    RMSNorm,
)
from gtensor.nn.parameter import Parameter
from gtensor.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
)
from gtensor.nn.recurrent import GRU, LSTM, GRUCell, LSTMCell
from gtensor.nn.resampling import Upsample
from gtensor.system.late_imports import late as _late

if TYPE_CHECKING:
    from gtensor.nn import blocks
else:
    __getattr__, __dir__ = _late(__name__, {"blocks": "gtensor.nn.blocks"})

__all__ = [
    "ABN", "ELU", "GELU", "GLU", "GRU", "LSTM", "SELU", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d",
    "BatchNorm2d", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "CrossEntropyLoss",
    "Dropout", "Embedding", "Flatten", "GRUCell", "GroupNorm", "Hardsigmoid", "Hardswish",
    "Hardtanh", "HuberLoss", "Identity", "InPlaceABN", "KLDivLoss", "L1Loss", "LSTMCell",
    "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d",
    "MaxPool2d", "Mish", "Mismatch", "Module", "ModuleDict", "ModuleList", "MultiheadAttention",
    "NLLLoss", "PReLU", "Parameter", "ParameterDict", "ParameterList", "RMSNorm", "ReLU", "ReLU6",
    "Sequential", "SharedAttentionContext", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax",
    "Softplus", "Softsign", "Tanh", "TransformerEncoderLayer", "Upsample", "blocks", "functional",
    "init", "utils",
]
