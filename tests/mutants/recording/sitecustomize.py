"""Records which lines of the product each test runs.

Python imports this in every interpreter in whose PYTHONPATH the folder is, and so in those that tests start. In
pytest's own process it is a plugin, too, with hooks that need no import of pytest. Each process appends to a file of
its own, a line for each test.
"""

import atexit
import json
import os
import sys
from collections import defaultdict

ROOT = os.environ.get("MUTANTS_ROOT", "")  # of the tree whose lines count
INTO = os.environ.get("MUTANTS_RECORD_INTO", "")  # the folder of the files
PRODUCT = tuple(os.path.join(ROOT, name, "") for name in ("effects", "lowering", "dispatch", "extensions"))

_lines: set[tuple[str, int]] = set()
_seconds, _passed, _is_pytest = 0.0, True, False


def _start() -> None:
    monitoring = sys.monitoring
    monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutants")

    def enter(code, offset):  # once for each function and test
        if code.co_filename.startswith(PRODUCT):
            monitoring.set_local_events(monitoring.COVERAGE_ID, code, monitoring.events.LINE)
        return monitoring.DISABLE

    def line(code, number):
        _lines.add((code.co_filename, number))
        return monitoring.DISABLE

    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, enter)
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, line)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)
    atexit.register(_end)
    os.register_at_fork(after_in_child=_begin)


def _begin() -> None:
    _lines.clear()
    sys.monitoring.restart_events()


def _end() -> None:
    if not _is_pytest and (test := os.environ.get("MUTANTS_TEST")):  # that has started this interpreter
        _write(test, 0.0)


def _write(test: str, seconds: float) -> None:
    of_files = defaultdict(list)
    for file, number in sorted(_lines):
        # The folders of `lowering` and `dispatch` are also found in `effects`.
        of_files[os.path.relpath(os.path.realpath(file), ROOT)].append(number)
    with open(os.path.join(INTO, f"{os.getpid()}.jsonl"), "a") as out:
        out.write(json.dumps({"test": test, "seconds": seconds, "lines": of_files}) + "\n")
    _lines.clear()


def pytest_runtest_logstart(nodeid, location):
    global _seconds, _passed, _is_pytest
    _seconds, _passed, _is_pytest = 0.0, True, True
    os.environ["MUTANTS_TEST"] = nodeid
    _begin()


def pytest_runtest_logreport(report):
    global _seconds, _passed
    _seconds += report.duration
    _passed &= report.passed


def pytest_runtest_logfinish(nodeid, location):
    if _passed:
        _write(nodeid, _seconds)


if INTO:
    _start()
