"""After an error that destroys the CUDA context, each call says what is to be done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.host_cuda

# In a process of its own: CuPy's finalizers fail, too, once the context is lost.
PROGRAM = """
import json
import cupy
import gtensor as gt
from gtensor import hostcuda

gt.set_default_device("cuda")
x, out = gt.ones((4, 4), requires_grad=True), gt.ones((4, 4))
loss = (x * 2).sum()
loss.backward(retain_graph=True)
graph = gt.Graph()
with graph.capture():
    replayed = out * 2
optimizer = gt.optim.SGD([x], 0.1)
optimizer.step()
stream = gt.stream()
calls = {
    "op": lambda: out + 1,
    "op in place": lambda: out.__iadd__(1),
    "product": lambda: gt.linalg.gemm_into(out, x.detach(), x.detach()),
    "item": lambda: loss.item(),
    "to the CPU": lambda: out.to("cpu"),
    "from the CPU": lambda: gt.tensor([1.0, 2.0]),
    "backward": lambda: loss.backward(),
    "step": optimizer.step,
    "memory": lambda: gt.empty(1 << 26),
    "replay": graph.replay,
    "random": lambda: gt.random.normal((3,)),
    "stream": stream.synchronize,
    "event": lambda: gt.Event().record(),
    "svd": lambda: gt.linalg.svd(out),
    "another library": lambda: cupy.ones(3),
}
try:
    cupy.cuda.runtime.memcpy(0, 0, 8, 99)
except RuntimeError as error:
    found = {"an error of one call": getattr(error, "__notes__", [])}
hostcuda.fail(719, "a test")
for name, call in calls.items():
    try:
        call()
        found[name] = None
    except RuntimeError as error:
        found[name] = getattr(error, "__notes__", [])
print(json.dumps(found))
"""


def test_each_call_says_that_the_process_must_start_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    found = json.loads(run.stdout or "{}")
    assert found.pop("an error of one call", None) == [], run.stderr
    assert len(found) == 15
    for name, notes in found.items():
        assert notes is not None and len(notes) == 1, (name, notes)
        assert notes[0].startswith("this process cannot use this GPU any more"), name
        assert "start the program again, from its last checkpoint" in notes[0]
