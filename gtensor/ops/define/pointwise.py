"""Derivatives of elementwise ops, declared once: backward rule and tangent follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gtensor.engine.handle.namespaces import raw
from gtensor.ops.define.batching import broadcasting

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.tape.op import Op
    from gtensor.engine.walk.typing import Backward, Step, Tangent, Values


# What `_Terms` describes; `times` is a Path or None.
Term: TypeAlias = "tuple[int, bool, Any, int | None, tuple[int, ...]]"


class Partial:
    """The derivative with respect to one input, times a gradient (or a tangent: it is diagonal)."""

    def __init__(self, names: str, times: Path | str) -> None:
        self.names = names.split()  # the inputs, "out" and extras that it needs
        self.op = times if isinstance(times, str) else None  # its name, if it is one op
        self.times = _one_op(times) if isinstance(times, str) else times


def _one_op(name: str) -> Path:
    return lambda ns, g, *needed, out, **params: getattr(ns, name)(g, *needed, out=out, **params)


def partial(names: str, times: Path | str) -> Partial:
    """What one input's derivative needs, and its product with g: an op's name, or a function.

    `partial("x2", "multiply")` needs x2 and gives multiply(g, x2), as does
    `partial("x2", lambda ns, g, x2, out: ns.multiply(g, x2, out=out))`.
    """
    return Partial(names, times)


def zero_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> None:
    """The tangent of an op that is constant almost everywhere: none, on purpose.

    `tangent=None` says instead that the op has no tangent rule.
    """
    return None


identity = Partial("", lambda ns, g, out, **params: g)  # the derivative is 1: g itself is given on


class _Terms(dict[int, "list[Term]"]):
    """Bit mask of the inputs that need a gradient -> the terms to compute.

    A term is (input, is it the last, times, the place of its only save or None, all places);
    `times` is None where the gradient itself is given on.
    """

    def __init__(self, terms: list[tuple[int, Partial, tuple[int, ...]]]) -> None:
        self.terms = terms

    def __missing__(self, mask: int) -> list[Term]:
        due = [term for term in self.terms if mask >> term[0] & 1]
        self[mask] = found = [
            (i, n == len(due) - 1, None if p is identity else p.times,
             k[0] if len(k) == 1 else None, k)
            for n, (i, p, k) in enumerate(due)]
        return found


_COMPLEX = """\
    if step.record.dtype is not FLOAT32 and g.dtype.kind == 'c':
        complex_rule(ns, step, g)
        return"""
_OVERWRITTEN = """\
        out = step.reuse(g)
        step.give({i}, {product}, {needed}out=out) if out is None or ns is not host
                  else ufunc{i}(g, {needed}out))"""


_TOGETHER = """\
        if ns is cuda:
            last, first = ns.{together}(g, {needed}out=step.reuse(g){params})
            step.give({i}, first)
            step.give({j}, last)
            return"""


class pointwise:
    """`backward=pointwise(partial(...), partial(...))`: one per input, None for no derivative.

    `together` names a function of CUDA's raw namespace that makes two inputs' gradients at once: of
    g and the inputs it returns the last input's, written to its `out`, and the first one's.
    """

    batch = staticmethod(broadcasting)
    rule: Backward | None = None  # as text
    tangent: Tangent | None = None  # as text

    def __init__(self, *partials: Partial | None, together: str | None = None) -> None:
        self.partials = partials
        self.together = together

    def derivative(self, names: tuple[str, ...]) -> tuple[Backward, Tangent, dict[str, str]]:
        """The backward rule, the tangent rule and the saves, for an op with these input names."""
        saves = {name: " ".join(p.names) for name, p in zip(names, self.partials, strict=True) if p}
        return self._first, self._first_tangent, saves

    def bind(self, op: Op) -> None:
        """Find the place of each partial's values among the op's saves."""
        self.op = op
        self.terms = _Terms([
            (i, p, tuple(op.save_index[n] for n in p.names))
            for i, p in enumerate(self.partials) if p is not None])

    def _first(self, ns: Namespace, step: Step, g: Array) -> None:
        """The rule until its first call, which writes the rule's text."""
        op = step.record.op
        if self.rule is None:
            self.rule = self._written(op)
        if op.backward == self._first:  # else a wrapper of it stands there
            op.backward = self.rule
        self.rule(ns, step, g)

    def _written(self, op: Op) -> Backward:
        """The rule for the op's inputs; with more than two of them the general one."""
        from gtensor.system.written_code import written

        partials = {i: p for i, p in enumerate(self.partials) if p is not None}
        due = list(partials)
        if len(due) > 2:
            return self._backward
        scope = {"FLOAT32": np.dtype(np.float32), "complex_rule": self._backward_complex,
                 "host": raw["cpu"], "cuda": raw["cuda"]}
        lines = ["def rule(ns, step, g):"]
        if self.conjugates and any(p is not identity for p in partials.values()):
            lines.append(_COMPLEX)
        # an input without a derivative may have a node, too
        mask = "step.mask" if len(due) == len(self.partials) else (
            f"step.mask & {sum(1 << i for i in due)}")
        for masked in ([0], [1], [0, 1]):
            inputs = [due[k] for k in masked if k < len(due)]
            if len(inputs) == len(masked):
                lines.append(f"    if {mask} == {sum(1 << i for i in inputs)}:")
                if self.together and len(inputs) == 2:
                    lines.append(self._both(op, *inputs))
                lines += [_line(op, i, partials[i], i == inputs[-1]) for i in inputs]
                lines.append("        return")
        for i, partial in partials.items():
            scope[f"times{i}"], scope[f"ufunc{i}"] = partial.times, _ufunc(partial)
        return written("\n".join(lines), scope, "rule", f"{op.name}_backward")

    def _both(self, op: Op, i: int, j: int) -> str:
        """The text that gives two inputs their gradients in one pass."""
        needed = "".join(f"step.saved[{op.save_index[n]}], " for n in op.input_names)
        params = ", **step.record.params" if op.has_params else ""
        return _TOGETHER.format(together=self.together, needed=needed, params=params, i=i, j=j)

    conjugates = False  # whether complex gradients need conjugation

    def _backward(self, ns: Namespace, step: Step, g: Array) -> None:
        if self.conjugates and g.dtype.kind == "c":
            self._backward_complex(ns, step, g)
            return
        for i, last, times, pick, picks in self.terms[step.mask]:
            if times is None:
                (step.give if last else step.lend)(i, g)
                continue
            out = step.reuse(g) if last else None
            params = step.record.params
            if pick is not None and not params:
                step.give(i, times(ns, g, step.saved[pick], out=out))
            else:
                step.give(i, times(ns, g, *[step.saved[k] for k in picks], out=out, **params))

    def _first_tangent(
        self, ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
    ) -> Array | None:
        """The tangent rule until its first call, which writes the rule's text."""
        if self.tangent is None:
            self.tangent = self._written_tangent(self.op)
        if self.op.tangent == self._first_tangent:
            self.op.tangent = self.tangent
        return self.tangent(ns, primals, tangents, out, params)

    def _written_tangent(self, op: Op) -> Tangent:
        from gtensor.system.written_code import written

        places = {n: f"primals[{i}]" for i, n in enumerate(op.input_names)}
        places["out"] = "out"
        more = ", **params" if op.has_params else ""
        lines = ["def tangent(ns, primals, tangents, out, params):", "    total = None"]
        scope: dict[str, Any] = {}
        for i, partial in enumerate(self.partials):
            if partial is None:
                continue
            needed = "".join(f", {places[n]}" for n in partial.names)
            product = ("t" if partial is identity
                       else f"ns.{partial.op}(t{needed}{more})" if partial.op
                       else f"times{i}(ns, t{needed}, out=None{more})")
            scope[f"times{i}"] = partial.times
            lines += [f"    t = tangents[{i}]", "    if t is not None:", f"        t = {product}",
                      "        total = t if total is None else ns.add(total, t)"]
        lines += ["    if total is not None and total.shape != out.shape:",
                  "        total = ns.broadcast_to(total, shape=out.shape)", "    return total"]
        return written("\n".join(lines), scope, "tangent", f"{op.name}_tangent")

    def _backward_complex(self, ns: Namespace, step: Step, g: Array) -> None:
        """See `analytic`."""
        upstream = ns.conj(g)
        for i, _, times, _, places in self.terms[step.mask]:
            needed = [step.saved[k] for k in places]
            term = times(ns, upstream, *needed, out=None, **step.params)
            step.give(i, ns.conj(term, out=term if term.ndim else None))  # no NumPy scalar


def _line(op: Op, i: int, partial: Partial, last: bool) -> str:
    """The text that gives input i its gradient."""
    if partial is identity:
        return f"        step.{'give' if last else 'lend'}({i}, g)"
    out = "step.reuse(g)" if last else "None"
    needed = "".join(f"step.saved[{op.save_index[n]}], " for n in partial.names)
    params = ", **step.record.params" if op.has_params else ""
    product = f"ns.{partial.op}(g" if partial.op else f"times{i}(ns, g"
    if last and not params and _ufunc(partial) is not None:  # a call less where it can be written
        return _OVERWRITTEN.format(i=i, product=product, needed=needed)
    return f"        step.give({i}, {product}, {needed}out={out}{params}))"


def _ufunc(partial: Partial) -> np.ufunc | None:
    """NumPy's function of two inputs that is the path of the partial's op on the CPU."""
    plain = getattr(getattr(raw["cpu"], partial.op or "", None), "plain", None)
    return plain if isinstance(plain, np.ufunc) and plain.nin == 2 else None


class analytic(pointwise):
    """`pointwise` for functions that are analytic in each input; the partials are f' times g.

    The gradient of a real loss is dL/dRe + i dL/dIm. Back through an analytic f it is
    conj(f'(x)) g = conj(f'(x) conj(g)), so complex gradients are conjugated before and after the
    partials, and the tangent rule uses the same partials.
    """

    conjugates = True
