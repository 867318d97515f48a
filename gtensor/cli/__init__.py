"""The command `gtensor`: train a recipe, sample from it, profile, explain memory, what is there."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gtensor
from gtensor.cli.help import Help
from gtensor.cli.info import facts, text
from gtensor.cli.memory import GROUPS, load, show
from gtensor.cli.memory import facts as explained
from gtensor.cli.profile import add_profile, profile_command
from gtensor.cli.recipes import recipe_parser
from gtensor.settings import settings
from gtensor.train import RECIPES, UserError


def parser() -> argparse.ArgumentParser:
    """The command's grammar, with help that teaches."""
    top = argparse.ArgumentParser(
        prog="gtensor", formatter_class=Help, description=gtensor.__doc__,
        epilog="examples:\n  gtensor train digits\n"
               "  gtensor train text --arch ssm\n"
               "  gtensor sample runs/text/checkpoint.safetensors --prompt 'The list'\n"
               "  gtensor profile train.py\n  gtensor profile --recipe text\n"
               "  gtensor memory run.pickle\n  gtensor info --json")
    top.add_argument("--version", action="version", version=f"gtensor {gtensor.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    train = commands.add_parser(
        "train", formatter_class=Help, usage="gtensor train RECIPE [OPTIONS]",
        help="train a network on real data",
        description="Train a recipe, or that of a Python file (a subclass of gt.train.Recipe). It "
                    "leaves in its folder a checkpoint, the figures of each epoch (metrics.csv), a "
                    "loss curve, a picture of where the memory of a step went, and pictures of its "
                    "own. Ctrl-C saves; --resume goes on with the checkpoint's options and "
                    "identical losses, and with --epochs N for longer.",
        epilog="recipes:\n" + "".join(f"  {name:10} {about}\n" for name, about in
                                      RECIPES.items())
               + "\n`gtensor train RECIPE --help` shows the options of one.")
    recipe: Any = train.add_argument(
        "recipe", help=f"which recipe: {', '.join(RECIPES)}, or a Python file")
    recipe.completer = lambda **given: [*RECIPES, *map(str, Path().glob("*.py"))]
    train.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="its options")

    sample = commands.add_parser(
        "sample", formatter_class=Help, help="write text or images with a trained model",
        description="Continue a text with the model of `gtensor train text`, or write the images "
                    "of `gtensor train diffusion`.",
        epilog="examples:\n  gtensor sample runs/text/checkpoint.safetensors --prompt 'The list'\n"
               "  gtensor sample runs/diffusion/checkpoint.safetensors --count 64 --out digits.png")
    sample.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of a training run")
    sample.add_argument("--prompt", metavar="TEXT", help="the beginning of the text")
    sample.add_argument("--count", type=_rows, metavar="N",
                        help="bytes of text (400), or images (64)")
    sample.add_argument("--temperature", type=float,
                        help="of text: 0 takes the likeliest byte each time (0.8)")
    sample.add_argument("--top-k", type=_rows, metavar="K",
                        help="of text: draw from the K likeliest bytes (all)")
    sample.add_argument("--seed", type=int, default=0, help="same seed, same sample (0)")
    sample.add_argument("--device", help="cpu, cuda or cuda:1 (the first GPU if there is one)")
    sample.add_argument("--out", type=Path, metavar="FILE",
                        help="the picture of the images (samples.png)")

    ranks = commands.add_parser(
        "launch", formatter_class=Help, usage="gtensor launch -n N [--timeout S] -- COMMAND ...",
        help="run a command as several ranks, which train together",
        description="Start N processes of a command on this machine, connected by MPI. In a "
                    "program `gt.distributed.init()` is their communicator; `gtensor train` uses "
                    "it by itself. When one fails, all end, and its error is shown once.",
        epilog="examples:\n  gtensor launch -n 2 -- gtensor train digits\n"
               "  gtensor launch -n 4 --timeout 60 -- python train.py\n\n"
               "Over several machines start the program with mpiexec or srun: docs/distributed.md.")
    ranks.add_argument("-n", type=_rows, required=True, dest="ranks", metavar="N",
                       help="processes")
    ranks.add_argument("--timeout", type=_rows, metavar="S",
                       help="seconds that a rank waits for the others (300)")
    ranks.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND ...",
                       help="what each of them runs")

    explain = commands.add_parser(
        "memory", formatter_class=Help, help="the holders of memory at the peak, from a snapshot",
        description="Read a memory snapshot and print the holders of memory when most bytes were "
                    "live, and how fragmented the rest was. Nothing in the file is run, so "
                    "untrusted files are safe.",
        epilog="""a snapshot is made in the program that uses the memory:

  with gt.memory.timeline("run.pickle"):      # or run.json; run.html and run.png are pictures
      train_step()
  gt.memory.snapshot("now.pickle")            # how memory lies now, without a recording

  gtensor memory run.pickle
  gtensor memory run.pickle --by module
  gtensor memory run.json --json | jq .peak.bytes

PyTorch's own snapshots (torch.cuda.memory._dump_snapshot) are read, too.""")
    explain.add_argument("file", type=Path, metavar="FILE", help="a .pickle or .json snapshot")
    explain.add_argument("--by", choices=tuple(GROUPS), help="one table: by category, by holder, "
                         "by op, by module, or by the user's line (recorded with stacks=True)")
    explain.add_argument("--most", type=_rows, default=15, metavar="N", help="rows of a table (15)")
    explain.add_argument("--json", action="store_true", help="everything as JSON, in bytes")

    add_profile(commands)
    info = commands.add_parser("info", help="what this machine has, and what is missing",
                               description="Devices, versions, settings, and what is missing.")
    info.add_argument("--json", action="store_true", help="as JSON")
    return top


def _rows(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given; wanted a number of rows, 1 or more")
    return int(text)


def train_parser(name: str) -> argparse.ArgumentParser:
    """The options of `gtensor train NAME`. UserError if there is no such recipe."""
    from gtensor.train.command import folder_of

    made = recipe_parser(name, "train")
    made.add_argument("--out", type=Path, metavar="DIR",
                      help=f"folder of the run ({folder_of(name)})")
    made.add_argument("--resume", action="store_true", help="go on from the folder's "
                      "checkpoint, with its options; with --epochs N to that number of them")
    made.add_argument("--quiet", action="store_true", help="print errors only")
    return made


def complete(grammar: argparse.ArgumentParser) -> None:
    """Print what may follow in a shell's command line, by argcomplete.

    Behind the name of a recipe that is one of the recipe's options: argcomplete is given a line of
    them alone.
    """
    import argcomplete

    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    recipe = re.match(r"\s*\S+\s+train\s+(\S+)(?=\s)", line[:point])
    if recipe is not None:
        try:
            grammar = train_parser(recipe[1])
        except UserError:
            raise SystemExit from None
        os.environ["COMP_LINE"] = f"gtensor{line[recipe.end():]}"
        os.environ["COMP_POINT"] = str(point - recipe.end() + len("gtensor"))
    argcomplete.autocomplete(grammar)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status (0 done, 1 failed, 2 misused, 130 interrupted, 141 unread).

    Without a command it prints the help, and is misused.
    """
    grammar = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks, and the process ends here
        complete(grammar)
    given, unknown = grammar.parse_known_args(arguments)
    if unknown:
        where = "; a recipe's options follow its name" if given.command == "train" else ""
        grammar.error(f"unrecognized arguments: {' '.join(unknown)}{where}")
    if given.command is None:
        grammar.print_help(sys.stderr)
        return 2
    try:
        if given.command == "info":
            found = facts()
            print(json.dumps(found, indent=2) if given.json else text(found), flush=True)
            return 0
        if given.command == "memory":
            history = load(given.file)
            if given.json:
                print(json.dumps(explained(history), indent=2), flush=True)
            else:
                show(history, given.by, given.most)
                sys.stdout.flush()
            return 0
        if given.command == "launch":
            from gtensor.distributed.launch import launch

            words = given.words[1:] if given.words[:1] == ["--"] else given.words
            return launch(given.ranks, words, given.timeout)
        if given.command == "profile":
            return profile_command(given)
        if given.command == "sample":
            from gtensor.train.sampling import sample

            options = vars(given)
            del options["command"]
            return sample(**options)
        from gtensor.train.command import train

        options = vars(train_parser(given.recipe).parse_args(given.options))
        return train(given.recipe, *map(options.pop, ("out", "resume", "quiet")), **options)
    except KeyboardInterrupt:
        lost = "; nothing was saved since the last epoch" if given.command == "train" else ""
        print(f"gtensor: interrupted{lost}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if settings.debug >= 1 or not isinstance(error, _expected()):
            raise
        _tell(f"gtensor: {error}")
        return 1


def _expected() -> tuple[type[Exception], ...]:
    """The errors that are a sentence for the user."""
    found: tuple[type[Exception], ...] = (UserError, gtensor.DeviceError, MemoryError)
    distributed = sys.modules.get("gtensor.distributed")
    return found if distributed is None else (*found, distributed.DistributedError)


def _tell(text: str) -> None:
    """Print an error; of several ranks one does, and all end."""
    distributed = sys.modules.get("gtensor.distributed")
    if distributed is not None and distributed.started() > 1:
        distributed.end_all(distributed.init(), text)
    print(text, file=sys.stderr)
