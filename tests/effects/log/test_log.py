"""`fx.log`: events, fields and levels, in Python's logging."""

from __future__ import annotations

import logging
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


def test_log_of_pytrees_keeps_their_structure(logged):
    """A field is what was given, with NumPy arrays for its leaves."""
    tree = {"p": Point(jnp.arange(2), None), "l": [jnp.float32(1), (2, "s")]}
    (record,) = logged(fx.jit(lambda tree: fx.log("tree", tree={**tree, "static": 3}, none=None)), {"p": tree["p"]})
    assert isinstance(record.tree["p"], Point) and record.tree["p"].y is None and record.tree["static"] == 3
    assert type(record.tree["p"].x) is np.ndarray and record.tree["p"].x.tolist() == [0, 1]
    assert record.none is None
    (record,) = logged(fx.jit(lambda x: fx.log("tree", tree=[x, (2, "s")])), 1.0)
    assert record.tree == [1.0, (2, "s")]


def test_unordered_log_says_so():
    """It is of no order, and its effect in a jaxpr has a name of its own."""
    effects = jax.make_jaxpr(lambda: fx.log("step", ordered=False))().effects
    assert [str(effect) for effect in effects] == ["log (unordered)"]


# Levels


def test_levels_above_leave_records_to_handlers(caplog, logged):
    """What only the root logger does not want still reaches handlers, which have no level."""
    handler = fx.ListHandler()
    logging.getLogger().setLevel(logging.ERROR)
    token = fx.add_handler(handler)
    assert logged(fx.jit(lambda: [fx.log("step"), fx.log("error", level=logging.ERROR)]))[0].event == "error"
    fx.remove_handler(token)
    assert [(record.event, record.level) for record in handler.records] == [("step", 20), ("error", 40)]


@pytest.mark.parametrize("level", [25, "warning", "WARNING", np.int64(30)])
def test_levels_are_numbers_or_names(logged, level):
    """Any whole number is a level."""
    (record,) = logged(fx.jit(lambda: fx.log("step", level=level)))
    expected = (25, "Level 25") if level == 25 else (30, "WARNING")
    assert (record.levelno, record.levelname) == expected and record.effects_record.level == expected[0]


def test_numbers_are_shown_in_the_digits_of_their_type(logged):
    (record,) = logged(fx.jit(lambda x: fx.log("step", x=x, y=[x, 0.1])), jnp.float32(0.1))
    assert record.getMessage().startswith("step x=0.1 y=[array(0.1, dtype=float32)")


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


RESERVED = [
    "event", "message", "name", "args", "msg", "lineno", "token", "lane", "where", "taskName", "asctime", "time",
    "device",
]  # fmt: skip


@pytest.mark.parametrize("name", RESERVED)
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
