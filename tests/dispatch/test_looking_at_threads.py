"""The drain's looks at where threads stand, which disturb none of them."""

from __future__ import annotations

import sys

import pytest

from tests.helpers import run_python

LOOKS_AMID_GARBAGE = """
import faulthandler, gc, threading, time
faulthandler.dump_traceback_later(200, exit=True)
from tests.internals import supervisor

class Node:
    pass

def make_garbage():
    node = Node()
    node.local, node.itself = threading.local(), node
    node.local.x = 1

ended = threading.Event()

def descend(depth):  # each call has a frame of its own, of which a look makes an object
    if depth:
        descend(depth - 1)
    else:
        ended.wait(0.0005)

def work():
    while not ended.is_set():
        descend(5)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
gc.set_threshold(3)
for i in range(4000):
    gc.disable()
    make_garbage()
    kept = [[] for _ in range(i % 4)]  # so that some collection begins in the midst of a look
    gc.enable()
    assert threads[0].ident in supervisor.frames()
assert gc.isenabled()
ended.set()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="since Python 3.12 garbage is collected between instructions")
def test_looks_survive_garbage_of_threads():
    """A collection in the midst of a look frees variables of threads, and nothing hangs."""
    done = run_python(LOOKS_AMID_GARBAGE)
    assert done.returncode == 0, done.stderr
