"""The stubs of public ops, from their definitions: `python -m op_stubs` writes them.

Editors and type checkers cannot see that an `Op` is a function of tensors. A family of ops with
public ones therefore has a stub, `__init__.pyi`, which declares each as a function with its words.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from textwrap import wrap
from types import ModuleType

import gtensor as gt
from gtensor.engine.tape.op import Op
from gtensor.system.package_names import modules_in

ROOT = Path(__file__).resolve().parents[1]
HEAD = '''"""The family's public names, for type checkers and editors; op_stubs.py writes them."""

'''
TYPES = "from gtensor.engine.handle.tensor import Operand, Tensor"


def stubs() -> dict[Path, str]:
    """The files, and the text of each."""
    return {ROOT.joinpath(*family.__name__.split("."), "__init__.pyi"): stub(family)
            for family in modules_in(gt.ops.__name__) if public_ops(family)}


def public_ops(family: ModuleType) -> dict[str, Op]:
    """The ops that are public names of a family's modules."""
    return {name: value for module in modules_in(family.__name__)
            for name in getattr(module, "__all__", ())
            if isinstance(value := getattr(module, name), Op)}


def stub(family: ModuleType) -> str:
    """Functions for its ops; its other names come from their modules."""
    others = [f"from {module.__name__} import {name} as {name}"
              for module in modules_in(family.__name__) for name in getattr(module, "__all__", ())
              if not isinstance(getattr(module, name), Op)]
    imports = "\n".join(sorted([TYPES, *others]))
    return HEAD + imports + "\n" + "".join(
        function(name, op) for name, op in sorted(public_ops(family).items()))


def function(name: str, op: Op) -> str:
    signature = str(inspect.signature(op)).replace("'", "")  # annotations are in quotes
    words = "\n    ".join(wrap(f'"""{op.__doc__}"""', 96))
    return f"\ndef {name}{signature}:\n    {words}\n"


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
