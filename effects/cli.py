"""The command `effects`. Each subcommand is one row of `COMMANDS`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

import effects as fx
from effects import _removed
from effects._demo import demo
from effects._doctor import add_arguments as add_doctor_arguments
from effects._doctor import doctor
from effects.extensions.runs.diff import add_diff_arguments, diff_command
from effects.extensions.runs.show import add_arguments as add_show_arguments
from effects.extensions.runs.show import show
from effects.extensions.runs.tail import add_tail_arguments, tail
from effects.extensions.runs.trace import add_trace_arguments, trace_command


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
    command, *words = [*(sys.argv[1:] if argv is None else argv), ""]
    for word in words:
        if text := _removed.message(f"effects {command} {word.partition('=')[0]}"):
            parser.error(text)
    options = parser.parse_args(argv)
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    return options.run(options)


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
        "tail",
        "Follows a run while it is recorded: lines, curves of fields, or a table of sites with switches.",
        tail,
        add_tail_arguments,
    ),
    Command(
        "diff",
        "Shows where two runs begin to differ, and how that grows. The exit status is that of diff: 0, 1, or 2.",
        diff_command,
        add_diff_arguments,
    ),
    Command(
        "trace",
        "Writes a run file as a timeline for Perfetto, or shows who waited for whom.",
        trace_command,
        add_trace_arguments,
    ),
)
"""All subcommands, in the order in which `effects --help` lists them."""
