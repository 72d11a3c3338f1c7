"""Handlers that keep or show records. Each is given to `fx.add_handler`; any function of a record is one as well."""

from effects.handlers.console import ConsoleHandler as ConsoleHandler
from effects.handlers.csv import CsvHandler as CsvHandler
from effects.handlers.jsonl import JsonLinesHandler as JsonLinesHandler
from effects.handlers.list import ListHandler as ListHandler
from effects.handlers.loguru import LoguruHandler as LoguruHandler
from effects.handlers.npz import NpzHandler as NpzHandler
from effects.handlers.parquet import ParquetHandler as ParquetHandler
from effects.handlers.structlog import StructlogHandler as StructlogHandler
from effects.handlers.tensorboard import TensorBoardHandler as TensorBoardHandler
from effects.handlers.wandb import WandbHandler as WandbHandler
