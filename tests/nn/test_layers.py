"""Layers against PyTorch: the same state dict gives the same outputs, gradients and statistics."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn
from gtensor.testing.compare import close

IMAGE = (4, 6, 9, 8)
SIGNAL = (3, 6, 11)
LAYERS = [  # class, arguments, options, shape of the input
    ("Linear", (6, 5), {}, (4, 3, 6)),
    ("Linear", (6, 5), {"bias": False}, (6,)),
    ("Conv2d", (6, 4, 3), {}, IMAGE),
    ("Conv2d", (6, 9, (3, 2)),
     {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 3, "bias": False}, IMAGE),
    ("Conv2d", (6, 4, 3), {"padding": "same"}, IMAGE),
    ("Conv2d", (6, 4, 3), {"padding": (1, 2), "padding_mode": "reflect"}, IMAGE),
    ("Conv2d", (6, 4, (3, 2)), {"padding": "same", "padding_mode": "circular"}, IMAGE),
    ("Conv1d", (6, 4, 3), {"stride": 2, "padding": 1, "groups": 2}, SIGNAL),
    ("Conv1d", (6, 4, (2,)), {"padding": "valid", "padding_mode": "replicate"}, SIGNAL),
    ("ConvTranspose2d", (6, 4, (3, 2)),
     {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": (1, 2)}, IMAGE),
    ("ConvTranspose2d", (6, 4, 3), {"bias": False}, IMAGE),
    ("ConvTranspose1d", (6, 3, 4), {"stride": 3}, SIGNAL),
    ("MaxPool1d", (3,), {"stride": 2, "padding": 1}, SIGNAL),
    ("AvgPool1d", (2,), {"ceil_mode": True}, SIGNAL),
    ("AdaptiveAvgPool1d", (4,), {}, SIGNAL),
    ("AdaptiveMaxPool2d", ((3, None),), {}, IMAGE),
    ("GroupNorm", (3, 6), {}, IMAGE),
    ("GroupNorm", (2, 6), {"eps": 0.1, "affine": False}, SIGNAL),
    ("RMSNorm", (6,), {}, (4, 3, 6)),
    ("RMSNorm", ((3, 6),), {"eps": 0.1, "elementwise_affine": False}, (4, 3, 6)),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, IMAGE),
    ("Upsample", ((5, 7),), {}, IMAGE),
    ("MaxPool2d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True}, IMAGE),
    ("MaxPool2d", (2,), {"dilation": 2}, IMAGE),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1, "count_include_pad": False}, IMAGE),
    ("AvgPool2d", ((2, 3),), {"ceil_mode": True}, IMAGE),
    ("AdaptiveAvgPool2d", ((3, 2),), {}, IMAGE),
    ("AdaptiveAvgPool2d", (1,), {}, IMAGE),
    ("BatchNorm2d", (6,), {}, IMAGE),
    ("BatchNorm2d", (6,), {"affine": False, "momentum": None}, IMAGE),
    ("BatchNorm2d", (6,), {"track_running_stats": False, "eps": 0.1}, IMAGE),
    ("BatchNorm1d", (6,), {"momentum": 0.3}, (8, 6)),
    ("BatchNorm1d", (6,), {}, (4, 6, 5)),
    ("LayerNorm", (6,), {}, (4, 3, 6)),
    ("LayerNorm", ((3, 6),), {"bias": False, "eps": 0.1}, (4, 3, 6)),
    ("LayerNorm", (6,), {"elementwise_affine": False}, (4, 6)),
    ("ReLU", (), {}, (4, 6)),
    ("LeakyReLU", (), {"negative_slope": 0.2}, (4, 6)),
    ("ELU", (), {"alpha": 0.7}, (4, 6)),
    ("GELU", (), {}, (4, 6)),
    ("GELU", (), {"approximate": "tanh"}, (4, 6)),
    ("SiLU", (), {}, (4, 6)),
    ("Sigmoid", (), {}, (4, 6)),
    ("Softplus", (), {"beta": 2.0, "threshold": 1.0}, (4, 6)),
    ("Tanh", (), {}, (4, 6)),
    ("Softmax", (), {"dim": 1}, (4, 6, 2)),
    ("LogSoftmax", (-1,), {}, (4, 6)),
    ("CELU", (), {"alpha": 0.5}, (4, 6)),  # 0.7 is a float32 in PyTorch's gradient
    ("Threshold", (0.1, -3.0), {}, (4, 6)),
    ("Hardshrink", (), {}, (4, 6)),
    ("Softshrink", (0.3,), {}, (4, 6)),
    ("Tanhshrink", (), {}, (4, 6)),
    ("Softmin", (-1,), {}, (4, 6)),
    ("BatchNorm3d", (6,), {}, (2, 6, 3, 4, 5)),
    ("InstanceNorm1d", (6,), {}, SIGNAL),
    ("InstanceNorm1d", (6,), {"affine": True}, (6, 5)),
    ("InstanceNorm2d", (6,), {"affine": True, "eps": 0.1}, IMAGE),
    ("InstanceNorm3d", (6,), {}, (2, 6, 3, 4, 5)),
    ("PixelShuffle", (2,), {}, (2, 8, 3, 5)),
    ("PixelUnshuffle", (3,), {}, (2, 6, 9, 3)),
    ("ChannelShuffle", (3,), {}, IMAGE),
    ("Unfold", ((3, 2),), {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)}, IMAGE),
    ("Unfold", (2,), {}, IMAGE[1:]),
    ("Fold", ((9, 8), (3, 2)), {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)},
     (2, 18, 44)),
    ("Fold", ((5, 4), 2), {"stride": 3}, (8, 2)),
    ("Unflatten", (1, (2, 3)), {}, IMAGE),
    ("Unflatten", (-2, [3, -1]), {}, IMAGE),
    *((f"{kind}Pad{axes}d", (padding, *more), {}, (2, 3, *sizes)[-axes - batch:])
      for kind, more in (("Zero", ()), ("Constant", (1.5,)), ("Reflection", ()),
                         ("Replication", ()), ("Circular", ()))
      for axes, sizes, padding, batch in (
          (1, (5,), (2, 0), 1), (2, (4, 5), 1, 2), (2, (4, 5), (2, 1, 0, 3), 1),
          (3, (3, 4, 5), (1, 2, 0, 1, 2, 1), 2))),
    ("Flatten", (), {}, IMAGE),
    ("Flatten", (0, 1), {}, IMAGE),
]


WITHIN = (1e-9, 1e-11)


def pair(name, arguments, options):
    """Our layer and PyTorch's in float64, ours with PyTorch's weights."""
    mine = getattr(nn, name)(*arguments, **options).to(gt.float64)
    other = getattr(torch.nn, name)(*arguments, **options).double()
    with torch.no_grad():
        for parameter in other.parameters():  # away from 1 and 0, so that every one matters
            parameter.add_(torch.rand_like(parameter))
    mine.load_state_dict(other.state_dict())
    return mine, other


def compare(mine, other, x, seed):
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = mine(a), other(b)
    close("the result", y, z, WITHIN)
    g = np.random.default_rng(seed).standard_normal(y.shape)
    y.backward(gt.tensor(g))
    z.backward(torch.tensor(g))
    close("the input's gradient", a.grad, b.grad, WITHIN)
    for (name, p), q in zip(mine.named_parameters(), other.parameters(), strict=True):
        close(f"the gradient of {name}", p.grad, q.grad, WITHIN)
    for p, q in zip(mine.buffers(), other.buffers(), strict=True):
        close("a buffer", p, q, WITHIN)


@pytest.mark.parametrize("name,arguments,options,shape", LAYERS)
def test_a_layer_with_pytorchs_state_is_pytorchs(name, arguments, options, shape):
    torch.manual_seed(0)
    mine, other = pair(name, arguments, options)
    assert list(mine.state_dict()) == list(other.state_dict())
    rng = np.random.default_rng(0)
    for step in range(2):  # twice: running statistics move on from where they were
        mine.zero_grad()
        other.zero_grad()
        compare(mine, other, rng.standard_normal(shape), step)
    mine.eval()
    other.eval()
    x = rng.standard_normal(shape)
    close("in evaluation", mine(gt.tensor(x)), other(torch.tensor(x)), WITHIN)


def test_weights_travel_to_pytorch_and_back():
    mine = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
    other = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3),
                                torch.nn.Flatten(), torch.nn.Linear(48, 2))
    mine.train()(gt.random.normal((5, 1, 6, 6)))
    other.load_state_dict({n: torch.from_dlpack(t.clone()) for n, t in mine.state_dict().items()})
    x = gt.random.normal((2, 1, 6, 6))
    ours, theirs = mine.eval()(x), other.eval()(torch.from_dlpack(x))
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("norm", [nn.ABN, nn.InPlaceABN])
@pytest.mark.parametrize("activation,theirs", [
    ("leaky_relu", torch.nn.LeakyReLU(0.1)), ("elu", torch.nn.ELU(0.1)),
    ("relu", torch.nn.ReLU()), ("identity", torch.nn.Identity()), ("silu", torch.nn.SiLU())])
def test_batch_norm_with_activation_is_one_after_the_other(norm, activation, theirs):
    torch.manual_seed(0)
    mine = norm(6, activation=activation, activation_param=0.1).to(gt.float64)
    other = torch.nn.Sequential(torch.nn.BatchNorm2d(6).double(), theirs)
    with torch.no_grad():
        other[0].weight.add_(torch.rand(6))
    mine.load_state_dict(other[0].state_dict())
    with gt.no_grad():
        mine.weight -= mine.eps  # which the module adds
    compare(mine, other, np.random.default_rng(0).standard_normal(IMAGE), 0)
    assert mine.num_batches_tracked.item() == 1
    mine.eval()
    other.eval()
    x = np.random.default_rng(1).standard_normal(IMAGE)
    close("in evaluation", mine(gt.tensor(x)), other(torch.tensor(x)), WITHIN)


@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embedding_looks_up_rows_and_leaves_the_padding_alone(padding):
    mine = nn.Embedding(5, 3, padding_idx=padding)
    if padding is not None:
        assert mine.weight[padding].tolist() == [0, 0, 0]
        assert mine.weight[0].tolist() != [0, 0, 0]
    other = torch.nn.Embedding(5, 3, padding_idx=padding)
    mine.load_state_dict(other.state_dict())
    indices = np.array([[0, 2, 2], [4, 1, 0]])
    y, z = mine(gt.tensor(indices)), other(torch.tensor(indices))
    assert np.array_equal(y.numpy(), z.detach().numpy())
    (y * y).sum().backward()
    (z * z).sum().backward()
    np.testing.assert_allclose(mine.weight.grad.numpy(), other.weight.grad.numpy(), rtol=1e-6)


def test_dropout_drops_while_training_only():
    dropout = nn.Dropout(0.4)
    x = gt.ones(20_000)
    y = dropout(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.6)}
    assert abs((y == 0).mean() - 0.4) < 0.02
    assert dropout.eval()(x).tolist() == x.tolist()


@pytest.mark.parametrize("make,message", [
    (lambda: nn.Dropout(1.5), "p=1.5"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), "groups=2 given for 3 input and 4 output"),
    (lambda: nn.Conv1d(3, 4, 3, padding_mode="mirror"), "padding_mode='mirror' given to Conv1d"),
    (lambda: nn.Conv2d(3, 4, 3, padding="full"), "padding='full' given to Conv2d; wanted one"),
    (lambda: nn.GroupNorm(4, 6), "num_groups=4 given for 6 channels"),
    (lambda: nn.Embedding(5, 3, padding_idx=5), "padding_idx=5 given for 5 rows"),
    (lambda: nn.BatchNorm2d(3)(gt.ones((2, 4, 5, 5))), r"BatchNorm2d\(3\) was given shape \(2, 4"),
    (lambda: nn.BatchNorm2d(3)(gt.ones((2, 3))), "axis 1 of 4 axes"),
    (lambda: nn.BatchNorm1d(3)(gt.ones((2, 3, 4, 4))), "axis 1 of 2 or 3 axes"),
    (lambda: nn.BatchNorm1d(3)(gt.ones((1, 3))), "more than one value per channel"),
    (lambda: nn.Linear(3, 4)(gt.ones((2, 5))), r"\(2, 5\)"),
])
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name,arguments", [
    ("Conv1d", (40, 60, 5)), ("Conv2d", (20, 60, 3)), ("ConvTranspose2d", (60, 20, 3)),
    ("ConvTranspose1d", (60, 30, 4)), ("Conv2d", (60, 60, 3, 1, 0, 1, 60))])
def test_initial_weights_spread_as_pytorchs(name, arguments):
    mine, other = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    for ours, theirs in ((mine.weight, other.weight), (mine.bias, other.bias)):
        ours, theirs = ours.numpy(), theirs.detach().numpy()
        assert ours.shape == theirs.shape
        bound = np.abs(theirs).max()  # of many uniform numbers: close to the edge
        assert 0.8 * bound < np.abs(ours).max() < 1.25 * bound
        assert abs(ours.mean()) < 0.25 * bound


def test_repr_names_what_is_not_the_default():
    assert repr(nn.Conv1d(2, 4, 3)) == "Conv1d(2, 4, kernel_size=(3,), stride=1)"
    assert repr(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect", bias=False)) == (
        "Conv2d(2, 4, kernel_size=(3, 3), stride=1, padding=1, bias=False, padding_mode='reflect')")
    assert repr(nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1)) == (
        "ConvTranspose2d(2, 4, kernel_size=(3, 3), stride=2, output_padding=1)")
    assert repr(nn.GroupNorm(2, 4)) == "GroupNorm(2, 4, eps=1e-05, affine=True)"
    assert repr(nn.RMSNorm(4)) == "RMSNorm((4,), eps=None, elementwise_affine=True)"
    assert repr(nn.LSTM(2, 4, 3, dropout=0.5)) == "LSTM(2, 4, num_layers=3, dropout=0.5)"
    assert repr(nn.GRUCell(2, 4, bias=False)) == "GRUCell(2, 4, bias=False)"
    assert repr(nn.Upsample(scale_factor=2)) == "Upsample(scale_factor=2, mode='nearest')"


def _by_position(function):
    return [p.name for p in list(inspect.signature(function).parameters.values())[1:]
            if p.kind is p.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize("name", sorted(
    name for name, found in vars(nn).items()
    if inspect.isclass(found) and name not in ("Module", "Parameter") and hasattr(torch.nn, name)))
def test_what_is_taken_by_position_is_pytorchs(name: str):
    """What stands at a place means what PyTorch takes it for; we may take less."""
    ours, theirs = (_by_position(getattr(library, name).__init__) for library in (nn, torch.nn))
    if name in ("GRU", "LSTM", "RNN"):  # which pass all behind their own name on
        mode, *theirs = _by_position(torch.nn.RNNBase.__init__)
        assert mode == "mode"
        if name == "RNN":
            theirs.insert(3, "nonlinearity")  # taken out before
    assert ours == theirs[:len(ours)] or len(ours) == 1  # `modules` and `values` of containers


@pytest.mark.parametrize(("make", "message"), [
    (lambda: nn.MultiheadAttention(8, 2, 0.0, True, True), "MultiheadAttention .* add_bias_kv="),
    (lambda: nn.MultiheadAttention(8, 2, add_zero_attn=True), "add_zero_attn=True; wanted False"),
    (lambda: nn.MaxPool2d(2, 2, 0, 1, True), "MaxPool2d was given return_indices=True; wanted Fal"),
    (lambda: nn.MaxPool1d(2, return_indices=True), "MaxPool1d was given return_indices=True"),
    (lambda: nn.ConvTranspose1d(2, 2, 2, padding_mode="reflect"), "'reflect'; wanted 'zeros'"),
])
def test_arguments_that_have_only_their_place_are_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_pytorchs_positions_with_their_defaults():
    attention = nn.MultiheadAttention(8, 2, 0.0, True, False, False, 6, 5)
    assert attention.k_proj_weight.shape == (8, 6) and attention.v_proj_weight.shape == (8, 5)
    x = gt.ones((1, 1, 3, 3))
    assert nn.MaxPool2d(2, 2, 0, 1, False, True)(x).shape == (1, 1, 2, 2)
    assert nn.ConvTranspose2d(1, 1, 2, 1, 0, 0, 1, True, 1, "zeros")(x).shape == (1, 1, 4, 4)
    for layer in (nn.SiLU(False), nn.Dropout(0.0, False), nn.LeakyReLU(0.1, False)):
        assert layer(x).shape == x.shape


def test_batch_norm_keeps_float32_beside_halves():
    norm = nn.BatchNorm2d(6)
    theirs = torch.nn.BatchNorm2d(6)
    x = np.random.default_rng(0).standard_normal(IMAGE).astype(np.float16)
    ours, leaf = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, wanted = norm(ours), theirs(leaf)
    assert y.dtype == gt.float16 and norm.running_var.dtype == gt.float32
    (y * y * y).sum().backward()
    (wanted * wanted * wanted).sum().backward()
    np.testing.assert_allclose(y.numpy(), wanted.detach().numpy(), atol=4e-3)
    np.testing.assert_allclose(norm.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=2e-2)
    np.testing.assert_allclose(ours.grad.numpy(), leaf.grad.numpy(), atol=4e-2)
    np.testing.assert_allclose(norm.running_var.numpy(), theirs.running_var.numpy(), rtol=1e-5)


def test_a_refused_batch_is_not_counted():
    norm = nn.BatchNorm1d(3)
    before = norm.running_mean.tolist()
    with pytest.raises(ValueError):
        norm(gt.ones((1, 3)))
    with pytest.raises(TypeError):
        norm(gt.ones((4, 3), gt.float64))
    assert norm.num_batches_tracked.item() == 0 and norm.running_mean.tolist() == before


def test_layers_take_a_dtype_and_a_device():
    layers = [nn.Linear(2, 2, dtype=gt.float64, device="cpu"), nn.LayerNorm(2, dtype=gt.float64),
              nn.Conv2d(1, 1, 1, dtype=gt.float64), nn.Embedding(2, 2, dtype=gt.float64),
              nn.ABN(2, dtype=gt.float64), nn.GroupNorm(1, 2, dtype=gt.float64),
              nn.RMSNorm(2, dtype=gt.float64), nn.ConvTranspose1d(1, 1, 1, dtype=gt.float64)]
    for layer in layers:
        kinds = {t.dtype for t in [*layer.parameters(), *layer.buffers()]}
        assert kinds - {gt.int64} == {gt.float64}


NUMBERS = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("call,name", [
    (lambda: nn.BatchNorm1d(3)(NUMBERS.tolist()), "BatchNorm1d was given input of type list"),
    (lambda: nn.Flatten()(NUMBERS), "Flatten was given input of type ndarray"),
    (lambda: nn.MultiheadAttention(4, 2)(*[NUMBERS] * 3), "MultiheadAttention was given query"),
])
def test_what_is_no_tensor_is_named(call, name):
    with pytest.raises(TypeError, match=rf"{name}.*; wanted a Tensor \(gt\.asarray makes one\)"):
        call()


def test_channels_are_dropped_whole():
    gt.manual_seed(0)
    for layer, shape in (
            (nn.Dropout1d(0.4), (50, 20, 3)), (nn.Dropout1d(0.4), (1000, 3)),
            (nn.Dropout2d(0.4), (50, 20, 2, 3)), (nn.Dropout3d(0.4), (50, 20, 2, 3, 2)),
            (nn.Dropout3d(0.4), (1000, 2, 3, 2))):
        x = gt.random.uniform(shape, low=1, high=2).requires_grad_()
        y = layer(x)
        y.sum().backward()
        slopes = x.grad.numpy().reshape(1000, -1)
        assert (slopes == slopes[:, :1]).all()
        np.testing.assert_allclose(y.numpy(), (x.grad * x).numpy(), rtol=1e-6)
        kept = slopes[:, 0] > 0
        assert abs(kept.mean() - 0.6) < 0.06 and np.allclose(slopes[kept], 1 / 0.6)
        assert layer.eval()(x) is x
    for name in ("Dropout1d", "Dropout2d", "Dropout3d"):
        with pytest.raises(ValueError, match=f"{name.lower()} was given shape \\(3,\\); wanted"):
            getattr(nn, name)()(gt.ones(3))
        x = gt.ones((2, 3, 4, 5, 6)[:int(name[7]) + 2])
        assert getattr(nn, name)(0.999999, inplace=True)(x) is x and not x.numpy().any()


def test_a_gumbel_choice_has_the_classes_probabilities_and_the_soft_ones_gradient():
    gt.manual_seed(0)
    shares = gt.tensor([0.1, 0.2, 0.7])
    x = gt.broadcast_to(gt.log(shares), (20000, 3))
    hard = nn.functional.gumbel_softmax(x, hard=True)
    assert set(hard.flatten().tolist()) == {0.0, 1.0} and (hard.sum(axis=-1) == 1).all()
    np.testing.assert_allclose(hard.mean(axis=0).numpy(), shares.numpy(), atol=0.02)
    for dim in (0, -1, 1):
        found = []
        for choose in (True, False):
            logits = gt.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, 0.3]], gt.float64, requires_grad=True)
            with gt.random.seeded(3):
                y = nn.functional.gumbel_softmax(logits, 0.7, choose, dim=dim)
            (y * gt.tensor([[1.0, 2.0, 4.0], [3.0, -1.0, 0.0]])).sum().backward()
            found.append((y, logits.grad))
        np.testing.assert_allclose(found[0][1].numpy(), found[1][1].numpy(), rtol=1e-12)
        assert (found[0][0].argmax(axis=dim) == found[1][0].argmax(axis=dim)).all()
    with gt.random.seeded(3):
        noise = -np.log(gt.random.exponential((2, 3), dtype=gt.float64).numpy())
    np.testing.assert_allclose(found[1][0].numpy(), torch.softmax(
        torch.tensor((logits.detach().numpy() + noise) / 0.7), 1).numpy(), rtol=1e-12)
    assert nn.functional.gumbel_softmax(gt.zeros((0, 3))).shape == (0, 3)
    with pytest.raises(ValueError, match="tau=0; wanted a number above 0"):
        nn.functional.gumbel_softmax(logits, 0)


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda x: nn.PixelShuffle(2)(x), "upscale_factor=2 for an input of shape .* divisible by its"),
    (lambda x: nn.PixelUnshuffle(2)(x), "downscale_factor=2 .* wanted .* H and W divisible by it"),
    (lambda x: nn.ChannelShuffle(2)(x), "groups=2 .* a divisor of C"),
    (lambda x: nn.Unfold(9)(x), "kernel_size=.9, 9. .* wanted a kernel that fits"),
    (lambda x: nn.Unfold(2)(x[0, 0]), "unfold was given shape .* wanted .N, C, H, W."),
    (lambda x: nn.Fold((4, 4), 2)(x[0]), "fold was given an input of shape .* wanted .N, C . 4, 9"),
    (lambda x: nn.Unflatten(1, (2, 2))(x), "unflatten was given axis 1 .* whose product is 3"),
    (lambda x: nn.Unflatten(1, (2, -1))(x), "unflatten was given axis 1 .* whose product is 3"),
    (lambda x: nn.ZeroPad2d((1, 2, 3)), "padding=.1, 2, 3. given to ZeroPad2d; wanted one number"),
    (lambda x: nn.ReflectionPad1d(1)(x), "ReflectionPad1d was given shape .* wanted 3 axes, or 2"),
    (lambda x: nn.InstanceNorm2d(4)(x), "InstanceNorm2d.4. was given shape .* wanted 4 channels"),
    (lambda x: nn.InstanceNorm2d(3, track_running_stats=True), "track_running_stats=True; wanted "),
    (lambda x: nn.functional.instance_norm(x, gt.ones(3), gt.ones(3)), "given running statistics"),
    (lambda x: nn.Softshrink(-1)(x), "softshrink was given lambd=-1; wanted 0 or more"),
    (lambda x: nn.CELU(0.0)(x), "celu was given alpha=0"),
    (lambda x: nn.CELU(-1.0)(x), "celu was given alpha=-1.0; wanted a number above 0"),
    (lambda x: nn.BatchNorm3d(3)(x), "wanted 3 channels on axis 1 of 5 axes"),
])
def test_what_small_layers_refuse(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(gt.ones((2, 3, 3, 5)))


def test_an_embedding_of_given_rows_and_pytorchs_other_arguments():
    rows = gt.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=gt.float64)
    layer = nn.Embedding.from_pretrained(rows)
    assert not layer.weight.requires_grad and layer.weight.dtype == gt.float64
    assert layer(gt.tensor([1])).tolist() == [[3.0, 4.0]]
    trained = nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=0)
    assert trained.weight.requires_grad and trained.padding_idx == 0
    assert trained.weight.tolist() == rows.tolist()
    with pytest.raises(ValueError, match=r"from_pretrained was given embeddings of shape \(2,\)"):
        nn.Embedding.from_pretrained(rows[0])
    with pytest.raises(ValueError, match="Embedding was given sparse=True; wanted False"):
        nn.Embedding(3, 2, None, None, 2.0, False, True)


def test_a_module_is_moved_by_names_too():
    net = nn.Linear(2, 3).to(device="cpu", dtype=gt.float64, non_blocking=True)
    assert net.weight.dtype == gt.float64
