"""One generated test per op; and the generator passes right ops and fails wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import gtensor as gt
import gtensor.distributed
import gtensor.nn
from gtensor.backend.kernels import elementwise
from gtensor.engine.handle.namespaces import public, raw, recorded
from gtensor.engine.tape.execute import execute
from gtensor.engine.tape.op import Op, check_rules, registry
from gtensor.ops.define.fused import fused
from gtensor.ops.define.pointwise import zero_tangent
from gtensor.testing import OpcheckError, opcheck

NAMES = sorted(name for name, definition in registry.items() if definition.samples is not None)
THROUGH = {  # ops without samples, whose inputs must fit each other -> the op that makes them
    "cross_entropy_grad": "cross_entropy", "logsumexp_grad": "logsumexp",
    "max_pool2d_pick": "max_pool2d", "max_pool2d_grad": "max_pool2d",
    "batch_norm_sums": "batch_norm", "batch_norm_dx": "batch_norm",
    "batch_norm_grads": "batch_norm",
    "layer_norm_dx": "layer_norm", "layer_norm_grads": "layer_norm",
    "rms_norm_dx": "rms_norm", "rms_norm_grads": "rms_norm",
    "attention_grad": "attention", "packed_attention_grad": "packed_attention",
    "context_dot": "context_mix",
    "soft_cross_entropy_dx": "soft_cross_entropy",
    "soft_cross_entropy_dtarget": "soft_cross_entropy",
    "group_norm_dx": "group_norm", "group_norm_grads": "group_norm",
    "group_norm_sums": "group_norm",
    "inplace_abn_grad": "inplace_abn", "inplace_abn_input": "inplace_abn",
    "linear_grads": "linear", "feed_forward_grads": "feed_forward",
    "linear_scan_grad": "linear_scan", "logcumsumexp_grad": "logcumsumexp",
    "lstm_grad": "lstm", "gru_grad": "gru",
}


@pytest.mark.parametrize("name", NAMES)
def test_op(name: str) -> None:
    opcheck(name, device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_op_on_gpu_in_every_dtype(name: str) -> None:
    opcheck(name, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_op_on_gpu_in_one_dtype(name: str) -> None:
    """What `make test` has time for: float64 alone, in which most of the checks compute."""
    opcheck(name, device="cuda", dtypes=[])


@pytest.mark.parametrize("name", sorted(set(registry) - set(NAMES)))
def test_an_op_without_samples_runs_in_the_check_of_another(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arrays: Any, out: Any = None, **params: Any) -> Any:
        raise RuntimeError("the path ran")

    monkeypatch.setattr(raw["cpu"], name, stopped)
    monkeypatch.setattr(registry[name], "cpu", stopped)
    with pytest.raises(OpcheckError, match="the path ran"):
        opcheck(THROUGH[name], device="cpu", dtypes=[])


@pytest.mark.parametrize("name", sorted(registry))
def test_the_record_is_documented_and_derives_what_it_can(name: str) -> None:
    definition = registry[name]
    assert definition.__doc__ and len(definition.__doc__) > 3
    if definition.backward is not None:
        assert definition.tangent is not None, "an op with a backward rule has a tangent rule"
    if definition.composed is not None:
        assert definition.input_names or definition.variadic


# -- an op of the user's own -----------------------------------------------------------------------


@pytest.fixture
def own_op() -> Iterator[Callable[..., Op]]:
    """Registers ops under names of their own, and removes them after the test."""
    made: list[str] = []

    def register(name: str, **rules: Any) -> Op:
        definition = gt.op(name, **rules)
        made.append(name)
        return definition

    yield register
    for name in made:
        _remove(name)


def _remove(name: str) -> None:
    del registry[name]
    for namespace in (recorded, public, *raw.values()):
        if hasattr(namespace, name):
            delattr(namespace, name)


SAMPLES = [(3,), (2, 3), (0,), ()]


def _softplus_rules(**other: Any) -> dict[str, Any]:
    """A definition of softplus as a user would write it, with some rules replaced."""
    rules: dict[str, Any] = {
        "cpu": lambda x, out=None: np.logaddexp(x, 0, out=out),
        "gpu": elementwise("T x", "T y", "y = gt_softplus(x)", "activation.cuh"),
        "backward": gt.pointwise(gt.d("x", lambda ns, g, x, out: ns.multiply(g, _sigmoid(ns, x)))),
        "samples": SAMPLES,
        "reference": lambda torch, x: torch.nn.functional.softplus(x),
    }
    return {**rules, **other}


def _sigmoid(ns: Any, x: Any) -> Any:
    return ns.divide(1.0, ns.add(ns.exp(ns.negative(x)), 1.0))


def test_an_own_op_passes(own_op: Callable[..., Op]) -> None:
    softplus = own_op("own_softplus", **_softplus_rules())
    opcheck(softplus, device="cpu")
    opcheck("own_softplus", device="cpu")
    x = gt.tensor([0.0, 1.0], requires_grad=True)
    softplus(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [0.5, 1 / (1 + np.exp(-1))], rtol=1e-6)


def test_an_own_op_with_parameters_two_inputs_and_plain_rules_passes(
    own_op: Callable[..., Op]
) -> None:
    def path(x: Any, y: Any, *, scale: float, out: Any = None) -> Any:
        return np.add(x, y * scale, out=out)

    def backward(ns: Any, step: Any, g: Any) -> None:
        if step.needs(1):
            step.give(1, ns.multiply(g, step.params["scale"]))
        if step.needs(0):
            step.give(0, g)

    def tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: Any) -> Any:
        dx, dy = tangents
        terms = [] if dx is None else [dx]
        if dy is not None:
            terms.append(ns.multiply(dy, params["scale"]))
        total = terms[0] if len(terms) == 1 else ns.add(*terms)
        return ns.broadcast_to(total, shape=out.shape)

    own_op("own_axpy", cpu=path, gpu=path, backward=backward, tangent=tangent,
           samples=[gt.Sample(((2, 3), (3,)), params={"scale": 0.5}),
                    gt.Sample(((3,), (3,)), params={"scale": -2.0}),
                    gt.Sample(((), (2, 0)), params={"scale": 3.0})],
           reference=lambda torch, x, y, scale: x + y * scale)
    opcheck("own_axpy", device="cpu", dtypes=["float16", "float32"])
    with pytest.raises(OpcheckError, match="bfloat16 inputs give a value of float32"):
        opcheck("own_axpy", device="cpu")
    with pytest.raises(ValueError, match=r"given dtypes .*int64.*; wanted some of bfloat16"):
        opcheck("own_axpy", dtypes=["int64"])


def _off(factor: float) -> Any:
    return gt.pointwise(gt.d("x", lambda ns, g, x, out: ns.multiply(
        ns.multiply(g, _sigmoid(ns, x)), factor)))


def _gives_too_wide(ns: Any, step: Any, g: Any) -> None:
    step.give(0, ns.multiply(g, ns.multiply(np.ones((2, *g.shape)), 1.0)))


def _writes_upstream(ns: Any, step: Any, g: Any) -> None:
    out = None if isinstance(g, gt.Tensor) else g
    step.give(0, ns.multiply(g, _sigmoid(ns, step.saved[0]), out=out))


def _keeps_input(ns: Any, step: Any, g: Any) -> None:
    """Gives away the saved input itself: right only for g = 1 at x = sigmoid(x), wrong to own."""
    step.give(0, step.saved[0])


def _in_place(x: Any, out: Any = None) -> Any:
    np.logaddexp(x, 0, out=x)
    return x if out is None else np.copyto(out, x) or out


def _contiguous_only(x: Any, out: Any = None) -> Any:
    """Reads memory as if the input were contiguous."""
    flat = np.lib.stride_tricks.as_strided(x, x.shape, np.empty(x.shape, x.dtype).strides)
    return np.logaddexp(flat, 0, out=out)


def _without_out(x: Any) -> Any:
    return np.logaddexp(x, 0)


WRONG = {
    "value": (("value",), {"cpu": lambda x, out=None: np.logaddexp(x, 1e-3, out=out)}),
    "dtype": (("dtypes",), {"cpu": lambda x, out=None: np.logaddexp(x, np.float64(0), out=out)}),
    "no out": (("out",), {"cpu": _without_out}),
    "ignores out": (("out",), {"cpu": lambda x, out=None: np.logaddexp(x, 0)}),
    "writes its input": (("writes", "out"), {"cpu": _in_place, "reference": None}),
    "reads as contiguous": (("writes", "layouts"), {"cpu": _contiguous_only}),
    "rule 0.05 % off": (("backward",), {"backward": _off(1.0005)}),
    "rule of the wrong sign": (("backward",), {"backward": _off(-1.0)}),
    "writes the upstream gradient": (
        ("writes",), {"backward": _writes_upstream, "saves": {"x": "x"}, "tangent": None}),
    "gives its saved input": (
        ("writes",), {"backward": _keeps_input, "saves": {"x": "x"}, "tangent": None}),
    "gives another shape": (
        ("backward",), {"backward": _gives_too_wide, "saves": {"x": "x"}, "tangent": None}),
    "tangent 0.05 % off": (("tangent",), {
        "backward": lambda ns, step, g: step.give(
            0, ns.multiply(g, _sigmoid(ns, step.saved[0]))),
        "saves": {"x": "x"},
        "tangent": lambda ns, primals, tangents, out, params: ns.multiply(
            tangents[0], ns.multiply(_sigmoid(ns, primals[0]), 1.0005))}),
    "tangent called zero": (("tangent",), {
        "backward": None, "tangent": zero_tangent}),
    "refuses strided inputs": (("writes",), {
        "cpu": lambda x, out=None: np.logaddexp(x if x.flags.c_contiguous else None, 0, out=out)}),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_own_op_fails_the_check_that_is_there_for_it(
    fault: str, own_op: Callable[..., Op]
) -> None:
    checks, rules = WRONG[fault]
    own_op("own_wrong", **_softplus_rules(**rules))
    with pytest.raises(OpcheckError) as caught:
        opcheck("own_wrong", device="cpu")
    assert caught.value.check in checks, str(caught.value)


def test_the_message_names_op_check_sample_and_a_seed_that_repeats_it(
    own_op: Callable[..., Op]
) -> None:
    own_op("own_wrong", **_softplus_rules(backward=_off(1.01)))
    with pytest.raises(OpcheckError) as first:
        opcheck("own_wrong", device="cpu")
    text = str(first.value)
    assert "op 'own_wrong' fails the check 'backward' on cpu" in text
    assert "sample 0: shapes ((3,),)" in text
    seed = re.search(r"repeat with opcheck\('own_wrong', seed=(\d+)\)", text)
    assert seed is not None
    with pytest.raises(OpcheckError) as again:
        opcheck("own_wrong", seed=int(seed[1]), device="cpu")
    assert str(again.value) == text
    with pytest.raises(OpcheckError) as other:
        opcheck("own_wrong", device="cpu")
    assert str(other.value) != text, "every run draws other values"


@pytest.mark.parametrize("missing", ["gpu", "backward", "tangent", "samples"])
def test_a_missing_rule_fails_at_registration(missing: str) -> None:
    rules = _softplus_rules(backward=lambda ns, step, g: None, tangent=lambda *a: None)
    del rules[missing]
    with pytest.raises(TypeError, match=f"op 'own_incomplete' has no {missing}.*None on purpose"):
        gt.op("own_incomplete", **rules)
    assert "own_incomplete" not in registry


def test_all_missing_rules_are_named_at_once() -> None:
    with pytest.raises(TypeError, match="op 'own_incomplete' has no gpu, no backward, no tangent "
                       "and no samples; give each of them, or None on purpose"):
        gt.op("own_incomplete", cpu=lambda x, out=None: x)
    assert "own_incomplete" not in registry


@pytest.mark.parametrize("takes", [None, "b"])
def test_saved_values_have_the_written_order_and_names(
    own_op: Callable[..., Op], takes: str | None
) -> None:
    seen: list[Any] = []

    def backward(ns: Any, step: Any, g: Any) -> None:
        out, b, index = step.saved
        assert step.saved.out is out and step.saved.b is b and step.saved.index is index
        seen.append((type(out), step.take(b) is not None))
        step.give(1, ns.multiply(g, index))
        with pytest.raises(AttributeError, match=r"saved\.a was read, .* saves out, b, index"):
            _ = step.saved.a

    product = own_op(
        "own_product", cpu=lambda a, b, index, out=None: np.multiply(b, index, out=out), gpu=None,
        backward=backward, tangent=None, samples=None, saves={"b": "out b index"}, takes=takes)
    b = gt.full((3,), 2.0).requires_grad_()
    for graph in (False, True):
        product(gt.ones(3), b * 1, gt.full((3,), 5.0)).sum().backward(create_graph=graph)
    assert b.grad is not None
    np.testing.assert_array_equal(b.grad.numpy(), 10.0)
    assert seen == [(np.ndarray, takes == "b"), (gt.Tensor, False)]


WRONG_ARGUMENTS = {
    "backward rule": {"backward": lambda ns, g: None, "tangent": None},
    "backward rule of none": {"backward": lambda: None, "tangent": None},
    "tangent rule": {"backward": None, "tangent": lambda ns, primals, tangents, out: out},
    "batch rule": {"batch": lambda ns, run, inputs, mapped: run(*inputs)},
    "composed form": {"composed": lambda: None, "backward": None, "tangent": None},
    "path for the GPU": {"gpu": lambda x, y, out=None: x},
    "path for the GPU, of a ufunc": {
        "inputs": "x", "cpu": np.negative, "gpu": lambda x, y, out=None: x},
    "path for the GPU, of a parameter without a default": {
        "cpu": lambda x, *, by, out=None: x * by, "gpu": lambda x, out=None: x},
    "path for the GPU, which wants a parameter that the CPU's does not": {
        "cpu": lambda x, *, by=1.0, out=None: x * by, "gpu": lambda x, *, by, out=None: x * by},
    "derivative with respect to x": {"backward": gt.pointwise(gt.d("x", lambda ns, g, x: g))},
    "derivative with respect to x, of the output, too": {
        "backward": gt.pointwise(gt.d("x out", lambda ns, g, x, out: g))},
    "rule of flops": {"flops": lambda shape: 1},
    "function of samples": {"samples": lambda op: SAMPLES},
}


@pytest.mark.parametrize("what", WRONG_ARGUMENTS)
def test_a_rule_of_other_arguments_fails_at_its_definition(what: str) -> None:
    label = what.partition(",")[0].removesuffix(" of none")
    try:
        with pytest.raises(TypeError, match=f"^op 'own_wrong' has a {label} that takes .*; it is "
                                            "called with "):
            gt.op("own_wrong", **_softplus_rules(**WRONG_ARGUMENTS[what]))
        assert "own_wrong" not in registry
    finally:
        if "own_wrong" in registry:
            _remove("own_wrong")


def test_what_is_no_rule_and_a_wrong_number_of_derivatives_fail_at_the_definition() -> None:
    with pytest.raises(TypeError, match="'own_wrong' was given int as its backward rule; wanted a"):
        gt.op("own_wrong", **_softplus_rules(backward=3, tangent=None))
    with pytest.raises(TypeError, match="has the inputs x, and its pointwise.. was given 2 der"):
        gt.op("own_wrong", **_softplus_rules(backward=gt.pointwise(None, None)))
    assert "own_wrong" not in registry


def test_rules_may_take_more_than_they_are_given(own_op: Callable[..., Op]) -> None:
    """Defaults, any arguments, further keywords; and kernels, whose arguments nothing tells."""
    own_op("own_lenient", **_softplus_rules(
        cpu=lambda x, *, beta_=1.0, out=None: x, gpu=lambda *arrays, **params: arrays[0],
        backward=lambda ns, step, g, more=0: None, tangent=lambda *given: given[3],
        composed=lambda *inputs, **params: inputs[0]))
    own_op("own_built", **_softplus_rules(gpu=max))


def test_rules_may_lack_parameters_with_a_default(own_op: Callable[..., Op]) -> None:
    """As long as no call gives them: those of a ufunc on the CPU, which are many, and others."""
    negated = own_op(
        "own_negated", inputs="x", cpu=np.negative, gpu=lambda x, out=None: -x,
        backward=gt.pointwise(gt.d("", lambda ns, g, **_: ns.negative(g))), samples=None)
    x = gt.ones(3).requires_grad_(True)
    negated(x).sum().backward()
    assert x.grad.tolist() == [-1, -1, -1]
    own_op("own_hypot", inputs="x y", cpu=np.hypot, gpu=lambda x, y, out=None: x, backward=None,
           tangent=None, composed=lambda x, y: x, samples=None)
    own_op("own_scaled", cpu=lambda x, *, by=1.0, out=None: x * by, gpu=lambda x, out=None: x,
           backward=None, tangent=None, samples=None)


@pytest.mark.parametrize("name", sorted(registry))
def test_rules_take_what_they_are_given(name: str) -> None:
    declaration = getattr(registry[name].backward, "__self__", None)
    check_rules(registry[name], declaration if isinstance(declaration, gt.pointwise) else None)


def test_bad_definitions_and_calls_of_own_ops_name_the_op(own_op: Callable[..., Op]) -> None:
    with pytest.raises(TypeError, match="op 'own_gpu_only' has no path for the CPU; wanted one"):
        gt.op("own_gpu_only", **_softplus_rules(cpu=None))
    with pytest.raises(TypeError, match="the formula of op 'own_sums' calls ns.sum; wanted one of"):
        fused("own_sums", lambda ns, x: ns.sum(x))
    cpu_only = own_op("own_softplus", **_softplus_rules(gpu=None, backward=None, tangent=None))
    with pytest.raises(gt.DeviceError, match="own_softplus has no path for a GPU; move its inputs"):
        execute(cpu_only, MagicMock(type="cuda", __str__=lambda device: "a GPU"), [], {})
    scaled = own_op("own_scaled", cpu=lambda x, *, by, out=None: x * by, gpu=None, backward=None,
                    tangent=None, samples=None)
    for by in (np.ones(3), gt.ones(3)):
        with pytest.raises(TypeError, match="own_scaled was given an array as its parameter 'by'"):
            scaled(gt.ones(3), by=by)


def test_a_taken_name_and_unknown_saves_fail_at_registration(own_op: Callable[..., Op]) -> None:
    own_op("own_softplus", **_softplus_rules())
    with pytest.raises(TypeError, match="registered already"):
        gt.op("own_softplus", **_softplus_rules())
    with pytest.raises(TypeError, match=r"saves \['z'\]"):
        gt.op("own_typo", **_softplus_rules(backward=gt.pointwise(gt.d("z", lambda ns, g: g))))
    with pytest.raises(TypeError, match="constants 'z'; wanted some of its inputs: x"):
        gt.op("own_typo", **_softplus_rules(constants="z"))


def test_unknown_names_and_ops_without_samples_are_refused(own_op: Callable[..., Op]) -> None:
    with pytest.raises(KeyError):
        opcheck("no such op")
    own_op("own_untested", **_softplus_rules(samples=None))
    with pytest.raises(ValueError, match="'own_untested' has no samples"):
        opcheck("own_untested")
