"""Graphs that cannot be walked: consumed, overwritten, in use elsewhere. Errors name the line."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.tape.op import Op

HERE = r"\(.*test_graph_states\.py:"


def leaf(*values: float) -> gt.Tensor:
    return gt.tensor(list(values), dtype=gt.float64, requires_grad=True)


def line_of(text: str) -> int:
    """The number of the one line of this file that ends with `text` as a comment."""
    with open(__file__) as lines:
        found = [n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}")]
    assert len(found) == 1
    return found[0]


# -- consumed -------------------------------------------------------------------------------------


def test_a_consumed_graph_names_the_op_and_the_line():
    x = leaf(1, 2)
    y = gt.exp(x)  # line A
    loss = y.sum()  # line B
    loss.backward()
    with pytest.raises(gt.GradientError, match=(
            rf"sum {HERE}{line_of('line B')}: loss = y.sum\(\)  # line B\) was consumed by an "
            r"earlier backward; .*retain_graph=True")):
        loss.backward()
    with pytest.raises(gt.GradientError, match=rf"exp {HERE}{line_of('line A')}: "):
        (y * 2.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.exp([1, 2]))


def test_operators_and_methods_name_the_users_line_too():
    x = leaf(1, 2)
    cases = [
        (lambda: x * 2.0, "multiply", "line C"),  # line C
        (lambda: 2.0 - x, "subtract", "line D"),  # line D
        (lambda: x.tanh(), "tanh", "line E"),  # line E
        (lambda: x[0], "", "line F"),  # line F
        (lambda: x.reshape((1, 2)), "reshape", "line G"),  # line G
        (lambda: gt.mean(x), "mean", "line H"),  # line H
        (lambda: gt.concat([x, x]), "concat", "line I"),  # line I
    ]
    for build, name, line in cases:
        y = build()
        one = gt.ones(y.shape, dtype=gt.float64)
        y.backward(one)
        with pytest.raises(gt.GradientError, match=rf"{name}.* {HERE}{line_of(line)}: .*consumed"):
            y.backward(one)


def test_nothing_is_written_when_a_graph_is_refused():
    x, w = leaf(1, 2), leaf(3, 4)
    consumed = (x * 2.0).sum()
    consumed.backward()
    x.grad = None
    with pytest.raises(gt.GradientError):
        ((w * 3.0).sum() + consumed).backward()
    assert x.grad is None and w.grad is None
    fresh = (w * 3.0).sum()
    with pytest.raises(gt.GradientError):
        (fresh + consumed).backward()
    fresh.backward()  # it was not consumed by the refused walk
    assert w.grad.tolist() == [3, 3]


def test_gradients_of_a_consumed_graph_can_be_read():
    x = leaf(1, 2)
    y = x * 2.0
    y.retain_grad()
    loss = y.sum()
    loss.backward()
    assert y.grad.tolist() == [1, 1] and x.grad.tolist() == [2, 2] and loss.grad is None
    assert y.tolist() == [2, 4]


def test_retain_graph():
    x = leaf(1, 2)
    loss = gt.exp(x * x).sum()
    for k in (1, 2, 3):
        loss.backward(retain_graph=k < 3)
        np.testing.assert_allclose(x.grad.numpy(), k * 2 * np.array([1, 2]) * np.exp([1, 4]))
    with pytest.raises(gt.GradientError, match="consumed"):
        loss.backward()


def test_gt_grad_consumes_only_what_it_walks():
    x, w = leaf(1, 2), leaf(3, 4)
    of_x, of_w = x * 2.0, gt.exp(w)
    gt.grad((of_x + of_w).sum(), [x])
    of_w.sum().backward()
    with pytest.raises(gt.GradientError, match="consumed"):
        of_x.sum().backward()


def test_gt_grad_of_a_consumed_graph_is_not_called_independent():
    """A consumed record has no parents; what lies behind it must not be left out silently."""
    x = leaf(1, 2)
    y = gt.exp(x)  # line K
    y.sum().backward()
    for outputs in (y.sum(), (y + x).sum()):
        with pytest.raises(gt.GradientError, match=rf"exp {HERE}{line_of('line K')}: .*consumed"):
            gt.grad(outputs, [x], allow_unused=True)


# -- overwritten ----------------------------------------------------------------------------------


def test_an_overwritten_save_names_the_op_and_the_line():
    x = leaf(1, 2)
    y = gt.exp(x)  # line J
    y += 1.0
    with pytest.raises(gt.GradientError, match=(
            rf"an array that exp {HERE}{line_of('line J')}: y = gt.exp\(x\)  # line J\) saved for "
            r"its gradient was overwritten in place since; clone\(\)")):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("write", [
    lambda w: w.__iadd__(1.0), lambda w: w[0].__imul__(2.0), lambda w: w.detach().__isub__(1.0),
    lambda w: w.T.__iadd__(1.0), lambda w: w.reshape(4).__iadd__(1.0),
    lambda w: w.__setitem__((0, 0), 5.0)],
    ids=["itself", "a part", "detached", "transposed", "reshaped", "setitem"])
def test_every_way_to_overwrite_is_seen(write):
    x = gt.ones((2, 2), requires_grad=True)
    w = gt.ones((2, 2))
    loss = (x * w).sum()
    write(w)
    with pytest.raises(gt.GradientError, match=r"multiply .*overwritten"):
        loss.backward()


def test_writing_unsaved_memory_is_allowed():
    x = leaf(1, 2)
    y = x * 2.0  # saves the factor only
    y += 1.0
    z = y + 1.0
    z *= 3.0
    z.sum().backward()
    assert x.grad.tolist() == [6, 6] and z.tolist() == [12, 18]


def test_saves_are_made_only_for_inputs_that_need_them():
    x, w = leaf(1, 2), leaf(3, 4).detach()
    y = x * w  # the gradient of x needs w, no gradient needs x
    assert [s is None for s in y._node.saved] == [False, True]
    assert (x + w)._node.saved == ()
    assert all(np.ndim(s) == 0 for s in (x * 1.0)._node.saved if s is not None)  # the number only


# -- threads --------------------------------------------------------------------------------------


def run_in_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result(timeout=60)


def test_forward_here_backward_there():
    x = leaf(1, 2)
    loss = gt.exp(x * 2.0).sum()
    run_in_thread(loss.backward)
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp([2, 4]))


def test_modes_belong_to_a_thread():
    x = leaf(1, 2)
    with gt.no_grad():
        assert run_in_thread(lambda: (x * 2.0).requires_grad)
        assert not (x * 2.0).requires_grad


def test_threads_that_share_leaves_lose_no_gradient():
    """Each thread walks graphs of its own; they share the leaves."""
    threads, rounds = 4, 50
    x, w = leaf(1, 2), leaf(3, 4)
    start = threading.Barrier(threads)

    def work():
        start.wait(60)
        for _ in range(rounds):
            (x * w + x).sum().backward()

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work) for _ in range(threads)]:
            future.result(timeout=60)
    count = threads * rounds
    assert x.grad.tolist() == [4 * count, 5 * count]
    assert w.grad.tolist() == [count, 2 * count]


def paused_op(entered: threading.Event, go_on: threading.Event) -> Op:
    def rule(ns, step, g):
        entered.set()
        assert go_on.wait(60)
        step.give(0, g)

    return Op("paused", inputs="a", cpu=lambda a, out=None: np.array(a), gpu=None, backward=rule,
              tangent=None, samples=None)


def test_one_graph_in_two_threads_is_one_error():
    """The second walk is refused while the first is under way, and the first goes on unharmed."""
    x = leaf(1, 2)
    entered, go_on = threading.Event(), threading.Event()
    middle = gt.exp(x)
    loss = paused_op(entered, go_on)(middle * 1.0).sum()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(loss.backward)
        try:
            assert entered.wait(60)
            # The same graph, and ones that share a part; a refusal must not free what others walk.
            for root in (loss, *[(middle * 3.0).sum() for _ in range(3)]):
                with pytest.raises(gt.GradientError, match=(
                        rf"{HERE}\d+: .* is being walked by another backward|was consumed")):
                    root.backward()
        finally:
            go_on.set()
        first.result(timeout=60)
    np.testing.assert_array_equal(x.grad.numpy(), np.exp([1, 2]))


def test_a_race_for_one_graph_has_one_winner():
    """Many threads start one graph at once: one walk counts, all others are refused by name."""
    for _ in range(20):
        x = leaf(1, 2)
        loss = gt.exp(x * 2.0).sum()
        start = threading.Barrier(3)

        def work(loss=loss, start=start):
            start.wait(60)
            try:
                loss.backward()
            except gt.GradientError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(3) as pool:
            results = [f.result(timeout=60) for f in [pool.submit(work) for _ in range(3)]]
        assert results.count(None) == 1
        for message in filter(None, results):
            assert "sum (" in message or "exp (" in message or "multiply (" in message
        np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp([2, 4]))
