"""What a training step costs on CUDA: every kernel, library call, copy, memset and allocation.

The budgets are equalities. A change that makes a step cheaper or dearer fails here with the
difference by name; its author writes the new figure into the budget, so that it is seen in review.
CuPy's accelerators are those that it has by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn, optim
from gtensor.hostcuda import Counters, configure, counters, reset_counters
from gtensor.models import GPT, Denoiser, DenoiserConfig, GPTConfig
from gtensor.nn import functional as F
from gtensor.train import diffusion, digits, text
from gtensor.train.callbacks import Callback

pytestmark = pytest.mark.host_cuda
WARM_UP = 2  # steps, in which the arena gets its memory and the optimizer its state

ITEM = {"device to host": 1}
DIGITS = Counters(  # 32 launches; the batch goes up as images and labels, the loss comes down
    kernels={
        "bn_act_backward_on_chip<float>": 3, "bn_act_forward_on_chip<float>": 3,
        "col2im<float>": 2, "conv_weight_gradient<float>": 1, "cross_entropy_backward<float>": 1,
        "cross_entropy_few_rows<float>": 1, "cupy_fill": 1,
        "gt_adam<float, float, float, float, 40, 8>": 1,
        "im2col<float>": 3, "im2col_beside<float>": 2, "max_pool2d_backward<float>": 2,
        "max_pool2d_forward<float>": 2},
    library={"cublasGemmEx": 3, "cublasGemmStridedBatchedEx": 5, "cublasLtMatmul": 2},
    copies={"host to device": 2} | ITEM,
    other={"synchronize copy": 1, "synchronize stream": 1},  # of item()
    bytes={"host to device": 64 * (64 * 4 + 8), "device to host": 4})

MLP = Counters(  # 16 launches
    kernels={
        "cross_entropy_backward<float>": 1, "cross_entropy_few_rows<float>": 1,
        "cupy_fill": 1, "gt_relu": 2, "gt_relu_grad": 2,
        "gt_sgd_momentum<float, float, float, 40, 8>": 1},
    library={"cublasGemmEx": 2, "cublasLtMatmul": 6})

TRANSFORMER = Counters(  # 36 launches
    kernels={
        "attention_terms_backward_keys_64<float>": 1,
        "attention_terms_backward_queries_64<float>": 1, "attention_terms_forward_64<float>": 1,
        "cupy_copy__float32_float32": 2, "cupy_fill": 1,
        "cupy_multiply__float32_float32_float32": 1, "cupy_multiply__float32_float_float32": 1,
        "gt_adam<float, float, float, float, 40, 8>": 1, "gt_dropout": 2, "gt_dropout_sum": 2,
        "gt_elementwise": 1, "gt_gelu_dropout": 1, "gt_gelu_dropout_grad": 1,
        "gt_squared_error_grad": 1, "layer_norm_backward<float>": 2, "layer_norm_forward<float>": 2,
        "layer_norm_parameters<float>": 2},
    library={"cub::DeviceReduce": 1, "cublasGemmEx": 4, "cublasLtMatmul": 8})

DIFFUSION = Counters(  # 129 launches; images, labels, noise levels, noise go up
    kernels={
        "attention_backward_keys_64<float>": 1, "attention_backward_queries_64<float>": 1,
        "attention_forward_64<float>": 1, "cupy_add__float32_float32_float32": 17,
        "cupy_add__float32_float_float32": 1, "cupy_add__float_float32_float32": 3,
        "cupy_copy__float32_float32": 11, "cupy_copy__float64_float32": 2,
        "cupy_cos__float32_float32": 1, "cupy_exp__float32_float32": 1, "cupy_fill": 1,
        "cupy_log__float32_float32": 1, "cupy_multiply__float32_float32_float32": 20,
        "cupy_multiply__float32_float_float32": 1, "cupy_multiply__float_float32_float32": 2,
        "cupy_scatter_add": 1, "cupy_sin__float32_float32": 1, "cupy_sqrt__float32_float32": 1,
        "cupy_square__float32_float32": 1, "cupy_subtract__float32_float32_float32": 1,
        "cupy_sum": 8, "cupy_take": 1, "cupy_true_divide__float32_float32_float32": 2,
        "cupy_true_divide__float32_float_float32": 1, "cupy_true_divide__float_float32_float32": 2,
        "gt_adam<float, float, float, float, 40, 8>": 1, "gt_average<float, float, 40, 8>": 1,
        "gt_elementwise": 1, "gt_silu": 3, "gt_silu_grad": 3, "gt_squared_error_grad": 1,
        "layer_norm_backward<float>": 3, "layer_norm_forward<float>": 3, "sum_rows<float>": 1},
    library={"cub::DeviceReduce": 1, "cublasGemmEx": 8, "cublasLtMatmul": 20},
    copies={"device to host": 1, "host to device": 4},
    memsets={"memset": 4},
    other={"synchronize copy": 1, "synchronize stream": 1},
    bytes={"device to host": 4, "host to device": 50_176, "memset": 920_064})

TEXT = Counters(  # 44 launches; the windows go up as bytes; the loss and the norm come down
    kernels={
        "attention_backward_keys_64<float>": 1, "attention_backward_queries_64<float>": 1,
        "attention_forward_64<float>": 1, "cross_entropy_backward<float>": 1,
        "cross_entropy_few_rows<float>": 1, "cupy_copy__int64_int64": 2,
        "cupy_copy__uint8_int64": 1, "cupy_fill": 1, "cupy_negative__float32_float32": 1,
        "cupy_scatter_add": 1, "cupy_take": 1, "gradient_norm<float>": 1,
        "gt_adam<float, float, float, float, 40, 8>": 1, "gt_norm_squares<float, 40, 8>": 1,
        "gt_rotary": 2, "gt_scale<float, 40, 8>": 1, "gt_swish_gated": 1, "gt_swish_gated_grads": 1,
        "layer_norm_backward<float>": 3, "layer_norm_forward<float>": 3,
        "layer_norm_parameters<float>": 3},
    library={"cublasGemmEx": 13, "cublasLtMatmul": 2},
    copies={"device to host": 2, "host to device": 1},
    memsets={"memset": 1},
    other={"synchronize copy": 2, "synchronize stream": 2},
    bytes={"device to host": 8, "host to device": 34, "memset": 131_072})

TEXT_SSM = Counters(  # 95 launches; with a state-space model
    kernels={
        "cross_entropy_backward<float>": 1, "cross_entropy_few_rows<float>": 1,
        "cupy_add__float32_float32_float32": 12, "cupy_copy__float32_float32": 3,
        "cupy_copy__int64_int64": 2, "cupy_copy__uint8_int64": 1, "cupy_fill": 1,
        "cupy_multiply__float32_float32_float32": 15, "cupy_negative__float32_float32": 1,
        "cupy_scatter_add": 1, "cupy_subtract__float32_float32_float32": 1, "cupy_take": 1,
        "gradient_norm<float>": 1, "gt_adam<float, float, float, float, 40, 8>": 1,
        "gt_norm_squares<float, 40, 8>": 1, "gt_scale<float, 40, 8>": 1, "gt_sigmoid": 1,
        "gt_sigmoid_grad": 1, "gt_silu": 1, "gt_silu_grad": 1, "gt_swish_gated": 2,
        "gt_swish_gated_grads": 2, "layer_norm_backward<float>": 3,
        "layer_norm_forward<float>": 3, "layer_norm_parameters<float>": 3,
        "linear_scan_backward<float>": 1, "linear_scan_forward<float>": 1, "sum_rows<float>": 5},
    library={"cublasGemmEx": 19, "cublasGemmStridedBatchedEx": 1, "cublasLtMatmul": 4},
    copies={"device to device": 3, "device to host": 2, "host to device": 1},
    memsets={"memset": 4},
    other={"synchronize copy": 2, "synchronize stream": 2},
    bytes={
        "device to device": 33_280, "device to host": 8, "host to device": 34, "memset": 155_648})

GPT2 = Counters(  # 65 launches, of which 23 a layer; no parameter or its gradient is cast alone
    kernels={
        "attention_backward_keys_64<__nv_bfloat16>": 2,
        "attention_backward_queries_64<__nv_bfloat16>": 2,
        "attention_forward_64<__nv_bfloat16>": 2, "cross_entropy_backward<__nv_bfloat16>": 1,
        "cross_entropy_forward<__nv_bfloat16>": 1, "cross_entropy_reduce<__nv_bfloat16>": 1,
        "cupy_add__float32_float32_float32": 1,
        "cupy_arange__int_int_int64": 1, "cupy_copy__float32_bfloat16": 4, "cupy_fill": 1,
        "cupy_scatter_add": 2, "cupy_take": 2, "gt_adam<float, float, float, float, 40, 8>": 1,
        "gt_cast<__nv_bfloat16, float, 40, 8>": 1, "layer_norm_backward<float>": 5,
        "layer_norm_forward_bfloat16<float>": 5, "layer_norm_parameters<float>": 5,
        "sum_rows<float>": 1},
    library={"cublasGemmEx": 9, "cublasLtMatmul": 18},
    memsets={"memset": 1},
    bytes={"memset": 32_768})

SAMPLING = Counters(  # 120 launches
    kernels={
        "attention_forward_64<float>": 2, "cupy_add__float32_float32_float32": 19,
        "cupy_add__float32_float_float32": 2, "cupy_add__float_float32_float32": 6,
        "cupy_copy__float32_float32": 8, "cupy_cos__float32_float32": 2, "cupy_fill": 2,
        "cupy_log__float32_float32": 2, "cupy_multiply__float32_float32_float32": 18,
        "cupy_multiply__float_float32_float32": 6, "cupy_sin__float32_float32": 2,
        "cupy_sqrt__float32_float32": 2, "cupy_square__float32_float32": 2,
        "cupy_subtract__float32_float32_float32": 2, "cupy_take": 2,
        "cupy_true_divide__float32_float32_float32": 2,
        "cupy_true_divide__float32_float_float32": 5, "cupy_true_divide__float_float32_float32": 4,
        "gt_silu": 6, "layer_norm_forward<float>": 6},
    library={"cublasLtMatmul": 20})


EXCHANGE = {"gt_joint_means": 1, "gt_joint_statistics": 1, "gt_pack_replica": 2,
            "bn_act_statistics<float>": 1, "bn_act_forward<float>": 1, "gt_running_statistics": 1,
            "cupy_multiply__float32_float_float32": 2}
SYNCHRONIZED = {  # x * 1 and a norm, forward and backward: 13 and 12 launches
    "BatchNorm2d": Counters(
        kernels=EXCHANGE | {"bn_act_reduce_from_x<float>": 1, "bn_act_backward_from_x<float>": 1},
        copies={"device to device": 2}, bytes={"device to device": 2 * 5 * 4}),
    "InPlaceABN": Counters(
        kernels=EXCHANGE | {"bn_act_reduce<float>": 1, "bn_act_backward<float>": 1,
                            "gt_weight_slope": 1})}


def difference(found: Counters, wanted: Counters) -> list[str]:
    """One line for each name whose figure is another."""
    lines = []
    for each in (each for each in fields(Counters) if each.compare):  # seconds are no budget
        now, before = getattr(found, each.name), getattr(wanted, each.name)
        for name in sorted(now.keys() | before.keys()):
            old, new = before.get(name, 0), now.get(name, 0)
            if old != new:
                lines.append(f"{each.name}, {name}: {new}, budget {old} ({new - old:+})")
    return lines


def check(found: Counters, wanted: Counters) -> None:
    lines = difference(found, wanted)
    if lines:
        total = f"{found.launches} launches, budget {wanted.launches}"
        pytest.fail("\n".join(["a step's cost has changed:", total, *lines]), pytrace=False)


@pytest.fixture(autouse=True, params=[True, pytest.param(False, marks=pytest.mark.slow)],
                ids=["dry", "run"])
def _on_cuda(request) -> Iterator[None]:
    """Dry by default: what a step costs does not depend on what it computes."""
    configure("eager", dry=request.param)
    before = gt.default_device()
    gt.set_default_device("cuda")
    yield
    gt.set_default_device(before)


def cost(step: Callable[[], object]) -> Counters:
    """Of one step after the others; the next one must cost the same."""
    for _ in range(WARM_UP):
        step()
    found = []
    for _ in range(2):
        reset_counters()
        step()
        found.append(counters())
    check(found[1], found[0])
    return found[0]


def step(model: nn.Module, optimizer: optim.Optimizer, loss: Callable, *data: np.ndarray):
    """Forward, backward, update and zero_grad, on data that is on the device already."""
    inputs, target = (gt.tensor(each) for each in data)

    def run() -> None:
        loss(model(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


@pytest.mark.parametrize(("recipe", "options", "budget"), [
    (digits.Digits, digits.DigitsOptions(), DIGITS),
    (diffusion.Diffusion, diffusion.DiffusionOptions(layers=1), DIFFUSION),
    (text.Text, text.TextOptions(layers=1, length=16, batch_size=2), TEXT),
    (text.Text, text.TextOptions(layers=1, length=16, batch_size=2, arch="ssm"), TEXT_SSM),
], ids=["digits", "diffusion", "text", "text-ssm"])
def test_recipe(recipe, options, budget):
    """A step of `gtensor train` as it is, not captured, from the loader's batch to the loss."""
    whole = digits.data()
    data = bytes(range(256)) * 2 if recipe is text.Text else digits.Data(
        whole.train[:320], whole.held_out[:1], whole.train_labels[:320],
        whole.held_out_labels[:1])
    found = []

    class Count(Callback):
        def after_step(self, trainer: gt.train.Trainer) -> None:
            found.append(counters())
            reset_counters()
            if len(found) == WARM_UP + 2:
                trainer.stop("counted")

    recipe(options.changed(capture="no"), data).trainer().run_with([Count()])
    check(found[-1], found[-2])
    check(found[-1], budget)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


@pytest.mark.parametrize(("make", "shape", "most"), [
    (mlp, (16, 256), 17), (digits.model, (64, 1, 8, 8), 50)], ids=["mlp", "digits"])
def test_forward_and_backward(make, shape, most, rng):
    model = make()
    x, target = gt.tensor(rng.random(shape, np.float32)), gt.tensor(rng.integers(0, 10, shape[0]))

    def run() -> None:
        F.cross_entropy(model(x), target).backward()
        for parameter in model.parameters():
            parameter.grad = None

    assert cost(run).launches <= most


def test_mlp(rng):
    model = mlp()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    check(cost(step(model, optimizer, F.cross_entropy, rng.random((16, 256), np.float32),
                    rng.integers(0, 10, 16))), MLP)


def test_transformer_layer(rng):
    model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu",
                                       batch_first=True, norm_first=True)
    check(cost(step(model, optim.AdamW(model.parameters(), 1e-3), F.mse_loss,
                    rng.random((2, 8, 32), np.float32), rng.random((2, 8, 32), np.float32))),
          TRANSFORMER)


def test_gpt2_under_autocast(rng):
    """Two layers of GPT-2's kind; each further one takes 25 launches."""
    model = GPT(GPTConfig(64, 2, 64, 2, hidden=256, length=128, activation="gelu_tanh",
                          norm="layer", rotary=False, bias=True, tied=True))
    optimizer = optim.AdamW(model.parameters(), 1e-3)
    tokens, targets = (gt.tensor(rng.integers(0, 64, n)) for n in ((2, 128), 256))

    def run() -> None:
        with gt.autocast("bfloat16"):
            loss = F.cross_entropy(model(tokens).reshape((-1, 64)), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    check(cost(run), GPT2)


def test_diffusion_sampling():
    """A step of Heun's method: two evaluations; nothing goes up or comes down."""
    model = Denoiser(DenoiserConfig(width=16, heads=2, layers=1, classes=10))
    found = []
    labels = gt.arange(4)
    for steps in (3, 4):
        model.sample(4, steps, labels)
        reset_counters()
        model.sample(4, steps, labels)
        found.append(counters())
    shorter, longer = found
    for each in fields(Counters):
        before = getattr(shorter, each.name)
        for name, number in getattr(longer, each.name).items():
            getattr(longer, each.name)[name] = number - before.get(name, 0)
    check(longer, SAMPLING)


def test_item_is_one_copy_and_one_wait():
    loss = gt.ones(())
    reset_counters()
    loss.item()
    check(counters(), Counters(copies=ITEM, bytes={"device to host": 4},
                               other={"synchronize copy": 1, "synchronize stream": 1}))


def test_a_change_is_named(rng):
    """One op more in an MLP's forward pass, and one that it had gone."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(),
                          nn.Linear(512, 10))
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found = cost(step(model, optimizer, F.cross_entropy, rng.random((16, 256), np.float32),
                      rng.integers(0, 10, 16)))
    lines = difference(found, MLP)
    assert "kernels, gt_relu: 1, budget 2 (-1)" in lines
    assert any(line.startswith("kernels, cupy_tanh") and "budget 0 (+1)" in line for line in lines)
    with pytest.raises(pytest.fail.Exception, match="gt_relu: 1, budget 2"):
        check(found, MLP)


@pytest.mark.parametrize("norm", SYNCHRONIZED)
def test_a_synchronized_norm(norm, rng):
    """One launch before each exchange and one behind it; the host reads nothing."""
    layer = getattr(nn, norm)(5)
    layer._gather = lambda array: array[None]
    x = gt.tensor(rng.random((4, 5, 8, 8), np.float32), requires_grad=True)
    g = gt.tensor(rng.random((4, 5, 8, 8), np.float32))

    def run() -> None:
        layer(x * 1).backward(g)
        for each in (x, *layer.parameters()):
            each.grad = None

    check(cost(run), SYNCHRONIZED[norm])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


PRODUCT = {"cublasGemmEx": 1}
COPY = Counters(library=PRODUCT, copies={"device to device": 1}, bytes={"device to device": 10_240})
CONTEXT_STEPS = {  # of an attention context, without and with a strength that is learned
    "update": Counters(kernels={"context_rows<float>": 1, "gt_context_average": 1},
                       library={"cublasGemmEx": 2}),
    "apply": COPY, "apply, learned": Counters(kernels={"gt_context_add": 1}, library=PRODUCT),
    "backward": COPY,
    "backward, learned": Counters(
        kernels={"context_dot<float>": 1, "context_dot_of_parts<float>": 1, "gt_context_add": 1},
        library=PRODUCT)}


@pytest.mark.parametrize("name", CONTEXT_STEPS)
def test_attention_context(name, rng):
    """Products, and one launch for the rest: of an update two, of a learned strength two more."""
    learned = name.endswith("learned")
    context = nn.SharedAttentionContext(32, strength=nn.Parameter(gt.tensor(0.5)) if learned
                                        else 0.5)
    x, g = (gt.tensor(rng.random((2, 40, 32), np.float32)) for _ in range(2))
    context.update(x, g)
    x.requires_grad_()
    strengths = list(context.parameters())

    def steps() -> None:
        y = context.apply(x)
        if name.startswith("backward"):
            reset_counters()
            y.backward(g)
        x.grad = None
        for strength in strengths:
            strength.grad = None

    check(cost((lambda: context.update(x, g)) if name == "update" else steps), CONTEXT_STEPS[name])
