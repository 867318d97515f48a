"""Write the C text of the library's formulas, which is compiled when gtensor is installed.

    PYTHONPATH=tests:. python -m formulas_in_c gtensor/ops/define/c
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import gtensor as gt
from gtensor.ops.define.formula import Formula
from gtensor.ops.define.formula_c import DTYPES, file_text


def main(folder: str) -> None:
    assert gt.__version__  # the import makes all formulas
    formulas = [x for x in gc.get_objects() if isinstance(x, Formula)]
    for kind in DTYPES:
        text = file_text(formulas, kind)
        Path(folder, f"formulas_{kind}.c").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
