"""Run by Python at its start, in processes that a program on a host device has started."""

import importlib
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install() -> None:
    from gtensor.hostcuda.children import settings
    from gtensor.hostcuda.install import install

    found = settings()
    if found is not None:
        install(**found)


def _next() -> None:
    """Run the `sitecustomize` that this one stands before."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.util.find_spec("sitecustomize")
    sys.modules.pop("sitecustomize", None)
    if spec is not None and spec.origin != __file__:
        importlib.import_module("sitecustomize")


if "GTENSOR_HOSTCUDA" in os.environ:
    _install()
_next()
