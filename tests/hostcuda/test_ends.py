"""The end of a process: what C code destroys after Python's end calls nothing in Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gtensor.hostcuda import children

pytestmark = pytest.mark.host_cuda

PROGRAM = """
import atexit, ctypes, uuid

def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "done"

def behind_the_end():  # known to atexit before `install`, so it runs after the host device's end
    name = f"k{uuid.uuid4().hex}"
    text = f'extern "C" __global__ void {name}() {{}}'
    print(refused(cublas.create), refused(lambda: gt.ones((3, 3), device="cuda") @ a),
          refused(cupy.RawKernel(text, name).compile), sep="\\n")

atexit.register(behind_the_end)
from gtensor import hostcuda
hostcuda.install(MODE)
import cupy
from cupy_backends.cuda.libs import cublas
import gtensor as gt

a = gt.ones((3, 3), device="cuda")
cupy.linalg.svd((a @ a).array)
graph = gt.Graph("cuda")
with graph.capture():
    b = a @ a
graph.replay()
found = graph._work._graph
libc, driver = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))  # CuPy does not destroy it
for function, argument in ((driver.cudaGraphExecDestroy, found.graphExec),
                           (driver.cudaGraphDestroy, found.graph),
                           (ctypes.CDLL(cublas.__file__).cublasDestroy_v2, cublas.create())):
    libc.__cxa_atexit(ctypes.cast(function, ctypes.c_void_p), ctypes.c_void_p(argument), None)
"""


@pytest.mark.parametrize("mode", ["eager", "eager", "deferred"])
def test_handles_and_graphs_may_be_destroyed_after_pythons_end(mode: str) -> None:
    code = PROGRAM.replace("MODE", repr(mode))
    outside = {name: value for name, value in os.environ.items() if name != children.VARIABLE}
    ran = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], capture_output=True,
                         text=True, timeout=900, env=outside)
    assert ran.returncode == 0, ran.stderr
    wanted = ["CUBLASError CUBLAS_STATUS_NOT_SUPPORTED", "RuntimeError cublas",
              "CompileException"]
    answers = ran.stdout.splitlines()
    assert all(map(str.startswith, answers, wanted)) and len(answers) >= len(wanted), answers


DAEMONS = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
from gtensor import hostcuda
hostcuda.install("eager")
import threading, time
import cupy

a = cupy.ones((200, 200))
a @ a

def work():
    while True:
        a @ a

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""


def test_daemon_threads_do_not_abort_the_end(child) -> None:
    child(DAEMONS)
