"""Lets `effects tail` change the filters of a process that records: rules, through a named pipe beside the run file."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from effects._model.filter import LOGGER
from effects.extensions.sites.rules import apply_rules


def pipe_of(path: str) -> str:
    """The pipe of the process that writes this run file. Only the process's user may open it."""
    return f"{path}.sites"


class Switches:
    """The end in the process that records: a thread that waits for rules and applies them.

    Args:
        path: The run file.
        then: Is called when filters have been changed.
    """

    def __init__(self, path: str, then: Callable[[], object]):
        self._path, self._then = pipe_of(path), then
        self._is_open = False
        with contextlib.suppress(OSError):  # of another process, which was killed
            os.unlink(self._path)
        try:
            os.mkfifo(self._path, 0o600)
            pipe = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)  # for writing too: it does not end with a writer
        except OSError:  # the file system has no pipes
            return
        self._is_open = True
        threading.Thread(target=self._follow, args=(pipe,), name="effects-switches", daemon=True).start()

    def _follow(self, pipe: int) -> None:
        with open(pipe, errors="replace") as lines:
            for line in lines:
                if not self._is_open:
                    return
                try:
                    apply_rules(line)
                except ValueError as error:
                    LOGGER.error("%s", error)
                self._then()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            send(self._path.removesuffix(pipe_of("")), "")
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def send(path: str, rules: str) -> bool:
    """Has the process that writes this run file apply rules. Returns whether it reads them."""
    try:
        pipe = os.open(pipe_of(path), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(pipe, "w") as lines:
            lines.write(f"{rules}\n")
    except OSError:  # no process reads it, or another user's does, or it has just ended its recording
        return False
    return True
