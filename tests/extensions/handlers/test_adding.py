"""Handlers: when they get records, and what they may do."""

from __future__ import annotations

import contextlib
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
    """Each adding counts, and each is removed by what it returned, or the one that was added last by the handler."""
    seen = []
    handler = seen.append
    first, _ = fx.add_handler(handler, "log"), fx.add_handler(handler)
    program = fx.jit(lambda x: (_step(x), fx.callback(_take, None, x)))
    program(1)
    fx.remove_handler(first)
    program(2)
    fx.add_handler(handler, "log")
    fx.remove_handler(handler)
    program(3)
    fx.remove_handler(handler)
    program(4)
    fx.effects_barrier(timeout=120)
    assert [record.effect for record in seen] == ["log", "log", "callback", *["log", "callback"] * 2]
    for wrong in (first, handler, print, None):
        with pytest.raises(ValueError, match=r"was not added, or was removed already\. A handler is removed once"):
            fx.remove_handler(wrong)


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


@pytest.mark.parametrize(
    ("handler", "effects", "error", "said"),
    [
        *((each, None, TypeError, r"no method `handle` and cannot be called\. .* `handle\(record\)`")
          for each in (3, None, "file", object())),
        (fx.ListHandler, None, TypeError, r"the class `ListHandler`.*Write `fx.add_handler\(ListHandler"),
        (print, "nothing", ValueError, "'nothing' is not a registered effect.*log"),
    ],
)  # fmt: skip
def test_what_cannot_be_added_is_refused(handler, effects, error, said):
    """What can neither be called nor has a method `handle`, a class of handlers, and an effect that does not exist."""
    with pytest.raises(error, match=said):
        fx.add_handler(handler, effects)


# What a handler may do

_F32 = jax.ShapeDtypeStruct((), jnp.float32)
_logs = fx.jit(lambda x: fx.log("nested", x=x))
_calls = fx.jit(lambda x: fx.callback(lambda x: None, None, x))
_waits = fx.jit(lambda x: fx.callback(lambda x: x + 1, _F32, x))


def _captures(x):
    with fx.capture(suppress=True) as records:
        _logs(x)
    assert [record.event for record in records] == ["nested"]


@contextlib.contextmanager
def _added(handle, via):
    """A function gets what is logged, as a handler of ours or of Python's logging."""
    if via == "handler":
        with fx.add_handler(handle, effects="log"):
            yield
        return
    logger, handler = logging.getLogger("effects"), logging.Handler()
    before, handler.emit = logger.level, lambda record: handle(record.effects_record)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.mark.parametrize("via", ["handler", "logging"])
@pytest.mark.parametrize("use", [_logs, _waits, _calls, _captures], ids=["logs", "waits", "calls", "captures"])
def test_handler_may_use_effects(use, via, lines):
    """A handler, ours or one of Python's logging, may call programs with effects, and wait for them. The barrier waits
    for what these print; what they log comes to the handler, too, without end or hang."""
    seen = []
    prints = fx.jit(lambda x: fx.print("{}", x))

    def handle(record):
        x = float(record.fields["x"])
        seen.append(x)
        if x < 10:
            use(jnp.float32(x + 10))
            prints(x)

    program = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: _step(i.astype(jnp.float32)), None))
    with _added(handle, via):
        shown = lines(program, 5)
    assert [x for x in seen if x < 10] == [0, 1, 2, 3, 4]
    gets_nested = use is _logs or (use is _captures and via == "handler")
    assert [x for x in seen if x >= 10] == [10, 11, 12, 13, 14] * gets_nested
    assert shown == [str(x) for x in seen if x < 10]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_handler_that_raises_is_reported_once(error, many, lines):
    """Its first error, whatever it is, is raised at the barrier with its cause. It, the others and the output get all
    records, also if it cannot be shown itself."""
    seen, others = [], []

    class One:
        def __repr__(self):
            raise error

        def handle(self, record):
            seen.append(record.effect)
            raise error("wrong")

    class Many(One):
        def handle_many(self, records):
            seen.extend(record.effect for record in records)
            raise error("wrong")

    def turn(i, _):
        fx.print("{}", i)
        fx.log("event", x=i)
        fx.callback(_take, None, i)

    program, handler = fx.jit(lambda n: jax.lax.fori_loop(0, n, turn, None)), Many() if many else One()
    said = f"handler .*{type(handler).__name__}.* raised {error.__name__}.*reported once"
    with fx.add_handler(handler), fx.add_handler(lambda record: others.append(record.effect)):
        with pytest.raises(fx.EffectError, match=said) as caught:
            lines(program, 3)
        assert str(caught.value.__cause__) == "wrong" and type(caught.value.__cause__) is error
        assert lines(program, 2) == ["0", "1"]
    assert seen == others == ["print", "log", "callback"] * 5


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
    handler, go_on, f = _Waits(), threading.Event(), fx.jit(_step)
    f(jnp.int32(0))
    fx.effects_barrier(timeout=60)
    added = fx.add_handler(handler, "log")

    def of_another_thread():
        f(jnp.int32(1))
        go_on.wait(60)  # it lives, so that no other thread's barrier waits for its effects
        f(jnp.int32(2))
        fx.effects_barrier(timeout=60)

    def let_go_on():
        while added in runtime.observers.handlers:
            pass
        handler.go_on.set()

    threads = [threading.Thread(target=run) for run in (of_another_thread, let_go_on)]
    for thread in threads:
        thread.start()
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
