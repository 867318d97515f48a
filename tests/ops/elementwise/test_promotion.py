"""Promotion: tensors of any two dtypes, and Python numbers beside them, give NumPy's dtype.

But integers beside a float get PyTorch's, the default one (`creation/test_default_dtype.py`).
"""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gtensor as gt

DTYPES = [gt.bool, gt.int8, gt.int16, gt.int32, gt.int64, gt.uint8, gt.uint16, gt.uint32,
          gt.uint64, gt.float16, gt.float32, gt.float64, gt.complex64, gt.complex128]
BINARY = ["add", "multiply", "subtract", "maximum", "minimum", "equal", "less", "pow"]
COMPARISONS = ("equal", "less")
NUMBERS = [True, 0, 3, 2.5, -0.0, 1j]
shapes = st.sampled_from([(), (1,), (3,), (2, 3), (0, 3), (2, 1)])


def drawn(shape, dtype):
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)


def outcome(call):
    """Dtype, shape and values, or the kind of error."""
    try:
        with np.errstate(all="ignore"):
            y = call()
    except (TypeError, OverflowError, ValueError) as error:
        return ValueError if isinstance(error, ValueError) else type(error)
    y = np.asarray(y.numpy() if isinstance(y, gt.Tensor) else y)
    return y.dtype, y.shape, y.tobytes()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BINARY), st.sampled_from(DTYPES), st.sampled_from(DTYPES), shapes, shapes)
def test_two_tensors(name, one, other, first, second):
    a, b = drawn(first, one), drawn(second, other)
    assert outcome(lambda: getattr(gt, name)(gt.asarray(a), gt.asarray(b))) == outcome(
        lambda: getattr(np, name)(a, b))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BINARY), st.sampled_from(DTYPES), st.sampled_from(NUMBERS), shapes,
       st.booleans())
def test_a_python_number_takes_the_tensor_s_dtype(name, dtype, number, shape, first):
    a = drawn(shape, dtype)
    assume(not (name in ("maximum", "minimum", "less") and isinstance(number, complex)))
    x = gt.asarray(a)
    ours = (lambda: getattr(gt, name)(number, x)) if first else (
        lambda: getattr(gt, name)(x, number))
    kept = a
    if dtype.kind in "biu" and isinstance(number, (float, complex)) and name not in COMPARISONS:
        kept = a.astype(gt.float32)
    numpys = (lambda: getattr(np, name)(number, kept)) if first else (
        lambda: getattr(np, name)(kept, number))
    assert outcome(ours) == outcome(numpys)


@given(st.sampled_from([gt.bool, gt.int8, gt.int32, gt.int64, gt.float16, gt.float32]),
       st.sampled_from([1, 2.5, True]))
def test_bfloat16_stays_beside_numbers_and_smaller_dtypes(dtype, number):
    x = gt.tensor([1.0, 2.0], dtype=gt.bfloat16)
    assert (x + number).dtype == (number + x).dtype == gt.bfloat16
    wanted = gt.float32 if dtype in (gt.float16, gt.float32) else None
    if wanted is not None:
        assert (x + gt.ones(2, dtype=dtype)).dtype == wanted


@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
def test_concat_and_result_type_agree(dtypes):
    parts = [gt.ones((2,), dtype=d) for d in dtypes]
    assert gt.concat(parts).dtype == gt.result_type(*dtypes) == np.result_type(*dtypes)
