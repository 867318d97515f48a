"""The command `gtensor`: train a recipe, explain memory, see what this machine has."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import gtensor
from gtensor.cli.info import facts, text
from gtensor.cli.memory import GROUPS, load, show
from gtensor.cli.memory import facts as explained
from gtensor.settings import settings
from gtensor.train import RECIPES, UserError, recipe


def parser() -> argparse.ArgumentParser:
    """The command's grammar, with help that teaches."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="gtensor", formatter_class=raw, description=gtensor.__doc__,
        epilog="examples:\n  gtensor train digits\n"
               "  gtensor train digits --epochs 5 --out runs/short\n"
               "  gtensor train digits --norm abn\n  gtensor memory run.pickle\n"
               "  gtensor info --json")
    top.add_argument("--version", action="version", version=f"gtensor {gtensor.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    train = commands.add_parser(
        "train", formatter_class=raw, help="train a network on real data",
        description="Train a recipe. It leaves in its folder a checkpoint, a loss curve and a "
                    "picture of where\nthe memory of a step went. Ctrl-C saves; --resume goes on, "
                    "with identical losses.\nA table shows the memory of a step with either "
                    "--norm, whichever was trained.",
        epilog="recipes:\n" + "\n".join(_recipe_line(name) for name in RECIPES))
    train.add_argument("recipe", help=f"which recipe: {', '.join(RECIPES)}")
    train.add_argument("--out", type=Path, metavar="DIR", help="folder of the run (runs/RECIPE)")
    train.add_argument("--resume", action="store_true", help="go on from the folder's checkpoint")
    train.add_argument("--epochs", type=int, help="times through the training data")
    train.add_argument("--batch-size", type=int, help="examples per step")
    train.add_argument("--lr", type=float, help="highest learning rate")
    train.add_argument("--seed", type=int, help="of weights and order: same seed, same losses")
    train.add_argument("--norm", metavar="abn|inplace", help="the network's batch norms: abn keeps "
                       "their input and their\noutput for backward, inplace writes one over the "
                       "other (default inplace)")
    train.add_argument("--device", help="cpu, cuda or cuda:1 (the first GPU if there is one)")
    train.add_argument("--quiet", action="store_true", help="print errors only")

    explain = commands.add_parser(
        "memory", formatter_class=raw, help="the holders of memory at the peak, from a snapshot",
        description="Read a memory snapshot and print the holders of memory when most bytes were "
                    "live, and how\nfragmented the rest was. Nothing in the file is run, so "
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

    info = commands.add_parser("info", help="what this machine has, and what is missing",
                               description="Devices, versions, settings, and what is missing.")
    info.add_argument("--json", action="store_true", help="as JSON")
    return top


def _rows(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given; wanted a number of rows, 1 or more")
    return int(text)


def _recipe_line(name: str) -> str:
    chosen = recipe(name)
    default = chosen.DEFAULTS
    return (f"  {name:8} {chosen.TITLE}\n  {'':8} by default {default.epochs} epochs, batches of "
            f"{default.batch_size}, learning rate {default.lr}, seed {default.seed}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status (0 done, 1 failed, 2 misused, 130 interrupted, 141 unread).

    Without a command it prints the help, and is misused.
    """
    grammar = parser()
    given = grammar.parse_args(arguments)
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
        from gtensor.train.command import train

        options = vars(given)
        del options["command"]
        return train(options.pop("recipe"), **options)
    except KeyboardInterrupt:
        print("gtensor: interrupted; nothing was saved since the last epoch", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, gtensor.DeviceError, MemoryError) as error:
        if settings.debug >= 1:
            raise
        print(f"gtensor: {error}", file=sys.stderr)
        return 1
