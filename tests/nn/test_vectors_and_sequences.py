"""Parameters as one vector, and sequences of several lengths as one batch: PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
from against_torch import compare
from torch.nn.utils.rnn import pad_sequence

import gtensor as gt
from gtensor import nn
from gtensor.nn import utils


def test_parameters_become_a_vector_and_back() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 0), nn.Linear(2, 1, bias=False))
    vector = utils.parameters_to_vector(net.parameters())
    assert vector.tolist() == [v for p in net.parameters() for v in p.flatten().tolist()]
    (vector * gt.arange(10)).sum().backward()
    assert net[2].weight.grad.tolist() == [[8.0, 9.0]]
    address = net[0].weight.array.ctypes.data
    utils.vector_to_parameters(gt.arange(10.0), net.parameters())
    assert net[0].weight.tolist() == [[0, 1, 2], [3, 4, 5]] and net[0].bias.tolist() == [6, 7]
    assert net[0].weight.array.ctypes.data == address and net[0].weight.requires_grad
    with pytest.raises(ValueError, match=r"shape \(9,\) for parameters of 10 elements; wanted"):
        utils.vector_to_parameters(gt.arange(9.0), net.parameters())
    with pytest.raises(ValueError, match="given no parameters"):
        utils.parameters_to_vector([])


@pytest.mark.parametrize("options", [
    {}, {"batch_first": True, "padding_value": 2.5}, {"padding_side": "left"}], ids=str)
def test_padded_sequences_are_pytorchs(options) -> None:
    for lengths, rest in (((3, 1, 2), (4,)), ((2, 0), ()), ((1,), (2, 3))):
        arrays = [np.random.default_rng(n).standard_normal((n, *rest)) for n in lengths]
        compare(lambda *xs: utils.pad_sequence(xs, **options),
                lambda *xs: pad_sequence(xs, **options), arrays)


def test_what_is_no_batch_of_sequences_is_refused() -> None:
    assert utils.pad_sequence([gt.arange(3), [0]]).tolist() == [[0, 0], [1, 0], [2, 0]]
    for sequences, sentence in (([], r"given shapes \[\]; wanted one"), (
            [gt.ones((2, 3)), gt.ones((2, 4))], "differ in the first axis only"),
            ([gt.ones(())], "wanted one sequence")):
        with pytest.raises(ValueError, match=sentence):
            utils.pad_sequence(sequences)
    with pytest.raises(ValueError, match="padding_side='up' given"):
        utils.pad_sequence([gt.ones(2)], padding_side="up")
    with pytest.raises(TypeError, match=r"pad_sequence was given sequences=.*wanted tensors"):
        utils.pad_sequence([[1, 2], "a"])


