"""Models of the three network families: `gt.models`."""

from gtensor.models.gpt import GPT, GPTConfig
from gtensor.models.language import generate

__all__ = ["GPT", "GPTConfig", "generate"]
