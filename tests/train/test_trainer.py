"""A trainer of the user's own network: resumed bit for bit, stopped early, and given bad input."""

from __future__ import annotations

import csv
import gc
import math
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed.ranks import in_threads

import gtensor as gt
from gtensor.nn import functional as F
from gtensor.optim import lr_scheduler
from gtensor.train import Callback, EarlyStopping, Interrupted, NotFinite, Trainer, UserError

STEPS = 5  # of an epoch
RANDOM = np.random.default_rng(0)
POINTS = RANDOM.normal(size=(80, 2)).astype(np.float32)
LABELS = ((POINTS**2).sum(axis=1) < 1.4).astype(np.int64)
POINTS.flags.writeable = LABELS.flags.writeable = False


class Batches:
    """Whole batches, anew in each iteration, of which some later epochs have fewer."""

    def __init__(self, epochs: list[int] | None = None) -> None:
        self.epochs = epochs
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        count = STEPS if self.epochs is None else self.epochs[self.passes]
        self.passes += 1
        for start in range(0, 16 * count, 16):
            yield POINTS[start:start + 16], LABELS[start:start + 16]


def data_of(kind: str) -> dict[str, Any]:
    """The points as each kind of data."""
    points = gt.data.ArrayDataset(POINTS, LABELS)
    if kind == "loader":
        return {"data": gt.data.DataLoader(points, 16, shuffle=True, seed=3, num_workers=2)}
    return {"data": Batches()} if kind == "batches" else {"data": points, "batch_size": 16}


def loss(net: gt.nn.Module, points: gt.Tensor, labels: gt.Tensor) -> gt.Tensor:
    return F.cross_entropy(net(points), labels)


def warmed(optimizer: gt.optim.Optimizer, steps: int) -> lr_scheduler.LRScheduler:
    return lr_scheduler.warmup_cosine(optimizer, 2, steps)


def trainer_of(folder: Path | None = None, kind: str = "dataset", **options: Any) -> Trainer:
    gt.manual_seed(0)
    net = gt.nn.Sequential(gt.nn.Linear(2, 8), gt.nn.Dropout(0.1), gt.nn.GELU(),
                           gt.nn.Linear(8, 2))
    optimizer = gt.optim.AdamW(net.parameters(), lr=0.05)
    return Trainer(net, optimizer, **{
        "loss": loss, "folder": folder, "epochs": 3, "schedule": warmed if kind != "batches" else
        lr_scheduler.StepLR(optimizer, 4), **data_of(kind), **options})


class StopAfter(Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def after_step(self, trainer: Trainer) -> None:
        if len(trainer.progress.losses) == self.steps:
            trainer.stop("enough")


@pytest.mark.parametrize(("kind", "options"), [
    ("dataset", {"clip": 0.5, "precision": "float16", "ema_decay": 0.9}),
    ("loader", {"precision": "bfloat16"}), ("batches", {}),
])
@pytest.mark.parametrize("stop_after", [STEPS - 1, STEPS])
def test_stopped_and_resumed_is_the_run_without_stop(
    tmp_path: Path, kind: str, options: dict[str, Any], stop_after: int
) -> None:
    """Weights, optimizer, averages, scale, schedule, random numbers, order: every byte."""
    options["held_out"] = (gt.tensor(POINTS[:20]), gt.tensor(LABELS[:20]))
    whole = trainer_of(tmp_path / "whole", kind, **options)
    assert whole.run()
    whole.save()
    cut = trainer_of(tmp_path / "cut", kind, **options, callbacks=[StopAfter(stop_after)])
    assert not cut.run() and cut.stopped == "enough"
    cut.save()
    again = trainer_of(tmp_path / "cut", kind, **options)
    gt.manual_seed(7)
    assert again.resume() == 3 and again.run()
    again.save()
    assert again.progress == whole.progress
    assert len(whole.progress.losses) == 3 * STEPS and len(whole.progress.scores) == 3
    assert again.path.read_bytes() == whole.path.read_bytes()


def test_fit_leaves_its_files_and_says_what_it_reached(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "another's").touch()
    told: list[int] = []
    fitted = trainer_of(tmp_path / "run", clip=1e-3, epochs=1, callbacks=[
        lambda trainer: told.append(trainer.progress.epoch)])
    assert fitted.fit()
    out = capsys.readouterr().out
    assert "Training loss 0." in out and "after 1 epoch, " in out and told == [1]
    assert "Where the memory of a training step went" in out
    assert out.endswith(f"Wrote {tmp_path}/run/checkpoint.safetensors, loss.png, memory.png, "
                        "metrics.csv.\n")
    assert "Left out: " in out  # the weights were made outside the arena
    assert {path.name for path in (tmp_path / "run").iterdir() if path.suffix} == {
        "checkpoint.safetensors", "loss.png", "memory.png", "metrics.csv"}
    with (tmp_path / "run" / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["clipped"] == "1.0" and "held_out_loss" not in row
    assert float(row["training_loss"]) == pytest.approx(np.mean(fitted.progress.losses))
    for name, value in gt.checkpoint.load_file(fitted.path).items():  # no step was taken since
        if name.startswith("model."):
            assert (value == fitted.model.state_dict()[name.removeprefix("model.")]).all()


def test_a_callback_ends_a_run_within_an_epoch_which_is_saved(tmp_path, capsys) -> None:
    for steps, epoch in ((3, 0), (2 * STEPS + 1, 2)):
        trainer = trainer_of(tmp_path, "batches", callbacks=[StopAfter(steps)])
        assert not trainer.fit(resume=epoch > 0)
        out = capsys.readouterr().out
        assert "enough.\nTraining loss 0." in out and "batches/s" in out
        assert f"after {epoch} epochs" in out
        assert len(gt.checkpoint.progress(trainer.path)["losses"]) == steps


@pytest.mark.parametrize("has_folder", [True, False])
def test_ctrl_c_ends_the_program_after_the_step(tmp_path, capsys, has_folder: bool) -> None:
    class Presses(Callback):
        def after_step(self, trainer: Trainer) -> None:
            if len(trainer.progress.losses) == 4:
                signal.raise_signal(signal.SIGINT)

    trainer = trainer_of(tmp_path if has_folder else None, callbacks=[Presses()])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted):
        trainer.fit()
    assert signal.getsignal(signal.SIGINT) is before and len(trainer.progress.losses) == 4
    told = (f"Interrupted in epoch 1; saved to {trainer.path}. Go on" if has_folder else
            "Interrupted in epoch 1; not saved, since there is no folder.")
    assert told in capsys.readouterr().out
    assert (tmp_path / "checkpoint.safetensors").exists() == has_folder


def test_a_longer_run_has_the_learning_rate_of_its_length(tmp_path, capsys) -> None:
    assert trainer_of(tmp_path, epochs=1).fit()
    longer = trainer_of(tmp_path, epochs=4)
    assert longer.resume() == 1
    wanted = trainer_of(epochs=4)
    for _ in range(STEPS):
        wanted.schedule.step()
    assert longer.schedule.get_last_lr() == wanted.schedule.get_last_lr() != [0.0]
    capsys.readouterr()
    assert trainer_of(tmp_path, epochs=4).fit(resume=True)
    out = capsys.readouterr().out
    assert "Resumed after 5 steps, in epoch 2 of 4. It was a run of 1 epoch; from here on" in out
    with pytest.raises(UserError, match="has trained 20 steps, which are more than --epochs 3"):
        trainer_of(tmp_path, epochs=3).resume()


@pytest.mark.parametrize(("kind", "options"), [
    ("dataset", {"clip": 0.5, "precision": "float16", "ema_decay": 0.9}),
    ("loader", {"precision": "bfloat16"}), ("batches", {}),
])
def test_captured_steps_train_the_same_bit_for_bit(kind, options) -> None:
    found = []
    for capture in (False, True):
        trainer = trainer_of(kind=kind, capture=capture, **options)
        trainer.run()
        found.append((trainer.progress, [value.numpy().tobytes() for value
                                         in trainer.model.state_dict().values()]))
        assert (trainer.captured is None) is (not capture)
    assert found[0] == found[1]
    assert trainer.captured is not None and len(trainer.captured.programs) == 1


def test_a_warning_tells_once_of_a_step_that_cannot_be_captured(capsys) -> None:
    def reading(net: gt.nn.Module, *batch: gt.Tensor) -> gt.Tensor:
        found = loss(net, *batch)
        assert found.item() < 100
        return found

    trainer = trainer_of(loss=reading)
    with pytest.warns(UserWarning, match=r"steps are not captured: .*assert found\.item") as told:
        trainer.run()
    same = trainer_of(capture=False)
    same.run()
    assert len(told) == 1 and not capsys.readouterr().out
    assert trainer.progress == same.progress
    with pytest.raises(gt.CaptureError, match="item"):
        trainer_of(loss=reading, capture=True).run()
    for capture in ("all", 1):
        with pytest.raises(ValueError, match=f"capture={capture!r} given; wanted 'auto', True or"):
            trainer_of(capture=capture)


def test_a_step_before_its_update_is_a_function_of_the_batch() -> None:
    """Nothing that it leaves in Python differs from one call to the next: it can be captured."""
    trainer = trainer_of(clip=0.5)
    trainer.model.eval()  # without random numbers
    batch = trainer.first_batch()
    before = {**vars(trainer)}, repr(trainer.progress), repr(trainer.schedule)
    first, second = (trainer.gradients(*batch) for _ in range(2))
    assert [one.item() for one in first] == [one.item() for one in second]
    assert ({**vars(trainer)}, repr(trainer.progress), repr(trainer.schedule)) == before


class Parts(list[Any]):
    """A list that weak references can name."""


@pytest.mark.parametrize("enabled", [True, False])
def test_no_collection_starts_while_a_graph_is_recorded(enabled: bool) -> None:
    started: list[bool] = []  # whether each collection came within a step
    within = False
    dropped: list[weakref.ref[Parts]] = []

    def long_loss(net: gt.nn.Module, *batch: gt.Tensor) -> gt.Tensor:
        cycle = Parts()
        cycle.append(cycle)
        dropped.append(weakref.ref(cycle))
        y = loss(net, *batch)
        for _ in range(1000):
            y = y * 1.0
        return y

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started.append(within)

    def failing(net: gt.nn.Module, *batch: gt.Tensor) -> gt.Tensor:
        raise ValueError("planned")

    trainer = trainer_of(loss=long_loss, capture=False)
    batch, before = trainer.first_batch(), gc.isenabled()
    gc.collect()
    gc.callbacks.append(count)
    (gc.enable if enabled else gc.disable)()
    try:
        trainer.gradients(*batch)
        assert bool(started) is enabled  # so many records start collections
        started.clear()
        within = True
        trainer.step(*batch)
        within = False
        assert True not in started and gc.isenabled() is enabled
        trainer._loss = failing
        with pytest.raises(ValueError, match="planned"):
            trainer.step(*batch)
        assert gc.isenabled() is enabled
        kept: list[list[Any]] = []
        while enabled and dropped[1]() is not None:  # cycles of the step are found after it
            kept.append([])
            assert len(kept) < 10_000
    finally:
        gc.callbacks.remove(count)
        (gc.enable if before else gc.disable)()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_step_that_is_captured_replays_as_the_next_ones(precision: str) -> None:
    """Both parts of a step as they are, in a CUDA graph, on the batch that lies in its inputs."""
    found = []
    for captured in (False, True):
        with gt.device("cuda"):
            trainer = trainer_of(clip=0.5, precision=precision, ema_decay=0.9)
            trainer.model.eval()  # without random numbers
            batch = trainer.first_batch()
            graph, losses = gt.Graph(), []

            def step(trainer: Trainer = trainer, batch: Any = batch) -> Any:
                loss, norm = trainer.gradients(*batch)
                trainer.update()
                return loss, norm

            for _ in range(2):
                losses += [one.item() for one in step()]
            if captured:
                with graph.capture():
                    result = step()
            for _ in range(3):
                if captured:
                    graph.replay()
                else:
                    result = step()
                losses += [one.item() for one in result]
            found.append(losses)
    assert found[0] == found[1] and len({*found[0]}) == 10


@pytest.mark.parametrize("schedule", [None, warmed])
def test_two_ranks_train_as_one(schedule: Any) -> None:
    """The losses of the joint batch: each rank has a part of every one of them, captured or not."""
    def losses(comm: Any = None, capture: bool = True) -> list[float]:
        net = gt.nn.Sequential(gt.nn.Linear(2, 8), gt.nn.BatchNorm1d(8), gt.nn.Linear(8, 2))
        for parameter in net.parameters():
            parameter.detach()[...] = 0.1
        trainer = Trainer(net, gt.optim.SGD(net.parameters(), lr=0.1), loss, epochs=2, clip=0.5,
                          schedule=schedule, comm=comm, capture=capture, **data_of("dataset"))
        assert trainer.run()
        assert not capture or "8 replays" in trainer.captured.report()
        return trainer.progress.losses

    alone = losses()
    ranks = in_threads(2, losses)
    for found in ranks:
        assert found == pytest.approx(alone, rel=1e-5)
    assert ranks == in_threads(2, losses, False)


def test_the_loss_of_held_out_data_is_recorded_beside_a_score(tmp_path) -> None:
    held_out = gt.data.ArrayDataset(POINTS[:24], LABELS[:24])  # batches of 16 and 8
    trainer = trainer_of(tmp_path, epochs=2, held_out=held_out, score=lambda net: 0.5)
    assert trainer.fit(quiet=True) and trainer.progress.scores == [0.5, 0.5]
    whole = trainer_of(epochs=2, held_out=(gt.tensor(POINTS[:24]), gt.tensor(LABELS[:24])))
    assert whole.run() and not whole.progress.held_out_losses
    assert trainer.progress.losses == whole.progress.losses
    assert trainer.progress.held_out_losses == pytest.approx(whole.progress.scores, rel=1e-6)
    with (tmp_path / "metrics.csv").open() as file:
        assert [float(row["held_out_loss"]) for row in csv.DictReader(file)] == (
            trainer.progress.held_out_losses)
    again = trainer_of(tmp_path, epochs=2, held_out=held_out, score=lambda net: 0.5)
    assert again.resume() == 2 and again.progress == trainer.progress


# -- early stopping ------------------------------------------------------------------------------


def scored(scores: list[float], folder: Path | None = None, **options: Any) -> Trainer:
    given = iter(scores)
    return trainer_of(folder, epochs=len(scores), score=lambda net: next(given), **options)


@pytest.mark.parametrize(("higher", "least", "ends"), [
    (False, 0.0, 5), (True, 0.0, 3), (False, 1.5, 5)])  # 2.0 is not better by 1.5, but 1.0 is
def test_a_run_ends_when_its_score_gets_no_better(higher: bool, least: float, ends: int) -> None:
    scores = [3.0, 2.0, 1.0, 3.5, 4.0, 3.9, 4.0, 0.0]
    trainer = scored(scores, callbacks=[EarlyStopping(2, higher, least)])
    assert not trainer.run() and trainer.progress.epoch == ends
    best = EarlyStopping(2, higher, least).best(trainer.progress.scores)
    assert trainer.stopped.endswith(f", of epoch {best}")


def test_the_best_state_is_kept_and_resumed_stops_at_the_same_epoch(tmp_path, capsys) -> None:
    scores = [2.0, 1.0, 1.5, 1.2, 0.5]
    stopping = EarlyStopping(2)
    cut = scored(scores, tmp_path, callbacks=[stopping, StopAfter(3 * STEPS)])
    assert not cut.fit() and cut.progress.epoch == 2  # in the third, at its last step
    best = gt.checkpoint.progress(tmp_path / "best.safetensors")
    assert best["epoch"] == 2 and best["scores"] == [2.0, 1.0]
    cut.save()
    again = scored(scores[2:] + scores[:2], tmp_path, callbacks=[stopping])
    assert not again.fit(resume=True) and again.progress.scores == scores[:4]
    assert "No better score in 2 epochs: the best was 1.0000, of epoch 2." in (
        capsys.readouterr().out)
    assert gt.checkpoint.progress(tmp_path / "best.safetensors")["epoch"] == 2


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "told"), [
    ({"loss": lambda net, x, y: net(x)}, r"the loss is a Tensor of shape \(16, 2\); wanted a"),
    ({"loss": lambda net, x, y: 0.5}, "the loss is a float; wanted a scalar Tensor"),
    ({"loss": lambda net, x, y: loss(net, x, y) * math.nan}, "the loss is nan at step 1 "),
])
def test_a_first_step_that_cannot_be_taken_saves_nothing(tmp_path, options, told) -> None:
    trainer_of(tmp_path).save()
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(UserError, match=told) as caught:
        trainer_of(tmp_path, **options).fit(quiet=True)
    assert "No step was taken, so nothing was saved" in str(caught.value)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


class Ending(gt.data.DataLoader):
    """Ends in its second epoch after two batches."""

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        return (batch for n, batch in enumerate(batches) if self._epoch == 0 or n < 2)


def after(steps: int, wrong: Any) -> Any:
    """A loss that is wrong after so many steps."""
    calls: list[int] = []

    def sometimes(net: gt.nn.Module, *batch: gt.Tensor) -> Any:
        calls.append(1)
        found = loss(net, *batch)
        return wrong(found) if len(calls) > steps else found

    return sometimes


@pytest.mark.parametrize(("make", "kind", "told", "steps"), [
    (lambda: {"loss": after(7, lambda one: one * math.nan)}, NotFinite, "the loss is nan at step 8 "
     r"\(epoch 2\); the step was not taken", 7),
    (lambda: {"loss": after(6, lambda one: gt.stack([one, one]))}, UserError,
     r"the loss is a Tensor of shape \(2,\)", 6),
    (lambda: {"data": Ending(gt.data.ArrayDataset(POINTS, LABELS), 16), "batch_size": None},
     UserError, "the data ended after 2 batches of epoch 2; wanted 5 in every epoch", 7),
    (lambda: {"data": Batches([5, 0, 5]), "batch_size": None, "schedule": None}, UserError,
     "the data ended after 0 batches of epoch 2; wanted at least one in every epoch", 5),
    (lambda: {"held_out": []}, UserError, "the held-out data has no examples", 5),
    (lambda: {"score": lambda net: math.inf}, NotFinite, "the held-out score is inf after epoch 1",
     5),
    (lambda: {"score": lambda net: math.nan, "ema_decay": 0.5}, NotFinite,
     "the held-out score is nan after epoch 1", 5),
], ids=["not finite", "no scalar", "data ends", "no second epoch", "nothing held out", "score",
        "score of averages"])
def test_a_run_that_cannot_go_on_saves_the_last_good_state(tmp_path, make, kind, told, steps):
    with pytest.raises(kind, match=told) as caught:
        trainer_of(tmp_path, capture=False, **make()).fit(quiet=True)
    assert str(caught.value).endswith(f"saved to {tmp_path / 'checkpoint.safetensors'}")
    found = gt.checkpoint.progress(tmp_path / "checkpoint.safetensors")
    assert len(found["losses"]) == steps and all(map(math.isfinite, found["losses"]))


def test_a_good_state_goes_on_where_the_bad_step_was(tmp_path) -> None:
    whole = trainer_of()
    assert whole.run()
    with pytest.raises(NotFinite):
        trainer_of(tmp_path, loss=after(7, lambda one: one / 0), capture=False).fit(quiet=True)
    again = trainer_of(tmp_path)
    again.resume()
    assert again.run()
    assert again.progress.losses[:7] == whole.progress.losses[:7]
    assert len(again.progress.losses) == 3 * STEPS


def test_a_folder_that_cannot_be_written_is_named_before_the_first_step(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    trainer = trainer_of(tmp_path / "file" / "run")
    with pytest.raises(UserError, match="run/.* could not be written: Not a directory"):
        trainer.fit(quiet=True)
    assert trainer.progress.losses == []


@pytest.mark.parametrize(("options", "told"), [
    ({"batch_size": None}, "ArrayDataset of 80 examples given as data without batch_size="),
    ({"data": iter([(POINTS, LABELS)]), "batch_size": None, "schedule": None}, "used up after one"),
    ({"data": Batches(), "batch_size": None}, "data without a length"),
    ({"data": gt.data.DataLoader(gt.data.ArrayDataset(POINTS), 8)}, "batch_size=16 and a DataL"),
    ({"epochs": 0}, "epochs=0 given; wanted an integer of 1 or more"),
    ({"clip": math.nan}, "clip=nan given; wanted a number of 0 or more"),
    ({"clip": None}, "clip=None given; wanted a number of 0 or more"),
    ({"precision": "int8"}, "precision='int8' given; wanted one of float32, bfloat16, float16"),
    ({"loss": "mse"}, "given a str as its loss; wanted a function of the model"),
    ({"optimizer": gt.optim.SGD([gt.nn.Parameter(gt.zeros(3))], lr=1.0)}, "other parameters than"),
    ({"model": len}, "was given a builtin_function_or_method as its model; wanted a gt.nn.Module"),
    ({"schedule": 3}, "schedule=3 given; wanted a schedule of gt.optim.lr_scheduler"),
    ({"callbacks": [3]}, "3 given among the callbacks; wanted a Callback, or a function"),
    ({"callbacks": 3}, "callbacks=3 given; wanted a list of Callbacks and functions"),
    ({"facts": 3}, "facts=3 given; wanted a mapping of plain values"),
    ({"folder": 3}, "folder=3 given; wanted a path"),
    ({"score": 3}, "score=3 given; wanted a function of the model"),
    ({"facts": {"losses": 1}}, "'losses' given among the facts, a name that a checkpoint has"),
])
def test_mistakes_are_named_when_the_trainer_is_made(options: dict[str, Any], told: str) -> None:
    net = gt.nn.Linear(2, 2)
    given = {"model": net, "optimizer": gt.optim.SGD(net.parameters(), lr=0.1), "loss": loss,
             "schedule": warmed, **data_of("dataset"), **options}
    with pytest.raises((TypeError, ValueError), match=told.replace("(", r"\(")):
        Trainer(**given)


@pytest.mark.parametrize(("options", "told"), [
    ({"batch_size": 8}, "was made with data of batch_size 16; this run's has 8"),
    ({"facts": {"width": 4}}, "was made with width 3; this run has 4"),
    ({"precision": "bfloat16"}, "was made with precision 'float32'; this run has 'bfloat16'"),
])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, options, told) -> None:
    trainer_of(tmp_path, facts={"width": 3}).save()
    trainer = trainer_of(tmp_path, **{"facts": {"width": 3}, **options})
    before = [parameter.tolist() for parameter in trainer.model.parameters()]
    with pytest.raises(UserError, match=told):
        trainer.resume()
    assert [parameter.tolist() for parameter in trainer.model.parameters()] == before


def test_what_needs_a_folder_or_scores_says_so() -> None:
    trainer = trainer_of(callbacks=[EarlyStopping(1)])
    with pytest.raises(TypeError, match="a trainer without a folder was to save or to resume"):
        trainer.save()
    with pytest.raises(TypeError, match="without held_out= and score= was called"):
        trainer.score()
    with pytest.raises(ValueError, match="EarlyStopping was given to a trainer without scores"):
        trainer.run()
    with pytest.raises(ValueError, match="patience=0 given; wanted an integer of 1 or more"):
        EarlyStopping(0)
