"""Records on a terminal."""

from __future__ import annotations

from typing import Any

from effects._model.content import parts_of_line
from effects._model.record import Record


class ConsoleHandler:
    """Shows each record on a line of a rich console: its level in colour, what happened, and where.

    Lines of prints that it shows are not written to the output as well, as long as it is there.

    Args:
        console: A `rich.console.Console`; by default one that writes to `sys.stdout`.

    Example:
        >>> import effects as fx
        >>> added = fx.add_handler(fx.ConsoleHandler(), effects="log")
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)  # doctest: +ELLIPSIS
        >>> fx.remove_handler(added)  # doctest: +ELLIPSIS
        INFO     step loss=0.5 ...
    """

    takes_lines = True

    def __init__(self, console: Any = None):
        from rich.console import Console

        self._console = console or Console()

    def handle(self, record: Record) -> None:
        from rich.text import Text

        name, text, where = parts_of_line(record)
        style = "" if record.level is None else f"logging.level.{name.lower()}"
        line = Text.assemble((f"{name:<8}", style), f" {text} ", (where, "dim"))
        self._console.print(line, soft_wrap=True, highlight=False)
