"""Runs one rank of `gtensor launch`, and notes how it ended before MPI's starter hears of it.

    python -I -S keeper.py FOLDER COMMAND ...

When a rank ends early, MPI's starter kills the others, and tells of whichever it finds first. This
process shares the rank's connections to the starter. So the starter notices an end only after this
process has noted it and has ended, too: the first line of the notes is the first end.

It imports nothing of gtensor, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

ENDS = "ends"  # the notes: a line for each end, with the rank, and its status or -signal
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_IGNORED = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)  # that Python handles itself


def main(folder: str, *command: str) -> NoReturn:
    """Run the command, note its end, and end alike."""
    # Signals for the rank reach this process, too, which has to survive them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    close_to_others()
    prctl, keeper = ctypes.CDLL(None).prctl, os.getpid()
    child = os.fork()
    if not child:
        prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
    with suppress(OSError):  # the launcher has ended, and its folder is gone
        file = os.open(os.path.join(folder, ENDS), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{rank} {code}\n".encode())
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own is enough
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(keeper, -code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    os._exit(code % 256)


def close_to_others() -> None:
    """Let only this machine reach the ports that this process has inherited.

    MPICH's mpiexec listens on all interfaces, has no setting for it, and hands its port down.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as port:
            if port.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                port.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
                os.set_inheritable(int(name), False)


if __name__ == "__main__":
    main(*sys.argv[1:])
