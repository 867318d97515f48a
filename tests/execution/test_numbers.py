"""Floats among the arguments of captured steps: live, or a part of the signature; never wrong."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from execution.test_captured import numbers
from gtensor import nn
from gtensor.execution.steps import captured as captured_steps
from gtensor.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

Step = Callable[..., Any]
# The first two are equal, and equal to a number in the code of some steps.
VALUES = [0.5, 0.5, 2.0, 0.1, -0.0, 1.0, 1e300, math.nan, -math.inf, 1e-46, 3.0]
LIVE: dict[Callable[[], Step], int] = {}  # and how many programs there are
READ: list[Callable[[], Step]] = []
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def live(programs: int) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def add(make: Callable[[], Step]) -> Callable[[], Step]:
        LIVE[make] = programs
        return make

    return add


def read(make: Callable[[], Step]) -> Callable[[], Step]:
    READ.append(make)
    return make


def outcomes(step: Step) -> Iterator[bytes]:
    for i, w in enumerate(VALUES):
        found = step(numbers(i), w)
        yield found.numpy().tobytes() if isinstance(found, gt.Tensor) else repr(
            [x.tolist() if isinstance(x, gt.Tensor) else x for x in found]).encode()


# -- live ------------------------------------------------------------------------------------------


@live(1)
def a_product() -> Step:
    return lambda x, w: x * w


@live(1)
def each_operator_from_both_sides() -> Step:
    return lambda x, w: (x + w, w + x, x - w, w - x, x * w, w * x, x / w, w / (x + 1))


@live(1)
def operators_in_place() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        y = x * 1
        y *= w
        y += w
        y -= w
        x /= w
        return y + x

    return step


@live(1)
def an_operand_beside_calls_and_items() -> Step:
    return lambda x, w: w * gt.exp(x[:3] - x.mean(axis=0, keepdims=True)) + x[0] * w


@live(1)
def a_training_step() -> Step:
    net = nn.Linear(4, 4)
    for p in net.parameters():
        p.detach()[...] = 0.25
    optimizer = gt.optim.Adam(net.parameters(), lr=0.1)

    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        optimizer.zero_grad()
        y = net(x.reshape(1, 4))
        loss = F.mse_loss(y, x.reshape(1, 4)) + w * (y / (w + y * y)).mean() + (y - w).sum() * 0.5
        loss.backward()
        optimizer.step()
        return loss

    return step


@live(1)
def other_floats_and_axes() -> Step:
    return lambda x, w: (x.astype("float64") * w, x.astype("float16") / w, x.sum() - w,
                         w + gt.broadcast_to(x, (2, 4)), x[::-2] * w)


@live(1)
def a_view_that_was_made_outside() -> Step:
    whole = gt.arange(8).astype("float32")
    part = whole[2:6]
    return lambda x, w: (part * w + x, whole * w)


@live(1)
def large_arrays() -> Step:
    def step(x: gt.Tensor, w: float) -> Any:
        y = gt.broadcast_to(x, (9000, 4)) * w + 1
        z = gt.broadcast_to(x.reshape(4, 1), (4, 20_001)) * 1
        e = gt.exp(z * w - gt.max(z, axis=-1, keepdims=True))
        return (y * y - w).sum(), (e / gt.sum(e, axis=-1, keepdims=True) * w).sum()

    return step


@live(1)
def a_gradient_hook_with_the_same_number() -> Step:
    p = gt.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)

    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        p.grad = None
        y = p * w
        y.register_hook(lambda g: g * 0.5)
        (y * x).sum().backward()
        return p.grad * 1

    return step


@live(1)
def an_argument_that_is_not_used() -> Step:
    return lambda x, w: x * 0.5


@live(1)
def within_blocks() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        try:
            with gt.no_grad():
                y = x * w
        finally:
            x = x + 1
        for _ in range(2):
            y = y + x
        return y

    return step


@live(2)
def one_of_two_numbers() -> Step:
    def step(x: gt.Tensor, w: float, t: float) -> gt.Tensor:
        return x * w if t > 1 else x / t

    def call(x: gt.Tensor, w: float) -> gt.Tensor:
        return made(x, t=3.0, w=w) + made(x, w, 2.0)

    made = gt.capture(step)
    call.made = made  # type: ignore[attr-defined]
    return call


# -- parts of the signature ------------------------------------------------------------------------


@read
def a_condition() -> Step:
    return lambda x, w: x * w if w > 1 else x + w


@read
def arithmetic_of_python() -> Step:
    return lambda x, w: x * w * (1 - w)


@read
def a_product_of_numbers() -> Step:
    return lambda x, w: w * w * x


@read
def a_loop_over_tensors_and_numbers() -> Step:
    def step(x: gt.Tensor, w: float) -> Any:
        return sum_of([x, 2.0], x, w)

    def sum_of(parts: list[Any], x: gt.Tensor, w: float) -> gt.Tensor:
        for a in parts:
            x = x + a * w
        return x

    return step


@read
def a_loop() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        for a in (x, 2.0):
            b = a * w
            x = x + b
        return x

    return step


@read
def another_name() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        v = w
        return x * v * w if v == 2.0 else x * w

    return step


@read
def a_number_that_is_replaced() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        y = x * w
        w = w + 1
        return y * w

    return step


@read
def a_closure() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        def inner() -> float:
            return 2.0 if w > 1 else 3.0

        return x * w * inner()

    return step


@read
def all_local_variables() -> Step:
    return lambda x, w: x * w + int(locals()["w"] == 2.0)


def _of_the_caller() -> float:
    return sys._getframe(1).f_locals["w"]


@read
def a_variable_of_the_caller() -> Step:
    return lambda x, w: x * w + int(_of_the_caller() == 2.0)


@read
def a_text_that_another_library_evaluates() -> Step:
    found: dict[str, Any] = {"sys": sys}
    exec(compile("def evaluate(text): return sys._getframe(1).f_locals[text]",
                 "/usr/lib/python3/dist-packages/numexpr/necompiler.py", "exec"), found)
    evaluate = found["evaluate"]
    return lambda x, w: x * w + int(evaluate("w") == 2.0)


@read
def an_evaluated_text() -> Step:
    return lambda x, w: x * w + eval("int(w == 2.0)")


@read
def its_type_and_identity() -> Step:
    return lambda x, w: x * w if type(w) is float and w is not x else x + w


@read
def a_match() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        y = x * w
        match w:
            case 2.0:
                return y + 1
            case float():
                return y
        return x

    return step


@read
def texts_and_keys() -> Step:
    return lambda x, w: x * w + {"0.5": 1, 2.0: 2}.get(f"{w}", len(str(w)))


@read
def functions_of_other_libraries() -> Step:
    return lambda x, w: x * w + math.atan(w) + float(np.float32(w) == 2)


@read
def a_returned_number() -> Step:
    return lambda x, w: (x * w, w)


@read
def a_number_that_is_kept() -> Step:
    kept = {}

    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        kept["w"] = 2.0
        return x * w + functools.reduce(lambda a, b: a + b, [w, kept["w"]])

    return step


@read
def any_arguments() -> Step:
    def step(x: gt.Tensor, *more: float) -> gt.Tensor:
        return x * more[0] if more[0] > 1 else x * 2

    return step


@read
def a_wrapped_function() -> Step:
    def inner(x: gt.Tensor, w: float) -> gt.Tensor:
        return x * w if w > 1 else x

    @functools.wraps(inner)
    def step(x: gt.Tensor, *args: float) -> gt.Tensor:
        return inner(x, *args)

    return step


@read
def a_function_that_calls_itself() -> Step:
    def step(x: Any, w: float) -> Any:
        y = x * w
        return y if type(x) is float else y * step(2.0, 3.0) + y * step(w, 3.0)

    return step


@read
def a_call_of_the_same_code_with_an_equal_number() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        return step(x[0], 0.5) if x.ndim else x * w

    return step


@read
def a_function_around_one_of_the_same_code() -> Step:
    def around(inner: Step | None) -> Step:
        return lambda x, w: x * w if inner is None else inner(x, 0.5)

    return around(around(None))


@read
def containers() -> Step:
    @dataclasses.dataclass
    class Options:
        w: float

    made = gt.capture(lambda x, options, pair: x * options.w if pair[0] > 1 else x - pair[0])
    return lambda x, w: made(x, Options(w), (w,))


@read
def second_derivatives() -> Step:
    p = gt.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)

    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        (g,) = gt.grad([(gt.exp(p * w) * x).sum()], [p], create_graph=True)
        (h,) = gt.grad([(g * g).sum()], [p])
        return h * 1

    return step


@read
def integers_and_powers() -> Step:
    return lambda x, w: (x.astype("int64") * w, x ** w, gt.multiply(x, w), gt.where(x > 1, x, w))


@read
def examples_apart() -> Step:
    return lambda x, w: gt.func.vmap(lambda a: a * w)(x)


@read
def an_operator_that_runs_others() -> Step:
    class Twice:
        def __init__(self, x: gt.Tensor) -> None:
            self.x = x

        def __mul__(self, w: float) -> gt.Tensor:
            return self.x * w if w > 1 else self.x

    return lambda x, w: Twice(x) * w


@read
def a_condition_that_fails_to_use_it() -> Step:
    def step(x: gt.Tensor, w: float) -> gt.Tensor:
        try:
            y = gt.zeros(5) * w + x
        except ValueError:
            y = x - 1
            if w == 2.0:
                y = y + 1
        return y

    return step


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fuse", [True, False, "relaxed"])
@pytest.mark.parametrize("make", LIVE, ids=lambda make: make.__name__)
def test_a_number_that_only_ops_take_is_live(make, fuse, device):
    with gt.device(device):
        expected = [*outcomes(make())]
        step = make()
        captured = getattr(step, "made", None) or gt.capture(step, fuse=fuse)
        found = [*outcomes(step if hasattr(step, "made") else captured)]
    assert fuse == "relaxed" or found == expected
    assert len(captured.programs) == LIVE[make], captured.report()
    assert "= any" in captured.report()


@pytest.mark.parametrize("make", READ, ids=lambda make: make.__name__)
def test_a_number_that_the_step_reads_is_a_part_of_the_signature(make):
    expected = [*outcomes(make())]
    step = gt.capture(make())
    for _ in range(3):
        assert [*outcomes(step)] == expected
    assert len(step.programs) != 1, step.report()


def test_the_programs_find_a_number_that_is_taken_for_live(monkeypatch):
    monkeypatch.setattr(captured_steps, "follow",
                        lambda recorder, function, numbers, paths: frozenset(paths))
    wrong = 0
    for make in READ:
        expected = [*outcomes(make())]
        try:
            wrong += [*outcomes(gt.capture(make()))] != expected
        except gt.CaptureError:
            wrong += 1
    assert wrong >= len(READ) - 3  # containers have no such number, and two steps use none


def test_recordings_of_numbers_that_never_return_are_forgotten(monkeypatch):
    monkeypatch.setattr(captured_steps, "_WAITING", 20)
    step = gt.capture(lambda x, w: x * (1 - w))
    with pytest.warns(UserWarning, match="16 signatures"):
        for i in range(100):
            step(numbers(0), float(i))
    for _ in range(3):
        step(numbers(0), 99.0)
    assert "21 signatures" not in step.report() and len(step.programs) == 1
    assert "20 signatures" in step.report()


def test_a_number_by_keyword_is_not_the_parameter_of_that_name_that_has_none():
    def step(x: gt.Tensor, w: float = 0.5, /, **more: float) -> gt.Tensor:
        y = x * w
        return y + 1 if more["w"] == 2.0 else y

    captured = gt.capture(step)
    for i, w in enumerate(VALUES):
        assert captured(numbers(i), w=w).tolist() == step(numbers(i), w=w).tolist()


def test_a_number_of_a_method_is_live_in_other_states_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 2.0
            self.weight = nn.Parameter(gt.ones(4))

        @gt.capture
        def step(self, x, w):
            return (self.weight * x * self.scale if self.training else self.weight) * w

    model = Model()
    for mode in (True, False, True, False):
        model.train(mode)
        for w in VALUES:
            x = numbers(3)
            expected = (model.weight * x * 2.0 if mode else model.weight) * w
            assert model.step(x, w).numpy().tobytes() == expected.numpy().tobytes()
    assert len(Model.step.programs) == 2


def test_a_number_that_is_read_in_one_state_is_live_in_none():
    limit = [None]

    def step(x, w):
        return x * w if limit[0] is None or w > limit[0] else x

    captured = gt.capture(lambda x, w: x * w if limit[0] is None else step(x, w))
    for bound in (None, 1.0, None):
        limit[0] = bound
        for _ in range(3):
            for w in VALUES:
                expected = step(numbers(1), w).numpy().tobytes()
                assert captured(numbers(1), w).numpy().tobytes() == expected


def test_a_check_runs_the_step_with_its_number():
    captured = gt.capture(lambda x, w: x * w, check=2)
    for i, w in enumerate(VALUES):
        assert captured(numbers(i), w).numpy().tobytes() == (numbers(i) * w).numpy().tobytes()
    assert len(captured.programs) == 1


_LINES = ["y = y * w", "y = w - y", "y += w", "y = y / w + x", "x = p * w * x", "y = x - w * p * y",
          "y = y * (1 - w)", "v = w", "y = y + v", "w = w * 2", "y = y * helper(w)", "y = y * 0.5",
          "y = gt.exp(w * gt.tanh(y))", "y = (lambda a: a * w)(y)",
          "y = [a * w for a in (x, y)][1]"]
_BLOCKS = ["if w > 1:", "if flag:", "for a in (x, 2.0):\n    y = y + a * w\n    if flag:", "try:",
           "with gt.no_grad():", "while flag:\n    y = y * w\n    flag = False\nelse:"]


def random_step(rng: np.random.Generator) -> str:
    """The text of a step of random lines, which mostly only computes with its number."""
    lines, head = [], "def step(x, w, flag):\n    v, y = 2.0, x * p\n    p.grad = None\n"
    for _ in range(rng.integers(1, 5)):
        some = [str(rng.choice(_LINES[:6] if rng.random() < 0.8 else _LINES))
                for _ in range(rng.integers(1, 3))]
        if rng.random() < 0.25:
            block = str(rng.choice(_BLOCKS))
            *_, last = block.split("\n")
            inner = " " * (len(last) - len(last.lstrip()) + 4)
            some = [*block.split("\n"), *[inner + line for line in some]]
            some += ["finally:", "    y = y + w"] if block == "try:" else []
        lines += some
    body = "".join(f"    {line}\n" for line in lines)
    return f"{head}{body}    (y * x).sum().backward()\n    return y.detach(), p.grad\n"


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_are_the_same(seed):
    rng = np.random.default_rng(seed)
    text, found = random_step(rng), []
    values = [*rng.choice([0.5, 0.5, 2.0, 1.0, 3.0, 0.25], 8).tolist()]
    flags = rng.random(8) < 0.7
    for capture in (False, True):
        p = gt.tensor([1.0, 0.5, 2.0, 3.0], requires_grad=True)
        scope: dict[str, Any] = {"gt": gt, "p": p, "helper": lambda w: 2.0 if w > 1 else 3.0}
        exec(text, scope)
        step = gt.capture(scope["step"]) if capture else scope["step"]
        found.append([])
        for i, (w, flag) in enumerate(zip(values * 2, [*flags, *flags], strict=True)):
            try:
                out = step(numbers(i), w, bool(flag))
                found[-1].append([None if a is None else a.numpy().tobytes() for a in out])
            except gt.CaptureError:
                raise
            except Exception as error:
                found[-1].append(type(error))
    assert found[0] == found[1], text
