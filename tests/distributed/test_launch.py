"""`gtensor launch`: several ranks of a command, how they end, and training under it."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from distributed.ranks import ROOT, start, until
from gtensor.cli import main
from gtensor.distributed import failing, keeper
from gtensor.distributed import launch as launching
from gtensor.distributed.environment import SECRET
from gtensor.system.installation import installation_of

HEAD = """
import os, pathlib, signal, sys, threading, time
import numpy as np
from gtensor import distributed
comm = distributed.init()
"""


def launch(*words: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Raises TimeoutExpired before a rank that waits for another gives up."""
    return start([sys.executable, "-m", "gtensor", "launch", "-n", str(ranks), *words])


def script(folder: Path, text: str) -> str:
    (folder / "job.py").write_text(HEAD + text)
    return str(folder / "job.py")


def test_ranks_have_one_communicator_and_share_the_processors(tmp_path: Path) -> None:
    path = script(tmp_path, """
total = comm.all_reduce(np.array([comm.rank + 1.0])).wait()[0]
threads = os.environ['MKL_NUM_THREADS']
sys.stdout.write(f"{comm.rank} of {comm.size} has {total}, {threads} {sys.argv[1:]}\\n")
sys.exit(3 if comm.rank == 1 else 0)
""")
    done = launch("--", sys.executable, path, "--lr", "1", ranks=3)
    each = max(1, len(os.sched_getaffinity(0)) // 3)
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} of 3 has 6.0, {each} ['--lr', '1']" for rank in range(3)]
    assert done.returncode == 3 and not done.stderr


@contextmanager
def running(folder: Path, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher whose ranks ignore SIGTERM and wait; in the end no process under it runs."""
    path = script(folder, """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"up{comm.rank}", "w").write(str(os.getpid()))
time.sleep(6000)
""")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's children ignore it
    launcher = subprocess.Popen(
        [sys.executable, "-m", "gtensor", "launch", "-n", str(ranks), "--", "python", path],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)})  # kills leave one
    signal.signal(signal.SIGHUP, before)
    told = [folder / f"up{rank}" for rank in range(ranks)]
    try:
        while not all(file.exists() and file.read_text() for file in told):
            assert launcher.poll() is None
            time.sleep(0.02)
        found = set(launching._descendants(launcher.pid))
        assert found > {int(file.read_text()) for file in told}
        yield launcher
        until(lambda: not any(map(failing._runs, found)))
    finally:
        launcher.kill()  # its ranks end with it


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_the_launcher(
    number: signal.Signals, ranks: int, tmp_path: Path
) -> None:
    ended = -number if number == signal.SIGKILL else 128 + number
    with running(tmp_path, ranks) as launcher:
        for _ in range(2):  # the second one while the first is obeyed
            launcher.send_signal(number)
        assert launcher.wait(600) == ended


def listening(process: int) -> list[str]:
    """The addresses at which a process listens, as the system writes them."""
    inodes = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            inodes.add(os.readlink(link))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in inodes:
                found.append(local)
    return found


def closes() -> bool:
    """Whether this Linux lets a user close a port to other machines, as it does from 5.7 on."""
    with socket.socket() as tried, suppress(PermissionError):
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        return True
    return False


def test_ranks_listen_at_loopback_only(tmp_path: Path) -> None:
    """And have not inherited the port of mpiexec, which listens everywhere; before Linux 5.7 they
    have."""
    with running(tmp_path, 2) as launcher:
        heard = [listening(int((tmp_path / f"up{rank}").read_text())) for rank in range(2)]
        launcher.send_signal(signal.SIGKILL)
        launcher.wait(600)
    for address in heard[0] + heard[1]:
        assert address.startswith("0100007F:") or (  # 127.0.0.1
            address.startswith("00000000:") and not closes())


def test_each_launch_has_a_secret_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    one = launching.environment(2, "folder", None)[SECRET]
    monkeypatch.setenv(SECRET, "")  # which is none
    other = launching.environment(2, "folder", None)[SECRET]
    assert one != other and len(bytes.fromhex(one)) == len(bytes.fromhex(other)) == 32
    monkeypatch.setenv(SECRET, "given")
    assert launching.environment(2, "folder", None)[SECRET] == "given"


@pytest.mark.parametrize("refused", [False, True])
def test_a_keeper_closes_inherited_ports_to_other_machines(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Linux lets it; else nothing changes."""
    class Older(socket.socket):
        def setsockopt(self, *_: Any) -> None:
            raise PermissionError

    stays = refused or not closes()
    with socket.create_server(("0.0.0.0", 0)) as port, socket.socket() as other:
        for each in (port, other):
            each.set_inheritable(True)
        with monkeypatch.context() as patched:
            if refused:
                patched.setattr(socket, "socket", Older)
            keeper.close_to_others()
        assert port.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) == (
            b"" if stays else b"lo\0")
        assert (port.get_inheritable(), other.get_inheritable()) == (stays, True)
        with socket.create_connection(("127.0.0.1", port.getsockname()[1])):
            pass


@pytest.mark.parametrize(("text", "told"), [
    ("if comm.rank == 1: raise KeyError('lost')\ncomm.barrier()", "rank 1 of 2: Traceback"),
    ("raise KeyError('lost')", "Traceback"),
    ("""
def work(): raise KeyError('lost')
if comm.rank == 1: threading.Thread(target=work).start()
comm.barrier()
""", "rank 1 of 2: Traceback"),
    ("""
import ctypes
from gtensor.distributed import mpi
class Stuck:
    def Abort(self, status): ctypes.PyDLL(None).sleep(6000)  # no thread of Python's runs meanwhile
if comm.rank == 1:
    mpi._ENDING, comm._engine._comm = 0.1, Stuck()
    raise KeyError('lost')
comm.barrier()
""", "rank 1 of 2: Traceback"),
], ids=["one rank", "all ranks", "a thread", "MPI does not end"])
def test_an_error_ends_all_ranks_and_is_shown_once(tmp_path: Path, text: str, told: str) -> None:
    done = launch("--", sys.executable, script(tmp_path, text))
    assert done.returncode == 1
    assert done.stderr.startswith(told) and done.stderr.count("KeyError: 'lost'") == 1
    assert "BAD TERMINATION" not in done.stdout + done.stderr


def test_a_rank_that_was_killed_is_named_with_what_the_others_waited_for(tmp_path: Path) -> None:
    done = launch("--", sys.executable, script(tmp_path, """
comm.all_reduce(np.ones(3))
if comm.rank == 1:
    other = pathlib.Path(os.environ["GTENSOR_LAUNCH_FOLDER"], "0")
    while b"broadcast" not in other.read_bytes(): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
comm.broadcast(np.ones((2, 2)))
"""))
    assert done.returncode
    lines = done.stderr.splitlines()
    assert lines[0].startswith("gtensor launch: rank 1 of 2 was ended by signal 9 (SIGKILL); its "
                               "last collective: rank 1 of 2: all_reduce of shape (3,)")
    assert lines[1].startswith("  rank 0 of 2: broadcast of shape (2, 2) and dtype float64 (")
    assert lines[1].endswith("job.py:12)") and len(lines) == 2


@pytest.mark.parametrize("victim", [0, 2])
def test_of_four_ranks_the_killed_one_is_named(victim: int, tmp_path: Path) -> None:
    done = launch("--", sys.executable, script(tmp_path, f"""
comm.barrier()
if comm.rank == {victim}: os.kill(os.getpid(), signal.SIGKILL)
comm.barrier()
"""), ranks=4)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr.startswith(
        f"gtensor launch: rank {victim} of 4 was ended by signal 9 (SIGKILL); its last collective: "
        f"rank {victim} of 4: barrier (")
    assert done.stderr.count("\n") == 4


@pytest.mark.parametrize(("end", "told"), [
    ("os._exit(0)", "rank 1 of 2 ended with status 0, and the others with it; its last collective: "
                    "rank 1 of 2: all_reduce of shape (3,)"),
    ("sys.exit(0)", "rank 1 of 2 has ended, and this call waits for it: rank 0 of 2: barrier ("),
])
def test_a_rank_that_ends_in_the_middle_is_named_at_once(
    end: str, told: str, tmp_path: Path
) -> None:
    """With status 0; before the deadline, which is behind that of the test."""
    done = launch("--", sys.executable, script(tmp_path, f"""
comm.all_reduce(np.ones(3))
if comm.rank == 1: {end}
comm.barrier()
"""))
    assert done.returncode == 1 and done.stderr.startswith(f"gtensor launch: {told}"), done.stderr


def test_a_rank_that_ends_before_it_joins_is_named_at_once(tmp_path: Path) -> None:
    """MPI's own initialization of the others has no deadline."""
    (tmp_path / "job.py").write_text("""
import os, sys
if os.environ["PMI_RANK"] == "1": sys.exit(0)
from gtensor import distributed
distributed.init()
""")
    done = launch("--", sys.executable, str(tmp_path / "job.py"))
    assert done.returncode == 1
    assert done.stderr.startswith("gtensor launch: rank 1 of 2 has ended before it had joined, "
                                  "and this call waits for it: init (")
    assert done.stderr.endswith("job.py:5)\n")


def test_a_rank_may_end_before_others_that_need_it_no_more(tmp_path: Path) -> None:
    done = launch("--", sys.executable, script(tmp_path, """
own = comm.split(comm.rank)
comm.barrier()
if comm.rank == 0:
    while not pathlib.Path(os.environ["GTENSOR_LAUNCH_FOLDER"], "left1").exists(): time.sleep(0.01)
    for _ in range(9): own.barrier()
"""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("call", "told"), [
    ("0:3", None),  # which rank 1 has made, too
    ("0.3.0:9", None),  # in a group without rank 1
    ("0:4", "rank 1 of 2 has ended, and this call waits for it: rank 0 of 2: barrier (job.py:7)"),
])
def test_a_rank_waits_for_one_that_left_before_its_call(
    call: str, told: str | None, tmp_path: Path
) -> None:
    """Each time the launcher looks."""
    line = f"77 {call} rank 0 of 2: barrier (job.py:7)"
    (tmp_path / "0").write_bytes(line.encode().ljust(failing.BYTES))
    (tmp_path / "1").write_bytes(b"78 0:3 rank 1 of 2: barrier (job.py:5)".ljust(failing.BYTES))
    (tmp_path / "left1").write_text('{"0": 3, "0.3.1": 1}')
    assert [failing.abandoned(tmp_path, 2) for _ in range(2)] == [told] * 2


@pytest.mark.parametrize(("ends", "left", "joined", "first"), [
    ("2 -11\n1 -9\n", "", "0123", (2, -11)),
    ("1 0\n0 1\n", "", "0123", (1, 0)),
    ("1 0\n0 1\n", "1", "0123", (0, 1)),
    ("3 0\n2 3\n", "", "", (2, 3)),
    ("3 0\n", "", "", (3, 0)),
    ("3 0\n2 0\n", "", "", None),  # one of them was needed, without a word
    ("1 -6\n", "1", "1", (1, -6)),
    ("", "", "01", None),
])
def test_the_first_rank_that_ended_before_its_time(
    ends: str, left: str, joined: str, first: Any, tmp_path: Path
) -> None:
    (tmp_path / keeper.ENDS).write_text(ends)
    for rank in left:
        (tmp_path / f"left{rank}").write_text('{"0": 3}')
    for rank in joined:
        (tmp_path / rank).write_bytes(b"77 0:3 barrier".ljust(failing.BYTES))
    assert failing.first_early(tmp_path) == first


def test_an_end_that_nobody_noted_is_that_of_a_rank(tmp_path: Path) -> None:
    assert launching._early(tmp_path, 4, 0) == (
        1, "a rank of 4 ended early, and mpiexec ended the others with status 0")


def test_an_abort_after_the_end_of_another_rank_is_not_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setenv(failing.FOLDER, str(tmp_path))
    (tmp_path / "0").write_bytes(f"{gone.pid} 0:1 barrier".encode().ljust(failing.BYTES))
    failing.note_abort(1)
    assert failing.aborted(tmp_path) is None
    (tmp_path / "0").write_bytes(f"{os.getpid()} 0:1 barrier".encode().ljust(failing.BYTES))
    for status in (3, 1):  # the first one counts
        failing.note_abort(status)
    assert failing.aborted(tmp_path) == 3 and len(failing.noted(tmp_path)) == 1


def test_ctrl_c_is_passed_on_also_while_the_launcher_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Mock()
    process.wait.side_effect = [subprocess.TimeoutExpired("mpiexec", 1), 0]
    monkeypatch.setattr(launching, "abandoned", Mock(side_effect=KeyboardInterrupt))
    assert launching._waited(process, tmp_path, 2) == (0, None)
    process.send_signal.assert_called_once_with(signal.SIGINT)


def test_a_rank_that_hangs_is_found_at_the_deadline(tmp_path: Path) -> None:
    done = launch("--timeout", "1", "--", sys.executable, script(tmp_path, """
if comm.rank == 0: time.sleep(600)
comm.barrier()
"""))
    assert done.returncode == 1
    assert "CollectiveTimeout: rank 1 of 2: barrier (" in done.stderr
    assert "job.py:8) did not end within 1 s" in done.stderr and "MPI_Abort" not in done.stderr


@pytest.mark.parametrize(("words", "told"), [
    (["--"], "was given no command; wanted one, such as"),
    (["--", "no-such-command"], "the command 'no-such-command', which was not found"),
])
def test_mistakes_are_one_sentence(words: list[str], told: str,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-n", "2", *words]) == 1
    found = capsys.readouterr().err
    assert told in found and found.count("\n") == 1


def test_without_mpi_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "-n", "2", "--", "python"]) == 1
    assert installation_of("mpi") in capsys.readouterr().err


# -- training --------------------------------------------------------------------------------------

SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--length", "16", "--batch-size", "9"]


def command(folder: Path, ranks: int, *more: str) -> list[str]:
    (folder / "book.txt").write_bytes(b"the cat sat on the mat; the dog ran to the man. " * 40)
    words = [sys.executable, "-m", "gtensor", "train", "text", "--data", str(folder / "book.txt"),
             *SMALL, "--out", str(folder / "run"), *more]
    if ranks > 1:
        words = [sys.executable, "-m", "gtensor", "launch", "-n", str(ranks), "--", *words]
    return words


def train(folder: Path, ranks: int, *more: str) -> subprocess.CompletedProcess[str]:
    return start(command(folder, ranks, *more))


def interrupted(folder: Path, ranks: int, rows: int, *more: str) -> None:
    """A run of hundreds of epochs that Ctrl-C ends once it has so many."""
    running = subprocess.Popen(
        command(folder, ranks, "--epochs", "999", *more), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    while not (folder / "run" / "metrics.csv").exists() or len(losses(folder)) < rows:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=900)
    assert running.returncode == 130, (out, err)
    assert out.count("Interrupted in epoch") == 1 and "Traceback" not in err


def losses(folder: Path) -> np.ndarray:
    with (folder / "run" / "metrics.csv").open() as file:
        return np.array([[float(row[name]) for name in (
            "training_loss", "held_out_nats_per_byte", "gradient_norm", "weight_norm")]
            for row in csv.DictReader(file)])


def test_training_is_that_of_one_process_and_goes_on_with_other_ranks(tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir(), several.mkdir()
    done = train(one, 1, "--epochs", "3")
    assert done.returncode == 0, done.stderr
    done = train(several, 3, "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Held-out nats per byte") == 1 and not done.stderr
    np.testing.assert_allclose(losses(several), losses(one), rtol=1e-5)
    assert {p.name for p in (several / "run").iterdir()} == {
        "checkpoint.safetensors", "loss.png", "memory.png", "metrics.csv"}


def test_a_recipe_of_several_ranks_trains_the_same_captured(tmp_path: Path) -> None:
    found = []
    for capture in ("yes", "no"):
        done = launch("--", sys.executable, "-m", "gtensor", "train", "digits", "--epochs", "1",
                      "--batch-size", "101", "--capture", capture, "--out",
                      str(tmp_path / capture))
        assert done.returncode == 0 and not done.stderr, done.stderr
        found.append((tmp_path / capture / "metrics.csv").read_text())
    assert found[0] == found[1]


def test_the_memory_of_a_ranks_step_adds_up(tmp_path: Path) -> None:
    """Both norms with the rank's half of a batch, and the buckets of its gradients."""
    done = launch("--", sys.executable, "-m", "gtensor", "train", "digits", "--epochs", "1",
                  "--batch-size", "512", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "training step of rank 0 of 2 went" in done.stdout
    rows = {line.split()[1]: [
        float(number.replace(",", "")) * (1024 if unit == "MiB" else 1)
        for number, unit in re.findall(r"([\d,.]+) (KiB|MiB)", line)]
        for line in done.stdout.splitlines() if line.startswith("│ ")}
    parts = np.array([rows[name] for name in (
        "parameters", "optimizer", "data", "gradients", "saved", "workspace", "temporary")])
    np.testing.assert_allclose(parts.sum(axis=0)[::2], rows["peak"][::2], rtol=0.01)
    assert rows["gradients"][0] == pytest.approx(rows["parameters"][0], rel=0.02)
    inplace, abn = rows["saved"][1::2]
    assert abn - inplace == pytest.approx(256 * 32 * 8 * 8 * 4 / 1024, rel=0.02)


def test_an_interrupt_of_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import signal, sys
import numpy as np
import gtensor as gt

class Interrupt(gt.train.Callback):
    def after_step(self, trainer):
        if len(trainer.progress.losses) == 3 and trainer.comm.rank == 1:
            signal.raise_signal(signal.SIGINT)

net = gt.nn.Linear(2, 1)
points = gt.data.ArrayDataset(np.ones((20, 2), np.float32))
trainer = gt.train.Trainer(
    net, gt.optim.SGD(net.parameters(), lr=0.1), lambda net, x: net(x).mean(), points,
    batch_size=4, epochs=9, folder=sys.argv[1], callbacks=[Interrupt()])
try:
    trainer.fit()
except gt.train.Interrupted:
    print(f"rank {trainer.comm.rank}: {len(trainer.progress.losses)} steps")
""")
    done = launch("--", sys.executable, str(program), str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    told = re.findall(r"rank \d: \d+ steps", done.stdout)  # lines of two ranks may be joined
    assert {*told} == {"rank 0: 3 steps", "rank 1: 3 steps"}
    assert done.stdout.count("Interrupted in epoch 1; saved to") == 1


def test_ctrl_c_saves_once_and_fewer_ranks_go_on(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    interrupted(whole, 1, 8)
    interrupted(parts, 2, 2)
    interrupted(parts, 1, len(losses(parts)) + 4, "--resume")
    both = min(len(losses(whole)), len(losses(parts)), 8)
    assert both >= 6
    np.testing.assert_allclose(losses(parts)[:both], losses(whole)[:both], rtol=1e-4)
