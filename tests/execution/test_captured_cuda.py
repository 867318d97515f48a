"""Captured steps on a CUDA device: one graph, whose replays are those of the step."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest

import gtensor as gt
from execution import calls
from execution.networks import NETWORKS, batches
from execution.programs import EQUAL, REFUSED
from execution.test_captured import CALLS, numbers
from execution.test_captured_calls import outcomes as calls_outcomes
from gtensor import hostcuda

pytestmark = pytest.mark.gpu


def outcomes(step):
    return [step(numbers(i)).numpy().tobytes() for i in range(CALLS)]


@pytest.mark.parametrize("make", EQUAL, ids=lambda make: make.__name__)
def test_replays_equal_the_step(make):
    by_itself = make.__name__ == "write_by_a_mask"  # whose places CuPy finds on the host
    with gt.device("cuda"):
        gt.random.manual_seed(1)
        expected = outcomes(make())
        gt.random.manual_seed(1)
        step = gt.capture(make())
        with pytest.warns(UserWarning, match="one graph") if by_itself else nullcontext():
            assert outcomes(step) == expected
    assert len(step.programs) == 1, step.report()


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_the_cpu_refuses_is_refused_or_equal(make):
    with gt.device("cuda"):
        try:
            found = outcomes(gt.capture(make()))
        except gt.CaptureError as error:
            assert REFUSED[make] in str(error)
        else:
            assert found == outcomes(make())


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
def test_training_is_the_same(make):
    found = []
    for captured in (False, True):
        gt.random.manual_seed(3)
        training = make("cuda")
        step = gt.capture(training.step) if captured else training.step
        losses = []
        for batch in islice(batches(make, "cuda", 5), CALLS):
            losses.append(step(*batch).item())
            training.between()
        if captured:
            assert [type(program).__name__ for program in step.programs] == ["Graphed"]
        found.append((losses, [p.numpy() for p in training.net.state_dict().values()],
                      gt.random.get_state()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)  # sums in another order
    for one, other in zip(found[1][1], found[0][1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert found[0][2] == found[1][2]


def test_gradients_that_somebody_has_keep_their_values():
    w = gt.ones(4, requires_grad=True, device="cuda")

    def run(x):
        w.grad = None
        (w * x).sum().backward()

    with gt.device("cuda"):
        step, kept = gt.capture(run), []
        for i in range(6):
            step(numbers(i))
            if i != 3:
                kept.append(w.grad)
        assert [g.tolist()[0] for g in kept] == [0, 1, 2, 4, 5]


def test_results_are_new_tensors():
    with gt.device("cuda"):
        step = gt.capture(lambda x: (x * 2, x + 1))
        found = [step(numbers(i)) for i in range(5)]
    assert [(a.tolist()[0], b.tolist()[0]) for a, b in found] == [(2 * i, i + 1) for i in range(5)]


@pytest.mark.host_cuda
def test_a_replay_is_one_launch_a_copy_for_each_argument_and_one_for_each_result():
    with gt.device("cuda"):
        step = gt.capture(lambda x, y: ((x * y).sum(), x + 1))
        shared = gt.capture(step.function, outputs="shared")
        for i in range(3):
            step(numbers(i), numbers(1)), shared(numbers(i), numbers(1))
        given = numbers(5), numbers(6)
        for captured, results in ((step, 2), (shared, 0)):
            hostcuda.reset_counters()
            found = captured(*given)
            work = hostcuda.counters()
            assert work.other == {"launch graph": 1} and not work.synchronizations
            assert work.copies == {"device to device": 2 + results}
            assert [x.tolist() for x in found] == [200.0, [6, 7, 8, 9]]
        inputs = shared.programs[0].inputs
        for place, x in zip(inputs, given, strict=True):
            place[...] = x
        hostcuda.reset_counters()
        again = shared(*inputs)
        assert not hostcuda.counters().copies and again[0].item() == 200.0


@pytest.mark.host_cuda
def test_a_graph_has_no_more_launches_than_the_step():
    make = next(make for make in NETWORKS if make.__name__ == "gpt")
    training = make("cuda")
    step, data = gt.capture(training.step), batches(make, "cuda", 5)
    counts = []
    for _ in range(4):
        batch = next(data)
        hostcuda.reset_counters()
        kept = step(*batch)
        counts.append(hostcuda.counters().launches)
    assert counts[3] - 3 <= counts[1], "but for two arguments and a result"
    del kept


def test_a_gradient_that_the_step_does_not_make_is_dropped_by_each_replay():
    with gt.device("cuda"):
        used, unused = (gt.ones(4, requires_grad=True) for _ in range(2))
        optimizer = gt.optim.SGD([used, unused], lr=0.0)

        def run(x):
            optimizer.zero_grad()
            (used * x).sum().backward()
            optimizer.step()

        step = gt.capture(run)
        for i in range(5):
            unused.grad = gt.ones(4)
            step(numbers(i))
            assert unused.grad is None and used.grad.tolist() == numbers(i).tolist()


@pytest.mark.parametrize("make", calls.EQUAL, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:.*(invalid value|divide by zero|overflow).*:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*(cannot be one graph|an optimizer writes):UserWarning")
def test_calls_that_differ_equal_the_step(make):
    with gt.device("cuda"):
        assert calls_outcomes(make, gt.capture)[0] == calls_outcomes(make, lambda f: f)[0]


@pytest.mark.parametrize("make", calls.REFUSED, ids=lambda make: make.__name__)
def test_calls_that_cannot_be_repeated_are_refused(make):
    with gt.device("cuda"), pytest.raises(gt.CaptureError) as caught:
        calls_outcomes(make, gt.capture, 4)
    assert calls.REFUSED[make] in str(caught.value)
