"""Derivatives of one's own: `custom_vjp`, `custom_jvp` and `autograd.Function`.

Each function here has a derivative that is right, so it is compared with the same function made of
ops, through every transform; then what only these have: PyTorch's text, memory, and bad rules.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.func.trees import leaves
from gtensor.nn.utils import checkpoint
from gtensor.testing import check_derivatives

Function = gt.autograd.Function
Pair = Callable[..., Any]


# -- functions with rules, and the same of ops -----------------------------------------------------


def _swing(x: Any, y: Any) -> Any:
    return gt.sin(x) * y


swing = gt.custom_vjp(_swing)
swing.defvjp(  # JAX's example: residuals that are neither arguments nor results
    lambda x, y: (swing(x, y), (gt.cos(x), gt.sin(x), y)),
    lambda kept, g: (kept[0] * g * kept[2], kept[1] * g))
pushed = gt.custom_jvp(_swing)


@pushed.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return pushed(x, y), gt.cos(x) * dx * y + gt.sin(x) * dy


each = gt.custom_jvp(_swing)
each.defjvps(lambda t, out, x, y: gt.cos(x) * t * y, lambda t, out, x, y: gt.sin(x) * t)


class Swing(Function):
    """Saves inputs."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return gt.sin(x) * y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return gt.cos(x) * g * y, gt.sin(x) * g


class Pushed(Swing):
    """With a tangent rule, and its context set apart."""

    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return gt.sin(x) * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def jvp(ctx: Any, dx: Any, dy: Any) -> Any:
        x, y, _ = ctx.saved_tensors
        return gt.cos(x) * dx * y + gt.sin(x) * dy


class Both(Function):
    """Several outputs, one of them saved."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        grown = gt.exp(x)
        ctx.save_for_backward(x, y, grown)
        return x * y, grown, gt.argmax(x), 3

    @staticmethod
    def backward(ctx: Any, product: Any, grown: Any, *_: Any) -> Any:
        x, y, e = ctx.saved_tensors
        return product * y + grown * e, product * x


def of_tree(p: Any, scale: Any, word: str) -> Any:
    return {"a": p["w"] * p["b"][0] * scale, "b": [gt.exp(p["w"]), word]}


tree = partial(gt.custom_vjp, nondiff_argnames="word")(of_tree)


def _tree_forward(p: Any, scale: Any, word: str) -> Any:
    out = tree(p, scale, word)
    return out, (p, scale, out["b"][0], word)


def _tree_backward(word: str, kept: Any, g: Any) -> Any:
    p, scale, e, same = kept
    assert word == same and g["b"][1] is None
    w, b = p["w"], p["b"][0]
    return {"w": g["a"] * b * scale + g["b"][0] * e, "b": [g["a"] * w * scale]}, None


tree.defvjp(_tree_forward, _tree_backward)
OWN: dict[str, tuple[Pair, Pair]] = {
    "custom_vjp": (swing, _swing), "custom_jvp": (pushed, _swing), "defjvps": (each, _swing),
    "Function": (Swing.apply, _swing), "Function with jvp": (Pushed.apply, _swing),
    "several outputs": (lambda x, y: gt.multiply(*Both.apply(x, y)[:2]),
                        lambda x, y: x * y * gt.exp(x)),
    "one of several": (lambda x, y: Both.apply(x, y)[1] * y, lambda x, y: gt.exp(x) * y),
    "a tree": (
        lambda x, y: gt.multiply(*[y for _, y in leaves(tree({"w": x, "b": [y]}, 2.0, "w"))][:2]),
        lambda x, y: 2 * x * y * gt.exp(x)),
    "one in another": (lambda x, y: Both.apply(swing(x, y), pushed(y, x))[0],
                       lambda x, y: _swing(x, y) * _swing(y, x)),
}


def total(f: Pair) -> Pair:
    return lambda x, y: f(x, y).sum()


def around(f: Pair) -> Pair:
    """A function of x alone, whose graph goes on behind f and before it."""
    return lambda x, y: gt.sin(f(gt.exp(x), y)).sum()


TRANSFORMS: dict[str, Callable[[Pair, Any, Any], Any]] = {
    "value": lambda f, x, y: f(x[0], y),
    "grad": lambda f, x, y: gt.grad(around(f), argnums=(0, 1))(x[0], y),
    "hessian": lambda f, x, y: gt.hessian(total(f), argnums=(0, 1))(x[0], y),
    "third": lambda f, x, y: gt.hessian(gt.grad(total(f)))(x[0], y),
    "jvp": lambda f, x, y: gt.jvp(f, (x[0], y), (x[1], x[2])),
    "jvp of jvp": lambda f, x, y: gt.jvp(
        lambda u: gt.jvp(f, (u, y), (x[1], y))[1], (x[0],), (x[2],)),
    "hvp": lambda f, x, y: gt.hvp(total(f), (x[0], y), (x[1], x[2])),
    "jacobians": lambda f, x, y: (gt.jacfwd(f)(x[0], y), gt.jacrev(f, argnums=(0, 1))(x[0], y)),
    "linearize": lambda f, x, y: gt.linearize(f, x[0], y)[1](x[1], x[2]),
    "vmap": lambda f, x, y: gt.vmap(f, (0, None))(x, y),
    "vmap of vmap": lambda f, x, y: gt.vmap(gt.vmap(f), (None, 0))(x, gt.stack([x, x])),
    "vmap of grad": lambda f, x, y: gt.vmap(gt.grad(around(f), argnums=(0, 1)), (0, None))(x, y),
    "vmap of hessian": lambda f, x, y: gt.vmap(gt.hessian(total(f)), (0, None))(x, y),
    "vmap of jvp": lambda f, x, y: gt.vmap(
        lambda u, v: gt.jvp(f, (u, y), (v, v)))(x, x),
    "grad of vmap": lambda f, x, y: gt.grad(
        lambda x, y: gt.vmap(total(f), (0, None))(x, y).sum(), argnums=(0, 1))(x, y),
    "hessian of vmap": lambda f, x, y: gt.hessian(
        lambda y: gt.vmap(total(f), (0, None))(x, y).sum())(y),
    "jvp of vmap": lambda f, x, y: gt.jvp(gt.vmap(f, (0, None)), (x, y), (x, y)),
    "per example": lambda f, x, y: gt.per_example_grad(lambda p, row: total(f)(row, p), y, x),
    "checkpoint": lambda f, x, y: gt.grad(
        lambda x, y: checkpoint(around(f), x, y), argnums=(0, 1))(x[0], y),
    "hessian of checkpoint": lambda f, x, y: gt.hessian(
        lambda x: checkpoint(around(f), x, y))(x[0]),
}


def same(found: Any, wanted: Any, atol: float = 1e-12) -> None:
    found, wanted = leaves(found), leaves(wanted)
    assert len(found) == len(wanted)
    for (path, a), (_, b) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=atol, rtol=1e-10, err_msg=path)


def drawn(device: str = "cpu") -> tuple[gt.Tensor, gt.Tensor]:
    rng = np.random.default_rng(0)
    return (gt.tensor(rng.normal(size=(4, 3)), device=device),
            gt.tensor(rng.normal(size=3), device=device))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_function_with_its_own_rule_is_that_of_ops(transform: str) -> None:
    run = TRANSFORMS[transform]
    for own, composed in OWN.values():
        same(run(own, *drawn()), run(composed, *drawn()))


@pytest.mark.parametrize("own", OWN)
def test_the_modes_agree_with_differences(own: str) -> None:
    x, y = drawn()
    check_derivatives(OWN[own][0], x[0], y)


@pytest.mark.gpu
def test_on_the_device_and_in_a_captured_graph_they_are_those_of_ops() -> None:
    """A function that computes on the host in between has gradients there, too."""
    def leaf(x: gt.Tensor) -> gt.Tensor:
        return x.detach().requires_grad_()

    for own, composed in OWN.values():
        x, y = drawn("cuda")
        wanted = gt.grad(around(composed), argnums=(0, 1))(x[0], y)
        same(gt.grad(around(own), argnums=(0, 1))(x[0], y), wanted)
        a, b = leaf(x[0].clone()), leaf(y)
        graph = gt.Graph("cuda")
        with graph.capture():
            around(own)(a, b).backward()
        for _ in range(2):
            graph.replay()
        same((a.grad, b.grad), wanted)

    class Host(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x.to("cpu"))
            return gt.asarray(np.sin(x.numpy())).to(x.device)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            assert x.device.type == "cpu"
            return g * gt.cos(x).to(g.device)

    x = leaf(drawn("cuda")[0])
    Host.apply(x).sum().backward()
    same(x.grad, gt.cos(x.detach()))

    @gt.custom_vjp
    def scaled(x: Any, y: Any) -> Any:  # of two devices; forward keeps what it computed
        return x * gt.exp(y).to(x.device)

    scaled.defvjp(
        lambda x, y: (scaled(x, y), (gt.exp(y), x)),
        lambda kept, g: (g * kept[0].to(g.device), (g * kept[1]).to("cpu") * kept[0]))
    x, y = drawn("cuda")[0][0], drawn()[1]
    slope = gt.grad(lambda y: (gt.grad(lambda x: (scaled(x, y) * x).sum())(x)).sum())(y)
    same(slope, 2 * x.to("cpu") * gt.exp(y))


# -- rules that are no derivatives -----------------------------------------------------------------


def test_a_rule_decides_not_what_forward_computes() -> None:
    """Gradient reversal, whose forward returns its input, and a straight-through estimator."""
    class Reversed(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            ctx.factor = factor
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return -ctx.factor * g, None

    @gt.custom_jvp
    def rounded(x: Any) -> Any:
        return gt.round(x)

    rounded.defjvp(lambda primals, tangents: (rounded(*primals), tangents[0]))
    x, _ = drawn()
    x = x.requires_grad_()
    y = Reversed.apply(x, 3.0)
    assert y is not x and y.requires_grad and not y.is_leaf
    (y * rounded(x)).sum().backward()
    same(x.grad, -3 * gt.round(x.detach()) + x.detach())
    same(gt.jvp(lambda x: Reversed.apply(x, 3.0), (x.detach(),), (gt.ones_like(x),))[1],
         gt.full_like(x, -3.0))
    same(gt.vmap(gt.grad(lambda row: rounded(row).sum()))(x.detach()), gt.ones_like(x))


def test_what_is_not_differentiated_is_only_computed() -> None:
    """Without gradients the function runs; with them its rule does."""
    runs: list[str] = []

    def plain(x: Any) -> Any:
        runs.append("function")
        return x * 2

    f = gt.custom_vjp(plain)
    f.defvjp(lambda x: (runs.append("forward"), (x * 2, None))[1], lambda kept, g: (g * 2,))
    x, _ = drawn()
    f(x)
    with gt.no_grad():
        f(x.clone().requires_grad_())
    gt.vmap(f)(x)
    assert runs == ["function"] * 3
    gt.grad(lambda x: f(x).sum())(x)
    assert runs == ["function"] * 3 + ["forward"]


def test_a_gradient_within_a_rule_is_that_of_the_level() -> None:
    """The walk of a transform's tape switches recording off; a rule that differentiates needs it.

    Within a rule or a hook `vjp` gave zeros, and `grad` raised.
    """
    def inner(z: Any) -> Any:
        return (z * z * z).sum()

    cubed = gt.custom_vjp(inner)
    cubed.defvjp(lambda z: (inner(z), z), lambda z, g: (g * gt.grad(inner)(z),))
    x, _ = drawn()
    same(gt.vmap(gt.grad(cubed))(x), 3 * x * x)

    def row(z: Any) -> Any:
        y = z * 1
        y.register_hook(lambda g: g * gt.vjp(inner, z.detach())[1](gt.ones_like(g.sum()))[0])
        return y.sum()

    same(gt.vmap(gt.grad(row))(x), 3 * x * x)


# -- PyTorch's text --------------------------------------------------------------------------------


def _torch_functions(lib: Any) -> dict[str, Any]:
    """Functions as programs for PyTorch write them; `lib` is torch or gtensor."""
    class Linear(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any = None) -> Any:
            ctx.save_for_backward(x, weight, bias)
            out = lib.matmul(x, weight.T)
            return out if bias is None else out + bias

        @staticmethod
        def backward(ctx: Any, grad_output: Any) -> Any:
            x, weight, bias = ctx.saved_tensors
            grad_x = grad_weight = grad_bias = None
            if ctx.needs_input_grad[0]:
                grad_x = lib.matmul(grad_output, weight)
            if ctx.needs_input_grad[1]:
                grad_weight = lib.matmul(grad_output.T, x)
            if bias is not None and ctx.needs_input_grad[2]:
                grad_bias = grad_output.sum(0)
            return grad_x, grad_weight, grad_bias

    class Sorted(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float) -> Any:
            order = lib.argsort(x)
            values = lib.sort(x) if lib is gt else lib.sort(x)[0]
            doubled = values * 2
            ctx.mark_non_differentiable(order, doubled)
            ctx.save_for_backward(order)
            ctx.scale = scale
            return values * scale, order, doubled

        @staticmethod
        def backward(ctx: Any, g: Any, g_order: Any, g_doubled: Any) -> Any:
            assert g_doubled.shape == g.shape and not g_doubled.any()
            order, = ctx.saved_tensors
            return ctx.scale * g[lib.argsort(order)], None

    class Halves(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, two: Any, three: Any) -> Any:
            assert two is None
            return three * 3

    return {"Linear": Linear, "Sorted": Sorted, "Halves": Halves}


def _torch_results(lib: Any, x: Any, w: Any, b: Any) -> list[Any]:
    own = _torch_functions(lib)
    y = own["Linear"].apply(x, w, b)
    found = [y, *lib.autograd.grad((y * y * y).sum(), [x, w, b], create_graph=True)]
    found += lib.autograd.grad((found[1] * found[1]).sum() + (found[2] * found[2]).sum(), [x, w])
    found += lib.autograd.grad(own["Linear"].apply(x, w.detach()).sum(), [x])
    values, order, doubled = own["Sorted"].apply(b, 2.5)
    assert not order.requires_grad and not doubled.requires_grad
    found += lib.autograd.grad((values * values).sum(), [b])
    found += lib.autograd.grad(own["Halves"].apply(b)[1].sum(), [b])
    return [t.detach().numpy() for t in found]


def test_programs_for_pytorch_give_its_values() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape) for shape in ((4, 3), (2, 3), (2,))]
    found = _torch_results(gt, *[gt.tensor(a).requires_grad_() for a in arrays])
    wanted = _torch_results(torch, *[torch.tensor(a, requires_grad=True) for a in arrays])
    assert len(found) == len(wanted) == 9
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


# -- memory ----------------------------------------------------------------------------------------


class Keeps(Function):
    """Saves a tensor that it computes, and has its output as an attribute, too."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y, inner = gt.exp(x), gt.cos(x)
        ctx.y, ctx.name = y, "y"
        ctx.save_for_backward(y, inner)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        y, inner = ctx.saved_tensors
        return g * y + 0 * inner


@pytest.mark.parametrize("own", [*OWN, "Keeps"])
def test_dropping_the_outputs_frees_the_graph_without_the_collector(own: str) -> None:
    f = OWN[own][0] if own in OWN else lambda x, y: Keeps.apply(x)
    x, y = drawn()
    x = x[0].clone().requires_grad_()
    gc.disable()
    try:
        out = f(x, y)
        node = weakref.ref(out._node)
        del out
        assert node() is None
        f(x, y).sum().backward(create_graph=True)
        grad = weakref.ref(x.grad._node)  # type: ignore[union-attr]
        x.grad = None
        assert grad() is None
    finally:
        gc.enable()


def test_saved_tensors_are_freed_as_the_walk_passes_and_stay_with_retain_graph() -> None:
    alive: list[weakref.ref[Any]] = []

    class Noted(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            kept = gt.cos(x)
            alive.append(weakref.ref(kept.detach()._array))
            ctx.save_for_backward(kept)
            return gt.sin(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0]

    x = gt.ones(5).requires_grad_()
    y = Noted.apply(x).sum()
    y.backward(retain_graph=True)
    assert alive[0]() is not None
    y.backward()
    assert alive[0]() is None, "the output still lives"
    same(x.grad, 2 * gt.cos(x.detach()))
    with pytest.raises(gt.GradientError, match="consumed by an earlier backward"):
        y.backward()


def test_a_record_keeps_what_forward_kept_and_no_more() -> None:
    """The arguments only where a second derivative runs forward again."""
    f = gt.custom_vjp(lambda x, n: gt.exp(x) * n)

    class Own(Function):
        forward = staticmethod(lambda ctx, x, n: (ctx.save_for_backward(gt.exp(x)), gt.exp(x))[1])
        backward = staticmethod(lambda ctx, g: (g * ctx.saved_tensors[0], None))

    def keeps_argument(own: Pair, kept: Callable[[Any], Any], once: bool = False) -> bool:
        def backward(kept: Any, g: Any) -> Any:
            return g * 1, None

        f.defvjp(lambda x, n: (gt.exp(x) * n, kept(x)),
                 gt.autograd.once_differentiable(backward) if once else backward)
        h = gt.ones(5).requires_grad_() * 1
        array = weakref.ref(h._array)
        out = own(h, 2.0)
        del h
        assert out.requires_grad
        return array() is not None

    assert not keeps_argument(f, lambda x: None)
    assert not keeps_argument(f, lambda x: x > 0)
    assert not keeps_argument(f, gt.cos, once=True)
    assert not keeps_argument(Own.apply, gt.cos)
    assert keeps_argument(f, gt.cos) and keeps_argument(f, lambda x: x)


def test_an_overwritten_save_is_refused_and_names_the_function() -> None:
    x = gt.ones(3).requires_grad_()
    for write in (lambda h: h.detach().add_(1.0), lambda h: h.detach().__setitem__(0, 5.0)):
        h = x * 1
        out = Swing.apply(h, gt.ones(3)).sum()
        write(h)
        with pytest.raises(gt.GradientError, match=r"Swing \(.* was overwritten in place since"):
            out.backward()
    out = Keeps.apply(x)
    whole = out.sum()
    out.detach().add_(1.0)
    with pytest.raises(gt.GradientError, match=r"Keeps \(.* was overwritten in place since"):
        whole.backward()


def test_gradients_that_a_rule_shares_are_not_written_by_the_walk() -> None:
    """The rule returns one tensor twice, g itself, a saved tensor, and one that it keeps."""
    kept: list[gt.Tensor] = []

    class Shares(Function):
        @staticmethod
        def forward(ctx: Any, *xs: Any) -> Any:
            ctx.save_for_backward(xs[0])
            return xs[0] * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            twice = g * 2
            kept.append(g * 3)
            return twice, twice, g, ctx.saved_tensors[0], kept[0]

    xs = [gt.full((4,), float(i + 1)).requires_grad_() for i in range(5)]
    ys = [x * 1 for x in xs]
    (Shares.apply(*ys) + sum(ys[1:], ys[0])).sum().backward()  # each slot gets a second gradient
    for x, wanted in zip(xs, (3.0, 3.0, 2.0, 2.0, 4.0), strict=True):
        same(x.grad, gt.full((4,), wanted))
    same(kept[0], gt.full((4,), 3.0))
    same(xs[0], gt.ones(4))


def test_under_autocast_gradients_have_the_dtypes_of_the_inputs() -> None:
    class Linear(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, w = ctx.saved_tensors
            return g @ w.T.astype(g.dtype), x.T.astype(g.dtype) @ g  # in bfloat16

    x, w = gt.ones((2, 4)).requires_grad_(), gt.ones((4, 3)).requires_grad_()
    with gt.autocast("cpu", gt.bfloat16):
        out = Linear.apply(x, w)
    assert out.dtype == gt.bfloat16
    out.sum().backward()
    assert x.grad is not None and w.grad is not None
    assert x.grad.dtype == w.grad.dtype == gt.float32
    same(x.grad, gt.full((2, 4), 3.0))


# -- bad rules -------------------------------------------------------------------------------------


def _ruled(rule: Callable[..., Any], forward: Callable[..., Any] | None = None) -> Pair:
    @gt.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return x * y

    f.defvjp(forward or (lambda x, y: (x * y, None)), lambda kept, g: rule(g))
    return f


def _method(rule: Callable[..., Any]) -> Pair:
    class Own(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x * y

        backward = staticmethod(lambda ctx, g: rule(g))

    return Own.apply


def _pushing(rule: Callable[..., Any]) -> Pair:
    f = gt.custom_jvp(lambda x, y: x * y)
    f.function.__name__ = f.name = "f"
    f.defjvp(lambda primals, tangents: rule(primals[0], tangents[0]))
    return f


BAD: dict[str, tuple[Pair, str]] = {
    "too few": (_ruled(lambda g: (g,)), r"of f returned a tuple of 1; wanted a tuple of 2 gradients"
                r", for argument 0 \('x'\), argument 1 \('y'\)"),
    "no tuple": (_ruled(lambda g: g), r"of f returned Tensor; wanted a tuple of 2"),
    "None": (_ruled(lambda g: (g, None)),
             r"of f returned None for argument 1 \('y'\); wanted zeros, as that requires a"),
    "a shape": (_ruled(lambda g: (g, g.sum())),
                r"of f returned a gradient of shape \(\) for argument 1 \('y'\); wanted .* \(3,\)"),
    "a dtype": (_ruled(lambda g: (g.astype(gt.float32), g)),
                r"of f returned a gradient of dtype float32 for argument 0 \('x'\); .* float64 on"),
    "a number": (_ruled(lambda g: (3.0, g)), r"returned float for argument 0 \('x'\); wanted a gr"),
    "a tree": (_ruled(lambda g: (g, [g, g])), r"returned list for argument 1 \('y'\); wanted a gr"),
    "forward": (_ruled(lambda g: (g, g), lambda x, y: x * y),
                "forward rule of f returned Tensor; wanted a pair"),
    "too few of a Function": (_method(lambda g: g), "of Own returned 1 gradient; wanted 2, one f"),
    "too many": (_method(lambda g: (g, g, g)), "of Own returned 3 gradients; wanted 2"),
    "None of a Function": (_method(lambda g: (None, g)),
                           r"of Own returned None for argument 0 \('x'\); wanted zeros"),
    "a shape of a Function": (_method(lambda g: (g, g[:2])),
                              r"of shape \(2,\) for argument 1 \('y'\); wanted .* \(3,\)"),
    "no pair": (_pushing(lambda x, t: x), "the rule of f returned Tensor; wanted a pair"),
    "no tangent": (_pushing(lambda x, t: (x, None)),
                   r"rule of f returned NoneType as the tangent of its result; wanted a tensor of"),
    "a tangent's shape": (_pushing(lambda x, t: (x, t.sum())),
                          r"tangent that the rule of f returned, of shape \(\) given for"),
    "several tangents": (_pushing(lambda x, t: (x, (t, t))),
                         "returned a tangent with 2 parts for a result with 1; wanted"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_rule_is_named_with_the_argument_and_no_grad_is_written(bad: str) -> None:
    f, message = BAD[bad]
    x, y = (row.clone().requires_grad_() for row in drawn()[0][:2])
    kind = (TypeError, ValueError, gt.GradientError)
    with pytest.raises(kind, match=message):
        f(x, y).sum().backward()
    assert x.grad is None and y.grad is None
    with pytest.raises(kind, match=message):
        gt.jvp(f, (x.detach(), y.detach()), (y.detach(), x.detach()))


def test_a_part_of_a_tree_is_named_by_its_path() -> None:
    f = gt.custom_vjp(lambda p: p["a"] * p["b"][1])
    a, b = gt.ones(3).requires_grad_(), gt.ones(3).requires_grad_()
    for rule, message in (
            (lambda g: ({"a": g, "b": [None, g[:1]]},), r"argument 0 \('p'\)\['b'\]\[1\]; wanted"),
            (lambda g: ({"a": g},), r"argument 0 \('p'\) with the parts \['a'\]; wanted \['a'\], "),
            (lambda g: (g,), r"with the parts Tensor; wanted \['a'\], \['b'\]\[0\], "),
            (lambda g: (None,), r"None for argument 0 \('p'\)\['a'\]; wanted zeros")):
        f.defvjp(lambda p: (f.function(p), None), lambda kept, g, rule=rule: rule(g))
        with pytest.raises(gt.GradientError, match=message):
            f({"a": a, "b": [2, b]}).sum().backward()
    f.defvjp(lambda p: (f.function(p), None), lambda kept, g: ({"a": g, "b": [None, g]},))
    f({"a": a, "b": [2, b]}).sum().backward()
    same(b.grad, gt.ones(3))


def test_tensors_beside_the_arguments_are_constants_or_refused() -> None:
    x, y = gt.ones(3), gt.full((3,), 2.0)
    w = gt.full((3,), 5.0).requires_grad_()

    def closed(f: Any) -> Pair:
        f.defvjp(lambda x: (f.function(x), None), lambda kept, g: (g * y,))
        return f

    constant = closed(gt.custom_vjp(lambda x: x * y))
    same(gt.grad(lambda x: constant(x).sum())(x), y)
    same(gt.vmap(gt.grad(lambda row: closed(gt.custom_vjp(lambda r: r * y))(row).sum()))(
        gt.stack([x, x])), gt.stack([y, y]))
    with pytest.raises(gt.GradientError, match="reads a tensor that requires a gradient and is"):
        closed(gt.custom_vjp(lambda x: x * w))(x.clone().requires_grad_())
    with pytest.raises(gt.LevelError, match=r"reads a value of jvp\(\) that is not among its arg"):
        gt.jvp(lambda x, w: closed(gt.custom_vjp(lambda x: x * w))(x), (x, y), (x, y))

    class Closed(Swing):
        @staticmethod
        def forward(ctx: Any, x: Any, read: Any) -> Any:
            return x * read()

    assert Closed.apply(x, lambda: w).requires_grad is False
    with pytest.raises(gt.LevelError, match=r"reads a value of vmap\(\) that is not among its arg"):
        gt.vmap(lambda row: Closed.apply(w, lambda: row))(gt.stack([x, y]))


def test_a_second_derivative_is_refused_where_it_would_be_wrong() -> None:
    """Through what a `Function` computed and saved; of a rule marked as differentiable once."""
    x = gt.ones(3).requires_grad_()
    (first,) = gt.grad(Keeps.apply(x).sum(), [x], create_graph=True)
    with pytest.raises(gt.GradientError, match=r"of Keeps \(.* that forward computed and saved"):
        first.sum().backward()

    class Detached(Keeps):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            y, inner = ctx.saved_tensors
            return g * y + 0 * inner.detach()

    same(gt.hessian(lambda x: Detached.apply(x).sum())(x.detach()),
         gt.exp(x.detach()) * gt.eye(3))

    class Once(Keeps):
        backward = staticmethod(gt.autograd.once_differentiable(Keeps.backward))

    (first,) = gt.grad(Once.apply(x).sum(), [x], create_graph=True)
    assert first.requires_grad
    with pytest.raises(gt.GradientError, match="marked as differentiable once"):
        first.sum().backward()


def test_what_a_second_run_would_do_otherwise_is_refused() -> None:
    """A residual that forward computes has the history of a second run."""
    x = gt.ones(3).requires_grad_()

    def ruled(kept: Callable[[Any], Any]) -> Any:
        f = gt.custom_vjp(lambda x: x * 1)
        f.defvjp(lambda x: (x * 1, kept(x)), lambda kept, g: (g * kept,))
        return f

    for kept, message in (
            (lambda x: gt.random.normal((3,)) * x, "draws random numbers, and a second derivative"),
            (lambda x: gt.asarray(np.sin(x.numpy())), r"\.numpy\(\) of a value that gt\.grad\(\)")):
        f = ruled(kept)
        f(x).sum().backward()  # once it may
        (first,) = gt.grad(f(x).sum(), [x], create_graph=True)
        with pytest.raises(gt.GradientError, match=message):
            first.sum().backward()
        gt.jvp(f, (x.detach(),), (gt.ones(3),))  # linear in the cotangent


def test_bad_calls_say_what_is_wanted() -> None:
    f = gt.custom_vjp(lambda x, y=2.0: x * y)
    for call, kind, message in (
            (lambda: f(gt.ones(2)), TypeError, r"before it had a rule; wanted <lambda>\.defvjp\("),
            (lambda: gt.custom_jvp(lambda x: x)(gt.ones(2)), TypeError, r"wanted <lambda>\.defjvp"),
            (lambda: gt.custom_vjp(3), TypeError, "custom_vjp was given int; wanted a function"),
            (lambda: f.defvjp(1, 2), TypeError, "defvjp of <lambda> was given int; wanted two fun"),
            (lambda: gt.custom_jvp(lambda x: x).defjvp(1), TypeError, "given int; wanted a fun"),
            (lambda: gt.custom_vjp(lambda x: x, nondiff_argnums=(-1,)), ValueError, "given -1 as"),
            (lambda: gt.custom_vjp(lambda x: x, nondiff_argnames="z"), ValueError, "one of x"),
            (lambda: Swing(), TypeError, r"Swing\(\) was called; wanted Swing\.apply"),
            (lambda: Function.apply(1), TypeError, "Function has no method forward"),
            (lambda: Swing.forward(gt.autograd.Function, 1, 2), AttributeError, "save_for_back"),
    ):
        with pytest.raises(kind, match=message):
            call()
    f.defvjp(lambda x, y: (x * y, y), lambda y, g: (g * y, None))
    x = gt.ones(2).requires_grad_()
    f(y=3.0, x=x).sum().backward()
    f(x).sum().backward()  # the default
    same(x.grad, gt.full((2,), 5.0))

    class Wrong(Swing):
        @staticmethod
        def forward(ctx: Any, x: Any, how: str) -> Any:
            getattr(ctx, how)(*[3] if how == "save_for_backward" else [x])
            return x * 2

    class Lacking(Function):
        forward = Swing.forward

    for how, message in (("save_for_backward", r"save_for_backward\(\) was given int; wanted tens"),
                         ("mark_dirty", r"mark_dirty\(\) was called")):
        with pytest.raises(TypeError, match=message):
            Wrong.apply(x, how)
    with pytest.raises(TypeError, match="Lacking has no method backward"):
        Lacking.apply(x, x)


@gt.custom_vjp
def halved(x: Any) -> Any:
    return x / 2


def test_a_function_with_rules_is_copied_and_pickled_as_functions_are() -> None:
    assert pickle.loads(pickle.dumps(halved)) is halved
    assert copy.deepcopy(halved) is copy.copy(halved) is halved
    unnamed = gt.custom_jvp(partial(gt.multiply, 2.0))
    assert copy.copy(unnamed).function is unnamed.function


class Scaled:
    """Functions with rules as methods; `rate` is no argument and has no derivative."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    @gt.custom_vjp
    def reverse(self, x: Any) -> Any:
        return self.rate * x

    reverse.defvjp(lambda self, x: (self.rate * x, None), lambda kept, g: (None, -3 * g))

    @partial(gt.custom_jvp, nondiff_argnums=0)
    def sine(self, x: Any) -> Any:
        return gt.sin(self.rate * x)

    sine.defjvp(lambda self, xs, ts: (
        self.sine(*xs), self.rate * gt.cos(self.rate * xs[0]) * ts[0]))


def test_a_method_may_have_a_rule_of_its_own() -> None:
    x, _ = drawn()
    one, other = Scaled(0.5), Scaled(2.0)
    same(one.reverse(x), 0.5 * x)
    same(Scaled.reverse(other, x), 2.0 * x)
    same(gt.grad(lambda x: one.reverse(x).sum())(x), gt.full_like(x, -3.0))
    for scaled in (one, other):
        same(gt.grad(lambda x, s=scaled: s.sine(x).sum())(x), scaled.rate * gt.cos(scaled.rate * x))
        same(gt.vmap(scaled.sine)(x), gt.sin(scaled.rate * x))
