"""Handlers that keep or show records. Each is given to `fx.add_handler`; any function of a record is one as well."""

from effects.handlers.console import ConsoleHandler as ConsoleHandler
from effects.handlers.csv import CsvHandler as CsvHandler
from effects.handlers.jsonl import JsonLinesHandler as JsonLinesHandler
from effects.handlers.list import ListHandler as ListHandler
from effects.handlers.npz import NpzHandler as NpzHandler
