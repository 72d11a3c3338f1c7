"""A function without effects is JAX's own, also where it has effects for some of its arguments only."""

import functools
import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import effects as fx
from tests.dispatch.devices.meshes import mesh_over
from tests.internals import _jax
from tests.lowering.regions.meshes import in_process_of_its_own

F32 = jax.ShapeDtypeStruct((), jnp.float32)


@functools.partial(fx.jit, static_argnames="log")
def step(x, log=False):
    if log:
        fx.print("x {}", x)
    return x + 1


def test_effects_for_some_arguments(lines):
    """Each call has its effects, in order, whichever kind the call before was of."""
    logged = [i % 3 == 0 or i == 7 for i in range(20)]

    def run():
        for i, log in enumerate(logged):
            assert step(float(i), log=log) == i + 1

    assert lines(run) == [f"x {float(i)}" for i, log in enumerate(logged) if log]


def test_effects_for_some_arguments_fail_in_their_function():
    """A failure is that of the function's call, and ends the effects of this call, after calls without effects, too."""

    @functools.partial(fx.jit, static_argnames="fails")
    def f(x, fails=False):
        if fails:
            fx.callback(lambda x: 1 // 0, None, x)
            fx.callback(ran.append, None, x)
        return x + 1

    ran = []
    f(1), f(1), f(1, fails=True)
    with pytest.raises(fx.EffectError, match="<locals>.f`, raised ZeroDivisionError"):
        fx.effects_barrier()
    assert ran == []


def test_each_kind_is_traced_and_compiled_once(lines):
    traced = []

    @functools.partial(fx.jit, static_argnums=1)
    def f(x, log):
        traced.append(log)
        if log:
            fx.print("x {}", x)
        return x * 2

    x = jnp.float32(1)

    def run():
        for log in [False, True, True, False, True, False]:
            f(x, log)
        fx.jit(f.__wrapped__, static_argnums=1)(x, False)  # once for all that jit this function

    compiled = []

    def note(event, seconds, fun_name="", **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        assert lines(run) == ["x 1.0"] * 3
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert traced == [False, True]
    assert compiled == ["jit(f)", "jit(f)"]


def test_calls_enter_few_frames():
    in_process_of_its_own(__file__, "check_calls_enter_few_frames")


def check_calls_enter_few_frames():
    """A warm call enters no Python function but JAX's that says where an array lies."""
    f, x = fx.jit(lambda x: x + 1), jnp.float32(1)
    f(x), f(x)
    entered = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        f(x)
    finally:
        sys.setprofile(None)
    assert not [name for name in entered if not name.endswith("/jax/_src/array.py")]


def test_earlier_failure_is_raised():
    """A program without effects is a call, too: it raises what failed before."""

    def fail(x):
        raise ValueError("wrong")

    f = fx.jit(lambda x: x + 1)
    f(1.0)
    fx.jit(lambda x: fx.callback(fail, None, x))(1.0)
    with pytest.raises(fx.EffectError, match="wrong"):
        while True:  # until a call comes behind the failure
            f(1.0)
    assert f(1.0) == 2.0


def test_inside_of_callbacks():
    """Functions that a program waits for call programs without effects, of this function and of others."""
    inner = fx.jit(lambda x: x * 2)

    @functools.partial(fx.jit, static_argnames="depth")
    def f(x, depth=1):
        if depth == 0:
            return x + 1
        return fx.callback(lambda x: f(x, depth=depth - 1) + inner(x), F32, x)

    assert f(1.0, depth=3) == 8.0
    assert f(1.0, depth=0) == 2.0
    assert f(1.0, depth=2) == 6.0


def test_threads_put_programs_on_several_devices_in_one_order(lines):
    """Programs without effects whose devices wait for each other, from several threads, between others with effects."""
    x = jax.device_put(jnp.arange(4.0), jax.NamedSharding(mesh_over(0, 1, 2, 3), jax.P("x")))
    plain, shows = fx.jit(jnp.sum), fx.jit(lambda x: (fx.print("{}", x.sum()), x)[1])
    failed = []

    def run():
        try:
            for _ in range(30):
                assert plain(shows(x)) == 6.0
        except BaseException as error:
            failed.append(error)

    def all_threads():
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads) and not failed

    assert lines(all_threads) == ["6.0"] * 120


def test_under_other_traces():
    """What has run as JAX's own is part of other programs as before, also with arguments that are no tracers."""
    f, x = fx.jit(lambda x: x + 1), jnp.float32(1)
    f(x)
    assert jax.jit(lambda y: f(x) + y)(1.0) == 3.0
    assert "name=<lambda>" in str(jax.make_jaxpr(lambda: f(x))())
    assert jax.grad(f)(1.0) == 1.0 and jax.vmap(f)(jnp.arange(2.0)).tolist() == [1.0, 2.0]
    with jax.disable_jit():
        assert f(x) == 2.0
    assert f(x) == 2.0


@pytest.mark.parametrize("options", [{}, {"donate_argnums": 0}, {"in_shardings": jax.P(), "out_shardings": jax.P()}])
def test_options(options):
    """The options of `jax.jit` hold for programs without effects."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    options = {name: jax.NamedSharding(mesh, spec) if "sh" in name else spec for name, spec in options.items()}
    ours, theirs = (jit(lambda x, y: x + y, **options) for jit in (fx.jit, jax.jit))
    for _ in range(2):
        given, expected = jnp.arange(4.0), jnp.arange(4.0)
        out, reference = ours(given, 1.0), theirs(expected, 1.0)
        assert out.tolist() == reference.tolist() and out.sharding == reference.sharding
        assert given.is_deleted() == expected.is_deleted()


def test_functions_are_freed():
    """Nothing that was made for a function keeps it alive."""

    def make(log):
        def f(x):
            if log:
                fx.print("{}", x)
            return x + 1

        fx.jit(f)(1), fx.jit(f)(1)
        return weakref.ref(f)

    kept = [make(log) for log in (False, True)]
    fx.effects_barrier()
    gc.collect()
    assert [ref() for ref in kept] == [None, None]


def test_barrier_leaves_the_tokens_of_others_to_jax():
    """Later calls need not wait for effects of ours that are visible. JAX waits for its own."""
    jax.effects_barrier()  # forgets what other tests have left
    jax.jit(lambda x: (fx.print("{}", x), io_callback(lambda x: None, None, x, ordered=True)))(1.0)
    assert len(_jax.jax_tokens.current_tokens) == 2
    fx.effects_barrier()
    assert ["IO" in type(effect).__name__ for effect in _jax.jax_tokens.current_tokens] == [True]
    jax.effects_barrier()
