"""Handlers of records: what keeps them or shows them elsewhere. `fx.add_handler` takes each."""

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
