"""Where processes meet without MPI: strangers at the port, and ranks that do not fit together."""

from __future__ import annotations

import errno
import hmac
import os
import socket
import struct
import threading
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from distributed.ranks import Meeting as Threads
from distributed.ranks import free_port, in_threads, until
from distributed.test_communicator import DIFFERENT
from gtensor.distributed import Communicator, DistributedError, environment, tcp
from gtensor.distributed.environment import SECRET, Meeting

SECONDS = 600.0  # of a meeting
KEY = "that of the tests"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, KEY)


class Ranks:
    """Ranks that meet at a port, each in a thread: their connections, or their errors."""

    def __init__(self, size: int) -> None:
        self.size, self.port = size, free_port()
        self.found: dict[int, Any] = {}
        self.threads: list[threading.Thread] = []

    def start(self, rank: int) -> None:
        def meet() -> None:
            try:
                self.found[rank] = tcp.world(
                    Meeting(rank, self.size, "127.0.0.1", self.port), SECONDS)
            except DistributedError as error:
                self.found[rank] = error

        self.threads.append(threading.Thread(target=meet))
        self.threads[-1].start()

    def stranger(self) -> socket.socket:
        """A connection of something else, once rank 0 listens."""
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), SECONDS)
            except ConnectionRefusedError:
                assert self.threads[0].is_alive()

    def joined(self) -> dict[int, Any]:
        for thread in self.threads:
            thread.join()
        return self.found


def closed(stars: dict[int, Any]) -> None:
    for star in stars.values():
        for link in star._links:
            link.close()


def exchanged(stars: dict[int, Any]) -> dict[int, Any]:
    texts: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda r=rank, s=star: texts.update(
        {r: s.exchange(str(r).encode(), SECONDS)})) for rank, star in stars.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def read(link: socket.socket, most: int) -> bytes:
    """So many bytes, or all until the end."""
    found = b""
    while len(found) < most and (part := link.recv(most - len(found))):
        found += part
    return found


def hello(link: socket.socket, rank: int, size: int, key: str = KEY) -> None:
    """What a process says that takes this text for the secret."""
    _, number = tcp._CHALLENGE.unpack(read(link, tcp._CHALLENGE.size))
    said = struct.pack("!II16s", rank, size, bytes(16))
    link.sendall(said + hmac.digest(key.encode(), b"rank" + number + said, "sha256"))


def test_strangers_hold_up_nobody_and_do_not_come_in() -> None:
    """Silent ones that stay, half a hello, another protocol, a hello signed with another text."""
    ranks = Ranks(3)
    ranks.start(0)
    with ExitStack() as open_links:
        for what in [b""] * 40 + [b"half", b"GET / HTTP/1.1\r\n\r\n" * 9, b"\xff" * 4096]:
            link = open_links.enter_context(ranks.stranger())
            link.sendall(what)
        other = open_links.enter_context(ranks.stranger())
        hello(other, 1, 3, "a guess")
        assert other.recv(1) == b""  # closed, without a signature
        ranks.start(2)
        ranks.start(1)
        stars = ranks.joined()
    assert exchanged(stars) == {rank: [b"0", b"1", b"2"] for rank in range(3)}
    assert stars[0].exchange(b"", 0.1) is None
    for link in stars[1]._links:
        link.close()
    with pytest.raises(DistributedError, match="rank 0 of 3: a connection to another rank has"):
        stars[0].exchange(b"", SECONDS)
    closed(stars)


def test_a_slow_rank_is_not_pushed_out_by_those_that_come_after_it(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_GUESTS", 0)  # so six may be silent
    ranks = Ranks(3)
    ranks.start(0)
    with ranks.stranger() as slow, ExitStack() as open_links:
        strangers = [open_links.enter_context(ranks.stranger()) for _ in range(9)]
        for stranger in strangers[:5]:
            assert len(read(stranger, tcp._CHALLENGE.size)) == tcp._CHALLENGE.size
        hello(slow, 1, 3)
        assert read(slow, tcp._SIGNATURE + 4)[-4:] == bytes(4)  # accepted
        monkeypatch.setattr(tcp, "_AGE", 0.0)
        ranks.start(2)
        assert read(slow, 4) == bytes(4)  # so is rank 2, for whom the strangers were dropped
        closed(ranks.joined())


def test_rank_0_pauses_while_it_has_too_many_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Full(socket.socket):
        def accept(self) -> Any:
            tried.append(self)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(tcp, "_PAUSE", SECONDS)
    monkeypatch.setattr(tcp, "_left", Mock(side_effect=[0.05, 0.05, 0.05, TimeoutError]))
    with (Full(fileno=socket.create_server(("127.0.0.1", 0)).detach()) as server,
          socket.create_connection(server.getsockname()), pytest.raises(TimeoutError)):
        tcp._accepted(server, 2, 0.0)
    assert len(tried) == 1


def test_texts_are_gathered_in_the_order_of_calls_and_no_call_waits() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        ranks.start(rank)
    stars = ranks.joined()
    early = [stars[0].gather(text) for text in (b"a", b"b")]
    assert not early[0].done() and early[1].wait(0.0) is None
    late = [stars[1].gather(text) for text in (b"c", b"d")]
    until(lambda: all(turn.done() for turn in early + late))
    assert [turn.wait(0.0) for turn in early + late] == [[b"a", b"c"], [b"b", b"d"]] * 2
    closed(stars)


class OverTcp(Threads):
    """The engine of one thread, with what processes of NCCL have without MPI."""

    def __init__(self, meeting: Any, rank: int, star: tcp.Star) -> None:
        super().__init__(meeting, rank)
        self.exchange, self.gather = star.exchange, star.gather  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", DIFFERENT)
def test_calls_that_differ_are_named_whatever_the_ranks_have_called_since(kind: str) -> None:
    """Before rank 0 makes its call, ranks 1 and 2 make one and two more, which go on."""
    ranks = Ranks(3)
    for rank in range(3):
        ranks.start(rank)
    stars, ahead = ranks.joined(), threading.Barrier(3)

    def run(given: Any) -> str:
        comm = Communicator(OverTcp(given._engine.meeting, given.rank, stars[given.rank]), SECONDS)
        a, b = np.ones(2), np.ones((3, 2))
        if not comm.rank:
            ahead.wait(SECONDS)
        with pytest.raises(DistributedError) as error:
            work = DIFFERENT[kind][comm.rank > 0](comm, a, b, True)
            for _ in range(comm.rank):
                comm.all_reduce(np.ones(2), async_op=True)
            if comm.rank:
                ahead.wait(SECONDS)
            work.wait()
        return str(error.value)

    told, = {*in_threads(3, run)}
    assert told.startswith("the ranks make different calls: rank 0 of 3: ")
    assert "; rank 1 of 3: " in told and told.count("test_communicator.py:") == 2
    closed(stars)


def test_no_more_than_a_hello_is_read_before_it_is_accepted() -> None:
    with (socket.create_server(("127.0.0.1", 0)) as server,
          socket.create_connection(server.getsockname()) as stranger, server.accept()[0] as link):
        stranger.sendall(bytes(4096))
        until(lambda: len(link.recv(8192, socket.MSG_PEEK)) == 4096)
        with pytest.raises(ConnectionError, match="does not know the secret"):
            tcp._Guest(link).hello()
        assert len(link.recv(8192)) == 4096 - tcp._HELLO.size


@pytest.mark.parametrize(("said", "told"), [
    ((5, 2), "a process is rank 5 of 2; wanted one of 1 to 1"),
    ((0, 2), "a process is rank 0 of 2; wanted one of 1 to 1"),
    ((1, 3), "rank 1 was told of 3 ranks and rank 0 of 2"),
])
def test_ranks_that_do_not_fit_together_are_told(said: tuple[int, int], told: str) -> None:
    ranks = Ranks(2)
    ranks.start(0)
    with ranks.stranger() as link:
        hello(link, *said)
        assert str(ranks.joined()[0]) == told
        answer = read(link, 4096)
    assert answer[tcp._SIGNATURE + 4:].decode() == told


def test_two_processes_of_one_rank() -> None:
    ranks, told = Ranks(3), "two processes are rank 1"
    ranks.start(0)
    with ranks.stranger() as first, ranks.stranger() as second:
        hello(first, 1, 3)
        assert read(first, tcp._SIGNATURE + 4)[-4:] == bytes(4)  # accepted
        hello(second, 1, 3)
        assert str(ranks.joined()[0]) == told
        assert read(first, 4096)[4:].decode() == told
        assert read(second, 4096)[tcp._SIGNATURE + 4:].decode() == told


@pytest.mark.parametrize("answer", [bytes(tcp._SIGNATURE + 8), b""], ids=["yes", "no"])
def test_rank_0_must_know_the_secret_too(answer: bytes) -> None:
    """Another process has taken the port, and says yes to all; or the rank's secret is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def pretend() -> None:
            link, _ = server.accept()
            with link:
                link.sendall(tcp._CHALLENGE.pack(tcp._NAME, bytes(16)))
                read(link, tcp._HELLO.size)
                link.sendall(answer)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(DistributedError, match=f"rank 1 of 2: rank 0 at 127.0.0.1:{port} has "
                                                   f"ended, or has another {SECRET}"):
            tcp.world(Meeting(1, 2, "127.0.0.1", port), SECONDS)
        thread.join()


def test_without_a_secret_only_this_machine_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET)
    for rank in range(2):
        with pytest.raises(DistributedError, match=f"{SECRET} is not set, and other machines reach "
                                                   "rank 0 at 192.0.2.1; wanted one long random"):
            tcp.world(Meeting(rank, 2, "192.0.2.1", 29500), SECONDS)
    ranks = Ranks(2)
    for rank in range(2):
        ranks.start(rank)
    closed(ranks.joined())


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DistributedError, match=f"cannot listen at 127.0.0.1:{port}"):
            tcp.world(Meeting(0, 2, "127.0.0.1", port), 1.0)


def test_variables_that_are_no_meeting() -> None:
    given = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
    with patch.dict(os.environ, given), pytest.raises(DistributedError, match="RANK='2', WORLD_SI"):
        environment.meeting()
    given |= {"RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with patch.dict(os.environ, given):
        assert environment.meeting() == Meeting(1, 2, "host", 2)
