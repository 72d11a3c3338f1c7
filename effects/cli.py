"""The command `effects`. Each subcommand is one row of `COMMANDS`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence

import effects as fx
from effects import _errors as errors
from effects._demo import demo
from effects._doctor import add_arguments as add_doctor_arguments
from effects._doctor import doctor
from effects.extensions.handlers.merge import End, LogError, merge, text_of
from effects.extensions.runs.show import add_arguments as add_show_arguments
from effects.extensions.runs.show import show

MSG_MERGE_OUTPUT = (
    "The merged log cannot be written to {path}: {why}. The output is a file of its own. Name another after `-o`."
)

END = "{path} ends with {last}. What is behind the common part is left out: {left_out}."


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand: what it does, what it takes, and the function that does it and returns the exit code."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand.

    Args:
        argv: The arguments; by default those of the process.

    Returns:
        The exit code.

    Example:
        >>> from effects.cli import main
        >>> main(["demo"])  # doctest: +SKIP
    """
    parser = argparse.ArgumentParser("effects", description=fx.__doc__ and fx.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"token-effects {fx.__version__}")
    subparsers = parser.add_subparsers(metavar="command")
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    options = parser.parse_args(argv)
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    return options.run(options)


# effects merge


def _merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", metavar="log", help="a file that fx.JsonLinesHandler has written")
    parser.add_argument("-o", "--output", metavar="file", help="where the merged log goes; by default to the terminal")
    parser.add_argument("--text", action="store_true", help="write the records' texts only")
    parser.add_argument(
        "--partial", action="store_true", help="of a run that crashed: what all processes came to, and where each ends"
    )


def _merge(options: argparse.Namespace) -> int:
    """Merges the logs of a run's processes, or says why they do not belong together."""
    ends: list[End] = []
    try:
        records = merge(options.logs, partial=options.partial, ends=ends)
    except LogError as error:
        print(error, file=sys.stderr)
        return 1
    for end in ends:
        left_out = errors.counted(end.left_out, "record")
        print(END.format(path=end.path, last=end.last, left_out=left_out), file=sys.stderr)
    encode = text_of if options.text else json.JSONEncoder().encode
    lines = (encode(record) + "\n" for record in records)
    if options.output is None:
        try:
            sys.stdout.writelines(lines)
            sys.stdout.flush()
        except BrokenPipeError:  # who reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    try:
        if any(os.path.samefile(options.output, log) for log in options.logs if os.path.exists(options.output)):
            raise OSError("it is one of the logs")
        with open(options.output, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
    except OSError as error:
        why = error.strerror or error
        print(MSG_MERGE_OUTPUT.format(path=options.output, why=why), file=sys.stderr)
        return 1
    return 0


COMMANDS: tuple[Command, ...] = (
    Command(
        "demo",
        "A short tour: prints, callbacks and events in order, through loops and branches and on two devices.",
        demo,
    ),
    Command(
        "doctor",
        "Versions, devices, variables, settings and a self-test, as text for a bug report, or as JSON.",
        doctor,
        add_doctor_arguments,
    ),
    Command(
        "show",
        "Shows what a run file has: the records in program order, or what each device came to last.",
        show,
        add_show_arguments,
    ),
    Command(
        "merge",
        "Merges the logs that the processes of a run have written with fx.JsonLinesHandler into one, in program order.",
        _merge,
        _merge_arguments,
    ),
)
"""All subcommands, in the order in which `effects --help` lists them."""
