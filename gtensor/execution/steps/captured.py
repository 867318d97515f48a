"""`capture`: a step that is recorded twice, compared, and from then on replayed."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, overload

from gtensor.engine.handle.context import STATE, casting, current_casts
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.levels import Traced
from gtensor.execution.steps.comparing import difference
from gtensor.execution.steps.numbers import FRAMES, Number, code_of, follow, numbers_of
from gtensor.execution.steps.outside import Outside
from gtensor.execution.steps.program import Moved, NoGraph, Program
from gtensor.execution.steps.recorder import CaptureError, Recorder
from gtensor.execution.steps.results import Results
from gtensor.execution.steps.signature import (
    changed,
    described,
    for_any,
    for_some,
    is_gone,
    same_call,
    signature,
)
from gtensor.func.trees import leaves
from gtensor.system import structure
from gtensor.system.bus import Registered, bus, here
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.interrupts import Undone

P = ParamSpec("P")
R = TypeVar("R")
# of a module, that a step has set; modes are set and set back
_ATTRIBUTE = re.compile(r"(?!settings\.)\w+\.(?!training )\w+ was set")
_FEW = 3  # recordings of a signature, two of which in a row must be equal
_AGAIN = 8  # changes in a row that have a call recorded anew, of which a warning tells
_MANY = 16  # signatures, of which a warning tells
_WAITING = 256  # signatures without a program that are kept


class Captured(Generic[P, R]):
    """A function of tensors whose calls are replayed; made by `capture`, which has the rules."""

    def __init__(
        self, function: Callable[P, R], fuse: bool | str, check: int, shared: bool
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._fuse, self._check, self._shared = fuse, check, shared
        self._lock = threading.RLock()
        free_at_forks(self._lock)
        self._signatures: dict[Hashable, _Signature] = {}
        self._reader: Callable[..., Any] = function
        self._outside = Outside(function)
        self._found = self._outside.state()
        self._code = code_of(function)
        self._eager = False
        self._anew = 0  # calls since the last replay that were recorded although there is a program
        self._renewed: Any = None  # signature and state of the last of them
        self._live: dict[Hashable, frozenset[str]] = {}  # floats, by signatures for any of them
        self._last: _Last | None = None  # the signature of the last call
        self._graphs: Any = None  # what the graphs of CUDA devices share

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        """A method: the instance is its first argument, and so a part of the signature."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{_name(self.function)} is captured, and its programs know this process's "
                        "tensors; copy or pickle the function itself (.function), and capture it "
                        "anew")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if here.recorder is not None or STATE.levels or STATE.differentiated or self._eager:
            return self.function(*args, **kwargs)  # a part of another step, or of a transform
        if self._code is not code_of(self.function):
            self._reload()
        last = self._last
        with self._lock:
            if last is not None and not kwargs and last.same(args):
                tensors: Any = args
                floats = last.floats
                if floats is not None:
                    tensors, floats = [x for x in args if type(x) is Tensor], floats.of(args)
                return self._call(last.known, tensors, floats, args, kwargs)
        found = [*leaves(args), *leaves(kwargs)]
        tensors = [x for _, x in found if isinstance(x, Tensor)]
        if any(isinstance(x, Traced) for x in tensors):
            return self.function(*args, **kwargs)
        key = signature(_name(self.function), (args, kwargs), found, self._outside.attributes)
        numbers = numbers_of(self.function, args, kwargs)
        with self._lock:
            floats, live = None, frozenset[str]()
            if numbers:
                floats = _Floats(for_any(key, numbers), numbers)
                live = self._live.get(floats.key, frozenset(numbers))
                key = floats.signature(live)
            known = self._signature(key)
            same = None if kwargs else same_call(args, live)
            self._last = None if same is None else _Last(same, known, floats)
            return self._call(known, tensors, floats, args, kwargs)

    def _signature(self, key: Hashable) -> _Signature:
        """What is known of a signature."""
        known = self._signatures.get(key)
        if known is None:
            self._signatures = {k: v for k, v in self._signatures.items() if not is_gone(k)}
            self._live = {k: v for k, v in self._live.items() if not is_gone(k)}
            waiting = [k for k, v in self._signatures.items() if not v.programs]
            for k in waiting[:max(0, len(waiting) + 1 - _WAITING)]:
                del self._signatures[k]
            known = self._signatures[key] = _Signature()
            self._warn_of_many()
        return known

    def _call(
        self, known: _Signature, tensors: Sequence[Tensor], floats: _Floats | None, args: Any,
        kwargs: Any,
    ) -> Any:
        """Replay the program of a signature; run and record the function where there is none."""
        state = self._state()
        program = known.programs[0] if known.programs else None
        if program is not None and (program.state != state or not program.fits(tensors)):
            program = known.program(state, tensors)
        if program is None:
            self._warn_of_changes(known, state)
            return self._record(known, None, tensors, floats, args, kwargs)
        known.replays += 1
        self._anew = 0
        if self._check and not known.replays % self._check:
            return self._record(known, program, tensors, floats, args, kwargs)
        given = tensors if floats is None else program.given(tensors, floats.numbers)
        try:
            return program.replay(given)
        except NoGraph as error:
            warnings.warn(f"{_name(self.function)} cannot be one graph: {error}; its replays "
                          "launch each kernel by itself", stacklevel=3)
            plain = Program(program.recording, program.results, program.state, self._fuse)
            known.programs[known.programs.index(program)] = plain
            return plain.replay(given)
        except Moved:
            known.programs.remove(program)
            return self._record(known, None, tensors, floats, args, kwargs)

    def _state(self) -> tuple[int, Any]:
        """What programs take for granted: the structure, and what the function reads outside."""
        outside = self._outside
        return structure.epoch, outside.state() if outside.reads else self._found

    def _record(
        self, known: _Signature, program: Program | None, tensors: Sequence[Tensor],
        floats: _Floats | None, args: Any, kwargs: Any,
    ) -> Any:
        """Run the function as always, record it, and compare it with a program, or with others."""
        recorder, casts = Recorder(tensors), current_casts()
        before = self._state()
        listener = Registered(recorder)
        with Undone(functools.partial(_stop, listener, recorder)):
            bus.add(listener)
            here.recorder, recorder.caller = recorder, id(sys._getframe())
            with casting(None if casts is None else casts.apart()):  # which keeps casts of leaves
                result = self.function(*args, **kwargs)
            recorder.end()
        results = Results(recorder, result)
        results.detach(result)
        if known.recordings:  # the first call may make what later ones find, such as a loss scale
            recorder.refuse_kept(results.numbers())
            self._refuse_changes(recorder, before)
        recorder.release()
        reason = recorder.reason()
        structure.settle()
        if self._outside.state() is not self._found:  # what it reads may depend on what it finds
            self._outside = Outside(self._reader)
            self._found = self._outside.state()
        if reason is None and floats is not None:
            known = self._follow(known, recorder, floats)
        if reason is None and program is not None:
            reason = difference(program.recording, recorder, (program.results, results))
        elif reason is None:
            reason = known.add(recorder, results, self._state(), self._made)
        if reason is not None:
            known.recordings.clear()
            error = CaptureError(f"{_name(self.function)} cannot be captured: {reason}")
            error.result = result
            raise error
        return result

    def _follow(self, known: _Signature, recorder: Recorder, floats: _Floats) -> _Signature:
        """Note which floats are live; the signature of the call, which may be another now."""
        before = self._live.get(floats.key, frozenset(floats.numbers))
        live = frozenset() if FRAMES & {*self._outside.attributes} else follow(
            recorder, self.function, floats.numbers, before)
        self._live[floats.key] = live
        if live == before:
            return known
        self._signatures = {k: v for k, v in self._signatures.items() if v is not known}
        self._last = None
        return self._signature(floats.signature(live))

    def _made(self, recorder: Recorder, results: Results, state: tuple[int, Any]) -> Program:
        """The program of a recording; on a CUDA device it is a graph, if it can be one."""
        if any(device.type != "cpu" for device in recorder.devices):
            from gtensor.execution.steps.graphed import Graphed, Graphs, graphable

            device = graphable(recorder)
            if device is not None:
                self._graphs = self._graphs or Graphs()
                return Graphed(recorder, results, state, self._fuse, device, self._graphs,
                               self._shared)
        return Program(recorder, results, state, self._fuse)

    def _warn_of_many(self) -> None:
        if len(self._signatures) == _MANY:
            *_, before, last = self._signatures
            warnings.warn(
                f"{_name(self.function)} was called with {_MANY} signatures, each of which is "
                f"recorded; the last one differs from the one before in {changed(before, last)}: "
                "give numbers that change as tensors, and batches one shape", stacklevel=3)

    def _refuse_changes(self, recorder: Recorder, before: tuple[int, Any]) -> None:
        """Refuse a step that changes what it reads, such as a counter: replays change nothing."""
        changed = [what for what in structure.since(before[0]) if _ATTRIBUTE.fullmatch(what)]
        outside = self._state()[1]
        if outside is not before[1]:
            changed.append(self._outside.changed(before[1], outside))
        if changed:
            recorder.refusals.append(
                f"it changes what it may read: {'; '.join(changed)}; a replay changes nothing of "
                "Python's: keep it out of the step, or in a tensor that is written in place")

    def _warn_of_changes(self, known: _Signature, state: tuple[int, Any]) -> None:
        """Tell what makes a step with a program be recorded again and again."""
        if not known.programs:
            return
        before, self._renewed = self._renewed, (known, state)
        if before is not None and before[0] is not known and before[1] == state:
            return  # one change has each signature recorded anew
        self._anew += 1
        if self._anew == _AGAIN:
            told = structure.since(known.programs[0].state[0]) or [
                self._outside.changed(self._found, state[1])
                or "an argument is the memory of what an optimizer writes"]
            warnings.warn(f"{_name(self.function)} was recorded anew in {_AGAIN} calls, as what it "
                          f"reads has changed before each: {'; '.join(told[-3:])}; pass it as an "
                          "argument, or change it less often", stacklevel=4)

    # -- what is known ----------------------------------------------------------------------------

    @property
    def programs(self) -> list[Program]:
        """The programs, in the order in which their signatures were first called."""
        return [program for known in self._signatures.values() for program in known.programs]

    def text(self) -> str:
        """The programs as Python text: what replays run."""
        return "\n".join(program.text for program in self.programs)

    def report(self) -> str:
        """A line per program: calls, replays, and what it takes."""
        lines = [f"{_name(self.function)}: {len(self._signatures)} signatures"]
        for key, known in self._signatures.items():
            lines.append(f"  {described(key)}: {known.replays} replays")
            lines += [f"    {program.report()}" for program in known.programs]
            if known.recordings:
                lines.append(f"    recorded {len(known.recordings)} of 2 times")
        return "\n".join(lines)

    def watch(self, *called: Callable[..., Any]) -> None:
        """Compare at each call what these functions read, too.

        For functions that the step calls although its own code does not name them, as a trainer
        calls its loss.
        """
        with self._lock:
            self._reader = functools.partial(self._reader, *called)
            self._outside = Outside(self._reader)
            self._found = self._outside.state()

    def _reload(self) -> None:
        """The function has other code, as of a module that a notebook has reloaded."""
        with self._lock:
            self.clear()
            self._outside = Outside(self._reader)
            self._found = self._outside.state()
            self._code = code_of(self.function)

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._signatures.clear()
            self._live.clear()
            self._last = None

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Within the block calls run the function itself, in all threads."""
        before, self._eager = self._eager, True
        try:
            yield
        finally:
            self._eager = before


class _Signature:
    """What is known of one signature: programs, and recordings that wait for an equal one."""

    def __init__(self) -> None:
        self.programs: list[Program] = []  # the last used first
        self.recordings: list[tuple[Recorder, Results]] = []
        self.replays = 0

    def program(
        self, state: tuple[int, Any], arguments: Sequence[Tensor]
    ) -> Program | None:
        """The program for a state and these arguments, which is the first one from then on."""
        for program in self.programs:
            if program.state == state and program.fits(arguments):
                self.programs.remove(program)
                self.programs.insert(0, program)
                return program
        return None

    def add(
        self, recorder: Recorder, results: Results, state: tuple[int, Any],
        make: Callable[..., Program],
    ) -> str | None:
        """Keep a recording, or make a program if it equals an earlier one; else what differs."""
        for program in self.programs:
            if difference(program.recording, recorder, (program.results, results)) is None:
                program.serve(state)
                program.pin(recorder)
                return None
        reason = None
        if self.recordings:
            earlier, its_results = self.recordings[-1]
            reason = difference(earlier, recorder, (its_results, results))
            if reason is None:
                program = make(recorder, results, state)
                program.pin(earlier)
                self.programs.insert(0, program)
                self.recordings.clear()
                return None
        self.recordings.append((recorder, results))
        return reason if len(self.recordings) == _FEW else None


class _Floats(NamedTuple):
    """Floats among the arguments of a call, and its signature for any of them."""

    key: Hashable
    numbers: dict[str, Number]

    def signature(self, live: Collection[str]) -> Hashable:
        """The signature for any of the live ones."""
        return for_some(self.key, {path: number.value for path, number in self.numbers.items()
                                   if path not in live})

    def of(self, args: tuple[Any, ...]) -> _Floats:
        """Those of another call of the same signature."""
        return _Floats(self.key, {path: Number(n.name, n.place, args[n.place])
                                  for path, n in self.numbers.items()})


class _Last(NamedTuple):
    """Whether a call has the signature of an earlier one, and what is known of that."""

    same: Callable[[tuple[Any, ...]], bool]
    known: _Signature
    floats: _Floats | None


def _stop(listener: Registered, recorder: Recorder) -> None:
    bus.remove(listener)
    here.recorder = None
    recorder.stop()


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


@overload
def capture(
    function: Callable[P, R], fuse: bool | str = True, check: int = 0, outputs: str = "new"
) -> Captured[P, R]: ...


@overload
def capture(
    function: None = None, fuse: bool | str = True, check: int = 0, outputs: str = "new"
) -> Callable[[Callable[P, R]], Captured[P, R]]: ...


def capture(
    function: Any = None, fuse: bool | str = True, check: int = 0, outputs: str = "new"
) -> Any:
    """A step that runs twice as it is, is recorded and compared meanwhile, and then is replayed.

        @gt.capture
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

    A replay runs the paths and backward rules that the step ran, on new arguments, without the
    Python around them: results, gradients, parameters and random numbers are those of the step
    itself, bit for bit. It is made for the shapes, dtypes, devices and values of the arguments; for
    others the step is recorded anew. Options of optimizers, schedules, loss scales, averages and
    seeds are live. Gradients belong inside: a result has no history.

    What a replay could not repeat is refused by CaptureError, after the call has run as always
    (`error.result` is what it returned): values read in Python, NumPy data made inside, Python
    state that changes from call to call, tensors of an earlier call.

    Args:
        function: of tensors, also in lists, tuples, dicts and dataclasses; other arguments are part
            of the signature, but for floats that the function only adds to tensors, subtracts,
            multiplies or divides: their values are live. Without one, `capture` returns a
            decorator.
        fuse: whether elementwise ops are composed; "relaxed" also folds constants, which changes
            the last bits.
        check: every so many calls the step runs as it is and is compared with its program; 0 is
            never.
        outputs: "new": results are new tensors. "shared": on CUDA they are the graph's own, which
            the next replay writes over; nothing is allocated or copied for them.

    `step.programs`, `step.text()` and `step.report()` tell what is known, `step.clear()` forgets
    it, and within `with step.eager():` calls run the function itself. Calls of several threads take
    turns.

    Source: the recording at the level of calls is that of CUDA graphs and of `torch.cuda.graphs`;
    comparing two recordings is our own.

    Raises TypeError for a `function` that cannot be called or is a coroutine, ValueError for
    another `fuse` or `outputs` and for a negative `check`.
    """
    if function is None:
        return functools.partial(capture, fuse=fuse, check=check, outputs=outputs)
    if not callable(function):
        raise TypeError(f"capture was given {type(function).__name__}; wanted a function")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise TypeError(f"capture was given {_name(function)}, whose calls end before it has run, "
                        "as a coroutine's or a generator's; wanted a function that returns tensors")
    if fuse not in (True, False, "relaxed"):
        raise ValueError(f"capture was given fuse={fuse!r}; wanted True, False or 'relaxed'")
    if not isinstance(check, int) or check < 0:
        raise ValueError(f"capture was given check={check!r}; wanted a whole number of 0 or more")
    if outputs not in ("new", "shared"):
        raise ValueError(f"capture was given outputs={outputs!r}; wanted 'new' or 'shared'")
    return Captured(function, fuse, check, outputs == "shared")
