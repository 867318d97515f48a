"""cuRAND's host API and CuPy's module `_generator_api`, over NumPy's Philox.

The distributions and their intervals are NVIDIA's and CuPy's; the numbers of a seed differ from a
GPU's. As there, equal seeds and offsets give equal numbers, an offset skips as many results (cuRAND
documentation, "Generator Options"), and a state in device memory is updated in stream order.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gtensor.hostcuda.libraries.calls import (
    Context,
    Handles,
    Library,
    Traffic,
    Work,
    enqueue,
    require,
    runtime,
    store,
    view,
)

# curandStatus
NOT_INITIALIZED, TYPE_ERROR, OUT_OF_RANGE, LENGTH_NOT_MULTIPLE = 101, 103, 104, 105
LAUNCH_FAILURE, INTERNAL_ERROR = 201, 999
VERSION = 10400  # 10.4.0

library = Library("libcurand.so.10", refusal=TYPE_ERROR, internal=INTERNAL_ERROR)
function = library.function

# "Generator Types": the pseudorandom ones. The quasirandom ones (200 and more) are not here.
PSEUDO = {100, 101, 121, 141, 142, 161}
ORDERINGS = {100, 101, 102, 103, 104}  # best, default, seeded, legacy, dynamic


class Generator(Context):
    """A generator of the host API: a seed and a position in its sequence of 32-bit words."""

    def __init__(self) -> None:
        super().__init__(LAUNCH_FAILURE)
        self.seed = self.position = 0

    def words(self, count: int) -> Callable[[], np.ndarray]:
        """The next words, which a call takes when it is made and computes in the queue."""
        seed, first = self.seed, self.position
        self.position += count

        def compute() -> np.ndarray:
            bits = np.random.Philox(key=seed)
            bits.advance(first // 8)  # a block of Philox is four numbers of 64 bits
            skip = first % 8
            return bits.random_raw((skip + count + 1) // 2).view("u4")[skip : skip + count]

        return compute

    def enqueue(self, name: str, work: Work, traffic: Traffic | None = None) -> None:
        # No section allows stream capture, so it is refused.
        require(not runtime.is_capturing(self.stream), LAUNCH_FAILURE)
        super().enqueue(name, work, traffic)


generators = Handles(NOT_INITIALIZED)


@function("curandCreateGenerator", "pi")
def create(result: int, kind: int) -> None:
    require(kind in PSEUDO, TYPE_ERROR)
    store(result, generators.add(Generator()), "u8")


@function("curandDestroyGenerator", "p")
def destroy(generator: int) -> None:
    generators.remove(generator)


@function("curandGetVersion", "p")
def get_version(result: int) -> None:
    store(result, VERSION, "i4")


@function("curandSetStream", "pp")
def set_stream(generator: int, stream: int) -> None:
    generators[generator].stream = stream


@function("curandSetPseudoRandomGeneratorSeed", "pl")
def set_seed(generator: int, seed: int) -> None:
    state = generators[generator]
    state.seed, state.position = seed & (2**64 - 1), 0


@function("curandSetGeneratorOffset", "pl")
def set_offset(generator: int, offset: int) -> None:
    generators[generator].position = offset & (2**64 - 1)


@function("curandSetGeneratorOrdering", "pi")
def set_ordering(generator: int, order: int) -> None:
    generators[generator]
    require(order in ORDERINGS, OUT_OF_RANGE)


@function("curandGenerate", "ppz")
def generate(generator: int, out: int, n: int) -> None:
    words = generators[generator].words(n)

    def work() -> None:
        view(out, (n,), "u4")[...] = words()

    generators[generator].enqueue("curandGenerate", work)


@function("curandGenerateLongLong", "ppz")
def generate_long_long(generator: int, out: int, n: int) -> None:
    """Only the 64-bit quasirandom generators have it."""
    require(generators[generator] is None, TYPE_ERROR)


def uniform(words: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """curandGenerateUniform: "between 0.0 and 1.0, where 0.0 is excluded and 1.0 included"."""
    if dtype == np.float32:
        return (words * np.float32(2.0**-32) + np.float32(2.0**-33)).astype("f4")
    high, low = words[0::2].astype("u8"), words[1::2].astype("u8")
    return ((high << np.uint64(21)) ^ low >> np.uint64(11)) * 2.0**-53 + 2.0**-54


def normal(words: np.ndarray, dtype: np.dtype, mean: float, deviation: float) -> np.ndarray:
    """Box and Muller's method (curand_normal.h); the results come in pairs."""
    values = uniform(words, dtype).astype("f8")
    radius, angle = np.sqrt(-2 * np.log(values[0::2])), 2 * np.pi * values[1::2]
    pairs = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    return (pairs.ravel() * deviation + mean).astype(dtype)


def distribution(
    name: str, letters: str, dtype: Any, even: bool, compute: Callable[..., np.ndarray]
) -> None:
    kind = np.dtype(dtype)

    def fill(generator: int, out: int, n: int, *parameters: float) -> None:
        state = generators[generator]
        # curandGenerateNormal: n must be even for pseudorandom generators.
        require(not even or n % 2 == 0, LENGTH_NOT_MULTIPLE)
        words = state.words(n * kind.itemsize // 4)

        def work() -> None:
            view(out, (n,), kind)[...] = compute(words(), kind, *parameters)

        state.enqueue(name, work)

    function(name, letters)(fill)


distribution("curandGenerateUniform", "ppz", "f4", False, uniform)
distribution("curandGenerateUniformDouble", "ppz", "f8", False, uniform)
for name, letters, dtype in (("Normal", "ppzff", "f4"), ("NormalDouble", "ppzdd", "f8")):
    distribution(f"curandGenerate{name}", letters, dtype, True, normal)
    distribution(
        f"curandGenerateLog{name}", letters, dtype, True,
        lambda *arguments: np.exp(normal(*arguments)),
    )  # fmt: skip


@function("curandGeneratePoisson", "ppzd")
def generate_poisson(generator: int, out: int, n: int, mean: float) -> None:
    state = generators[generator]
    require(mean > 0, OUT_OF_RANGE)
    words = state.words(n)

    def work() -> None:
        seeds = np.random.Generator(np.random.Philox(key=int(words()[:1].sum()) if n else 0))
        view(out, (n,), "u4")[...] = seeds.poisson(mean, n)

    state.enqueue("curandGeneratePoisson", work)


# ---------------------------------------------------------------------------- _generator_api

kernels = Library("cupy/random/_generator_api")


def counters(state: int) -> np.ndarray:
    """The first 16 bytes of the states in device memory: the seed, and how often it was used."""
    return view(state, (2,), "u8")


@kernels.function("_Z21init_curand_generatorilmll", "i l z l l", result="v")
def init(kind: int, state: int, seed: int, size: int, stream: int) -> None:
    def work() -> None:
        counters(state)[...] = (seed, 0)

    enqueue(stream, "init_curand", work, 0)


def parameter(address: int, dtype: Any, n: int) -> np.ndarray:
    """An array that a distribution takes: address, dimensions, shape, strides in device memory."""
    pointer, ndim = (int(value) for value in view(address, (2,), "i8"))
    both = [int(value) for value in view(address + 16, (2 * ndim,), "i8")]
    shape, strides = tuple(both[:ndim]), tuple(both[ndim:])
    memory = view(pointer, _extent(shape, strides, dtype), "u1")
    whole = np.ndarray(shape, dtype, memory, 0, strides)
    return np.resize(whole, n)  # element i belongs to result i, from the start again at the end


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> tuple[int]:
    if 0 in shape:
        return (0,)
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    return (last + np.dtype(dtype).itemsize,)


def demangled(symbol: str) -> str:
    """The name in the symbol of a C++ function: _Z, the length of the name, the name, its types."""
    length = re.match(r"_Z(\d+)", symbol)
    assert length is not None
    return symbol[length.end() :][: int(length[1])]


def sampled(mangled: str, dtype: Any, draw: Callable, *arrays: str, plain: str = "") -> None:
    """A distribution: the types of its array parameters, and the letters of its other ones."""
    letters = "i l l l l l" + "l" * len(arrays) + plain
    name = demangled(mangled)

    def fill(kind: int, state: int, states: int, out: int, n: int, stream: int, *more: Any) -> None:
        def work() -> None:
            seed, used = (int(value) for value in counters(state))
            counters(state)[1] += np.uint64(1)
            generator = np.random.Generator(np.random.Philox(key=seed, counter=used << 64))
            values = [parameter(a, t, n) for a, t in zip(more, arrays, strict=False)]
            view(out, (n,), dtype)[...] = draw(generator, n, *values, *more[len(arrays) :])

        enqueue(stream, name, work, 0)

    kernels.function(mangled, letters, result="v")(fill)


def whole_numbers(generator: np.random.Generator, n: int, most: int, mask: int) -> np.ndarray:
    """interval: from 0 to `most`, the end included."""
    return generator.integers(0, most, n, dtype="u8", endpoint=True)


sampled("_Z3rawilllll", "u4", lambda g, n: g.integers(0, 2**32, n))
sampled("_Z14random_uniformilllll", "f8", lambda g, n: g.random(n))
sampled("_Z20random_uniform_floatilllll", "f4", lambda g, n: g.random(n, dtype="f4"))
sampled("_Z11interval_32illllljj", "u4", whole_numbers, plain="ii")
sampled("_Z11interval_64illlllmm", "u8", whole_numbers, plain="zz")
sampled("_Z4betailllllll", "f8", lambda g, n, a, b: g.beta(a, b), "f8", "f8")
sampled("_Z11exponentialilllll", "f8", lambda g, n: g.standard_exponential(n))
sampled("_Z9geometricillllll", "i8", lambda g, n, p: g.geometric(p), "f8")
sampled(
    "_Z14hypergeometricillllllll", "i8",
    lambda g, n, good, bad, sample: g.hypergeometric(good, bad, sample), "i8", "i8", "i8",
)  # fmt: skip
sampled("_Z9logseriesillllll", "i8", lambda g, n, p: g.logseries(p), "f8")
sampled("_Z15standard_normalilllll", "f8", lambda g, n: g.standard_normal(n))
sampled("_Z21standard_normal_floatilllll", "f4", lambda g, n: g.standard_normal(n, dtype="f4"))
sampled("_Z14standard_gammaillllll", "f8", lambda g, n, k: g.standard_gamma(k), "f8")
sampled("_Z7poissonillllll", "i8", lambda g, n, mean: g.poisson(mean), "f8")
# The last argument is CuPy's own table for binomial numbers, which NumPy does not need.
sampled("_Z8binomialillllllll", "i8", lambda g, n, k, p, _: g.binomial(k, p), "i4", "f8", plain="l")
