"""`gt.set_num_threads`: which number is in force, and who is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import blas, compiled, threads
from gtensor.data.workers import made_ahead

built = pytest.mark.skipif(compiled.extension is None, reason="the kernels in C were not built")


@pytest.fixture(autouse=True)
def _number_restored() -> Iterator[None]:
    before, products = threads._count, blas.threads()
    yield
    threads._set(before)
    blas.set_threads(products or 1)


@pytest.mark.parametrize(("variables", "wanted"), [
    ({}, 6), ({"OMP_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "4,2"}, 4),
    ({"OMP_NUM_THREADS": "x"}, 6), ({"OMP_NUM_THREADS": "0"}, 6),
    ({"OMP_NUM_THREADS": "99999"}, compiled.MOST_THREADS), ({"MPI_LOCALNRANKS": "2"}, 3),
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 1), ({"LOCAL_WORLD_SIZE": "9"}, 1),
    ({"OMP_NUM_THREADS": "5", "MPI_LOCALNRANKS": "2"}, 5),
])
def test_the_first_number_is_of_the_environment_or_a_ranks_part_of_the_cores(
    variables: dict[str, str], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "cores", lambda: 6)
    for name in ("OMP_NUM_THREADS", *compiled._RANKS):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert compiled.first_threads() == wanted


def test_the_number_is_that_of_products_too() -> None:
    gt.set_num_threads(2)
    assert gt.get_num_threads() == 2 and blas.threads() in (0, 2)
    with pytest.raises(ZeroDivisionError), threads.one_thread():
        assert gt.get_num_threads() == 1 and blas.threads() in (0, 1)
        1 / 0  # noqa: B018
    assert gt.get_num_threads() == 2 and blas.threads() in (0, 2)


@pytest.mark.parametrize(("count", "error", "said"), [
    (0, ValueError, "count=0 given to set_num_threads; wanted 1 to 256 threads"),
    (257, ValueError, "count=257 given to set_num_threads; wanted 1 to 256 threads"),
    (2.0, TypeError, "2.0"), (True, TypeError, "True"), ("2", TypeError, "'2'"),
])
def test_a_wrong_number_changes_nothing(count, error: type[Exception], said: str) -> None:
    before = gt.get_num_threads()
    with pytest.raises(error, match=said):
        gt.set_num_threads(count)
    assert gt.get_num_threads() == before


# A large call starts threads, a small one none; a fork has its own; a program ends while a thread
# of Python computes.
PROGRAM = """
import os, threading
import numpy as np
import gtensor as gt
from gtensor.nn.functional import gelu

def tasks():
    return len(os.listdir("/proc/self/task"))

gt.set_num_threads(3)
x = gt.tensor(np.linspace(-3, 3, 1 << 20, dtype=np.float32))
gelu(x[:1000])
found = [tasks()]
one = gelu(x).numpy()
found.append(tasks() - found[0])
child = os.fork()
if not child:
    same = np.array_equal(gelu(x).numpy(), one)
    os._exit(0 if same and tasks() == 3 else 1)
found.append(os.waitpid(child, 0)[1])

def compute():
    while True:
        gelu(x)

threading.Thread(target=compute, daemon=True).start()
gelu(x)
print(found[1:])
"""


@built
def test_large_calls_have_threads_also_in_a_fork_and_at_the_end() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[2, 0]\n", "")


@built
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_are_those_of_one_thread(dtype: type) -> None:
    values = np.random.default_rng().standard_normal(300_007).astype(dtype)
    x = gt.tensor(values, requires_grad=True)
    found = []
    for count in (1, 2, 5):
        gt.set_num_threads(count)
        x.grad = None
        y = gt.nn.functional.gelu(x)
        y.sum().backward()
        assert x.grad is not None
        found.append((y.detach().numpy().copy(), x.grad.numpy().copy()))
    for y, dx in found[1:]:
        assert np.array_equal(y, found[0][0]) and np.array_equal(dx, found[0][1])


@built
def test_workers_of_a_loader_compute_with_one_thread() -> None:
    gt.set_num_threads(3)
    pool = compiled.extension
    found = list(made_ahead(iter(range(4)), lambda job: pool.get_num_threads(), 2, 2))
    assert found == [1] * 4 and pool.get_num_threads() == 3
