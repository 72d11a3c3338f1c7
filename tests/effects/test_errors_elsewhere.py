"""Errors of callbacks on several devices and in several threads, and those that nobody has seen at exit."""

import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.effects.raising import Boom, good_program_runs
from tests.helpers import run_python
from tests.internals import runtime

F32 = jax.ShapeDtypeStruct((), jnp.float32)
GOOD = ["good 0.0", "good 1.0"]


@pytest.mark.parametrize("kind", ["sync", "queued"])
def test_error_on_one_device_of_a_region_stops_the_others(kind):
    """The effects of the other devices that come after it are not carried out."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def raises(x):
        raise Boom(str(x))

    def body(x):
        fx.callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype) if kind == "sync" else None, x)
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
    for _ in range(2):
        with pytest.raises(fx.EffectError) as info:
            f(jnp.arange(4.0))
            fx.effects_barrier(timeout=60)
        assert str(info.value.__cause__) == "[0.]"
        assert info.value.not_carried_out == {"callback": 3}
        fx.effects_barrier(timeout=60)
        good_program_runs()


@pytest.mark.parametrize("kind", ["sync", "queued"])
def test_error_on_every_device_of_a_region(kind, monkeypatch):
    """What ends the program, the call raises; what others raised is raised by the barrier, in their order."""
    monkeypatch.setattr(fx.config, "after_error", "go_on")
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
        with pytest.raises(fx.EffectError) as info:
            fx.effects_barrier(timeout=60)
        assert [str(error.__cause__) for error in info.value.failures] == rest
        fx.effects_barrier(timeout=60)
        assert jax.jit(lambda x: x + 1)(jnp.arange(4.0)).tolist() == [1, 2, 3, 4]
        jax.effects_barrier()
        good_program_runs()


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
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    assert sorted(str(error.__cause__) for error in info.value.failures) == ["[0.]", "[1.]", "[2.]", "[3.]"]
    assert jax.jit(lambda x: x + 1)(jnp.arange(4.0)).tolist() == [1, 2, 3, 4]
    jax.effects_barrier()
    good_program_runs()


def test_interrupts_and_exits_of_a_callback_are_errors_of_it():
    """`sys.exit` in a callback ends nothing but the callback."""

    def leaves(x):
        raise SystemExit(3)

    fx.jit(lambda x: fx.callback(leaves, None, x))(jnp.float32(1))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    assert isinstance(info.value.__cause__, SystemExit)
    good_program_runs()


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
    good_program_runs()


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
    assert ("EffectError" in done.stderr) == ("raised ValueError('boom')" in done.stderr) == ("barrier" not in end)


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
        try:
            assert not runtime.waiting.for_all(60)  # both have failed by now
            good()
            fx.effects_barrier(timeout=60)
        finally:
            done.wait(60)
        for thread in threads:
            thread.join(60)
    assert sorted(raised) == [(1, "of 1"), (2, "of 2")]
