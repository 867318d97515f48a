"""Batch norms of several ranks compute what one process computes on the joint batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn, optim
from gtensor.distributed import CollectiveTimeout, Communicator, convert_sync
from gtensor.distributed.alone import Alone
from gtensor.distributed.sync import _Gather
from gtensor.nn import functional as F
from gtensor.nn.utils import checkpoint
from gtensor.ops.norms import batch_norm
from gtensor.testing.compare import close

from .ranks import in_threads, run_ranks

PARTS = ((7,), (3, 4), (0, 7), (5, 1, 1, 0))
"""Samples of each rank: uneven, none."""

Made = Callable[[], nn.Module]


def stacked(norm: Callable[[int], nn.Module]) -> Made:
    """Two convolutions, each with its norm, for 2 channels."""
    return lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), norm(3),
                                 nn.Conv2d(3, 5, 2), norm(5))


NETS: dict[str, Made] = {
    "BatchNorm2d": stacked(nn.BatchNorm2d), "ABN": stacked(nn.ABN),
    "InPlaceABN": stacked(nn.InPlaceABN),
    "InPlaceABN, tanh": stacked(lambda c: nn.InPlaceABN(c, activation="tanh")),
    "InPlaceABN, relu": stacked(lambda c: nn.InPlaceABN(c, activation="relu")),
    "average of batches": stacked(lambda c: nn.InPlaceABN(c, momentum=None)),
    "not affine": stacked(lambda c: nn.ABN(c, affine=False)),
    "no averages": stacked(lambda c: nn.BatchNorm2d(c, track_running_stats=False)),
    "BatchNorm1d": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(30, 3), nn.BatchNorm1d(3), nn.Linear(3, 1), nn.BatchNorm1d(1)),
}


class Problem:
    """A net's state, and samples with gradients of their outputs, in NumPy."""

    def __init__(self, make: Made, samples: int = 7, dtype: str = "float64",
                 device: str = "cpu") -> None:
        rng = np.random.default_rng(sum(map(ord, dtype)) + samples)
        self.make, self.dtype, self.device = make, dtype, device
        self.x = rng.standard_normal((samples, 2, 5, 3)) + 1
        net = make()
        self.state = {name: rng.uniform(0.5, 1, value.shape) for name, value in
                      net.named_parameters()}
        self.g = rng.standard_normal(net(gt.tensor(self.x, dtype="float32")).shape)

    def net(self) -> nn.Module:
        made = self.make().to(self.dtype)
        with gt.no_grad():
            for name, value in made.named_parameters():
                value[...] = gt.asarray(self.state[name], dtype=self.dtype)
        return made.to(self.device)

    def part(self, a: np.ndarray, part: slice) -> gt.Tensor:
        return gt.tensor(a[part], dtype=self.dtype, device=self.device)

    def run(self, net: nn.Module, part: slice = slice(None), call: Any = None) -> list[Any]:
        """Two forwards and backwards: y, the gradients of x and of the parameters, the buffers."""
        x = self.part(self.x, part).requires_grad_()
        for _ in range(2):
            y = net(x) if call is None else call(net, x)
            (y * self.part(self.g, part)).sum().backward()
        gradients = [p.grad.numpy() for p in net.parameters()]
        return [y.detach().numpy(), x.grad.numpy(), gradients, [b.numpy() for b in net.buffers()]]

    def check(self, parts: tuple[int, ...], tolerance: float = 1e-12, **options: Any) -> None:
        """The ranks' results are one process's."""
        agree(in_threads(len(parts), self._rank, parts, options),
              self.run(self.net(), **options), tolerance)

    def _rank(self, comm: Communicator, parts: tuple[int, ...], options: Any) -> list[Any]:
        return self.run(convert_sync(self.net(), comm), own(comm, parts), **options)


def own(comm: Communicator, parts: tuple[int, ...]) -> slice:
    """The samples of a rank."""
    first = sum(parts[:comm.rank])
    return slice(first, first + parts[comm.rank])


def agree(found: list[Any], wanted: list[Any], tolerance: float) -> None:
    """Outputs side by side, gradients added up, buffers the same on all ranks."""
    y, dx, gradients, buffers = zip(*found, strict=True)
    close("y", np.concatenate(y), wanted[0], tolerance)
    close("dx", np.concatenate(dx), wanted[1], tolerance)
    for i, target in enumerate(wanted[2]):
        close(f"gradient {i}", sum(each[i].astype(np.float64) for each in gradients), target,
              (10 * tolerance, 10 * tolerance))
    for rank, own in enumerate(buffers):
        for i, target in enumerate(wanted[3]):
            np.testing.assert_array_equal(own[i], buffers[0][i], f"buffer {i} of rank {rank}")
            close(f"buffer {i}", own[i], target, tolerance)


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", NETS)
def test_ranks_compute_what_one_process_does(name: str, parts: tuple[int, ...]) -> None:
    Problem(NETS[name]).check(parts)


@pytest.mark.parametrize("dtype,tolerance", [
    ("float32", 1e-4), ("float16", 3e-2), ("bfloat16", 2e-1)])
@pytest.mark.parametrize("name", ["BatchNorm2d", "InPlaceABN"])
def test_other_dtypes(name: str, dtype: str, tolerance: float) -> None:
    Problem(NETS[name], dtype=dtype).check((4, 0, 3), tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype,tolerance", [
    ("float64", 1e-12), ("float32", 1e-4), ("float16", 3e-2), ("bfloat16", 2e-1)])
@pytest.mark.parametrize("name", ["BatchNorm2d", "ABN", "InPlaceABN", "InPlaceABN, relu"])
def test_on_a_gpu(name: str, dtype: str, tolerance: float) -> None:
    Problem(NETS[name], dtype=dtype, device="cuda").check((4, 0, 3), tolerance)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InPlaceABN])
def test_channels_last(norm: type[nn.BatchNorm2d], device: str) -> None:
    def call(net: nn.Module, x: gt.Tensor) -> gt.Tensor:
        last = gt.concat([x.permute_dims(0, 2, 3, 1)])
        assert last._array.flags.c_contiguous
        return net(last.permute_dims(0, 3, 1, 2))

    Problem(lambda: nn.Sequential(norm(2)), device=device).check((3, 0, 4), call=call)


# -- what is exchanged -----------------------------------------------------------------------------


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[int, ...], str]]:
    """Rank, shape and dtype of each array that was gathered."""
    found: list[Any] = []
    right = Communicator.all_gather

    def noted(self: Communicator, a: Any, *rest: Any, **options: Any) -> Any:
        found.append((self.rank, a.shape, str(a.dtype)))
        return right(self, a, *rest, **options)

    monkeypatch.setattr(Communicator, "all_gather", noted)
    return found


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ["BatchNorm2d", "ABN", "InPlaceABN", "InPlaceABN, relu"])
def test_a_layer_gathers_once_forward_and_once_backward(
    gathers: list[Any], name: str, dtype: str
) -> None:
    """Two numbers per channel and the count of samples, of 3 channels and of 5."""
    problem = Problem(NETS[name], dtype=dtype)
    problem.check((3, 4), 0.5)
    step = [((7,), "float64"), ((11,), "float64"), ((11,), "float64"), ((7,), "float64")]
    for rank in range(2):
        assert [call for number, *call in gathers if number == rank] == [*map(list, step * 2)]


@pytest.mark.parametrize("name", ["InPlaceABN", "no averages"])
def test_evaluation_gathers_nothing(gathers: list[Any], name: str) -> None:
    """Without averages, too, where a rank normalizes by its own batch."""
    problem = Problem(NETS[name])

    def evaluate(comm: Communicator) -> list[Any]:
        return problem.run(convert_sync(problem.net(), comm).eval())

    for found in in_threads(2, evaluate):
        agree([found], problem.run(problem.net().eval()), 1e-12)
    assert not gathers


def test_a_first_layer_without_parameters_before_it_gathers_forward_only(
    gathers: list[Any]
) -> None:
    def train(comm: Communicator) -> None:
        norm = convert_sync(nn.BatchNorm2d(2), comm)
        norm(gt.ones((3, 2, 4, 4)) * comm.rank).sum().backward()

    in_threads(2, train)
    assert len(gathers) == 2


@pytest.mark.parametrize("name", ["ABN", "InPlaceABN", "InPlaceABN, relu"])
def test_a_checkpointed_function_exchanges_in_its_first_run_only(
    gathers: list[Any], name: str
) -> None:
    """So ranks may even run different functions again."""
    def nested(net: nn.Module, x: gt.Tensor) -> gt.Tensor:
        return checkpoint(lambda x: checkpoint(net[2:], net[:2](x)), x)

    def pairs(net: nn.Module, x: gt.Tensor) -> gt.Tensor:
        return checkpoint(net[2:], checkpoint(net[:2], x))

    problem, parts, calls = Problem(NETS[name]), (3, 0, 4), (nested, pairs, None)

    def train(comm: Communicator) -> list[Any]:
        return problem.run(convert_sync(problem.net(), comm), own(comm, parts), calls[comm.rank])

    agree(in_threads(3, train), problem.run(problem.net()), 1e-12)
    assert len(gathers) == 3 * 2 * 4


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["BatchNorm2d", "InPlaceABN"])
def test_several_gradients_at_once_are_exchanged_at_once(
    gathers: list[Any], name: str, device: str
) -> None:
    problem = Problem(NETS[name], device=device)
    upstream = np.random.default_rng(3).standard_normal((4, *problem.g.shape))

    def gradients(net: nn.Module, part: slice) -> list[np.ndarray]:
        x = problem.part(problem.x, part).requires_grad_()
        net(x).backward(gt.asarray(upstream[:, part], device=device), batched=True)
        return [x.grad.numpy(), *[p.grad.numpy() for p in net.parameters()]]

    def train(comm: Communicator) -> list[np.ndarray]:
        return gradients(convert_sync(problem.net(), comm), own(comm, (3, 4)))

    dx, *found = zip(*in_threads(2, train), strict=True)
    wanted = gradients(problem.net(), slice(None))
    close("dx", np.concatenate(dx, axis=1), wanted[0], 1e-12)
    for parts, target in zip(found, wanted[1:], strict=True):
        close("a parameter", sum(parts), target, (1e-11, 1e-11))
    assert [shape for rank, shape, _ in gathers if rank == 0] == [(7,), (11,), (41,), (25,)]


# -- conversion ------------------------------------------------------------------------------------


def test_a_module_is_changed_in_place_and_may_be_converted_again() -> None:
    def convert(comm: Communicator) -> None:
        net = NETS["InPlaceABN"]().eval()
        before = [*net.parameters(), *net.buffers()]
        assert convert_sync(net, comm) is net and not net[1].training
        assert all(a is b for a, b in zip(before, [*net.parameters(), *net.buffers()], strict=True))
        used = net[1]._gather.comm
        assert used is not comm and net[3]._gather.comm is used
        net.append(nn.BatchNorm2d(5))
        assert convert_sync(net, comm)[4]._gather.comm is used
        assert nn.InPlaceABN.from_batch_norm(net[4])._gather.comm is used
        with pytest.raises(ValueError, match="'1', which rank 0 synchronizes over another"):
            convert_sync(net, comm.duplicate())

    in_threads(2, convert)


def test_a_world_of_one_changes_nothing(gathers: list[Any]) -> None:
    problem, comm = Problem(NETS["InPlaceABN"]), Communicator(Alone())
    net = convert_sync(convert_sync(problem.net(), comm), comm)
    for found, wanted in zip(problem.run(net), problem.run(problem.net()), strict=True):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not gathers
    copy.deepcopy(net)


@pytest.mark.parametrize("lost,said", [
    (slice(0, 3), r"no further batch norm on rank 1 and ABN\(5\) at '3' on rank 0"),
    (slice(2, 4), r"ABN\(5\) at '3' on rank 1 and ABN\(3\) at '1' on rank 0")])
def test_ranks_with_other_norms_are_refused_on_all(lost: slice, said: str) -> None:
    def convert(comm: Communicator) -> None:
        net = NETS["ABN"]()
        with pytest.raises(ValueError, match=said):
            convert_sync(net[lost] if comm.rank else net, comm)
        assert net[1]._gather is None

    in_threads(2, convert)


def test_only_modules_are_converted() -> None:
    with pytest.raises(TypeError, match="convert_sync was given module=.*; wanted a Module"):
        convert_sync(F.relu, Communicator(Alone()))


@pytest.mark.parametrize("duplicate", (copy.deepcopy, pickle.dumps))
def test_a_copy_would_need_a_communicator(duplicate: Callable[[Any], Any]) -> None:
    def convert(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="copy it before the conversion"):
            duplicate(convert_sync(nn.BatchNorm2d(3), comm))

    in_threads(2, convert)


def test_a_joint_batch_without_a_variance_is_refused_on_all_ranks() -> None:
    def train(comm: Communicator) -> None:
        norm = convert_sync(nn.BatchNorm1d(3), comm)
        with pytest.raises(ValueError, match="over 3 replicas .* a count of 1 per channel"):
            norm(gt.ones((int(comm.rank == 1), 3)))
        assert norm.num_batches_tracked.item() == 0

    in_threads(3, train)


def test_a_norm_that_only_one_rank_runs_is_an_error_in_time() -> None:
    def train(comm: Communicator) -> None:
        norm = convert_sync(nn.BatchNorm1d(3), comm)
        if comm.rank == 0:
            norm(gt.ones((4, 3)))

    with pytest.raises(CollectiveTimeout, match=r"rank 0 of 2: all_gather of shape \(7,\)"):
        in_threads(2, train, timeout=0.3)


# -- real processes --------------------------------------------------------------------------------


def steps(comm: Communicator | None, parts: list[int]) -> dict[str, Any]:
    """Three steps of a net with norms in place; gradients add up by the other communicator."""
    problem = Problem(NETS["InPlaceABN"])
    net, part = problem.net(), slice(None)
    if comm is not None:
        convert_sync(net, comm)
        part = own(comm, tuple(parts))
    optimizer = optim.SGD(net.parameters(), 0.05)
    losses = []
    for _ in range(3):
        y = net(problem.part(problem.x, part))
        loss = ((y - problem.part(problem.g, part)) ** 2).sum()
        loss.backward()
        total = loss.detach()
        if comm is not None:
            comm.all_reduce(total)
            for p in net.parameters():
                comm.all_reduce(p.grad)
        losses.append(total.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, **{name: a.numpy() for name, a in net.state_dict().items()}}


@pytest.mark.parametrize("parts", ([3, 4], [5, 1, 1, 0]), ids=str)
def test_processes_compute_what_one_does(parts: list[int]) -> None:
    found, wanted = run_ranks(len(parts), steps, parts), steps(None, parts)
    for own in found:
        for name, target in wanted.items():
            np.testing.assert_array_equal(own[name], found[0][name], name)
            close(name, np.asarray(own[name]), np.asarray(target), 1e-12)


# -- planted faults --------------------------------------------------------------------------------


def equal_counts(parts: Any, own: int, forward: bool) -> None:
    """A mean of means."""
    if forward:
        parts[:, -1] = parts[:, -1].mean()


def local_count(parts: Any, own: int, forward: bool) -> None:
    """Sums over all ranks, divided by the count of one."""
    if not forward:
        parts[:, -1] = own / len(parts)


def local_sums(parts: Any, own: int, forward: bool) -> None:
    """The sums of the first rank alone."""
    if not forward:
        parts[1:, :-1] = 0


@pytest.mark.parametrize("name", ["BatchNorm2d", "ABN", "InPlaceABN", "InPlaceABN, relu"])
@pytest.mark.parametrize("fault", (equal_counts, local_count, local_sums))
def test_a_wrong_exchange_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None], name: str
) -> None:
    right = _Gather.__call__

    def wrong(self: Any, array: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        parts = right(self, array)
        fault(parts, array[-1], self.calls % 4 in (1, 2))  # two layers
        return parts

    monkeypatch.setattr(_Gather, "__call__", wrong)
    with pytest.raises(AssertionError):
        Problem(NETS[name]).check((3, 4))


def test_a_local_count_in_running_variances_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = batch_norm.batch_statistics

    def wrong(x: Any, gather: Any) -> Any:
        mean, var, _ = right(x, gather)
        return mean, var, batch_norm.unbiased_variance(x, var)

    monkeypatch.setattr(batch_norm, "batch_statistics", wrong)
    with pytest.raises(AssertionError, match="buffer"):
        Problem(NETS["InPlaceABN"]).check((3, 4))
