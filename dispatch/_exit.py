"""The end of the process: everything out, and errors that nobody saw."""

from __future__ import annotations

import atexit
import sys

from dispatch._barrier import wait_for_all
from dispatch._drain import drain


@atexit.register
def _finish() -> None:
    try:
        wait_for_all()
    finally:
        drain.stop()
        for failure in drain.failures:
            sys.excepthook(type(failure), failure, failure.__traceback__)
