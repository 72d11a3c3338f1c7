"""What is counted is what there was."""

from __future__ import annotations

import json

import pytest

from tests.helpers import run_python

pytestmark = pytest.mark.slow

COUNTS_CALLS = """
import json, threading
from benchmarks._counters import Calls

def called():
    pass

def calls_thrice():
    for _ in range(3):
        called()

counter = Calls("")
for run in (lambda: None), calls_thrice, threading.Thread(target=calls_thrice).run:
    counter.begin()
    run()
    print(json.dumps(counter.end()))
thread = threading.Thread(target=calls_thrice)
counter.begin()
thread.start()
thread.join()
print(json.dumps(counter.end()))
"""


def test_python_calls_are_counted():
    """Of the thread that counts, from the begin to the end, and those of another thread apart from them."""
    run = run_python(COUNTS_CALLS)
    assert run.returncode == 0, run.stderr
    one, four, five, elsewhere = (json.loads(line) for line in run.stdout.splitlines())
    assert one == {"Python calls": 1, "Python calls in other threads": 0}
    assert four == {"Python calls": 4, "Python calls in other threads": 0}
    assert five == {"Python calls": 5, "Python calls in other threads": 0}
    assert elsewhere["Python calls in other threads"] >= 4  # and what starts a thread
