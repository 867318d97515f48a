"""Whole runs: exact values, bitwise resume, nothing changed by a load that fails."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gtensor as gt
from gtensor import checkpoint
from gtensor.checkpoint import CheckpointError, CheckpointMismatch
from gtensor.checkpoint.state import Packer, names_in, to_text, unpack


class Loader:
    """A stand-in for a place in the data, with all that JSON does not have."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "epoch": 2, "seed": 2**70, "seen": {3: 0.1, (1, "a"): math.inf}, "order": np.arange(5),
            "$odd": None, "shape": (1, [2, (3,)])}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "epoch" not in state:
            raise ValueError("no epoch")
        self.state = dict(state)


class Run:
    """A small run whose every part has a state."""

    def __init__(self, seed: int, width: int = 6) -> None:
        gt.manual_seed(seed)
        self.model = gt.nn.Sequential(
            gt.nn.Linear(4, width), gt.nn.BatchNorm1d(width), gt.nn.ReLU(), gt.nn.Linear(width, 2))
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = gt.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=20)
        self.ema = gt.optim.EMA(self.model, decay=0.9)
        self.loader = Loader()

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler,
                "ema": self.ema, "loader": self.loader}

    def step(self) -> float:
        loss = (self.model(gt.random.normal((8, 4))) ** 2).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update()
        return loss.item()

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]

    def everything(self) -> str:
        """All state as text, with every bit."""
        packer = Packer()
        packed = {name: packer.pack(part.state_dict(), name)
                  for name, part in self.parts().items()}
        packed["random"] = packer.pack(gt.random.get_state(), "random")
        values = {name: np.asarray(t).tobytes().hex() for name, t in packer.tensors.items()}
        return json.dumps([packed, values], sort_keys=True)


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [None, 300])
def test_a_resumed_run_is_bitwise_the_run(tmp_path: Path, shards: int | None) -> None:
    path = tmp_path / "new" / "folder" / "c.safetensors"
    first = Run(1)
    first.steps(3)
    checkpoint.save(path, **first.parts(), max_shard_size=shards, step=3, losses=[1.5, math.nan])
    wanted, everything = first.steps(3), first.everything()
    second = Run(2)
    second.steps(1)
    values = checkpoint.load(path, **second.parts())
    assert values["step"] == 3 and values["losses"][0] == 1.5 and math.isnan(values["losses"][1])
    assert second.steps(3) == wanted and second.everything() == everything
    assert checkpoint.progress(path).keys() == {"step", "losses"}
    assert second.loader.state["seen"] == {3: 0.1, (1, "a"): math.inf}
    assert second.loader.state["shape"] == (1, [2, (3,)])


def test_before_the_first_step(tmp_path: Path) -> None:
    first, second = Run(1), Run(2)
    checkpoint.save(tmp_path / "c", **first.parts(), random=False)
    second.steps(2)
    checkpoint.load(tmp_path / "c", **second.parts(), random=False)
    gt.manual_seed(5)
    wanted = first.steps(2)
    gt.manual_seed(5)
    assert second.steps(2) == wanted


def test_some_parts_only_and_names_of_ones_own(tmp_path: Path) -> None:
    run = Run(1)
    critic = gt.nn.Linear(3, 3)
    checkpoint.save(tmp_path / "c", model=run.model, critic=critic, note="é", best=None)
    state = gt.random.get_state()
    gt.random.normal((3,))
    other = gt.nn.Linear(3, 3)
    assert checkpoint.load(tmp_path / "c", critic=other) == {"note": "é", "best": None}
    np.testing.assert_array_equal(other.weight.numpy(), critic.weight.numpy())
    assert gt.random.get_state() == state


def test_arrays_and_tensors_among_the_values(tmp_path: Path) -> None:
    model = gt.nn.Linear(2, 2)
    values = {"history": np.arange(3.0), "best": {"loss": 0.5, "weights": [gt.ones(2, "int8")]},
              "weight": model.weight, "none": np.ones((0, 2))}
    for limit in (None, 16):
        checkpoint.save(tmp_path / "c", model=model, max_shard_size=limit, **values)
        other = gt.nn.Linear(2, 2)
        for found in (checkpoint.load(tmp_path / "c", model=other),
                      checkpoint.progress(tmp_path / "c")):
            assert alike(found, {**values, "weight": gt.tensor(model.weight.numpy())})
        np.testing.assert_array_equal(other.weight.numpy(), model.weight.numpy())
    assert set(checkpoint.load_file(tmp_path / "c")) == {
        "model.weight", "model.bias", "progress.history", "progress.best.weights.0",
        "progress.none"}


def test_tensors_stand_in_the_file_by_name_once(tmp_path: Path) -> None:
    model = gt.nn.Sequential(gt.nn.Linear(3, 3), gt.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    checkpoint.save(tmp_path / "c", model=model)
    found = safetensors.numpy.load_file(tmp_path / "c")
    assert found.keys() == {"model.0.weight", "model.0.bias", "model.1.bias"}
    other = gt.nn.Sequential(gt.nn.Linear(3, 3), gt.nn.Linear(3, 3))
    checkpoint.load(tmp_path / "c", model=other)  # not tied: both get the values
    for layer in other:
        np.testing.assert_array_equal(layer.weight.numpy(), found["model.0.weight"])
    other[1].weight = other[0].weight
    checkpoint.load(tmp_path / "c", model=other)
    np.testing.assert_array_equal(other[1].weight.numpy(), found["model.0.weight"])


def test_the_same_state_makes_the_same_bytes(tmp_path: Path) -> None:
    run = Run(1)
    run.steps(2)
    for name in "ab":
        checkpoint.save(tmp_path / name, **run.parts(), step=2)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


KEYS = st.one_of(st.text(max_size=3), st.integers(-3, 3), st.booleans(),
                 st.sampled_from(["$tensor", "$items", "a", "a.b"]))
ARRAYS = st.builds(lambda n, d: np.arange(n).astype(d), st.integers(0, 4),
                   st.sampled_from(["i2", "f4", "u8", "?"]))
STATES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), ARRAYS,
              ARRAYS.map(gt.tensor)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3)), max_leaves=12)


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, (np.ndarray, gt.Tensor)):
        return type(a) is type(b) and a.dtype == b.dtype and a.tolist() == b.tolist()
    if isinstance(a, dict):
        return isinstance(b, dict) and alike(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float):
        return type(b) is float and (a == b or a != a and b != b) and (
            math.copysign(1, a) == math.copysign(1, b) or a != a)
    return type(a) is type(b) and a == b


@settings(max_examples=80, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=STATES)
def test_any_state_comes_back_exactly(tmp_path: Path, state: Any) -> None:
    packer = Packer()
    text = to_text(packer.pack(state, "part"))
    checkpoint.save_file(packer.tensors, tmp_path / "a")
    found = checkpoint.load_file(tmp_path / "a")
    assert set(names_in(json.loads(text))) == found.keys()
    assert alike(unpack(json.loads(text), found.__getitem__), state)


def test_numbers_of_numpy_become_pythons() -> None:
    state = {"i": np.int64(3), "f": np.float32(0.1), "b": np.True_, "n": np.float64("nan")}
    found = unpack(json.loads(to_text(Packer().pack(state, ""))), {}.__getitem__)
    assert found["i"] == 3 and type(found["i"]) is int and found["f"] == float(np.float32(0.1))
    assert found["b"] is True and math.isnan(found["n"])


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "told"), [
    ({"model": 3}, "given model=3; wanted an object with state_dict"),
    ({"note": {1, 2}}, "progress.note is set; wanted numbers"),
    ({"note": [object()]}, r"progress.note.0 is object"),
])
def test_what_cannot_be_saved_is_named(tmp_path: Path, given: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        checkpoint.save(tmp_path / "c", **given)
    assert not list(tmp_path.iterdir())


def test_load_wants_parts(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="load was given 'step'"):
        checkpoint.load(tmp_path / "c", step=3)


def test_a_part_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    run = Run(1)
    checkpoint.save(tmp_path / "c", model=run.model, random=False)
    with pytest.raises(CheckpointMismatch, match="no state of 'ema', it has 'model'; load it with "
                                                 "ema=None"):
        checkpoint.load(tmp_path / "c", ema=run.ema, random=False)
    with pytest.raises(CheckpointMismatch, match="no state of 'random'.*random=False"):
        checkpoint.load(tmp_path / "c", model=run.model)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        checkpoint.load(tmp_path / "gone", model=run.model)


def test_strict_is_about_names_shapes_must_always_fit(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", model=gt.nn.Linear(3, 3))
    bare = gt.nn.Linear(3, 3, bias=False)
    with pytest.raises(CheckpointMismatch, match=r"another model: unexpected 'bias'; nothing was"):
        checkpoint.load(tmp_path / "c", model=bare)
    checkpoint.load(tmp_path / "c", model=bare, strict=False)
    with pytest.raises(CheckpointMismatch, match=r"'weight' is \(3, 3\), wanted \(3, 4\)"):
        checkpoint.load(tmp_path / "c", model=gt.nn.Linear(4, 3), strict=False)


def test_a_file_of_tensors_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint.save_file({"x": np.ones(3)}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="a file of tensors, not a checkpoint; read it with"):
        checkpoint.load(tmp_path / "a", model=gt.nn.Linear(1, 1))


# -- nothing changes when a load fails -------------------------------------------------------------


def other_model(run: Run) -> None:
    run.model = Run(9, width=7).model


def other_optimizer(run: Run) -> None:
    run.optimizer = gt.optim.SGD(run.model.parameters(), lr=0.1)
    run.step()


def other_groups(run: Run) -> None:
    run.optimizer = gt.optim.AdamW([{"params": [p]} for p in run.model.parameters()])


def other_ema(run: Run) -> None:
    run.ema = gt.optim.EMA(gt.nn.Linear(2, 2))


def other_loader(run: Run) -> None:
    del run.loader.state["epoch"]


@pytest.mark.parametrize("spoil", [other_model, other_optimizer, other_groups, other_ema,
                                   other_loader])
@pytest.mark.parametrize("shards", [None, 300])
def test_a_state_that_does_not_fit_changes_nothing(
    tmp_path: Path, spoil: Callable[[Run], None], shards: int | None
) -> None:
    saved, run = Run(1), Run(2)
    saved.steps(3)
    spoil(saved)
    checkpoint.save(tmp_path / "c", **saved.parts(), max_shard_size=shards)
    run.steps(2)
    before = run.everything()
    with pytest.raises(CheckpointMismatch, match="does not fit|another model") as caught:
        checkpoint.load(tmp_path / "c", **run.parts())
    assert str(tmp_path / "c") in str(caught.value)
    assert run.everything() == before


def test_a_broken_state_of_random_numbers_changes_nothing(tmp_path: Path) -> None:
    saved, run = Run(1), Run(2)
    checkpoint.save(tmp_path / "c", **saved.parts())
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data.replace(b"Philox", b"Phylox"))
    before = run.everything()
    with pytest.raises(CheckpointMismatch, match="the state of 'random' in"):
        checkpoint.load(tmp_path / "c", **run.parts())
    assert run.everything() == before


class Keeper:
    """A part that accepts the given states only."""

    def __init__(self, value: int, *refused: int, error: type[BaseException] = ValueError) -> None:
        self.value, self.refused, self.error = value, refused, error

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["value"] in self.refused:
            raise self.error(f"no {state['value']}")
        self.value = state["value"]


@pytest.mark.parametrize(("kind", "raised"), [
    (ValueError, CheckpointMismatch), (RuntimeError, RuntimeError),
    (KeyboardInterrupt, KeyboardInterrupt)])
def test_a_part_that_refuses_its_old_state_hides_neither_the_error_nor_the_parts_behind_it(
    tmp_path: Path, kind: type[BaseException], raised: type[BaseException]
) -> None:
    checkpoint.save(tmp_path / "c", first=Keeper(1), second=Keeper(1), third=Keeper(1))
    first, second, third = Keeper(2, 2), Keeper(2), Keeper(2, 1, error=kind)
    with pytest.raises(raised, match="no 1") as caught:
        checkpoint.load(tmp_path / "c", first=first, second=second, third=third)
    assert caught.value.__notes__ == ["'first' refused its old state, too: no 2"]
    assert (first.value, second.value, third.value) == (1, 2, 2)


@pytest.mark.parametrize(("given", "new"), [
    ('"buffer_pos":4', '"buffer_pos":-1'), ('"has_uint32":0', '"has_uint32":1e999'),
    ('"uinteger":0', f'"uinteger":{10**30}'), ('"last_epoch":0', f'"last_epoch":{10**400}'),
    ('"n_averaged":{"$tensor"', '"n_averaged":{"$float":"nan","$tensor"'),
    ('"lr":0.05', '"lr":{"$float":"nan"}'), ('"lr":0.05', f'"lr":{10**400}'),
    ('"betas":{"$tuple":[0.9,', '"betas":{"$tuple":[null,')])
def test_numbers_that_no_state_has_change_nothing(tmp_path: Path, given: str, new: str) -> None:
    saved, run = Run(1), Run(2)
    checkpoint.save(tmp_path / "c", **saved.parts())
    with checkpoint.safe_open(tmp_path / "c") as file:
        tensors, about = file.get_tensors(), file.metadata()["gtensor"]
    assert given in about
    checkpoint.save_file(tensors, tmp_path / "c", {"gtensor": about.replace(given, new)})
    before = run.everything()
    with pytest.raises(CheckpointError, match="/c (does not fit|is not a whole)") as caught:
        checkpoint.load(tmp_path / "c", **run.parts())
    assert "\n" not in str(caught.value) and run.everything() == before


def test_no_cut_of_the_file_changes_anything(tmp_path: Path) -> None:
    saved, run = Run(1), Run(2)
    saved.steps(2)
    path = tmp_path / "c"
    checkpoint.save(path, **saved.parts())
    data, before = path.read_bytes(), run.everything()
    for length in {0, 7, 8, 100, *range(200, len(data), 311), len(data) - 1}:
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"^/.*/c is not a"):
            checkpoint.load(path, **run.parts())
    assert run.everything() == before


def test_no_flipped_byte_of_the_description_is_a_crash(tmp_path: Path) -> None:
    saved, run = Run(1), Run(2)
    saved.steps(1)
    path = tmp_path / "c"
    checkpoint.save(path, **saved.parts())
    data, before = path.read_bytes(), run.everything()
    rng = np.random.default_rng(0)
    failed = 0
    for at in rng.integers(0, int.from_bytes(data[:8], "little"), 120):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        try:
            checkpoint.load(path, **run.parts())
        except CheckpointError as error:
            failed += 1
            assert str(path) in str(error) and "\n" not in str(error)
            assert run.everything() == before
        before = run.everything()
    assert failed > 50


@pytest.mark.parametrize("text", [
    "3", "{}", "[", '{"format": 2}', '{"format": 2, "parts": 3, "progress": {}}',
    '{"format": 2, "parts": {"model": 3}, "progress": {}}',
    '{"format": 2, "parts": {"model": {"weight": {"$tensor": "gone"}}}, "progress": {}}',
    '{"format": 2, "parts": {"model": {"weight": {"$tensor": [1]}}}, "progress": {}}',
    '{"format": 2, "parts": {"model": {"weight": {"$tensor": "x"}}}, "progress": {"$what": 3}}',
    '{"format": 7, "parts": {}, "progress": {}}',
])
def test_a_garbled_description_is_named(tmp_path: Path, text: str) -> None:
    checkpoint.save_file({"x": np.ones((2, 2))}, tmp_path / "c", {"gtensor": text})
    model = gt.nn.Linear(2, 2, bias=False)
    with pytest.raises(CheckpointError, match=r"/c is (not a|a checkpoint of another model)"):
        checkpoint.load(tmp_path / "c", model=model, random=False)
