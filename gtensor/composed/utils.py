"""`gt.utils`: where PyTorch has its data loaders and checkpointing."""

from __future__ import annotations

from gtensor import data
from gtensor.nn import utils as checkpoint

__all__ = ["checkpoint", "data"]
