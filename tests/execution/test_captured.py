"""`gt.capture`: what is equal, what is refused, what is recorded anew, what an error leaves."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import threading
import warnings
import weakref

import numpy as np
import pytest

import gtensor as gt
from execution.programs import EQUAL, REFUSED
from gtensor import nn
from gtensor.engine.handle.namespaces import public, raw, recorded
from gtensor.engine.tape.op import registry
from gtensor.memory import Arena, HostSegments
from gtensor.system.bus import bus, here

CALLS = 7


def numbers(i: int, n: int = 4) -> gt.Tensor:
    return gt.tensor(np.arange(n, dtype="float32") + i)


def training(net, optimizer):
    def run(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return run


def outcomes(step):
    return [step(numbers(i)).numpy().tobytes() for i in range(CALLS)]


@pytest.mark.parametrize("make", EQUAL, ids=lambda make: make.__name__)
def test_replays_equal_the_step(make):
    gt.random.manual_seed(1)
    expected = outcomes(make())
    gt.random.manual_seed(1)
    step = gt.capture(make())
    assert outcomes(step) == expected
    assert len(step.programs) == 1, step.report()


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_cannot_be_repeated_is_refused(make):
    gt.random.manual_seed(1)
    step = make()
    gt.random.manual_seed(1)
    captured, same = gt.capture(make()), 0
    with pytest.raises(gt.CaptureError) as caught:
        for i in range(CALLS):
            assert captured(numbers(i)).numpy().tobytes() == step(numbers(i)).numpy().tobytes()
            same += 1
    assert REFUSED[make] in str(caught.value)
    assert same < 3, "a program was made"
    assert caught.value.result.numpy().tobytes() == step(numbers(same)).numpy().tobytes()
    assert not bus.listeners and here.recorder is None


def test_a_signature_has_a_program_of_its_own():
    step = gt.capture(lambda x, k, name="a": x * k if name == "a" else x / k)
    for _ in range(3):
        for n in (2, 3):
            for k in (1, 2.5):
                for name in "ab":
                    x = numbers(1, n)
                    expected = x * k if name == "a" else x / k
                    assert step(x, k, name=name).numpy().tobytes() == expected.numpy().tobytes()
    assert len(step.programs) == 8


def test_aliased_arguments_have_a_program_of_their_own():
    def step(x, y):
        x += 1
        return x + y

    captured = gt.capture(step)
    for _ in range(4):
        assert captured(numbers(0), numbers(0)).tolist() == step(numbers(0), numbers(0)).tolist()
        x, y = numbers(0), numbers(0)
        assert captured(x, x).tolist() == step(y, y).tolist()
    assert len(captured.programs) == 2


def test_a_write_of_an_argument_is_counted():
    step = gt.capture(lambda x: x.__iadd__(1) * 1)
    for _ in range(4):
        x = numbers(0)
        before = x._version
        step(x)
        assert x.tolist() == [1, 2, 3, 4] and x._version == x._storage.version == before + 1


def test_the_mode_of_a_module_and_its_parameters_are_noticed():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    step = gt.capture(lambda x: net(x))

    def check():
        for _ in range(4):
            gt.random.manual_seed(4)
            expected = net(numbers(1)).numpy().tobytes()
            gt.random.manual_seed(4)
            assert step(numbers(1)).numpy().tobytes() == expected

    check()
    net.eval()
    check()
    net.train()
    check()
    assert len(step.programs) == 2  # the first one serves again
    net[0].weight = nn.Parameter(gt.zeros((4, 4)))
    check()
    net.load_state_dict({name: gt.ones(value.shape) for name, value in net.state_dict().items()})
    check()
    net[0].register_forward_hook(lambda module, args, out: out * 2)
    check()


def test_backward_of_a_result_is_refused_from_the_first_call_on():
    w = gt.ones(4, requires_grad=True)
    step = gt.capture(lambda x: (w * x).sum())
    for i in range(4):
        loss = step(numbers(i))
        assert loss.requires_grad
        with pytest.raises(gt.GradientError, match="call backward.. within the step"):
            loss.backward()


def test_a_gradient_that_somebody_has_keeps_its_values():
    w = gt.ones(4, requires_grad=True)

    def run(x):
        w.grad = None
        (w * x).sum().backward()

    step, kept = gt.capture(run), []
    for i in range(5):
        step(numbers(i))
        kept.append(w.grad)
    assert [g.tolist()[0] for g in kept] == [0, 1, 2, 3, 4]


def test_a_gradient_from_outside_is_not_overwritten():
    w = gt.ones(4, requires_grad=True)

    def run(x):
        (w * x).sum().backward()

    step = gt.capture(run)
    for i in range(4):
        w.grad = None
        step(numbers(i))
    with pytest.raises(RuntimeError, match="call zero_grad"):
        step(numbers(9))
    assert w.grad.tolist() == numbers(3).tolist()


def test_an_error_in_the_step_leaves_nothing_behind():
    failing = [True]

    def run(x):
        y = x * 2
        if failing[0]:
            failing[0] = False
            raise ValueError("the user's")
        return y

    step = gt.capture(run)
    with pytest.raises(ValueError, match="the user's"):
        step(numbers(1))
    assert not bus.listeners and here.recorder is None
    for i in range(4):
        assert step(numbers(i)).tolist() == (numbers(i) * 2).tolist()


def test_an_error_in_a_replay_names_the_line_and_what_is_done():
    w = gt.zeros(4)

    def run(x, i):
        w.__iadd__(x)
        return nn.functional.embedding(i, gt.ones((3, 2)))

    step = gt.capture(run)
    for _ in range(3):
        step(numbers(0), gt.tensor([0, 2]))
    with pytest.raises(ValueError, match="wanted 0 to 2") as caught:
        step(numbers(0), gt.tensor([0, 3]))
    (note,) = caught.value.__notes__
    assert "nn.functional.embedding(i, gt.ones((3, 2)))" in note and "a tensor written" in note


def test_threads_take_turns():
    total = gt.zeros(4)

    def run(x):
        y = x * 2
        total.__iadd__(y)
        return y + 1

    step, wrong = gt.capture(run), []

    def work():
        for i in range(50):
            if step(numbers(i)).tolist() != (numbers(i) * 2 + 1).tolist():
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert total.tolist() == [4 * 2 * sum(range(n, n + 50)) for n in range(4)]


def test_a_call_within_a_transform_is_the_function():
    step = gt.capture(lambda x: (x * x).sum())
    for i in range(4):
        assert gt.grad(step)(numbers(i)).tolist() == (2 * numbers(i)).tolist()


def test_a_history_and_arrays_are_refused_before_the_step_runs():
    step = gt.capture(lambda x: print("ran"))
    with pytest.raises(gt.CaptureError, match="detach"):
        step(gt.ones(2, requires_grad=True) * 2)
    with pytest.raises(gt.CaptureError, match="gt.asarray"):
        step(np.ones(2))
    with pytest.raises(gt.CaptureError, match="no hash"):
        step({1, 2})


@pytest.mark.parametrize(("given", "error", "words"), [
    ((3,), TypeError, "int; wanted a function"), ((print, "all"), ValueError, "fuse='all'"),
    ((print, True, -1), ValueError, "check=-1")])
def test_wrong_arguments_of_capture(given, error, words):
    with pytest.raises(error, match=words):
        gt.capture(*given)


def test_many_signatures_are_told_once():
    step = gt.capture(lambda x, k: x * k if k >= 0 else x)
    with pytest.warns(UserWarning, match="16 signatures.*argument .1."):
        for k in range(20):
            step(numbers(0), float(k))


def test_a_check_finds_a_program_that_has_become_wrong():
    class Box:
        factor = 2.0

    box = Box()

    def hidden(x):
        return x * vars(Box)["factor"]

    step = gt.capture(hidden, check=3)
    for i in range(4):
        step(numbers(i))
    Box.factor = 3.0
    with pytest.raises(gt.CaptureError, match="2.0, and 3.0"):
        for i in range(9):
            step(numbers(i))
    assert box.factor == 3.0


def test_eager_calls_texts_and_reports():
    step = gt.capture()(lambda x: x * 2)
    with step.eager():
        for i in range(3):
            step(numbers(i))
    assert not step.programs
    for i in range(4):
        step(numbers(i))
    assert "multiply" in step.text() and "2 replays" in step.report()
    step.clear()
    assert not step.programs and step.text() == ""


class _Names:
    def __init__(self):
        self.told = []

    def op_ends(self, event):
        self.told.append((event.name, event.module, event.source().partition(": ")[2]))


def test_listeners_are_told_of_the_calls_of_a_replay():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    step = gt.capture(lambda x: net(x).sum())
    for i in range(3):
        step(numbers(i))
    listener = _Names()
    with gt.listen(listener):
        expected = step(numbers(1)).item()
    assert expected == net(numbers(1)).sum().item()
    line = "step = gt.capture(lambda x: net(x).sum())"
    assert listener.told == [("linear", "Sequential.0", line), ("tanh", "Sequential.1", line),
                             ("sum", "", line)]


BETWEEN = {
    "frozen": lambda net, optimizer: net.bias.requires_grad_(False),
    "an option that is no number": lambda net, optimizer: optimizer.param_groups[0].update(
        maximize=True),
    "a member taken away": lambda net, optimizer: optimizer.param_groups[0]["params"].pop(),
    "converted": lambda net, optimizer: net.double(),
    "a hook": lambda net, optimizer: net.weight.register_hook(lambda g: g * 0),
}


@pytest.mark.parametrize("change", BETWEEN)
def test_a_change_between_replays_does_to_a_training_step_what_it_does_without_capture(change):
    def losses(wrap):
        gt.random.manual_seed(0)
        net = nn.Linear(4, 2)
        optimizer = gt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = (net(x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        step, found = wrap(step), []
        for i in range(9):
            if i == 5:
                BETWEEN[change](net, optimizer)
            try:
                found.append(step(numbers(i).reshape(1, 4) / 10).item())
            except (ValueError, TypeError) as error:
                found.append(str(error))
        return found

    assert losses(gt.capture) == losses(lambda step: step)


def test_what_changes_outside_before_each_call_is_told():
    box = {"factor": 0}

    def run(x):
        return x * 1 if box["factor"] >= 0 else x

    step = gt.capture(run)
    with pytest.warns(UserWarning, match="recorded anew in 8 calls.*factor"):
        for i in range(12):
            box["factor"] = i
            assert step(numbers(i)).tolist() == numbers(i).tolist()


def test_epochs_with_an_evaluation_and_a_smaller_last_batch_warn_of_nothing():
    net = nn.Linear(4, 2)
    step = gt.capture(lambda x: net(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(12):
            for rows in (3, 3, 1):
                step(gt.ones((rows, 4)))
            net.eval().train()


def test_a_value_outside_that_changes_is_noticed():
    box = {"factor": 2.0}
    step = gt.capture(lambda x: x * box["factor"])
    for factor in (2.0, 3.0, 2.0):
        box["factor"] = factor
        for i in range(4):
            assert step(numbers(i)).tolist() == (numbers(i) * factor).tolist()
    assert len(step.programs) == 2


def test_no_argument_and_no_result_is_kept():
    step, kept = gt.capture(lambda x: x * 2), []
    for i in range(4):
        x = numbers(i)
        y = step(x)
        kept += [weakref.ref(x), weakref.ref(y)]
        del x, y
        assert not any(ref() is not None for ref in kept)


def test_a_method_has_programs_for_each_instance_and_keeps_none():
    class Scaled:
        def __init__(self, factor):
            self.factor = gt.full((4,), float(factor))

        @gt.capture
        def step(self, x):
            return x * self.factor

    two, three = Scaled(2), Scaled(3)
    for i in range(8):
        one = two if i % 2 else three
        assert one.step(numbers(i)).tolist() == (numbers(i) * one.factor).tolist()
    assert len(two.step.programs) == 2
    alive = weakref.ref(two)
    del two, one
    assert alive() is None
    Scaled(4).step(numbers(1))
    assert len(three.step.programs) == 1


def test_a_captured_step_is_neither_copied_nor_pickled():
    step = gt.capture(numbers)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"numbers is captured.*\.function"):
            make(step)


def test_what_ends_before_it_has_run_is_no_step():
    async def coroutine(x):
        return x

    def generator(x):
        yield x

    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="wanted a function that returns tensors"):
            gt.capture(function)


def test_dropped_programs_and_recordings_are_freed_at_once():
    w = gt.ones(4, requires_grad=True)

    def run(x):
        w.grad = None
        (w * x).sum().backward()
        if failing:
            raise ValueError

    step, failing = gt.capture(run), False
    for i in range(3):
        step(numbers(i))
    gone = [weakref.ref(step.programs[0]), weakref.ref(step.programs[0].recording)]
    enabled = gc.isenabled()
    gc.disable()
    try:
        step.clear()
        assert [ref() for ref in gone] == [None, None]
    finally:
        if enabled:
            gc.enable()


@pytest.mark.parametrize("read", [repr, "{}".format, pickle.dumps, lambda x: np.array(x, copy=True),
                                  gt.from_dlpack, lambda x: gt.repeat(x, x[:1].astype("int64"))])
def test_values_that_leave_are_refused(read):
    step = gt.capture(lambda x: (read(x), x * 1)[1])
    with pytest.raises(gt.CaptureError, match=r"of a tensor of shape \([14],\): a replay would"):
        step(numbers(1))


def test_replays_take_smaller_arrays_from_the_arena(monkeypatch):
    """What an eager step leaves to NumPy, whose memory goes back to the system in between."""
    arena = Arena(HostSegments())
    monkeypatch.setattr(gt.device("cpu"), "resource", arena)

    def step(x):
        return gt.softmax(x * 2, dim=-1)

    def peak(step, x):
        arena.reset_peak()
        step(x)
        return arena.stats().peak_allocated

    least = gt.settings.arena_min_bytes // 8
    for nbytes, served in ((least, True), (least - 512, False)):
        x, captured = gt.ones((nbytes // 512, 128)), gt.capture(step)
        captured(x), captured(x)
        assert peak(step, x) == 0
        assert (peak(captured, x) >= nbytes) is served
        with gt.settings.override(arena_min_bytes=1 << 60):
            captured(x)  # recorded anew
            captured(x)
            assert peak(captured, x) == 0
    assert not here.replaying


def test_recordings_need_no_more_memory_than_the_step(monkeypatch):
    def peaks(wrap):
        arena = Arena(HostSegments())
        monkeypatch.setattr(gt.device("cpu"), "resource", arena)
        gt.random.manual_seed(0)
        net = nn.Sequential(*[part for _ in range(3) for part in (
            nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))])
        optimizer, x, found = gt.optim.AdamW(net.parameters()), gt.random.normal((128, 64)), []

        step = wrap(training(net, optimizer))
        for _ in range(4):
            arena.reset_peak()
            step(x)
            found.append(arena.stats().peak_allocated)
        return found

    with gt.settings.override(arena_min_bytes=0):
        plain, captured = peaks(lambda f: f), peaks(gt.capture)
    assert all(b <= 1.1 * a for a, b in zip(plain, captured, strict=True)), (plain, captured)


def test_steps_and_eager_work_of_other_threads_do_not_meet():
    nets = [nn.Linear(4, 4) for _ in range(2)]
    expected, wrong, ended = [], [], threading.Event()

    for net in copy.deepcopy(nets):
        run = training(net, gt.optim.SGD(net.parameters(), lr=0.01))
        expected.append([run(numbers(i)).item() for i in range(30)])

    def work(k):
        optimizer = gt.optim.SGD(nets[k].parameters(), lr=0.01)
        step = gt.capture(training(nets[k], optimizer))
        if [step(numbers(i)).item() for i in range(30)] != expected[k]:
            wrong.append(k)

    def eager():
        w = gt.ones(4, requires_grad=True)
        while not ended.is_set():
            w.grad = None
            (w * w).sum().backward()
            if w.grad.tolist() != [2.0] * 4:
                wrong.append("eager")

    beside = threading.Thread(target=eager)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in (beside, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    beside.join()
    assert not wrong and not bus.listeners


def test_a_tensor_that_is_returned_twice_is_one_tensor():
    @gt.capture
    def step(x):
        y = x * 2
        return {"loss": y, "logged": [y, y.detach()]}

    for i in range(4):
        found = step(numbers(i))
        assert found["loss"] is found["logged"][0] is not found["logged"][1]
    assert step.programs


@pytest.fixture
def applied():
    """An op whose parameter is a function."""
    name = "own_applied"
    none = dict.fromkeys(("gpu", "backward", "tangent", "batch"))
    yield gt.op(name, cpu=lambda x, *, how, out=None: how(x), **none, samples=())
    del registry[name]
    for namespace in (recorded, public, *raw.values()):
        vars(namespace).pop(name, None)


@pytest.mark.parametrize("where", ("closure", "default", "keyword"))
def test_functions_made_in_a_step_are_compared_also_one_that_calls_itself(applied, where):
    def ended(factor):
        if where == "closure":
            return lambda a: a * factor
        if where == "default":
            return lambda a, by=factor: a * by
        return lambda a, *, by=factor: a * by

    def made(factors):
        def step(x):
            end = ended(next(factors))

            def power(a, n):
                return end(a) if n == 1 else a * power(a, n - 1)

            return applied(x, how=lambda a: power(a, 3))

        return gt.capture(step)

    step = made(itertools.repeat(2.0))
    for i in range(4):
        x = numbers(i)
        assert step(x).tolist() == (x * (x * (x * 2))).tolist()
    assert step.programs
    with pytest.raises(gt.CaptureError, match="own_applied was given parameter 'how'"):
        list(map(made(itertools.count(2.0)), [numbers(0)] * 3))
