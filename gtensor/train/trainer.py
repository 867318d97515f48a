"""The training loop of a recipe, and its resumption from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor import memory, nn, random
from gtensor.backend import get_device
from gtensor.creation.new_tensors import tensor
from gtensor.data import DataLoader
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.optim import EMA, AdamW
from gtensor.optim.lr_scheduler import warmup_cosine
from gtensor.system.documents import Facts
from gtensor.train import checkpoint
from gtensor.train.described import Described
from gtensor.train.errors import NotFinite, UserError
from gtensor.train.recipe import Recipe

if TYPE_CHECKING:
    from gtensor.distributed import Communicator, DataParallel


@contextmanager
def _refusals_told() -> Iterator[None]:
    """A ValueError of the block, such as sizes that do not divide, becomes a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def parallel(recipe: Recipe[Any], model: nn.Module, comm: Communicator) -> DataParallel:
    """The loss of a rank's part of a batch as a module, whose gradients are those of the batch.

    From here on each rank draws from a random stream of its own.
    """
    from gtensor.distributed import DataParallel, convert_sync

    random.jump(comm.rank)
    return DataParallel(Loss(recipe, convert_sync(model, comm)), comm)


class Loss(nn.Module):
    """A recipe's loss as a module, with the model in it."""

    def __init__(self, recipe: Recipe[Any], model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._loss = recipe.loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self._loss(self.model, *batch)


@dataclass
class Progress:
    """The progress of a run, as plain JSON for a checkpoint."""

    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    losses: list[float] = field(default_factory=list)  # of every step
    gradient_norms: list[float] = field(default_factory=list)  # of every step, before clipping
    scores: list[float] = field(default_factory=list)  # held out, after every epoch
    weight_norms: list[float] = field(default_factory=list)  # after every epoch

    @classmethod
    def of(cls, facts: Facts) -> Progress:
        """What a checkpoint says of it. Raises ValueError for what is no number or list."""
        return cls(facts.whole("epoch"), facts.whole("batch"),
                   *(list(facts.many(one.name)) for one in fields(cls)[2:]))

    def whole(self, batches: int) -> bool:
        """Whether it can be the progress of a run with so many batches in an epoch."""
        numbers = [*self.losses, *self.gradient_norms, *self.scores, *self.weight_norms]
        return (all(isinstance(number, float) for number in numbers)
                and self.batch <= batches
                and len(self.losses) == self.epoch * batches + self.batch
                and len(self.scores) == len(self.weight_norms) == self.epoch
                and len(self.gradient_norms) in (0, len(self.losses)))


class Trainer:
    """A model, its optimizer and its position in the data, from which `run` continues."""

    def __init__(self, recipe: Recipe[Any], comm: Communicator | None = None) -> None:
        self.recipe = recipe
        self.comm = comm
        self.options = options = recipe.options
        self.device = get_device(options.device)
        with self.device:
            random.manual_seed(options.seed)
            with memory.category("parameters"), _refusals_told():
                self.model = recipe.model()
            self.network = None if comm is None else parallel(recipe, self.model, comm)
            self.optimizer = AdamW(self.model.parameters(), options.lr,
                                   weight_decay=options.weight_decay)
            self.ema = None if recipe.ema_decay is None else EMA(
                self.model, recipe.ema_decay, warmup=True)
        with memory.category("data"):
            recipe.place(self.device)
        self.loader = DataLoader(recipe.dataset(), options.batch_size, shuffle=True,
                                 seed=options.seed, device=self.device, shard=(
                                     (0, 1) if comm is None else (comm.rank, comm.size)))
        self.batches = len(self.loader)
        self.data = recipe.fingerprint()
        steps = self.batches * options.epochs
        self.schedule = warmup_cosine(self.optimizer, int(steps * recipe.warmup), steps)
        self.progress = Progress()

    # -- one step ---------------------------------------------------------------------------------

    def first_batch(self) -> tuple[Tensor, ...]:
        """The first batch of all, beside the run."""
        with memory.category("data"):
            return tuple(self.loader.batch_of(self.loader.order(0)[:self.options.batch_size]))

    def loss(self, *batch: Tensor) -> Tensor:
        """The loss of a batch, with its graph; of several ranks, that of this one's part."""
        if self.network is not None:
            return self.network(*batch)
        return self.recipe.loss(self.model, *batch)

    def step(self, *batch: Tensor) -> float:
        """Forward, backward, update; the loss.

        Raises NotFinite, before the update, for a loss that is not finite; with --clip, for a norm
        of the gradients that is not.
        """
        loss = self.loss(*batch)
        self.optimizer.zero_grad()
        loss.backward()
        found = self._mean(loss.item(), len(batch[0]))
        self._check_finite("loss", found)
        if self.options.clip:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip).item()
            self._check_finite("norm of the gradients", norm)
            self.progress.gradient_norms.append(norm)
        self.optimizer.step()
        self.schedule.step()
        if self.ema is not None:
            self.ema.update()
        return found

    def _mean(self, loss: float, examples: int) -> float:
        """The mean loss over all ranks' examples."""
        if self.comm is None:
            return loss
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
                f"{self.progress.epoch + 1}); the step was not taken. Try a smaller --lr, or "
                "--clip 1")

    # -- the run ----------------------------------------------------------------------------------

    def run(
        self, after_step: Callable[[Trainer], bool], after_epoch: Callable[[Trainer], None]
    ) -> bool:
        """Train to the end, or until `after_step` returns True; whether the end was reached."""
        progress = self.progress
        with self.device:
            while progress.epoch < self.options.epochs:
                self.model.train()
                batches = iter(self.loader)
                while (batch := self._next(batches)) is not None:
                    progress.losses.append(self.step(*batch))
                    del batch  # before the next one is made
                    progress.batch += 1
                    if self._any(after_step(self)):
                        return False
                progress.scores.append(self.score())
                progress.weight_norms.append(self.model.weight_norm().item())
                progress.epoch, progress.batch = progress.epoch + 1, 0
                after_epoch(self)
        return True

    @property
    def leads(self) -> bool:
        """Whether this rank writes the files."""
        return self.comm is None or self.comm.rank == 0

    def _any(self, value: bool) -> bool:
        """Whether it is True on one of the ranks, on all of them."""
        return value if self.comm is None else bool(self._summed(value)[0])

    @staticmethod
    def _next(batches: Iterator[Any]) -> Any:
        """The next batch, accounted for as data; None after the last."""
        with memory.category("data"):
            return next(batches, None)

    def averaged(self) -> AbstractContextManager[object]:
        """Within the block, the model has the weights that are scored: averages, if there are."""
        return nullcontext() if self.ema is None else self.ema.swapped()

    def score(self) -> float:
        """The recipe's score of the model."""
        self.model.eval()
        with no_grad(), self.averaged():
            found = self.recipe.score(self.model)
        self.model.train()
        return found

    def is_finite(self) -> bool:
        """Whether all weights, and what the forward pass keeps (running statistics), are finite."""
        return all(np.isfinite(value.numpy()).all() for value in self.model.state_dict().values())

    # -- taking up again --------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write a checkpoint, atomically: the first rank does; all of them call it.

        It has the random streams of all ranks.
        """
        streams = [] if self.comm is None else self.comm.all_gather_object(random.get_state())
        if not self.leads:
            return
        options = {name: list(value) if isinstance(value, tuple) else value
                   for name, value in self._kept().items()}
        about = {"recipe": type(self.recipe).__name__, "options": options,
                 "model_options": {name: options[name] for name in self.recipe.describing},
                 "data": self.data, "streams": streams, **vars(self.progress)}
        checkpoint.save(path, self.model, self.optimizer, self.ema, about)

    def resume(self, path: Path) -> None:
        """Resume from a checkpoint.

        Raises UserError, with nothing changed, if it is broken or of a run with other options.
        """
        mine = type(self.recipe).__name__

        def check(run: Described) -> tuple[Progress, Any]:
            said, wanted = run.facts, self._kept()
            if run.recipe != mine:
                raise UserError(f"{path} is a run of the recipe {run.recipe.lower()}; wanted one "
                                f"of {mine.lower()}")
            if said.text("data") != self.data:
                raise UserError(f"{path} was made with other data; resume with the same")
            given = said.within("options")
            for name, value in wanted.items():
                found = (given.texts(name) if isinstance(value, tuple) else given.text(name)
                         if isinstance(value, str) else given.like(name, value))
                if found != value:
                    shown = " ".join(found) if isinstance(found, tuple) else found
                    raise UserError(f"{path} was made with --{name.replace('_', '-')} {shown}; "
                                    "resume with the same options")
            progress = Progress.of(said)
            if not progress.whole(self.batches):
                raise ValueError("its progress does not fit the data")
            streams = said.many("streams", ())
            for state in streams:
                random.check_state(state)
            return progress, streams

        self.progress, streams = checkpoint.load(
            path, self.model, self.optimizer, self.ema, check)
        if self.comm is not None:
            if len(streams) == self.comm.size:
                random.set_state(streams[self.comm.rank])
            else:  # of the first rank, whose state the checkpoint has
                random.jump(self.comm.rank)
        self.loader.load_state_dict({**self.loader.state_dict(), "epoch": self.progress.epoch,
                                     "batch": self.progress.batch})
        self.schedule.load_state_dict({"last_epoch": len(self.progress.losses)})

    def _kept(self) -> dict[str, Any]:
        """The options that a run which is resumed must have."""
        kept = {one.name for one in fields(self.options) if one.metadata["kept"]}
        return {name: value for name, value in asdict(self.options).items() if name in kept}
