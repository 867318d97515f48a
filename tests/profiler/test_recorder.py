"""What a profile records: every op with its work, launches, device time, module and user line."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.tape.op import registry
from gtensor.profiler.work import NOTHING, PathWork, Work, path_work, rule_work
from gtensor.system.bus import ListenerError, bus, here


class Net(gt.nn.Module):
    def __init__(self, device="cpu"):
        super().__init__()
        self.first = gt.nn.Linear(6, 5, device=device)
        self.last = gt.nn.Linear(5, 3, device=device)

    def forward(self, x):
        return self.last(gt.nn.functional.relu(self.first(x)))


def training(device="cpu"):
    """A step of Adam on a new network, its second one."""
    net, loss = Net(device), gt.nn.CrossEntropyLoss()
    optimizer = gt.optim.Adam(net.parameters(), lr=1e-3)
    rng = np.random.default_rng()
    x = gt.tensor(rng.standard_normal((7, 6)).astype(np.float32), device=device)
    target = gt.tensor(rng.integers(0, 3, 7), device=device)

    def step():
        optimizer.zero_grad()
        loss(net(x), target).backward()  # the line of the pass
        optimizer.step()  # the line of the update

    step()
    return step


def ops(profile):
    return [span for span in profile.spans if span.kind == "op"]


def test_a_step_is_recorded_with_its_work():
    step = training()
    with gt.profiler.profile() as p:
        step()
    assert not bus.listeners
    spans = [span for span in p.spans if span.kind in ("op", "phase")][-12:]
    names = [(span.name, span.phase, span.module) for span in spans if span.kind == "op"]
    assert names == [
        ("linear", "forward", "Net.first"), ("relu", "forward", "Net"),
        ("linear", "forward", "Net.last"), ("cross_entropy", "forward", "CrossEntropyLoss"),
        ("gradient", "backward", "CrossEntropyLoss"),
        ("cross_entropy", "backward", "CrossEntropyLoss"), ("linear", "backward", "Net.last"),
        ("relu", "backward", "Net"), ("linear", "backward", "Net.first"),
        ("adam", "update", "Adam")]
    first, last = spans[0], spans[-3]
    assert (first.read, first.written, first.flops) == (4 * (42 + 30 + 5), 4 * 35, 2 * 7 * 6 * 5)
    # its rule reads g and x, and writes the gradients of weight and bias: one product
    assert last.name == "linear" and p.spans[last.link] == first
    assert (last.read, last.written, last.flops) == (4 * (35 + 42), 4 * 35, 2 * 7 * 6 * 5)
    assert all("self.last(" in span.source for span in (*spans[:3], *spans[-5:-2]))
    assert all("the line of the pass" in span.source for span in spans[3:7])
    assert all("the line of the update" in span.source for span in spans[-2:])
    around = {(s.name, s.phase): p.spans[s.parent].name for s in ops(p)}
    assert around["relu", "forward"] == "Net" and around["linear", "forward"] == "Net.last"
    assert around["linear", "backward"] == "backward" and around["adam", "update"] == "update"
    last, = [s for s in p.spans if s.name == "Net.last"]
    assert (last.kind, last.module, p.spans[last.parent].name) == ("module", "Net.last", "Net")


def test_times_nest_and_fill_no_more_than_the_block():
    step = training()
    with gt.profiler.profile() as p:
        step()
    for span in p.spans:
        assert 0 <= span.start <= span.start + span.seconds <= p.seconds
        if span.parent is not None:
            around = p.spans[span.parent]
            assert around.start <= span.start
            assert span.start + span.seconds <= around.start + around.seconds + 1e-12
    starts = [span.start for span in p.spans]
    assert starts == sorted(starts)


def test_a_recorded_walk_counts_its_ops_and_not_the_rule_around_them():
    x = gt.ones((4, 4), requires_grad=True)
    with gt.profiler.profile() as p:
        (x @ x).sum().backward(create_graph=True)
    rule = next(s for s in p.spans if (s.name, s.phase) == ("matmul", "backward") and s.link == 0)
    inside = [s for s in p.spans if s.parent is not None and p.spans[s.parent] is rule]
    assert (rule.read, rule.written, rule.flops) == NOTHING
    assert sum(s.flops for s in inside if s.name == "matmul") == 2 * 2 * 4**3


def test_a_path_that_was_not_recorded_is_not_linked():
    x = gt.ones(3, requires_grad=True)
    y = (x * x).sum()
    with gt.profiler.profile() as p:
        y.backward()
    assert all(span.link is None for span in p.spans)


def test_another_op_is_never_linked():
    """A record has the number of the path told last: a path that was not told has an older one."""
    x = gt.ones(3, requires_grad=True)
    with gt.profiler.profile() as p:
        y = x * x
        y._node.number = here.number = here.number + 1
        gt.exp(gt.ones(3))
        y.sum().backward()
    assert next(s for s in ops(p) if (s.name, s.phase) == ("multiply", "backward")).link is None


def test_threads_are_told_apart():
    def work():
        gt.ones(3) + 1.0

    with gt.profiler.profile() as p:
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [span.thread for span in p.spans] == [0, 1]


def test_large_blocks_are_counted_with_what_was_reused():
    def work():
        return gt.ones(1 << 20) + 1.0

    x = gt.ones(1 << 20)
    del x
    with gt.profiler.profile() as p:
        y = work()
        del y
        work()
    assert [(s.allocations, s.allocated, s.reused) for s in p.spans[-1:]] == [(1, 1 << 22, 1)]
    assert p.live and all(device == "cpu" and live >= 1 << 22 for _, device, live in p.live)


def test_an_error_is_recorded_and_ends_its_span():
    with gt.profiler.profile() as p, pytest.raises(ValueError):
        gt.ones(2) + gt.ones(3)
    assert [(s.name, s.written) for s in p.spans] == [("add", 0)]


def test_a_row_whose_noting_is_interrupted_leaves_nothing():
    x = gt.ones(3)
    with gt.profiler.profile() as p:
        x + 1.0
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ListenerError):
            patch.setattr("gtensor.profiler.recorder._nbytes", lambda x: 1 / 0)
            gt.concat([x, x[:2]])
        x * 2.0
    assert [s.name for s in ops(p) if s.name != "slice"] == ["add", "multiply"]


def test_what_is_repeated_or_left_out_is_not_read():
    table, wide = gt.ones((1000, 8)), gt.broadcast_to(gt.ones((100, 4))[:1], (50, 4))
    with gt.profiler.profile() as p:
        table[gt.tensor([1, 2, 3])]
        wide + 1.0
    reads = {s.name: s.read for s in ops(p)}
    assert (reads["gather"], reads["add"]) == (3 * 8 * 4 + 3 * 8, 4 * 4 + 4)  # and the 1.0


def test_ranges_that_overlap_are_all_kept():
    def generator():
        with gt.profiler.range("first"):
            yield

    with gt.profiler.profile() as p:
        late = generator()
        next(late)
        with gt.profiler.range("second"):
            late.close()
    assert {s.name for s in p.spans} == {"first", "second"}


def test_a_profile_is_not_read_within_its_block():
    with gt.profiler.profile() as p:
        with pytest.raises(gt.profiler.ProfileError, match="within its block; wanted after"):
            _ = p.spans
        gt.ones(3) + 1.0
    assert len(p.spans) == 1 and repr(p).startswith("<Profile of 1 spans")


@pytest.mark.parametrize("steps", [5, (1,), (1, 0), (-1, 2), (1.0, 2)])
def test_steps_that_are_none_are_refused(steps):
    with (pytest.raises((TypeError, ValueError), match="steps=.*; wanted .*integers"),
          gt.profiler.profile(steps=steps)):
        pass


def test_a_profile_within_a_profile():
    with gt.profiler.profile() as outer:
        gt.ones(3) + 1.0
        with gt.profiler.profile() as inner:
            gt.ones(3) * 2.0
    assert [s.name for s in inner.spans] == ["multiply"]
    assert [s.name for s in outer.spans] == ["add", "multiply"]


def test_work_by_hand():
    conv, gelu, reshape = registry["conv2d"], registry["silu"], registry["reshape"]
    shapes = [(2, 3, 8, 8), (4, 3, 3, 3), (4,), (2, 4, 6, 6)]
    assert path_work(conv, [1536, 432, 16], 288, 4, 0, shapes) == Work(
        1984, 1152, 2 * 288 * 27)
    assert path_work(gelu, [40], 10, 4, 0, None) == Work(40, 40, 20)
    assert path_work(reshape, [40], 10, 4, 0, None) == NOTHING
    path = PathWork(0, "conv2d", [1536, 432, 16], shapes, Work(1984, 1152, 100))
    assert rule_work(conv, [1152, 1536], 0b111, path) == Work(2688, 1984, 200)
    assert rule_work(conv, [1152, 1536], 0b110, path) == Work(2688, 448, 100)
    assert rule_work(conv, [1152, 1536], 0b110, None) == Work(2688, 2304, 0)


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.host_cuda
def test_launches_and_device_times_add_up_to_the_counters():
    from gtensor import hostcuda

    step = training("cuda")
    step()
    gt.device("cuda").synchronize()
    hostcuda.reset_counters()
    with gt.profiler.profile() as p:
        step()
    gt.device("cuda").synchronize()
    found = hostcuda.counters()
    synchronizations = found.synchronizations
    assert sum(span.launches for span in ops(p)) == found.launches > 10
    assert sum(span.device_seconds for span in ops(p)) == pytest.approx(
        sum(found.seconds.values()), rel=1e-3)
    assert all(span.module and span.source for span in ops(p) if span.launches)
    assert synchronizations == 1  # the test's own
    assert all(span.device_start >= 0 for span in ops(p))


@pytest.mark.gpu
def test_a_gpu_and_the_host_have_one_time_axis():
    x = gt.ones(8, device="cuda")
    x + 1.0
    with gt.profiler.profile() as p:
        time.sleep(0.05)
        x + 1.0
    assert ops(p)[0].device_start >= 0.05


@pytest.mark.gpu
def test_what_is_captured_has_no_time_and_a_profile_waits_for_nothing():
    x = gt.ones(8, device="cuda")
    x + 1.0
    graph = gt.Graph("cuda")
    with gt.profiler.profile() as p:
        with graph.capture():
            y = x + 1.0
        graph.replay()
    assert [(s.name, s.device_seconds) for s in ops(p)] == [("add", None)]
    assert y.sum().item() == 16
