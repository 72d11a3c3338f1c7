"""Failures that are raised together: one error for each line of the source, and one for all."""

from __future__ import annotations

import copy
import pickle
import traceback

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.internals import runtime


def _raises(x):
    raise ValueError(f"of {x}")


@fx.jit
def at_one_line(n):
    jax.lax.fori_loop(0, n, lambda i, _: fx.check(i < 2, "i = {}", i), None)


@fx.jit
def at_two_lines(n):
    def step(i, _):
        fx.check(i < 2, "i = {}", i)
        fx.check(i < 3, "and i = {}", i)

    jax.lax.fori_loop(0, n, step, None)


@fx.jit
def of_two_kinds(n):
    at_one_line(n)
    fx.callback(_raises, None, n)


def raised(f, *args):
    """What a barrier raises."""
    f(*args)
    with pytest.raises(fx.EffectError) as caught:
        fx.effects_barrier(timeout=60)
    fx.effects_barrier(timeout=60)
    return caught.value


def messages(errors):
    return [error.message for error in errors]


@pytest.mark.parametrize("f", [at_one_line, at_two_lines])
@pytest.mark.parametrize("kind", [fx.CheckError, fx.EffectError])
@pytest.mark.parametrize("where", ["barrier", "next call", "capture"])
def test_is_caught_by_its_class_wherever_it_is_raised(f, kind, where):
    """However many checks have failed, `except fx.CheckError` catches them."""
    caught = []
    try:
        if where == "capture":
            with fx.capture():
                f(4)
        else:
            f(4)
            runtime.waiting.for_thread()
            fx.effects_barrier() if where == "barrier" else f(4)
    except kind as error:
        caught.append(error)
    assert messages(caught) == ["i = 2"]
    fx.effects_barrier()


@pytest.mark.parametrize("f", [at_one_line, at_two_lines])
def test_is_caught_by_its_class_with_a_star(f):
    f(4)
    caught = []
    try:
        fx.effects_barrier()
    except* fx.CheckError as group:
        caught += [failure for error in group.exceptions for failure in error.failures]
    assert sorted(messages(caught)) == sorted(messages(raised(f, 4).failures))


def test_failures_of_one_line_are_one_error():
    """It is the first one, says how many came after it, and has all of them."""
    error = raised(at_one_line, 40)
    assert type(error) is fx.CheckError and error.message == "i = 2"
    assert str(error).startswith("i = 2 (") and str(error).endswith("And 37 more at this line, the last: i = 39.")
    assert messages(error.failures) == [f"i = {i}" for i in range(2, 40)]
    assert [str(failure).count("more at this line") for failure in error.failures] == [1] + 37 * [0]
    assert len("".join(traceback.format_exception(error)).splitlines()) < 12


def test_failures_of_several_lines_are_a_group_of_the_first_of_each():
    """It has the attributes of the first, and all failures in the order of the program."""
    error = raised(at_two_lines, 5)
    first, second = error.exceptions
    line = at_two_lines.__wrapped__.__code__.co_firstlineno + 3
    assert type(error) is fx.CheckErrors and isinstance(error, ExceptionGroup)
    assert (error.message, error.where, error.function, error.lane) == (
        "i = 2",
        f"{__file__}:{line}",
        "at_two_lines",
        (),
    )
    assert str(error) == (
        f"i = 2. This is the first of 5 failures: 3 at {__file__}:{line}, 2 at {__file__}:{line + 1}."
    )
    assert messages(error.failures) == ["i = 2", "i = 3", "and i = 3", "i = 4", "and i = 4"]
    assert (messages(first.failures), messages(second.failures)) == (
        ["i = 2", "i = 3", "i = 4"],
        ["and i = 3", "and i = 4"],
    )
    for each in (first, second):  # the lines of calls, which tests and notebooks show
        each.__traceback__ = None
    assert len("".join(traceback.format_exception(error)).splitlines()) <= 12


def test_failures_of_different_classes_have_their_nearest_common_class():
    error = raised(of_two_kinds, 5)
    assert type(error) is fx.EffectErrors and not isinstance(error, fx.CheckError)
    assert [type(each) for each in error.exceptions] == [fx.CheckError, fx.EffectError]
    assert (error.where, error.effect) == (error.exceptions[0].where, "check")
    of_checks, others = error.split(fx.CheckError)
    assert (type(of_checks), messages(of_checks.failures)) == (fx.CheckErrors, ["i = 2", "i = 3", "i = 4"])
    assert [str(each.__cause__) for each in others.exceptions] == ["of 5"]


def test_group_is_split_copied_and_pickled():
    """As any exception group. Attributes come along, and the failures of each line stay together."""
    error = raised(at_two_lines, 5)
    error.add_note("a note")
    of_second = error.subgroup(lambda each: each.message.startswith("and"))
    assert (type(of_second), of_second.message, of_second.__notes__) == (fx.CheckErrors, "and i = 3", ["a note"])
    assert messages(of_second.failures) == ["and i = 3", "and i = 4"]
    assert type(error.derive([ValueError("another")])) is ExceptionGroup
    for same in copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error)):
        assert (type(same), str(same), same.where) == (fx.CheckErrors, str(error), error.where)
        assert messages(same.failures) == messages(error.failures) and same.__notes__ == ["a note"]
    for failure in error.exceptions:
        same = pickle.loads(pickle.dumps(failure))
        assert (str(same), same.where, messages(same.failures)) == (
            str(failure),
            failure.where,
            messages(failure.failures),
        )


def test_first_failure_of_each_line_is_kept_however_many_there_are():
    """What fails once is not lost behind what fails in every iteration."""

    @fx.jit
    def f(n):
        def step(i, _):
            fx.check(i < 0, "i = {}", i)
            fx.check(i != 500, "once")

        jax.lax.fori_loop(0, n, step, None)

    error = raised(f, 1000)
    assert messages(error.exceptions) == ["i = 0", "once"]
    assert str(error.exceptions[0]).endswith("And 999 more at this line, the last: i = 999.")
    assert "1000 at " in str(error) and "1001 failures" in str(error)


@pytest.mark.parametrize("kind", [fx.BarrierTimeout, fx.CheckErrors, fx.EffectError, fx.FormatError])
def test_names_are_public(kind):
    assert f"{kind.__module__}.{kind.__qualname__}" == f"effects.{kind.__name__}"
    assert getattr(fx, kind.__name__) is kind


def test_jitted_method_is_called_by_its_name():
    class Model:
        @fx.jit
        def step(self, x):
            return x

    with pytest.raises(TypeError, match=r"<function test_jitted_.*Model.step at ") as caught:
        Model().step(1)
    assert "Traceable" not in str(caught.value)


def test_failure_has_no_other_error_around_it():
    """Neither JAX's, which stands for it, nor frames of ours."""
    f = fx.jit(lambda x: fx.error_if(x, x < 0, "x = {}", x))
    g = fx.jit(lambda x: fx.callback(lambda x: None, x, x))
    for fails in f, g:
        with pytest.raises(fx.EffectError) as caught:
            fails(jnp.float32(-1))
        assert caught.value.__cause__ is None and caught.value.__suppress_context__
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [frame.filename for frame in frames] == [__file__]
