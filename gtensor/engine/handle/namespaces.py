"""The two namespaces in which a rule can be run: raw arrays, and recorded ops on Tensors.

A backward rule is written once, as a function of a namespace `ns` with one function per registered
op, under its array API name. On the fast path `ns` is `raw[...]`: arrays in, arrays out, written
into `out=`. With `create_graph` it is `recorded`: Tensors in, Tensors out, every op recorded, `out`
and `beta` ignored. `gtensor.engine.tape.op.op` adds the functions.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class Namespace(SimpleNamespace):
    """Functions by the names of ops."""

    if TYPE_CHECKING:

        def __getattribute__(self, name: str, /) -> Callable[..., Any]:
            """An op's function."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"no op is named {name!r}, so a rule's `ns` has no such function; "
                             "wanted the name of an op, such as 'reshape'")


# The ops that the engine itself calls: sums of gradients, their shapes, dtypes and places, and
# constants. A test compares this list with its text; nothing else in it names an op.
NEEDED = ("add", "astype", "broadcast_to", "clone", "permute_dims", "real", "reshape", "sum",
          "to_device", "where")

recorded = Namespace()
raw = {"cpu": Namespace(), "cuda": Namespace()}
public = Namespace()  # name -> the exported function, which checks and normalizes
