"""A plugin of pytest's: libhostcuda is compiled from the folder that MUTATED names."""

import os
from pathlib import Path

from gtensor.hostcuda import build

build._NATIVE = Path(os.environ["MUTATED"])
