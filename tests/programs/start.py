"""The same numbers to start from under both libraries."""

from typing import Any

import numpy as np


def array(*shape: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Normal float32 numbers."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def filled(torch: Any, model: Any, seed: int) -> Any:
    """The model, its parameters drawn from the seed."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter.shape[-1] if parameter.ndim > 1 else 64
            drawn = rng.standard_normal(tuple(parameter.shape)) / fan**0.5
            parameter.copy_(torch.from_numpy(drawn.astype(np.float32)))
    return model
