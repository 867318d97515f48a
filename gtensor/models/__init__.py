"""Models of the three network families: `gt.models`."""

from gtensor.models.gpt import GPT, GPTConfig
from gtensor.models.language import generate
from gtensor.models.ssm import SSM, SSMConfig

__all__ = ["GPT", "SSM", "GPTConfig", "SSMConfig", "generate"]
