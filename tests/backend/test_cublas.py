"""Products on CUDA: every dtype and layout, what they cost, streams and threads, graphs."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda
from gtensor.backend import cublas, cublaslt, get_device, layouts
from gtensor.testing.compare import close

pytestmark = pytest.mark.gpu
on_host = pytest.mark.host_cuda

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float16), BFLOAT16, *map(np.dtype, ("f4", "f8", "c8", "c16"))]
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "complex64": 1e-4}
# Left, right, and the calls that one product makes.
SHAPES = [
    ((3, 4), (4, 5), 1), ((1, 4), (4, 1), 1), ((4, 1), (1, 6), 1), ((3, 2, 4), (3, 4, 2), 1),
    ((2, 3, 1, 4), (2, 3, 4, 2), 1), ((5, 2, 3), (3, 4), 1), ((2, 3), (5, 3, 4), 1),
    ((2, 1, 3, 2), (4, 2, 3), 1), ((0, 3), (3, 2), 0), ((2, 0), (0, 3), 0),
    ((2, 3, 0), (2, 0, 4), 0), ((0, 2, 3), (0, 3, 2), 0),
]


def numbers(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def placed(x: np.ndarray, layout: str) -> Any:
    """The values on the GPU: rows in one piece, columns in one piece, rows apart, or neither."""
    device = get_device("cuda")
    if layout == "columns":
        return device.from_numpy(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)
    if layout == "rows":
        return device.from_numpy(x)
    step = 2 if layout == "neither" else 1
    whole = device.xp.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
    part = whole[..., :step * x.shape[-1]:step]
    part[...] = device.from_numpy(x)
    return part


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_of_any_layout_is_added_to_what_a_buffer_of_any_layout_holds(dtype):
    wide = np.complex128 if dtype.kind == "c" else np.float64
    tolerance = TOLERANCE.get(dtype.name, 1e-10)
    layouts = [(a, b, "rows") for a in ("rows", "columns", "apart") for b in ("rows", "columns")]
    layouts += [("neither", "columns", "columns"), ("rows", "neither", "apart"),
                ("columns", "rows", "neither")]
    for place, (left, right, _) in enumerate(SHAPES):
        a, b = numbers(left, dtype, 1), numbers(right, dtype, 2)
        product = a.astype(wide) @ b.astype(wide)
        c = numbers(product.shape, dtype, 3)
        for turn, (at_a, at_b, at_out) in enumerate(layouts):
            beta = (0.0, 1.0, 0.5)[(turn + place) % 3]
            out = placed(c if beta else np.full_like(c, np.nan), at_out)
            given = get_device("cuda").matmul(placed(a, at_a), placed(b, at_b), out, beta)
            assert given is out
            close("the product", out, product + beta * c.astype(wide) if beta else product,
                  (tolerance, tolerance))


def test_half_precision_is_added_up_in_float32():
    """4,096 ones: a sum of float16 or bfloat16 numbers would stop at 2,048 and 256."""
    for dtype in DTYPES[:2]:
        for lead in ((), (2, 3)):
            a, b = (gt.ones((*lead, *shape), dtype=dtype) for shape in ((1, 4096), (4096, 2)))
            assert (gt.astype(a @ b, np.float32).numpy() == 4096).all(), (dtype, lead)
        device = get_device("cuda")
        out = device.xp.full((1, 2), 0.25, np.float32)
        device.matmul(*(gt.ones(shape, dtype=dtype).array for shape in ((1, 4096), (4096, 2))),
                      out, 1.0)
        assert (device.to_numpy(out) == 4096.25).all(), "not rounded to the inputs' dtype"


def test_columns_of_one_buffer_may_be_an_input_and_the_out():
    device = get_device("cuda")
    whole = device.xp.asarray(numbers((8, 16), np.dtype("f4"), 1))
    left, product = whole[:, :8], device.to_numpy(whole[:, :8] @ whole[:, :8])
    for out in (whole[:, 8:], whole[:, 15:7:-1]):
        device.matmul(left, left, out)
        np.testing.assert_allclose(device.to_numpy(out), product, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="overlaps an input"):
        device.matmul(left, left, whole[:, 7:15])
    apart = device.xp.empty((3, 8), np.float32)[:, ::3]  # rows end where others are not yet
    device.matmul(left[:3], left[:, :3], apart)
    np.testing.assert_allclose(device.to_numpy(apart), product[:3, :3], rtol=1e-4, atol=1e-4)
    single = device.xp.empty((4, 4), np.float32)
    half = single.view(np.float16)[:, 1::2]  # the second half of each element
    with pytest.raises(ValueError, match="overlaps an input"):
        device.matmul(half, half, single)


def test_what_is_refused_is_named_before_anything_is_changed():
    device = get_device("cuda")
    a = device.xp.ones((3, 3), np.float32)
    for out in (a, a.T, a[::-1]):
        with pytest.raises(ValueError, match="overlaps an input; wanted memory of its own"):
            device.matmul(a, a, out)
    windows = device.xp.lib.stride_tricks.as_strided
    for strides in ((0, 4), (4, 4), (8, 4)):
        with pytest.raises(ValueError, match="with elements at one place; wanted memory of its"):
            device.matmul(a, a, windows(device.xp.empty(9, np.float32), (3, 3), strides))
    with pytest.raises(ValueError, match=r"an out of shape \(3, 2\); wanted \(3, 3\)"):
        device.matmul(a, a, device.xp.empty((3, 2), np.float32))
    with pytest.raises(TypeError, match="of float32 and float64 into float32; wanted one float"):
        device.matmul(a, a.astype(np.float64))
    with pytest.raises(TypeError, match="of int64 and int64 into int64; wanted one floating"):
        device.matmul(*[device.xp.ones((2, 2), np.int64)] * 2)
    assert (device.to_numpy(a) == 1).all()


@on_host
def test_a_product_is_one_call_and_nothing_beside_it():
    device = get_device("cuda")
    for left, right, calls in SHAPES:
        for chosen in (("rows", "rows"), ("columns", "columns"), ("apart", "columns")):
            a, b = (placed(numbers(shape, np.dtype("f4"), 1), layout)
                    for shape, layout in zip((left, right), chosen, strict=True))
            out = device.matmul(a, b)
            if not calls:
                continue
            for beta in (0.0, 1.0, 0.5):
                hostcuda.reset_counters()
                device.matmul(a, b, out, beta)
                found = hostcuda.counters()
                assert sum(found.library.values()) == calls
                assert found.kernels == found.copies == found.memsets == found.other == {}


@on_host
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=str)
def test_a_walk_transposes_and_accumulates_without_copies(dtype):
    """x is read by two layers, k by two products: each second product adds into the first's."""
    x, v, w = (gt.tensor(numbers(shape, dtype, 1), device="cuda", requires_grad=True)
               for shape in ((4, 3), (5, 3), (5, 3)))
    k, q, r = (gt.tensor(numbers(shape, dtype, 1), device="cuda", requires_grad=True)
               for shape in ((2, 3, 5), (2, 4, 3), (2, 4, 3)))
    linear = gt.nn.functional.linear
    for total in (linear(x, v) + linear(x, w), q @ k + r @ k):
        g = gt.ones(total.shape, dtype=dtype, device="cuda")
        hostcuda.reset_counters()
        total.backward(g)
        found = hostcuda.counters()
        assert sum(found.library.values()) == 4
        assert found.kernels == found.copies == found.memsets == {}


@on_host
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bias_and_its_gradient_are_part_of_a_product(dtype):
    """One call where cublasLt has the epilogue; complex numbers and columns are composed."""
    device = get_device("cuda")
    wide = np.complex128 if dtype.kind == "c" else np.float64
    tolerance = (TOLERANCE.get(dtype.name, 1e-10),) * 2
    for rows, inner, columns in ((5, 3, 7), (1, 4, 1), (16, 8, 24)):
        a, b = numbers((rows, inner), dtype, 1), numbers((inner, columns), dtype, 2)
        bias, c = numbers((columns,), dtype, 3), numbers((rows, columns), dtype, 4)
        product = a.astype(wide) @ b.astype(wide)
        for layout in ("rows", "columns", "apart"):
            out, at_a, at_b = placed(c, layout), placed(a, layout), placed(b, "rows")
            given, sums = device.from_numpy(bias), device.xp.full(rows, np.nan, dtype)
            hostcuda.reset_counters()
            device.matmul(at_a, at_b, out, 0.0, bias=given)
            device.matmul(at_a, at_b, out, 1.0, 0.5, sums=sums)
            found = hostcuda.counters()
            close("the product", out, 1.5 * product + bias, tolerance)
            close("the sums", sums, a.astype(wide).sum(-1), tolerance)
            fused = {"cublasLtMatmul": 2}
            if dtype.kind != "c" and layout != "columns":
                assert (found.library, found.kernels, found.copies) == (fused, {}, {})
            else:
                assert found.launches > 2 or min(rows, columns) == 1


@on_host
def test_a_failure_names_the_op_its_operands_and_the_status(monkeypatch):
    a, b = gt.ones((2, 3), device="cuda"), gt.ones((3, 4), device="cuda")
    a @ b
    monkeypatch.setattr(cublas, "_KINDS", {
        pair: kind._replace(compute=64) for pair, kind in cublas._KINDS.items()})
    with pytest.raises(RuntimeError, match=(
            r"cublasGemmEx_64 answered status \d+ \([a-z ]+\) in matmul of float32 \(2, 3\) and "
            r"\(3, 4\) into float32 \(2, 4\)")) as caught:
        a @ b
    assert not isinstance(caught.value, MemoryError)


@on_host
def test_products_use_tf32_only_if_it_is_switched_on(monkeypatch):
    seen = []
    real = cublas.call
    monkeypatch.setattr(cublas, "call", lambda name, *given: (seen.append((name, given)),
                                                             real(name, *given))[1])
    for dtype, wanted in ((np.float32, 77), (np.complex64, 77), (np.float16, 68), (np.float64, 70)):
        a = gt.ones((2, 2), dtype=dtype, device="cuda")
        for switched in (0, 1):
            seen.clear()
            with gt.settings.override(tf32=switched):
                a @ a
            codes = [given[-2] for name, given in seen if name == "cublasGemmEx_64"]
            assert codes == [wanted if switched or wanted != 77 else 68]


@on_host
def test_a_table_of_addresses_is_made_once_for_the_same_memory():
    device = get_device("cuda")
    a = device.xp.asarray(numbers((2, 3, 4, 5), np.dtype("f4"), 1)).swapaxes(1, 2)
    b = device.xp.asarray(numbers((2, 4, 5, 6), np.dtype("f4"), 2))
    out = device.matmul(a, b)
    hostcuda.reset_counters()
    device.matmul(a, b, out)
    found = hostcuda.counters()
    assert (found.library, found.kernels) == ({"cublasGemmBatchedEx": 1}, {})
    graph = gt.Graph("cuda")
    with graph.capture():
        captured = device.matmul(a, b)
    device.products._tables.clear()
    hostcuda.reset_counters()
    graph.replay()
    assert np.array_equal(device.to_numpy(captured), device.to_numpy(out))


def shifted(x: np.ndarray, offset: int) -> Any:
    """The values on the GPU, that many elements behind a multiple of 256 bytes."""
    device = get_device("cuda")
    whole = device.xp.zeros(x.size + offset, x.dtype)
    part = whole[offset:].reshape(x.shape)
    part[...] = device.from_numpy(x)
    return part


def by_heads(rng: Any, lead: tuple[int, int], rows: int, columns: int, dtype: np.dtype,
             offset: int) -> tuple[np.ndarray, Any]:
    """Matrices (*lead, rows, columns) as attention has them: heads lie beside each other."""
    x = numbers((lead[0], rows, lead[1], columns), dtype, int(rng.integers(1 << 32)))
    return x.swapaxes(1, 2), shifted(x, offset).swapaxes(1, 2)


STRICT = [(np.dtype(np.float16), 0), (BFLOAT16, 0), (np.dtype("f4"), 1), (np.dtype("c8"), 1)]


@on_host
@pytest.mark.parametrize(("dtype", "tf32"), [*STRICT, (np.dtype("f4"), 0), (np.dtype("f8"), 0)],
                         ids=str)
def test_a_batch_that_is_not_aligned_goes_by_strides(dtype, tf32):
    """cuBLAS may read matrices of halves and of TF32 in a table 16 bytes at a time."""
    device, rng = get_device("cuda"), np.random.default_rng()
    about = f"seed {rng.bit_generator.seed_seq.entropy}"
    wide = np.complex128 if dtype.kind == "c" else np.float64
    tolerance = (TOLERANCE.get(dtype.name, 1e-10),) * 2
    step = 16 // dtype.itemsize  # elements
    for lead, inner, offsets, aligned in (
        ((3, 5), step, (0, 0, 0), True), ((2, 7), step, (step, 0, step), True),
        ((3, 5), step, (1, 0, 0), False), ((5, 3), step, (0, step + 1, 0), False),
        ((3, 3), 2 * step, (0, 0, 1), False), ((3, 5), step + 1, (0, 0, 0), False),
        ((4, 2), 2 * step - 1, (step, step, step), False), ((7, 2), 3, (3, 1, 2), False),
    ):
        for flipped in (False, True):
            (a, left), (b, right), (c, out) = (
                by_heads(rng, lead, rows, columns, dtype, offset) for rows, columns, offset in zip(
                    (4, 8, 4), (inner, inner, 8), offsets, strict=True))
            if flipped:  # a step back along the longer axis, which no strided call takes
                axis = int(lead[1] > lead[0])
                a, left = np.flip(a, axis), device.xp.flip(left, axis)
            hostcuda.reset_counters()
            with gt.settings.override(tf32=tf32):
                device.matmul(left, right.swapaxes(2, 3), out, 0.5)
            found = hostcuda.counters()
            wanted = a.astype(wide) @ b.swapaxes(2, 3).astype(wide) + 0.5 * c.astype(wide)
            close(f"{about}, {lead}, {inner}, {offsets}", out, wanted, tolerance)
            calls = max(lead) if flipped and lead[0] != lead[1] else min(lead)
            assert found.library == (
                {"cublasGemmBatchedEx": 1} if aligned or (dtype, tf32) not in STRICT
                else {"cublasGemmStridedBatchedEx": calls})


@on_host
@pytest.mark.parametrize(("dtype", "tf32"), STRICT, ids=str)
def test_a_batch_that_is_not_aligned_and_takes_many_calls_is_one_launch(dtype, tf32):
    device, rng = get_device("cuda"), np.random.default_rng()
    lead = cublas._MOST_CALLS + 1, cublas._MOST_CALLS + 2
    (a, left), (b, right) = (by_heads(rng, lead, 2, 3, dtype, 1) for _ in range(2))
    with gt.settings.override(tf32=tf32):
        for transposed in (False, True):
            out = device.xp.empty((*lead, 2, 2), dtype)
            hostcuda.reset_counters()
            device.matmul(left, right.swapaxes(2, 3), out.swapaxes(2, 3) if transposed else out)
            found = hostcuda.counters()
            assert found.library == {} and sum(found.kernels.values()) == 1
            wide = np.complex128 if dtype.kind == "c" else np.float64
            product = a.astype(wide) @ b.swapaxes(2, 3).astype(wide)
            close("the product", out.swapaxes(2, 3) if transposed else out, product,
                  (TOLERANCE[dtype.name],) * 2)


@on_host
def test_every_row_of_a_table_of_addresses_is_aligned(monkeypatch):
    """In a capture, too, and where a table is larger than what a stream keeps."""
    device, rng, seen = get_device("cuda"), np.random.default_rng(), []
    real = cublas.call

    def noted(name: str, *given: Any) -> None:
        if name == "cublasGemmBatchedEx_64":
            seen.extend(given[place] for place in (7, 10, 14))
        real(name, *given)

    monkeypatch.setattr(cublas, "call", noted)
    monkeypatch.setattr(cublas, "_TABLE_ELEMENTS", 128)
    device.products._tables.clear()
    for lead in ((3, 5), (3, 3), (1, 2), (5, 5), (2, 2), (7, 7), (3, 7)):
        for captured in (False, True):
            (a, left), (b, right) = (
                by_heads(rng, lead, 4, 4, np.dtype("f4"), 0) for _ in range(2))
            seen.clear()
            if captured:
                graph = gt.Graph("cuda")
                with graph.capture():
                    out = device.matmul(left, right)
                graph.replay()
            else:
                out = device.matmul(left, right)
            np.testing.assert_allclose(device.to_numpy(out), a @ b, rtol=1e-4, atol=1e-4)
            assert len(seen) == (3 if min(lead) > 1 else 0)
            assert [address % 32 for address in seen] == [0] * len(seen), lead
    device.products._tables.clear()


@on_host
@pytest.mark.parametrize("dtype", [*DTYPES[:2], np.dtype("f4"), np.dtype("f8")], ids=str)
def test_an_epilogue_of_a_vector_that_is_not_aligned_is_composed(dtype):
    device, rng = get_device("cuda"), np.random.default_rng()
    tolerance = (TOLERANCE.get(dtype.name, 1e-10),) * 2
    a, b, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((5, 8), (8, 16), (16,)))
    product = a.astype("f8") @ b.astype("f8")
    left, right, step = placed(a, "rows"), placed(b, "rows"), 16 // dtype.itemsize
    for offset in (0, 1, step - 1, step, step + 1):
        fits = offset % step == 0
        vector, sums = shifted(bias, offset), shifted(np.full(5, np.nan, dtype), offset)
        out = device.xp.empty((5, 16), dtype)
        hostcuda.reset_counters()
        device.matmul(left, right, out, bias=vector)
        assert hostcuda.counters().library == {"cublasLtMatmul" if fits else "cublasGemmEx": 1}
        close("the product", out, product + bias.astype("f8"), tolerance)
        device.matmul(left, right, out, sums=sums)
        close("the sums", sums, a.astype("f8").sum(-1), tolerance)
        kept = device.xp.empty(*cublas.kept_layout("relu", 5, 16, dtype))
        again = device.products.activated(left, right, out, "relu", vector, kept)
        assert again == fits
        assert device.products.differentiated(left, right, out, "relu", kept, vector) == fits
        wrong = device.xp.empty(kept.nbytes + 8, np.uint8)[8:].reshape(kept.shape)
        assert not device.products.activated(left, right, out, "relu", None, wrong)


@on_host
def test_a_layer_with_biases_that_are_not_aligned_has_right_values_and_gradients():
    """Views of one flat buffer of parameters."""
    rng = np.random.default_rng()
    given = [rng.standard_normal(shape).astype("f4")
             for shape in ((6, 3), (5, 3), (5,), (3, 5), (3,))]
    for activation in ("relu", "gelu_tanh"):
        results = []
        for on_gpu in (True, False):
            flat = gt.tensor(np.concatenate([[0.5], *(x.ravel() for x in given)]).astype("f4"),
                             device="cuda" if on_gpu else "cpu", requires_grad=True)
            parts, start = [], 1
            for x in given:
                parts.append(flat[start:start + x.size].reshape(x.shape))
                start += x.size
            y = gt.nn.functional.feed_forward(*parts, activation=activation)
            gt.sum(y * y).backward()
            results.append((y.numpy(), flat.grad.numpy()))
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@on_host
def test_a_stream_has_a_workspace_of_its_own_that_goes_with_it():
    from gtensor.hostcuda.libraries.cublas import handles

    device = get_device("cuda")
    a = gt.ones((4, 4), device="cuda")

    def used() -> tuple[int, int]:
        a @ a
        context = handles[device.products._thread.lease.handle.pointer]
        return context.workspace

    first = used()
    side = gt.stream("cuda")
    with side:
        second = used()
    assert used() == first and first[1] == second[1] == 32 << 20, "of a card of Hopper's"
    assert abs(first[0] - second[0]) >= 32 << 20
    number = side.id
    assert number in device.products._workspaces
    del side
    gc.collect()
    assert number not in device.products._workspaces


def test_a_timeline_shows_the_workspace_as_one():
    a = gt.ones((4, 4), device="cuda")
    with gt.memory.timeline(device="cuda") as timeline, gt.stream("cuda"):
        a @ a
    nbytes = get_device("cuda").products._workspace_bytes()
    assert [life.category for life in timeline.history().lives
            if life.made is not None and life.nbytes == nbytes] == ["workspace"]


def test_threads_have_handles_of_their_own_and_leave_them_to_others():
    products = get_device("cuda").products
    a = gt.ones((4, 4), device="cuda")
    a @ a
    seen: list[int] = []

    def work() -> None:
        assert (a @ a).numpy().sum() == 64
        seen.append(products._thread.lease.handle.pointer)

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gc.collect()
    assert len(seen) == 3 and len(set(seen)) == 1, "a handle that is free serves the next thread"
    assert seen[0] != products._thread.lease.handle.pointer


def test_a_graph_keeps_the_workspace_of_its_products():
    stats = gt.memory.stats
    x = gt.tensor(numbers((8, 8), np.dtype("f4"), 1), device="cuda")
    x @ x
    gc.collect()
    before = stats("cuda").private
    graph = gt.Graph("cuda")
    with graph.capture():
        y = x @ x
    workspace = get_device("cuda").products._workspace_bytes()
    gc.collect()
    assert stats("cuda").private - before >= workspace
    x[...] = x * 2.0
    wanted = (x @ x).numpy()
    graph.replay()
    assert np.array_equal(y.numpy(), wanted)
    del graph, y
    gc.collect()
    assert stats("cuda").private == before


class _Net(gt.nn.Module):
    """Convolutions (one in groups), a layer, a normalization, and attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = gt.nn.Conv2d(2, 4, 3, padding=1)
        self.second = gt.nn.Conv2d(4, 4, 3, groups=2, stride=2, padding=1)
        self.last = gt.nn.Linear(4 * 9, 3)

    def forward(self, x: Any) -> Any:
        x = self.second(gt.tanh(self.first(x)))
        pixels = gt.permute_dims(gt.reshape(x, (5, 4, 9)), (0, 2, 1))
        mixed = gt.nn.functional.scaled_dot_product_attention(pixels, pixels, pixels)
        return self.last(gt.reshape(mixed, (5, 36)))


def test_a_captured_training_step_equals_the_eager_one_bit_for_bit():
    def trained(replays: bool) -> tuple[list[float], list[np.ndarray]]:
        gt.manual_seed(0)
        net = _Net().to("cuda")
        optimizer = gt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        x = gt.tensor(numbers((5, 2, 6, 6), np.dtype("f4"), 0), device="cuda")
        labels = gt.tensor(np.array([0, 1, 2, 1, 0]), device="cuda")

        def step() -> Any:
            optimizer.zero_grad()
            loss = gt.nn.functional.cross_entropy(net(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        losses = [step().item()]
        graph = gt.Graph("cuda")
        if replays:
            with graph.capture():
                loss = step()
        for turn in range(4):
            x[...] = gt.tensor(numbers((5, 2, 6, 6), np.dtype("f4"), turn), device="cuda")
            if replays:
                graph.replay()
            else:
                loss = step()
            losses.append(loss.item())
        return losses, [p.numpy() for p in net.parameters()]

    eager, captured = trained(False), trained(True)
    assert eager[0] == captured[0] and len(set(eager[0])) == 5
    for a, b in zip(eager[1], captured[1], strict=True):
        assert np.array_equal(a, b)


# -- the tests tested ------------------------------------------------------------------------------


def _never_set(handle: Any, stream: Any, workspace: Any) -> None:
    cublas.call("cublasSetStream_v2", handle.pointer, stream.stream.ptr)
    handle.stream = stream.id


def _once_for_all(products: Any, stream: int) -> Any:
    return products._workspaces.setdefault(stream, next(iter(products._workspaces.values())))


def _never_transposed(laid: Any) -> tuple[int, int]:
    (rows, columns), (down, across) = laid.shape[-2:], laid.steps[-2:]
    return layouts.AS_IT_LIES, layouts._leading(rows, columns, down, across)


def _always_merged(axes: Any) -> list[Any]:
    axes = [*axes]
    return [layouts.Axis(prod(axis.length for axis in axes), axes[-1].steps)] if axes else []


FAULTS = {
    "a stream is set and its workspace is not": (
        cublas._Handle, "use", _never_set,
        test_a_stream_has_a_workspace_of_its_own_that_goes_with_it, ()),
    "all streams share a workspace": (
        cublas.Products, "_workspace", _once_for_all,
        test_a_stream_has_a_workspace_of_its_own_that_goes_with_it, ()),
    "transposed operands are copied": (
        layouts._Laid, "read", _never_transposed,
        test_a_walk_transposes_and_accumulates_without_copies, (np.dtype(np.float32),)),
    "a sum of no products leaves the buffer as it was": (
        cublas, "matmul_into", lambda *given, **options: None,
        test_a_product_of_any_layout_is_added_to_what_a_buffer_of_any_layout_holds,
        (np.dtype(np.float32),)),
    "leading axes are joined that do not step evenly": (
        layouts, "merged", _always_merged,
        test_a_product_of_any_layout_is_added_to_what_a_buffer_of_any_layout_holds,
        (np.dtype(np.float32),)),
    "rows may lie over each other": (
        layouts, "_leading", lambda rows, columns, down, across: columns,
        test_a_product_of_any_layout_is_added_to_what_a_buffer_of_any_layout_holds,
        (np.dtype(np.float32),)),
    "matrices of halves that are not aligned go by addresses": (
        cublas, "_ALIGNED", 1, test_a_batch_that_is_not_aligned_goes_by_strides,
        (np.dtype(np.float16), 0)),
    "the rows of a table lie where the last one ends": (
        cublas, "_width", lambda count: count,
        test_every_row_of_a_table_of_addresses_is_aligned, (pytest.MonkeyPatch,)),
    "an epilogue's vector may lie anywhere": (
        cublaslt, "_EPILOGUE_ALIGNED", 1,
        test_an_epilogue_of_a_vector_that_is_not_aligned_is_composed, (np.dtype("f4"),)),
    "an out may overlap an input": (
        cublas, "check_out", lambda *given: None,
        test_what_is_refused_is_named_before_anything_is_changed, ()),
}


@on_host
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name, monkeypatch):
    where, what, wrong, test, arguments = FAULTS[name]
    monkeypatch.setattr(where, what, wrong)
    layouts.plan.cache_clear()
    with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception)):
        test(*(monkeypatch if x is pytest.MonkeyPatch else x for x in arguments))
    layouts.plan.cache_clear()
    device = get_device("cuda")
    with suppress(RuntimeError):  # a fault of the device is found where the host waits for it
        device.synchronize()
    hostcuda.forgive()
    device.products._tables.clear()
