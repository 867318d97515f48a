"""Functions and gradients against PyTorch's, on the samples that PyTorch tests its own ops with."""
