"""Names for types in annotations. Nothing here is needed while gtensor runs.

Modules import them under `if TYPE_CHECKING`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

# An array of NumPy or CuPy, of any shape and dtype. CuPy has no type hints. Its arrays have the
# attributes and operators of NumPy's, so they are checked as such.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# An array of CuPy in code that uses what NumPy's lack: `data.ptr`, `device.id`, `get()`, `set()`.
CudaArray: TypeAlias = Any

Scalar: TypeAlias = bool | int | float | complex | np.generic  # a number of Python or NumPy
Nested: TypeAlias = list[Any] | tuple[Any, ...] | range  # numbers; a text is a Sequence, too
DTypeLike: TypeAlias = np.dtype[Any] | type[Any] | str  # what `element_type` makes a dtype of
Params: TypeAlias = dict[str, Any]  # the parameters of an op, by name
Path: TypeAlias = Callable[..., Any]  # path(*arrays, out=None, **params) -> array, or a tuple
