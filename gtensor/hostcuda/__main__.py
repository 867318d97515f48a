"""python -m gtensor.hostcuda [options] SCRIPT|-m MODULE [arguments]: a program on a host device.

Python processes that the program starts run so, too.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

from gtensor.hostcuda.build import Unusable
from gtensor.hostcuda.children import inherit
from gtensor.hostcuda.counters import counters, missing
from gtensor.hostcuda.install import install


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gtensor.hostcuda", description=__doc__)
    parser.add_argument("--mode", choices=("eager", "deferred"), default="eager",
                        help="run operations when queued, or when waited for in a random order")
    parser.add_argument("--devices", type=int, default=1, help="how many devices (1 to 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of deferred operations")
    parser.add_argument("--dry", action="store_true", help="count operations, run none")
    parser.add_argument("--compiler", choices=("g++", "nvrtc"), default="g++",
                        help="of kernels; nvrtc compiles them for the card and needs --dry")
    parser.add_argument("--counters", action="store_true", help="print what was counted at the end")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    settings = {"mode": given.mode, "devices": given.devices, "seed": given.seed, "dry": given.dry,
                "compiler": given.compiler}
    try:
        install(**settings)
    except (Unusable, ValueError) as error:
        parser.error(str(error))
    inherit(os.environ, settings)
    sys.argv = [given.script, *given.arguments]
    try:
        if given.module:
            sys.path[0] = os.getcwd()
            runpy.run_module(given.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(given.script).resolve().parent)
            runpy.run_path(given.script, run_name="__main__")
    finally:
        if given.counters:
            print(counters(), file=sys.stderr)
        if missing():
            print(f"hostcuda: not supported, but called: {missing()}", file=sys.stderr)


if __name__ == "__main__":
    main()
