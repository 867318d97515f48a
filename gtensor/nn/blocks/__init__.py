"""Blocks of Transformers, diffusion models and state-space models, with workspaces."""

from typing import TYPE_CHECKING

from gtensor.nn.blocks.diffusion import DiffusionBlock, TimeEmbedding
from gtensor.nn.blocks.rotary import RotaryPositions
from gtensor.nn.blocks.ssm import (
    CausalConvolution,
    GatedRecurrence,
    SelectiveRecurrence,
    SSMBlock,
    SSMState,
)
from gtensor.nn.blocks.transformer import CausalSelfAttention, KVCache, TransformerBlock
from gtensor.nn.blocks.workspaces import Block, BlockWorkspace
from gtensor.system.late_imports import late as _late

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "Block", "BlockWorkspace", "CausalConvolution", "CausalSelfAttention", "DiffusionBlock",
    "GatedRecurrence", "KVCache", "RotaryPositions", "SSMBlock", "SSMState", "SelectiveRecurrence",
    "TimeEmbedding", "TransformerBlock",
]
