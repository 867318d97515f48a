"""Trainer: a network, its optimizer, its loss and its data; the loop, and its resumption."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from math import isfinite
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor import memory, nn, random
from gtensor.amp import autocast
from gtensor.creation.generators import check_state
from gtensor.creation.new_tensors import tensor
from gtensor.data import DataLoader
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.execution.steps.captured import CaptureError
from gtensor.execution.steps.captured import capture as gt_capture
from gtensor.optim import EMA, GradScaler, Optimizer
from gtensor.optim.lr_scheduler import LRScheduler
from gtensor.system.collector import collector_paused
from gtensor.system.documents import Facts, plain, told
from gtensor.train import checkpoint
from gtensor.train.callbacks import Callback
from gtensor.train.described import Described
from gtensor.train.errors import NotFinite, UserError
from gtensor.train.progress import Captions, Progress

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.distributed import Communicator
    from gtensor.train.accounting import Account

PRECISIONS = ("float32", "bfloat16", "float16")
CHECKPOINT = "checkpoint.safetensors"
_SAME = ("batch_size", "items", "shuffle", "drop_last")  # of a loader, in a run that is resumed
# Names of a checkpoint that are not the user's.
_TAKEN = {"path", "model", "optimizer", "scheduler", "ema", "loader", "random", "max_shard_size",
          "scaler", "precision", "epochs", "order", "streams",
          *(one.name for one in fields(Progress))}


class Loss(nn.Module):
    """A loss as a module with the model in it, for DataParallel."""

    def __init__(self, loss: Callable[..., Tensor], model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, *batch: Any) -> Tensor:
        return self._loss(self.model, *batch)


class Trainer:
    """Trains a network: steps, scores, checkpoints, and what `gtensor train` shows.

        trainer = gt.train.Trainer(net, optimizer, loss, data, epochs=10, batch_size=64,
                                   folder="runs/mine")
        trainer.fit()

    `fit` shows the progress and leaves files in the folder; `run` is the bare loop. Started as
    several processes (`gtensor launch`), all train together: each rank has its part of every batch,
    gradients are those of the batch, and batch norms are synchronized.

    Args:
        model: on the device on which it is to be trained.
        optimizer: of the model's parameters.
        loss: called with the model and the tensors of a batch; returns a scalar.
        data: a dataset, with `batch_size`, which is shuffled by `seed`; a DataLoader; or an object
            whose every iteration is an epoch of batches.
        epochs: times through the data.
        batch_size: examples of a step, over all ranks.
        held_out: data of one of these kinds, or a tuple of tensors that is one batch. Without
            `score`, its mean loss is the score of an epoch; else it is recorded beside the score.
        score: called with the model, in evaluation mode and without gradients; returns the score of
            an epoch.
        schedule: of the learning rate, a step each: a schedule of `gt.optim.lr_scheduler`, or a
            function of the optimizer and the number of steps that makes one.
        ema_decay: of averaged weights (`gt.optim.EMA`), which are scored; None for none.
        clip: the largest norm of the gradients; 0 for any.
        capture: "auto" captures steps (`gt.capture`); one that cannot be goes on as it is, of which
            a warning tells once. True: that is an error. False: none is captured, for a loss that
            prints, say: a replay repeats nothing of Python's. Batches of more than tensors are not.
        precision: "float32", or "bfloat16" or "float16" for mixed precision; the latter with a
            scaled loss.
        seed: of the order of the examples.
        folder: where `fit` writes; None for nowhere.
        callbacks: Callbacks, and functions that are called with the trainer after every epoch.
        captions: the words for what is measured.
        facts: plain values that a checkpoint has; a run is resumed with the same.
        comm: the ranks; by default all processes that were started together.

    Attributes:
        progress: a Progress, the numbers of all steps and epochs so far.
        batches: of an epoch; None where the data has no length.
        batch_size: examples of a step; None for data of whole batches.
        account: the memory of a step, an Account, after `fit`.
        captured: what replays steps (`captured.report()` tells), None if they run as they are.

    Raises TypeError or ValueError for what is none of these.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, loss: Callable[..., Tensor], data: Any, *,
        epochs: int = 1, batch_size: int | None = None, held_out: Any = None,
        score: Callable[[Any], float] | None = None,
        schedule: LRScheduler | Callable[[Optimizer, int], LRScheduler] | None = None,
        ema_decay: float | None = None, clip: float = 0.0, precision: str = "float32",
        capture: bool | str = "auto", seed: int = 0, folder: Path | str | None = None,
        callbacks: Iterable[Callback | Callable[[Any], object]] = (),
        captions: Captions | None = None, facts: Mapping[str, Any] | None = None,
        comm: Communicator | None = None,
    ) -> None:
        _check_parts(model, optimizer, loss)
        if type(epochs) is not int or epochs < 1:
            raise ValueError(f"epochs={epochs!r} given; wanted an integer of 1 or more")
        if not isinstance(clip, (int, float, np.number)) or not 0 <= clip < np.inf:
            raise ValueError(f"clip={clip!r} given; wanted a number of 0 or more")
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r} given; wanted one of "
                             f"{', '.join(PRECISIONS)}")
        if capture != "auto" and not isinstance(capture, bool):
            raise ValueError(f"capture={capture!r} given; wanted 'auto', True or False")
        for name, value, fits, wanted in (
                ("callbacks", callbacks, isinstance(callbacks, Iterable),
                 "a list of Callbacks and functions"),
                ("facts", facts, isinstance(facts, Mapping | None), "a mapping of plain values"),
                ("folder", folder, isinstance(folder, PathLike | str | None), "a path"),
                ("score", score, score is None or callable(score), "a function of the model")):
            if not fits:
                raise TypeError(f"{name}={value!r} given; wanted {wanted}")
        self.model = model
        self.optimizer = optimizer
        self.epochs = epochs
        self.clip = float(clip)
        self.precision = precision
        self.device: Device = next(iter(model.parameters())).device
        self.folder = None if folder is None else Path(folder)
        self.callbacks = [one if isinstance(one, Callback) else _AfterEpoch(one)
                          for one in callbacks]
        for name in (facts or {}).keys() & _TAKEN:
            raise ValueError(f"{name!r} given among the facts, a name that a checkpoint has for "
                             "itself; wanted another one")
        self.facts = {"recipe": "", **(facts or {}), "precision": precision}
        self.comm = comm = ranks() if comm is None else comm
        self.loader = _loader(data, batch_size, seed, self.device, comm)
        whole = batch_size is None and not isinstance(data, DataLoader)
        self.batch_size = None if whole else self.loader.batch_size
        self.batches = self._length()
        self.held_out = held_out if isinstance(held_out, tuple) else ()
        self._scored = None if held_out is None or self.held_out else _loader(
            held_out, None if isinstance(held_out, DataLoader) else self.batch_size, None,
            self.device, None)
        self._score = score or (None if held_out is None else self._mean_loss)
        self.captions = captions or Captions(
            score="loss" if score is None else _name_of(score), score_is_loss=score is None)
        self._has_held_out_loss = held_out is not None and not self.captions.score_is_loss
        self._loss = loss
        self.captured = gt_capture(self.gradients) if capture else None
        if self.captured is not None:
            self.captured.watch(loss)
        self._must_capture = capture is True
        self.network = None if comm is None else _parallel(loss, model, comm)
        self.ema = None if ema_decay is None else EMA(model, ema_decay, warmup=True)
        self.scaler = GradScaler() if precision == "float16" else None
        self.schedule = self._schedule(schedule)
        self.progress = Progress()
        self.account: Account | None = None
        self._stopping = ""

    def _length(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:  # data without a length
            return None

    def _schedule(self, given: Any) -> LRScheduler | None:
        if given is None or isinstance(given, LRScheduler):
            return given
        if not callable(given):
            raise TypeError(f"schedule={given!r} given; wanted a schedule of gt.optim.lr_scheduler "
                            "that is a function of the step, or a function that makes one")
        if self.batches is None:
            raise ValueError("a schedule that is made for a number of steps was given, and data "
                             "without a length; wanted one that is made, such as StepLR(...)")
        return given(self.optimizer, self.batches * self.epochs)

    # -- one step ---------------------------------------------------------------------------------

    def first_batch(self) -> tuple[Any, ...]:
        """The first batch of a dataset, beside the run."""
        with memory.category("data"), self.device:
            return _tensors(self.loader.batch_of(self.loader.order(0)[:self.loader.batch_size]))

    def loss(self, *batch: Any) -> Tensor:
        """The loss of a batch, with its graph; of several ranks, that of this one's part."""
        with self._precise():
            found = (self._loss(self.model, *batch) if self.network is None
                     else self.network(*batch))
        if not isinstance(found, Tensor) or found.ndim:
            shown = (f"a Tensor of shape {found.shape}" if isinstance(found, Tensor)
                     else f"a {type(found).__name__}")
            raise UserError(f"the loss is {shown}; wanted a scalar Tensor, such as the mean over "
                            "the examples")
        return found

    def gradients(self, *batch: Any) -> tuple[Tensor, Tensor | None]:
        """All of a step before the update: the loss, and with `clip` the norm of the gradients.

        A function of the batch and of memory that stays: it reads no number back and changes no
        state of Python, so that it can be captured as it is.
        """
        self.optimizer.zero_grad()
        loss = self.loss(*batch)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        norm = None
        if self.clip:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        return loss.detach(), norm

    def _replayed(self, *batch: Any) -> tuple[Tensor, Tensor | None]:
        """`gradients`, replayed where it is captured."""
        if self.captured is None or not all(isinstance(x, Tensor) for x in batch):
            return self.gradients(*batch)
        try:
            return self.captured(*batch)
        except CaptureError as error:
            if self._must_capture:
                raise
            warnings.warn(f"steps are not captured: {error}", stacklevel=3)
            self.captured = None
            return self.gradients(*batch) if error.result is None else error.result

    def update(self) -> None:
        """The rest of a step: the optimizer, with these gradients, and the averages."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.ema is not None:
            self.ema.update()

    def step(self, *batch: Any) -> float:
        """Forward, backward, update; the loss.

        Raises NotFinite, before the update, for a loss that is not finite, or with `clip` a norm of
        the gradients; UserError for a loss that is no scalar.
        """
        with collector_paused():
            loss, norm = self._replayed(*batch)
        found = self._mean(loss.item(), batch)
        self._check_finite("loss", found)
        if norm is not None:
            length = norm.item()
            if self.scaler is None:
                self._check_finite("norm of the gradients", length)
        self.update()
        if self.schedule is not None:
            self.schedule.step()
        if norm is not None:  # 0 of a step that the scale of the loss left out
            self.progress.gradient_norms.append(length if isfinite(length) else 0.0)
        return found

    def _precise(self) -> AbstractContextManager[object]:
        """The casts of mixed precision."""
        return nullcontext() if self.precision == "float32" else autocast(
            self.device.type, self.precision)

    def _mean(self, loss: float, batch: Sequence[Any]) -> float:
        """The mean loss over all ranks' examples."""
        if self.comm is None:
            return loss
        examples = _examples(batch)
        total, count = self._summed(loss * examples if examples else 0.0, examples)
        return total / count

    def _summed(self, *values: float) -> list[float]:
        """Over the ranks."""
        assert self.comm is not None
        place = self.device if self.comm.backend == "nccl" else "cpu"
        return self.comm.all_reduce(tensor(values, dtype="float64", device=place)).wait().tolist()

    def _check_finite(self, what: str, value: float) -> None:
        if not isfinite(value):
            raise NotFinite(
                f"the {what} is {value} at step {len(self.progress.losses) + 1} (epoch "
                f"{self.progress.epoch + 1}); the step was not taken. Try a smaller learning rate, "
                "or clipped gradients (--lr, --clip 1)")

    # -- the run ----------------------------------------------------------------------------------

    def fit(self, resume: bool = False, quiet: bool = False) -> bool:
        """Train to the end, as `gtensor train` does: a progress bar, files, the memory of a step.

        The folder gets a checkpoint and a line of metrics.csv after each epoch, and pictures at the
        end. Ctrl-C saves after the step and raises Interrupted.

        Args:
            resume: go on from the folder's checkpoint.
            quiet: print nothing.

        Returns whether the end was reached: False if a callback stopped the run.

        Raises UserError, when the last good state is saved, for data that ends, a loss that is no
        scalar, and numbers that are not finite; before the first step, if the folder cannot be
        written, another training holds it, or the checkpoint cannot be used.
        """
        from gtensor.train.fitting import fit

        return fit(self, resume, quiet)

    def run(self) -> bool:
        """Train to the end, or until `stop` is called, without output; whether that was the end.

        Raises UserError for data that ends before its epoch, and as `step`.
        """
        return self.run_with(())

    def run_with(
        self, first: Iterable[Callback],
        around: Callable[[tuple[Any, ...]], AbstractContextManager[object]] = nullcontext,
    ) -> bool:
        """`run`, with callbacks before the trainer's own, and a context around the step of a batch.
        """
        progress, callbacks = self.progress, [*first, *self.callbacks]
        self._stopping = ""
        with self.device:
            while progress.epoch < self.epochs:
                self.model.train()
                batches = iter(self.loader)
                while (batch := self._next(batches)) is not None:
                    with around(batch):
                        progress.losses.append(self.step(*batch))
                    del batch  # before the next one is made
                    progress.batch += 1
                    for one in callbacks:
                        one.after_step(self)
                    if self.on_any_rank(bool(self._stopping)):
                        return False
                self._check_whole()
                self._end_epoch()
                for one in callbacks:
                    one.after_epoch(self)
                if self.on_any_rank(bool(self._stopping)):
                    return progress.epoch == self.epochs
        return True

    def _check_whole(self) -> None:
        """Raise UserError unless the epoch has had all its batches."""
        progress = self.progress
        if not progress.batch or self.batches not in (None, progress.batch):
            wanted = self.batches or "at least one"
            raise UserError(f"the data ended after {progress.batch} batches of epoch "
                            f"{progress.epoch + 1}; wanted {wanted} in every epoch, from data that "
                            "can be iterated again")

    def _end_epoch(self) -> None:
        progress = self.progress
        score = None if self._score is None else self.score()
        loss = self._evaluated(self._mean_loss) if self._has_held_out_loss else None
        norm = self.model.weight_norm().item()
        for what, value in ((f"held-out {self.captions.score}", score), ("held-out loss", loss),
                            ("norm of the weights", norm)):
            if value is not None and not isfinite(value):
                raise NotFinite(f"the {what} is {value} after epoch {progress.epoch + 1}")
        if score is not None:
            progress.scores.append(score)
        if loss is not None:
            progress.held_out_losses.append(loss)
        progress.weight_norms.append(norm)
        progress.ends.append(len(progress.losses))
        progress.epoch, progress.batch = progress.epoch + 1, 0

    def stop(self, why: str) -> None:
        """End the run after this step, on all ranks; a callback calls it. `why` is printed."""
        self._stopping = why or "Stopped"

    @property
    def stopped(self) -> str:
        """Why the run was stopped; empty if it was not, or on another rank."""
        return self._stopping

    @property
    def leads(self) -> bool:
        """Whether this rank writes the files."""
        return self.comm is None or self.comm.rank == 0

    @property
    def is_scored(self) -> bool:
        """Whether there is a score after every epoch."""
        return self._score is not None

    def on_any_rank(self, value: bool) -> bool:
        """Whether it is True on one of the ranks; all of them call it."""
        return value if self.comm is None else bool(self._summed(value)[0])

    @staticmethod
    def _next(batches: Iterator[Any]) -> Any:
        """The next batch as a tuple, accounted for as data; None after the last."""
        with memory.category("data"):
            batch = next(batches, None)
        return None if batch is None else _tensors(batch)

    def averaged(self) -> AbstractContextManager[object]:
        """Within the block, the model has the weights that are scored: averages, if there are."""
        return nullcontext() if self.ema is None else self.ema.swapped()

    def score(self) -> float:
        """The score of the model. Raises TypeError for a trainer without `held_out` and `score`."""
        if self._score is None:
            raise TypeError("score() of a trainer without held_out= and score= was called")
        return self._evaluated(self._score)

    def _evaluated(self, what: Callable[[Any], float]) -> float:
        """A number of the model as it is scored: in evaluation mode, without gradients."""
        self.model.eval()
        with no_grad(), self.averaged(), self._precise(), self.device:
            found = what(self.model)
        self.model.train()
        return float(found)

    def _mean_loss(self, model: nn.Module) -> float:
        """The mean loss over the held-out examples."""
        total, count = 0.0, 0
        for batch in (self.held_out,) if self._scored is None else map(_tensors, self._scored):
            examples = _examples(batch)
            total += self._loss(model, *batch).item() * examples
            count += examples
        if not count:
            raise UserError("the held-out data has no examples; wanted some, or no held_out=")
        return total / count

    def is_finite(self) -> bool:
        """Whether all weights, and what the forward pass keeps (running statistics), are finite."""
        return all(np.isfinite(value.numpy()).all() for value in self.model.state_dict().values())

    # -- taking up again --------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder's checkpoint. Raises TypeError for a trainer without a folder."""
        if self.folder is None:
            raise TypeError("a trainer without a folder was to save or to resume; wanted folder=, "
                            "or a path")
        return self.folder / CHECKPOINT

    def save(self, path: Path | str | None = None) -> None:
        """Write a checkpoint, atomically: the first rank does; all of them call it.

        It has the random streams of all ranks. By default it is that of the folder.
        """
        streams = [] if self.comm is None else self.comm.all_gather_object(random.get_state())
        if not self.leads:
            return
        about = {**self.facts, "epochs": self.epochs, "order": self.loader.state_dict(),
                 "streams": streams, **vars(self.progress)}
        checkpoint.save(Path(path or self.path), self._parts(), about)

    def resume(self, path: Path | str | None = None) -> int:
        """Resume from a checkpoint, by default that of the folder; its own number of epochs.

        The run goes on to this trainer's number of epochs, with the learning rate that its schedule
        has from this step on.

        Raises UserError, with nothing changed, if it is broken, of another run, or trained for more
        epochs than these.
        """
        path = Path(path or self.path)

        def check(run: Described) -> tuple[Progress, int, Sequence[Any], dict[str, Any]]:
            said = run.facts
            _check_same(path, self.facts, said)
            own = self.loader.state_dict()
            loader = said.within("order")
            for name in _SAME:
                if loader.found.get(name) != own[name]:
                    raise UserError(f"{path} was made with data of {name} "
                                    f"{told(loader.found.get(name))}; this run's has {own[name]}")
            progress = Progress.of(said, self.batches)
            if (progress.epoch, progress.batch) > (self.epochs, 0):
                least = progress.epoch + bool(progress.batch)
                raise UserError(f"{path} has trained {len(progress.losses)} steps, which are more "
                                f"than --epochs {self.epochs}; wanted {least} or more")
            streams = said.many("streams", ())
            for state in streams:
                check_state(state)
            return progress, said.whole("epochs"), streams, {
                **own, "seed": loader.whole("seed"), "epoch": progress.epoch,
                "batch": progress.batch}

        self.progress, epochs, streams, position = checkpoint.load(path, self._parts(), check)
        if self.comm is not None:
            if len(streams) == self.comm.size:
                random.set_state(streams[self.comm.rank])
            else:  # of the first rank, whose state the checkpoint has
                random.jump(self.comm.rank)
        self.loader.load_state_dict(position)
        if self.schedule is not None:
            self.schedule.load_state_dict({"last_epoch": len(self.progress.losses)})
        return epochs

    def _parts(self) -> dict[str, Any]:
        """What has a state of its own, by its name in a checkpoint."""
        parts = {"model": self.model, "optimizer": self.optimizer, "ema": self.ema,
                 "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None}


class _AfterEpoch(Callback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} given among the callbacks; wanted a Callback, or a "
                            "function of the trainer")
        self.after_epoch = function  # type: ignore[method-assign, assignment]


def _check_parts(model: object, optimizer: object, loss: object) -> None:
    """Raise TypeError or ValueError unless these can train."""
    for name, value, kind in (("model", model, nn.Module), ("optimizer", optimizer, Optimizer)):
        if not isinstance(value, kind):
            raise TypeError(f"Trainer was given a {type(value).__name__} as its {name}; wanted a "
                            f"gt.{kind.__module__.split('.')[1]}.{kind.__name__}")
    if not callable(loss):
        raise TypeError(f"Trainer was given a {type(loss).__name__} as its loss; wanted a function "
                        "of the model and the tensors of a batch")
    assert isinstance(model, nn.Module) and isinstance(optimizer, Optimizer)
    own = set(map(id, model.parameters()))
    if not any(id(one) in own for group in optimizer.param_groups for one in group["params"]):
        raise ValueError("Trainer was given an optimizer of other parameters than the model's; "
                         "wanted one that is made with model.parameters()")


def ranks() -> Communicator | None:
    """The communicator of all processes, None for one that is alone."""
    from gtensor.distributed import init, started

    return init() if started() > 1 else None


def _parallel(loss: Callable[..., Tensor], model: nn.Module, comm: Communicator) -> nn.Module:
    """The loss of a rank's part of a batch as a module, whose gradients are those of the batch.

    From here on each rank draws from a random stream of its own.
    """
    from gtensor.distributed import DataParallel, convert_sync

    random.jump(comm.rank)
    return DataParallel(Loss(loss, convert_sync(model, comm)), comm)


def _loader(data: Any, batch_size: int | None, seed: int | None, device: Device,
            comm: Communicator | None) -> DataLoader:
    """The loader of what was given as data; shuffled by a seed, if there is one."""
    shard = (0, 1) if comm is None else (comm.rank, comm.size)
    is_dataset = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, DataLoader):
        if batch_size is not None:
            raise ValueError(f"batch_size={batch_size} and a DataLoader given, which has its own; "
                             "wanted one of them")
        if data.shard != shard:
            raise ValueError(f"a DataLoader with shard={data.shard} given; wanted {shard} of rank "
                             f"{shard[0]} of {shard[1]}, or a dataset with batch_size=")
        return data
    if batch_size is not None:
        return DataLoader(data, batch_size, shuffle=is_dataset and seed is not None, seed=seed,
                          device=device, shard=shard)
    if is_dataset:
        raise ValueError(f"a {type(data).__name__} of {len(data)} examples given as data without "
                         "batch_size=; wanted that, or a DataLoader")
    if shard[1] > 1:
        raise ValueError(f"data of whole batches given for {shard[1]} ranks; wanted a dataset with "
                         "batch_size=, of which each rank takes its part")
    return DataLoader(data, 1, collate_fn=itemgetter(0), device=device)


def _tensors(batch: Any) -> tuple[Any, ...]:
    """What a loss is called with, behind the model."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _examples(batch: Sequence[Any]) -> int:
    from gtensor.distributed.data_parallel import first_length

    return first_length(*batch)


def _name_of(score: Callable[..., object]) -> str:
    """A function's name in words."""
    name = getattr(score, "__name__", "score")
    return "score" if name.startswith("<") else name.strip("_").replace("_", " ")


def _check_same(path: Path, mine: Mapping[str, Any], said: Facts) -> None:
    """Raise UserError if a checkpoint says something else than this run; what it lacks is the same.
    """
    for name, value in mine.items():
        if isinstance(value, Mapping):
            _check_same(path, value, said.within(name))
        elif name in said and plain(said.found[name]) != plain(value):
            raise UserError(f"{path} was made with {name.replace('_', ' ')} "
                            f"{told(said.found[name])}; this run has {told(value)}")
