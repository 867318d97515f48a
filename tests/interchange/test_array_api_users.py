"""Libraries that compute through the array API standard work on tensors as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import gtensor as gt

PROGRAM = """
import json
import numpy as np
import scipy.special, scipy.stats
import sklearn
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
import gtensor as gt

rng = np.random.default_rng(0)
truth, guess = rng.integers(0, 3, (2, 50))
a, b = rng.standard_normal((2, 40))
with sklearn.config_context(array_api_dispatch=True):
    found = {
        "accuracy_score": float(accuracy_score(gt.asarray(truth), gt.asarray(guess))),
        "mean_squared_error": float(mean_squared_error(gt.asarray(a), gt.asarray(b))),
        "r2_score": float(r2_score(gt.asarray(a), gt.asarray(b))),
    }
lse = scipy.special.logsumexp(gt.asarray(a))
found["logsumexp"] = float(lse)
found["namespace"] = type(lse).__module__.partition(".")[0]
found["wanted"] = {
    "accuracy_score": float(accuracy_score(truth, guess)),
    "mean_squared_error": float(mean_squared_error(a, b)), "r2_score": float(r2_score(a, b)),
    "logsumexp": float(scipy.special.logsumexp(a)),
}
print(json.dumps(found))
"""


@pytest.mark.thorough
def test_scikit_learn_and_scipy_dispatch_to_gtensor():
    """In a process of its own: SciPy reads SCIPY_ARRAY_API when it is imported."""
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True,
                         text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["namespace"] == "gtensor", "SciPy answered with another library's array"
    for name, value in found["wanted"].items():
        # an average of integers is taken in the namespace's default dtype, float32
        precision = 1e-6 if name == "accuracy_score" else 1e-12
        assert found[name] == pytest.approx(value, rel=precision), name


def test_a_tensor_names_its_namespace():
    x = gt.ones(2)
    assert x.__array_namespace__() is gt
    assert x.__array_namespace__(api_version="2024.12") is gt
    with pytest.raises(ValueError, match=r"version '2099.12' was asked for; wanted '2024.12'"):
        x.__array_namespace__(api_version="2099.12")


def test_the_namespace_describes_itself():
    info = gt.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] is True
    assert info.default_device() in info.devices() and info.devices()[0] == gt.device("cpu")
    assert info.default_dtypes()["real floating"] == gt.float32
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    assert "float64" in info.dtypes() and "float16" not in info.dtypes()


def test_dtype_functions_answer_as_the_standard_says():
    assert gt.finfo(gt.float32).eps == np.finfo(np.float32).eps
    assert gt.finfo(gt.complex128).dtype == gt.float64 and gt.finfo(gt.bfloat16).bits == 16
    assert gt.finfo(gt.ones(1)).max == float(np.finfo(np.float32).max)
    assert gt.iinfo(gt.int8)[:3] == (8, 127, -128)
    with pytest.raises(TypeError, match="finfo was given int64; wanted a floating-point"):
        gt.finfo(gt.int64)
    with pytest.raises(TypeError, match="iinfo was given float32; wanted an integer"):
        gt.iinfo(gt.float32)
    assert gt.isdtype(gt.float32, ("integral", "real floating"))
    assert gt.isdtype(gt.bfloat16, "real floating") and not gt.isdtype(gt.int8, gt.int16)
    with pytest.raises(ValueError, match="kind 'floaty'"):
        gt.isdtype(gt.float32, "floaty")
    assert gt.can_cast(gt.int8, gt.int16) and not gt.can_cast(gt.float64, gt.float32)
    assert gt.result_type(gt.ones(1), 1.5) == gt.float32
    assert gt.result_type(gt.bfloat16, 1.5) == gt.bfloat16
    assert gt.result_type(gt.int8, gt.uint8) == gt.int16
