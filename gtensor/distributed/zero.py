"""ZeroOptimizer: the states of an optimizer, each rank keeping its part of them.

The parameters of a group, device and dtype lie one behind the other in one buffer, of which they
become views. It is divided among the ranks evenly, element by element; a rank's part of a parameter
is a leaf of its own optimizer. So an update needs no copy, states are balanced to a few elements,
and each parameter counts its own steps.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
SC 2020 (stage 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from gtensor.creation.new_tensors import asarray, tensor, zeros
from gtensor.distributed.data_parallel import differing
from gtensor.distributed.errors import DistributedError
from gtensor.engine.handle.context import EXCHANGES, again, enable_grad, no_grad
from gtensor.engine.handle.tensor import Tensor, is_floating, wrap
from gtensor.engine.run.external_writes import relocate
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.engine.run.writable import count_write
from gtensor.nn.utils import by_dtype, clip_grad_norm_
from gtensor.ops.updates import clipping
from gtensor.optim import SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from gtensor.optim.optimizer import Group, Optimizer, Parameters
from gtensor.system.documents import UNLOADED, Facts
from gtensor.system.interrupts import undivided_wait

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.distributed.communicator import Communicator

ELEMENTWISE = (  # an element's update depends on no other element
    SGD, Adam, AdamW, Lion, RMSprop, Adagrad)
T = TypeVar("T")


class Segment(NamedTuple):
    """A rank's part of a parameter."""

    number: int  # of the parameter, in the band
    start: int  # in the flat parameter
    place: int  # in the rank's part of the band
    leaf: Tensor  # which the rank's optimizer trains: that part, or of half types its master

    def part_of(self, whole: Any) -> Tensor:
        """Of an array of the parameter's shape, this part."""
        return asarray(whole).detach().reshape(-1)[self.start:self.start + self.leaf.size]


class Band:
    """The parameters of one group, device and dtype, in one buffer; a part for each rank."""

    def __init__(self, parameters: Sequence[Tensor], numbers: Sequence[int], comm: Communicator
                 ) -> None:
        self.parameters = parameters
        self.numbers = numbers  # of the parameters, among those of all groups
        self.comm = comm
        self.device, self.dtype = parameters[0].device, parameters[0].dtype
        half = is_floating(self.dtype) and self.dtype.itemsize <= 2
        self.work = np.dtype(np.float32) if half else self.dtype  # of the updates
        self.ends = np.cumsum([p.size for p in parameters]).tolist()
        self.part = -(-self.ends[-1] // comm.size)  # elements of a rank
        self.flat = self.empty(self.dtype)  # (ranks, part)
        for parameter, view in zip(parameters, self.views(self.flat), strict=True):
            relocate(parameter, view)
        self.memory = [id(parameter._array) for parameter in parameters]
        self.segments = [*self._divided()]

    def empty(self, dtype: np.dtype) -> Array:
        """Zeros for all elements, (ranks, part)."""
        made = self.device.empty((self.comm.size, self.part), dtype, "bands of parameters")
        return self.device.fill(made, 0)

    def views(self, flat: Array) -> list[Array]:
        """The parameters' parts of such memory, in their shapes."""
        whole = flat.reshape(-1)
        return [whole[end - p.size:end].reshape(p.shape)
                for p, end in zip(self.parameters, self.ends, strict=True)]

    def _divided(self) -> Iterator[Segment]:
        begin = self.comm.rank * self.part
        for number, end in enumerate(self.ends):
            start = end - self.parameters[number].size
            low, high = max(start, begin), min(end, begin + self.part)
            if low < high:
                leaf = wrap(self.flat[self.comm.rank, low - begin:high - begin], self.device)
                leaf = leaf.to(self.work).requires_grad_()
                yield Segment(number, low - start, low - begin, leaf)

    def check(self) -> None:
        """Raise unless the parameters lie where they were put."""
        if [id(parameter._array) for parameter in self.parameters] != self.memory:
            raise DistributedError("a parameter was moved or converted after ZeroOptimizer was "
                                   "made; make it afterwards")

    # -- a step -----------------------------------------------------------------------------------

    def take_gradients(self) -> None:
        """Give each segment its part of the parameter's gradient, which all ranks have."""
        for number, start, _, leaf in self.segments:
            gradient = self.parameters[number].grad
            leaf.grad = None if gradient is None else gradient.reshape(-1)[
                start:start + leaf.size].to(leaf.dtype)

    def reduce_gradients(self, used: Sequence[bool]) -> None:
        """Give each segment its part of the mean over the ranks, if a rank has used it."""
        flat = self.empty(self.dtype)
        for parameter, view in zip(self.parameters, self.views(flat), strict=True):
            if parameter.grad is not None:
                wrap(view, self.device)[...] = parameter.grad
        mine = wrap(self.comm.reduce_scatter(flat, op="mean").wait(), self.device)
        for number, _, place, leaf in self.segments:
            leaf.grad = mine[place:place + leaf.size].to(leaf.dtype) if used[number] else None

    def outgoing(self) -> Array:
        """Memory in which this rank's part is sent."""
        return self.device.empty((self.part,), self.dtype, "bands of parameters")

    def exchange_parameters(self, outgoing: Array) -> None:
        """Let all ranks have what each has updated. On the CPU it allocates nothing more."""
        self.device.assign(outgoing, self.flat[self.comm.rank])
        if self.work != self.dtype:
            own = wrap(outgoing, self.device)
            for _, _, place, leaf in self.segments:
                own[place:place + leaf.size] = leaf
        self.comm.all_gather(outgoing, self.flat)
        for parameter in self.parameters:
            count_write(parameter)

    # -- state ------------------------------------------------------------------------------------

    def gathered(self, parts: Mapping[int, Tensor]) -> list[Tensor]:
        """Whole arrays, by parameter, of what each rank has for its segments (by number)."""
        flat = self.empty(self.work)
        own = wrap(flat[self.comm.rank], self.device)
        for number, _, place, leaf in self.segments:
            if number in parts:
                own[place:place + leaf.size] = parts[number]
        self.comm.all_gather(flat[self.comm.rank], flat)
        return [wrap(self.device.copy(view), self.device) for view in self.views(flat)]


class ZeroOptimizer(Optimizer):
    """An optimizer whose states are divided among the ranks.

        model = DataParallel(module, comm)
        optimizer = ZeroOptimizer(model.parameters(), AdamW, comm, lr=1e-3)

    A step updates this rank's part of the parameters and gathers those of the others, so a rank
    keeps 1 / size of the state. Parameters of half types have float32 master weights, divided, too.
    Gradients of a DataParallel module are the same on all ranks, and are taken as they are;
    otherwise a step averages them over the ranks, of those that have one.

    It is used as the optimizer itself: options, schedules and `GradScaler` (of a DataParallel
    module) are the same. Each rank calls `step`, `clip_grad_norm_` and `consolidate`, in one order.
    The parameters become views of common buffers; they must not be moved or converted afterwards,
    and views made before show old values.

    Args:
        params: as for the optimizer, the same on all ranks.
        cls: SGD, Adam, AdamW, Lion, RMSprop or Adagrad.
        comm: the ranks. The exchange has a communicator of its own.
        options: of `cls`.

    Raises TypeError for another optimizer, DistributedError, on every rank, for parameters that
    differ between the ranks.

    Raises ValueError for a parameter that is given twice.
    """

    def __init__(self, params: Parameters, cls: type[Optimizer], comm: Communicator,
                 **options: Any) -> None:
        if cls not in ELEMENTWISE:
            raise TypeError(f"ZeroOptimizer was given {getattr(cls, '__name__', cls)!r}; wanted one"
                            f" of {', '.join(one.__name__ for one in ELEMENTWISE)}, whose updates "
                            "are elementwise")
        groups = self._listed(params)
        if groups and not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        plain = cls([{**group, "params": [zeros((0,), dtype="float64").requires_grad_()]}
                     for group in groups], **options)  # checks the options
        self.defaults = plain.defaults
        self.param_groups = [
            {**made, "params": self._trained(group)}
            for made, group in zip(plain.param_groups, groups, strict=True)]
        every = [parameter for _, parameter in self._numbered()]
        if len({id(parameter) for parameter in every}) < len(every):
            raise ValueError("ZeroOptimizer was given a parameter twice; wanted each once")
        check_parameters(self.param_groups, comm)
        self.comm = comm.duplicate()
        self._reduced = all(p._tracked_node("ZeroOptimizer").collector is not None
                            for group in self.param_groups for p in group["params"])
        self._ready = False  # whether segments have this step's gradients
        self._whole: dict[str, Any] | None = None  # the state, once it was gathered
        with no_grad():
            for parameter in every:
                self.comm.broadcast(parameter)
            self.bands = [[Band([every[i] for i in places], places, self.comm)
                           for places in alike(group["params"], first)]
                          for group, first in zip(self.param_groups, self._firsts(), strict=True)]
        self.inner = cls([
            {**group, "params": [segment.leaf for band in bands for segment in band.segments]
             or [zeros((0,)).requires_grad_()]}
            for group, bands in zip(self.param_groups, self.bands, strict=True)], **options)
        self._slots = self.inner._slots  # of this rank's part

    def _trained(self, group: Group) -> list[Tensor]:
        found = self._listed(group["params"])
        for p in found:
            if not isinstance(p, Tensor) or not p.is_leaf or not p.requires_grad:
                raise ValueError("ZeroOptimizer was given a parameter that is no leaf with "
                                 "requires_grad; wanted such leaves")
        return found

    def _numbered(self) -> Iterator[tuple[int, Tensor]]:
        """The parameters of all groups, with their numbers in a state."""
        return enumerate(p for group in self.param_groups for p in group["params"])

    def _firsts(self) -> list[int]:
        """The number of each group's first parameter."""
        sizes = [len(group["params"]) for group in self.param_groups]
        return [0, *np.cumsum(sizes[:-1]).tolist()]

    # -- as an optimizer --------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> NoReturn:
        """Refused: the parameters are divided once."""
        raise TypeError("add_param_group was called on a ZeroOptimizer; wanted all groups when it "
                        "is made")

    def check_options(self, group: Group) -> None:
        """The optimizer's own."""
        self.inner.check_options(group)

    def states_of(self, group: Group) -> int:
        """The optimizer's own."""
        return self.inner.states_of(group)

    def options(self, group: Group) -> Params:
        """The optimizer's own."""
        return self.inner.options(group)

    @again
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or fill them with zeros, which keeps their memory."""
        for _, parameter in self._numbered():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                with no_grad():
                    parameter.grad[...] = 0
        self._ready = False

    def step(self, closure: Callable[[], T] | None = None) -> T | None:  # type: ignore[override]
        """Update this rank's part of the parameters, and gather those of all ranks.

        Whole or not at all, as the optimizer's own, unless the ranks cannot exchange the parameters
        (DistributedError), or Ctrl-C comes twice while they do: then go on from a checkpoint.
        Raises as the optimizer's own; nothing is changed then.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self._update_parts()
        return loss

    @partial(again, kind=EXCHANGES)
    def _update_parts(self) -> None:
        self._prepare()
        for mine, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({name: value for name, value in mine.items() if name != "params"})
        self.inner.skip = self.skip
        outgoing = [(band, band.outgoing()) for band in self._bands()]
        with undivided_wait(), no_grad():
            self.inner.step()
            self._whole, self._ready = None, False
            self.inner.zero_grad()
            for band, part in outgoing:
                band.exchange_parameters(part)

    def _bands(self) -> Iterator[Band]:
        return (band for bands in self.bands for band in bands)

    def _prepare(self) -> None:
        """Let the segments have this step's gradients."""
        if self._ready:
            return
        with no_grad():
            for band in self._bands():
                band.check()
            if self._reduced:
                for band in self._bands():
                    band.take_gradients()
            else:
                for band in self._bands():
                    flags = [p.grad is not None for p in band.parameters]
                    found = self.comm.all_gather_object(flags)
                    band.reduce_gradients([*map(any, zip(*found, strict=True))])
        self._ready = True

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """As `nn.utils.clip_grad_norm_`, of the gradients that all ranks have together.

        Called before `step`, which then takes the clipped ones. Returns the norm.
        """
        if not max_norm >= 0:
            raise ValueError(f"max_norm={max_norm} given; wanted a number of 0 or more")
        if self._reduced:
            return clip_grad_norm_((p for _, p in self._numbered()), max_norm, norm_type)
        return self._clip_parts(max_norm, norm_type)

    @partial(again, kind=EXCHANGES)
    def _clip_parts(self, max_norm: float, norm_type: float) -> Tensor:
        """Of gradients that the ranks have not exchanged."""
        self._prepare()
        own = [segment.leaf for band in self._bands() for segment in band.segments]
        mine = clip_grad_norm_(own, inf, norm_type).item()
        order = float(norm_type)
        parts = self.comm.all_gather_object(mine)
        norm = max(parts) if order == inf else sum(part**order for part in parts)**(1 / order)
        if norm > max_norm:
            factor = max_norm / (norm + clipping.TINY)
            gradients = [leaf.grad for leaf in own if leaf.grad is not None]
            write_all([Write(clipping.scale, some, [
                tensor(factor, dtype="float64", device=some[0].device)], {})
                for some in by_dtype(gradients)])
        return tensor(norm)

    # -- state ------------------------------------------------------------------------------------

    def consolidate(self) -> dict[str, Any]:
        """The whole state, on every rank, in the layout of the optimizer's own `state_dict()`.

        A plain optimizer loads it, and so does a ZeroOptimizer of any number of ranks. Each rank
        must call it; `state_dict()` returns it until the next step. "master" has the master
        weights of parameters of half types, by number.
        """
        kept = self.inner.state_dict()["state"]
        state: dict[int, dict[str, Any]] = {}
        master: dict[int, Tensor] = {}
        numbers = self._leaf_numbers()
        for group, bands in zip(self.param_groups, self.bands, strict=True):
            names = self.inner.state_names[:self.states_of(group)]
            for band in bands:
                mine = {s.number: kept[numbers[id(s.leaf)]] for s in band.segments
                        if numbers[id(s.leaf)] in kept}
                steps = self._steps({number: each["step"] for number, each in mine.items()})
                columns = {name: band.gathered({number: each[name] for number, each
                                                in mine.items()}) for name in names}
                for i, step in steps.items():
                    state[band.numbers[i]] = {
                        "step": step, **{name: column[i] for name, column in columns.items()}}
                if band.work != band.dtype:
                    whole = band.gathered({s.number: s.leaf for s in band.segments})
                    master.update(zip(band.numbers, whole, strict=True))
        self._whole = {"state": state, "param_groups": self._numbered_groups()}
        if master:
            self._whole["master"] = master
        return self._whole

    def _steps(self, mine: Mapping[int, int]) -> dict[int, int]:
        """The numbers of steps of a band's parameters, of all ranks."""
        pairs = [pair for found in self.comm.all_gather_object([*mine.items()]) for pair in found]
        return {number: step for number, step in sorted(pairs) if step}

    def _leaf_numbers(self) -> dict[int, int]:
        """The number of each leaf in the state of this rank's optimizer, by identity."""
        leaves = [leaf for group in self.inner.param_groups for leaf in group["params"]]
        return {id(leaf): number for number, leaf in enumerate(leaves)}

    def _numbered_groups(self) -> list[Group]:
        """The groups with the numbers of their parameters."""
        return [{**group, "params": [*range(first, first + len(group["params"]))]}
                for group, first in zip(self.param_groups, self._firsts(), strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """What `consolidate()` has gathered since the last step, for one rank to save.

        RuntimeError if it was not called; in a world of one it need not be.
        """
        if self._whole is None:
            if self.comm.size > 1:
                raise RuntimeError("state_dict() of a ZeroOptimizer was called before consolidate()"
                                   ", which gathers the state; call that on every rank first")
            return self.consolidate()
        return self._whole

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of a whole state: of `consolidate()`, or of a plain optimizer.

        Without "master", master weights begin with the parameters' values. Raises ValueError, with
        nothing changed, which names what does not fit.
        """
        whole = Facts("the optimizer state given", state, UNLOADED)
        groups, states = whole.each("param_groups", "a parameter group"), whole.inner("state")
        sizes = [len(group["params"]) for group in self.param_groups]
        if (given := [len(group.many("params")) for group in groups]) != sizes:
            raise ValueError(f"optimizer state for groups of {given} parameters given; wanted "
                             f"{sizes}; nothing was loaded")
        for number, parameter in self._numbered():
            for name, value in states.get(number, {}).items():
                if name in self.inner.state_names and tuple(value.shape) != parameter.shape:
                    raise ValueError(f"{name!r} of parameter {number} is of shape "
                                     f"{tuple(value.shape)} in the optimizer state given; wanted "
                                     f"{parameter.shape}; nothing was loaded")
        numbers, parts = self._leaf_numbers(), {}
        for band in self._bands():
            for s in band.segments:
                found = states.get(band.numbers[s.number])
                if found is not None:
                    parts[numbers[id(s.leaf)]] = {
                        name: value if name == "step" else s.part_of(value)
                        for name, value in found.items()}
        self._whole = None
        self.inner.load_state_dict({"state": parts, "param_groups": [
            {**group.found, "params": inner["params"]}
            for group, inner in zip(groups, self.inner.param_groups, strict=True)]})
        master = state.get("master", {})
        with no_grad():
            for band in self._bands():
                for s in band.segments:
                    if band.work != band.dtype:
                        s.leaf[...] = s.part_of(master.get(
                            band.numbers[s.number], band.parameters[s.number])).to(band.work)
        for mine, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            mine.update({name: value for name, value in inner.items() if name != "params"})


def alike(parameters: Sequence[Tensor], first: int) -> list[list[int]]:
    """The places of parameters of one device and dtype, counted from `first`."""
    found: dict[Any, list[int]] = {}
    for place, parameter in enumerate(parameters, first):
        found.setdefault((parameter.device, parameter.dtype), []).append(place)
    return [*found.values()]


def check_parameters(groups: Sequence[Group], comm: Communicator) -> None:
    """Raise DistributedError on every rank unless all have the same parameters."""
    mine = {f"{i} of group {number}": [list(p.shape), str(p.dtype), True]
            for number, group in enumerate(groups) for i, p in enumerate(group["params"])}
    first, *others = comm.all_gather_object(mine)
    for rank, other in enumerate(others, 1):
        told = differing(first, other)
        if told is not None:
            raise DistributedError(f"rank {rank} has {told}; wanted the same parameters on all "
                                   "ranks")
