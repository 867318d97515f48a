"""Optimizer: parameter groups, state made at construction, a step that checks before it writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from math import inf
from numbers import Number
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, cast, overload

from gtensor.backend import DeviceError
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.context import again, enable_grad, no_grad
from gtensor.engine.handle.tensor import Tensor, is_like
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.engine.run.writable import refuse_unwritable
from gtensor.engine.tape.op import Op
from gtensor.nn.module import Module
from gtensor.ops.define.updates import update_of
from gtensor.system import structure
from gtensor.system.bus import bus, here, phase
from gtensor.system.documents import UNLOADED, Facts, is_number, plain
from gtensor.system.interrupts import undivided

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.ops.define.formula import Key

Group: TypeAlias = dict[str, Any]  # parameters ("params") and their options
Parameters: TypeAlias = Iterable[Tensor] | Iterable[Group]
INITIAL = "initial_lr"  # a group's own rate under a schedule, as in PyTorch
# The options that identify a kind of optimizer; others vary with PyTorch's versions.
_TELLING = frozenset({"betas", "eps", "amsgrad", "momentum", "dampening", "nesterov", "alpha",
                      "centered", "lr_decay"})
_FLAGS = frozenset({"amsgrad", "nesterov", "maximize", "centered"})


T = TypeVar("T")


class How(TypedDict, total=False):
    """PyTorch's arguments that choose how a step runs. They are accepted and change nothing.

    A step updates all parameters of a dtype in one pass on CUDA, which graphs capture, whatever
    `foreach`, `fused` and `capturable` say. Gradients do not flow through a step:
    `differentiable=True` raises ValueError.
    """

    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


def check_how(name: str, how: How) -> None:
    """Raise TypeError for another argument, ValueError for a step that is to be differentiated."""
    unknown = how.keys() - How.__annotations__.keys()
    if unknown:
        raise TypeError(f"{name} was given the arguments {sorted(unknown)}; wanted its own, or "
                        f"PyTorch's {', '.join(How.__annotations__)}")
    if how.get("differentiable"):
        raise ValueError(f"{name} was given differentiable=True; wanted False: gradients do not "
                         "flow through a step, so write the update with ops, as p - lr * g")


class Counters:
    """What CUDA kernels know of a group's parameters on one device, in its memory.

    `steps` has the number of each parameter's steps, and behind them the ticket of
    `backend.multi_tensor`. `numbers` has the group's numbers for captured steps, `uploaded` what
    was last copied there.
    """

    def __init__(self, device: Device, parameters: int, numbers: int) -> None:
        self.steps = device.fill(device.empty((parameters + 1,), "int64", "optimizer"), 0)
        self.ticket = self.steps, parameters
        self.numbers = device.empty((numbers,), "float64", "optimizer")
        self.uploaded: tuple[float, ...] | None = None


class Slot:
    """A parameter, its state arrays, and the number of its steps.

    On CUDA the number is in device memory, at a place of `counters`, as kernels may skip a step and
    replays repeat one; otherwise it is `step`. `checked` says for which leaf (by `seq`) and how
    many state arrays the state was last checked. A parameter that is moved or converted becomes
    another leaf.
    """

    __slots__ = ("checked", "counters", "parameter", "place", "state", "step")

    def __init__(self, parameter: Tensor, state: tuple[Array, ...], counters: Counters | None,
                 place: int) -> None:
        self.parameter = parameter
        self.state = state
        self.counters = counters
        self.place = place
        self.step = 0
        self.checked = -1, -1


_Due: TypeAlias = "tuple[Slot, Any, int]"  # a leaf with a gradient, its group's number


class _Known:
    """What was checked of a group: its parameters, its options, how many state arrays they need.

    `params` are the options as the update takes them, `flags` those that are no numbers.
    """

    __slots__ = ("flags", "options", "parameters", "params", "states")

    def __init__(self, group: Group) -> None:
        self.parameters: list[Tensor] = [*group["params"]]
        self.options: Params = {}  # {}: to be checked
        self.params: Params = {}
        self.flags: Key = ()
        self.states = 0


class Options(dict[str, Any]):
    """A group: its parameters and options. What a captured step sets is set by its replays, too."""

    def __setitem__(self, name: str, value: Any) -> None:
        set_option(self, name, value)

    def update(self, *given: Any, **named: Any) -> None:
        """As of a dict."""
        for name, value in dict(*given, **named).items():
            self[name] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return Options, (dict(self),)


@partial(again, kind="python")
def set_option(group: Options, name: str, value: Any) -> None:
    """What `Options.__setitem__` does."""
    dict.__setitem__(group, name, value)


class Optimizer:
    """The base of optimizers.

    `param_groups` is a list of dicts: the parameters ("params") and their options. Only the options
    may be changed between steps; `add_param_group` adds parameters. The state is allocated here and
    never again, so a training loop of fixed shapes needs no more memory after its first step.

    Raises TypeError for a value that is not a Tensor; ValueError for no parameters, a parameter
    given twice, one that is not a leaf or requires no gradient, and an unknown option.
    """

    update: Op
    state_names: tuple[str, ...] = ()
    skip: Array | None = None  # on CUDA: a step changes nothing if this number is not 0

    def __init__(self, params: Parameters, **defaults: object) -> None:
        given = self._listed(params)
        if not given:
            raise ValueError(f"{type(self).__name__} was given no parameters; wanted at least one")
        if not isinstance(given[0], dict):
            given = [{"params": given}]
        self.defaults = _plain(defaults)
        self.param_groups: list[Group] = []
        self._slots: list[list[Slot]] = []
        self._known: list[_Known] = []
        for group in given:
            self.add_param_group(group)

    def _listed(self, params: Any) -> list[Any]:
        """The given tensors or groups."""
        if isinstance(params, Module):
            raise TypeError(f"{type(self).__name__} was given the module {type(params).__name__}; "
                            "wanted its parameters: pass net.parameters()")
        if not isinstance(params, Iterable):
            raise TypeError(f"{type(self).__name__} was given {params!r}; wanted parameters: "
                            "Tensors, or dicts with 'params'")
        return [params] if isinstance(params, Tensor) else list(params)

    def add_param_group(self, param_group: Group) -> None:
        """Train more parameters: {"params": tensors, option: value, ...}; other options by default.

        Raises as the optimizer itself does, before anything is changed.
        """
        group = self._group(param_group)
        known = [p for other in self.param_groups for p in other["params"]] + group["params"]
        if len({id(p) for p in known}) != len(known):
            raise ValueError(f"{type(self).__name__} was given a parameter twice; wanted each once")
        slots = self._slots_of(group)
        if self._known:  # else it is being made
            structure.changed(f"add_param_group() of {type(self).__name__}")
        self.param_groups.append(group)
        self._slots.append(slots)
        self._known.append(_Known(group))

    def _group(self, given: Group) -> Group:
        name = type(self).__name__
        if not isinstance(given, dict) or "params" not in given:
            found = "without 'params'" if isinstance(given, dict) else "among the groups"
            raise TypeError(f"{name} was given a {type(given).__name__} {found}; wanted all "
                            "parameters, or all dicts with 'params'")
        unknown = given.keys() - self.defaults.keys() - {"params", INITIAL}
        if unknown:
            raise ValueError(f"{name} was given the options {sorted(unknown)}; wanted some of "
                             f"{', '.join(self.defaults)}")
        group = {**self.defaults, **given}
        params = self._listed(group.pop("params"))
        group = Options({**_plain(group), "params": params})
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"{name} was given {type(p).__name__} as a parameter; wanted a "
                                "Tensor")
            if not p.is_leaf or not p.requires_grad:
                raise ValueError(f"{name} was given a tensor of shape {p.shape} that "
                                 + ("is the output of an op" if not p.is_leaf else
                                    "requires no gradient")
                                 + "; wanted a leaf with requires_grad")
        self.check_options(group)
        return group

    def _slots_of(self, group: Group) -> list[Slot]:
        places: dict[Device, list[Tensor]] = {}
        for parameter in group["params"]:
            places.setdefault(parameter.device, []).append(parameter)
        numbers = len(update_of(self.update).numbers(self.options(group)))
        counters = {device: Counters(device, len(members), numbers)
                    for device, members in places.items() if device.type != "cpu"}
        taken = dict.fromkeys(places, 0)
        slots = []
        for parameter in group["params"]:
            device = parameter.device
            slots.append(Slot(parameter, self._state_of(parameter, group), counters.get(device),
                              taken[device]))
            taken[device] += 1
        return slots

    def _state_of(self, parameter: Tensor, group: Group) -> tuple[Array, ...]:
        device = parameter.device
        return tuple([device.fill(device.empty(parameter.shape, parameter.dtype, "optimizer"), 0)
                      for _ in range(self.states_of(group))])

    # -- what a subclass says ---------------------------------------------------------------------

    def check_options(self, group: Group) -> None:
        """Raise TypeError or ValueError for invalid options. A step calls it only if an option has
        changed."""
        check_numbers(group, "lr", "weight_decay")

    def states_of(self, group: Group) -> int:
        """How many of `state_names` a parameter of this group needs."""
        return len(self.state_names)

    def options(self, group: Group) -> Params:
        """The parameters of `update` for a group, flags and numbers; asked for when an option has
        changed."""
        raise TypeError("Optimizer is abstract; make one of its kinds, such as an SGD")

    # -- use --------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """The learning rate (of the first group); assigning sets it for all groups."""
        return self.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            self.check_options({**group, "lr": value})
        for group in self.param_groups:
            group["lr"] = value

    @again
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or fill them with zeros, which keeps their memory."""
        for slots in self._slots:
            for slot in slots:
                grad = slot.parameter.grad
                if grad is None:
                    continue
                if set_to_none:
                    slot.parameter.grad = None
                else:
                    with no_grad():
                        grad[...] = 0

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], T]) -> T: ...

    def step(self, closure: Callable[[], T] | None = None) -> T | None:
        """Update every parameter that has a gradient, in place.

        `closure` is called before, with gradients enabled; it computes the loss and its gradients,
        and `step` returns its result.

        A step is applied whole or not at all if memory runs out on the CPU, or Ctrl-C comes. All
        memory is allocated there before the first write, so an OutOfMemoryError changes nothing,
        and the step may be tried again; on a GPU contiguous arrays need none. An interrupt after
        the first write is raised once the step is counted. After another error of a launch, of
        which there is one per dtype, go on from a checkpoint.

        Raises TypeError, ValueError or DeviceError if the lists of parameters were edited, or a
        gradient or the state does not fit its parameter (it was moved or converted since). Nothing
        is changed then.
        """
        self._check_members()
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        if bus.listeners and here.recorder is not None:
            here.recorder.host(Optimizer.step, (self,), {})  # each replay makes a step
            return loss
        due = self._due()
        with phase("update", type(self).__name__):
            self._update(due)
        return loss

    def prepared_step(self) -> Callable[[], object]:
        """`step` for the parameters that have a gradient now, which are checked once.

        For replays of captured steps. Where it does not fit any more, and on CUDA, it is `step`.
        """
        together = self._due()
        writes = []
        for members in together.values():
            slots, leaves, numbers = zip(*members, strict=True)
            state = [*chain(*zip(*[slot.state for slot in slots], strict=True))]
            own = [*dict.fromkeys(numbers)]
            prepared = update_of(self.update).prepare(
                [slot.parameter for slot in slots], [leaf.grad for leaf in leaves], state)
            if prepared is None:
                return self.step
            writes.append((prepared, slots, leaves, own, [own.index(n) for n in numbers]))
        with_gradient = {slot for _, slots, *_ in writes for slot in slots}
        others = [slot for slots in self._slots for slot in slots if slot not in with_gradient]

        def run() -> object:
            self._check_members()
            if bus.listeners or any(slot.parameter.grad is not None for slot in others):
                return self.step()
            given = []
            for prepared, _, leaves, *_ in writes:
                gradients = [leaf.grad for leaf in leaves]
                if not prepared.serves(gradients):
                    return self.step()
                given.append(gradients)
            options = [[self.checked_group(n).params for n in numbers]
                       for _, _, _, numbers, _ in writes]
            with undivided():
                for (prepared, slots, _, _, rows), gradients, params in zip(
                        writes, given, options, strict=True):
                    prepared.write(gradients, params, rows, [slot.step + 1 for slot in slots])
                    for slot in slots:
                        slot.step += 1
            return None

        return run

    def _due(self) -> dict[Any, list[_Due]]:
        """The parameters that have a gradient, everything checked, by call of the update."""
        due: dict[Any, list[_Due]] = {}
        for number, slots in enumerate(self._slots):
            known = self.checked_group(number)
            for slot in slots:
                leaf = slot.parameter._node
                if leaf is None or leaf.grad is None:
                    continue
                if slot.checked != (leaf.seq, known.states) or not is_like(leaf.grad, leaf):
                    self._check(slot, leaf.grad, known.states)
                    slot.checked = leaf.seq, known.states
                # in one call they differ in numbers only
                due.setdefault((leaf.device, leaf.dtype, len(slot.state), known.flags), []).append(
                    (slot, leaf, number))
        return due

    def _update(self, due: dict[Any, list[_Due]]) -> None:
        """One call of the update for all parameters that differ in numbers only."""
        writes: list[Write] = []
        stepped: list[Slot] = []  # those that CUDA does not count
        for (device, *_), members in due.items():
            slots, parameters, grads, steps = [], [], [], []
            for slot, leaf, _ in members:  # one loop: a comprehension is a call
                slots.append(slot)
                parameters.append(slot.parameter)
                grads.append(leaf.grad)
                steps.append(slot.step + 1)
            numbers, rows = [0], [0] * len(members)
            if len(self._known) > 1:
                numbers = [*dict.fromkeys([number for _, _, number in members])]
                rows = [numbers.index(number) for _, _, number in members]
            more: Params = {"steps": steps}
            if device.type != "cpu":
                more = self._counted(slots, rows, numbers, device)
            state = chain(*zip(*[slot.state for slot in slots], strict=True))
            writes.append(Write(self.update, parameters, grads, {
                "state": tuple(state), "rows": rows,
                "options": [self._known[number].params for number in numbers], **more}))
            if device.type == "cpu":
                stepped += slots

        def count() -> None:
            for slot in stepped:
                slot.step += 1

        write_all(writes, count)

    def _counted(
        self, slots: list[Slot], rows: list[int], groups: list[int], device: Device
    ) -> Params:
        """Where the kernel counts the steps, and where a captured step reads its numbers.

        `groups` has, for each row, the number of its group.
        """
        counters = [cast("Counters", slots[rows.index(row)].counters) for row in range(len(groups))]
        replays = device.replays()
        if replays is not None:
            refresh = replays.functions.setdefault(self, _Refresh(self, device))
            cast("_Refresh", refresh).groups.update({
                number: (self._known[number].flags, counted)
                for number, counted in zip(groups, counters, strict=True)})
        return {"steps": [(cast("Counters", slot.counters).steps, slot.place) for slot in slots],
                "counts": [group.steps for group in counters], "ticket": counters[0].ticket,
                "live": [None if replays is None else group.numbers for group in counters],
                "skip": self.skip}

    def checked_group(self, number: int) -> _Known:
        """The group with that number, checked if its options have changed."""
        group, known = self.param_groups[number], self._known[number]
        if {**group, "params": None} != known.options:
            self._check_group(group, known)
        return known

    def _check_group(self, group: Group, known: _Known) -> None:
        """Check the options of a group; those that cannot change in place are remembered."""
        known.options = {}
        if missing := self.defaults.keys() - group.keys():
            raise ValueError(f"a group of {type(self).__name__} is without the options "
                             f"{sorted(missing)}; wanted {', '.join(self.defaults)}")
        self.check_options(group)
        states, params = self.states_of(group), self.options(group)
        flags = update_of(self.update).flags(params)
        if known.params and (states, flags) != (known.states, known.flags):
            structure.changed(f"an option of {type(self).__name__} that is no number was set")
        known.states, known.params, known.flags = states, params, flags
        options = {**group, "params": None}
        if all(map(_fixed, options.values())):
            known.options = options

    def _check_members(self) -> None:
        edited = len(self.param_groups) != len(self._known)
        for group, known in zip(self.param_groups, self._known, strict=False):
            members = group["params"]
            if len(members) != len(known.parameters) or not all(
                    map(is_, members, known.parameters)):
                edited = True
        if edited:
            raise ValueError(f"the parameters in param_groups of {type(self).__name__} were edited;"
                             " only options may be changed there: use add_param_group, or make a "
                             "new optimizer")

    def _check(self, slot: Slot, grad: Tensor, states: int) -> None:
        parameter = slot.parameter
        refuse_unwritable(self.update, parameter)  # before another group is written
        if len(slot.state) < states:
            raise ValueError(f"the options of {type(self).__name__} were changed so that it needs "
                             f"{', '.join(self.state_names[:states])}, which it was made without; "
                             "give them when making it")
        other: Any
        for what, other in (("a gradient", grad), *(("optimizer state", a) for a in slot.state)):
            if other.shape != parameter.shape or other.dtype != parameter.dtype:
                raise ValueError(
                    f"{what} of shape {tuple(other.shape)} and dtype {other.dtype} was found for a "
                    f"parameter of shape {parameter.shape} and dtype {parameter.dtype}; make the "
                    "optimizer after converting the parameters")
        arrays = [a for a in slot.state if not isinstance(a, parameter.device.array_type)]
        if grad.device is not parameter.device or arrays:
            found = ("optimizer state on another device" if arrays else
                     f"a gradient on {grad.device}")
            raise DeviceError(f"{found} was found for a parameter on {parameter.device}; make the "
                              "optimizer after moving the parameters")

    def __repr__(self) -> str:
        told = []
        for number, group in enumerate(self.param_groups):
            options = [f"    {name}: {group[name]}\n" for name in sorted(group) if name != "params"]
            told.append(f"Parameter Group {number} (tensors: {len(group['params'])})\n"
                        + "".join(options))
        return f"{type(self).__name__} (\n" + "\n".join(told) + ")"

    # -- state ------------------------------------------------------------------------------------

    def _read_steps(self) -> None:
        """Copy the numbers of steps that CUDA devices have counted."""
        for slots in self._slots:
            for counters in dict.fromkeys([slot.counters for slot in slots]):
                if counters is not None:
                    own = [slot for slot in slots if slot.counters is counters]
                    found = own[0].parameter.device.to_numpy(counters.steps)
                    for slot in own:
                        slot.step = int(found[slot.place])

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's layout: {"state": {number: {name: tensor}}, "param_groups": [options]}.

        Parameters are numbered through all groups; "step" is an integer. The tensors share the
        optimizer's memory.
        """
        state: dict[int, dict[str, Any]] = {}
        groups, number = [], 0
        self._read_steps()
        for slots, group in zip(self._slots, self.param_groups, strict=True):
            groups.append({**group, "params": list(range(number, number + len(slots)))})
            for slot in slots:
                if slot.step:
                    state[number] = {"step": slot.step, **{
                        name: asarray(array, device=slot.parameter.device)
                        for name, array in zip(self.state_names, slot.state, strict=False)}}
                number += 1
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Copy state and options from a `state_dict()` of the same kind of optimizer.

        Options that only PyTorch's has (such as "foreach") are ignored. Raises ValueError, with
        nothing changed, which names what does not fit (another kind of optimizer, other shapes).
        """
        whole = Facts("the optimizer state given", state, UNLOADED)
        groups, states = whole.each("param_groups", "a parameter group"), whole.inner("state")
        sizes, given = [len(slots) for slots in self._slots], [
            len(group.many("params")) for group in groups]
        if given != sizes:
            raise ValueError(f"optimizer state for groups of {given} parameters given; wanted "
                             f"{sizes}; nothing was loaded")
        for group in groups:
            if (found := group.found.keys() & _TELLING) != self.defaults.keys() & _TELLING:
                raise ValueError(f"state of an optimizer with the options {sorted(found)} given; "
                                 f"{type(self).__name__} has {sorted(self.defaults)}; nothing was "
                                 "loaded")
        examples = {**self.defaults, INITIAL: self.defaults["lr"]}
        options = [{name: group.like(name, example) for name, example in examples.items()
                    if name in group} for group in groups]
        for own, new in zip(self.param_groups, options, strict=True):
            self.check_options({**own, **new})
            if self.states_of({**own, **new}) != self.states_of(own):
                raise ValueError(f"optimizer options {new} given; they need other state than "
                                 f"{type(self).__name__} was made with; nothing was loaded")
        slots = [slot for group in self._slots for slot in group]
        loaded = [self._loaded(slot, number, states.get(number))
                  for number, slot in enumerate(slots)]
        with undivided(), no_grad():
            for slot, (step, arrays) in zip(slots, loaded, strict=True):
                slot.step = step
                if slot.counters is not None:
                    slot.parameter.device.fill(slot.counters.steps[slot.place:slot.place + 1], step)
                for array, new_values in zip(slot.state, arrays, strict=True):
                    asarray(array, device=slot.parameter.device)[...] = new_values
            for own, new in zip(self.param_groups, options, strict=True):
                own.update(new)

    def _loaded(
        self, slot: Slot, number: int, given: Mapping[str, Any] | None
    ) -> tuple[int, list[Any]]:
        """The step count and the values of a slot's state, checked."""
        if given is None:
            return 0, [0.0] * len(slot.state)
        facts = Facts(f"the optimizer state of parameter {number}", given, UNLOADED)
        other = sorted(name for name, value in given.items()
                       if value is not None and name not in ("step", *self.state_names))
        if other:
            raise ValueError(f"optimizer state with {', '.join(other)} of parameter {number} "
                             f"given; {type(self).__name__} keeps {', '.join(self.state_names)}; "
                             "nothing was loaded")
        values = []
        for name, array in zip(self.state_names, slot.state, strict=False):
            shape = getattr(given.get(name), "shape", None)
            if shape is None or tuple(shape) != array.shape:
                found = ("missing" if given.get(name) is None else "no tensor" if shape is None
                         else tuple(shape))
                raise ValueError(f"{name!r} of parameter {number} is {found} in the optimizer "
                                 f"state given; wanted shape {array.shape}; nothing was loaded")
            value = asarray(given[name]).detach().to(slot.parameter.device).to(array.dtype)
            # The value may share memory with another slot (state_dict() does), which is written
            # before this value is read.
            values.append(value.clone() if value._storage.exported else value)
        return facts.count("step", 1), values


class _Refresh:
    """Before each replay of an optimizer's captured steps: copies options that were changed.

    Raises RuntimeError if an option was changed that is not a number.
    """

    def __init__(self, optimizer: Optimizer, device: Device) -> None:
        self._optimizer = optimizer
        self._device = device
        self.groups: dict[int, tuple[Key, Counters]] = {}  # by number: flags as captured

    def __call__(self) -> None:
        optimizer, update = self._optimizer, update_of(self._optimizer.update)
        for number, (flags, counters) in self.groups.items():
            known = optimizer.checked_group(number)
            if known.flags != flags:
                raise RuntimeError(
                    f"a step of {type(optimizer).__name__} was captured with {dict(flags)} and is "
                    f"to be replayed with {dict(known.flags)}; only numbers may be changed: "
                    "capture the step again")
            numbers = update.numbers(known.params)
            if numbers != counters.uploaded:
                self._device.upload(counters.numbers, numbers)
                counters.uploaded = numbers


def _prepared_drop(optimizer: Optimizer, set_to_none: bool = True) -> Callable[[], object]:
    """`zero_grad` for replays."""
    if not set_to_none:
        return partial(optimizer.zero_grad, False)
    leaves = [slot.parameter._node for slots in optimizer._slots for slot in slots
              if slot.parameter._node is not None]  # else it was frozen
    return lambda: deque(map(setattr, leaves, repeat("grad"), repeat(None)), 0)


step: Any = Optimizer.step
step.again, step.prepare = "", Optimizer.prepared_step  # how replays make it
drop: Any = Optimizer.zero_grad
drop.__wrapped__.prepare = _prepared_drop


def _plain(options: Params) -> Params:
    """Options as `load_state_dict` takes them: flags as bools, numbers and tuples of Python's."""
    return {name: bool(value) if name in _FLAGS else plain(value)
            for name, value in options.items()}


def check_numbers(group: Group, *names: str, least: float = 0.0) -> None:
    """Raise TypeError or ValueError unless these options are numbers of `least` or more."""
    wanted = "a number" if least == -inf else f"a number of {least:g} or more"
    for name in names:
        value = group[name]
        if not is_number(value):
            raise TypeError(f"{name}={value!r} given; wanted {wanted}")
        if not least <= value:
            raise ValueError(f"{name}={value} given; wanted {wanted}")


def check_betas(betas: Sequence[float]) -> None:
    """Raise TypeError or ValueError unless these are two numbers from 0 to below 1."""
    wanted = f"betas={betas!r} given; wanted two numbers from 0 to below 1"
    if not isinstance(betas, Sequence) or not all(map(is_number, betas)):
        raise TypeError(wanted)
    if len(betas) != 2 or any(not 0 <= beta < 1 for beta in betas):
        raise ValueError(wanted)


def _fixed(value: object) -> bool:
    """Whether an option's value cannot change in place."""
    if isinstance(value, tuple):
        return all(map(_fixed, value))
    return value is None or isinstance(value, (str, Number))
