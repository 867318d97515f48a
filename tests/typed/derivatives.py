"""Derivatives of functions, and the types of what the transforms return."""

from collections.abc import Callable
from typing import Any, assert_type

import gtensor as gt

Params = dict[str, gt.Tensor]


def energy(x: gt.Tensor, scale: float = 1.0) -> gt.Tensor:
    """A scalar function of one tensor."""
    return (x * x).sum() * scale


def loss(params: Params, inputs: gt.Tensor, wanted: gt.Tensor) -> gt.Tensor:
    """The error of a linear model."""
    return ((inputs @ params["w"] + params["b"] - wanted) ** 2).mean()


def with_error(params: Params, inputs: gt.Tensor) -> tuple[gt.Tensor, str]:
    """A scalar, and something beside it."""
    return (inputs @ params["w"] + params["b"]).sum(), "more"


def gradients(x: gt.Tensor) -> None:
    """Of values and of functions."""
    x.requires_grad_()
    (slope,) = assert_type(gt.grad(energy(x), [x]), tuple[gt.Tensor, ...])
    assert slope.shape == x.shape
    other = gt.ones(2, requires_grad=True)
    found = gt.grad(energy(x), [x, other], allow_unused=True)
    assert_type(found, tuple[gt.Tensor | None, ...])
    assert_type(gt.grad(energy)(x), gt.Tensor)
    assert_type(gt.grad(energy)(x, scale=2.0), gt.Tensor)
    assert_type(gt.grad(lambda y: (y * y).sum())(x), gt.Tensor)
    assert_type(gt.grad(lambda y: gt.sum(gt.grad(lambda z: gt.sum(z**3))(y)))(x), gt.Tensor)
    assert_type(gt.grad(gt.grad(lambda y: y * y))(gt.tensor(1.0)), gt.Tensor)


def of_trees(inputs: gt.Tensor, wanted: gt.Tensor, steps: int = 3) -> Params:
    """Gradient descent on a dict."""
    params = {"w": gt.zeros((3, 1)), "b": gt.zeros(1)}
    step = gt.value_and_grad(loss)
    for _ in range(steps):
        value, slopes = step(params, inputs, wanted)
        assert_type(value, gt.Tensor)
        assert_type(slopes, Params)
        params = {name: params[name] - 0.1 * slope for name, slope in slopes.items()}
    (value, more), slopes = gt.value_and_grad(with_error, has_aux=True)(params, inputs)
    assert_type(more, str)
    assert_type(slopes, Params)
    return assert_type(gt.grad(lambda p: loss(p, inputs, wanted))(params), Params)


@gt.custom_vjp
def doubled(x: gt.Tensor, times: float = 2.0) -> gt.Tensor:
    """A function with a rule of its own."""
    return x * times


doubled.defvjp(lambda x, times: (x * times, times), lambda times, g: (g * times, None))


@gt.custom_jvp
def halved(x: gt.Tensor) -> gt.Tensor:
    """And one whose rule is for tangents."""
    return x / 2


@halved.defjvp
def half(primals: tuple[gt.Tensor], tangents: tuple[gt.Tensor]) -> tuple[gt.Tensor, gt.Tensor]:
    """The rule."""
    return halved(*primals), tangents[0] / 2


class Negated(gt.autograd.Function):
    """A function in PyTorch's style."""

    @staticmethod
    def forward(ctx: Any, x: gt.Tensor) -> gt.Tensor:
        """The value."""
        ctx.save_for_backward(x)
        return -x

    @staticmethod
    def backward(ctx: Any, g: gt.Tensor) -> gt.Tensor:
        """The gradient."""
        return -g


def own_rules(x: gt.Tensor) -> None:
    """Their results are those of the functions."""
    assert_type(doubled(x), gt.Tensor)
    assert_type(halved(doubled(x, times=3.0)), gt.Tensor)
    assert_type(half((x,), (x,)), tuple[gt.Tensor, gt.Tensor])
    gt.grad(lambda x: gt.sum(Negated.apply(doubled(x))))(x)


def in_batches(rows: gt.Tensor) -> gt.Tensor:
    """Examples and directions."""
    each = assert_type(gt.vmap(gt.grad(energy))(rows), gt.Tensor)
    values, slopes = gt.vmap(gt.value_and_grad(energy))(rows)
    assert_type((values, slopes), tuple[gt.Tensor, gt.Tensor])
    pairs: gt.Tensor = gt.vmap(lambda a, b: a @ b, (0, None))(rows, rows[0])
    value, tangent = gt.jvp(energy, (rows[0],), (gt.ones(3),))
    assert_type((value, tangent), tuple[gt.Tensor, gt.Tensor])
    value, pullback = gt.vjp(energy, rows[0])
    slope: gt.Tensor = pullback(gt.ones(()))[0]
    curvature: gt.Tensor = gt.hessian(energy)(rows[0])
    jacobian: gt.Tensor = gt.jacrev(energy)(rows[0])
    return each + slopes + slope + jacobian + curvature.sum() + pairs.sum()


def of_any(function: Callable[..., gt.Tensor], *args: gt.Tensor) -> gt.Tensor:
    """Of a function whose parameters are not known."""
    slope: gt.Tensor = gt.grad(function)(*args)
    both: gt.Tensor = gt.vmap(gt.grad(function), (0, None))(*args)
    second: gt.Tensor = gt.grad(function, 1)(*args)
    return slope.sum() + both.sum() + second.sum()


def run() -> None:
    """All of it."""
    rows = gt.arange(12.0).reshape(4, 3)
    gradients(rows[0])
    own_rules(rows[0])
    assert of_trees(rows, gt.ones((4, 1)))["w"].shape == (3, 1)
    assert in_batches(rows).shape == (4, 3)
    assert of_any(lambda a, b: (a * b).sum(), gt.ones((2, 2)), gt.ones(2)).shape == ()
