"""The state between programs: one object has it, and its parts can be made without it."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import threading
import weakref

import effects as fx
from effects import dispatch
from tests.helpers import run_python
from tests.internals import Failures, KnownSites, Streams, native, runtime


def test_one_object_has_the_state():
    """No module of `dispatch` has an object of its classes that has state, but `runtime`."""
    found = set()
    for info in pkgutil.walk_packages(dispatch.__path__, "effects.dispatch."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if type(value).__module__.startswith("effects.dispatch.") and getattr(value, "__dict__", True):
                found.add((name, type(value).__name__))
    assert found == {("runtime", "Runtime")}


def test_stream_is_freed_when_its_thread_is_gone():
    """Nothing that a stream has given to native code keeps it alive."""
    program = fx.jit(lambda x: x + 1)
    streams = []

    def call():
        program(1)
        streams.append(weakref.ref(runtime.streams.current()))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    fx.effects_barrier(all_threads=True, timeout=60)

    def is_freed():
        gc.collect()
        return streams[0]() is None

    fx.jit(lambda: fx.print("the drain looks after them while programs have effects"))()
    assert runtime.drain.wait(is_freed, timeout=60)


def test_failures_know_whose_programs_they_are_of():
    """What effects raised is handed out once, to whoever called the program, or to anybody if that thread has ended."""
    streams, ended = Streams(), set()
    streams.has_ended = lambda thread, stand_in: thread in ended
    failures = Failures(streams)
    first, second = ValueError("first"), ValueError("second")
    failures.add((1, 0), first)
    failures.add((2, 0), second)
    assert failures.take({2}) == [second]
    assert failures.take({2}) == []
    ended.add(1)
    assert failures.take({2}) == [first]
    assert failures.take() == []
    assert not failures


def test_sites_announce_that_a_program_has_one():
    """Whoever listens is told before the program can be called, and finds the site among those that are known."""
    sites, seen = KnownSites(), []
    sites.listen(lambda site: seen.append(len(sites.all())))
    with fx.capture(suppress=True) as records:
        fx.print("x")
    site = records[0]._site
    sites.register(site)
    assert seen == [1] and sites.find(site.id) is site


def test_epochs_end_in_their_order_while_a_drain_thread_is_late(monkeypatch):
    """A drain thread that has run a program's callback may be held up. The next program does not end before it."""
    called, go_on, over = (threading.Event() for _ in range(3))

    def function(number):
        if number == 0:
            called.set()
            go_on.wait(60)

    program = fx.jit(lambda number: fx.callback(function, None, number))
    program(0)
    assert called.wait(60)
    program(1)
    calls = runtime.streams.current().calls
    resume = native.resume

    def late(*args):
        monkeypatch.undo()
        resume(*args)
        over.wait(60)

    monkeypatch.setattr(native, "resume", late)
    go_on.set()
    fx.effects_barrier(timeout=60)
    left = [*calls]
    over.set()
    assert not left


def test_first_effect_of_a_process_may_be_outside_of_any_program():
    """Nothing has started the drain before it."""
    done = run_python("import effects as fx\nfx.print('first')\nfx.effects_barrier()\nprint('shown')", timeout=60)
    assert done.stdout == "first\nshown\n", done.stderr
