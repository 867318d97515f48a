"""Captured steps whose calls differ: equal or refused, with what they leave in their arguments."""

from __future__ import annotations

import gc

import pytest

import gtensor as gt
from execution.calls import EQUAL, REFUSED
from gtensor.system.bus import bus, here

CALLS = 16


def told(tree):
    """Each leaf: of a tensor all that can be seen of it."""
    return [(str(x.dtype), x.shape, x.numpy().tobytes(), x.requires_grad)
            if isinstance(x, gt.Tensor) else repr(x)[:9] for _, x in gt.func.trees.leaves(tree)]


def outcomes(make, wrap, calls=CALLS):
    """What each call returns and leaves; the step."""
    gt.random.manual_seed(1)
    step, args = make()
    step, found = wrap(step), []
    for i in range(calls):
        given = args(i)
        result = told(step(*given))
        grads = [x.grad for _, x in gt.func.trees.leaves(given)
                 if isinstance(x, gt.Tensor) and x.is_leaf and x.requires_grad]
        found.append((result, told(given), told(grads)))
    return found, step


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("make", EQUAL, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:.*(invalid value|divide by zero|overflow).*:RuntimeWarning")
def test_replays_equal_the_step(make, fuse):
    found, step = outcomes(make, lambda f: gt.capture(f, fuse=fuse))
    assert found == outcomes(make, lambda f: f)[0]
    assert len(step.programs) == EQUAL[make], step.report()


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_cannot_be_repeated_is_refused(make):
    with pytest.raises(gt.CaptureError) as caught:
        outcomes(make, gt.capture, 4)
    assert REFUSED[make] in str(caught.value)
    assert not bus.listeners and here.recorder is None


def test_what_a_step_reads_of_an_object_among_its_arguments_may_change():
    class Options:
        def __init__(self):
            self.power = 1.0
            self.parts = [1.0, 2.0]

    class Model:
        def __init__(self, k):
            self.k, self.seen, self.options, self.w = k, 0, Options(), gt.ones(4)

        @property
        def both(self):
            return self.scaled() + self.options.power + self.options.parts[1]

        def scaled(self):
            return self.k * 2

        @gt.capture
        def step(self, x):
            return x * self.both + self.w

    def changes(model, i):
        model.seen += 1  # which the step does not read
        if i == 4:
            model.k = 7.0
        if i == 8:
            model.options.power = 3.0
        if i == 12:
            model.options.parts.append(1.0)
            model.options.parts[1] = 5.0
        if i == 16:
            model.options = Options()
        if i == 20:
            model.w, model.old = gt.zeros(4), model.w

    models = [Model(1.0), Model(2.0)]
    for i in range(24):
        for model in models:
            changes(model, i)
            x = gt.ones(4) * float(i)
            assert model.step(x).tolist() == (x * model.both + model.w).tolist(), i
    assert len(Model.step.programs) == 4  # of each model's last options


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


class Holder:
    def __init__(self):
        self.tensors, self.named = [gt.ones(4)], {"w": gt.ones(4)}
        self.rows, self.objects, self.slotted = [[2.0]], (Slotted(2.0),), Slotted(2.0)


CONTAINED = {
    "a tensor in a list": (lambda holder, x: x * holder.tensors[0],
                           lambda holder, w: holder.tensors.__setitem__(0, w)),
    "a tensor in a dict": (lambda holder, x: x * holder.named["w"],
                           lambda holder, w: holder.named.update(w=w)),
    "a number in a list in a list": (lambda holder, x: x * holder.rows[0][0],
                                     lambda holder, w: holder.rows[0].__setitem__(0, 5.0)),
    "an object in a tuple": (lambda holder, x: x * holder.objects[0].k,
                             lambda holder, w: setattr(holder.objects[0], "k", 5.0)),
    "a slot": (lambda holder, x: x * holder.slotted.k,
               lambda holder, w: setattr(holder.slotted, "k", 5.0)),
}


@pytest.mark.parametrize("what", CONTAINED)
def test_what_a_step_reads_within_an_argument_may_change(what):
    step, change = CONTAINED[what]
    captured, holder, x = gt.capture(step), Holder(), gt.ones(4)
    for _ in range(4):
        captured(holder, x)
    assert captured.programs
    kept = [*holder.tensors, *holder.named.values()]  # so that no program finds them dead
    change(holder, gt.full((4,), 5.0))
    for _ in range(4):
        assert captured(holder, x).tolist() == (x * 5.0).tolist()
    assert len(kept) == 2


def test_attributes_of_a_dead_object_keep_no_program():
    class Model:
        def __init__(self):
            self.k, self.w = 2.0, gt.ones(4)

        @gt.capture
        def step(self, x):
            return x * self.k + self.w

    for _ in range(5):
        model = Model()
        for _ in range(3):
            model.step(gt.ones(4))
    del model
    gc.collect()
    Model().step(gt.ones(4))
    assert not Model.step.programs


@pytest.mark.parametrize("method", [False, True])
def test_other_code_of_the_function_itself_is_run(method):
    def step(x, w):
        return x * w

    def reloaded(x, w):
        return x * w if w > 1 else x - w

    class Model:
        def step(self, x, w):
            return x * w

        def reloaded(self, x, w):
            return x * w if w > 1 else x - w

    model = Model()
    captured = gt.capture(model.step if method else step)
    for i in range(4):
        captured(gt.ones(4), 0.5 * i)
    changed = Model.step if method else step
    changed.__code__ = (Model.reloaded if method else reloaded).__code__
    for i in range(4):
        assert captured(gt.ones(4), 0.5 * i).tolist() == reloaded(gt.ones(4), 0.5 * i).tolist()
