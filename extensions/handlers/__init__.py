"""Destinations of records besides the terminal: files, loggers, and services that show metrics."""

_PAGE = "docs/reference/handlers.md"
