"""Models of the three network families, and a residual network: `gt.models`."""

from typing import TYPE_CHECKING

from gtensor.models.denoiser import Denoiser, DenoiserConfig
from gtensor.models.gpt import GPT, GPTConfig
from gtensor.models.language import generate
from gtensor.models.resnet import ResNet, ResNetConfig
from gtensor.models.ssm import SSM, SSMConfig
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "GPT", "SSM", "Denoiser", "DenoiserConfig", "GPTConfig", "ResNet", "ResNetConfig", "SSMConfig",
    "generate",
]

_enter(globals(), check=True)
