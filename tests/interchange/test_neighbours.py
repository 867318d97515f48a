"""einops, opt_einsum, Pillow, Matplotlib, SciPy's sparse arrays, dask, xarray and pandas."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import types

import einops
import matplotlib.figure
import numpy as np
import opt_einsum
import pytest
import scipy.sparse
from PIL import Image

import gtensor as gt
from gtensor.system import late_imports

PATTERNS = [
    ("rearrange", "b c h w -> b (h w) c", {}),
    ("rearrange", "b c (h p) w -> p b (h w c)", {"p": 2}),
    ("reduce", "b c h w -> b c", {"reduction": "mean"}),
    ("reduce", "b c h w ->", {"reduction": "sum"}),
    ("reduce", "b c (h p) w -> b c h w", {"reduction": "max", "p": 2}),
    ("reduce", "b c h w -> b h", {"reduction": "prod"}),
    ("repeat", "b c h w -> b c (h r) w", {"r": 3}),
    ("repeat", "b c h w -> n b c h w", {"n": 2}),
]


@pytest.mark.parametrize(("function", "pattern", "more"), PATTERNS)
def test_einops_takes_tensors_and_carries_gradients(function, pattern, more):
    x = gt.random.normal((2, 3, 4, 5), requires_grad=True)
    found = getattr(einops, function)(x, pattern, **more)
    wanted = getattr(einops, function)(x.detach().numpy(), pattern, **more)
    assert isinstance(found, gt.Tensor)
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-5)
    found.sum().backward()
    assert x.grad.shape == x.shape


def test_einops_joins_packs_and_multiplies_tensors():
    x = gt.random.normal((2, 3, 4))
    a = x.numpy()
    np.testing.assert_array_equal(einops.rearrange([x, x], "n b h w -> b (n h) w").numpy(),
                                  einops.rearrange([a, a], "n b h w -> b (n h) w"))
    packed, shapes = einops.pack([x, x[:, 0]], "b *")
    first, second = einops.unpack(packed, shapes, "b *")
    assert first.tolist() == x.tolist() and second.tolist() == x[:, 0].tolist()
    np.testing.assert_allclose(einops.einsum(x, x, "b h w, b k w -> b h k").numpy(),
                               einops.einsum(a, a, "b h w, b k w -> b h k"), rtol=1e-5)
    assert einops.parse_shape(x, "b h w") == {"b": 2, "h": 3, "w": 4}
    assert type(einops.asnumpy(x)) is np.ndarray
    with pytest.raises(Exception, match="mean is not available for"):
        einops.reduce(gt.ones(3, dtype="int64"), "a ->", "mean")


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["gtensor, einops", "einops, gtensor"])
def test_einops_knows_tensors_in_either_order_of_import_and_is_not_imported_before(order):
    text = (f"import sys\nfor name in '{order}'.split(', '):\n"
            "    __import__(name)\n"
            "    if 'einops' not in sys.modules:\n"
            "        assert 'gtensor.creation.libraries' not in sys.modules\n"
            "import einops, gtensor as gt\n"
            "print(einops.rearrange(gt.ones((2, 3)), 'a b -> b a').shape)")
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert run.stdout == "(3, 2)\n", run.stderr


def test_a_library_that_lacks_what_is_served_is_imported_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "library_of_tomorrow.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    late_imports.after({"library_of_tomorrow": ("gtensor.creation.libraries", "serve_einops")})
    import library_of_tomorrow  # type: ignore[import-not-found]

    assert library_of_tomorrow.answer == 42
    library = types.ModuleType("library_of_today")
    monkeypatch.setitem(sys.modules, "library_of_today", library)
    late_imports.after({"library_of_today": ("gtensor.creation.libraries", "no_such_function")})


def test_an_awaited_library_is_served_again_and_its_loader_stays_as_it_was(tmp_path, monkeypatch):
    """Reloaded, too; with a finder of the old kind, which Python passes over."""
    (tmp_path / "library_of_now.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    served = []
    monkeypatch.setattr(late_imports, "serve_it", served.append, raising=False)
    late_imports.after({"library_of_now": ("gtensor.system.late_imports", "serve_it")})
    library = importlib.import_module("library_of_now")
    assert importlib.reload(library) is library and served == [library, library]
    assert pickle.loads(pickle.dumps(library.__spec__)).name == "library_of_now"


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,jk,kl->il", "ij,jk,ki->", "ij->ji"])
def test_opt_einsum_contracts_tensors(subscripts):
    shapes = [(3, 4), (4, 5), (5, 3)][:subscripts.count(",") + 1]
    tensors = [gt.random.normal(shape, requires_grad=True) for shape in shapes]
    found = opt_einsum.contract(subscripts, *tensors)
    assert isinstance(found, gt.Tensor) and found.requires_grad
    wanted = np.einsum(subscripts, *(t.detach().numpy() for t in tensors))
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-4, atol=1e-5)
    compiled = opt_einsum.contract_expression(subscripts, *shapes)
    np.testing.assert_allclose(compiled(*tensors).detach().numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_pillow_takes_the_array_and_says_so_of_a_tensor():
    pixels = gt.random.integers(0, 256, (5, 6, 3), dtype="uint8")
    with pytest.raises(AttributeError, match=r"here: x\.numpy\(\)\.__array_interface__"):
        Image.fromarray(pixels)
    picture = Image.fromarray(pixels.numpy())
    assert gt.asarray(picture).tolist() == pixels.tolist()


def test_matplotlib_draws_tensors():
    axes = matplotlib.figure.Figure().add_subplot()
    x, y = gt.arange(4.0), gt.random.uniform((4,))
    axes.plot(x, y)
    axes.scatter(x, y, c=y)
    axes.bar(x, y)
    axes.hist(y)
    axes.errorbar(x, y, yerr=y)
    axes.imshow(y.reshape(2, 2))
    assert axes.lines[0].get_ydata().tolist() == y.tolist()
    with pytest.raises(gt.GradientError, match="detach"):
        axes.plot(gt.ones(3, requires_grad=True))


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_a_sparse_array_times_a_tensor_is_an_array(kind):
    dense = np.array([[1.0, 0, 2], [0, 3, 0]])
    a, x = kind(dense), gt.random.normal((3, 4), dtype="float64")
    for b in (x, x[:, 0]):
        assert type(a @ b) is np.ndarray
        np.testing.assert_allclose(a @ b, dense @ b.numpy())
    with pytest.raises(TypeError, match=r"given a sparse csc_\w+; wanted a dense one"):
        x.T @ a.T
    np.testing.assert_allclose((x.T @ a.T.toarray()).numpy(), x.numpy().T @ dense.T)


def test_dask_takes_arrays_and_its_blocks_may_compute_with_tensors():
    array = pytest.importorskip("dask.array")
    x = gt.arange(12.0).reshape(3, 4)
    blocks = array.from_array(x.numpy(), chunks=2)
    found = blocks.map_blocks(lambda block: gt.exp(gt.asarray(block)).numpy(), dtype="float32")
    np.testing.assert_allclose(found.sum(axis=0).compute(), np.exp(x.numpy()).sum(axis=0))
    assert gt.asarray(blocks).tolist() == x.tolist()
    with pytest.raises(TypeError, match=r"np\.sum was given a Tensor; .* or give it x\.numpy\(\)"):
        array.from_array(x, chunks=2).sum().compute()


def test_xarray_keeps_tensors_but_where_it_calls_numpy():
    xarray = pytest.importorskip("xarray")
    x = gt.arange(12.0).reshape(3, 4)
    named = xarray.DataArray(x, dims=("row", "column"), coords={"row": [10, 20, 30]})
    for found, wanted in (
            (named + 1, x + 1), (named.sum("row"), x.sum(axis=0)), (named.sel(row=20), x[1]),
            (named.mean("column", skipna=False), x.mean(axis=1)), (named.where(named > 3, 0.0),
             gt.where(x > 3, x, 0.0)), (xarray.apply_ufunc(gt.exp, named), gt.exp(x)),
            (named.transpose("column", "row"), x.T), (xarray.dot(named, named), (x * x).sum())):
        assert isinstance(found.data, gt.Tensor) and found.data.tolist() == wanted.tolist()
    with pytest.raises(TypeError, match=r"np\.nanmean was given a Tensor"):
        named.mean("column")


def test_pandas_takes_and_gives_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": gt.arange(3.0), "b": [1, 2, 3]})
    assert frame["a"].tolist() == [0, 1, 2]
    assert gt.asarray(frame["b"]).tolist() == [1, 2, 3]
    assert pandas.DataFrame(gt.ones((2, 3))).shape == (2, 3)


def test_the_imaginary_part_of_a_real_tensor_is_zero():
    """Protocols such as xarray's ask with hasattr, which passes on any error but AttributeError."""
    x = gt.ones((2, 3), requires_grad=True)
    assert x.imag.tolist() == [[0, 0, 0], [0, 0, 0]] and not x.imag.requires_grad
    assert (gt.ones(2) * 2j).imag.tolist() == [2, 2]
