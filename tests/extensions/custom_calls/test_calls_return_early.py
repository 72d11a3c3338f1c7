"""The call of a program with handlers returns as early as any other, and the next such program of the thread is called
when it is over."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import effects as fx
from effects.dispatch.runtime.runtime import runtime
from tests.extensions.custom_calls.common import STEP, mesh_of_four
from tests.helpers import build_gate

pytestmark = pytest.mark.slow

P = jax.P
I32 = jnp.int32
ONE = jax.ShapeDtypeStruct((), I32)
OTHER = fx.register_effect(fx.Effect("step of another custom call", kind="device"))
_GATES = itertools.count(1 << 40)  # of gates that no fixture of another file has


def note(x, effect=STEP):
    return fx.custom_call("test.note", ONE, x, effect=effect)


def held_by(gate, x):
    return gate(x).astype(I32)


def values(noted):
    """What was noted, without the -1 that a program notes which is about to be held."""
    return [value for value in noted if value != -1]


def held_note(gate, effect=STEP):
    """A program that notes -1, and its argument once the gate is open."""

    @fx.jit
    def held(x):
        return note(held_by(gate, x + note(jnp.int32(-1), effect) + 1), effect)

    return held


def with_work(x):
    """x, after work enough that XLA does not run the program in the calling thread, as it does with cheap ones."""
    square = jnp.sin(jnp.arange(128 * 128, dtype=jnp.float32).reshape(128, 128) + jnp.ravel(x)[0])
    return x + (0 * (square @ square)[0, 0]).astype(I32)


@fx.jit
def notes(x):
    return note(with_work(x))


def failing(gate):
    @fx.jit
    def fails(x):
        x = x + note(jnp.int32(-1)) + 1
        return fx.custom_call("test.fail_at", ONE, held_by(gate, x), at=2, effect=STEP)

    return fails


def barrier():
    fx.effects_barrier(timeout=120)


@pytest.fixture
def waits(monkeypatch):
    """An event that is set when a thread waits for the drain."""
    event, wait = threading.Event(), runtime.drain.wait

    def noted(done, timeout=None):
        event.set()
        return wait(done, timeout)

    monkeypatch.setattr(runtime.drain, "wait", noted)
    return event


@pytest.fixture
def opens(waits):
    """`with opens(gate, look)` opens a gate when a call waits, after it has looked."""

    @contextlib.contextmanager
    def opens(gate, look=lambda: None):
        def run():
            try:
                assert waits.wait(60)
                look()
            finally:
                gate.open()

        waits.clear()
        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join()

    return opens


@pytest.mark.parametrize("devices", [(0, 0), (2, 3)], ids=["the_same_device", "other_devices"])
def test_next_programs_come_after_the_one_that_runs(devices, gates, opens, seen):
    gate, noted = gates(), []
    held_note(gate)(jnp.int32(1))
    with opens(gate, lambda: noted.extend(values(seen(so_far=True)))):
        results = [notes(jax.device_put(np.int32(2 + at), jax.devices()[device])) for at, device in enumerate(devices)]
    assert noted == []
    assert [int(result) for result in results] == [2, 3]
    assert values(seen()) == [1, 2, 3]


def test_call_that_waits_raises_and_is_not_made(gates, opens, seen):
    """What it waits for has failed. That is not handed on to what is called afterwards."""
    gate = gates()
    failing(gate)(jnp.int32(2))
    with opens(gate), pytest.raises(fx.CustomCallError, match="The value is 2") as caught:
        notes(jnp.int32(1))
    assert caught.value.where.startswith(f"{__file__}:") and ".fails`" in str(caught.value)
    assert "raised by this call of `notes`, which was not made" in caught.value.__notes__[-1]
    assert notes(jnp.int32(3)) == 3
    assert values(seen()) == [3]
    barrier()


def test_interrupt_ends_the_wait_of_a_call(gates, waits, seen):
    """The call is not made, and nothing is left for which the next one waits."""
    gate = gates()
    held_note(gate)(jnp.int32(1))

    def interrupt():
        assert waits.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    waits.clear()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        notes(jnp.int32(2))
    thread.join()
    gate.open()
    assert notes(jnp.int32(3)) == 3
    assert values(seen()) == [1, 3]


def test_callback_calls_programs_with_handlers(seen):
    """Those of the callback's own come one after the other, and none waits for the program that waits for it."""

    def calls(x):
        for device in (1, 2, 1):
            x = notes(jax.device_put(x + 1, jax.devices()[device]))
        return np.asarray(x)

    f = fx.jit(lambda x: note(fx.callback(calls, ONE, note(with_work(x)))))
    assert f(jnp.int32(1)) == 4
    assert values(seen()) == [1, 2, 3, 4, 4]


def test_threads_of_one_order_wait_for_each_other(gates, opens, seen):
    """XLA begins with another thread's program meanwhile, on one device too."""
    gate, results = gates(), []
    with fx.config.override(order="process"):
        held_note(gate)(jnp.int32(1))
        with opens(gate):
            thread = threading.Thread(target=lambda: results.append(int(notes(jnp.int32(2)))))
            thread.start()
            thread.join()
        assert results == [2]
        assert values(seen()) == [1, 2]


def test_program_that_failed_for_want_of_operands_says_nothing_more(gates, opens, seen):
    """What a failed program would have given is an operand of the next one: its handlers do not come."""
    gate = gates()
    with fx.config.override(errors="barrier"):
        x = failing(gate)(jnp.int32(2))
        with opens(gate):
            x = notes(x)
        notes(jnp.int32(5))
        with pytest.raises(fx.CustomCallError, match="The value is 2"):
            barrier()
    assert values(seen()) == [5]


def test_what_was_settled_is_not_kept():
    for i in range(3):
        notes(jnp.int32(i))
    barrier()
    assert runtime.streams.current().unpolled == {}


def test_other_domains_do_not_wait(gates, seen):
    gate = gates()
    held_note(gate)(jnp.int32(1))
    x = jax.device_put(np.int32(2), jax.devices()[1])  # on one device XLA itself runs one program after the other
    assert fx.jit(lambda x: note(x, OTHER))(x) == 2
    assert fx.jit(lambda x: note(x, None))(x + 1) == 3
    gate.open()
    assert values(seen()) == [2, 3, 1]


def test_other_threads_do_not_wait(gates, seen):
    gate = gates()
    held_note(gate)(jnp.int32(1))
    thread = threading.Thread(target=lambda: notes(jnp.int32(2)).block_until_ready())
    thread.start()
    thread.join()
    gate.open()
    assert values(seen()) == [2, 1]


def test_failure_of_a_thread_that_has_ended(gates):
    gate = gates()
    thread = threading.Thread(target=lambda: failing(gate)(jnp.int32(2)))
    thread.start()
    thread.join()
    gate.open()
    with pytest.raises(fx.CustomCallError, match="The value is 2"):
        barrier()


def test_barrier_says_what_has_not_answered(gates):
    gate = gates()
    held_note(gate)(jnp.int32(1))
    held_note(gate, OTHER)(jnp.int32(2))
    with pytest.raises(fx.BarrierTimeout, match=rf"held` .*effects: .*{STEP.name}.*held` .*effects: .*{OTHER.name}"):
        fx.effects_barrier(timeout=0)
    gate.open()
    barrier()


@pytest.mark.parametrize(("effect", "named"), [(STEP, STEP.name), (None, "unknown")])
def test_barrier_that_gives_up_names_the_handlers(effect, named):
    """The one that does not answer is among them: its target and its line."""
    loaded, gate = ctypes.CDLL(str(build_gate())), next(_GATES)
    fx.register_custom_call("test.never", (loaded, "GateWait"))

    def f(x):
        x = jax.jit(lambda x: note(x, effect))(x)
        return fx.custom_call("test.never", ONE, with_work(x), effect=effect, gate=gate, fails=np.bool_(False))

    try:
        fx.jit(f)(jnp.int32(1))
        with pytest.raises(fx.BarrierTimeout) as caught:
            fx.effects_barrier(timeout=0)
    finally:
        loaded.OpenGate(ctypes.c_int64(gate))
    here = re.escape(__file__)
    calls = rf"custom calls: `test\.never` at {here}:\d+, `test\.note` at {here}:\d+\)"
    assert re.search(rf"\.f` \(thread \d+, dispatch \d+, effects: {named}, {calls}", str(caught.value))


def test_barrier_waits_for_a_handler_without_an_effect(gates):
    """Nothing of it is in any order, but its failure belongs to the thread."""
    gate = gates()
    fx.jit(lambda x: fx.custom_call("test.fail_at", ONE, held_by(gate, x), at=2))(jnp.int32(2))
    with pytest.raises(fx.BarrierTimeout):
        fx.effects_barrier(timeout=0)
    gate.open()
    with pytest.raises(fx.CustomCallError, match="The value is 2"):
        barrier()


def test_several_devices(gates, opens, seen):
    """The whole program is waited for, and so is what follows."""
    gate = gates()
    shape = jax.ShapeDtypeStruct((1,), I32)

    def on_four(before):
        f = lambda x: fx.custom_call("test.note", shape, before(x), effect=STEP)  # noqa: E731
        return fx.jit(jax.shard_map(f, mesh=mesh_of_four(), in_specs=P("x"), out_specs=P("x"), check_vma=False))

    first = jnp.arange(4, dtype=I32)

    def hold_one(x):
        x = with_work(x + note(jnp.int32(-1)) + 1)
        return jax.lax.cond(x[0] == 2, lambda x: held_by(gate, x), lambda x: x, x)

    on_four(hold_one)(first)
    with opens(gate):
        on_four(with_work)(first + 5)
    notes(jnp.int32(20))
    on_four(with_work)(first + 10)
    noted = values(seen())
    assert [sorted(noted[:4]), sorted(noted[4:8]), noted[8], sorted(noted[9:])] == [
        *([0, 1, 2, 3], [5, 6, 7, 8], 20, [10, 11, 12, 13])
    ]


def test_call_waits_for_a_program_that_has_not_begun(gates, opens, seen):
    """The other one's operand is not there, and the device is another."""
    gate, noted = gates(), []
    notes(jax.jit(lambda x: held_by(gate, x))(jnp.int32(1)))
    with opens(gate, lambda: noted.extend(seen(so_far=True))):
        notes(jax.device_put(jnp.int32(2), jax.devices()[2]))
    assert noted == []
    assert values(seen()) == [1, 2]


WAYS = {
    "compiled": lambda: notes.lower(jnp.int32(0)).compile(),
    "exported": lambda: fx.export(notes)(jnp.int32(0)).call,
    "static": lambda: functools.partial(fx.jit(lambda kind, x: note(x) if kind else x + 1, static_argnums=0), True),
    "other kind before": lambda: functools.partial(_OF_KIND, True),
    "eager": lambda: note,
}
_OF_KIND = fx.jit(lambda kind, x: note(x) if kind else (fx.print("{}", x, level="debug"), x + 1)[1], static_argnums=0)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_program(way, gates, opens, seen):
    """Ahead of time, exported, with other static arguments, and without `jit`."""
    gate, noted, call = gates(), [], WAYS[way]()
    held_note(gate)(jnp.int32(0))
    _OF_KIND(False, jnp.int32(0))  # which has no handlers, and does not wait
    with opens(gate, lambda: noted.extend(values(seen(so_far=True)))):
        call(jnp.int32(1))
    assert noted == []
    assert values(seen()) == [0, 1]


def test_callback_of_a_later_program(gates, seen):
    """It has results, so its call waits for it, and it comes after what was called before."""
    gate = gates()
    held_note(gate, "print")(jnp.int32(1))
    result = []
    calls = fx.jit(lambda x: note(fx.callback(lambda x: x + 1, ONE, x), "print"))
    thread = threading.Thread(target=gate.open)
    thread.start()
    result.append(int(calls(jnp.int32(5))))
    thread.join()
    assert result == [6]
    assert values(seen()) == [1, 6]


def test_calls_that_were_not_made_are_not_waited_for(seen):
    """A program that fails while it is traced, or with arguments that are none, was never called."""
    for wrong in (lambda: fx.jit(lambda x: note(x) + undefined)(1), lambda: notes("text")):  # noqa: F821
        with pytest.raises((NameError, TypeError)):
            wrong()
    assert notes(jnp.int32(1)) == 1
    assert values(seen()) == [1]


@functools.cache
def _program(fails, effect, devices):
    """Notes its argument on each device, and then fails or not."""

    def f(x):
        shape = jax.ShapeDtypeStruct(x.shape, I32)
        y = fx.custom_call("test.note", shape, with_work(x), effect=effect)
        return fx.custom_call("test.fail_at", shape, 0 * y, at=0, effect=effect) if fails else y

    mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return fx.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")) if devices > 1 else f)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 4).map(lambda n: n == 0), st.sampled_from([STEP, OTHER]), st.sampled_from([1, 1, 2])),
        min_size=2,
        max_size=30,
    )
)
def test_random_programs_keep_the_order_of_each_domain(handlers, seen, calls):
    """Some fail, some run on two devices. Each failure is raised once, by a later call or the barrier."""
    failures = []

    def is_done(call, *args):
        try:
            call(*args)
        except fx.CustomCallError as error:
            failures.extend(error.failures)
            return "which was not made" not in str(getattr(error, "__notes__", ""))
        return True

    is_done(barrier)  # what an example has left that failed
    seen()
    failures.clear()
    for number, (fails, effect, devices) in enumerate(calls):
        x = np.arange(2 * number, 2 * number + devices, dtype=np.int32)
        while not is_done(_program(fails, effect, devices), x):
            pass
    is_done(barrier)
    assert len(failures) == sum(fails for fails, *_ in calls)
    noted = [(value // 2, value) for value in values(seen())]
    for effect in (STEP, OTHER):
        here = [number for number, _ in noted if calls[number][1] is effect]
        assert here == sorted(here)
    assert sorted(value for _, value in noted) == [
        2 * number + device for number, (_, _, devices) in enumerate(calls) for device in range(devices)
    ]
