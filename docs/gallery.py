"""Makes the pictures of docs/gallery by running gtensor, and docs/gallery.md, their page.

    python docs/gallery.py                    # all of them, in a few minutes
    python docs/gallery.py --only gradients   # one, and the page
    python docs/gallery.py --list

A picture is a function below; the page shows its text and its lines, so they cannot differ. Every
picture has the size that its function states, at most 150 KB, and a digest of the code that drew
it, which a test compares: run `make gallery` after changing that code. Those of pages need Chromium
(tests/browser.py fetches it by npm): without it the picture that is there stays.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import matplotlib
import numpy as np
from matplotlib import pyplot

import gtensor as gt
from gtensor import nn
from gtensor.nn import functional as F
from gtensor.system.atomic import write_file

DOCS = Path(__file__).resolve().parent
MOST_BYTES = 150_000
sys.path[:0] = [str(DOCS.parent / "profiling"), str(DOCS.parent / "tests")]  # report, browser
matplotlib.use("Agg")


def digits_step(norm: str = "inplace") -> Callable[[], None]:
    """A training step of the digits network; one has been made already."""
    from gtensor.train.digits import data, model

    parts, network = data(), model(norm)
    images, labels = gt.tensor(parts.train[:256]), gt.tensor(parts.train_labels[:256])
    optimizer = gt.optim.AdamW(network.parameters(), lr=4e-3)

    def step() -> None:
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    return step


# -- pictures ----------------------------------------------------------------------------------


class CannotMake(Exception):
    """A picture cannot be made; one sentence says why."""


class NoBrowser(CannotMake):
    """It needs Chromium, which is not there."""


@dataclass(frozen=True)
class Picture:
    """A picture of the gallery: its size in pixels, and what makes it at a path."""

    title: str
    size: tuple[int | None, int | None]  # None: it follows from what is shown
    quick: bool  # made in a few seconds
    make: Callable[[Path], None]
    by: tuple[str, ...] = ()  # files with the code that draws it, but its function

    @property
    def name(self) -> str:
        return self.make.__name__

    def made(self, path: Path) -> None:
        """Make it. CannotMake if it cannot be, has another size or too many bytes."""
        from PIL import Image

        self.make(path)
        pyplot.close("all")
        with Image.open(path) as image:
            if any(wanted not in (None, found)
                   for wanted, found in zip(self.size, image.size, strict=True)):
                raise CannotMake(f"{self.name} has {image.size} pixels, wanted {self.size}")
            if path.stat().st_size > MOST_BYTES:  # 256 colours are enough for a drawing
                image.convert("RGB").quantize(256).save(path, optimize=True)
        path.write_bytes(_with_digest(path.read_bytes(), self.digest()))
        if path.stat().st_size > MOST_BYTES:
            raise CannotMake(f"{self.name} has {path.stat().st_size:,} bytes, wanted at most "
                             f"{MOST_BYTES:,}")

    def digest(self) -> str:
        """A digest of the code that draws it."""
        own = inspect.getsource(self.make)
        code = [own, inspect.getsource(digits_step) * ("digits_step" in own)]
        code += [(DOCS.parent / file).read_text(encoding="utf-8") for file in self.by]
        return hashlib.sha256("".join(code).encode()).hexdigest()

    def is_current(self, png: bytes) -> bool:
        """Whether a picture was drawn by the present code."""
        return _with_digest(png, self.digest())[-_CHUNK:] == png[-_CHUNK:]


_CHUNK = 4 + 4 + len("Code") + 1 + 64 + 4 + 12  # bytes of the digest's chunk, and of the last one


def _with_digest(png: bytes, digest: str) -> bytes:
    """A PNG with a digest as its last chunk of text, in place of one that is there."""
    before, end = png[:-12], png[-12:]
    mark = before.rfind(b"tEXtCode\0")
    if mark == len(before) - 4 - 64 - len(b"tEXtCode\0"):
        before = before[:mark - 4]
    text = b"tEXtCode\0" + digest.encode()
    return (before + (len(text) - 4).to_bytes(4, "big") + text
            + zlib.crc32(text).to_bytes(4, "big") + end)


PICTURES: dict[str, Picture] = {}


def picture(title: str, size: tuple[int | None, int | None] = (None, None), quick: bool = False,
            by: tuple[str, ...] = ()) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """The function below makes a picture of the gallery."""

    def add(make: Callable[[Path], None]) -> Callable[[Path], None]:
        PICTURES[make.__name__] = Picture(title, size, quick, make, by)
        return make

    return add


@picture("Memory of a training step, in place and out of place", (1040, 468), quick=True)
def memory(path: Path) -> None:
    """Live bytes over a training step of 20 convolutions and batch norms. For backward a norm in
    place keeps one buffer where one out of place keeps two."""
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    x = gt.random.normal((4, 16, 32, 32))
    with gt.settings.override(arena_min_bytes=0):
        for norm, name, style in ((nn.ABN, "out of place", "--"), (nn.InPlaceABN, "in place", "-")):
            network = nn.Sequential(*(layer for _ in range(20) for layer in (
                nn.Conv2d(16, 16, 3, padding=1, bias=False), norm(16))))
            network(x).sum().backward()
            with gt.memory.timeline() as recording:
                network(x).sum().backward()
            live = np.array([event.allocated for event in recording.events]) / 2**20
            axes.plot(np.linspace(0, 1, len(live)), live, style, drawstyle="steps-post",
                      label=f"batch norms {name}: {live.max():.1f} MiB at the peak")
    axes.set(xlabel="part of the step's allocations and frees", ylabel="live memory (MiB)",
             xlim=(0, 1), ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


@picture("Who holds the memory", (1365, 806), quick=True,
         by=("gtensor/memory/trace/timeline_picture.py",))
def owners(path: Path) -> None:
    """A training step by what its bytes are for; below, who held the peak: op, module and line."""
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm1 = nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.InPlaceABN(32)
            self.second, self.norm2 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.InPlaceABN(64)
            self.last = nn.Linear(64 * 4 * 4, 10)

        def forward(self, images: gt.Tensor) -> gt.Tensor:
            x = self.norm1(self.first(images))
            x = self.norm2(self.second(x))
            x = F.max_pool2d(x, 2)
            return self.last(F.dropout(x.flatten(1), 0.1))

    gt.manual_seed(0)
    with gt.settings.override(arena_min_bytes=0):
        net, images = Net(), gt.random.normal((256, 1, 8, 8))
        optimizer = gt.optim.AdamW(net.parameters())
        for recording in (nullcontext(), gt.memory.timeline(stacks=True)):
            with recording as made:
                F.cross_entropy(net(images), gt.arange(256) % 10).backward()
                optimizer.step()
                optimizer.zero_grad()
    made.save(path)


@picture("Where the time goes", (1560, None),
         by=("gtensor/profiler/pictures.py",))
def flame(path: Path) -> None:
    """Five passes of a Transformer, forward and backward, by phase, module and op; the width of a
    box is its time."""
    from gtensor.models import GPT, GPTConfig

    model = GPT(GPTConfig(layers=2, width=128, heads=4))
    tokens = gt.tensor(np.random.default_rng(0).integers(0, 256, (4, 129)))

    def step() -> None:
        scores = model(tokens[:, :-1]).reshape((-1, 256))
        F.cross_entropy(scores, tokens[:, 1:].reshape(-1)).backward()

    step()
    with gt.profiler.profile() as profile:
        for _ in range(5):
            step()
    profile.flame(path)


@picture("How close to the machine's limits", (1080, 720),
         by=("gtensor/profiler/pictures.py",))
def roofline(path: Path) -> None:
    """Each op by its operations per byte and per second, under the measured ceilings of the
    machine: the slope is the memory's bandwidth, the level the rate of a matrix product."""
    step = digits_step()
    with gt.profiler.profile() as profile:
        for _ in range(10):
            step()
    profile.roofline(path)


@picture("The page of a profile", (1280, 900),
         by=("gtensor/profiler/profile_page.html", "gtensor/profiler/profile_page.js"))
def profile_page(path: Path) -> None:
    """One file that opens offline: ops and memory over time, to zoom, hover and search in."""
    from browser import browser

    step = digits_step()
    with gt.profiler.profile() as profile:
        for _ in range(3):
            step()
    with TemporaryDirectory() as folder, browser() as page:
        profile.html(f"{folder}/page.html")
        page.open(Path(folder, "page.html"), 1280, 900)
        page.picture(path)


@picture("The page of a memory timeline", (1280, 900),
         by=("gtensor/memory/trace/timeline_page.html", "gtensor/memory/trace/timeline_page.js"))
def memory_page(path: Path) -> None:
    """Three steps: what the bytes are for, and who holds them at the moment that is chosen."""
    from browser import browser

    with gt.settings.override(arena_min_bytes=0):
        step = digits_step()
        with gt.memory.timeline(stacks=True) as recording:
            for _ in range(3):
                step()
    with TemporaryDirectory() as folder, browser() as page:
        recording.save(f"{folder}/page.html")
        page.open(Path(folder, "page.html"), 1280, 900)
        page.picture(path)


@picture("Sixteen derivatives at once", (910, 676), quick=True)
def gradients(path: Path) -> None:
    """Sixteen descents with momentum on Himmelblau's function, whose four minima are marked.
    `gt.func.vmap` takes the gradient at all points in one call."""

    def height(point: gt.Tensor) -> gt.Tensor:
        x, y = point[0], point[1]
        return (x * x + y - 11) ** 2 + (x + y * y - 7) ** 2

    points = gt.tensor(np.random.default_rng(2).uniform(-5, 5, (16, 2)))
    speed, way = gt.zeros_like(points), [points]
    for _ in range(120):
        speed = 0.8 * speed - 0.002 * gt.func.vmap(gt.func.grad(height))(points)
        points = points + speed
        way.append(points)

    figure, axes = pyplot.subplots(figsize=(7, 5.2), layout="constrained")
    grid = np.stack(np.meshgrid(*[np.linspace(-6, 6, 121)] * 2))
    axes.contourf(*grid, height(gt.tensor(grid)).numpy(), levels=np.logspace(-0.5, 3.5, 17),
                  norm="log", cmap="Greys_r", extend="both", alpha=0.75)
    lines = gt.stack(way).numpy()  # (steps, 16, 2)
    axes.plot(lines[..., 0], lines[..., 1], linewidth=1.4)
    axes.plot(*lines[0].T, "o", color="white", markeredgecolor="black", markersize=5)
    axes.plot([3, -2.805, -3.779, 3.584], [2, 3.131, -3.283, -1.848], "k*", markersize=11)
    axes.set(xlabel="x", ylabel="y", xlim=(-6, 6), ylim=(-6, 6))
    figure.savefig(path, dpi=130)


@picture("What attention learns", (845, 780))
def attention(path: Path) -> None:
    """Letters arrive in disorder, each with the number of its place. One layer of attention learns
    to put them in order; its weights show from where each place takes its letter."""
    letters, rng = "CUDA_WITH_GRADIENTS", np.random.default_rng(0)
    length, width = len(letters), 64
    gt.manual_seed(0)
    parts = nn.ModuleDict({
        "letter": nn.Embedding(27, width), "number": nn.Embedding(length, width),
        "place": nn.Embedding(length, width), "read": nn.Linear(width, 27),
        "attention": nn.MultiheadAttention(width, 4, batch_first=True)})
    optimizer = gt.optim.AdamW(parts.parameters(), lr=3e-3)

    def ordered(given: np.ndarray, numbers: np.ndarray) -> tuple[gt.Tensor, gt.Tensor]:
        items = parts["letter"](gt.tensor(given)) + parts["number"](gt.tensor(numbers))
        places = parts["place"](gt.tensor(np.broadcast_to(np.arange(length), given.shape).copy()))
        mixed, weights = parts["attention"](places, items, items)
        return parts["read"](mixed), weights

    for _ in range(300):
        wanted = rng.integers(0, 27, (64, length))
        numbers = rng.permuted(np.broadcast_to(np.arange(length), wanted.shape), axis=1)
        scores, _ = ordered(np.take_along_axis(wanted, numbers, 1), numbers)
        loss = F.cross_entropy(scores.reshape((-1, 27)), gt.tensor(wanted.reshape(-1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    codes = np.array([26 if letter == "_" else ord(letter) - 65 for letter in letters])
    numbers = rng.permutation(length)
    scores, weights = ordered(codes[numbers][None], numbers[None])
    read = ["ABCDEFGHIJKLMNOPQRSTUVWXYZ_"[code] for code in scores[0].argmax(axis=1).numpy()]
    figure, axes = pyplot.subplots(figsize=(6.5, 6), layout="constrained")
    image = axes.imshow(weights[0].numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(length), [f"{letters[number]}\n{number + 1}" for number in numbers])
    axes.set_yticks(range(length), read)
    axes.set(xlabel="given: letter and number", ylabel="read out, in order")
    figure.colorbar(image, label="attention weight", shrink=0.8)
    figure.savefig(path, dpi=130)


@picture("Digits, learned",
         by=("gtensor/train/pictures.py",))
def digits(path: Path) -> None:
    """`gtensor train digits` writes this picture, too: the loss of every step, and the accuracy on
    images that were held out."""
    from gtensor.cli import main

    with TemporaryDirectory() as folder:
        main(["train", "digits", "--quiet", "--out", folder])
        shutil.copy(f"{folder}/loss.png", path)


@picture("Digits out of noise",
         by=("gtensor/train/pictures.py",))
def diffusion(path: Path) -> None:
    """Sixty samples of a diffusion Transformer, trained for 40 epochs."""
    from gtensor.cli import main

    with TemporaryDirectory() as folder:
        main(["train", "diffusion", "--quiet", "--epochs", "40", "--out", folder])
        main(["sample", f"{folder}/checkpoint.safetensors", "--count", "60", "--out", str(path)])


@picture("How fast, against whom", (950, None), quick=True)
def speed(path: Path) -> None:
    """The README's table of speed, from the committed results."""
    from ladder_command import RESULTS
    from report_pictures import picture as drawn
    from report_tables import speed_picture
    from result_rows import of_folder

    path.write_bytes(drawn(*speed_picture(of_folder(RESULTS / "cpu-2core"))))


@picture("Data parallel steps, predicted", (1210, 462), quick=True,
         by=("profiling/scaling_model.py",))
def scaling(path: Path) -> None:
    """What a model of buckets, rings and trees predicts of up to 1,024 GPUs; nothing of it was
    measured."""
    from scaling_model import picture as predicted

    predicted(path)


# -- the page --------------------------------------------------------------------------------------


def page() -> str:
    """docs/gallery.md."""
    parts = [
        "# Gallery",
        "Written by `make gallery`, which runs every block below to make the picture above it: "
        "`path` is the picture's file. `python docs/gallery.py --only NAME` makes one of them. "
        "[What the blocks start with](#what-the-blocks-start-with) stands at the end.",
        *(f"## {one.title}\n\n{_text(one)}\n\n![{one.title}](gallery/{one.name}.png)\n\n"
          f"```python\n{_lines(one)}\n```" for one in PICTURES.values()),
        f"## What the blocks start with\n\n```python\n{_start()}\n```"]
    return "\n\n".join(parts) + "\n"


def _start() -> str:
    """The imports that the blocks use, and `digits_step`."""
    shared = inspect.getsource(digits_step)
    blocks = "\n".join([shared, *map(_lines, PICTURES.values())])
    used = {node.id for node in ast.walk(ast.parse(blocks)) if isinstance(node, ast.Name)}
    source = Path(__file__).read_text(encoding="utf-8")
    imports = [ast.unparse(line) for line in ast.parse(source).body
               if isinstance(line, ast.Import | ast.ImportFrom)
               and any((name.asname or name.name) in used for name in line.names)]
    return "\n".join([*imports, "", "", shared.rstrip()])


def _text(one: Picture) -> str:
    """The function's docstring."""
    return inspect.cleandoc(one.make.__doc__ or "").replace("\n", " ")


def _lines(one: Picture) -> str:
    """The function's lines below its docstring."""
    source = inspect.getsource(one.make)
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return dedent("\n".join(source.splitlines()[function.body[1].lineno - 1:]))


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None, docs: Path = DOCS) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", help="make this picture")
    parser.add_argument("--list", action="store_true", help="name the pictures and stop")
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(f"{name:14}{one.title}" for name, one in PICTURES.items()))
        return 0
    if given.only is not None and given.only not in PICTURES:
        print(f"gallery: there is no picture {given.only!r}; wanted one of {', '.join(PICTURES)}",
              file=sys.stderr)
        return 2
    (docs / "gallery").mkdir(exist_ok=True)
    chosen = [PICTURES[given.only]] if given.only else list(PICTURES.values())
    failed = _make(chosen, docs / "gallery")
    write_file(docs / "gallery.md", page().encode())
    return int(failed)


def _make(chosen: Sequence[Picture], folder: Path) -> bool:
    """Make the pictures, with a progress bar; whether one could not be made."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    failed = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False, markup=False)) as bar:
        task = bar.add_task("gallery", total=len(chosen))
        for one in chosen:
            bar.update(task, description=f"{one.name:14}")
            place = folder / f"{one.name}.png"
            try:
                _replace(one, place)
            except NoBrowser as error:
                bar.console.print(f"gallery: {error}")
                failed |= not place.exists()
            except CannotMake as error:
                bar.console.print(f"gallery: {error}")
                failed = True
            bar.advance(task)
    return failed


def _replace(one: Picture, place: Path) -> None:
    """Make a picture elsewhere, then put it in its place."""
    with TemporaryDirectory() as folder:
        fresh = Path(folder, place.name)
        try:
            one.made(fresh)
        except (OSError, subprocess.SubprocessError) as error:
            if "browser" not in inspect.getsource(one.make):
                raise
            kept = "the picture that is there stays" if place.exists() else "there is no picture"
            raise NoBrowser(f"{one.name} needs Chromium, which could not be fetched or started "
                            f"({error}); {kept}") from error
        write_file(place, fresh.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
