"""Destinations of records besides the terminal: files, loggers, and services that show metrics."""
