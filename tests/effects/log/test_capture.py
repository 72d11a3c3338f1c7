"""What `fx.capture` collects."""

from __future__ import annotations

import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx

JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}


def _third(x):
    pass


def _mixed(x):
    fx.print("x = {} {k}", x, k="key")
    fx.log("step", level=logging.WARNING, loss=x, s="static")
    fx.callback(_third, None, x)


@pytest.mark.parametrize("jit", JITS)
def test_capture_has_records_of_all_effects_in_order(lines, jit):
    """A capture has every print, log and callback in order, and each record has all of its parts."""
    records = []

    def call():
        with fx.capture() as captured:
            jax.block_until_ready(JITS[jit](_mixed)(jnp.float32(0.5)))
        records.extend(captured)

    assert lines(call) == ["x = 0.5 key"]
    printed, logged, called = records
    assert [record.effect for record in records] == ["print", "log", "callback"]
    assert [record.text for record in records] == ["x = 0.5 key", "step loss=0.5 s=static", "_third(0.5)"]
    assert [record.fmt for record in records] == ["x = {} {k}", None, None]
    assert [record.event for record in records] == [None, "step", None]
    assert [record.level for record in records] == [None, logging.WARNING, None]
    assert [record.args for record in records] == [(0.5,), (), (0.5,)]
    assert [record.fields for record in records] == [{"k": "key"}, {"loss": 0.5, "s": "static"}, {}]
    for number, record in enumerate(records):
        assert (record.where.file, record.where.function) == (__file__, "_mixed")
        assert record.line == record.where.line == _mixed.__code__.co_firstlineno + 1 + number
        assert record.device == 0 and record.lane == () and record.process == 0
        assert len(record.token) == 4 and record.thread == record.token[0] >> 12
    assert printed.token < logged.token < called.token
    value = logged.fields["loss"]
    assert type(value) is np.ndarray and value.dtype == np.float32 and not value.flags.writeable


def test_captures_nest(lines):
    """Each capture has all records of its block, those of blocks inside it as well, and none of before and after. One
    that suppresses keeps its own block from the output."""
    program = fx.jit(lambda x: fx.print("{}", x))

    def call():
        program(0)
        with fx.capture() as outer:
            program(1)
            with fx.capture(suppress=True) as inner:
                program(2)
            assert [record.text for record in inner] == ["2"]
            program(3)
        program(4)
        fx.effects_barrier(timeout=120)
        assert [record.text for record in inner] == ["2"]
        assert [record.text for record in outer] == ["1", "2", "3"]

    assert lines(call) == ["0", "1", "3", "4"]


def test_capture_is_of_its_thread():
    """A capture has the records of the thread that opened it, and of no other that runs meanwhile."""
    program = fx.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, _: fx.log("step", x=x), None))
    meet = threading.Barrier(3)
    captured = {}

    def run(number):
        with fx.capture() as records:
            meet.wait(60)
            for _ in range(5):
                program(number)
            meet.wait(60)
        captured[number] = list(records)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    with fx.capture() as records:
        for thread in threads:
            thread.start()
        meet.wait(60)
        program(-1)
        meet.wait(60)
        for thread in threads:
            thread.join()
    captured[-1] = list(records)
    for number, records in captured.items():
        assert [int(record.fields["x"]) for record in records] == [number] * (20 if number < 0 else 100)
    assert [len({record.thread for record in records}) for records in captured.values()] == [1] * 3
    assert len({records[0].thread for records in captured.values()}) == 3


@pytest.mark.parametrize("jit", JITS)
def test_capture_suppresses_output_and_logging_as_asked(lines, caplog, jit):
    """A block with `suppress` shows no prints and no logs; callbacks are called, handlers get theirs, and after the
    block all is as before."""
    called, handled = [], []

    def program(x):
        fx.print("print {}", x)
        fx.log("log", x=x)
        fx.callback(lambda x: called.append(int(x)), None, x)

    token = fx.add_handler(lambda record: handled.append(record.effect))
    program = JITS[jit](program)

    def call():
        with fx.capture(suppress=True) as records:
            jax.block_until_ready(program(1))
        assert len(records) == 3
        jax.block_until_ready(program(2))

    assert lines(call) == ["print 2"]
    fx.remove_handler(token)
    assert [int(record.x) for record in caplog.records if record.name == "effects"] == [2]
    assert called == [1, 2] and handled == ["print", "log", "callback"] * 2


def test_capture_of_a_block_that_raises(lines):
    """An error in the block is the one that is raised; the list has what came before, and output goes on as before."""
    program = fx.jit(lambda x: fx.print("{}", x))

    def call():
        with pytest.raises(ZeroDivisionError), fx.capture(suppress=True) as records:
            program(1)
            _ = 1 / 0
        assert [record.text for record in records] == ["1"]
        program(2)

    assert lines(call) == ["2"]


def test_capture_raises_what_effects_raised():
    """The barrier at the end of a block raises effects' errors; the records are there, and the next block is clean."""

    def fail(x):
        raise KeyError("wrong")

    program = fx.jit(lambda x: (fx.log("before", x=x), fx.callback(fail, None, x), fx.log("after", x=x)) and x)
    with pytest.raises(fx.EffectError, match="fail.*KeyError") as caught, fx.capture() as records:
        program(1)
    assert isinstance(caught.value.__cause__, KeyError)
    assert [record.effect for record in records] == ["log", "callback"]
    with fx.capture() as records:
        fx.jit(lambda x: fx.log("clean", x=x))(1)
    assert [record.event for record in records] == ["clean"]


def _ended_ahead_of(effect):
    """Calls a program that has the effect behind a function, which returns when the program is over. Returns when."""
    computed, ended = threading.Event(), []

    def wait():
        assert computed.wait(60)
        ended.append(time.time())

    @fx.jit
    def program(x):
        fx.callback(wait)
        effect(x)
        return x + 1

    program(1).block_until_ready()
    computed.set()
    fx.effects_barrier(timeout=60)
    return ended[0]


def test_time_of_a_record_is_that_of_its_publication():
    """A record that waits for a function ahead of it has the time at which its device had the effect."""
    began = time.time()
    with fx.capture(suppress=True) as records:
        ended = _ended_ahead_of(lambda x: fx.print("{}", x))
    assert [record.effect for record in records] == ["callback", "print"]
    assert began <= records[0].time <= records[1].time <= ended


def test_callback_gets_the_time_of_its_publication():
    """A function that takes its record has the time of its own effect, also where nothing else asks for records."""
    times = []
    take = lambda record: times.append(record.time)  # noqa: E731
    ended = _ended_ahead_of(lambda x: fx.callback(take, pass_record=True))
    assert times[0] <= ended


def test_capture_that_is_left_twice_stays_as_it_is(lines):
    """To leave it once more changes nothing, and what comes later is shown and not captured."""
    capture = fx.capture(suppress=True)
    with capture as records:
        fx.print("inside")
    capture.__exit__(None, None, None)
    assert lines(lambda: fx.print("behind")) == ["behind"]
    assert [record.text for record in records] == ["inside"]
