"""The command line. Only argument parsing is imported here, so that `ntfa --help` answers at once."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module

from ntfa.errors import Interrupted, NTFAError
from ntfa.version import __version__

LIKE = ("synthetic", "haxby", "lepping", "threatvids")
MODELS = ("ntfa", "htfa", "tfa")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if done, 1 for an error of ours, 2 for wrong usage, 128 + signal if told to stop."""
    args = parser().parse_args(argv)
    args.command_line = ["ntfa", *(sys.argv[1:] if argv is None else argv)]
    logging.basicConfig(level=logging.WARNING if args.quiet else logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        import_module(f"ntfa.cli.{args.command}").run(args)
    except Interrupted as stop:
        print(f"ntfa: {stop}\nGo on with: {' '.join(_resume(args.command_line))}", file=sys.stderr)
        return 128 + stop.signal_number
    except NTFAError as error:
        print(f"ntfa: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ntfa: interrupted", file=sys.stderr)
        return 130
    return 0


def _resume(command_line: list[str]) -> list[str]:
    return command_line if "--resume" in command_line else [*command_line, "--resume"]


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="ntfa",
        description="Neural Topographic Factor Analysis: how participants and stimuli differ in fMRI.",
    )
    top.add_argument("--version", action="version", version=f"ntfa {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands.add_parser("demo", help="simulate a small study, fit NTFA to it, write a report"))
    _add_simulate(commands.add_parser("simulate", help="simulate a study whose truth is known"))
    _add_fit(commands.add_parser("fit", help="fit a model to a saved study"))
    return top


def _add_output(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("out", metavar="OUT", help=f"folder to write {what} to")
    command.add_argument(
        "--overwrite", action="store_true", help="replace OUT if it exists, once the new one is complete"
    )
    command.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_demo(command: argparse.ArgumentParser) -> None:
    _add_output(command, "the results")
    command.add_argument("--seed", type=int, default=0, help="seed of simulation and fit (default: 0)")


def _add_simulate(command: argparse.ArgumentParser) -> None:
    _add_output(command, "the study")
    command.add_argument(
        "--like", choices=LIKE, default="synthetic", help="which study to imitate (default: synthetic)"
    )
    for option, metavar, text in (
        ("participants", "P", "number of participants"),
        ("stimuli", "S", "number of stimuli"),
        ("frames", "T", "frames a trial"),
        ("voxels", "V", "number of voxels"),
        ("factors", "K", "number of true factors"),
        ("runs", "R", "number of runs a participant"),
    ):
        command.add_argument(f"--{option}", type=_count, metavar=metavar, help=f"{text} (default: as in the study)")
    command.add_argument("--seed", type=int, default=0, help="(default: 0)")


def _add_fit(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", metavar="STUDY", help="folder of a saved study")
    _add_output(command, "the results")
    command.add_argument("--model", choices=MODELS, default="ntfa", help="(default: ntfa)")
    command.add_argument("--n-factors", type=_count, default=100, metavar="K", help="number of factors (default: 100)")
    command.add_argument(
        "--embedding-dim", type=_count, metavar="D", help="dimensions of embeddings, ntfa only (default: 2)"
    )
    command.add_argument(
        "--block",
        choices=("trial", "participant"),
        help="what has factors of its own, htfa (default: trial) and tfa (participant)",
    )
    command.add_argument(
        "--inference", choices=("collapsed", "mean-field"), default="collapsed", help="(default: collapsed)"
    )
    command.add_argument("--init", choices=("pursuit", "kmeans"), default="pursuit", help="(default: pursuit)")
    command.add_argument("--schedule", choices=("one-cycle", "paper"), default="one-cycle", help="(default: one-cycle)")
    command.add_argument("--max-epochs", type=_count, default=1000, help="most steps to take (default: 1000)")
    command.add_argument("--n-particles", type=_count, default=1, help="particles of the bound (default: 1)")
    command.add_argument("--n-restarts", type=_count, default=1, help="random starts, best kept (default: 1)")
    command.add_argument("--seed", type=int, default=0, help="(default: 0)")
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)")
    command.add_argument("--resume", action="store_true", help="go on with a fit that was interrupted")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value
