"""Programs whose calls differ: in arguments, or in what is done between them.

Each is a function that makes a step and the arguments of its call with a number; `EQUAL` and
`REFUSED` are as those of `programs`. What a call leaves in its arguments counts, too.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import gtensor as gt
from gtensor import nn
from gtensor.distributed.alone import Alone
from gtensor.distributed.communicator import Communicator
from gtensor.nn import functional as F

Calls = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]
Make = Callable[[], Calls]
EQUAL: dict[Make, int] = {}  # and how many programs it takes
REFUSED: dict[Make, str] = {}


def equal(programs: int = 1) -> Callable[[Make], Make]:
    def mark(make: Make) -> Make:
        EQUAL[make] = programs
        return make

    return mark


def refused(words: str) -> Callable[[Make], Make]:
    def mark(make: Make) -> Make:
        REFUSED[make] = words
        return make

    return mark


def numbers(i: float, n: int = 4) -> gt.Tensor:
    return gt.tensor(np.arange(n, dtype="float32") + np.float32(i))


def one(i: int) -> tuple[gt.Tensor]:
    return (numbers(i),)


def small(i: int) -> tuple[gt.Tensor]:
    return (numbers(i) / 10,)


def rows(i: int) -> tuple[gt.Tensor]:
    return (gt.tensor(np.random.default_rng(i).random((3, 4), "float32")),)


def leaf(i: float = 1) -> gt.Tensor:
    return gt.tensor(np.arange(4, dtype="float32") + np.float32(i), requires_grad=True)


def set_rate(optimizer: gt.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


# -- what a call is given --------------------------------------------------------------------------


@equal(2)
def a_zero_with_a_sign() -> Calls:
    return lambda x, k: x * k if k == 0 else x, lambda i: (numbers(i), 0.0 if i < 4 else -0.0)


@equal(3)
def numbers_that_are_equal() -> Calls:
    return lambda x, k: x * 2 if k is True else x * k, lambda i: (numbers(i), [True, 1, 1.0][i % 3])


@equal()
def a_number_that_equals_nothing() -> Calls:
    return lambda x, k: x * k if k != k else x, lambda i: (numbers(i), float("nan"))


@equal(2)
def a_list_or_a_tuple() -> Calls:
    return (lambda x: x[0] * 2 if isinstance(x, list) else x[0] * 3,
            lambda i: ([numbers(i)] if i < 4 else (numbers(i),),))


@equal(4)
def containers_without_items() -> Calls:
    return (lambda x, k=None: x * 2 if k is None else x * len(type(k).__name__),
            lambda i: [(numbers(i),), (numbers(i), []), (numbers(i), ()), (numbers(i), {})][i // 4])


@equal(2)
def dicts_in_another_order() -> Calls:
    return (lambda d: [v * 2 for v in d.values()],
            lambda i: ({"a": numbers(i), "b": numbers(1)} if i % 2 else
                       {"b": numbers(i), "a": numbers(1)},))


@equal(2)
def lists_of_numbers() -> Calls:
    numbers_outside = [1.0, 2.0, 3.0, 4.0]

    def step(x: gt.Tensor) -> gt.Tensor:
        return x[[0, 2, 1, 3]] + gt.asarray(numbers_outside) * [1.0, 2.0, 3.0, 4.0]

    def args(i: int) -> tuple[gt.Tensor]:
        numbers_outside[0] = 1.0 if i < 4 else 9.0
        return one(i)

    return step, args


@equal(2)
def slices() -> Calls:
    return lambda x, k: x[k] * 2, lambda i: (numbers(i), slice(0, 2) if i % 2 else slice(1, 3))


@equal(2)
def modules() -> Calls:
    nets = [nn.Linear(4, 4), nn.Linear(4, 4)]
    return lambda net, x: net(x), lambda i: (nets[i % 2], numbers(i))


@refused("would use up")
def an_iterator() -> Calls:
    return lambda g: sum(x for x in g), lambda i: ((numbers(i + j) for j in range(3)),)


@equal()
def without_axes_and_without_elements() -> Calls:
    return (lambda x, y: (x * 2, y * 3, y.sum(), x.reshape(1) + y.sum()),
            lambda i: (gt.tensor(float(i)), gt.zeros((0, 3))))


@equal(2)
def strides() -> Calls:
    def args(i: int) -> tuple[gt.Tensor]:
        return (numbers(i, 16).reshape(4, 4).T if i % 2 else numbers(i, 32).reshape(4, 8)[:, ::2],)

    return lambda x: x @ x.T + x.sum(), args


@equal()
def strides_that_are_negative() -> Calls:
    return (lambda x: x * 2 + gt.flip(x, 0),
            lambda i: (gt.asarray(np.arange(8, dtype="float32")[::-1][i % 2::2]),))


@equal()
def elements_that_share_memory() -> Calls:
    return lambda x: x * 2 + 1, lambda i: (gt.broadcast_to(gt.tensor([float(i)]), (4,)),)


@equal()
def other_dtypes() -> Calls:
    def step(h: gt.Tensor, b: gt.Tensor, n: gt.Tensor, z: gt.Tensor, t: gt.Tensor) -> Any:
        return (h * h / 3 + 1, b * b / 3 + 2.5, b.sum(), n // 3, n.astype("int8") * 100, n << 1,
                gt.abs(z * (1 + 2j)), ~t & (n > 2))

    return step, lambda i: (
        numbers(i).astype("float16"), numbers(i).astype("bfloat16"), gt.tensor([1, 2, 3, 100 + i]),
        gt.tensor(np.arange(4) + 1j * i), gt.tensor([True, False, True, i % 2 == 0]))


@equal()
def no_numbers_and_infinite_ones() -> Calls:
    return (lambda x: (gt.sqrt(x - 3), x / (x - 2), gt.maximum(x / (x - 2), x)),
            lambda i: (numbers(i),))


# -- memory that arguments share -------------------------------------------------------------------


@equal(2)
def views_of_one_array() -> Calls:
    whole = numbers(0, 8)
    return (lambda x, y: x * 1 + y * 10,
            lambda i: (whole[:4], whole[:4] if i < 4 else whole[4:]))


@equal(2)
def views_that_overlap_and_are_written() -> Calls:
    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        x += y
        return x * 1

    def args(i: int) -> tuple[gt.Tensor, gt.Tensor]:
        whole = numbers(i, 8)
        return (whole[:4], whole[4:]) if i < 4 else (whole[1:5], whole[:4])

    return step, args


@equal(2)
def leaves_over_one_memory() -> Calls:
    memory = np.arange(4, dtype="float32")
    leaves = [gt.asarray(memory).requires_grad_() for _ in range(2)]

    def step(x: gt.Tensor, y: gt.Tensor) -> None:
        x.grad = y.grad = None
        (x * y * y).sum().backward()

    return step, lambda i: (leaves[0], leaves[0 if i < 4 else 1])


@equal(2)
def what_the_step_reads_from_outside() -> Calls:
    w = numbers(1)
    return lambda x: x + w, lambda i: (w,) if i < 4 else (numbers(i),)


@equal(2)
def what_the_step_writes_outside() -> Calls:
    w = numbers(1)

    def step(x: gt.Tensor) -> gt.Tensor:
        w.__iadd__(1)
        return x + w

    return step, lambda i: (w,) if i < 4 else (numbers(i),)


@equal(2)
def a_leaf_that_the_step_trains() -> Calls:
    w = leaf()

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (x * w * 2).sum().backward()
        return w.grad * 1

    return step, lambda i: (leaf(i) if i < 4 else w,)


@equal()
def a_parameter_that_an_optimizer_writes() -> Calls:
    w = leaf()
    optimizer = gt.optim.SGD([w], lr=0.5)

    def step(x: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        y = x * 2
        w.grad = gt.ones(4)
        optimizer.step()
        return y + 1, x * 3

    return step, lambda i: (numbers(i) if i < 4 else w.detach(),)


@equal(2)
def a_buffer_that_the_step_moves() -> Calls:
    norm = nn.BatchNorm1d(4)

    def step(x: gt.Tensor, b: gt.Tensor) -> gt.Tensor:
        y = b * 2
        norm(x)
        return y + b

    return step, lambda i: (*rows(i), numbers(i) if i < 4 else norm.running_mean)


@equal(2)
def a_row_of_what_the_step_writes() -> Calls:
    w = gt.ones((4, 4))

    def step(x: gt.Tensor) -> gt.Tensor:
        w[1] = x * 2
        return x + w[1]

    return step, lambda i: (w[1],) if i < 3 or i > 6 else (numbers(i),)


@equal()
def views_of_arguments_are_written_and_returned() -> Calls:
    def step(x: gt.Tensor) -> tuple[gt.Tensor, ...]:
        x[1:3] *= 2
        x.reshape(2, 2)[0] += 1
        return x[::2], x, x.reshape(2, 2).T

    return step, one


@equal()
def activations_over_arguments() -> Calls:
    norm = nn.InPlaceABN(2)

    def step(x: gt.Tensor, image: gt.Tensor) -> Any:
        return F.relu(x, inplace=True) * 2, x, norm(image), norm.running_var * 1

    return step, lambda i: (numbers(i - 3), gt.tensor(
        np.random.default_rng(i).random((2, 2, 2, 2), "float32")))


@equal()
def memory_of_numpy() -> Calls:
    memory = np.arange(4, dtype="float32")
    outside = gt.asarray(memory)

    def args(i: int) -> tuple[gt.Tensor]:
        memory[:] = i
        return (numbers(i),)

    return lambda x: x * outside, args


# -- what a call returns ---------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    a: object
    b: object = None
    c: int = 3


@equal()
def trees_of_results() -> Calls:
    net = nn.Linear(4, 2)

    def step(x: gt.Tensor) -> Any:
        y = x * 2
        return Result(y, [x, y, x + 1]), {"a": y, "b": None}, net.weight, net.weight[0], "text"

    return step, one


@refused("the second time; return tensors")
def a_number_that_changes() -> Calls:
    draw = random.Random(0).random

    def step(x: gt.Tensor) -> tuple[gt.Tensor, float]:
        return x * 1, draw()

    return step, one


# -- gradients -------------------------------------------------------------------------------------


@equal()
def gradients_of_arguments() -> Calls:
    kept = [leaf(i) for i in range(3)]

    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        y.grad = None
        (x * x * y).sum().backward()
        return x.grad * y.grad

    return step, lambda i: (leaf(i), kept[i % 3])


@equal()
def a_gradient_that_is_replaced_while_somebody_has_it() -> Calls:
    w, kept = leaf(), []

    def args(i: int) -> tuple[gt.Tensor]:
        if i in (0, 4):
            w.grad = numbers(i)
            kept.append(w.grad)
        return one(i)

    return lambda x: x + w.grad, args


@refused("call zero_grad() within the step")
def gradients_of_every_second_call() -> Calls:
    w = leaf()

    def args(i: int) -> tuple[gt.Tensor]:
        if i % 2 == 0:
            w.grad = None
        return one(i)

    def step(x: gt.Tensor) -> gt.Tensor:
        (w * x).sum().backward()
        return x * 1

    return step, args


@refused("a .grad of before the step")
def a_gradient_that_nobody_drops() -> Calls:
    net, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = net.weight
    optimizer = gt.optim.SGD(net.parameters(), lr=0.01)

    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        loss = other(net(x)).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return step, small


@refused("a .grad of before the step")
def a_gradient_of_the_call_before() -> Calls:
    w = leaf()

    def step(x: gt.Tensor) -> gt.Tensor:
        before, w.grad = w.grad, None
        (w * x).sum().backward()
        return w.grad * 1 if before is None else before + w.grad

    return step, one


@equal()
def graphs_that_are_walked_twice() -> Calls:
    w = leaf()

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        loss = (w * w * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return w.grad * 1

    return step, one


@equal()
def a_penalty_of_gradients() -> Calls:
    w = leaf()

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (grad,) = gt.grad([(w * w * w * x).sum()], [w], create_graph=True)
        (grad * grad).sum().backward()
        return w.grad * 1

    return step, one


@refused("use gt.grad() for it")
def a_gradient_with_a_history() -> Calls:
    w = leaf()

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (w * w * w * x).sum().backward(create_graph=True)
        return (w.grad * w.grad).sum().detach()

    return step, one


@refused("item() of a tensor")
def a_hook_that_reads() -> Calls:
    w, seen = leaf(), []
    w.register_hook(lambda g: seen.append(g.sum().item()))

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 1

    return step, one


@refused("kept outside of the step")
def a_hook_that_keeps() -> Calls:
    w, seen = leaf(), []
    w.register_hook(lambda g: seen.append(g * 1))

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 1

    return step, one


@equal()
def hooks_that_step() -> Calls:
    v, w = leaf(), leaf()
    optimizer = gt.optim.SGD([w], lr=0.1, momentum=0.9)

    def after(p: gt.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def by_hand(p: gt.Tensor) -> None:
        with gt.no_grad():
            p -= p.grad * 0.1
        p.grad = None

    w.register_post_accumulate_grad_hook(after)
    v.register_post_accumulate_grad_hook(by_hand)

    def step(x: gt.Tensor) -> gt.Tensor:
        (v * w * x).sum().backward()
        return v.detach() + w.detach()

    return step, small


@equal(2)
def a_hook_that_comes_and_goes() -> Calls:
    w, hooks = leaf(), []

    def step(x: gt.Tensor) -> gt.Tensor:
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 1

    def args(i: int) -> tuple[gt.Tensor]:
        if i == 4:
            hooks.append(w.register_hook(lambda g: g * 2))
        if i == 8:
            hooks[0].remove()
        return one(i)

    return step, args


@refused("clone() or detach() it first")
def an_argument_that_gets_a_history() -> Calls:
    def step(x: gt.Tensor) -> gt.Tensor:
        x.requires_grad_()
        (x * x).sum().backward()
        return x.grad * 1

    return step, one


# -- training --------------------------------------------------------------------------------------


@equal()
def micro_batches() -> Calls:
    net = nn.Linear(4, 1)
    optimizer = gt.optim.Adam(net.parameters(), lr=0.1)

    def step(parts: list[gt.Tensor]) -> gt.Tensor:
        optimizer.zero_grad()
        for x in parts:
            (net(x).square().mean() / len(parts)).backward()
        optimizer.step()
        return net.weight * 1

    return step, lambda i: ([numbers(i + j) for j in range(3)],)


@equal()
def groups_rates_and_two_optimizers() -> Calls:
    nets = [nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(1, 1)]
    first = gt.optim.SGD([{"params": nets[0].parameters(), "lr": 0.1}], lr=0.01, momentum=0.9)
    second = gt.optim.AdamW(nets[2].parameters(), lr=0.1)

    def step(x: gt.Tensor) -> list[gt.Tensor]:
        for net in nets:
            net.zero_grad()
        nets[2](nets[1](nets[0](x))).square().sum().backward()
        first.step()
        second.step()
        return [net.weight * 1 for net in nets]

    def args(i: int) -> tuple[gt.Tensor]:
        if i == 4:
            first.add_param_group({"params": [*nets[1].parameters()], "lr": 0.5})
        if i == 7:
            first.param_groups[0]["lr"] = 0.001
        return small(i)

    return step, args


@equal(3)  # the leaves are new ones when they thaw
def parameters_that_freeze() -> Calls:
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = gt.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)

    def step(x: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        first.zero_grad()
        second.zero_grad()
        second(first(x)).square().sum().backward()
        optimizer.step()
        return first.weight * 1, second.weight * 1

    def args(i: int) -> tuple[gt.Tensor]:
        if i in (4, 8):
            first.requires_grad_(i == 8)
        return small(i)

    return step, args


@equal()
def states_that_are_loaded() -> Calls:
    net = nn.Linear(4, 1)
    optimizer, saved = gt.optim.Adam(net.parameters(), lr=0.01), []

    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        return net.weight * 1

    def args(i: int) -> tuple[gt.Tensor]:
        if i == 2:
            saved.extend(copy.deepcopy([optimizer.state_dict(), net.state_dict()]))
        if i == 5:
            optimizer.load_state_dict(saved[0])
            net.load_state_dict(saved[1])
        return small(i)

    return step, args


@equal(2)
def a_network_in_another_dtype() -> Calls:
    net = nn.Linear(4, 1)

    def args(i: int) -> tuple[gt.Tensor]:
        if i == 4:
            net.to("float64")
        return (numbers(i).astype(net.weight.dtype),)

    return lambda x: net(x), args


@equal()
def an_option_that_the_step_sets() -> Calls:
    w = leaf()
    optimizer = gt.optim.SGD([w], lr=1.0)

    def step(x: gt.Tensor) -> gt.Tensor:
        set_rate(optimizer, 0.25)
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()
        set_rate(optimizer, 4.0)
        return w * 1

    def args(i: int) -> tuple[gt.Tensor]:
        set_rate(optimizer, float(i))
        return one(i)

    return step, args


@refused("a value of Python's that changes")
def a_rate_of_a_counter() -> Calls:
    w = leaf()
    optimizer, draw = gt.optim.SGD([w], lr=1.0), random.Random(0).random

    def step(x: gt.Tensor) -> gt.Tensor:
        set_rate(optimizer, draw())
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()
        return w * 1

    return step, one


@equal()
def modes_within_and_counts() -> Calls:
    norm = nn.BatchNorm1d(4)

    def step(x: gt.Tensor) -> Any:
        first = norm(x)
        with gt.no_grad(), gt.settings.override(arena_min_bytes=0):
            second = norm(x) * norm.num_batches_tracked
        return first, second

    return step, rows


@equal()
def weights_of_classes() -> Calls:
    w = gt.ones(4)

    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        w.__iadd__(1)
        return F.cross_entropy(x, y, weight=w)

    return step, lambda i: (numbers(i, 12).reshape(3, 4) / 9, gt.tensor([i % 4, 1, 2]))


@refused("kept outside of the step")
def a_weight_that_is_computed_into_its_module() -> Calls:
    net = nn.utils.weight_norm(nn.Linear(4, 4))
    return lambda x: net(x), one


# -- state -----------------------------------------------------------------------------------------


@equal()
def states_of_recurrent_networks_and_caches() -> Calls:
    net, h, c = nn.LSTM(4, 3), gt.zeros((1, 1, 3)), gt.zeros((1, 1, 3))
    cache, at = gt.zeros((16, 4)), gt.zeros(1, dtype="int64")

    def step(x: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        y, (hidden, cell) = net(x.reshape(1, 1, 4), (h, c))
        h.copy_(hidden.detach())
        c.copy_(cell.detach())
        cache[at] = x.reshape(1, 4)
        at.__iadd__(1)
        return y, cache * 1

    return step, one


@equal()
def writes_through_views() -> Calls:
    whole = gt.zeros((4, 4))
    row = whole[2]

    def step(x: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        row.__iadd__(x)
        whole[1] = x
        whole.T[0] += x
        whole[3].fill_(7.0)
        y = x * 1
        part = y[1:]
        y += 1
        before = part * 2
        part += 5
        return whole * 1, y * before.sum()

    return step, one


@refused("kept outside of the step")
def a_metric_in_a_dict() -> Calls:
    metrics = {"n": gt.zeros(())}

    def step(x: gt.Tensor) -> gt.Tensor:
        metrics["n"] = metrics["n"] + x.sum()
        return x * 1

    return step, one


@refused("a value of Python's that changes")
def numbers_of_python() -> Calls:
    draw = random.Random(0).random
    return lambda x: x * draw(), one


# -- random numbers --------------------------------------------------------------------------------


@equal()
def seeds_between_calls() -> Calls:
    w = gt.zeros(4)

    def step(x: gt.Tensor) -> gt.Tensor:
        nn.init.normal_(w)
        return F.dropout(x, 0.5) * w + x[gt.random.permutation(4)]

    def args(i: int) -> tuple[gt.Tensor]:
        if i == 5:
            gt.random.manual_seed(7)
        return one(i)

    return step, args


@refused("seed before the step")
def a_seed_within() -> Calls:
    def step(x: gt.Tensor) -> gt.Tensor:
        gt.random.manual_seed(5)
        return x + gt.random.normal((4,))

    return step, one


@refused("seed before the step")
def a_seed_of_a_generator_within() -> Calls:
    source = gt.Generator()

    def step(x: gt.Tensor) -> gt.Tensor:
        source.manual_seed(5)
        return x + gt.random.normal((4,), generator=source)

    return step, one


@refused("seed before the step")
def a_state_within() -> Calls:
    state = gt.random.get_state()

    def step(x: gt.Tensor) -> gt.Tensor:
        gt.random.set_state(state)
        return x + gt.random.normal((4,))

    return step, one


# -- other processes -------------------------------------------------------------------------------


@refused("the values of all_gather_object, which differ in each call")
def objects_of_ranks() -> Calls:
    comm = Communicator(Alone())

    def step(x: gt.Tensor) -> gt.Tensor:
        return x * comm.all_gather_object(2)[0]

    return step, one


@refused("done() of a collective differs in each call; wait() for it")
def a_look_at_a_collective() -> Calls:
    comm = Communicator(Alone())

    def step(x: gt.Tensor) -> gt.Tensor:
        work = comm.all_reduce(x * 2, async_op=True)
        return work.wait() if work.done() else x

    return step, one


@refused("a collective that the step begins is not waited for in it")
def a_collective_that_is_left() -> Calls:
    comm = Communicator(Alone())

    def step(x: gt.Tensor) -> gt.Tensor:
        y = x * 2
        comm.all_reduce(y, async_op=True)
        return y

    return step, one


@refused("a communicator that is made in the step; make it before")
def a_new_communicator() -> Calls:
    comm = Communicator(Alone())

    def step(x: gt.Tensor) -> gt.Tensor:
        return gt.distributed.all_reduce(x, comm.duplicate())

    return step, one
