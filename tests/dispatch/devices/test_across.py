"""Programs on many devices: one order, and no device waits for it."""

from __future__ import annotations

import contextlib
import io
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.dispatch.devices.meshes import by_device, mesh_over, on
from tests.helpers import build_handlers

P = jax.P
F32, I32 = jnp.float32, jnp.int32
ONE = jax.ShapeDtypeStruct((1,), I32)
STEP = fx.register_effect(fx.Effect("step over devices", kind="device"))


def count_lines(label):
    return fx.jit(lambda n: lax.fori_loop(0, n, lambda i, _: fx.print(label + " {}", i), None))


# Across programs


@pytest.mark.parametrize("over", ["one device", "two devices"])
def test_program_runs_while_its_lines_wait(over, lines, gates):
    """What is called second is computed first, on a device of its own: its lines come after those of the first."""
    gate = gates()

    @fx.jit
    def first(x):
        fx.print("first begins")
        x = gate(x)
        return lax.fori_loop(0, 100, lambda i, x: (fx.print("first {}", i), x + 1)[1], x)

    def shows(x):
        fx.print("second {}", x[0])
        return x + 1

    second = fx.jit(by_device(shows, 1, 3) if over == "two devices" else shows)
    x = jnp.arange(2.0)
    given = jax.device_put(x, jax.NamedSharding(mesh_over(1, 3), P("x"))) if over == "two devices" else on(1, x)
    second(given)
    order = []

    def call():
        long = first(on(0, jnp.float32(0)))
        np.testing.assert_array_equal(second(given).block_until_ready(), [1, 2])
        order.append("the second is ready")
        assert not long.is_ready()
        gate.open()
        assert long.block_until_ready() == 100
        order.append("the first is ready")

    shown = ["second 0.0", "second 1.0"] if over == "two devices" else ["second 0.0"]
    assert lines(call) == ["first begins", *(f"first {i}" for i in range(100)), *shown]
    assert order == ["the second is ready", "the first is ready"]


def test_tokens_of_programs_that_run_are_nobody_elses(lines, gates):
    """A program's tokens lie in memory that later programs' are written to: not before it is over."""
    gate = gates()

    def shows(x):
        fx.print("before {}", x[0])
        x = gate(x)
        fx.print("after {}", x[0])
        return x

    def shows_quickly(x):
        fx.print("quick {}", x[0])
        return x

    held, quick = fx.jit(by_device(shows, 1, 3)), fx.jit(by_device(shows_quickly, 1, 3))
    xs = [jax.device_put(jnp.arange(2.0) + 10 * i, jax.NamedSharding(mesh_over(1, 3), P("x"))) for i in range(8)]

    def call():
        for x in xs:
            quick(x).block_until_ready()  # whose tokens are free
        outs = [held(xs[0]), *(quick(x) for x in xs)]
        assert not outs[0].is_ready()
        gate.open()
        jax.block_until_ready(outs)
        quick(xs[0])

    def of(label, i):
        return [f"{label} {10.0 * i + device}" for device in range(2)]

    quicks = [line for i in range(8) for line in of("quick", i)]
    assert lines(call) == [*quicks, *of("before", 0), *of("after", 0), *quicks, *of("quick", 0)]


def test_program_runs_while_a_callback_of_the_one_before_does():
    """A callback that takes long holds up what is shown after it, and no computation."""
    goes_on, seen = threading.Event(), []
    first = fx.jit(lambda x: fx.callback(lambda x: (goes_on.wait(), seen.append("first")), None, x))
    second = fx.jit(lambda x: (fx.callback(lambda x: seen.append("second"), None, x), x + 1)[1])
    second(on(1, 1.0))  # the first call of a program waits for callbacks, since it may need the devices that they use
    fx.effects_barrier(timeout=120)
    seen.clear()
    try:
        first(on(0, 1.0))
        assert second(on(1, 1.0)).block_until_ready() == 2
        assert seen == []
    finally:
        goes_on.set()
    fx.effects_barrier(timeout=120)
    assert seen == ["first", "second"]


def test_devices_that_change_with_each_call(lines):
    """From one device to the other and back, with work that differs; alone, and with a region in between."""
    program = count_lines("line")
    region = fx.jit(by_device(lambda x: (fx.print("device {}", lax.axis_index("x")), x)[1], 2, 0))

    def call():
        for i in range(20):
            program(on(i % 2, (7 * i) % 11))
            if i % 5 == 4:
                region(jnp.zeros(2))

    expected = []
    for i in range(20):
        expected += [f"line {j}" for j in range((7 * i) % 11)]
        expected += ["device 1", "device 0"] * (i % 5 == 4)
    assert lines(call) == expected


PROGRAMS = 60


def _work(thread, programs, record):
    """A thread's programs, on devices by chance: most on one, some on several."""
    rng = random.Random(thread)
    for call in range(PROGRAMS):
        devices = rng.choice([(0,), (1,), (2,), (3,), (3, 1), (0, 1, 2, 3)])
        n = rng.randrange(4)
        with record(thread, call, len(devices), n):
            if len(devices) == 1:
                programs[1](*on(devices[0], (thread, call, n)))
            else:
                programs[devices](jnp.full(len(devices), thread), call, n)


@pytest.mark.slow
@pytest.mark.parametrize(("order", "in_turn"), [("thread", False), ("process", False), ("process", True)])
def test_eight_threads_over_four_devices(order, in_turn):
    """Each thread's lines come in its order; with `order="process"`, all lines do in the order of the calls."""

    def shows(thread, call, n):
        lax.fori_loop(0, n, lambda i, _: fx.print("{} {} {}", thread, call, i), None)

    def by_device(devices):
        def body(thread, call, n):
            shows(thread[0], call, n)
            return thread

        mesh = mesh_over(*devices)
        return fx.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P("x"), check_vma=False))

    programs = {1: fx.jit(shows), **{devices: by_device(devices) for devices in [(3, 1), (0, 1, 2, 3)]}}
    calls, lock = [], threading.Lock()

    @contextlib.contextmanager
    def record(thread, call, devices, n):
        with lock if in_turn else contextlib.nullcontext():
            calls.append([f"{thread} {call} {i}" for i in range(n) for _ in range(devices)])
            yield

    threads = [threading.Thread(target=_work, args=(thread, programs, record)) for thread in range(8)]
    with contextlib.redirect_stdout(io.StringIO()) as out, fx.config.override(order=order):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fx.effects_barrier(all_threads=True, timeout=240)
    seen = out.getvalue().splitlines()
    expected = [line for call in calls for line in call]
    if in_turn:  # else it is not known which thread called first
        assert seen == expected
    for thread in range(8):
        own = [line for line in expected if line.startswith(f"{thread} ")]
        assert [line for line in seen if line.startswith(f"{thread} ")] == own
    assert len(seen) == len(expected)


# Unordered effects


@pytest.mark.parametrize("held", [0, 2, 3])
def test_barrier_waits_for_unordered_effects_of_every_device(held, gates):
    """One device is late: what the others print comes, and the barrier waits for it all the same."""
    gate = gates()

    def body(x):
        n = lax.axis_index("x")
        x = lax.cond(n == held, gate, lambda x: x, x)
        fx.print("{} {}", n, x[0], ordered=False)
        return x

    with contextlib.redirect_stdout(io.StringIO()) as out:
        fx.jit(by_device(body, check_vma=False))(jnp.arange(4.0))
        with pytest.raises(fx.BarrierTimeout):
            fx.effects_barrier(timeout=0.1)
        assert f"{held} {held}.0" not in out.getvalue()
        gate.open()
        fx.effects_barrier(timeout=120)
    assert sorted(out.getvalue().splitlines()) == [f"{n} {n}.0" for n in range(4)]


# Device effects


@pytest.fixture
def handlers():
    for name in ("note", "fail_at"):
        fx.register_custom_call(f"devices.{name}", (build_handlers(), name))


def _notes(call, devices, turns):
    """A program that notes `call`, device and turn on each of its devices, and what it is given."""

    def turn(i, value):
        return fx.custom_call("devices.note", ONE, value, effect=STEP) + 1

    if len(devices) == 1:
        return fx.jit(lambda x: lax.fori_loop(0, turns, turn, x)), on(devices[0], jnp.full(1, call * 1000, I32))
    x = jnp.arange(len(devices), dtype=I32) * 100 + call * 1000
    return fx.jit(by_device(lambda x: lax.fori_loop(0, turns, turn, x), *devices)), x


@pytest.mark.slow
def test_device_effects_on_changing_devices(handlers, seen):
    """Handlers run in the order of the program on each device, and programs in the order of their calls."""
    rng = random.Random(0)
    expected = []
    for call in range(24):
        devices = rng.sample(range(4), rng.choice([1, 1, 2, 4]))
        turns = rng.randrange(1, 4)
        program, x = _notes(call, devices, turns)
        program(x)
        expected.append([[call * 1000 + n * 100 + i for i in range(turns)] for n in range(len(devices))])
    noted = seen()
    for call in expected:
        here, noted = noted[: sum(map(len, call))], noted[sum(map(len, call)) :]
        assert [[value for value in here if value // 100 == own[0] // 100] for own in call] == call
    assert noted == []


def test_device_effects_after_a_program_that_failed(handlers, seen):
    """The next ones, on whatever devices, know nothing of it, and neither does the barrier."""
    fails = fx.jit(lambda x: fx.custom_call("devices.fail_at", ONE, x, at=7, effect=STEP))
    fails_somewhere = fx.jit(by_device(lambda x: fx.custom_call("devices.fail_at", ONE, x, at=7, effect=STEP), 3, 0, 2))
    for call, devices in enumerate([(0,), (1,), (2, 3), (3, 2, 1, 0)]):
        with pytest.raises(fx.CustomCallError, match="The value is 7"):
            fails(on(call, jnp.full(1, 7, I32)))
            fx.effects_barrier(timeout=120)
        with pytest.raises(fx.CustomCallError, match="The value is 7"):
            fails_somewhere(jnp.array([1, 7, 2], I32))
            fx.effects_barrier(timeout=120)
        program, x = _notes(call, devices, 2)
        program(x)
        expected = sorted(call * 1000 + n * 100 + i for n in range(len(devices)) for i in range(2))
        assert sorted(seen()) == expected
    fx.effects_barrier(timeout=120)
