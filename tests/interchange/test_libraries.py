"""Memory shared with other libraries: one buffer on both sides, marked, copied only if asked."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import gtensor as gt

DTYPES = ["bool", "int8", "uint8", "int64", "float16", "float32", "float64", "complex64"]


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_and_gtensor_share_a_buffer(dtype):
    ours = gt.tensor([[0, 1, 2], [3, 4, 5]], dtype=dtype)
    theirs = np.from_dlpack(ours)
    assert address(theirs) == address(ours.array)
    assert address(gt.from_dlpack(theirs)._array) == address(theirs)
    assert address(gt.asarray(theirs)._array) == address(theirs)
    np.testing.assert_array_equal(theirs, np.array([[0, 1, 2], [3, 4, 5]], dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorch_and_gtensor_share_a_buffer(dtype):
    ours = gt.tensor([[0, 1, 2], [3, 4, 5]], dtype=dtype)[:, ::2]
    theirs = torch.from_dlpack(ours)
    assert theirs.data_ptr() == address(ours.array) and theirs.stride() == (3, 2)
    back = gt.from_dlpack(theirs)
    theirs[0, 0] = 1
    assert back[0, 0].item() == ours[0, 0].item() == 1


def test_jax_reads_a_tensor_and_a_tensor_reads_jax():
    ours = gt.arange(6, dtype="float32").reshape(2, 3)
    theirs = jnp.from_dlpack(ours)
    np.testing.assert_array_equal(np.asarray(theirs), ours.numpy())
    theirs = jax.random.normal(jax.random.key(0), (3, 4))
    back = gt.from_dlpack(theirs)
    assert address(back._array) == theirs.unsafe_buffer_pointer()
    np.testing.assert_array_equal(back.numpy(), np.asarray(theirs))


def test_a_copy_is_made_only_where_it_is_asked():
    source = np.arange(4.0)
    copied = gt.from_dlpack(source, copy=True)
    assert address(copied._array) != address(source)
    assert address(gt.from_dlpack(source, device="cpu", copy=False)._array) == address(source)
    assert address(gt.asarray(source, copy=False)._array) == address(source)
    assert address(gt.asarray(source, copy=True)._array) != address(source)
    with pytest.raises(ValueError, match=r"copy=False was asked of ndarray for dtype float32"):
        gt.asarray(source, dtype=gt.float32, copy=False)
    ours = gt.tensor([1.0, 2.0])
    assert gt.asarray(ours) is ours and gt.asarray(ours, copy=False) is ours
    assert address(np.from_dlpack(ours, copy=True)) != address(ours._array)
    with pytest.raises(ValueError, match="copy=False"):
        gt.asarray([1.0, 2.0], copy=False)


def test_what_leaves_is_marked_so_that_it_is_not_overwritten():
    for leave in (torch.from_dlpack, np.from_dlpack, np.asarray, lambda t: t.numpy()):
        ours = gt.ones(3)
        assert not ours._own_storage().exported
        leave(ours)
        assert ours._own_storage().exported
    assert gt.from_dlpack(torch.ones(2))._own_storage().exported


def test_a_gradient_is_not_lost_on_the_way_to_another_library():
    leaf = gt.ones(3, requires_grad=True)
    for tensor in (leaf, leaf * 2):
        with pytest.raises(gt.GradientError, match="detach"):
            torch.from_dlpack(tensor)
    assert torch.from_dlpack(leaf.detach()).tolist() == [1, 1, 1]


def test_a_read_only_array_needs_a_consumer_that_supports_the_flag():
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    ours = gt.asarray(frozen)
    theirs = np.from_dlpack(ours)
    assert not theirs.flags.writeable and address(theirs) == address(frozen)


def test_memory_that_is_no_library_s_is_refused_in_one_sentence():
    with pytest.raises(TypeError, match=r"from_dlpack was given list; wanted .* __dlpack__"):
        gt.from_dlpack([1, 2])

    class OnVulkan:
        def __dlpack__(self, **options):
            raise AssertionError("memory of an unknown device was read")

        def __dlpack_device__(self):
            return 7, 0

    with pytest.raises(TypeError, match="device type 7; wanted cpu or cuda"):
        gt.from_dlpack(OnVulkan())


def test_the_cuda_array_interface_is_there_on_cuda_only():
    assert not hasattr(gt.ones(2), "__cuda_array_interface__")


@pytest.mark.gpu
def test_cupy_shares_a_buffer_on_the_gpu():
    import cupy

    ours = gt.arange(6, dtype="float32", device="cuda")
    interface = ours.__cuda_array_interface__
    assert interface["version"] == 3 and interface["data"][0] == ours._array.data.ptr
    assert "stream" in interface
    theirs = cupy.from_dlpack(ours)
    assert cupy.asarray(ours._array).data.ptr == theirs.data.ptr == ours._array.data.ptr
    theirs += 1
    assert ours.tolist() == [1, 2, 3, 4, 5, 6]
    back = gt.from_dlpack(cupy.ones(3, np.float32))
    assert back.device.type == "cuda" and back.tolist() == [1, 1, 1]
    assert gt.from_dlpack(ours, device="cpu").device.type == "cpu"


@pytest.mark.gpu
def test_a_consumer_says_whether_a_buffer_on_the_gpu_is_copied():
    ours = gt.arange(3, dtype="float32", device="cuda")

    class Asked:
        def __init__(self, **asked):
            self.__dlpack_device__, self.asked = ours.__dlpack_device__, asked

        def __dlpack__(self, **given):
            return ours.__dlpack__(**self.asked)

    apart, same = (gt.from_dlpack(Asked(copy=copy)) for copy in (True, False))
    same += 1
    assert (apart.tolist(), ours.tolist()) == ([0, 1, 2], [1, 2, 3])
    with pytest.raises(BufferError, match=r"on cuda:0 .* on DLPack device \(1, 0\) without a copy"):
        ours.__dlpack__(copy=False, dl_device=(1, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch is a build for the CPU")
def test_pytorch_shares_a_buffer_on_the_gpu():
    ours = gt.arange(6, dtype="float32", device="cuda")
    theirs = torch.from_dlpack(ours)
    assert theirs.data_ptr() == ours._array.data.ptr
    theirs += 1
    assert ours.tolist() == [1, 2, 3, 4, 5, 6]
    back = gt.from_dlpack(torch.ones(3, device="cuda"))
    assert back.device.type == "cuda" and back.tolist() == [1, 1, 1]


def test_a_flipped_view_is_copied_on_the_way_out():
    flipped = gt.arange(3)[::-1]
    assert torch.from_dlpack(flipped).tolist() == [2, 1, 0]
    with pytest.raises(BufferError, match="negative strides"):
        flipped.__dlpack__(copy=False)


def test_bfloat16_comes_from_pytorch_without_a_copy():
    theirs = torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16)
    ours = gt.from_dlpack(theirs)
    assert ours.dtype == gt.bfloat16 and ours.astype(gt.float32).tolist() == [1.5, -2.0, 3.0]
    theirs[0] = 8.0
    assert ours[0].item() == 8.0
