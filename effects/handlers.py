"""Handlers of records, which keep them or show them elsewhere. `fx.add_handler` takes each."""

import typing as _typing

from effects import _lazy, _removed

with _lazy.required_by("effects.handlers"):
    from effects.extensions.handlers.console import ConsoleHandler as ConsoleHandler
    from effects.extensions.handlers.csv import CsvHandler as CsvHandler
    from effects.extensions.handlers.jsonl import JsonLinesHandler as JsonLinesHandler
    from effects.extensions.handlers.list import ListHandler as ListHandler

if not _typing.TYPE_CHECKING:  # else type checkers would accept every name

    def __getattr__(name: str) -> _typing.Any:
        raise _removed.missing_name(__name__, name)
