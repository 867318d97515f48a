"""What PyTorch has as `nn.utils`: clipping of gradients."""

from gtensor.optim.clipping import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
