"""The end of the process: everything out, and errors that nobody saw."""

from __future__ import annotations

import atexit
import sys

from dispatch._barrier import forget_plain_failures, wait_for_all
from dispatch._drain import drain
from dispatch._failures import failures
from dispatch._observers import observers
from dispatch._sink import native
from effects._api.config import config


@atexit.register
def _finish() -> None:
    unseen: list[BaseException] = []
    try:
        wait_for_all()
    finally:
        drain.stop()
        unseen += failures.take()
        forget_plain_failures()
        for handler in observers.handlers:
            try:
                handler.close()
            except Exception as error:
                unseen.append(error)
        for failure in unseen:
            sys.excepthook(type(failure), failure, failure.__traceback__)
        if unseen:
            native.end_with(config.exit_code)
