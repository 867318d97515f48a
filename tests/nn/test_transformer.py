"""MultiheadAttention and TransformerEncoder, with its layer, are PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn

MASKS = {
    "none": {},
    "boolean": {"attn_mask": np.triu(np.ones((4, 5), bool), 2)},
    "added": {"attn_mask": np.linspace(-1, 1, 20).reshape(4, 5)},
    "per head": {"attn_mask": np.linspace(-1, 1, 120).reshape(6, 4, 5)},
    "padding": {"key_padding_mask": np.arange(5) >= np.array([[5], [3], [4]])},
    "both": {"attn_mask": np.linspace(-1, 1, 20).reshape(4, 5),
             "key_padding_mask": np.arange(5) >= np.array([[5], [3], [4]])},
}


def tensors(options, kind):
    return {name: kind(value) if isinstance(value, np.ndarray) else value
            for name, value in options.items()}


def pair(mine, theirs):
    """Both modules in float64 with PyTorch's values."""
    mine, theirs = mine.to(gt.float64), theirs.double()
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("options", [
    {}, {"bias": False}, {"batch_first": True}, {"kdim": 3, "vdim": 5}])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_is_pytorchs(options, mask, need_weights):
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    mine, theirs = pair(nn.MultiheadAttention(4, 2, **options),
                        torch.nn.MultiheadAttention(4, 2, **options))
    widths = (4, options.get("kdim", 4), options.get("vdim", 4))
    shapes = [(n, 3, width) for n, width in zip((4, 5, 5), widths, strict=True)]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    if options.get("batch_first"):
        arrays = [a.transpose(1, 0, 2).copy() for a in arrays]
    ours = [gt.tensor(a, requires_grad=True) for a in arrays]
    others = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, weights = mine(*ours, need_weights=need_weights, **tensors(MASKS[mask], gt.tensor))
    z, wanted = theirs(*others, need_weights=need_weights, **tensors(MASKS[mask], torch.tensor))
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-11)
    assert (weights is None) == (wanted is None) == (not need_weights)
    if need_weights:
        np.testing.assert_allclose(weights.numpy(), wanted.detach().numpy(), atol=1e-12)
    (y * y).sum().backward()
    (z * z).sum().backward()
    for a, b in zip(ours, others, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-10)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_attention_without_a_batch_with_weights_per_head_and_causal():
    torch.manual_seed(0)
    mine, theirs = pair(nn.MultiheadAttention(4, 2), torch.nn.MultiheadAttention(4, 2))
    x = np.random.default_rng(1).standard_normal((5, 4))
    later = np.triu(np.ones((5, 5), bool), 1)
    y, weights = mine(*[gt.tensor(x)] * 3, is_causal=True, average_attn_weights=False)
    z, wanted = theirs(*[torch.tensor(x)] * 3, attn_mask=torch.tensor(later),
                       average_attn_weights=False)
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(weights.numpy(), wanted.detach().numpy(), atol=1e-12)
    padding = gt.tensor(np.array([False, False, True, True, True]))
    cut, _ = mine(*[gt.tensor(x)] * 3, padding, False, is_causal=True)
    np.testing.assert_allclose(cut.numpy()[:2], y.numpy()[:2], rtol=1e-9)


@pytest.mark.parametrize("batched", [True, False])
def test_the_hint_that_a_mask_is_causal_is_taken(batched):
    """Then the mask is not read. One input takes one projection; gradients are PyTorch's."""
    torch.manual_seed(0)
    mine, theirs = pair(nn.MultiheadAttention(4, 2), torch.nn.MultiheadAttention(4, 2))
    x = np.random.default_rng(1).standard_normal((5, 3, 4) if batched else (5, 4))
    later = np.triu(np.ones((5, 5), bool), 1)
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, _ = mine(a, a, a, need_weights=False, attn_mask=gt.tensor(np.zeros_like(later)),
                is_causal=True)
    z, _ = theirs(b, b, b, need_weights=False, attn_mask=torch.tensor(later))
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-11)
    (y * y).sum().backward()
    (z * z).sum().backward()
    for one, other in zip([a, *mine.parameters()], [b, *theirs.parameters()], strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("options", [
    {"norm_first": True, "activation": "gelu"}, {"batch_first": True, "bias": False}, {}])
def test_the_encoder_layer_is_pytorchs(options):
    torch.manual_seed(0)
    mine, theirs = pair(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options),
        torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options))
    x = np.random.default_rng(2).standard_normal((3, 3, 8))
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = mine(a), theirs(b)
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-10)
    (y * y * y).sum().backward()
    (z * z * z).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-7, atol=1e-9)


def test_dropout_acts_in_training_only():
    gt.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5)
    x = gt.ones((3, 2, 4))
    one, other = layer(x).numpy().copy(), layer(x).numpy().copy()
    assert not np.allclose(one, other)
    layer.eval()
    assert np.array_equal(layer(x).numpy(), layer(x).numpy())


@pytest.mark.parametrize("call,message", [
    (lambda: nn.MultiheadAttention(6, 4), "embed_dim=6 and num_heads=4 given; wanted"),
    (lambda: nn.MultiheadAttention(4, 2)(*[gt.ones(4)] * 3), "wanted three of 2 or 3 dimensions"),
    (lambda: nn.TransformerEncoderLayer(4, 2, activation="mish"), "wanted 'relu', 'gelu' or a"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("with_norm", [True, False])
def test_an_encoder_is_pytorchs(with_norm):
    torch.manual_seed(0)

    def made(library):
        layer = library.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
        return library.TransformerEncoder(layer, 3, library.LayerNorm(4) if with_norm else None)

    mine, theirs = pair(made(nn), made(torch.nn))
    with torch.no_grad():
        for parameter in theirs.parameters():  # copies, which differ from now on
            parameter.add_(0.3 * torch.rand_like(parameter))
    mine.load_state_dict(theirs.state_dict())
    rng = np.random.default_rng(1)
    x, padding = rng.standard_normal((2, 5, 4)), np.arange(5) >= np.array([[5], [3]])
    mask = np.triu(np.ones((5, 5), bool), 1)
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y = mine(a, gt.tensor(mask), gt.tensor(padding))
    z = theirs(b, torch.tensor(mask), torch.tensor(padding))
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-11)
    (y * y).sum().backward()
    z.square().sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-10)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match="given num_layers=-1; wanted a number from 0"):
        nn.TransformerEncoder(nn.Identity(), -1)


def test_layers_of_ones_own_get_masks_by_name():
    class Layer(nn.Module):
        def forward(self, src, *, is_causal, src_key_padding_mask, src_mask):
            return src + src_mask * (1 if src_key_padding_mask is None else 5) + is_causal

    found = nn.TransformerEncoder(Layer(), 2)(gt.zeros(3), gt.ones(3), is_causal=True)
    assert found.tolist() == [4.0, 4.0, 4.0]
