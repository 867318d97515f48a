"""Ordinary values, of which the search makes right calls, and the calls that it would not find."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gtensor as gt
from gtensor import nn
from wrong_calls.values import normal


def _folder() -> Path:
    return Path(tempfile.mkdtemp(dir=tempfile.gettempdir()))


def _model_and_steps() -> tuple[nn.Module, gt.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, gt.optim.SGD(model.parameters(), lr=0.1)


def _optimizer() -> gt.optim.Optimizer:
    return _model_and_steps()[1]


def _file() -> str:
    path = str(_folder() / "x.safetensors")
    gt.checkpoint.save_file({"weight": normal(2, 3), "bias": normal(2)}, path)
    return path


def _session() -> str:
    path = str(_folder() / "s.safetensors")
    gt.checkpoint.save(path, model=_model_and_steps()[0])
    return path


ORDINARY: tuple[Callable[[], Any], ...] = (
    lambda: normal(4, 3), lambda: normal(3, 3), lambda: normal(2, 3, 8), lambda: normal(2, 3, 8, 8),
    lambda: normal(2, 4, 4, 6, 6), lambda: normal(12),
    lambda: normal(3), lambda: normal(4, 2), lambda: normal(2, 2, 8), lambda: normal(2, 2, 8, 8),
    lambda: normal(2, 2, 4, 4, 4), lambda: gt.tensor(np.full((4, 3), 0.5, np.float32)),
    lambda: 2, lambda: 0, lambda: 1, lambda: 3, lambda: 0.5, lambda: -1, lambda: (2, 3),
    lambda: (0, 1), lambda: (3,), lambda: gt.tensor([0, 1, 0, 2]),
    lambda: gt.tensor([[True, False, True]] * 4), lambda: gt.tensor([1, 0, 1]),
    lambda: [1.0, 2.0], lambda: True, lambda: "mean", lambda: "cpu",
    lambda: gt.float32, lambda: lambda *args, **more: args[0].sum() if args else None,
    lambda: [normal(4, 3), normal(4, 3)], lambda: [normal(2, 3, requires_grad=True)],
    lambda: (normal(4, 3),), lambda: nn.Linear(3, 2), _optimizer,
    lambda: gt.random.Generator("cpu"), lambda: {"x": normal(4, 3)}, lambda: str(_folder() / "new"),
    _folder, lambda: np.arange(4), lambda: "relu", lambda: None, lambda: gt.nn.Parameter(normal(2)))
OF_NAME: dict[str, tuple[Callable[[], Any], ...]] = {  # parameters that need a value of their own
    "optimizer": (_optimizer,), "dataset": (lambda: list(range(8)),),
    "in_features": (lambda: 3,), "module": (lambda: nn.Linear(3, 2),),
    "num_heads": (lambda: 2,), "groups": (lambda: 1,), "size": (lambda: 2,),
    "embed_dim": (lambda: 4,), "subscripts": (lambda: "ij->ji", lambda: "ij,ij->i"),
}


def _sum(x: gt.Tensor) -> gt.Tensor:
    return (x * x).sum()


def _tracked() -> gt.Tensor:
    return normal(4, 3, requires_grad=True)


def _two() -> dict[str, Any]:
    return {"function": _sum, "primals": (normal(4, 3),), "tangents": (normal(4, 3),)}


def _one_after_another() -> dict[str, Any]:
    optimizer = _optimizer()
    schedule = gt.optim.lr_scheduler
    return {"optimizer": optimizer, "milestones": [3], "schedulers": [
        schedule.StepLR(optimizer, 2), schedule.StepLR(optimizer, 3)]}


def _small() -> Any:
    return gt.models.GPTConfig(vocabulary=11, layers=1, width=8, heads=2, length=8)


def _language_model() -> nn.Module:
    return gt.models.GPT(_small())


def _numbers() -> str:
    path = _folder() / "x.npy"
    np.save(path, np.arange(6.0))
    return str(path)


def _normed() -> nn.Module:
    return nn.utils.weight_norm(nn.Linear(3, 2))


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "autocast": lambda: {"device_type": "cpu"},
    "einsum": lambda: {"subscripts": "ij->ji", "operands": normal(4, 3)},
    "functional_call": lambda: {
        "module": nn.Linear(3, 2), "params": {"weight": normal(2, 3), "bias": normal(2)},
        "args": (normal(4, 3),)},
    "hvp": _two, "jvp": _two,
    "jvp_batched": lambda: {
        "function": _sum, "primals": (normal(4, 3),), "shadows": (normal(2, 4, 3),)},
    "linearize": lambda: {"function": _sum, "primals": normal(4, 3)},
    "vjp": lambda: {"function": _sum, "primals": normal(4, 3)},
    "index_add": lambda: {
        "x": normal(4, 3), "dim": 0, "index": gt.tensor([1, 1]), "source": normal(2, 3)},
    **{name: lambda: {"x": normal(4, 3), "dim": 1, "index": gt.tensor([[0, 2]] * 4),
                      "src": normal(4, 2)} for name in ("scatter", "scatter_add")},
    "scatter_reduce": lambda: {
        "x": normal(4, 3), "dim": 1, "index": gt.tensor([[0, 2]] * 4), "src": normal(4, 2),
        "reduce": "amax"},
    "imag": lambda: {"x": gt.tensor([1j, 2])},
    "istft": lambda: {"x": gt.stft(normal(32), 8), "n_fft": 8},
    "stft": lambda: {"x": normal(32), "n_fft": 8},
    "linspace": lambda: {"start": 0, "stop": 1, "num": 5},
    "result_type": lambda: {"arrays_and_dtypes": normal(3)},
    "roll": lambda: {"x": normal(4, 3), "shift": 1},
    "linalg.cholesky": lambda: {"x": gt.eye(3)},
    **{f"random.{name}": lambda: {"shape": (2, 3)} for name in (
        "exponential", "normal", "uniform")},
    "random.beta": lambda: {"a": 2.0, "b": 3.0},
    "random.binomial": lambda: {"n": 5, "p": 0.5},
    "random.fold_in": lambda: {"key": gt.random.key(1), "data": 3},
    "random.split": lambda: {"key": gt.random.key(1)},
    "random.truncated_normal": lambda: {"lower": -1.0, "upper": 1.0},
    "random.integers": lambda: {"low": 0, "high": 9, "shape": (2, 3)},
    "distributions.Bernoulli": lambda: {"probs": 0.5},
    "distributions.Categorical": lambda: {"probs": gt.ones(3)},
    "distributions.ComposeTransform": lambda: {"parts": [gt.distributions.ExpTransform()]},
    "distributions.Independent": lambda: {
        "base_distribution": gt.distributions.Normal(normal(3), 1.0),
        "reinterpreted_batch_ndims": 1},
    "distributions.MultivariateNormal": lambda: {"loc": normal(2), "scale_tril": gt.eye(2)},
    "distributions.TransformedDistribution": lambda: {
        "base_distribution": gt.distributions.Normal(0.0, 1.0),
        "transforms": gt.distributions.ExpTransform()},
    "distributions.kl_divergence": lambda: {
        "p": gt.distributions.Normal(0.0, 1.0), "q": gt.distributions.Normal(1.0, 1.0)},
    "distributions.register_kl": lambda: {
        "type_p": gt.distributions.Normal, "type_q": gt.distributions.Gamma},
    "random.set_state": lambda: {"state": gt.random.get_state()},
    "nn.functional.conv_transpose1d": lambda: {
        "input": normal(2, 4, 7), "weight": normal(4, 3, 2)},
    "nn.functional.feed_forward": lambda: {
        "input": normal(4, 3), "weight1": normal(6, 3), "bias1": normal(6),
        "weight2": normal(5, 6), "bias2": normal(5)},
    "nn.functional.fold": lambda: {
        "input": normal(2, 12, 4), "output_size": (3, 3), "kernel_size": 2},
    "nn.functional.interpolate": lambda: {"input": normal(2, 4, 5, 6), "scale_factor": 2},
    **{f"nn.functional.{name}": lambda: {"input": normal(4, 3), "dim": -1} for name in (
        "softmax", "log_softmax", "softmin")},
    "nn.functional.rotary_embedding": lambda: {
        "x": normal(2, 3, 2, 6), "cos": normal(3, 3), "sin": normal(3, 3)},
    "nn.utils.remove_weight_norm": lambda: {"module": _normed()},
    "optim.lr_scheduler.LambdaLR": lambda: {
        "optimizer": _optimizer(), "lr_lambda": lambda epoch: 0.5},
    "optim.lr_scheduler.OneCycleLR": lambda: {
        "optimizer": _optimizer(), "max_lr": 0.1, "total_steps": 10},
    "checkpoint.load": lambda: {"path": _session(), "model": nn.Linear(3, 2)},
    "checkpoint.load_file": lambda: {"path": _file()},
    "checkpoint.load_into": lambda: {"model": nn.Linear(3, 2), "path": _file()},
    "checkpoint.progress": lambda: {"path": _session()},
    "checkpoint.safe_open": lambda: {"path": _file()},
    "data.ArrayDataset": lambda: {"arrays": normal(4, 3)},
    "data.TensorDataset": lambda: {"arrays": normal(4, 3)},
    "data.memmap": lambda: {"path": _numbers()},
    **{f"nn.{name}": lambda: {"output_size": 2} for name in (
        "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d")},
    **{f"nn.{name}": lambda: {"dim": -1} for name in ("LogSoftmax", "Softmax", "Softmin")},
    "nn.Fold": lambda: {"output_size": 3, "kernel_size": 2},
    "nn forward.Fold": lambda: {"x": normal(2, 12, 4)},
    "nn.TransformerEncoder": lambda: {
        "encoder_layer": nn.TransformerEncoderLayer(8, 2), "num_layers": 1},
    "nn.Unflatten": lambda: {"dim": 1, "unflattened_size": (1, 3)},
    "nn.Upsample": lambda: {"scale_factor": 2},
    "optim.lr_scheduler.SequentialLR": _one_after_another,
    **{f"memory.{name}": lambda: {"upstream": gt.memory.Arena(gt.memory.HostSegments())}
       for name in ("Failing", "Recording")},
    "memory.Arena": lambda: {"source": gt.memory.HostSegments()},
    "memory.Timeline": lambda: {"upstream": gt.memory.Arena(gt.memory.HostSegments())},
    "memory.configure": lambda: {"source": "host", "device": "cpu"},
    "memory.snapshot": lambda: {"path": str(_folder() / "memory.json"), "device": "cpu"},
    "memory.use": lambda: {"allocator": "arena", "device": "cpu"},
    "models.GPT": lambda: {"config": _small()},
    "models.generate": lambda: {"model": _language_model(), "prompt": [1, 2], "count": 2},
    "testing.check_derivatives": lambda: {
        "function": _sum, "args": gt.tensor(np.arange(3.0), requires_grad=True)},
    "testing.gradcheck": lambda: {
        "function": _sum, "inputs": gt.tensor(np.arange(3.0), requires_grad=True)},
    "testing.opcheck": lambda: {"op": "exp"},
    **{f"Tensor.{name}": lambda: {"self": gt.tensor([1, 2]), "other": gt.tensor([3, 1])}
       for name in ("__and__", "__lshift__")},
    "Tensor.backward": lambda: {"self": _sum(_tracked())},
    **{f"Tensor.{name}": lambda: {"self": _tracked(), "hook": lambda g: None} for name in (
        "register_hook", "register_post_accumulate_grad_hook")},
    "Tensor.retain_grad": lambda: {"self": _tracked() * 2},
    "Tensor.to": lambda: {"self": normal(4, 3), "target": "cpu"},
    "Tensor.permute_dims": lambda: {"self": normal(4, 3), "axes": (1, 0)},
    "Tensor.reshape": lambda: {"self": normal(4, 3), "shape": (3, 4)},
    **{f"Tensor.{name}": lambda: {"self": gt.tensor(3)} for name in (
        "item", "__bool__", "__float__", "__int__", "__index__")},
}
