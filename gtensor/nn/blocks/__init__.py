"""Blocks of Transformers, diffusion models and state-space models, with workspaces."""

from gtensor.nn.blocks.ssm import (
    CausalConvolution,
    GatedRecurrence,
    SelectiveRecurrence,
    SSMBlock,
    SSMState,
)

__all__ = [
    "CausalConvolution", "GatedRecurrence", "SSMBlock", "SSMState", "SelectiveRecurrence",
]
