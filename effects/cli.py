"""The command `effects`. Each subcommand is a row of `effects._commands`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import effects as fx
from effects import _lazy, _removed
from effects._commands import COMMANDS, before_command


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
    words = sys.argv[1:] if argv is None else [*argv]
    if words[:1] == ["run"]:  # the program's own errors
        import effects_command

        return effects_command.run(words[1:])
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: Sequence[str]) -> int:
    for prepare in before_command:
        prepare()
    chosen = next((word for word in words if not word.startswith("-")), "")
    parser = argparse.ArgumentParser("effects", description=fx.__doc__ and fx.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"token-effects {fx.__version__}")
    subparsers = parser.add_subparsers(metavar="command")
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        if command.name == chosen:
            with _lazy.required_by(f"effects {chosen}"):
                module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run_command)
    for word in words:
        if text := _removed.message(f"effects {chosen} {word.partition('=')[0]}"):
            parser.error(text)
    options = parser.parse_args(words)
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    return options.run(options)
