"""Run by Python at its start, in processes that a program on a host device has started."""

import importlib
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


def _install() -> None:
    """Install the host device, or end the process: CuPy would use a real device without it."""
    if importlib.util.find_spec("cupy") is None:  # another Python, or another environment
        return
    # Not on PYTHONPATH: packages beside this one may be for another Python.
    sys.path.insert(0, _ROOT)
    try:
        from gtensor.hostcuda.children import settings
        from gtensor.hostcuda.install import install

        found = settings()
        if found is not None:
            install(**found)
    except BaseException as error:  # delivered
        sentence = f"hostcuda, which this process was started with, cannot be installed: {error}\n"
        os.write(2, sentence.encode())
        os._exit(1)
    finally:
        sys.path.remove(_ROOT)
        if _ROOT not in sys.path:
            sys.path.append(_ROOT)


def _next() -> None:
    """Run the `sitecustomize` that this one hides."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    this = sys.modules.pop("sitecustomize")  # while it is there, it is what would be found
    if importlib.util.find_spec("sitecustomize"):
        importlib.import_module("sitecustomize")
    else:
        sys.modules["sitecustomize"] = this  # Python takes it from there once it has run


if "GTENSOR_HOSTCUDA" in os.environ:
    _install()
_next()
