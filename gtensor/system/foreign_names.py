"""The table of foreign names: what PyTorch, NumPy, CuPy and JAX call what gtensor has.

Data only, by room; `gtensor.system.late_imports` reads it when a room lacks a name that is asked
for. A name is an alias where it means the same here, and has a sentence with the right call where
an alias would hide a difference, or where there is nothing of the kind.

An alias names a thing of the same room, or `module:path`; `module:` is the module itself. The
methods of tensors are the room "gtensor.Tensor". A test resolves every alias.
"""

from __future__ import annotations

ALIASES: dict[str, dict[str, str]] = {
    "gtensor": {
        "cat": "concat", "concatenate": "concat", "array": "tensor", "as_tensor": "asarray",
        "from_numpy": "asarray", "clamp": "clip", "cumsum": "cumulative_sum",
        "cumprod": "cumulative_prod",
    },
    "gtensor.Tensor": {
        "clamp": "gtensor:Tensor.clip", "sin": "gtensor:sin",
    },
    "gtensor.random": {
    },
    "gtensor.linalg": {
    },
    "gtensor.fft": {
    },
    "gtensor.nn": {
    },
    "gtensor.nn.functional": {
    },
    "gtensor.nn.init": {
    },
    "gtensor.nn.utils": {
    },
    "gtensor.optim": {
    },
    "gtensor.optim.lr_scheduler": {
    },
    "gtensor.data": {
    },
    "gtensor.func": {
    },
}

SENTENCES: dict[str, dict[str, str]] = {
    "gtensor": {
        "compile": "gt.Graph captures a step and replays it; other functions run as they are",
    },
    "gtensor.Tensor": {
        "sort": "gt.sort(x) gives the values and gt.argsort(x) their places; PyTorch's sort gives "
                "both, NumPy's sorts in place",
    },
    "gtensor.random": {
    },
    "gtensor.linalg": {
    },
    "gtensor.fft": {
    },
    "gtensor.nn": {
    },
    "gtensor.nn.functional": {
    },
    "gtensor.nn.init": {
    },
    "gtensor.nn.utils": {
    },
    "gtensor.optim": {
    },
    "gtensor.optim.lr_scheduler": {
    },
    "gtensor.data": {
    },
    "gtensor.func": {
    },
}
