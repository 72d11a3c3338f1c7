"""What effects raise: said once, at the right place, and leaving nothing behind."""

import contextlib
import io
import threading
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import run_python

F32 = jax.ShapeDtypeStruct((), jnp.float32)
GOOD = ["good 0.0", "good 1.0"]


class Boom(Exception):
    pass


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


def _good_program_runs():
    """The state is clean: a program of all kinds of effects comes out whole, and no barrier says anything."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):

        @fx.jit
        def good(x):
            fx.print("good {}", x)
            return fx.callback(lambda x: x + np.float32(1), F32, x)

        assert good(good(jnp.float32(0))) == 2
        fx.effects_barrier(timeout=60)
    assert out.getvalue().splitlines() == GOOD
    fx.effects_barrier(all_threads=True, timeout=60)


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
        assert "could not go on" in str(info.value)
    else:
        jax.block_until_ready(f(jnp.int32(1000)))
        with pytest.raises(fx.EffectError) as info:
            fx.effects_barrier(timeout=60)
        assert len(fn.calls) == 1000  # the others come all the same
    _check(info.value, _line_of_callback())
    fx.effects_barrier(timeout=60)
    _good_program_runs()


def test_error_of_a_sync_callback_says_what_became_of_the_rest(capsys):
    """How many effects came before it, how many that were recorded came after it, and that the rest never was."""

    @fx.jit
    def f(x):
        for i in range(3):
            fx.print("before {}", i)
        y = _callback(_raise_at(0), F32, x)
        fx.print("after {}", y)
        return y

    with pytest.raises(fx.EffectError) as info:
        f(jnp.float32(1))
    [note] = info.value.__notes__
    assert note.startswith("3 effects of the program came before it. After it 0 ")
    assert "never was" in note
    assert capsys.readouterr().out.splitlines() == ["before 0", "before 1", "before 2"]
    _good_program_runs()


def test_recorded_effects_after_a_failure_are_replayed_and_the_rest_is_counted():
    """Unordered effects that were recorded are replayed; an unordered callback that was asked for may be cancelled."""
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
    assert len(seen) + cancelled == 1  # it ran, or it was cancelled and counted
    if cancelled:
        assert "1 callbacks that had been asked for did not run" in info.value.__notes__[0]
    _good_program_runs()


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
    _good_program_runs()


def test_later_program_does_not_hide_an_error():
    """An error waits for the barrier, whatever succeeds meanwhile."""
    f = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    f(jnp.float32(1))
    good = fx.jit(lambda x: fx.callback(lambda x: None, None, x))
    for _ in range(20):
        good(jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, _line_of_callback())
    fx.effects_barrier()


def test_each_error_is_raised_once_and_several_as_a_group():
    """Errors of several programs come together, in order, each once."""
    f = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    g = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    f(jnp.float32(1))
    g(jnp.float32(1))
    with pytest.raises(ExceptionGroup) as info:
        fx.effects_barrier(timeout=60)
    assert len(info.value.exceptions) == 2
    for error in info.value.exceptions:
        _check(error, _line_of_callback())
    fx.effects_barrier()
    _good_program_runs()


def test_many_errors_of_one_program_are_counted():
    """A loop that fails at every turn says so without keeping a traceback for each."""

    def raises(i):
        raise Boom(str(i))

    fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.callback(raises, None, i), None))(1000)
    with pytest.raises(ExceptionGroup) as info:
        fx.effects_barrier(timeout=60)
    assert [str(error.__cause__) for error in info.value.exceptions] == [str(i) for i in range(100)]
    assert info.value.exceptions[-1].__notes__ == ["900 more effects of this program could not be carried out either."]


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
    fx.effects_barrier(timeout=60)  # ours: nothing of the other's
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
    _good_program_runs()


def test_error_of_an_effect_of_a_nested_program_is_not_lost():
    """What a nested program's queued callback raises belongs to the program whose callback called it."""
    inner = fx.jit(lambda x: _callback(_raise_at(0), None, x))
    f = fx.jit(lambda x: fx.callback(lambda x: inner(x), None, x))
    f(jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, _line_of_callback())
    _good_program_runs()


def test_eager_callback_raises_at_its_line():
    """Outside of programs a callback with results raises where it stands, one without at the barrier."""
    with pytest.raises(fx.EffectError) as info:
        _callback(_raise_at(0), F32, jnp.float32(1))
    _check(info.value, _line_of_callback())
    _callback(_raise_at(0), None, jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, _line_of_callback())
    _good_program_runs()


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
    _good_program_runs()


@pytest.mark.parametrize("kind", ["sync", "queued"])
def test_error_on_every_device_of_a_region(kind):
    """What ends the program, the call raises; what others raised is raised by the barrier, in their order."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def raises(x):
        raise Boom(str(x))

    def body(x):
        fx.callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype) if kind == "sync" else None, x)
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
    for _ in range(2):
        rest = [f"[{n}.]" for n in range(4)]
        if kind == "sync":
            with pytest.raises(fx.EffectError) as ended:
                f(jnp.arange(4.0))
            assert str(ended.value.__cause__) == rest.pop(0)
        else:
            assert f(jnp.arange(4.0)).tolist() == [0, 1, 2, 3]
        with pytest.raises(ExceptionGroup) as info:
            fx.effects_barrier(timeout=60)
        assert [str(error.__cause__) for error in info.value.exceptions] == rest
        fx.effects_barrier(timeout=60)
        assert jax.jit(lambda x: x + 1)(jnp.arange(4.0)).tolist() == [1, 2, 3, 4]
        jax.effects_barrier()
        _good_program_runs()


@pytest.mark.parametrize("kind", ["sync", "queued"])
def test_error_on_every_device_of_a_shard_map(kind):
    """Under `shard_map` each device's failure is reported once; later calls and barriers know nothing of it."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def raises(x):
        raise Boom(str(x))

    def body(x):
        fx.callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype) if kind == "sync" else None, x, ordered=False)
        return x

    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
    if kind == "sync":
        with pytest.raises(jax.errors.JaxRuntimeError, match="Boom"):
            jax.block_until_ready(f(jnp.arange(4.0)))
    else:
        jax.block_until_ready(f(jnp.arange(4.0)))
    with pytest.raises(ExceptionGroup) as info:
        fx.effects_barrier(timeout=60)
    assert sorted(str(error.__cause__) for error in info.value.exceptions) == ["[0.]", "[1.]", "[2.]", "[3.]"]
    assert jax.jit(lambda x: x + 1)(jnp.arange(4.0)).tolist() == [1, 2, 3, 4]
    jax.effects_barrier()
    _good_program_runs()


def test_interrupts_and_exits_of_a_callback_are_errors_of_it():
    """`sys.exit` in a callback ends nothing but the callback."""

    def leaves(x):
        raise SystemExit(3)

    fx.jit(lambda x: fx.callback(leaves, None, x))(jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    assert isinstance(info.value.__cause__, SystemExit)
    _good_program_runs()


def test_error_whose_text_cannot_be_encoded():
    """Whatever characters an error's text has, whoever waits is told."""

    class Odd(Exception):
        def __repr__(self):
            return "Odd(\udc80)"

    def raises(x):
        raise Odd

    with pytest.raises(fx.EffectError) as info:
        fx.jit(lambda x: fx.callback(raises, F32, x))(jnp.float32(1))
    assert type(info.value.__cause__) is Odd
    _good_program_runs()


@pytest.mark.parametrize(("setting", "code"), [(None, 1), ("0", 0), ("7", 7)])
def test_unseen_error_at_exit(setting, code):
    """An error that nobody saw is printed at exit, and the process ends with a code that says so."""
    program = (
        "import atexit, sys, effects as fx\n"
        "def raises(x): raise ValueError('boom')\n"
        "atexit.register(lambda: sys.stdout.write('a later exit handler\\n'))\n"
        "fx.jit(lambda x: (fx.print('x {}', x), fx.callback(raises, None, x)))(1)\n"
    )
    done = run_python(program, env={} if setting is None else {"EFFECTS_EXIT_CODE": setting})
    assert done.returncode == code
    assert sorted(done.stdout.splitlines()) == ["a later exit handler", "x 1"]
    assert "ValueError: boom" in done.stderr and "EffectError" in done.stderr


@pytest.mark.parametrize("end", ["fx.effects_barrier()", "raise SystemExit(3)"])
def test_seen_error_or_other_code_leaves_the_exit_alone(end):
    """A process that saw its error, or ends with a code of its own, ends as it would."""
    program = (
        "import effects as fx\n"
        "def raises(x): raise ValueError('boom')\n"
        "fx.jit(lambda x: fx.callback(raises, None, x))(1)\n"
        "if 'barrier' in " + repr(end) + ":\n"
        "    try: fx.effects_barrier()\n"
        "    except fx.EffectError: pass\n" + end + "\n"
    )
    done = run_python(program)
    assert done.returncode == (0 if "barrier" in end else 3)
    assert ("boom" in done.stderr) == ("barrier" not in end)


@pytest.mark.parametrize("order", ["thread", "process"])
def test_call_raises_what_it_waited_for_whoever_else_waits(order):
    """Barriers of other threads leave it to the call."""

    def fails():
        raise ValueError("no")

    bad = fx.jit(lambda x: x + fx.callback(fails, jax.ShapeDtypeStruct((), "float32")))
    over = threading.Event()
    others: list[BaseException] = []

    def wait():
        while not over.is_set():
            try:
                fx.effects_barrier(all_threads=True, timeout=60)
            except BaseException as error:
                others.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    with fx.config.override(order=order):
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                with pytest.raises(fx.EffectError, match=r"raised ValueError\('no'\)"):
                    bad(1.0)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert others == []
    fx.effects_barrier(timeout=60)


@pytest.mark.parametrize("order", ["thread", "process"])
def test_error_is_raised_in_the_thread_that_called(order):
    """By its own barrier, not by that of a thread which called another program."""
    good, raised = fx.jit(lambda: fx.print("good")), []

    def fail(x):
        raise ValueError(f"of {x}")

    @fx.jit
    def bad(x):
        fx.callback(fail, None, x)

    called, done = threading.Barrier(3), threading.Barrier(3)

    def call(x):
        bad(x)
        called.wait(60)
        done.wait(60)
        with pytest.raises(fx.EffectError) as caught:
            fx.effects_barrier(timeout=60)
        raised.append((x, str(caught.value.__cause__)))
        fx.effects_barrier(timeout=60)

    with fx.config.override(order=order):
        threads = [threading.Thread(target=call, args=(x,)) for x in (1, 2)]
        for thread in threads:
            thread.start()
        called.wait(60)
        good()
        fx.effects_barrier(timeout=60)
        done.wait(60)
        for thread in threads:
            thread.join(60)
    assert sorted(raised) == [(1, "of 1"), (2, "of 2")]
