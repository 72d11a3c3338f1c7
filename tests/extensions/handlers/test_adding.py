"""Handlers: when they get records, and what they may do."""

from __future__ import annotations

import logging
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.extensions.handlers.common import read_csv, read_lines
from tests.forks import run_forked
from tests.internals import runtime


def _take(x):
    pass


def _step(x):
    fx.log("step", x=x)


def test_handler_sees_exactly_the_calls_while_it_is_there():
    """Calls before it was added are not seen, however late their records come; all before it is removed are."""
    program = fx.jit(lambda x: jax.lax.fori_loop(0, 100, lambda i, _: _step(x + i), None))
    seen = []
    for call in range(10):
        program(1000 * call)
        token = fx.add_handler(lambda record: seen.append(int(record.fields["x"])), effects="log")
        program(1000 * call + 500)
        fx.remove_handler(token)
    program(-1)
    fx.effects_barrier(timeout=120)
    assert seen == [1000 * call + 500 + i for call in range(10) for i in range(100)]


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        (None, ["print", "log", "callback"]),
        ("log", ["log"]),
        (["print", "callback"], ["print", "callback"]),
        ([fx.registered_effects()["callback"]], ["callback"]),
        ((), []),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_handler_gets_the_effects_it_is_for(effects, expected, many):
    """A handler gets records of the effects that it was added for, in program order, one by one or many at once."""

    @fx.jit
    def program(x):
        def body(i, _):
            fx.print("{}", i)
            fx.log("step", i=i)
            fx.callback(_take, None, i)

        jax.lax.fori_loop(0, 3, body, None)

    seen = []

    class Many:
        def handle(self, record):
            raise AssertionError("it takes many")

        def handle_many(self, records):
            seen.extend(record.effect for record in records)

    with fx.capture(suppress=True):
        token = fx.add_handler(Many() if many else lambda record: seen.append(record.effect), effects)
        program(1)
        fx.remove_handler(token)
    assert seen == expected * 3


def test_one_handler_may_be_added_twice():
    """Each adding counts, and each is removed by what it returned."""
    seen = []
    first, second = fx.add_handler(seen.append, "log"), fx.add_handler(seen.append, "log")
    program = fx.jit(_step)
    program(1)
    fx.remove_handler(first)
    program(2)
    fx.remove_handler(second)
    program(3)
    fx.effects_barrier(timeout=120)
    assert [int(record.fields["x"]) for record in seen] == [1, 1, 2]


def test_handler_is_closed_when_it_is_removed():
    """`close` is called once, after the last record."""
    events = []

    class Closing:
        def handle(self, record):
            events.append(record.event)

        def close(self):
            events.append("closed")

    token = fx.add_handler(Closing())
    fx.jit(_step)(1)
    fx.remove_handler(token)
    assert events == ["step", "closed"]


def test_handlers_that_are_still_there_are_closed_when_the_process_ends(tmp_path):
    """At the end of the process handlers get what is outstanding, and write what they have kept."""
    code = f"""
import effects as fx, jax
for make in (fx.JsonLinesHandler, fx.CsvHandler):
    fx.add_handler(make({str(tmp_path)!r} + "/" + make.__name__), effects="log")
fx.jit(lambda: jax.lax.fori_loop(0, 10000, lambda i, _: fx.log("step", i=i), None))()
"""
    done = run_forked(code)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert [record["fields"]["i"] for record in read_lines(tmp_path / "JsonLinesHandler")] == list(range(10000))
    assert [int(row["i"]) for row in read_csv(tmp_path / "CsvHandler")] == list(range(10000))


@pytest.mark.parametrize("many", [False, True])
def test_handler_that_raises_is_reported_once(many):
    """Its first error is raised at the barrier with its cause; it and the others get all records that follow."""
    seen, others = [], []

    class Raising:
        def handle(self, record):
            self.handle_many([record])

        def handle_many(self, records):
            seen.extend(int(record.fields["x"]) for record in records)
            raise KeyError("wrong")

    handler = Raising()
    raising = fx.add_handler(handler if many else handler.handle, "log")
    after = fx.add_handler(lambda record: others.append(int(record.fields["x"])), "log")
    program = fx.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, _: _step(x + i), None))
    program(0)
    with pytest.raises(fx.EffectError, match="handler .*Raising.* raised KeyError.*reported once") as caught:
        fx.effects_barrier(timeout=120)
    assert isinstance(caught.value.__cause__, KeyError)
    program(10)
    fx.effects_barrier(timeout=120)
    fx.remove_handler(raising)
    fx.remove_handler(after)
    assert seen == others == [0, 1, 2, 10, 11, 12]


def test_handler_may_use_effects_itself():
    """A handler may call jitted functions that log; what they log comes to handlers too, without end or hang."""
    seen = []
    nested = fx.jit(lambda x: fx.log("nested", x=x))

    def handler(record):
        seen.append((record.event, int(record.fields["x"])))
        if record.event == "step":
            nested(record.fields["x"] + 10)

    token = fx.add_handler(handler, "log")
    fx.jit(_step)(1)
    fx.effects_barrier(timeout=120)  # for the handler, and then for what the handler issued
    fx.effects_barrier(timeout=120, all_threads=True)
    fx.remove_handler(token)
    assert seen == [("step", 1), ("nested", 11)]


@pytest.mark.parametrize("handler", [3, None, "file", object()])
def test_handler_without_the_needed_method_is_refused(handler):
    """What can neither be called nor has a method `handle` is an error when it is added."""
    with pytest.raises(TypeError, match=r"no method `handle` and cannot be called\. .* `handle\(record\)`"):
        fx.add_handler(handler)


def test_handler_of_an_unknown_effect_is_refused():
    """A handler for an effect that does not exist is an error that names those that do."""
    with pytest.raises(ValueError, match="'nothing' is not a registered effect.*log"):
        fx.add_handler(print, "nothing")


def test_handler_is_removed_once():
    """Removing what is not there is an error that says what to pass."""
    token = fx.add_handler(print)
    fx.remove_handler(token)
    for wrong in (token, print, None):
        with pytest.raises(ValueError, match=r"was not added, or was removed already\. A handler is removed once"):
            fx.remove_handler(wrong)


# What a handler may do

_F32 = jax.ShapeDtypeStruct((), jnp.float32)
_logs = fx.jit(lambda x: fx.log("nested", x=x))
_calls = fx.jit(lambda x: fx.callback(lambda x: None, None, x))
_waits = fx.jit(lambda x: fx.callback(lambda x: x + 1, _F32, x))


def _captures(x):
    with fx.capture(suppress=True) as records:
        _logs(x)
    assert [record.event for record in records] == ["nested"]


@pytest.mark.parametrize("via", ["handler", "logging"])
@pytest.mark.parametrize("use", [_waits, _calls, _captures], ids=["waits", "calls", "captures"])
def test_handler_may_use_effects(use, via):
    """A handler, ours or one of Python's logging, may call programs with effects, and wait for them."""
    seen = []

    def handle(x):
        if x < 10:
            seen.append(x)
            use(jnp.float32(x + 10))

    class PythonHandler(logging.Handler):
        def emit(self, record):
            handle(float(record.x))

    logger, python_handler = logging.getLogger("effects"), PythonHandler()
    program = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.log("outer", x=i.astype(jnp.float32)), None))
    if via == "handler":
        token = fx.add_handler(lambda record: handle(float(record.fields["x"])), effects="log")
    else:
        before = logger.level
        logger.addHandler(python_handler)
        logger.setLevel(logging.INFO)
    try:
        program(5)
        fx.effects_barrier(timeout=60)
    finally:
        if via == "handler":
            fx.remove_handler(token)
        else:
            logger.removeHandler(python_handler)
            logger.setLevel(before)
    assert seen == [0, 1, 2, 3, 4]


def test_barrier_waits_for_what_a_handler_issues(lines):
    """What a handler prints through a program of its own is out when the barrier returns."""
    inner = fx.jit(lambda x: fx.print("nested {}", x))
    token = fx.add_handler(lambda record: inner(record.fields["x"]), effects="log")
    try:
        assert lines(fx.jit(lambda x: fx.log("outer", x=x)), 1) == ["nested 1"]
    finally:
        fx.remove_handler(token)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_handler_that_fails_however_stops_nothing(error, lines):
    """What a handler raises keeps no record from the others, nor from the output; nor does one that cannot be shown."""

    class Bad:
        def __repr__(self):
            raise error

        def handle(self, record):
            raise error

    def program(x):
        fx.print("{}", x)
        fx.log("event", x=x)
        fx.callback(lambda x: None, None, x)

    program = fx.jit(program)
    seen = []
    tokens = [fx.add_handler(Bad()), fx.add_handler(lambda record: seen.append(record.effect))]
    try:
        with pytest.raises(fx.EffectError) as info:
            lines(program, 1)
    finally:
        for token in tokens:
            fx.remove_handler(token)
    assert type(info.value.__cause__) is error
    assert seen == ["print", "log", "callback"]


def test_class_is_no_handler():
    """A class makes handlers and is none; the message says how."""
    with pytest.raises(TypeError, match=r"the class `ListHandler`.*Write `fx.add_handler\(ListHandler"):
        fx.add_handler(fx.ListHandler)


class _Waits:
    """A handler that waits in the middle of a record, and notes what happens to it."""

    def __init__(self):
        self.seen, self.inside, self.go_on = [], threading.Event(), threading.Event()

    def handle(self, record):
        self.seen.append("begins")
        self.inside.set()
        self.go_on.wait(60)
        self.seen.append("ends")

    def close(self):
        self.seen.append("closed")


def test_handler_is_closed_when_other_threads_have_given_it_their_records():
    """`remove_handler` waits for records of other threads' programs that the handler is just getting; no more come."""
    handler, called, go_on = _Waits(), threading.Event(), threading.Event()
    added = fx.add_handler(handler, "log")
    f = fx.jit(_step)
    f(jnp.int32(0))

    def of_another_thread():
        f(jnp.int32(1))
        called.set()
        go_on.wait(60)  # it lives, so that no other thread's barrier waits for its effects
        f(jnp.int32(2))
        fx.effects_barrier(timeout=60)

    def let_go_on():
        while added in runtime.observers.handlers:
            pass
        handler.go_on.set()

    handler.go_on.set()
    fx.effects_barrier(timeout=60)
    handler.seen.clear()
    handler.inside.clear()
    handler.go_on.clear()
    threads = [threading.Thread(target=run) for run in (of_another_thread, let_go_on)]
    for thread in threads:
        thread.start()
    called.wait(60)
    assert handler.inside.wait(60)
    fx.remove_handler(added)
    assert handler.seen == ["begins", "ends", "closed"]
    go_on.set()
    for thread in threads:
        thread.join()
    assert handler.seen == ["begins", "ends", "closed"]


def test_handler_that_removes_itself_is_closed_when_it_has_returned():
    """It is not closed under its own hands."""

    class Once(_Waits):
        def handle(self, record):
            self.seen.append("begins")
            fx.remove_handler(added)
            self.seen.append("ends")

    handler = Once()
    added = fx.add_handler(handler, "log")
    f = fx.jit(_step)
    f(jnp.int32(0))
    f(jnp.int32(0))
    fx.effects_barrier(timeout=60)
    assert handler.seen == ["begins", "ends", "closed"]


def test_handler_for_the_time_of_a_block():
    """It has all that the block issued, is closed, and is gone also if the block raises, or has removed it itself."""
    seen, closed = [], []

    class Keeps:
        def handle(self, record):
            seen.append(int(record.fields["x"]))

        def close(self):
            closed.append(True)

    program = fx.jit(_step)
    with fx.add_handler(Keeps()):
        program(1)
    program(2)
    with pytest.raises(ZeroDivisionError), fx.add_handler(Keeps()):
        program(3)
        1 / 0  # noqa: B018
    with fx.add_handler(keeps := Keeps()) as given:
        assert given is keeps
        fx.remove_handler(given)
    program(4)
    fx.effects_barrier(timeout=120)
    assert (seen, closed) == ([1, 3], [True] * 3)


def test_handler_is_removed_by_itself():
    """The one that was added last, if it was added several times."""
    seen = []
    handler = seen.append
    fx.add_handler(handler, effects="log")
    fx.add_handler(handler)
    fx.remove_handler(handler)
    fx.jit(lambda x: (fx.log("step", x=x), fx.callback(_take, None, x)))(1)
    fx.remove_handler(handler)
    assert [record.effect for record in seen] == ["log"]
    with pytest.raises(ValueError, match="was not added, or was removed already"):
        fx.remove_handler(handler)
