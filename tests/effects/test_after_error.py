"""What becomes of a program's effects after one of them has failed: they stop, as after an exception in Python, and are
counted; or they go on."""

from __future__ import annotations

import contextlib
import io
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.raising import Boom, good_program_runs

F32 = jax.ShapeDtypeStruct((), jnp.float32)


def _fails_at(turn):
    seen = []

    def note(i):
        seen.append(int(i))
        if i == turn:
            raise Boom(f"turn {turn}")

    note.seen = seen
    return note


def _loop(fn, turns=8):
    """A print and a callback in each turn."""

    @fx.jit
    def f(n):
        def body(i, _):
            fx.print("turn {}", i)
            fx.callback(fn, None, i)

        jax.lax.fori_loop(0, n, body, None)
        return n

    return lambda: f(turns)


def _error():
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    return info.value


def test_failure_stops_the_effects_of_its_program(capsys):
    """A callback that raises in turn 3 of 8 is followed by nothing, and the error says by what it would have been."""
    fn = _fails_at(3)
    f = _loop(fn)
    assert f() == 8  # the program itself goes on
    error = _error()
    assert fn.seen == [0, 1, 2, 3]
    assert capsys.readouterr().out.splitlines() == [f"turn {n}" for n in range(4)]
    assert error.not_carried_out == {"print": 4, "callback": 4}
    line = _loop.__code__.co_firstlineno + 6
    left_out = f"After it, 4 `print` and 4 `callback` effects, from {__file__}:{line} on, were not carried out."
    assert str(error).endswith(f"The effects of its program ended there. {left_out}")
    good_program_runs()


def test_failure_stops_no_other_program(capsys):
    """What the same thread calls before and after is carried out."""
    bad, good = _loop(_fails_at(1), 2), _loop(_fails_at(9), 2)
    good()
    with fx.config.override(errors="barrier"):
        bad()
        good()
    assert _error().not_carried_out == {}
    assert capsys.readouterr().out.splitlines() == ["turn 0", "turn 1"] * 3


def test_effects_go_on_if_the_setting_says_so(capsys):
    """With `after_error="go_on"` the effects after a failure are carried out."""
    fn = _fails_at(3)
    with fx.config.override(after_error="go_on"):
        _loop(fn)()
        error = _error()
    assert fn.seen == list(range(8))
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert error.not_carried_out == {} and not hasattr(error, "__notes__")
    assert str(error).endswith("The effects after it went on.")


def test_setting_is_one_of_two():
    """Anything else is refused."""
    with pytest.raises(ValueError, match="'stop' or 'go_on'"):
        fx.config.after_error = "retry"


def test_program_ends_where_it_waits_for_a_callback_after_a_failure():
    """The function is not called. What failed before is what the call raises, and the barrier says nothing more."""
    asked = []

    @fx.jit
    def f(x):
        fx.callback(_fails_at(0), None, jnp.int32(0))
        fx.print("between")
        y = fx.callback(lambda x: asked.append(x) or x, F32, x)
        fx.print("after {}", y)
        return y

    with pytest.raises(fx.EffectError, match="turn 0") as info:
        f(jnp.float32(1))
    assert asked == []
    assert info.value.not_carried_out == {"print": 1, "callback": 1}
    assert "After it, 1 `print` and 1 `callback` effects, from" in str(info.value)
    fx.effects_barrier(timeout=60)
    good_program_runs()


def test_branch_that_no_lane_takes_ends_no_program():
    """A program goes on behind a failure where it comes to a callback with results that no lane asks for."""
    note = _fails_at(1)

    @fx.jit
    def f(xs):
        def step(x, i):
            def fails(x):
                fx.callback(note, None, i)
                return x

            return jax.lax.cond(x < 5, fails, lambda x: x + fx.callback(lambda: 1.0, F32), x), None

        return jax.vmap(lambda x: jax.lax.scan(step, x, jnp.arange(3))[0])(xs)

    assert f(jnp.arange(2.0)).tolist() == [0, 1]
    assert _error().not_carried_out == {"callback": 3}


def test_lanes_after_a_failure_are_not_carried_out():
    """Lanes come one after the other, and so does what fails in one of them."""
    fn = _fails_at(1)
    fx.jit(jax.vmap(lambda i: fx.callback(fn, None, i)))(jnp.arange(4))
    assert _error().not_carried_out == {"callback": 2}
    assert fn.seen == [0, 1]

    results = jax.ShapeDtypeStruct((), jnp.int32)
    with pytest.raises(fx.EffectError) as info:
        fx.jit(jax.vmap(lambda i: fx.callback(lambda i: fn(i) or i, results, i)))(jnp.arange(4))
    assert info.value.not_carried_out == {"callback": 2}
    assert fn.seen == [0, 1, 0, 1]


class _Odd:
    """Shows what is even, and fails for what is odd."""

    def __init__(self, value):
        self.value = value

    def __format__(self, spec):
        if int(self.value) % 2:
            raise Boom("odd")
        return f"even {self.value}"


jax.tree_util.register_pytree_node(_Odd, lambda odd: ((odd.value,), None), lambda _, values: _Odd(*values))


@pytest.mark.parametrize(("after_error", "shown"), [("stop", ["even 0"]), ("go_on", ["even 0", "even 2"])])
def test_lanes_of_a_print_that_cannot_be_shown(after_error, shown, capsys):
    """The lanes before one that cannot be formatted are shown; those after it as the setting says."""
    with fx.config.override(after_error=after_error):
        fx.jit(jax.vmap(lambda i: fx.print("{}", _Odd(i))))(jnp.arange(3))
        error = _error()
    assert capsys.readouterr().out.splitlines() == shown
    assert error.not_carried_out == ({"print": 1} if after_error == "stop" else {})


@pytest.mark.parametrize("observed", [False, True])
def test_line_that_cannot_be_encoded_takes_no_other_with_it(observed):
    """Lines that native code formats are written many at a time, and so are those that a handler gets too. One of them
    fails by itself, with its program."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)

    @fx.jit
    def bad(x):
        fx.print("before {}", x)
        fx.print("größer als {}", x)
        fx.print("after\n{}", x)
        fx.log("event")

    good = fx.jit(lambda x: fx.print("good {}", x))
    handler = fx.add_handler(lambda record: None) if observed else contextlib.nullcontext()
    with handler, contextlib.redirect_stdout(out), fx.config.override(errors="barrier"):
        good(1)
        bad(2)
        good(3)
        error = _error()
    assert raw.getvalue().decode().splitlines() == ["good 1", "before 2", "good 3"]
    assert isinstance(error.__cause__, UnicodeEncodeError) and "größer" not in raw.getvalue().decode("latin1")
    assert f":{bad.__wrapped__.__code__.co_firstlineno + 3}" in str(error)
    assert error.not_carried_out == {"print": 1, "log": 1}


def _python_output():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    return Full()


def _full_device():
    return io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)


@pytest.mark.parametrize("output", [_python_output, _full_device], ids=["by record", "in one write"])
def test_text_is_not_written_twice_where_a_part_may_be_out(output):
    """An output that fails as a full disk does may have taken a part: what is lost is counted."""
    ended = threading.Event()

    @fx.jit
    def f(n):
        fx.callback(lambda: ended.wait(60), None)  # all lines are there when the drain comes to them
        return jax.lax.fori_loop(0, n, lambda i, x: (fx.print("{}", i), x)[1], n)

    with output() as out, contextlib.redirect_stdout(out):
        f(100).block_until_ready()
        ended.set()
        error = _error()
    assert isinstance(error.__cause__, OSError)
    assert error.not_carried_out == {"print": 99}


def test_failures_of_handlers_stop_nothing(capsys):
    """A handler looks on: its error is reported, and what it looked at goes on."""

    def handler(record):
        raise Boom("handler")

    added = fx.add_handler(handler)
    _loop(_fails_at(9), 3)()
    assert "handler" in str(_error())
    fx.remove_handler(added)
    assert capsys.readouterr().out.splitlines() == ["turn 0", "turn 1", "turn 2"]


def test_failure_of_a_nested_program_stops_the_program_whose_callback_called_it(capsys):
    """In Python, an exception that the callback does not catch comes through it."""
    inner = _loop(_fails_at(1), 3)

    @fx.jit
    def outer(x):
        fx.callback(lambda x: inner() and None, None, x)
        fx.print("after {}", x)

    outer(1)
    error = _error()
    assert error.not_carried_out == {"print": 2, "callback": 1}  # of both
    _, of_inner, of_outer = str(error).split(" After it, ")
    assert of_inner.startswith("1 `print` and 1 `callback` effects, from ")
    assert of_outer.startswith("1 `print` effect, at ") and of_outer.endswith(", was not carried out.")
    assert capsys.readouterr().out.splitlines() == ["turn 0", "turn 1"]


def test_effects_of_programs_that_jax_dispatched_go_on():
    """Of these it is not known which effects are of one program."""
    fn = _fails_at(0)
    f = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.callback(fn, None, i), None))
    f(3)
    assert "went on" in str(_error())
    assert fn.seen == [0, 1, 2]


@pytest.mark.parametrize("error", [Boom("handler"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("after_error", ["stop", "go_on"])
def test_logging_handler_that_raises_loses_no_other_record(error, after_error):
    """Whatever one event raises, the others of its batch are carried out, or counted."""
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record.i.item())
            if record.i == 2:
                raise error

    logger, handler = logging.getLogger("effects"), Handler()
    logger.addHandler(handler)
    try:
        with fx.config.override(after_error=after_error):
            fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.log("turn", i=i, level=logging.ERROR), None))(10)
            caught = _error()
    finally:
        logger.removeHandler(handler)
    assert caught.__cause__ is error
    assert seen == (list(range(10)) if after_error == "go_on" else [0, 1, 2])
    assert caught.not_carried_out == ({} if after_error == "go_on" else {"log": 7})


@pytest.mark.parametrize("error", [Boom("output"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("after_error", ["stop", "go_on"])
@pytest.mark.parametrize("is_observed", [False, True])  # if so, Python formats them
def test_output_that_raises_loses_no_other_line(error, after_error, is_observed):
    """Whatever writing one line raises, the others of its batch are written, or counted."""

    class Output(io.StringIO):
        def write(self, text):
            if "2" in text:
                raise error
            return super().write(text)

    out = Output()
    added = fx.add_handler(lambda record: None) if is_observed else None
    with contextlib.redirect_stdout(out), fx.config.override(after_error=after_error):
        fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print("{}", i), None))(10)
        caught = _error()
    if added is not None:
        fx.remove_handler(added)
    assert caught.__cause__ is error
    assert [*map(int, out.getvalue().split())] == ([0, 1, 3, 4, 5, 6, 7, 8, 9] if after_error == "go_on" else [0, 1])
    assert caught.not_carried_out == ({} if after_error == "go_on" else {"print": 7})
    good_program_runs()


def test_results_of_what_is_left_are_right():
    """A program whose effects have stopped computes on."""
    fn = _fails_at(0)

    @fx.jit
    def f(x):
        fx.callback(fn, None, jnp.int32(0))
        return x * 2

    assert np.asarray(f(jnp.arange(3))).tolist() == [0, 2, 4]
    _error()
