"""Op definitions: everything about an op in one block, and the registry of all ops.

The engine, the exported function, the NVTX label and the generated tests all read the definition,
so adding an op touches one place.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, wraps
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.storage import FRESH, GIVEN
from gtensor.engine.tape.arguments import (
    Arguments,
    LazySignature,
    arguments_of,
    check_takes,
    parameters_of,
)
from gtensor.engine.tape.taken import Named

if TYPE_CHECKING:
    from gtensor.backend.typing import Path
    from gtensor.engine.handle.saved import Guards, Saved
    from gtensor.engine.handle.tensor import Operand, Tensor
    from gtensor.engine.tape.samples import Sample

Samples: TypeAlias = "Callable[..., Iterable[Sample]] | Sequence[Sample]"
Flops: TypeAlias = "int | Callable[..., int] | None"
Rule: TypeAlias = Callable[..., Any]  # in detail: `walk.typing`



class Declared(Protocol):
    """A declaration from which an op's rules follow: `pointwise(...)`."""

    @property
    def partials(self) -> Sequence[Any]:
        """What each input's derivative needs, and its product with g."""


# Facts on which a call's text depends.
_IN_TEXT = ("cpu", "gpu", "composed", "complex", "view", "autocast")
REQUIRED: Any = object()  # a rule must be given, or be None on purpose

registry: dict[str, Op] = {}
# The reserved names of parameters, and the defaults that they must have.
_RESERVED: dict[str, float | None] = {"out": None, "beta": 0.0}


class Op:
    """One operation: paths, rules and checks. Call it on Tensors to apply and record it.

    The first call writes the function that runs the op (`run.call_text`), from its facts. Then the
    op gets a class of its own, whose `__call__` is that function: so the call of an instance costs
    no more than that of the function. Namespaces and methods that serve the op get the function
    itself. When one of the facts in the text (`_IN_TEXT`) is assigned later, as tests do, it is
    written again; all other facts are read by each call.
    """

    __signature__ = LazySignature()
    checked = False  # whether calls look for arrays among the parameters, as for users' ops
    write_call: ClassVar[Callable[[Op], Callable[..., Tensor]]]  # handed in by `run.call_text`

    def __init__(
        self,
        name: str,
        *,
        # Paths: how it runs, on what inputs, and what its output is.
        cpu: Path,
        gpu: Path | None,
        asks: Path | None = None,
        inputs: str | None = None,
        variadic: bool = False,
        extras: str = "",
        view: bool = False,
        moves: bool = False,
        owns: bool = False,
        floating: bool = False,
        autocast: str | None = None,
        # Rules: how it is differentiated and vectorized, and what that needs.
        backward: Rule | None,
        tangent: Rule | None,
        batch: Rule | None = None,
        composed: Rule | None = None,
        saves: dict[str, str] | None = None,
        takes: str | None = None,
        constants: str = "",
        complex: bool = False,
        # Checks: what tests, profiles and documents read.
        samples: Samples | None,
        reference: Callable[..., Any] | None = None,
        flops: Flops = None,
        doc: str | None = None,
    ) -> None:
        if autocast not in (None, "low", "float32"):
            raise TypeError(f"op {name!r} was given autocast={autocast!r}; wanted 'low', 'float32' "
                            "or None")
        self.name = self.__name__ = name
        self.__doc__ = doc or f"{name}, elementwise with broadcasting."

        self.cpu = cpu
        self.gpu: Any = gpu  # None: calls there are refused
        self.asks = asks  # makes what the CPU path works in, its parameter `work`: see `write_all`
        self.variadic = variadic
        self.view = view
        self.moves = moves
        self.owns = owns
        self.storage = FRESH if owns else GIVEN  # of outputs that are not views
        self.floating = floating
        self.autocast = autocast

        self.backward = backward
        self.tangent = tangent
        self.batch = batch
        self.composed = composed
        self.complex = complex

        self.samples = samples
        self.reference = reference
        self.flops = 0 if flops is None and view else flops

        given = arguments_of(cpu)
        _check_reserved(name, given)
        self.input_names = _input_names(inputs, given)
        self.optional_inputs = not given.defaults.keys().isdisjoint(self.input_names)
        self.has_params = given.rest or not _RESERVED.keys() >= {*given.params}
        self.extra_names = tuple(extras.split())
        fixed = constants.split()
        if not {*fixed} <= {*self.input_names}:
            raise TypeError(f"op {name!r} was given constants {constants!r}; wanted some of its "
                            f"inputs: {', '.join(self.input_names)}")
        self.constants = tuple([self.input_names.index(n) for n in fixed])  # their places
        self._plan_saves(saves or {})
        if takes is not None and takes not in {*self.input_names} & {*self.save_names}:
            raise TypeError(f"op {name!r} was given takes={takes!r}; wanted an input that it saves")
        self.takes = None if takes is None else self.input_names.index(takes)
        self._callers: list[tuple[object, str]] = []

    def _plan_saves(self, saves: dict[str, str]) -> None:
        """From "the gradient of a needs b" to positions among inputs, output, extras."""
        names = (*self.input_names, "out", *self.extra_names)
        unknown = {*saves, *" ".join(saves.values()).split()} - set(names)
        if unknown:
            raise TypeError(f"op {self.name!r} saves {sorted(unknown)}; it has {', '.join(names)}")
        needed = {name: tuple([names.index(n) for n in text.split()])
                  for name, text in saves.items()}
        self.save_positions = tuple(dict.fromkeys([p for ps in needed.values() for p in ps]))
        self.save_names = tuple(names[p] for p in self.save_positions)
        self.saves_extras = any(name in self.extra_names for name in self.save_names)
        self.save_index = {name: k for k, name in enumerate(self.save_names)}
        # for records that save nothing, so that a rule can always unpack step.saved
        self.nothing_saved: tuple[Saved, Guards] = (
            () if self.variadic else (None,) * len(self.save_names), ())
        self.plans = _Plans(
            tuple([needed.get(n, ()) for n in self.input_names]), self.save_positions)

    def _signature(self) -> inspect.Signature:
        """Inputs by position, parameters by keyword."""
        params = [p for p in parameters_of(self.cpu)
                  if p.kind is p.KEYWORD_ONLY and p.name not in _RESERVED]
        inputs = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY, annotation="Operand")
                  for n in self.input_names]
        if self.variadic and inputs:
            inputs[-1] = inputs[-1].replace(kind=inspect.Parameter.VAR_POSITIONAL)
        return inspect.Signature([*inputs, *params], return_annotation="Tensor")

    def plan(self, mask: int, count: int) -> tuple[int | None, ...]:
        """Positions to save, None where not needed, among `count` inputs, output and extras.

        Bit i of the mask says that input i needs a gradient.
        """
        return self.plans[(mask, count) if self.variadic else mask]

    @cached_property
    def call(self) -> Callable[..., Tensor]:
        """The function that runs the op, written at the first call; `self(...)` calls it, too."""
        call = Op.write_call(self)
        call.__doc__ = self.__doc__
        object.__setattr__(self, "__class__", type("Op", (Op,), {"__call__": staticmethod(call)}))
        for holder, name in self._callers:
            setattr(holder, name, call)
        return call

    def __setattr__(self, name: str, value: object) -> None:
        ran = "call" in vars(self)
        if ran:
            from gtensor.system import structure

            structure.changed(f"{name} of the op {self.name} was set")
        object.__setattr__(self, name, value)
        if name in _IN_TEXT and ran:
            del self.call
            _ = self.call

    def serve(self, holder: object, name: str) -> None:
        """Make `holder.name` the function that runs the op."""
        self._callers.append((holder, name))

        def first(*inputs: Any, **params: Any) -> Tensor:
            return self.call(*inputs, **params)

        first.__name__, first.__doc__ = self.name, self.__doc__
        setattr(holder, name, first)

    def __call__(self, *inputs: Operand | None, **params: Any) -> Tensor:
        return self.call(*inputs, **params)

    def record(self, *inputs: Any, out: Any = None, beta: float = 0, **params: Any) -> Tensor:
        """The op in the namespace `recorded`: a call that ignores the buffer."""
        return self.call(*inputs, **params)

    def __repr__(self) -> str:
        """Its name and signature, which `help` prints over its words."""
        return f"<op {self.name}{self.__signature__}>".replace("'", "")


class _Plans(dict["int | tuple[int, int]", tuple[int | None, ...]]):
    """Bit mask of the inputs that need gradients -> positions to save, None where not needed.

    Of a variadic op: mask and number of inputs -> the same, the last name standing for the rest.
    """

    def __init__(self, needed: tuple[tuple[int, ...], ...], positions: tuple[int, ...]) -> None:
        self.needed = needed
        self.positions = positions

    def __missing__(self, key: int | tuple[int, int]) -> tuple[int | None, ...]:
        mask = key if isinstance(key, int) else key[0]
        wanted: set[int] = set()
        for i, needed in enumerate(self.needed):
            if mask >> i & 1:
                wanted.update(needed)
        plan = tuple(p if p in wanted else None for p in self.positions) if wanted else ()
        if not isinstance(key, int) and plan:
            last, count = len(self.needed) - 1, key[1]
            places = {p: (p,) if p < last else range(last, count) if p == last
                      else (p + count - last - 1,) for p in self.positions}
            plan = tuple(k for p in plan if p is not None for k in places[p])
        self[key] = plan
        return plan


def _check_reserved(name: str, takes: Arguments) -> None:
    """Raise TypeError if the path has a parameter `out` or `beta` of another meaning.

    Rules pass these (accumulate: out = result + beta * out) to paths; a parameter of that name
    would be dropped when a rule is recorded.
    """
    for reserved, default in _RESERVED.items():
        if takes.defaults.get(reserved, default) != default:
            raise TypeError(f"op {name!r} has a parameter {reserved!r}, which is reserved for "
                            f"{reserved}={default}; choose another name")


def _input_names(given: str | None, takes: Arguments) -> tuple[str, ...]:
    """Inputs are the positional parameters of the CPU path; keyword-only ones are parameters."""
    return tuple(given.split()) if given else tuple(n for n in takes.inputs if n != "out")


def check_rules(op: Op, declaration: Any = None) -> None:
    """Raise TypeError unless all rules of an op take what they will be given.

    gtensor's own definitions are checked by a test: reading signatures takes time at import.
    """
    names, takes = op.input_names, arguments_of(op.cpu)
    # Rules get the parameters that a call gives. Those with a default in the CPU path need not be
    # among them, such as `where` and `casting` of a ufunc, so a rule may lack them.
    params = [n for n in takes.params if n not in _RESERVED and n not in takes.defaults]
    fixed: list[tuple[str, Any, Sequence[str]]] = [
        ("backward rule", op.backward, ("ns", "step", "g")),
        ("tangent rule", op.tangent, ("ns", "primals", "tangents", "out", "params")),
        ("batch rule", op.batch, ("ns", "run", "inputs", "mapped", "params"))]
    if callable(op.samples):
        fixed.append(("function of samples", op.samples, ()))
    if callable(op.flops):
        fixed.append(("rule of flops", op.flops, [*[f"{n}.shape" for n in names], "out.shape"]))
    for label, rule, given in fixed:
        if rule is not None:
            check_takes(op.name, label, rule, given)
    for label, rule in (("path for the GPU", op.gpu), ("composed form", op.composed)):
        if rule is not None:
            check_takes(op.name, label, rule, names, params, takes.rest)
    for name, partial in zip(names, declaration.partials if declaration else (), strict=False):
        if partial is not None and partial.op is None:
            check_takes(op.name, f"derivative with respect to {name}", partial.times,
                        ("ns", "g", *partial.names), ("out", *params), takes.rest)


def op(
    name: str,
    *,
    cpu: Path = REQUIRED,
    gpu: Path | None = REQUIRED,
    asks: Path | None = None,
    inputs: str | None = None,
    variadic: bool = False,
    extras: str = "",
    view: bool = False,
    moves: bool = False,
    owns: bool | None = None,
    floating: bool = False,
    autocast: Literal["low", "float32"] | None = None,
    backward: Rule | Declared | None = REQUIRED,
    tangent: Rule | None = REQUIRED,
    batch: Rule | None = REQUIRED,
    composed: Rule | None = None,
    saves: dict[str, str] | None = None,
    takes: str | None = None,
    constants: str = "",
    complex: bool = False,
    samples: Samples | None = REQUIRED,
    reference: Callable[..., Any] | None = None,
    flops: Flops = None,
    doc: str | None = None,
) -> Op:
    """Register an op and return it; calling it on tensors applies and records it.

    After the name come the paths (how it runs, to `autocast`), the rules (how it is differentiated
    and vectorized, to `complex`), and what tests and profiles read.

    Args:
        name: unique name; also its NVTX label and its row in the docs.
        cpu, gpu: `path(*arrays, out=None, **params) -> array` on NumPy and CuPy arrays; without one
            for the GPU (None) calls there raise DeviceError. Arrays are inputs, never parameters:
            calls raise TypeError for one there. `out`, when given, is the buffer to write.
            Positional parameters name the inputs.
        variadic: takes any number of inputs, all treated alike; behind inputs with names of their
            own, the last name is that of all further ones, which get no gradient.
        extras: names of further arrays that the paths return beside the output, for saving. They
            carry no derivative: a rule that is differentiated again computes them from the inputs.
        view: the output may share its input's memory.
        moves: the output may be on another device than the inputs.
        owns: the paths return new memory, never an input, a view (without `view=True`), or an array
            that is kept elsewhere. Then a later op may overwrite it, as in-place batch norm does.
            The default is True for gtensor's own ops only.
        floating: integer inputs are converted to the default float dtype first.
        autocast: to what `gt.autocast` casts inputs of half types and float32: "low" is the block's
            dtype, "float32" is float32 (unless the parameter `dtype` is given), None casts nothing.
        backward: `rule(ns, step, g)` writing to its parents through `step.give/lend/into`, a
            `pointwise(...)` declaration, or None if the op has no derivative. It asks g for shape,
            dtype and ndim only; functions of `ns` do the rest, with axes counted from the end.
        tangent: `rule(ns, primals, tangents, out, params) -> tangent`; the tangent is None where
            none reaches the output. None for an op without such a rule: its `composed` form is
            used, or forward mode refuses it. An op that is constant almost everywhere says so
            with `gtensor.ops.define.pointwise.zero_tangent`.
        batch: `rule(ns, run, inputs, mapped, params) -> output`, for `vmap`: where `mapped`, an
            input's first axis is that of the examples, as it must be of the output; `run` is the op
            (see `gtensor.ops.define.batching`).
        composed: the same function in other ops; records a fused op that has no rule of its own.
        saves: for each differentiable input, the names its gradient needs, e.g. {"x": "out"}.
            `step.saved` has them in the order in which they are first written, and by their names:
            `step.saved.out`.
        takes: the name of a saved input whose memory the rule asks for by `step.take`, to write a
            gradient over it.
        constants: names of the inputs that the rules treat as constants: they get no gradient.
        complex: the derivative rule holds for complex values too (without it, a gradient through
            complex values is refused). The gradient of a real loss L is dL/dRe + i dL/dIm.
        samples: inputs for the generated tests (see `gtensor.testing.opcheck`).
        reference: `function(torch, *tensors, **params)` for the comparison with PyTorch.
        flops: the floating point operations of the path, for profiles: a number per element of the
            output, or `rule(*shapes of the inputs, shape of the output)` for an op that does
            more, such as a product; None is the number of a formula's primitives, 0 for a view,
            else 1.

    Raises TypeError that lists the rules that are missing (None is explicit), when one takes other
    arguments than it will be given, and when the name is taken.
    """
    if name in registry:
        raise TypeError(f"op {name!r} is registered already; choose another name")
    if cpu is None:
        raise TypeError(f"op {name!r} has no path for the CPU; wanted one, with which the path for "
                        "the GPU is compared")
    declaration: Any = backward if hasattr(backward, "derivative") else None
    if declaration is not None:
        tangent = None
    missing = [label for label, rule in (
        ("cpu", cpu), ("gpu", gpu), ("backward", backward), ("tangent", tangent),
        ("samples", samples)) if rule is REQUIRED]
    if missing:
        listed = ", no ".join(missing[:-1]) + " and no " * (len(missing) > 1) + missing[-1]
        raise TypeError(f"op {name!r} has no {listed}; give each of them, or None on purpose")
    if declaration is not None:
        names = _input_names(inputs, arguments_of(cpu))
        if len(declaration.partials) != len(names):
            raise TypeError(f"op {name!r} has the inputs {', '.join(names)}, and its pointwise() "
                            f"was given {len(declaration.partials)} derivatives; wanted one for "
                            "each input, None for no derivative")
        backward, tangent, saves = declaration.derivative(names)
    if batch is REQUIRED:
        batch = None if declaration is None else declaration.batch
    own = sys._getframe(1).f_globals.get("__name__", "").startswith("gtensor.")
    rule: Any = backward
    made = Op(
        name, cpu=cpu, gpu=gpu, asks=asks, inputs=inputs, variadic=variadic, extras=extras,
        view=view, moves=moves, owns=own if owns is None else owns, floating=floating,
        autocast=autocast, backward=rule, tangent=tangent, batch=batch, composed=composed,
        saves=saves, takes=takes, constants=constants, complex=complex, samples=samples,
        reference=reference, flops=flops, doc=doc)
    made.checked = not own
    if not own:
        check_rules(made, declaration)
        if rule is not None and declaration is None and made.save_names and not variadic:
            made.backward = _with_names(rule, made.save_names)
    if declaration is not None:
        declaration.bind(made)
    registry[name] = made
    setattr(recorded, name, made.record)
    setattr(raw["cpu"], name, cpu)
    setattr(raw["cuda"], name, gpu)
    return made


def _with_names(rule: Rule, names: tuple[str, ...]) -> Rule:
    """The rule of a user's op, whose `step.saved` has attributes: `step.saved.out`."""
    kind: Any = type("Saved", (Named,), {
        "names": names, **{name: property(itemgetter(k)) for k, name in enumerate(names)}})

    def backward(ns: Any, step: Any, g: Any) -> None:
        step.saved = kind.of(step.saved)
        rule(ns, step, g)

    return wraps(rule)(backward)
