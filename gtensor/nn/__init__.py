"""Neural networks with PyTorch's names: `gt.nn`, and its functions `gt.nn.functional`."""

from gtensor.nn import functional, init
from gtensor.nn.activations import (
    ELU,
    GELU,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from gtensor.nn.containers import ModuleList, Sequential
from gtensor.nn.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    Linear,
    MaxPool2d,
)
from gtensor.nn.module import Mismatch, Module
from gtensor.nn.normalization import BatchNorm1d, BatchNorm2d, BatchNormAct2d, LayerNorm
from gtensor.nn.parameter import Parameter

__all__ = [
    "ELU", "GELU", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "BatchNormAct2d",
    "Conv2d", "Dropout", "Embedding", "Flatten", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax",
    "MaxPool2d", "Mismatch", "Module", "ModuleList", "Parameter", "ReLU", "Sequential", "SiLU",
    "Sigmoid", "Softmax", "Softplus", "Tanh", "functional", "init",
]
