"""`gt.autocast` against PyTorch's: the lists of ops, values of a network, and its blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

import gtensor as gt
from gtensor import nn
from gtensor.nn import functional as F

LOW = np.dtype(ml_dtypes.bfloat16)
DTYPES = {torch.float16: gt.float16, torch.bfloat16: gt.bfloat16, torch.float32: gt.float32,
          torch.bool: gt.bool}

# PyTorch's function -> ours with its arguments, of which gt has the function.
OURS: dict[str, Callable[..., gt.Tensor]] = {
    "conv1d": F.conv1d, "conv2d": F.conv2d, "conv_transpose1d": F.conv_transpose1d,
    "conv_transpose2d": F.conv_transpose2d, "prelu": F.prelu, "matmul": gt.matmul,
    "__matmul__": lambda a, b: a @ b, "mm": gt.matmul, "mv": gt.matmul, "bmm": gt.matmul,
    "einsum": lambda _, a, b: gt.einsum("ij,jk->ik", a, b), "linalg_vecdot": gt.vecdot,
    "linear": lambda x, w, *_: F.linear(x, w),
    "acos": gt.acos, "asin": gt.asin, "cosh": gt.cosh, "exp": gt.exp, "expm1": gt.expm1,
    "log": gt.log, "log10": gt.log10, "log2": gt.log2, "log1p": gt.log1p,
    "reciprocal": gt.reciprocal, "sinh": gt.sinh, "tan": gt.tan, "pow": gt.pow,
    "__pow__": lambda x, y: x ** y, "softmax": F.softmax, "log_softmax": F.log_softmax,
    "layer_norm": F.layer_norm, "rms_norm": F.rms_norm,
    "group_norm": lambda x, groups: F.group_norm(x.reshape(1, *x.shape), groups),
    "norm": lambda x, p=2, dim=None: gt.linalg.vector_norm(x, axis=dim, ord=p),
    "cosine_similarity": F.cosine_similarity, "kl_div": F.kl_div,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "binary_cross_entropy": F.binary_cross_entropy,
    "cumprod": lambda x, axis: gt.cumulative_prod(x, axis=axis),
    "cumsum": lambda x, axis: gt.cumulative_sum(x, axis=axis),
    "prod": lambda x, axis=None: gt.prod(x, axis=axis),
    "sum": lambda x, axis=None: gt.sum(x, axis=axis), "logsumexp": gt.logsumexp,
    "softplus": F.softplus, "nll_loss": F.nll_loss, "nll_loss2d": F.nll_loss,
    "l1_loss": F.l1_loss, "smooth_l1_loss": F.smooth_l1_loss, "mse_loss": F.mse_loss,
    "huber_loss": F.huber_loss,
    "eq": gt.equal, "ge": gt.greater_equal, "gt": gt.greater, "le": gt.less_equal, "lt": gt.less,
    "ne": gt.not_equal, "add": gt.add, "div": gt.divide, "mul": gt.multiply,
    "cat": lambda xs: gt.concat(xs), "stack": lambda xs: gt.stack(xs), "atan2": gt.atan2,
    "cross": gt.linalg.cross,
}
LACKING = {  # of PyTorch's lists, those that gt has no function for, or none of that signature
    "_addmm_activation", "_convolution", "_native_multi_head_attention", "addbmm", "addcdiv",
    "addcmul", "addmm", "addmv", "addr", "avg_pool3d", "baddbmm", "bilinear", "cdist",
    "chain_matmul", "conv3d", "conv_tbc", "conv_transpose3d", "convolution",
    "cosine_embedding_loss", "cudnn_convolution", "cudnn_convolution_transpose", "dist", "dot",
    "equal", "erfinv", "grid_sampler", "gru_cell", "hinge_embedding_loss", "index_put",
    "linalg_multi_dot", "lstm_cell", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "pdist", "poisson_nll_loss", "reflection_pad1d", "renorm",
    "rnn_relu_cell", "rnn_tanh_cell", "rsqrt", "scatter_add", "soft_margin_loss", "tensordot",
    "triplet_margin_loss", "vdot"}


def listed(lists: Any, *names: str) -> list[Any]:
    """The entries of these lists of PyTorch's: name, arguments, perhaps keywords or a dtype."""
    return [entry for name in names for entry in getattr(lists, name)]


def ours(value: Any) -> Any:
    """A PyTorch tensor, or those in tuples, as ours."""
    if isinstance(value, torch.Tensor):
        array = value.to(torch.float32) if value.dtype == torch.bfloat16 else value
        return gt.asarray(array.numpy()).astype(DTYPES.get(value.dtype, array.numpy().dtype))
    return [ours(each) for each in value] if isinstance(value, tuple) else value


def result(entry: Any, dtype: Any) -> np.dtype:
    """The dtype of our function's result on the arguments of an entry."""
    name, args, *rest = entry
    args = args if isinstance(args, tuple) else (args, *rest)  # einsum's subscripts come first
    keywords = rest[0] if rest and isinstance(rest[0], dict) else {}
    with gt.autocast(dtype), np.errstate(all="ignore"):  # PyTorch's arguments are random
        return OURS[name](*map(ours, args if name != "einsum" else (args[0], *rest[0])),
                          **keywords).dtype


def known(entries: list[Any]) -> list[Any]:
    names = {entry[0] for entry in entries}
    assert names <= {*OURS} | LACKING, names - {*OURS} - LACKING
    return [entry for entry in entries if entry[0] in OURS]


CUDA = AutocastTestLists("cpu")
HOST = AutocastCPUTestLists("cpu")


@pytest.mark.parametrize(("names", "wanted"), [
    (("torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16"), "float16"),
    (("torch_fp32", "nn_fp32", "methods_fp32"), "float32")])
def test_ops_run_in_the_dtype_of_pytorchs_lists(names: tuple[str, ...], wanted: str) -> None:
    """Those for CUDA, by their own arguments: of float32 for the lower dtype, else of float16."""
    found = known(listed(CUDA, *names))
    assert len(found) > 10
    wrong = [entry[0] for entry in found if result(entry, gt.float16) != wanted]
    assert not wrong


def test_ops_of_several_inputs_give_the_widest_dtype() -> None:
    for entry in known(listed(CUDA, "torch_expect_builtin_promote", "torch_need_autocast_promote")):
        wanted = DTYPES[entry[2]] if len(entry) > 2 and entry[0] != "cross" else gt.float32
        assert result(entry[:2], gt.float16) == wanted, entry[0]


def theirs(entry: Any) -> torch.dtype:
    name, args, *rest = entry
    keywords = rest[0] if rest and isinstance(rest[0], dict) else {}
    place = next(m for m in (torch, torch._C._nn, torch.linalg) if hasattr(m, name))
    with torch.autocast("cpu", torch.bfloat16):
        return getattr(place, name)(*args, **keywords).dtype


def test_results_have_the_dtypes_of_pytorchs_on_the_cpu() -> None:
    """Where PyTorch runs by its list for the CPU, as it does here; bfloat16 and float32 inputs."""
    entries = known(listed(HOST, "torch_16", "nn_16", "torch_fp32", "nn_fp32"))
    assert len(entries) > 15
    for entry in entries:
        assert result(entry, LOW) == DTYPES[theirs(entry)], entry[0]
    for entry in known(listed(HOST, "torch_expect_builtin_promote")):
        assert result(entry[:2], LOW) == DTYPES[theirs(entry[:2])], entry[0]


@pytest.mark.parametrize(("run", "wanted"), [
    (lambda x, h: F.scaled_dot_product_attention(x, h, x), LOW),
    (lambda x, h: F.feed_forward(x, h[0, 0], None, x[0, 0], x[0, 0, 0], "gelu_tanh"), LOW),
    (lambda x, h: nn.LSTM(4, 3)(h[0], (x[0, :1, :, :3], h[0, :1, :, :3]))[0], LOW),
    (lambda x, h: nn.GRUCell(4, 3)(x[0, 0]), LOW),
    (lambda x, h: gt.einsum("abcd,abcd->abcd", x, h), LOW),
    (lambda x, h: gt.sum(h, dtype=gt.bfloat16), LOW),
    (lambda x, h: F.interpolate(h, scale_factor=2.0), gt.float32),
    (lambda x, h: F.mse_loss(x, h, reduction="none"), gt.float32),
    (lambda x, h: x ** 2, gt.float32),
    (lambda x, h: F.cross_entropy(h[0, 0], gt.zeros(4, "int64"), x[0, 0, 0]), gt.float32),
    (lambda x, h: F.nll_loss(h[0, 0], gt.zeros(4, "int64"), x[0, 0, 0]), gt.float32),
    (lambda x, h: F.layer_norm(h, (4,), x[0, 0, 0], x[0, 0, 0]), gt.float32),
    (lambda x, h: F.batch_norm(h, None, None, x[0, :, 0, 0], x[0, :, 0, 0], training=True), LOW),
    (lambda x, h: F.abn(h * 1.0, x[0, :, 0, 0], training=True), LOW),
    (lambda x, h: h @ np.ones((4, 4), np.float32), LOW),
    (lambda x, h: gt.matmul([[1.0] * 4] * 4, h), LOW),
    (lambda x, h: x.astype("float64") @ x.astype("float64"), gt.float64),
    (lambda x, h: h.exp().astype("float64").sum(), gt.float64),
    (lambda x, h: gt.ones((2, 2), "int64") @ gt.ones((2, 2), "int64"), gt.int64),
])
def test_mixed_inputs_are_taken(run: Any, wanted: Any) -> None:
    """x is float32, h bfloat16."""
    x = gt.ones((2, 4, 4, 4))
    with gt.autocast("bfloat16"):
        found = run(x, x.astype("bfloat16"))
    assert found.dtype == wanted


# -- values ----------------------------------------------------------------------------------------


def networks() -> tuple[Any, Any]:
    """Of both libraries, with the same weights."""
    def layers(m: Any) -> Any:
        return m.Sequential(
            m.Conv2d(1, 4, 3, padding=1, bias=False), m.BatchNorm2d(4), m.ReLU(), m.Flatten(),
            m.Linear(64, 16), m.LayerNorm(16), m.GELU(), m.Linear(16, 5))

    torch.manual_seed(0)
    other = layers(torch.nn)
    net = layers(nn)
    net.load_state_dict({k: v.numpy() for k, v in other.state_dict().items()})
    return net, other


def test_loss_and_gradients_are_pytorchs_to_bfloat16_accuracy() -> None:
    net, other = networks()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 1, 4, 4)).astype(np.float32)
    target = rng.integers(0, 5, 8)
    with gt.autocast("bfloat16"):
        loss = F.cross_entropy(net(gt.asarray(x)), gt.asarray(target))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = torch.nn.functional.cross_entropy(other(torch.from_numpy(x)),
                                                   torch.from_numpy(target))
    loss.backward()
    wanted.backward()
    assert loss.dtype == gt.float32
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-2)
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        assert p.dtype == p.grad.dtype == gt.float32, name
        scale = np.abs(q.grad.numpy()).max()
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), atol=4e-2 * scale, err_msg=name)


@pytest.mark.parametrize(("device", "dtype"), [
    ("cpu", "bfloat16"), pytest.param("cuda", "float16", marks=pytest.mark.gpu)])
def test_training_keeps_float32_weights(device: str, dtype: str) -> None:
    """The updates are smaller than the lower dtype resolves, and the loss still falls."""
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = gt.optim.AdamW(net.parameters(), lr=3e-3)
    scaler = gt.amp.GradScaler(enabled=dtype == "float16")  # the first scales are too large
    x = gt.random.normal((32, 4), device=device)
    target = (x * x).sum(axis=1, keepdims=True)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with gt.autocast(dtype):
            loss = F.mse_loss(net(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss)
    assert losses[-1].item() < 0.7 * losses[0].item()
    for p in net.parameters():
        assert p.dtype == p.grad.dtype == gt.float32
        assert not np.array_equal(p.numpy(), p.astype(dtype).astype("float32").numpy())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_halves_is_that_of_their_cast(
    weighted: bool, smoothing: float, reduction: str, dtype: str, device: str
) -> None:
    """Equal bits, and two orders of gradients, but no float32 copy is kept of the logits."""
    rng = np.random.default_rng(0)
    given = (3 * rng.standard_normal((40, 24))).astype(getattr(gt, dtype))
    target = gt.asarray(np.where(np.arange(40) == 3, -100, rng.integers(0, 24, 40)), device=device)
    weight = gt.asarray(rng.uniform(0.2, 2, 24).astype("f"), device=device) if weighted else None
    found = []
    for cast in (False, True):
        x = gt.tensor(given, device=device, requires_grad=True)
        logits = x * 1
        with gt.autocast("bfloat16"):
            loss = F.cross_entropy(logits.astype("float32") if cast else logits, target, weight,
                                   reduction=reduction, label_smoothing=smoothing)
        assert loss.dtype == gt.float32
        assert cast or {each.dtype for each in loss._node.saved[:1]} == {x.dtype}
        (g,) = gt.grad(loss.sum(), x, retain_graph=True)
        (h,) = gt.grad(loss.sum(), x, create_graph=True)
        (again,) = gt.grad((h.astype("float32") ** 2).sum(), x)
        found.append([each.numpy().astype("f") for each in (loss, g, h, again)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


# -- blocks ----------------------------------------------------------------------------------------


def kind() -> str:
    """The dtype of a product now."""
    return (gt.ones((2, 2)) @ gt.ones((2, 2))).dtype.name


def test_blocks_nest() -> None:
    with gt.autocast("bfloat16"):
        with gt.autocast(gt.float16):
            assert kind() == "float16"
            with gt.autocast("bfloat16", enabled=False):
                assert kind() == "float32"
                with gt.amp.autocast("bfloat16"):
                    assert kind() == "bfloat16"
            assert kind() == "float16"
        assert kind() == "bfloat16"
    assert kind() == "float32"


def test_functions_are_decorated() -> None:
    @gt.autocast("bfloat16")
    def inner(depth: int) -> list[str]:
        return [kind(), *(inner(depth - 1) if depth else [])]

    assert inner(2) == ["bfloat16"] * 3 and kind() == "float32"
    block = gt.autocast("bfloat16")
    with block, block:
        assert kind() == "bfloat16"
    assert kind() == "float32"


def test_an_error_leaves_the_mode_as_it_was() -> None:
    with gt.autocast("bfloat16"):
        with pytest.raises(ValueError, match="matmul"):
            gt.ones((2, 3)) @ gt.ones((2, 3))
        assert kind() == "bfloat16"
        with pytest.raises(ZeroDivisionError), gt.autocast("float16"):
            raise ZeroDivisionError
        assert kind() == "bfloat16"
        with pytest.raises(ValueError, match="autocast"):
            gt.autocast("int8")
        assert kind() == "bfloat16"
    assert kind() == "float32"


def test_a_block_is_of_its_thread() -> None:
    found = []
    with gt.autocast("bfloat16"):
        thread = threading.Thread(target=lambda: found.append(kind()))
        thread.start()
        thread.join()
        assert kind() == "bfloat16"
    assert found == ["float32"]


@pytest.mark.parametrize("dtype", ["float32", "int8", gt.float64])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="^autocast was given .*; wanted bfloat16 or float16$"):
        gt.autocast(dtype)
    with gt.autocast(dtype, enabled=False):
        assert kind() == "float32"


@pytest.mark.parametrize("given, named, dtype", [
    (("cpu",), {}, "bfloat16"), (("cuda",), {}, "float16"),
    (("cuda", gt.bfloat16), {}, "bfloat16"), (("cuda", gt.float16, False), {}, "float32"),
    ((), {"device_type": "cuda", "dtype": gt.bfloat16}, "bfloat16"),
    (("cpu",), {"enabled": False}, "float32")])
def test_pytorchs_calls_name_a_device_first(given: Any, named: Any, dtype: str) -> None:
    with gt.autocast(*given, **named):
        assert kind() == dtype
    with pytest.raises(ValueError, match="device_type='mps'; wanted 'cpu' or 'cuda'"):
        gt.autocast(device_type="mps", dtype=gt.bfloat16)


@pytest.mark.parametrize("dtype", ["gpu", None, 3, object()])
def test_what_is_no_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="^autocast was given .*; wanted bfloat16 or float16$"):
        gt.autocast(dtype)


def test_the_scaler_has_two_doors() -> None:
    assert gt.amp.GradScaler is gt.optim.GradScaler


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("options", [
    {}, {"activation": "gelu_tanh", "norm": "layer", "rotary": False, "bias": True}])
def test_a_model_with_workspaces_runs_in_steps_and_as_a_whole(
    options: dict[str, Any], device: str
) -> None:
    """Workspaces serve the casts, too, but never write those of weights that the block keeps."""
    net = gt.models.GPT(gt.models.GPTConfig(vocabulary=32, layers=2, width=64, heads=4, length=16,
                                            **options), device)
    tokens = gt.asarray(np.random.default_rng(0).integers(0, 32, (2, 16)), device=device)
    with gt.autocast("bfloat16"):
        F.cross_entropy(net(tokens).reshape(-1, 32), tokens.reshape(-1)).backward()
    assert all(p.grad.dtype == gt.float32 for p in net.parameters())
    with gt.settings.override(arena_min_bytes=0), gt.no_grad():
        with gt.autocast("bfloat16", cache_enabled=False):
            wanted = net.eval()(tokens).numpy()
        with gt.autocast("bfloat16"):
            state = net.initial_state(2)
            for place in range(16):
                step = net.step(tokens[:, place], state).numpy()
                whole = net(tokens).numpy()
                np.testing.assert_array_equal(whole, wanted)
                np.testing.assert_allclose(step.astype("f"), wanted[:, place].astype("f"),
                                           atol=2e-2)
