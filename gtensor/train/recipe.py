"""A recipe: what the command needs to train a network: data, model, loss, and their options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import Field, asdict, dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from gtensor import memory, nn, random
from gtensor.backend import get_device
from gtensor.backend.threads import one_thread, others_keep_cores_busy
from gtensor.engine.handle.tensor import Tensor
from gtensor.optim import AdamW
from gtensor.optim.lr_scheduler import warmup_cosine
from gtensor.system.documents import Facts
from gtensor.train import checkpoint
from gtensor.train.callbacks import Callback
from gtensor.train.described import Described, described
from gtensor.train.errors import UserError
from gtensor.train.progress import Captions
from gtensor.train.trainer import PRECISIONS, Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from gtensor.distributed import Communicator


def option(default: Any, help: str, choices: tuple[str, ...] = (), least: float | None = None,
           positive: bool = False, many: bool = False, kept: bool = True) -> Any:
    """A field of Options, and an option of `gtensor train`.

    Args:
        default: its value; None for none.
        help: for `--help`, in a few words.
        choices: the texts that are allowed.
        least, positive: bounds of a number: 0 is allowed by `least=0`, not by `positive`.
        many: several texts may be given.
        kept: whether a run that is resumed must have the same.
    """
    return field(default=default, metadata={
        "help": help, "choices": choices, "least": least, "positive": positive, "many": many,
        "kept": kept})


_PLAIN = option(None, "").metadata


def about(one: Field[Any]) -> Mapping[str, Any]:
    """What `option` was told of a field; of a plain one, nothing."""
    return one.metadata or _PLAIN


_CAPTURE: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False}


@dataclass(frozen=True)
class Options:
    """The options that every recipe has."""

    epochs: int = option(1, "times through the training data", positive=True)
    batch_size: int = option(32, "examples per step", positive=True)
    lr: float = option(1e-3, "highest learning rate", positive=True)
    weight_decay: float = option(1e-2, "of AdamW", least=0)
    clip: float = option(0.0, "largest norm of the gradients; 0 for any", least=0)
    precision: str = option("float32", "of a step; the others are mixed precision", PRECISIONS)
    capture: str = option("auto", "whether steps are captured (gt.capture)", ("auto", "yes", "no"),
                          kept=False)
    seed: int = option(0, "of weights and order: same seed, same losses", least=0)
    device: str | None = option(None, "cpu, cuda or cuda:1 (the first GPU if there is one)",
                                kept=False)

    def changed(self, **given: Any) -> Self:
        """The options with the given ones replaced (None: kept). Raises UserError if invalid."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                  for name, value in given.items() if value is not None}
        made = replace(self, **values)
        for one in fields(made):
            value, said = getattr(made, one.name), about(one)
            name = f"--{one.name.replace('_', '-')} {value} given; wanted"
            if isinstance(value, float) and not isfinite(value):
                raise UserError(f"{name} a finite number")
            if said["choices"] and value not in said["choices"]:
                raise UserError(f"{name} one of {', '.join(said['choices'])}")
            if said["positive"] and value is not None and value <= 0:
                raise UserError(f"{name} more than 0")
            if said["least"] is not None and value is not None and value < said["least"]:
                raise UserError(f"{name} {said['least']} or more")
        return made


OptionsT = TypeVar("OptionsT", bound=Options)


class Recipe(Callback, Generic[OptionsT]):
    """A training job for `gtensor train`: a subclass for each, which makes a Trainer.

    A subclass has `dataset`, `model` and `loss`; what it scores, if that is another number than the
    loss of `held_out`; and as a Callback its own pictures.

    Attributes:
        options_type: the dataclass of its options.
        captions: the words for what is measured.
        describing: the options that describe the model; a checkpoint has them by themselves.
        ema_decay: of averaged weights, which are scored; None for none.
        warmup: the share of steps in which the learning rate rises.
        small: whether a second thread of BLAS would wait more than it computes.
    """

    options_type: ClassVar[type[Options]] = Options
    captions: Captions = Captions()
    describing: ClassVar[tuple[str, ...]] = ()
    ema_decay: float | None = None
    warmup: float = 0.1
    small: ClassVar[bool] = False

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def dataset(self) -> Any:
        """The examples to train on."""
        raise TypeError(f"{type(self).__name__} has no dataset(); write one")

    def held_out(self, device: Any) -> Any:
        """The examples to score on, None for none: a dataset, or a batch of tensors on the device.
        """
        return None

    def model(self) -> nn.Module:
        """A new model, its weights drawn from `gt.random`."""
        raise TypeError(f"{type(self).__name__} has no model(); write one")

    def loss(self, model: Any, /, *batch: Any, **none: Any) -> Tensor:
        """The loss of a batch, with its graph; a subclass names the parts of a batch."""
        raise TypeError(f"{type(self).__name__} has no loss(); write one")

    def score(self, model: nn.Module) -> float:
        """What the held-out data says about the model, in evaluation mode, without gradients.

        Without an own one it is the mean loss.
        """
        raise TypeError(f"{type(self).__name__} has no score(); write one")

    def fingerprint(self) -> str:
        """What tells the data from other data: a run is resumed with the same."""
        return f"{len(self.dataset())} examples"

    def check_model(self, run: Described) -> None:
        """Raise CheckpointError unless a checkpoint is of this model, before the model is made."""

    @classmethod
    def threads(cls) -> AbstractContextManager[object]:
        """Within the block the CPU has the threads that the command gives this job.

        That is one for small steps, and where other programs keep the cores busy: a product then
        waits for the part of a thread that has no core.
        """
        return one_thread() if cls.small or others_keep_cores_busy() else nullcontext()

    def trainer(self, comm: Communicator | None = None, folder: Path | None = None) -> Trainer:
        """A new trainer of this job. Raises UserError for options that do not fit together."""
        options = self.options
        device = get_device(options.device)
        with device:
            random.manual_seed(options.seed)
            with memory.category("parameters"), _refusals_told():
                model = self.model()
            with memory.category("data"):
                held_out = self.held_out(device)
        kept = {name: value for name, value in asdict(options).items()
                if name in kept_options(options)}
        facts = {"recipe": type(self).__name__, "options": kept,
                 "model_options": {name: kept[name] for name in self.describing},
                 "data": self.fingerprint()}
        with device, _refusals_told():
            return Trainer(
                model, AdamW(model.parameters(), options.lr, weight_decay=options.weight_decay),
                self.loss, self.dataset(), epochs=options.epochs, batch_size=options.batch_size,
                held_out=held_out,
                score=None if type(self).score is Recipe.score else self.score,
                schedule=lambda optimizer, steps: warmup_cosine(
                    optimizer, int(steps * self.warmup), steps),
                ema_decay=self.ema_decay, clip=options.clip, precision=options.precision,
                capture=_CAPTURE[options.capture],
                seed=options.seed, folder=folder, callbacks=[self], captions=self.captions,
                facts=facts, comm=comm)


@contextmanager
def _refusals_told() -> Iterator[None]:
    """A ValueError of the block, such as sizes that do not divide, becomes a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def kept_options(options: Options) -> list[str]:
    """The names of the options that a run which is resumed must have, its length excepted."""
    return [one.name for one in fields(options)
            if about(one)["kept"] and one.name != "epochs"]


def _read(said: Facts, name: str, default: object) -> Any:
    """An option in a checkpoint, of the type of its default. Raises ValueError for another."""
    if isinstance(default, tuple):
        return said.texts(name)
    if isinstance(default, bool):
        return said.flag(name)
    if isinstance(default, int):
        return said.whole(name)
    if isinstance(default, float):
        return float(said.like(name, default))
    return None if said.found[name] is None else said.text(name)


def resumed(path: Path, kind: type[Recipe[OptionsT]], defaults: OptionsT, given: dict[str, Any]
            ) -> Recipe[OptionsT]:
    """The recipe of a checkpoint with its options; of those given, some may be others.

    Raises UserError if the checkpoint is broken or of another recipe, or was made with another of
    the options that a run keeps.
    """
    with checkpoint.refusals_of(path):
        run = described(path)
        mine = kind.__name__
        if run.recipe != mine:
            raise UserError(f"{path} is a run of the recipe {run.recipe.lower() or '(none)'}; "
                            f"wanted one of {mine.lower()}")
        said = run.facts.within("options")
        found = {name: _read(said, name, getattr(defaults, name))
                 for name in kept_options(defaults) if name in said}
        wanted = defaults.changed(**given)
        for name in found:
            if given.get(name) is not None and found[name] != getattr(wanted, name):
                value = found[name]
                shown = " ".join(value) if isinstance(value, tuple) else value
                raise UserError(f"{path} was made with --{name.replace('_', '-')} {shown}; "
                                "resume with the same options, or without them")
        if given.get("epochs") is None:
            found["epochs"] = run.facts.whole("epochs")
        try:
            options = wanted.changed(**found)
        except UserError as error:
            raise UserError(f"{path} cannot be resumed: {error}") from error
        made = kind(options)
        made.check_model(run)
    return made
