"""Kernels that NVIDIA's NVRTC compiles: their cubins are read, kept on disk, and launches counted.

Each program installs the host device itself, since a process has one compiler.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gtensor.hostcuda import Unusable, children, install

from .test_install import run

pytestmark = pytest.mark.host_cuda
Child = Callable[..., str]

START = """
import ctypes, json, mmap, random
from gtensor import hostcuda
hostcuda.install(dry=True, compiler="nvrtc", devices=2)
import cupy
from cupy.cuda import driver
from gtensor.hostcuda import build

def refuse(arguments):
    raise AssertionError(f"g++ was called with {arguments}")
build.run = refuse  # it has made the host device, and makes no kernel

compiled = []
real = cupy.cuda.compiler._compile_using_nvrtc_no_warning
def compile(source, *rest, **named):
    compiled.append(source)
    return real(source, *rest, **named)
cupy.cuda.compiler._compile_using_nvrtc_no_warning = compile

def status(call, *arguments):
    try:
        call(*arguments)
    except (cupy.cuda.runtime.CUDARuntimeError, driver.CUDADriverError) as error:
        return error.status
    return 0
"""

SMALL = START + """
import gtensor as gt
with gt.device("cuda"):
    layer = gt.nn.Linear(64, 32)
    x = gt.ones((16, 64))
    hostcuda.reset_counters()
    loss = gt.nn.functional.softmax(layer(x) * 2.0, -1).sum()
    loss.backward()
    value = loss.item()
found = hostcuda.counters()
print(json.dumps({"kernels": found.kernels, "library": found.library, "compiled": len(compiled),
                  "missing": hostcuda.missing(), "value": value}))
"""


def cubins(folder: Path) -> list[bytes]:
    """The ELF images in CuPy's cache; a hash comes before each, then the names that were asked."""
    images = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        images.append(content[content.index(b"\x7fELF"):])
    return images


def test_a_program_is_counted_and_a_second_process_compiles_nothing(
    child: Child, tmp_path: Path
) -> None:
    first = json.loads(child(SMALL, CUPY_CACHE_DIR=str(tmp_path)))
    assert first == {
        "kernels": {"cupy_copy__float32_float32": 1, "cupy_fill": 1,
                    "cupy_multiply__float32_float_float32": 2, "softmax_backward<float>": 1,
                    "softmax_forward<float>": 1},
        "library": {"cub::DeviceReduce": 1, "cublasLtMatmul": 2},
        "compiled": 6, "missing": {}, "value": 0.0,  # nothing was computed
    }
    images = cubins(tmp_path)
    assert len(images) == first["compiled"]
    for image in images:
        machine, = struct.unpack_from("<H", image, 18)
        flags, = struct.unpack_from("<I", image, 48)
        assert (machine, flags >> 8 & 0xFF) == (190, 90)
    assert not (tmp_path / "hostcuda").exists()
    again = json.loads(child(SMALL, CUPY_CACHE_DIR=str(tmp_path)))
    assert again == first | {"compiled": 0}


KERNELS = r"""
__constant__ float table[100];
__device__ int counter;
__device__ float filled[3] = {1, 2, 3};

extern "C" __global__ void __launch_bounds__(256) bounded(float *x, float a, int n) {
    __shared__ float s[300];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[255 - threadIdx.x] * a + table[n] + filled[n];
    atomicAdd(&counter, 1);
}

extern "C" __global__ void dynamic(float *x) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[0];
}

template <int size> __global__ void many(float *x, int n) {
    float a[size];
    for (int k = 0; k < size; k++) a[k] = x[k * n + threadIdx.x];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < size; k++) a[k] = a[k] * a[(k + 1) % size] + a[(k + 37) % size];
    for (int k = 0; k < size; k++) x[k * n + threadIdx.x] = a[k];
}

template <class T, unsigned n> __global__ void scale(T (*x)[n], T by) { x[threadIdx.x][0] *= by; }

extern "C" __global__ void nothing() {}
"""

SIZES = [21, 23, 24, 26, 27, 31, 64]  # of arrays in registers

MODULE = START + f"""
import numpy as np
module = cupy.RawModule(code=r'''{KERNELS}''', options=("-std=c++17",),
                        name_expressions=("scale<float, 4>", *(f"many<{{n}}>" for n in {SIZES})))
x, sizes = cupy.zeros(1024, np.float32), {SIZES}
""" + """
bounded, dynamic = module.get_function("bounded"), module.get_function("dynamic")
scale = module.get_function("scale<float, 4>")
nothing = module.get_function("nothing")
library = ctypes.CDLL("libcuda.so.1")
hostcuda.reset_counters()

answers = {
    "bounded": [bounded.max_threads_per_block, bounded.shared_size_bytes],
    "dynamic": [dynamic.max_threads_per_block, dynamic.shared_size_bytes],
    "within": [status(bounded, (1,), (256,), (x, np.float32(2), 1)),
               status(lambda: dynamic((1,), (256,), (x,), shared_mem=48 << 10)),
               status(scale, (1,), (32,), (x, np.float32(2))),
               status(nothing, (1,), (1024,), ())],
    "bounds": status(bounded, (1,), (257,), (x, np.float32(2), 1)),
    "grid": status(nothing, (1, 65536), (1,), ()),
    "block": status(nothing, (1,), (1025,), ()),
    "shared": [status(lambda: bounded((1,), (256,), (x, np.float32(2), 1),
                                      shared_mem=(48 << 10) - 1200 + more)) for more in (0, 1)],
    "no parameters": library.cuLaunchKernel(
        ctypes.c_void_p(bounded.kernel.ptr), 1, 1, 1, 32, 1, 1, 0, None, None, None),
    "counted": hostcuda.counters().kernels,
    "registers": [],
}
for size in sizes:
    many = module.get_function(f"many<{size}>")
    most = many.max_threads_per_block
    answers["registers"].append(
        [many.num_regs, most, [status(many, (1,), (n,), (x, 1)) for n in (most, most + 1)],
         driver.occupancyMaxActiveBlocksPerMultiprocessor(many.kernel.ptr, 128, 0)])

variables = []
for name in ("table", "counter", "filled"):
    pointer = module.get_global(name)
    attributes = cupy.cuda.runtime.pointerGetAttributes(pointer.ptr)
    size = ctypes.c_size_t()
    library.cuMemGetAddressRange_v2(None, ctypes.byref(size), ctypes.c_void_p(pointer.ptr))
    assert module.get_global(name).ptr == pointer.ptr
    variables.append([size.value, attributes.device, status(
        cupy.ndarray((1,), np.float32, pointer).fill, 1)])
answers["variables"] = variables
answers["no global"] = status(module.get_global, "absent")
answers["no kernel"] = status(module.get_function, "absent")
print(json.dumps(answers))
"""


def test_what_a_cubin_says_of_its_kernels(child: Child, tmp_path: Path) -> None:
    answers = json.loads(child(MODULE, CUPY_CACHE_DIR=str(tmp_path)))
    assert answers["bounded"] == [256, 1200] and answers["dynamic"] == [1024, 0]
    assert answers["within"] == [0] * 4
    assert answers["bounds"] == 701
    assert answers["grid"] == answers["block"] == answers["no parameters"] == 1
    assert answers["shared"] == [0, 1]
    assert answers["counted"] == {"bounded": 2, "dynamic": 1, "scale<float, 4u>": 1, "nothing": 1}
    assert answers["variables"] == [[400, 0, 0], [4, 0, 0], [12, 0, 0]]
    assert answers["no global"] == answers["no kernel"] == 500
    kinds = set()
    for registers, most, launches, occupancy in answers["registers"]:
        warp = -(-registers * 32 // 256) * 256  # those of a warp; a block has a multiple of four
        assert most == 65536 // warp // 4 * 4 * 32 < 1024 and launches == [0, 701]
        assert occupancy == 16384 // warp * 4 // 4
        kinds |= {("rounded", 65536 // (registers * 32) // 4 * 128 != most),
                  ("a multiple of four", 65536 // warp * 32 != most)}
    assert {("rounded", True), ("a multiple of four", True)} <= kinds  # both are tested


IMAGES = START + f"""
source = r'''{KERNELS}'''
""" + """
library = ctypes.CDLL("libcuda.so.1")
cupy.zeros(1)  # a context
image, _ = real(source, ("-std=c++17",), "90")
page = mmap.PAGESIZE
room = mmap.mmap(-1, 64 * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(room))
ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + 63 * page), page, 0)

def load(image, end=63 * page):  # the image lies before a page without access, or before zeros
    room[:end] = bytes(end)
    room[end - len(image):end] = image
    module = ctypes.c_void_p()
    answer = library.cuModuleLoadData(ctypes.byref(module),
                                      ctypes.c_void_p(base + end - len(image)))
    if not answer:
        library.cuModuleUnload(module)
    return answer

def changed(at, value, size):
    copy = bytearray(image)
    copy[at:at + size] = value.to_bytes(size, "little")
    return bytes(copy)

def from_file(content):
    with open(PATH, "wb") as file:
        file.write(content)
    module = ctypes.c_void_p()
    return library.cuModuleLoad(ctypes.byref(module), PATH.encode())

def with_section(name, at, value, size):  # other bytes in the head of the section of that name
    names = int.from_bytes(image[sections + 64 * image[62] + 24:][:8], "little")
    for place in range(int.from_bytes(image[60:62], "little")):
        head = sections + 64 * place
        start = names + int.from_bytes(image[head:head + 4], "little")
        if image[start:image.index(b"\\0", start)].decode() == name:
            return changed(head + at, value, size)

sections = int.from_bytes(image[40:48], "little")
lengths = [4, 16, 63, 64, 65, 1000, len(image) // 2, len(image) - 500, len(image) - 1]
rng = random.Random(0)
anything = set()
for _ in range(1000):
    copy = bytearray(image)
    for _ in range(rng.choice((1, 1, 4, 16))):
        low, high = rng.choice(((0, 64), (64, 2000), (sections, len(image)), (0, len(image))))
        copy[rng.randrange(low, high)] = rng.randrange(256)
    anything.add(load(bytes(copy)))

answers = {
    "whole": [load(image), load(image + b"x", 40 * page), from_file(image)],
    "cut": [load(image[:length]) for length in lengths],
    "cut, with zeros behind": [load(image[:length], 40 * page) for length in lengths[:-1]],
    "cut, in a file": [from_file(image[:length]) for length in lengths],
    "machine": load(changed(18, 62, 2)), "32 bits": load(changed(4, 1, 1)),
    "not linked": load(changed(16, 1, 2)), "sections elsewhere": load(changed(40, 1 << 40, 8)),
    "no sections": load(changed(60, 0, 2)), "many sections": load(changed(60, 0xFFFF, 2)),
    "names elsewhere": load(changed(62, 0xFFF0, 2)), "their size": load(changed(58, 32, 2)),
    "architecture": [load(changed(49, sm, 1)) for sm in (75, 80, 89, 90, 100)],
    "sections": {name: [load(with_section(name, *change)) for change in (
                     (24, 1 << 40, 8), (32, 1 << 40, 8), (4, 0, 4), (0, 1 << 30, 4))]
                 for name in (".text.bounded", ".nv.info", ".nv.info.bounded", ".symtab")},
    "anything": sorted(anything),
}
print(json.dumps(answers))
"""


def test_damaged_images_are_refused(child: Child, tmp_path: Path) -> None:
    program = IMAGES.replace("PATH", repr(str(tmp_path / "image")))
    answers = json.loads(child(program, CUPY_CACHE_DIR=str(tmp_path / "cache")))
    assert answers.pop("whole") == [0, 0, 0]
    assert answers.pop("architecture") == [209, 209, 209, 0, 209]
    assert set(answers.pop("anything")) <= {0, 200, 209}
    answers |= answers.pop("sections")
    for name, answer in answers.items():
        assert answer == 200 or set(answer) == {200}, (name, answer)


REFUSED = """
import ctypes
from gtensor import hostcuda
hostcuda.install(dry=True)
import cupy
cupy.zeros(1)
image = b"\\x7fELF" + bytes(100)
print(ctypes.CDLL("libcuda.so.1").cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), image))
"""


def test_a_cubin_needs_the_compiler_that_makes_it() -> None:
    ended = run(["-c", REFUSED])
    assert (ended.returncode, ended.stdout) == (0, "200\n")
    assert ended.stderr == ("hostcuda: a module is a cubin, which does not run on a CPU; "
                            'install(dry=True, compiler="nvrtc") loads it, and runs no kernel\n')


def test_kernels_do_nothing_and_so_the_mode_stays_dry(child: Child) -> None:
    assert child(START + """
for call in (lambda: hostcuda.configure(), lambda: hostcuda.configure("deferred", dry=False)):
    try:
        call()
    except ValueError as error:
        print(error)
hostcuda.configure("deferred", seed=3, dry=True)
print(cupy.arange(3).sum())
""").splitlines() == ["compiler 'nvrtc' needs dry=True: a CPU does not run what NVRTC compiles",
                      "compiler 'nvrtc' needs dry=True: a CPU does not run what NVRTC compiles",
                      "0"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"compiler": "nvcc"}, r"^compiler is one of g\+\+, nvrtc, got 'nvcc'$"),
    ({"compiler": "nvrtc"}, r"^compiler 'nvrtc' needs dry=True: a CPU does not run "),
])
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        install(**arguments)


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["gtensor.hostcuda.install"]
    monkeypatch.setattr(module, "_NVRTC", "libnvrtc.so.99")
    with pytest.raises(Unusable, match=r"^compiler 'nvrtc' is NVIDIA's .* was not found; install "
                                       r"nvidia-cuda-nvrtc==13\.\*$"):
        module._load_nvrtc()


SETTINGS = """
import subprocess, sys
from gtensor.hostcuda.install import present
print(present()["compiler"], present()["dry"], flush=True)
if len(sys.argv) < 2:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


def test_child_processes_have_the_compiler_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SETTINGS)
    ran = run(["-m", "gtensor.hostcuda", "--dry", "--compiler", "nvrtc", str(script)])
    assert (ran.returncode, ran.stdout) == (0, "nvrtc True\n" * 2), ran.stderr
    refused = run(["-m", "gtensor.hostcuda", "--compiler", "nvrtc", str(script)])
    assert refused.returncode == 2 and "compiler 'nvrtc' needs dry=True" in refused.stderr


def test_pytest_keeps_the_compiler(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("import json, os\n"
                    "from gtensor.hostcuda.install import present\n"
                    "def test_it():\n"
                    f"    given = json.loads(os.environ[{children.VARIABLE!r}])\n"
                    "    for found in (present(), given):\n"
                    "        assert (found['compiler'], found['dry'], found['mode'])"
                    " == ('nvrtc', True, 'deferred')\n")
    ran = run(["-m", "pytest", "-c", "/dev/null", "-p", "gtensor.hostcuda.pytest_plugin", "-p",
               "no:cacheprovider", "--host-cuda=deferred", str(test)],
              {"dry": True, "compiler": "nvrtc"})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "hostcuda: 1 host devices, deferred, seed 0, dry, NVRTC\n" in ran.stdout
