"""`fx.log`: events, fields and levels, in Python's logging."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx


class Point(NamedTuple):
    x: Any
    y: Any


JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}


# Python's logging


@pytest.mark.parametrize("jit", JITS)
def test_log_goes_to_pythons_logging_as_if_the_users_line_had(logged, jit):
    """A log record has the user's file, line and function as its own, the level, and the fields as attributes."""

    def program(x):
        fx.log("step", level=logging.WARNING, loss=x, phase="train", rate=0.25)

    (record,) = logged(JITS[jit](program), jnp.float32(0.5))
    assert (record.name, record.levelno, record.levelname) == ("effects", logging.WARNING, "WARNING")
    assert record.pathname == __file__ and record.filename == "test_log.py"
    assert record.lineno == program.__code__.co_firstlineno + 1
    assert record.funcName == program.__name__
    assert (record.event, record.phase, record.rate) == ("step", "train", 0.25)
    assert record.loss.dtype == np.float32 and record.loss == 0.5
    assert record.exc_info is None
    message = record.getMessage()
    assert message.startswith("step ") and set(message.split()[1:]) == {"loss=0.5", "phase=train", "rate=0.25"}
    assert isinstance(record.effects_record, fx.Record) and record.effects_record.event == "step"


def test_log_of_text_with_percent_signs(logged):
    """What looks like a format of `logging` is text."""
    (record,) = logged(fx.jit(lambda: fx.log("100 %s", share="%d")))
    assert record.getMessage() == "100 %s share=%d"


@pytest.mark.parametrize("jit", JITS)
def test_log_in_loops_and_branches_is_in_program_order(logged, jit):
    """Logs and branches inside a loop come as Python would have reached them."""

    def program(n):
        def body(i, _):
            fx.log("step", i=i)
            jax.lax.cond(i % 2 == 0, lambda: fx.log("even", i=i), lambda: fx.log("odd", i=i))

        jax.lax.fori_loop(0, n, body, None)

    records = logged(JITS[jit](program), 4)
    assert [record.getMessage() for record in records] == [
        "step i=0", "even i=0", "step i=1", "odd i=1", "step i=2", "even i=2", "step i=3", "odd i=3",
    ]  # fmt: skip


def test_log_among_prints_and_callbacks_is_in_program_order(logged):
    """All effects of a program share one order."""
    seen = []
    token = fx.add_handler(lambda record: seen.append(record.text))

    def program(x):
        fx.print("first {}", x)
        fx.log("second", x=x)
        fx.callback(_third, None, x)
        fx.log("fourth", x=x)

    with contextlib.redirect_stdout(io.StringIO()):
        records = logged(fx.jit(program), 1)
    fx.remove_handler(token)
    assert seen == ["first 1", "second x=1", "_third(1)", "fourth x=1"]
    assert [record.event for record in records] == ["second", "fourth"]


def _third(x):
    pass


def test_unordered_log(logged):
    """Unordered logs are all there, and take no place in the order."""

    def program(n):
        jax.lax.fori_loop(0, n, lambda i, _: fx.log("step", ordered=False, i=i), None)

    records = logged(fx.jit(program), 20)
    assert sorted(int(record.i) for record in records) == list(range(20))
    assert [str(effect) for effect in jax.make_jaxpr(program)(1).effects] == ["log (unordered)"]


def test_log_under_vmap_is_a_record_for_each_lane(logged):
    """Under `vmap` each lane logs its own values, in order at each point, and says which lane it is."""

    def program(x, y):
        fx.log("both", x=x, y=y, s="same")
        fx.log("end", x=x)

    records = logged(fx.jit(jax.vmap(jax.vmap(program, (0, None)), (0, 0))), jnp.arange(6).reshape(2, 3), jnp.arange(2))
    lanes = [(i, j) for i in range(2) for j in range(3)]
    assert [(r.event, int(r.x), r.effects_record.lane) for r in records] == [
        (event, 3 * i + j, (i, j)) for event in ("both", "end") for i, j in lanes
    ]
    assert [(int(r.y), r.s) for r in records[:6]] == [(i, "same") for i, _ in lanes]


@pytest.mark.parametrize("jit", JITS)
def test_log_under_grad_happens_once(logged, jit):
    """Under `grad` a log of the primal happens once, with the primal's value."""

    def loss(x):
        y = jnp.sin(x)
        fx.log("primal", y=y)
        return jax.checkpoint(lambda y: (fx.log("inner", y=y), y * y)[1])(y)

    records = logged(JITS[jit](jax.grad(loss)), jnp.float32(0.5))
    assert [record.event for record in records] == ["primal", "inner"]
    for record in records:
        np.testing.assert_allclose(record.y, np.sin(0.5), rtol=1e-6)


def test_log_of_pytrees_keeps_their_structure(logged):
    """A field is what was given, with NumPy arrays for its leaves."""
    tree = {"p": Point(jnp.arange(2), None), "l": [jnp.float32(1), (2, "s")]}
    (record,) = logged(fx.jit(lambda tree: fx.log("tree", tree={**tree, "static": 3}, none=None)), {"p": tree["p"]})
    assert isinstance(record.tree["p"], Point) and record.tree["p"].y is None and record.tree["static"] == 3
    assert type(record.tree["p"].x) is np.ndarray and record.tree["p"].x.tolist() == [0, 1]
    assert record.none is None
    (record,) = logged(fx.jit(lambda x: fx.log("tree", tree=[x, (2, "s")])), 1.0)
    assert record.tree == [1.0, (2, "s")]


def test_log_of_several_programs_is_in_the_order_of_the_calls(logged):
    """Programs of `fx.jit` and of `jax.jit`, and eager logs, come as they were called."""

    def program(name):
        return lambda x: jax.lax.fori_loop(0, 2, lambda i, _: fx.log(name, i=i + x), None)

    plain, ours = jax.jit(program("plain")), fx.jit(program("ours"))

    def call():
        for i in range(5):
            ours(10 * i)
            plain(10 * i)
            fx.log("eager", i=10 * i)

    expected = [("ours", 0), ("ours", 1), ("plain", 0), ("plain", 1), ("eager", 0)]
    assert [(r.event, int(r.i)) for r in logged(call)] == [(n, 10 * i + k) for i in range(5) for n, k in expected]


def test_log_inside_a_callback_comes_where_the_callback_does(logged):
    """What a function logs while it is called back, itself or in a program, stands in its place."""
    nested = fx.jit(lambda x: fx.log("nested program", x=x))

    def function(x):
        fx.log("nested", x=x)
        nested(x)
        return x

    @fx.jit
    def program(x):
        fx.log("before", x=x)
        fx.callback(function, None, x + 1)
        fx.log("between", x=x)
        y = fx.callback(function, jax.ShapeDtypeStruct((), "int32"), x + 2)
        fx.log("after", x=y)

    records = logged(program, 1)
    assert [(record.event, int(record.x)) for record in records] == [
        ("before", 1), ("nested", 2), ("nested program", 2), ("between", 1), ("nested", 3), ("nested program", 3),
        ("after", 3),
    ]  # fmt: skip


def test_log_of_several_threads_is_in_each_ones_order(logged):
    """Each thread's logs come in its own order, and say which thread it was."""
    program = fx.jit(lambda t: jax.lax.fori_loop(0, 50, lambda i, _: fx.log("step", t=t, i=i), None))

    def call():
        threads = [threading.Thread(target=program, args=(t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fx.effects_barrier(all_threads=True, timeout=120)

    records = logged(call)
    numbers = set()
    for t in range(4):
        own = [record for record in records if int(record.t) == t]
        assert [int(record.i) for record in own] == list(range(50))
        (number,) = {record.effects_record.thread for record in own}
        numbers.add(number)
    assert len(numbers) == 4


# Levels


def test_levels_above_leave_records_to_handlers(caplog, logged):
    """What only the root logger does not want still reaches handlers, which have no level."""
    handler = fx.ListHandler()
    logging.getLogger().setLevel(logging.ERROR)
    token = fx.add_handler(handler)
    assert logged(fx.jit(lambda: [fx.log("step"), fx.log("error", level=logging.ERROR)]))[0].event == "error"
    fx.remove_handler(token)
    assert [(record.event, record.level) for record in handler.records] == [("step", 20), ("error", 40)]


def test_a_level_of_the_users_own(logged):
    """Any whole number is a level."""
    (record,) = logged(fx.jit(lambda: fx.log("step", level=25)))
    assert (record.levelno, record.levelname) == (25, "Level 25")


def test_numbers_are_shown_in_the_digits_of_their_type(logged):
    (record,) = logged(fx.jit(lambda x: fx.log("step", x=x, y=[x, 0.1])), jnp.float32(0.1))
    assert record.getMessage().startswith("step x=0.1 y=[array(0.1, dtype=float32)")


@pytest.mark.parametrize("level", ["warning", "WARNING", np.int64(30)])
def test_level_by_name(logged, level):
    (record,) = logged(fx.jit(lambda: fx.log("step", level=level)))
    assert (record.levelno, record.effects_record.level) == (30, 30)


# Bad input


@pytest.mark.parametrize("event", [3, None, "", b"step", jnp.zeros(())])
def test_event_that_is_no_string(event):
    """An event that is not a string is refused while tracing, with the user's line."""
    with pytest.raises(TypeError, match=r"test_log.py:\d+ was given .* as its event\. .* Write, say, `fx.log\("):
        jax.make_jaxpr(lambda: fx.log(event))()


@pytest.mark.parametrize("level", ["loud", None, 20.0, True])
def test_level_that_is_no_number(level):
    """A level that is neither a whole number nor the name of one is refused while tracing."""
    with pytest.raises(TypeError, match=r"was given the level .*\. A level is a whole number.*logging.WARNING"):
        jax.make_jaxpr(lambda: fx.log("step", level=level))()


@pytest.mark.parametrize(
    "name", ["event", "message", "name", "args", "msg", "lineno", "token", "lane", "where", "taskName", "asctime"]
)
def test_reserved_field_names(name):
    """A field that would hide an attribute of the log record or of the `Record` is refused, by name."""
    with pytest.raises(ValueError, match=rf"was given fields named `{name}`\. .* Choose other names, say `{name}_`"):
        jax.make_jaxpr(lambda: fx.log("step", fine=1, **{name: 1}))()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1, 2}, "argument 'field'"),
        (object(), "argument 'field'"),
        ([1, {"k": {2}}], r"argument 'field', at \[1\]\['k'\]"),
        (np.array(["a"]), "argument 'field'"),
        (bytearray(b"a"), "argument 'field'"),
        (print, "argument 'field'"),
    ],
)
def test_field_that_is_no_value(value, path):
    """A field that is neither an array, text, number nor None, at any depth, is refused while tracing, by its path."""
    with pytest.raises(TypeError, match=rf"`fx.log` at .*test_log.py:\d+ was given .* as {path}\. .*Pass "):
        jax.make_jaxpr(lambda: fx.log("step", field=value))()


def test_nothing_logged_is_lost_when_a_later_trace_fails(logged):
    """An error while tracing leaves what was logged before, and the next call works."""
    good, bad = fx.jit(lambda x: fx.log("good", x=x)), fx.jit(lambda x: fx.log("bad", x={x}))

    def call():
        good(1)
        with pytest.raises(TypeError):
            bad(2)
        good(3)

    assert [int(record.x) for record in logged(call)] == [1, 3]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, fx.jit], ids=["eager", "jax.jit", "fx.jit"])
def test_log_in_a_loop_that_is_differentiated(jit):
    """Columns are right there too: what keeps the effects in such a loop leaves no trace in their records."""

    def f(x):
        def turn(x, i):
            fx.log("turn", i=i, x=x)
            return 2 * x, None

        return jax.lax.scan(turn, x, jnp.arange(3))[0]

    handler = fx.ListHandler()
    token = fx.add_handler(handler, effects="log")
    try:
        jit(jax.grad(f))(1.0)
        fx.effects_barrier()
    finally:
        fx.remove_handler(token)
    columns = handler.columns("turn")
    assert columns["i"].tolist() == [0, 1, 2] and columns["x"].tolist() == [1, 2, 4]
    assert [record.lane for record in handler.records] == [()] * 3
