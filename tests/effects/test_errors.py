"""Callbacks that raise: what the error says, who gets it, and how the state is clean afterwards."""

import threading
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.raising import Boom, good_program_runs
from tests.internals import runtime

F32 = jax.ShapeDtypeStruct((), jnp.float32)
GOOD = ["good 0.0", "good 1.0"]


def _raise_at(n):
    """A callback that raises when it is called for the n-th time."""
    calls = []

    def raises(*args):
        calls.append(1)
        if len(calls) == n + 1:
            raise Boom(f"at {n}")
        return np.float32(len(calls))

    raises.calls = calls
    return raises


def _check(error, line_of):
    """An `EffectError` with the original as its cause, its traceback, the user's line and the function's name."""
    assert type(error) is fx.EffectError
    cause = error.__cause__
    assert type(cause) is Boom
    assert "raises" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert f"{__file__}:{line_of}" in str(error) and "raises" in str(error)


def _line_of_callback():
    return _callback.__code__.co_firstlineno + 1


def _callback(fn, shape, *args):
    return fx.callback(fn, shape, *args)


def _plain_loop(fn, shape):
    def body(i, c):
        _callback(fn, shape, i)
        return c + 1

    return fx.jit(lambda n: jax.lax.fori_loop(0, n, body, 0))


def _nested_jit(fn, shape):
    @fx.jit
    def inner(i, c):
        _callback(fn, shape, i)
        return c + 1

    return fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, c: jax.jit(lambda i, c: inner(i, c))(i, c), 0))


def _under_vmap(fn, shape):
    def one(x):
        _callback(fn, shape, x)
        return x

    def body(i, c):
        return jax.vmap(one)(c)

    return fx.jit(lambda n: jax.lax.fori_loop(0, n // 2, body, jnp.arange(2.0))[0])


def _second_device(fn, shape):
    f = _plain_loop(fn, shape)
    return lambda n: f(jax.device_put(n, jax.devices()[1]))


@pytest.mark.parametrize("kind", ["sync", "queued"])
@pytest.mark.parametrize("program", [_plain_loop, _nested_jit, _under_vmap, _second_device])
def test_callback_that_raises_in_iteration_500(program, kind):
    """The error comes once, where it belongs, whole; what could run has run; the state afterwards is clean."""
    fn = _raise_at(500)
    f = program(fn, F32 if kind == "sync" else None)
    if kind == "sync":
        with pytest.raises(fx.EffectError) as info:
            f(jnp.int32(1000))
        assert len(fn.calls) == 501  # nothing is called after it
        assert "waited for its results and ended there" in str(info.value)
    else:
        jax.block_until_ready(f(jnp.int32(1000)))
        with pytest.raises(fx.EffectError) as info:
            fx.effects_barrier(timeout=60)
        assert len(fn.calls) == 501  # as after an exception in Python
        assert info.value.not_carried_out == {"callback": 499}
    _check(info.value, _line_of_callback())
    fx.effects_barrier(timeout=60)
    good_program_runs()


def test_error_of_a_sync_callback_says_where_its_program_ended(capsys):
    """Effects before the callback are carried out."""

    @fx.jit
    def f(x):
        for i in range(3):
            fx.print("before {}", i)
        y = _callback(_raise_at(0), F32, x)
        fx.print("after {}", y)
        return y

    with pytest.raises(fx.EffectError) as info:
        f(jnp.float32(1))
    assert str(info.value).endswith("The program waited for its results and ended there.")
    assert capsys.readouterr().out.splitlines() == ["before 0", "before 1", "before 2"]
    good_program_runs()


@pytest.mark.parametrize("after_error", ["stop", "go_on"])
def test_unordered_effect_beside_a_failure_is_carried_out_or_counted(after_error, monkeypatch):
    """It comes when it comes: before the failure, or after it, when it is counted, unless the program ends before."""
    monkeypatch.setattr(fx.config, "after_error", after_error)
    seen = []
    before = fx.stats()["cancelled"]

    @fx.jit
    def f(x):
        y = _callback(_raise_at(0), F32, x)
        z = fx.callback(lambda x: (seen.append(float(x)), x)[1], F32, x, ordered=False)
        return y + z

    with pytest.raises(fx.EffectError) as info:
        f(jnp.float32(1))
    cancelled = fx.stats()["cancelled"] - before
    assert len(seen) + cancelled <= 1  # it ran, or it was cancelled and counted, or nothing asked for it
    if after_error == "stop":
        assert info.value.not_carried_out.get("callback", 0) == cancelled
    good_program_runs()


@pytest.mark.parametrize("turn", [0, 1, 2, 5])
def test_error_is_of_one_type_whatever_the_turn(turn):
    """The first call, which compiles, and later ones, which JAX dispatches by itself, raise the same."""
    fn = _raise_at(turn)
    f = fx.jit(lambda x: _callback(fn, F32, x) + 1)
    for _ in range(turn):
        f(jnp.float32(0))
    with pytest.raises(fx.EffectError) as info:
        f(jnp.float32(0))
    _check(info.value, _line_of_callback())
    fx.effects_barrier(timeout=60)
    good_program_runs()


def test_later_program_does_not_hide_an_error():
    """An error waits for the barrier, whatever succeeds meanwhile."""
    f = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    f(jnp.float32(1))
    good = fx.jit(lambda x: fx.callback(lambda x: None, None, x))
    with fx.config.override(errors="barrier"):
        for _ in range(20):
            good(jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, _line_of_callback())
    fx.effects_barrier()


def test_each_error_is_raised_once_and_several_as_one():
    """Errors of several programs come together, in order, each once."""
    f = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    g = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    with fx.config.override(errors="barrier"):
        f(jnp.float32(1))
        g(jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    assert len(info.value.failures) == 2
    for error in info.value.failures:
        _check(error, _line_of_callback())
    fx.effects_barrier()
    good_program_runs()


def test_many_errors_of_one_program_are_counted():
    """A loop that goes on and fails in every iteration says so without keeping a traceback for each."""

    def raises(i):
        raise Boom(str(i))

    with fx.config.override(after_error="go_on"):
        fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.callback(raises, None, i), None))(1000)
        with pytest.raises(fx.EffectError) as info:
            fx.effects_barrier(timeout=60)
    assert [str(error.__cause__) for error in info.value.failures] == [str(i) for i in range(100)]
    assert str(info.value).endswith(" And 999 more at this line, the last: Boom('999').")


def test_a_thread_gets_its_own_errors():
    """What a thread's programs raise is not raised in another's barrier, and is not lost."""
    f = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    go_on, failed = threading.Event(), threading.Event()
    caught = []

    def run():
        f(jnp.float32(1))
        failed.set()
        go_on.wait(60)
        try:
            fx.effects_barrier(timeout=60)
        except fx.EffectError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    failed.wait(60)
    try:
        assert not runtime.waiting.for_all(60)  # it has failed by now
        fx.effects_barrier(timeout=60)  # ours: nothing of the other's
    finally:
        go_on.set()
        thread.join(60)
    [error] = caught
    _check(error, _line_of_callback())


def test_error_inside_a_nested_program_is_the_callbacks():
    """A callback that calls a program whose callback raises fails with it, cause upon cause."""
    inner = fx.jit(lambda x: _callback(_raise_at(0), F32, x))

    def outer(x):
        return np.asarray(inner(x))

    f = fx.jit(lambda x: fx.callback(outer, F32, x))
    with pytest.raises(fx.EffectError, match="outer") as info:
        f(jnp.float32(1))
    inner_error = info.value.__cause__
    _check(inner_error, _line_of_callback())
    good_program_runs()


def test_error_of_an_effect_of_a_nested_program_is_not_lost():
    """What a nested program's queued callback raises belongs to the program whose callback called it."""
    inner = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    f = fx.jit(lambda x: fx.callback(lambda x: inner(x), None, x))
    f(jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, _line_of_callback())
    good_program_runs()


def test_eager_callback_raises_at_its_line():
    """Outside of programs a callback with results raises where it stands, one without at the barrier."""
    with pytest.raises(fx.EffectError) as info:
        _callback(_raise_at(0), F32, jnp.float32(1))
    _check(info.value, _line_of_callback())
    _callback(_raise_at(0), None, jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, _line_of_callback())
    good_program_runs()


def test_plain_jit_fails_with_the_text_and_says_the_whole_at_the_barrier():
    """A program that JAX dispatches raises JAX's error with our text; the barrier has the error itself, once."""
    f = jax.jit(lambda x: _callback(_raise_at(0), F32, x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Boom"):
        jax.block_until_ready(f(jnp.float32(1)))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, _line_of_callback())
    jax.jit(lambda x: fx.callback(lambda x: None, None, x))(jnp.float32(1))  # JAX's own token has forgotten it too
    jax.effects_barrier()
    good_program_runs()


def test_error_says_where_it_comes_from_in_fields():
    """The line, the jitted function, the effect, the device, the lane, the token, and what became of the others."""

    def fail(i, x):
        if (i, x) == (2, 7):
            raise Boom

    @fx.jit
    def steps(xs):
        def step(x):
            fx.print("before")
            jax.lax.fori_loop(0, 4, lambda i, _: fx.callback(fail, None, i, x), None)

        jax.vmap(step)(xs)

    with fx.capture(suppress=True) as records:
        steps(jax.device_put(jnp.array([5, 7, 9]), jax.devices()[1]))
        with pytest.raises(fx.EffectError) as info:
            fx.effects_barrier(timeout=60)
    error, failed = info.value, [record for record in records if record.effect == "callback"][7]
    assert (failed.lane, int(failed.args[1])) == ((1,), 7)
    assert error.where == f"{__file__}:{fail.__code__.co_firstlineno + 8}"
    assert (error.function, error.effect, error.device, error.lane) == (steps.__qualname__, "callback", 1, (1,))
    assert error.token == failed.token
    assert error.not_carried_out == {"callback": 4}
    assert "After it, 4 `callback` effects, from" in str(error)
    good_program_runs()
