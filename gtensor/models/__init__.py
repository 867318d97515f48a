"""Models of the three network families, and a residual network: `gt.models`."""

from gtensor.models.denoiser import Denoiser, DenoiserConfig
from gtensor.models.gpt import GPT, GPTConfig
from gtensor.models.language import generate
from gtensor.models.resnet import ResNet, ResNetConfig
from gtensor.models.ssm import SSM, SSMConfig

__all__ = [
    "GPT", "SSM", "Denoiser", "DenoiserConfig", "GPTConfig", "ResNet", "ResNetConfig", "SSMConfig",
    "generate",
]
