"""Blocks of Transformers, diffusion models and state-space models, with workspaces."""

from gtensor.nn.blocks.diffusion import DiffusionBlock, TimeEmbedding

__all__ = ["DiffusionBlock", "TimeEmbedding"]
