"""The table of the subcommands of `effects`; extensions add rows.

A row names the module that does the work. Only the module of the given command is imported, since `import effects`
reads this table, and `effects --help` shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        name: The word behind `effects`.
        help: A sentence that says what it does.
        module: The name of a module with two functions. `add_arguments(parser)` adds its arguments to an
            `argparse.ArgumentParser`, and `run_command(options)` runs the command and returns the exit status.
    """

    name: str
    help: str
    module: str


COMMANDS: list[Command] = [
    Command("demo", "A short tour: prints, callbacks and an error, in a loop and on two devices.", "effects._demo"),
    Command("doctor", "Versions, devices, settings and a self-test, as text for a bug report.", "effects._doctor"),
    Command("run", "Runs a Python program as it is, with `fx.jit` in place of `jax.jit`.", "effects_command"),
]
"""The subcommands, in the order of `effects --help`."""

before_command: list[Callable[[], object]] = []
"""Functions that are called before a subcommand runs, added by extensions."""


def run_before_commands(prepare: Callable[[], object]) -> None:
    """Calls the function before a subcommand runs."""
    before_command.append(prepare)


def register_command(name: str, help: str, module: str) -> None:
    """Adds a subcommand of `effects`. Its arguments are those of `Command`."""
    COMMANDS.append(Command(name, help, module))
