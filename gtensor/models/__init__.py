"""Networks made of gtensor's blocks, each with its sizes in a dataclass."""

from gtensor.models.denoiser import Denoiser, DenoiserConfig
from gtensor.models.resnet import ResNet, ResNetConfig

__all__ = ["Denoiser", "DenoiserConfig", "ResNet", "ResNetConfig"]
