"""Programs that a captured step must compute as the step itself would, or refuse.

Each is a function that makes a step, which takes a tensor of four numbers. `EQUAL` are those whose
replays must equal the uncaptured step, bit for bit; `REFUSED` are those that must raise
CaptureError, with words that its message must have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gtensor as gt
from gtensor import nn

Step = Callable[[gt.Tensor], gt.Tensor]
EQUAL: list[Callable[[], Step]] = []
REFUSED: dict[Callable[[], Step], str] = {}


def equal(make: Callable[[], Step]) -> Callable[[], Step]:
    """The steps that it makes can be captured."""
    EQUAL.append(make)
    return make


def refused(words: str) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    """The steps that it makes cannot."""
    def mark(make: Callable[[], Step]) -> Callable[[], Step]:
        REFUSED[make] = words
        return make

    return mark


# -- values that Python reads ----------------------------------------------------------------------


@refused("item() of a tensor")
def branch_on_a_number() -> Step:
    return lambda x: x * 2 if x.sum().item() > 8 else x * 3


@refused("item() of a tensor")
def branch_on_a_truth() -> Step:
    return lambda x: x * 2 if x.sum() > 8 else x * 3


@refused("numpy() of a tensor")
def branch_on_an_array() -> Step:
    return lambda x: x * 2 if x.numpy().sum() > 8 else x * 3


@refused("tolist() of a tensor")
def branch_on_a_list() -> Step:
    return lambda x: x * 2 if x.tolist()[0] > 2 else x * 3


@refused("item() of a tensor")
def index_by_a_value() -> Step:
    return lambda x: x[int(x[0]) % 4] * 1


@refused("item() of a tensor")
def index_by_a_tensor_without_axes() -> Step:
    return lambda x: x[(x[0] % 4).astype("int64")] * 1


@refused("item() of a tensor")
def average_whose_weight_is_counted_in_python() -> Step:
    norm = nn.BatchNorm1d(4, momentum=None)
    return lambda x: norm(x * gt.ones((3, 4))) + norm.running_mean


# -- shapes that depend on values ------------------------------------------------------------------


@refused("the shape of the result of gather depends on values")
def selection_by_a_mask() -> Step:
    return lambda x: x[x > 2]


@refused("depends on values")
def count_of_a_selection() -> Step:
    return lambda x: x * len(x[x > 2])


@refused("depends on values")
def places() -> Step:
    return lambda x: gt.nonzero(x > 2)[0] * 1


@refused("depends on values")
def different_values() -> Step:
    return lambda x: gt.unique_values(x)


@equal
def write_by_a_mask() -> Step:
    def step(x: gt.Tensor) -> gt.Tensor:
        y = x * 1
        y[y > 2] = 0.0
        return y

    return step


# -- Python's state --------------------------------------------------------------------------------


@refused("it changes what it may read: the closure's `count[0]` was 1 and is 2")
def counter() -> Step:
    count = [0]

    def step(x: gt.Tensor) -> gt.Tensor:
        count[0] += 1
        return x * count[0]

    return step


@refused("it changes what it may read: the closure's `calls`")
def condition_on_a_list_that_grows() -> Step:
    calls: list[int] = []

    def step(x: gt.Tensor) -> gt.Tensor:
        calls.append(1)
        return x * 2 if len(calls) < 6 else x * 3

    return step


@refused("it changes what it may read: Counting.calls was set")
def condition_on_a_counter_of_a_module() -> Step:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: gt.Tensor) -> gt.Tensor:
            self.calls += 1
            return x * 2 if self.calls < 6 else x * 3

    net = Counting()
    return lambda x: net(x)


@refused("kept outside of the step")
def total_that_is_bound_anew() -> Step:
    total = gt.zeros(4)

    def step(x: gt.Tensor) -> gt.Tensor:
        nonlocal total
        total = total + x
        return total * 1

    return step


@equal
def total_that_is_written_in_place() -> Step:
    total = gt.zeros(4)

    def step(x: gt.Tensor) -> gt.Tensor:
        nonlocal total
        total += x
        return total * 1

    return step


@refused("kept outside of the step")
def result_in_a_list() -> Step:
    kept = []

    def step(x: gt.Tensor) -> gt.Tensor:
        kept.append(x * 2)
        return kept[-1] + 1

    return step


@refused("kept outside of the step")
def result_in_a_module() -> Step:
    net: Any = nn.Linear(4, 4)

    def step(x: gt.Tensor) -> gt.Tensor:
        net.hidden = x * 2
        return net.hidden + 1

    return step


@refused("another one in each call")
def data_of_numpy() -> Step:
    rng = np.random.default_rng(0)
    return lambda x: x + gt.tensor(rng.random(4).astype("float32"))


@equal
def data_of_python() -> Step:
    return lambda x: x + gt.tensor([1.0, 2.0, 3.0, 4.0]) * gt.tensor(2.0)


@equal
def made_and_then_added_to() -> Step:
    def step(x: gt.Tensor) -> gt.Tensor:
        total = gt.zeros(4)
        total += x
        total += x
        return total + gt.arange(4) + gt.full((4,), 2.5) + gt.eye(4)[1] + gt.linspace(0, 1, 4)

    return step


@equal
def views_that_are_written() -> Step:
    def step(x: gt.Tensor) -> gt.Tensor:
        y = x * 1
        y[1:3] += 5
        z = y.reshape(2, 2).T
        z *= 2
        return y + z.reshape(-1)

    return step


# -- random numbers --------------------------------------------------------------------------------


@equal
def random_numbers() -> Step:
    return lambda x: x + gt.random.normal((4,)) * gt.random.rand(4)


@equal
def numbers_of_a_generator() -> Step:
    source = gt.Generator().manual_seed(3)
    return lambda x: x + gt.random.normal((4,), generator=source)


@refused("gt.random.seeded()")
def numbers_of_a_seed() -> Step:
    def step(x: gt.Tensor) -> gt.Tensor:
        with gt.random.seeded(3):
            return x + gt.random.normal((4,))

    return step


@equal
def dropout_within_a_checkpoint() -> Step:
    w = gt.ones(4, requires_grad=True)

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        y = nn.utils.checkpoint(lambda x: nn.functional.dropout(x * w, 0.5) * w, x)
        y.sum().backward()
        return w.grad * 1

    return step


# -- derivatives -----------------------------------------------------------------------------------


@equal
def derivative() -> Step:
    return lambda x: gt.grad(lambda y: (y * y * y).sum())(x)


@equal
def second_derivative() -> Step:
    return lambda x: gt.func.hessian(lambda y: (y ** 3).sum())(x)


@equal
def each_example() -> Step:
    return lambda x: gt.func.vmap(gt.grad(lambda y: (y * y + 1).sum()))(x.reshape(2, 2))


@equal
def forward_mode() -> Step:
    return lambda x: gt.func.jvp(gt.sin, (x,), (x,))[1]


@equal
def several_gradients_at_once() -> Step:
    w = gt.ones(4, requires_grad=True)

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (w * w * x).backward(gt.eye(4), batched=True)
        return w.grad * 1

    return step


@refused("")
def gradients_that_are_added_over_calls() -> Step:
    w = gt.ones(4, requires_grad=True)

    def step(x: gt.Tensor) -> gt.Tensor:
        (w * x).sum().backward()
        return w.grad * 1

    return step


@equal
def gradients_that_are_added_within() -> Step:
    w = gt.ones(4, requires_grad=True)

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        for part in (x, x * 2, x * x):
            (w * part).sum().backward()
        return w.grad * 1

    return step


@equal
def hook_of_a_gradient() -> Step:
    w = gt.ones(4, requires_grad=True)
    w.register_hook(lambda g: g * 2)

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 1

    return step


@equal
def lower_precision() -> Step:
    w = gt.ones((4, 4), requires_grad=True)

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        with gt.autocast(dtype="bfloat16"):
            y = (x.reshape(1, 4) @ w).sum()
        y.backward()
        return w.grad * 1

    return step


# -- training --------------------------------------------------------------------------------------


def _net() -> tuple[nn.Linear, gt.optim.SGD]:
    net = nn.Linear(4, 1)
    return net, gt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


@equal
def schedule_within() -> Step:
    net, optimizer = _net()
    schedule = gt.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        schedule.step()
        return net.weight * 1

    return step


@equal
def rate_that_is_set_within() -> Step:
    net, optimizer = _net()

    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad(set_to_none=True)
        net(x).sum().backward()
        optimizer.step()
        return net.weight * 1

    return step


@equal
def average_of_weights() -> Step:
    net, optimizer = _net()
    average = gt.optim.EMA(net, 0.9)

    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        average.update()
        with average.swapped():
            return net.weight * 1

    return step


@equal
def clipping() -> Step:
    net, optimizer = _net()

    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        net(x).sum().backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return net.weight * norm

    return step


@equal
def scaled_loss() -> Step:
    net, optimizer = _net()
    scaler = gt.optim.GradScaler(init_scale=8.0, growth_interval=2)

    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        scaler.scale(net(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return net.weight * 1

    return step


@equal
def closure_of_a_step() -> Step:
    net, optimizer = _net()

    def step(x: gt.Tensor) -> gt.Tensor:
        def loss() -> gt.Tensor:
            optimizer.zero_grad()
            found = net(x).square().sum()
            found.backward()
            return found

        return optimizer.step(loss)

    return step


@equal
def running_statistics() -> Step:
    norm = nn.BatchNorm1d(4)
    return lambda x: norm(x * gt.arange(3.0).reshape(3, 1)) + norm.running_mean


@equal
def captured_step_within() -> Step:
    inner = gt.capture(lambda x: x * 2)
    return lambda x: inner(x) + 1
