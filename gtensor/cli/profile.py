"""`gtensor profile`: measures a program or a recipe; shows and compares what was measured."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gtensor.cli.help import Help
from gtensor.cli.recipes import recipe_parser
from gtensor.profiler import Profile, ProfileError, compare, profile
from gtensor.profiler.nsys.sessions import STEPS
from gtensor.profiler.steps import parsed
from gtensor.profiler.table import GROUPS, ORDERS, steps_of
from gtensor.settings import settings
from gtensor.train import recipe_of
from gtensor.train.callbacks import Callback
from gtensor.train.errors import UserError, require, told_to_user
from gtensor.train.files import make_folder

if TYPE_CHECKING:
    from gtensor.train.trainer import Trainer

_VIEWS: dict[str, Callable[[Profile, Path], None]] = {
    "profile.html": Profile.html, "trace.json.gz": Profile.chrome_trace,
    "flame.png": Profile.flame, "roofline.png": Profile.roofline, "profile.json": Profile.save,
}
_SAVED = "profile.json"
_OF_RECIPES = 3, 16  # steps before, and measured: within an epoch of each recipe
_INTERRUPTED = 130


def add_profile(commands: Any) -> None:
    """Add the command's grammar."""
    made = commands.add_parser(
        "profile", formatter_class=Help,
        usage="gtensor profile [OPTIONS] SCRIPT [ARGS]\n"
              "       gtensor profile [OPTIONS] --recipe RECIPE [ITS OPTIONS]\n"
              "       gtensor profile [OPTIONS] FILE\n"
              "       gtensor profile --compare FILE FILE\n"
              "       gtensor profile --nsys [OPTIONS] -- COMMAND ...",
        help="measure every op of a program: time, bytes, launches, memory",
        description="Run a Python program, or a recipe of `gtensor train` for a few steps, and "
                    "measure every op: time on the host and the GPU, launches, bytes and "
                    "operations against what the machine can do, and allocations; by op, module "
                    "and line. It prints a table and writes a page (profile.html, opens offline), "
                    "a trace for ui.perfetto.dev, pictures, and the profile itself "
                    "(profile.json), which can be shown and compared again. If the program fails, "
                    "or Ctrl-C ends it, they are written, too.",
        epilog="""examples:
  gtensor profile train.py --lr 0.1                   # the whole program
  gtensor profile --steps 10:50 train.py              # 50 steps after the first 10
  gtensor profile --by line --out before train.py
  gtensor profile --recipe text --arch ssm --by module
  gtensor profile before --by module                  # shows it again
  gtensor profile --compare before after
  gtensor profile --nsys -- python train.py           # under Nsight Systems, see docs/nsys.md
  gtensor profile session.sqlite                      # an export of Nsight Systems

columns: "% copy" is bytes read and written per second, in percent of a copy's on this machine, "% \
gemm" operations per second, in percent of a float32 matrix product's. A wider terminal shows more \
of them. --compare shows the ratio of a step between quartiles, and "*" for first calls.""")
    _add_modes(made)
    _add_options(made)
    made.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT ...",
                      help="the program and its arguments, or a profile.json, its folder, or an "
                           "export of Nsight Systems (.sqlite)")


def _add_modes(made: argparse.ArgumentParser) -> None:
    """The options that say what is profiled or shown."""
    how = made.add_mutually_exclusive_group()
    how.add_argument("--recipe", action="store_true", help="profile a recipe: its name and its "
                     "options follow; no checkpoint is written")
    how.add_argument("--compare", action="store_true", help="what changed between two profiles")
    how.add_argument("--nsys", action="store_true", help="run a command under Nsight Systems")
    how.add_argument("-m", dest="module", action="store_true",
                     help="SCRIPT is the name of a module, as for python -m")


def _add_options(made: argparse.ArgumentParser) -> None:
    """The others: before a program, whose own follow it; before and after a recipe or a file."""
    made.add_argument("--steps", type=_steps, metavar="FIRST:COUNT", help="measure COUNT steps "
                      "after the FIRST ones; an optimizer's update ends a step (a script: all; a "
                      f"recipe: {_OF_RECIPES[0]}:{_OF_RECIPES[1]}; --nsys: {STEPS[0]}:{STEPS[1]})")
    made.add_argument("--by", choices=tuple(GROUPS), default="op", help="rows of the table (op)")
    made.add_argument("--sort", choices=tuple(ORDERS), default="time",
                      help="what the rows are sorted by (time)")
    made.add_argument("--most", type=_positive, default=15, metavar="N",
                      help="rows of the table (15)")
    made.add_argument("--out", type=Path, metavar="DIR",
                      help="folder of the files (runs/profile-NAME; --nsys: runs/nsys)")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given; wanted a number of rows, 1 or more")
    return int(text)


def _steps(text: str) -> tuple[int, int]:
    try:
        return parsed(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def profile_command(given: argparse.Namespace) -> int:
    """Run the command; the exit status, which is that of the program where one is run."""
    words = given.words[1:] if given.words[:1] == ["--"] else given.words
    if not words:
        raise UserError("nothing to profile was given; wanted a script, --recipe and its name, a "
                        "saved profile, or --compare and two of them (gtensor profile --help)")
    if given.nsys:
        from gtensor.cli.nsys import session

        return session(words, given.out, given.steps, given.most)
    require("rich", "rich", "gtensor profile")
    target = Path(words[0])
    options = _recipe_options(words, given) if given.recipe else None
    is_export = target.suffix in (".sqlite", ".db")
    if given.compare or not given.recipe and not given.module and (is_export or _is_saved(target)):
        return _show(words, given)
    table = partial(Profile.table, sort_by=given.sort, group_by=given.by, most=given.most)
    require("matplotlib", "matplotlib", "gtensor profile")
    folder = (given.out or Path("runs") / f"profile-{target.stem}").absolute()
    if options is None:
        if words is given.words:  # without --, which says it
            _note_own(words)
        program = _program(words, given.module, given.steps)
    else:
        program = _recipe(words[0], options, given.steps)
    with _made(folder):
        found, status = program()
        if not found.spans:
            where = f" after {given.steps[0]} updates of an optimizer" if given.steps else ""
            why = f"no op of gtensor ran in {words[0]}{where}, so there is no profile"
            if not status:
                raise UserError(why)
            print(f"gtensor: {why}", file=sys.stderr)
            return status
        with told_to_user():
            for name, write in _VIEWS.items():
                write(found, folder / name)
    print(table(found))
    if given.steps and (steps := steps_of(found.spans)) < given.steps[1]:
        print(f"The program ended after {steps} of the {given.steps[1]} steps to be measured.")
    shown = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else folder
    print(f"Wrote {shown}/" + ", ".join(_VIEWS), flush=True)
    return status


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make the folder for the block. UserError if it cannot be written; a new one goes if unused.
    """
    is_new = not folder.exists()
    make_folder(folder, _SAVED)
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


# -- programs ----------------------------------------------------------------------------------


def _program(words: Sequence[str], is_module: bool, steps: tuple[int, int] | None) -> Callable[
        [], tuple[Profile, int]]:
    """What runs a script or a module as `python` would. UserError if there is none."""
    name = words[0]
    if is_module:
        if not _is_importable(name):
            raise UserError(f"there is no module {name}; wanted one that python -m can run")
        start: Callable[[], object] = partial(
            runpy.run_module, name, run_name="__main__", alter_sys=True)
    else:
        path = Path(name).absolute()
        if not name or not path.exists():
            raise UserError(f"there is no script {name}; wanted a Python program, or the options "
                            "of gtensor profile in front of it")
        if path.is_dir() and not (path / "__main__.py").exists():
            raise UserError(f"{name} is a folder without {_SAVED} or __main__.py; wanted one of a "
                            "profile, or a program")
        if not path.is_dir() and not path.is_file():
            raise UserError(f"{name} is no regular file; wanted a Python program")
        start = partial(runpy.run_path, str(path), run_name="__main__")
    place = str(Path.cwd() if is_module else Path(name).resolve().parent)

    def program() -> tuple[Profile, int]:
        with _as_python(words, place), profile(steps) as found:
            return found, _status_of(start)

    return program


def _is_importable(name: str) -> bool:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        del sys.path[0]


@contextmanager
def _as_python(words: Sequence[str], place: str) -> Iterator[None]:
    """Within the block, the program finds its arguments and the modules beside it.

    What it made of the standard streams ends with the block.
    """
    before = sys.argv, [*sys.path], sys.stdout, sys.stderr
    sys.argv = [*words]
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.stdout, sys.stderr = before


def _status_of(start: Callable[[], object]) -> int:
    """Run a program; its exit status. Its errors are printed as Python prints them."""
    try:
        start()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gtensor: interrupted; the profile ends here", file=sys.stderr)
        return _INTERRUPTED
    except BaseException as error:  # delivered
        traceback.print_exception(error.with_traceback(_own(error.__traceback__)))
        return 1
    return 0


def _own(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that lead to the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (
            __file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def _recipe_options(words: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """A recipe's own options behind its name; those of the command there are put into `given`."""
    own, others = recipe_parser(words[0], "profile --recipe").parse_known_args(words[1:])
    made = argparse.ArgumentParser(prog=f"gtensor profile --recipe {words[0]}", add_help=False)
    _add_options(made)
    made.parse_args(others, given)
    return vars(own)


def _note_own(words: Sequence[str]) -> None:
    """Say that options of the command behind a program are the program's."""
    made = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    _add_options(made)
    usual = vars(made.parse_args([]))
    with suppress(argparse.ArgumentError):  # the program's option of that name takes other values
        found = vars(made.parse_known_args(words[1:])[0])
        own = [f"--{name}" for name in found if found[name] != usual[name] and name != "out"]
        if own:
            print(f"gtensor: {words[0]} is given {', '.join(own)}, as what follows a program is "
                  "its own; options of gtensor profile stand before it", file=sys.stderr)


def _recipe(name: str, given: dict[str, Any], steps: tuple[int, int] | None) -> Callable[
        [], tuple[Profile, int]]:
    """What trains a recipe for a few steps. UserError for options that it cannot have."""
    kind, defaults = recipe_of(name)
    options = defaults.changed(**given)
    first, count = steps or _OF_RECIPES

    def program() -> tuple[Profile, int]:
        with settings.override(arena_min_bytes=0), kind.threads():
            trainer = kind(options).trainer()
            if (most := (trainer.batches or 0) * options.epochs) < first + count:
                raise UserError(f"--steps {first}:{count} given for {name}; wanted at most "
                                f"{most} steps in all, which are {options.epochs} epochs")
            with _progress(first, count) as done, profile((first, count)) as found:
                trainer.run_with([done])
        return found, 0

    return program


@contextmanager
def _progress(first: int, count: int) -> Iterator[Callback]:
    """A progress bar; yields the callback that moves it, and stops the run after the last step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                  console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("warming up" if first else "measuring", total=first + count)

        class Steps(Callback):
            def after_step(self, trainer: Trainer) -> None:
                steps = len(trainer.progress.losses)
                bar.update(task, completed=steps,
                           description="warming up" if steps < first else "measuring")
                if steps == first + count:
                    trainer.stop("measured")

        yield Steps()


# -- saved profiles ----------------------------------------------------------------------------


def _show(words: Sequence[str], given: argparse.Namespace) -> int:
    """Show a saved profile, or compare two; options may follow the files, too."""
    made = argparse.ArgumentParser(prog="gtensor profile", add_help=False)
    _add_modes(made)
    _add_options(made)
    made.add_argument("files", nargs="*")
    made.parse_intermixed_args(words, given)
    width = get_terminal_size().columns
    if given.compare:
        before, after = map(_load, _files(given.files, 2))
        print(compare(before, after, given.by, given.most, width), flush=True)
        return 0
    (path,) = _files(given.files, 1)
    if path.suffix in (".sqlite", ".db"):
        from gtensor.cli.nsys import show

        return show(path, given.most)
    print(_load(path).table(given.sort, given.by, given.most), flush=True)
    return 0


def _is_saved(path: Path) -> bool:
    return path.suffix == ".json" or (path / _SAVED).exists()


def _files(words: Sequence[str], count: int) -> list[Path]:
    """The words as so many files. UserError for more or fewer."""
    if len(words) != count:
        wanted = "two profiles, before and after" if count == 2 else "one file"
        raise UserError(f"{' '.join(words)} given; wanted {wanted}")
    return [*map(Path, words)]


def _load(path: Path) -> Profile:
    """A profile that was saved, by its file or the folder of it. UserError if there is none."""
    try:
        with told_to_user():
            return Profile.load(path / _SAVED if path.is_dir() else path)
    except ProfileError as error:
        raise UserError(str(error)) from error
