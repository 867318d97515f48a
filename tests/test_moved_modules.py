"""Pickles of earlier releases load: they name modules that lie elsewhere now."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.run.cached_values import CachedValue
from gtensor.system.moved_modules import MOVED

ROOT = Path(__file__).resolve().parents[1]
GLOBALS = {  # what pickles of 0.1.0 call public things
    "gtensor.array.creation zeros": gt.zeros, "gtensor.array.dtypes finfo": gt.finfo,
    "gtensor.engine.anomaly detect_anomaly": gt.detect_anomaly,
    "gtensor.engine.context no_grad": gt.no_grad,
    "gtensor.engine.errors GradientError": gt.GradientError, "gtensor.engine.op op": gt.op,
    "gtensor.engine.samples Sample": gt.Sample, "gtensor.engine.tensor Tensor": gt.Tensor,
    "gtensor.ops.build.pointwise pointwise": gt.pointwise,
    "gtensor.engine.cached_values CachedValue": CachedValue,
}


@pytest.mark.parametrize("name", GLOBALS)
def test_a_pickle_of_an_earlier_release_finds_what_moved(name: str) -> None:
    module, _, attribute = name.partition(" ")
    sys.modules.pop(module, None)
    found = pickle.loads(f"c{module}\n{attribute}\n.".encode())
    assert inspect.unwrap(found) is inspect.unwrap(GLOBALS[name])  # behind its entrance
    assert gt.array is gt.tensor  # the package keeps no module in a public name's place


def test_a_module_that_kept_its_weight_norm_loads() -> None:
    net = gt.nn.Linear(2, 3)
    norm = net.weight_norm()
    now = pickle.dumps(net, protocol=0)
    assert b"gtensor.engine.run.cached_values" in now
    sys.modules.pop("gtensor.engine.cached_values", None)
    copy = pickle.loads(now.replace(b"engine.run.cached_values", b"engine.cached_values"))
    np.testing.assert_array_equal(copy.weight.numpy(), net.weight.numpy())
    assert float(copy.weight_norm()) == float(norm)


def test_the_moved_modules_exist_and_the_earlier_ones_do_not() -> None:
    assert all(importlib.import_module(new).__name__ == new for new in MOVED.values())
    places = [(old, ROOT.joinpath(*old.split("."))) for old in MOVED]
    assert not [old for old, place in places  # a folder of old byte code may stay in a checkout
                if any(place.glob("*.py")) or place.with_suffix(".py").exists()]
