"""Captured steps whose calls differ: equal or refused, with what they leave in their arguments."""

from __future__ import annotations

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
