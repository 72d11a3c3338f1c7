"""`effects tail`: a run while it is written."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import jax

from effects.extensions.runs.reading import Following, Run, RunError, tell_missing
from effects.extensions.runs.show import Writer, add_selection, selected

_INTERVAL = 0.25
"""Seconds between two looks at the file."""

_FIRST = 10
"""The number of records to show of those that are in the file already."""


add_arguments = add_selection


def run_command(options: argparse.Namespace) -> int:
    """Shows new records until the recording ends. Returns the exit status: 0, or 2 if the run cannot be read."""
    jax.config.update("jax_platforms", "cpu")  # the run's process may hold the other platforms
    try:
        writer = Writer(options.json)
        for number, run in enumerate(_looks(options)):
            writer.write(run if number else run.last(_FIRST))
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def _looks(options: argparse.Namespace) -> Iterator[Run]:
    """Yields the records since the previous look, until no process records any more."""
    following = Following(*options.runs)
    unmatched: RunError | None = None
    while True:
        run = following.look()
        try:
            yield selected(run, options)
            unmatched = None
        except RunError as error:  # the program may reach such a line later
            unmatched = error
        if not any(process.is_written for process in run.processes):
            break
        time.sleep(_INTERVAL)
    tell_missing(run)
    if unmatched is not None:
        raise unmatched
