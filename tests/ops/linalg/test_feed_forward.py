"""feed_forward: against its parts in every dtype, what it costs on CUDA, what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda, nn
from gtensor.backend import cublaslt
from gtensor.nn import functional as F
from gtensor.ops.linalg.linear import linear_sum
from gtensor.testing.compare import close

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
DTYPES = [*HALVES, np.dtype(np.float32), np.dtype(np.float64)]
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-10}
SIZES = [(5, 3, 7, 2), (16, 8, 130, 9), (1, 1, 1, 1)]  # rows, in, hidden, out
Inputs = list[gt.Tensor]


def inputs(sizes: tuple[int, ...], dtype: Any, device: str) -> Inputs:
    """What goes into the activation is exact in all dtypes, so none rounds it over ReLU's kink."""
    rows, inside, hidden, outside = sizes
    rng = np.random.default_rng(0)
    values = [rng.integers(-2, 3, (rows, inside)) / 2, rng.integers(-2, 3, (hidden, inside)) / 2,
              rng.integers(-4, 4, hidden) / 4 + 0.125, rng.uniform(-1, 1, (outside, hidden)),
              rng.uniform(-1, 1, outside)]
    return [gt.tensor(value.astype(dtype), device=device, requires_grad=True) for value in values]


def composed(x: gt.Tensor, w1: gt.Tensor, b1: Any, w2: gt.Tensor, b2: Any, activation: str) -> Any:
    hidden = F.linear(x, w1, b1)
    hidden = F.relu(hidden) if activation == "relu" else F.gelu(hidden, "tanh")
    return F.linear(hidden, w2, b2)


def agree(dtype: np.dtype, activation: str, device: str, biased: bool = True) -> None:
    for sizes in SIZES:
        found = []
        for function in (F.feed_forward, composed):
            given: list[Any] = inputs(sizes, dtype, device)
            if not biased:
                given[2] = given[4] = None
            y = function(*given, activation)
            y.backward(gt.ones(y.shape, dtype=dtype, device=device) * 0.5)
            found.append([y.detach(), *[x.grad for x in given if x is not None]])
        for ours, theirs in zip(*found, strict=True):
            close(f"{sizes}", ours, theirs.numpy(), (TOLERANCE[dtype.name],) * 2)


@pytest.mark.parametrize("biased", [True, False], ids=["biases", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_values_and_gradients_are_those_of_the_parts(
    device: str, dtype: np.dtype, activation: str, biased: bool
) -> None:
    agree(dtype, activation, device, biased)


@pytest.mark.host_cuda
@pytest.mark.parametrize(("dtype", "activation"), [
    (dtype, activation) for dtype in DTYPES for activation in ("relu", "gelu_tanh")
    if (dtype.name, activation) != ("float64", "gelu_tanh")])  # whose constant has eight digits
def test_two_launches_forward_and_four_backward(dtype: np.dtype, activation: str) -> None:
    for axes in ((16, 8), (4, 4, 8)):
        x, *parameters = inputs((16, 8, 32, 24), dtype, "cuda")
        x = gt.reshape(x.detach(), axes).requires_grad_()
        g = gt.ones((*axes[:-1], 24), dtype=dtype, device="cuda")
        with gt.no_grad():
            F.feed_forward(x, *parameters, activation)
        for _ in range(2):
            hostcuda.reset_counters()
            y = F.feed_forward(x, *parameters, activation)
            forward = hostcuda.counters()
            y.backward(g)
            both = hostcuda.counters()
        assert (forward.library, forward.kernels, forward.copies) == ({"cublasLtMatmul": 2}, {}, {})
        assert sum(both.library.values()) == 6
        added = {} if x.grad is None else both.kernels  # to the gradients of the first turn
        assert both.copies == {} and set(both.kernels) <= set(added)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_where_cublaslt_refuses_the_parts_run(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublaslt, "matmul", lambda *given: False)
    agree(np.dtype(np.float32), activation, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
@pytest.mark.parametrize("hidden", [7, 16])
def test_only_what_a_product_has_kept_is_read_by_one(activation: str, hidden: int) -> None:
    """Forward the parts run, as cublasLt cannot read the input; backward it could read g."""
    rng = np.random.default_rng(0)
    x, *parameters = inputs((5, 6, hidden, 2), np.float64, "cuda")
    parameters[0] = gt.tensor(rng.standard_normal((hidden, 3)), device="cuda", requires_grad=True)
    found = []
    for part in (x.detach()[:, ::2], x.detach()[:, ::2].clone()):
        y = F.feed_forward(part, *parameters, activation)
        found.append(gt.grad([y], parameters, [gt.ones(y.shape, dtype=np.float64, device="cuda")]))
    for ours, theirs in zip(*found, strict=True):
        close("strided", ours, theirs.numpy(), (1e-10, 1e-10))


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_gradients_of_gradients(activation: str) -> None:
    gt.testing.gradcheck(lambda *given: gt.tanh(F.feed_forward(*given, activation)),
                         inputs((3, 2, 4, 3), np.float64, "cpu"), order=2)


def test_what_is_refused() -> None:
    x, w1, b1, w2, b2 = inputs((3, 2, 4, 5), np.float32, "cpu")
    with pytest.raises(ValueError, match="activation='gelu'; wanted 'relu' or 'gelu_tanh'"):
        F.feed_forward(x, w1, b1, w2, b2, "gelu")
    with pytest.raises(ValueError, match=r"weights of shapes \(4, 2\) and \(4, 5\); wanted"):
        F.feed_forward(x, w1, b1, w2.mT, b2)
    with pytest.raises(ValueError, match=r"bias1 of shape \(5,\); wanted \(4,\)"):
        F.feed_forward(x, w1, b2, w2, b2)
    with pytest.raises(TypeError, match="float32"):
        F.feed_forward(x, w1, b1, gt.astype(w2, np.float64), b2)


def test_a_transformer_layer_uses_it_where_its_parts_are_unchanged() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = gt.ones((2, 3, 8))
    seen: list[str] = []

    class Names:
        def op_begins(self, event: Any) -> None:
            seen.append(event.name)

        def op_ends(self, event: Any) -> None:
            pass

    def ops() -> list[str]:
        seen.clear()
        with gt.listen(Names()):
            layer(x)
        return seen

    assert "feed_forward" in ops()
    plain = layer(x).numpy()
    handle = layer.linear2.register_forward_hook(lambda module, given, y: None)
    assert "feed_forward" not in ops()
    close("the layer", layer(x), plain, (1e-5, 1e-6))
    handle.remove()
    layer.dropout.p = 0.5
    assert "feed_forward" not in ops()
    layer.eval()
    assert "feed_forward" in ops()
    layer.activation = F.gelu
    assert "feed_forward" not in ops()


def test_a_slope_of_other_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests tested: ReLU's derivative where the hidden values are those of another row."""
    from gtensor.ops.linalg import feed_forward

    right = feed_forward._hidden_gradient

    def wrong(ns: Any, g: Any, weight2: Any, hidden: Any, kept: Any, activation: str) -> Any:
        return right(ns, g, weight2, hidden[::-1], kept[::-1], activation)

    monkeypatch.setattr(feed_forward, "_hidden_gradient", wrong)
    with pytest.raises(AssertionError):
        agree(np.dtype(np.float64), "relu", "cpu")


def test_a_sum_is_rounded_once() -> None:
    """Under autocast it has the summand's dtype; its gradient is cast for the products alone."""
    rng = np.random.default_rng(0)
    shapes = (6, 5), (7, 5), (7,), (4, 7), (4,), (6, 4)
    values = [rng.integers(-4, 5, shape) / 4 for shape in shapes]  # exact in halves
    values[-2] = values[-2] + 2.0**-12  # the bias and the summand are not
    values[-1] = values[-1] + 2.0**-13
    made = [gt.tensor(v.astype(np.float32), requires_grad=True) for v in values]
    *given, summand = made
    with gt.autocast("bfloat16"):
        whole = F.feed_forward(*given, "relu", summand)
        hidden = F.relu(F.linear(*given[:3]))
        again = linear_sum(hidden, *given[3:], summand)
    low = np.maximum(values[0] @ values[1].T + values[2], 0).astype(HALVES[1]).astype(np.float64)
    wanted = low @ values[3].T + values[4] + values[5]
    for y in (whole, again):
        assert y.dtype == np.float32
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-6, atol=1e-6)
    g = rng.standard_normal((6, 4)).astype(np.float32)
    whole.backward(gt.tensor(g))
    np.testing.assert_array_equal(summand.grad.numpy(), g)
    assert all(leaf.grad is not None and leaf.grad.dtype == np.float32 for leaf in made)
    half = g.astype(HALVES[1]).astype(np.float64)
    np.testing.assert_allclose(given[3].grad.numpy(), half.T @ low, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_summand_of_another_dtype_is_added_afterwards(dtype: str) -> None:
    values = inputs((5, 3, 7, 2), np.float32, "cpu")
    summand = gt.ones((5, 2), dtype)
    y = F.feed_forward(*values, "relu", summand)
    wanted = F.feed_forward(*values) + summand
    assert y.dtype == wanted.dtype
    np.testing.assert_array_equal(y.numpy(), wanted.numpy())
    with pytest.raises(ValueError, match=r"a summand of shape \(2,\); wanted \(5, 2\)"):
        F.feed_forward(*values, "relu", gt.ones((2,)))
