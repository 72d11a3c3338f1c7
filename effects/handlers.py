"""Handlers of records: what keeps them or shows them elsewhere. `fx.add_handler` takes each."""

import typing as _typing

from effects import _lazy, _removed

with _lazy.required_by("effects.handlers"):
    from effects.extensions.handlers.console import ConsoleHandler as ConsoleHandler
    from effects.extensions.handlers.csv import CsvHandler as CsvHandler
    from effects.extensions.handlers.jsonl import JsonLinesHandler as JsonLinesHandler
    from effects.extensions.handlers.list import ListHandler as ListHandler
    from effects.extensions.handlers.loggers import LoguruHandler as LoguruHandler
    from effects.extensions.handlers.loggers import StructlogHandler as StructlogHandler
    from effects.extensions.handlers.metrics import TensorBoardHandler as TensorBoardHandler
    from effects.extensions.handlers.metrics import WandbHandler as WandbHandler
    from effects.extensions.handlers.npz import NpzHandler as NpzHandler
    from effects.extensions.handlers.parquet import ParquetHandler as ParquetHandler

if not _typing.TYPE_CHECKING:  # type checkers would take it to have every name

    def __getattr__(name: str) -> _typing.Any:
        raise _removed.missing_name(__name__, name)
