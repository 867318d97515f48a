"""Write the C text of the library's formulas, which is compiled when gtensor is installed.

    PYTHONPATH=tests:. python -m formulas_in_c gtensor/ops/define/c
"""

from __future__ import annotations

import sys
from pathlib import Path

from gtensor.engine.tape.op import Op, registry
from gtensor.ops.define.formula_c import DTYPES, file_text
from gtensor.ops.define.updates import update_of
from gtensor.ops.updates import optimizers


def main(folder: str) -> None:
    formulas = [op.cpu.made for op in registry.values() if hasattr(op.cpu, "made")]
    updates = [update_of(op) for op in vars(optimizers).values() if isinstance(op, Op)]
    for kind in DTYPES:
        text = file_text(formulas, updates, kind)
        Path(folder, f"formulas_{kind}.c").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
