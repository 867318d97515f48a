"""Derivatives and batches of functions: `gt.func`, in the manner of `torch.func`.

    slopes = gt.func.jacrev(f)(x)
    each = gt.func.vmap(gt.func.grad(loss), (None, 0))(w, rows)

Transforms take functions of tensors, or of trees of them, and nest in any order. Every name is one
of `gtensor`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.func.batching import vmap
from gtensor.func.custom import custom_jvp, custom_vjp
from gtensor.func.forward import jvp, jvp_batched
from gtensor.func.gradients import grad, value_and_grad, vjp
from gtensor.func.jacobians import hessian, hvp, jacfwd, jacobian, jacrev, linearize
from gtensor.func.modules import functional_call, per_example_grad
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:  # names of other libraries
    from gtensor.nn.utils import checkpoint as checkpoint

    remat = checkpoint
else:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "custom_jvp", "custom_vjp", "functional_call", "grad", "hessian", "hvp", "jacfwd", "jacobian",
    "jacrev", "jvp", "jvp_batched", "linearize", "per_example_grad", "value_and_grad", "vjp",
    "vmap",
]

_enter(globals(), check=True)
