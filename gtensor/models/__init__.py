"""Models of the three network families: `gt.models`."""

from gtensor.models.ssm import SSM, SSMConfig

__all__ = ["SSM", "SSMConfig"]
