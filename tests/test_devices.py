"""Programs on many devices: one order, and nobody waits for it."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import random
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType

import effects as fx
from tests.helpers import build_handlers, run_python

P = jax.P
F32, I32 = jnp.float32, jnp.int32
ONE = jax.ShapeDtypeStruct((1,), I32)
STEP = fx.register_effect(fx.Effect("step over devices", kind="device"))


def _mesh(*numbers, kind=AxisType.Auto):
    devices = np.array([jax.devices()[number] for number in numbers or range(4)])
    return jax.sharding.Mesh(devices, ("x",), axis_types=(kind,))


def _by_device(body, *numbers, **kwargs):
    return jax.shard_map(body, mesh=_mesh(*numbers), in_specs=P("x"), out_specs=P("x"), **kwargs)


def _on(number, x):
    return jax.device_put(x, jax.devices()[number])


def _count(label):
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

    second = fx.jit(_by_device(shows, 1, 3) if over == "two devices" else shows)
    x = jnp.arange(2.0)
    given = jax.device_put(x, jax.NamedSharding(_mesh(1, 3), P("x"))) if over == "two devices" else _on(1, x)
    second(given)
    order = []

    def call():
        long = first(_on(0, jnp.float32(0)))
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

    held, quick = fx.jit(_by_device(shows, 1, 3)), fx.jit(_by_device(shows_quickly, 1, 3))
    xs = [jax.device_put(jnp.arange(2.0) + 10 * i, jax.NamedSharding(_mesh(1, 3), P("x"))) for i in range(8)]

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
    second(_on(1, 1.0))  # the first call of a program waits for callbacks, since it may need the devices that they use
    fx.effects_barrier(timeout=120)
    seen.clear()
    try:
        first(_on(0, 1.0))
        assert second(_on(1, 1.0)).block_until_ready() == 2
        assert seen == []
    finally:
        goes_on.set()
    fx.effects_barrier(timeout=120)
    assert seen == ["first", "second"]


def test_devices_that_change_with_each_call(lines):
    """From one device to the other and back, with work that differs; alone, and with a region in between."""
    program = _count("line")
    region = fx.jit(_by_device(lambda x: (fx.print("device {}", lax.axis_index("x")), x)[1], 2, 0))

    def call():
        for i in range(20):
            program(_on(i % 2, (7 * i) % 11))
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
                programs[1](*_on(devices[0], (thread, call, n)))
            else:
                programs[devices](jnp.full(len(devices), thread), call, n)


@pytest.mark.parametrize(("order", "in_turn"), [("thread", False), ("process", False), ("process", True)])
def test_eight_threads_over_four_devices(order, in_turn):
    """Each thread's lines come in its order; with `order="process"`, all lines do in the order of the calls."""

    def shows(thread, call, n):
        lax.fori_loop(0, n, lambda i, _: fx.print("{} {} {}", thread, call, i), None)

    def by_device(devices):
        def body(thread, call, n):
            shows(thread[0], call, n)
            return thread

        mesh = _mesh(*devices)
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
    if in_turn:  # else nobody knows who called first
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
        fx.jit(_by_device(body, check_vma=False))(jnp.arange(4.0))
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
        return fx.jit(lambda x: lax.fori_loop(0, turns, turn, x)), _on(devices[0], jnp.full(1, call * 1000, I32))
    x = jnp.arange(len(devices), dtype=I32) * 100 + call * 1000
    return fx.jit(_by_device(lambda x: lax.fori_loop(0, turns, turn, x), *devices)), x


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
    fails_somewhere = fx.jit(
        _by_device(lambda x: fx.custom_call("devices.fail_at", ONE, x, at=7, effect=STEP), 3, 0, 2)
    )
    for call, devices in enumerate([(0,), (1,), (2, 3), (3, 2, 1, 0)]):
        with pytest.raises(fx.CustomCallError, match="The value is 7"):
            fails(_on(call, jnp.full(1, 7, I32)))
        with pytest.raises(fx.CustomCallError, match="The value is 7"):
            fails_somewhere(jnp.array([1, 7, 2], I32))
        program, x = _notes(call, devices, 2)
        program(x)
        expected = sorted(call * 1000 + n * 100 + i for n in range(len(devices)) for i in range(2))
        assert sorted(seen()) == expected
    fx.effects_barrier(timeout=120)


# What programs return


def _plain(x):
    return {"twice": x * 2, "weak": (2.0, [jnp.sum(x), None]), "same": x}


def _shown(x):
    fx.print("{}", jnp.sum(x))
    result = _plain(x)
    fx.print("end")
    return result


def _facts(array):
    return (
        np.asarray(array).tolist(),
        array.dtype,
        array.weak_type,
        array.sharding,
        array.format,
        array.committed,
        array.is_deleted(),
    )


def _rows(**kwargs):
    return jax.NamedSharding(_mesh(), P("x"), **kwargs)


X = np.arange(16, dtype=np.float32).reshape(4, 4)
HERE = jax.sharding.SingleDeviceSharding


def _options(case):
    """Options of `jit` and what the program is called with."""
    rows = _rows()
    whole = jax.NamedSharding(_mesh(), P())
    outs = lambda first, rest: {"twice": first, "weak": (rest, [rest, None]), "same": rest}  # noqa: E731
    on_one = HERE(jax.devices()[2])
    return {
        "numpy": ({}, X),
        "device": ({}, _on(2, X)),
        "sharded": ({}, jax.device_put(X, rows)),
        "in_shardings": ({"in_shardings": rows}, X),
        "out_shardings": ({"out_shardings": outs(rows, whole)}, X),
        "permuted": ({}, jax.device_put(X, jax.NamedSharding(_mesh(2, 0, 3, 1), P(None, "x")))),
        "pinned_host": ({"out_shardings": outs(_rows(memory_kind="pinned_host"), whole)}, jax.device_put(X, rows)),
        "unpinned_host": ({"out_shardings": outs(_rows(memory_kind="unpinned_host"), whole)}, X),
        "columns": ({"out_shardings": outs(Format(Layout((0, 1)), rows), whole)}, X),
        "columns in": ({}, jax.device_put(X, Format(Layout((0, 1)), on_one))),
        "donated": ({"donate_argnums": 0}, _on(1, X)),
        "donated and sharded": ({"donate_argnums": 0}, jax.device_put(X, rows)),
        "donated and kept": ({"donate_argnums": 0, "keep_unused": True}, jax.device_put(X, whole)),
    }[case]


CASES = ["numpy", "device", "sharded", "in_shardings", "out_shardings", "permuted", "pinned_host", "unpinned_host"]
CASES += ["columns", "columns in", "donated", "donated and sharded", "donated and kept"]


@pytest.mark.parametrize("case", CASES)
def test_results_are_what_they_are_without_effects(case, lines):
    """Values, types, shardings, layouts, memories and donation; the second call takes the fast path."""
    found = []

    def call(jitted):
        for _ in range(2):
            options, x = _options(case)
            results = (jitted(_plain, **options) if jitted is jax.jit else jitted(_shown, **options))(x)
            given = (x.is_deleted(),) if isinstance(x, jax.Array) else ()
            found.append((jax.tree.structure(results), [_facts(array) for array in jax.tree.leaves(results)], given))

    call(jax.jit)
    assert lines(call, fx.jit) == ["120.0", "end"] * 2
    assert found[2:] == found[:2]


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_layouts_that_the_compiler_chooses(lines):
    """The same with and without effects, of arguments and results; donated too."""
    shape = jax.ShapeDtypeStruct((4, 6), F32, sharding=_rows())
    found = []

    def call(jit, f):
        auto = Format(Layout.AUTO)
        compiled = jit(f, in_shardings=auto, out_shardings=auto, donate_argnums=0).lower(shape).compile()
        (given,), _ = compiled.input_formats
        x = jax.device_put(np.arange(24, dtype=np.float32).reshape(4, 6), given)
        results = compiled(x)
        formats = jax.tree.map(str, (compiled.input_formats, compiled.output_formats))
        found.append((formats, [_facts(array) for array in jax.tree.leaves(results)], x.is_deleted()))

    call(jax.jit, _plain)
    assert lines(call, fx.jit, _shown) == ["276.0", "end"]
    assert found[0] == found[1]


def test_explicit_shardings_of_results(lines):
    """Types that say how a value is sharded are the same with effects, and so are the results."""
    with jax.set_mesh(_mesh(kind=AxisType.Explicit)):
        x = jax.device_put(X, P("x"))
        facts = []
        for jitted in (jax.jit(_plain), fx.jit(_shown)):
            types = jax.tree.map(str, jax.eval_shape(jitted, x))
            lines(lambda jitted=jitted: facts.append(jax.tree.map(_facts, jitted(x))))
            facts[-1] = (types, facts[-1])
        assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("control", "lanes"),
    [("loop", "whole"), ("asking", "whole"), ("branch", "whole"), ("asking", "sharded"), ("branch", "sharded")],
)
def test_lanes_that_differ_and_are_sharded(control, lanes, lines):
    """Where types say how the lanes' values are sharded, they do so still. Without effects JAX refuses the first branch
    and any `fori_loop` of lanes that are sharded."""

    def lane(n, x):
        def doubled(i, x):
            fx.print("{} of {}", i, n)
            return x * 2

        def goes_on(state):
            fx.print("{} of {}", state[0], n)
            return state[0] < n

        if control == "loop":
            return lax.fori_loop(0, n, doubled, x)
        if control == "branch":
            return lax.cond(n > 0, functools.partial(doubled, 0), lambda x: x, x)
        return lax.while_loop(goes_on, lambda state: (state[0] + 1, state[1] * 2), (n * 0, x))[1]

    of_n, of_x = (P("x"), P("x", None)) if lanes == "sharded" else (P(), P(None, "x"))
    with jax.set_mesh(_mesh(kind=AxisType.Explicit)):
        n, x = jax.device_put(jnp.arange(4), of_n), jax.device_put(jnp.ones((4, 4)), of_x)
        results = []
        shown = lines(lambda: results.append(fx.jit(jax.vmap(lane))(n, x)))
        turns = {"loop": lambda n: n, "asking": lambda n: n + 1, "branch": lambda n: min(n, 1)}[control]
        assert shown == [f"{i} of {n}" for i in range(4) for n in range(4) if i < turns(n)]
        assert results[0].sharding == x.sharding
        doubled = [min(n, 1) if control == "branch" else n for n in range(4)]
        assert np.asarray(results[0])[:, 0].tolist() == [2**n for n in doubled]


def test_result_of_a_callback_goes_anywhere(lines):
    """It is an array like any other: on other meshes, on one device, in what runs eagerly, in NumPy."""
    shape = jax.ShapeDtypeStruct((4,), F32)
    asks = fx.jit(lambda x: fx.callback(lambda x: x + 1, shape, x))
    for x in (jnp.arange(4.0), _on(3, jnp.arange(4.0)), jax.device_put(jnp.arange(4.0), _rows())):
        answer = asks(x)
        assert np.asarray(answer).tolist() == [1, 2, 3, 4]
        for sharding in (_rows(), jax.NamedSharding(_mesh(2, 1), P("x")), HERE(jax.devices()[1])):
            moved = jax.device_put(answer, sharding)
            assert jax.jit(lambda x: x * 2)(moved).tolist() == [2, 4, 6, 8]
            assert lines(fx.jit(lambda x: fx.print("{}", x)), moved) == ["[1. 2. 3. 4.]"]
        assert float(jnp.sum(answer)) == 10


# Callbacks that are waited for


def _asking(calls):
    def asks(x):
        return fx.callback(
            lambda x: (calls.append(np.asarray(x).tolist()), x + 1)[1], jax.ShapeDtypeStruct(x.shape, I32), x
        )

    return asks


def test_callback_is_called_once_or_by_each_device():
    """Once where the program is partitioned for all devices; by each where it is written for one."""
    calls = []
    asks, x = _asking(calls), jnp.arange(4, dtype=I32)
    for f, expected in [
        (asks, [[0, 1, 2, 3]]),
        (_by_device(asks), [[0], [1], [2], [3]]),
        (_by_device(asks, check_vma=False), [[0], [1], [2], [3]]),
        (jax.pmap(asks), [0, 1, 2, 3]),
    ]:
        sharded = jax.device_put(x, _rows())
        assert fx.jit(f)(sharded).tolist() == [1, 2, 3, 4]
        assert calls == expected
        calls.clear()


WATCHED = """
import faulthandler, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, effects as fx
from jax import lax, P
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.NamedSharding(mesh, P("x"))
talk = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
seen = []

def add(n, x):
    seen.append(int(n))
    return x + 1

@fx.jit
def f(x):
    def turn(n, x):
        y = fx.callback(add, jax.ShapeDtypeStruct((), x.dtype), n, x[0])
        return lax.with_sharding_constraint(x + 1 + 0 * talk(x + y), rows)
    return lax.fori_loop(0, 4, turn, x)

for _ in range(250):
    x = f(jax.device_put(jnp.zeros(8), rows))
assert x.tolist() == [4] * 8, x
assert seen == [0, 1, 2, 3] * 250
print("done")
"""


def test_devices_that_have_an_answer_wait_for_each_other():
    """A thousand times: all devices are given one answer, and go on to where each waits for the others."""
    done = run_python(WATCHED)
    assert done.stdout == "done\n", done.stderr[-2000:]


IN_THREADS = """
import contextlib, faulthandler, io, os, threading
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, effects as fx, numpy as np
from jax import lax, P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
x = np.zeros(2, np.float32)
if os.environ["ARGUMENTS"] == "devices":
    x = jax.device_put(x, jax.NamedSharding(mesh, P("x")))

def asks(x):
    return x + fx.callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), x.dtype))

def talks(x):
    fx.print("talks")
    return sums(x)

def sums(x):
    return x + lax.psum(x, "x")

bodies = [asks, talks, lambda x: asks(talks(x)), sums]
maps = [jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x")) for body in 2 * bodies]
again = os.environ["CALLS"] == "again"
calls = [300 * [fx.jit(f)] if again else [fx.jit(f) for _ in range(300)] for f in maps]
threads = [threading.Thread(target=lambda fs: [f(x) for f in fs], args=(fs,), daemon=True) for fs in calls]
with contextlib.redirect_stdout(io.StringIO()) as out:
    if again:
        for fs in calls:
            jax.block_until_ready(fs[0](x))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fx.effects_barrier(all_threads=True)
assert out.getvalue() == "talks\\n" * (2 * 2 * 2 * (300 + again))
print("done")
"""


@pytest.mark.parametrize("calls", ["again", "first"])
@pytest.mark.parametrize("arguments", ["host", "devices"])
def test_threads_whose_programs_have_collectives(arguments, calls):
    """Devices get the programs of all threads in one order: else one would wait in a program for another that waits for
    it in the next. So too if every call is the first of its function, and some compile."""
    done = run_python(IN_THREADS, env={"ARGUMENTS": arguments, "CALLS": calls})
    assert done.stdout == "done\n", done.stderr[-2000:]


UNAWAITED = """
import contextlib, faulthandler, io, os, threading
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["PJRT_NPROC"] = "2"
faulthandler.dump_traceback_later(200, exit=True)
import jax, effects as fx, numpy as np
from jax import lax, P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(np.zeros(2, np.float32), jax.NamedSharding(mesh, P("x")))

def talks(x):
    fx.print("talks")
    return x + lax.psum(x, "x")

def asks(x):
    return x + fx.callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), x.dtype))

def calls(f):
    for _ in range(1000):
        f(x)

fs = [fx.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))) for body in (talks, talks, asks)]
with contextlib.redirect_stdout(io.StringIO()) as out:
    threads = [threading.Thread(target=calls, args=(f,), daemon=True) for f in fs[: int(os.environ["THREADS"])]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fx.effects_barrier(all_threads=True)
assert out.getvalue() == "talks\\n" * (2 * 1000 * min(len(threads), 2))
print("done")
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_programs_with_collectives_that_nobody_waits_for(threads):
    """XLA has as many threads here as devices. JAX before 0.12 stops for ever at the 33rd, without effects too."""
    done = run_python(UNAWAITED, env={"THREADS": str(threads)})
    assert done.stdout == "done\n", done.stderr[-2000:]


DELETED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, effects as fx, numpy as np
from jax import P
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
body = lambda x: fx.print("{}", x[0])
f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P()))
for _ in range(2):
    x = jax.device_put(np.arange(4), jax.NamedSharding(mesh, P("x")))
    for _ in range(50):
        f(x)
    fx.effects_barrier()
    for array in jax.live_arrays():
        array.delete()
"""


def test_tokens_that_the_user_deletes():
    """With all other arrays of JAX's. The next programs get new ones."""
    done = run_python(DELETED)
    assert (done.stdout, done.returncode) == ("0\n1\n2\n3\n" * 100, 0), done.stderr[-2000:]


def test_function_that_is_traced_waits_for_another_thread():
    """Such as one that has a lock of the user's, and calls a program for the first time."""
    ones = fx.jit(lambda: jnp.ones(3))
    made = []

    @fx.jit
    def f(x):
        other = threading.Thread(target=lambda: made.append(np.asarray(ones())), daemon=True)
        other.start()
        other.join(60)
        return x + made[0].sum()

    assert f(np.float32(1)) == 4


def test_calls_take_the_fast_path_of_jax():
    """Whatever was called in between: what has been called once goes through no Python of JAX's."""
    f = fx.jit(lambda x: x + 1)
    xs = [jnp.zeros(2), jax.device_put(jnp.zeros(2), jax.NamedSharding(_mesh(0, 1), P("x"))), jnp.zeros(3)]
    for x in 2 * xs:
        f(x)
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        for x in xs:
            f(x)
    finally:
        sys.setprofile(None)
    assert any("dispatch" in name for name in called) and not any("pjit" in name for name in called)


def test_order_that_changes_while_a_call_has_its_turn(lines):
    """A call that has waited for its turn with `order="process"` keeps it, though it compiles after the change."""
    tracing, go = threading.Event(), threading.Event()

    @fx.jit
    def first(x):
        tracing.set()
        assert go.wait(60)
        fx.print("first {}", x)

    second = fx.jit(lambda x: (fx.print("second {}", x), x + 1)[1])
    results = []

    def call():
        with fx.config.override(order="process"):
            threads = [threading.Thread(target=first, args=(1,), daemon=True)]
            threads[0].start()
            assert tracing.wait(60)
            threads.append(threading.Thread(target=lambda: results.append(int(second(2))), daemon=True))
            threads[1].start()
            while sys._current_frames()[threads[1].ident].f_code.co_name != "__call__":
                pass
        go.set()
        for thread in threads:
            thread.join(60)
        fx.effects_barrier(all_threads=True, timeout=60)

    assert sorted(lines(call)) == ["first 1", "second 2"]
    assert results == [3]


def test_tokens_of_threads_that_are_gone(lines):
    """Their memory, on several devices, is given back."""
    from effects.dispatch.draining.runtime import runtime
    from effects.dispatch.streams.tokens import PlacedTokens

    def count():
        gc.collect()
        return sum(type(one) is PlacedTokens for one in gc.get_objects())

    f = fx.jit(lambda x: fx.print("{}", x[0]))
    x = jax.device_put(jnp.zeros(2), jax.NamedSharding(_mesh(0, 1), P("x")))
    lines(lambda: f(x))
    before, tokens = len(runtime.streams), count()

    def call():
        for _ in range(5):
            thread = threading.Thread(target=f, args=(x,))
            thread.start()
            thread.join()
        fx.effects_barrier(all_threads=True, timeout=60)
        f(x)  # the drain looks after them while programs run
        assert runtime.drain.wait(lambda: len(runtime.streams) <= before, timeout=60)

    lines(call)
    assert count() <= tokens


def test_threads_in_one_order_whose_programs_wait(lines):
    """With `order="process"` devices get programs in the order of the calls, which is that of their callbacks."""
    prints = fx.jit(lambda x: (fx.print("{}", x[0]), x)[1])
    asks = fx.jit(lambda x: x + fx.callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), F32)))
    x = jax.device_put(jnp.zeros(2), jax.NamedSharding(_mesh(0, 1), P("x")))

    def call():
        with fx.config.override(order="process"):
            fs = [asks, prints, prints]
            threads = [threading.Thread(target=lambda f=f: [f(x) for _ in range(200)], daemon=True) for f in fs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
            assert not any(thread.is_alive() for thread in threads)
            fx.effects_barrier(timeout=60)

    assert lines(call) == ["0.0"] * 400


# Callbacks that raise, and what is refused


def _raising(where, awaited, calls):
    """A function of a region: a callback that raises on these devices, between two prints."""

    def raises(n):
        calls.append(int(n))
        if int(n) in where:
            raise ValueError(f"device {n}")
        return np.ones(1, np.int32)

    def body(x):
        n = lax.axis_index("x")
        fx.print("before {}", n)
        y = fx.callback(raises, ONE if awaited else None, n)
        fx.print("after {}", n)
        return x + (0 if y is None else y)

    return body


def test_queued_callback_that_raises_on_one_device(lines):
    """It is the barrier's, once, and all else goes on."""
    calls = []
    f = fx.jit(_by_device(_raising({2}, False, calls)))
    shown = [f"{word} {n}" for word in ("before", "after") for n in range(4)]

    def call():
        f(jnp.arange(4, dtype=I32))
        with pytest.raises(fx.EffectError) as caught:
            fx.effects_barrier(timeout=120)
        assert str(caught.value.__cause__) == "device 2"

    for _ in range(2):
        assert lines(call) == shown
    assert calls == [0, 1, 2, 3] * 2


def test_callback_that_raises_on_every_device(lines):
    """The call raises it, for the first device whose turn it is; the next programs know nothing of any."""
    calls = []
    fails = fx.jit(_by_device(_raising({0, 1, 2, 3}, True, calls)))
    goes_on = fx.jit(_by_device(_raising(set(), True, calls)))
    x = jax.device_put(jnp.arange(4, dtype=I32), _rows())
    shown = [f"{word} {n}" for word in ("before", "after") for n in range(4)]

    def call():
        with pytest.raises(fx.EffectError) as caught:
            fails(x)
        assert str(caught.value.__cause__) == "device 0"
        try:
            fx.effects_barrier(timeout=120)
        except* fx.EffectError as group:  # the other devices' turns came before the program had ended
            others = [str(error.__cause__) for error in group.exceptions]
            assert others == [f"device {n}" for n in calls[1:]]

    for _ in range(2):
        assert lines(call)[:4] == shown[:4]
        assert calls[0] == 0
        calls.clear()
        assert lines(goes_on, x) == shown
        assert calls == [0, 1, 2, 3]
        calls.clear()


def _shows(x, scale):
    fx.print("{} {}", x[0], scale)
    return fx.callback(lambda x: 2 * x, jax.ShapeDtypeStruct((1,), F32), x) + scale


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("region", ["shard_map", "mesh of two axes", "devices in another order", "pmap"])
def test_regions_outside_of_jit(region, check_vma, lines):
    """Devices have their effects one by one, each its own, as inside of jit."""
    if region == "pmap":
        f = jax.pmap(_shows, in_axes=(0, None))
    else:
        axes, shape = (("x", "y"), (2, 2)) if region == "mesh of two axes" else ("x", (4,))
        devices = [jax.devices()[number] for number in (2, 0, 3, 1)] if "order" in region else jax.devices()[:4]
        mesh = jax.sharding.Mesh(np.array(devices).reshape(shape), axes)
        f = jax.shard_map(_shows, mesh=mesh, in_specs=(P(axes), P()), out_specs=P(axes), check_vma=check_vma)
    x = jnp.arange(4, dtype=F32).reshape((4, 1) if region == "pmap" else (4,))
    results = []
    text = [f"{i}.0 10.0" for i in ([1, 3, 0, 2] if "order" in region else range(4))]
    assert lines(lambda: results.append(fx.jit(f)(x, 10.0))) == text
    with fx.capture() as records, jax.disable_jit():
        results.append(fx.jit(f)(x, 10.0))
    shown = [(record.effect, record.device) for record in records]
    assert shown == [*zip(4 * ["print"], range(4), strict=True), *zip(4 * ["callback"], range(4), strict=True)]
    assert [record.text for record in records][:4] == text
    assert [result.reshape(-1).tolist() for result in results] == 2 * [[10, 12, 14, 16]]


@pytest.mark.parametrize("kind", ["print", "callback"])
def test_region_over_one_axis_outside_of_jit(kind):
    """Each part has one effect, from the first of its devices, on the whole of the part."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

    def body(x):
        if kind == "print":
            return (fx.print("{}", x), x)[1]
        return fx.callback(lambda x: 2 * x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    f = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    x = jax.device_put(jnp.arange(8, dtype=F32), jax.NamedSharding(mesh, P(("x", "y"))))
    shown = []
    for context in (contextlib.nullcontext(), jax.disable_jit()):
        with fx.capture() as records, context:
            result = fx.jit(f)(x)
        shown.append((result.tolist(), [(record.device, record.text) for record in records]))
    assert shown[0] == shown[1]
    assert [device for device, _ in shown[0][1]] == [0, 2]


def test_nan_that_a_region_makes(lines):
    """With `jax_debug_nans` the error is JAX's own, whatever the function shows, and whether it has been called."""

    @fx.jit
    def f(x):
        fx.print("whole")
        return _by_device(lambda x: (fx.print("{}", x[0]), jnp.log(x))[1])(x)

    def call():
        with jax.debug_nans(True):
            f(jnp.arange(4, dtype=F32) + 1)
            with pytest.raises(FloatingPointError):
                f(jnp.arange(4, dtype=F32) - 2)

    good, bad = ["whole", "1.0", "2.0", "3.0", "4.0"], ["whole", "-2.0", "-1.0", "0.0", "1.0"]
    shown = lines(call)  # JAX says so, and runs the function again by hand
    assert [line for line in shown if line in good + bad] == good + 2 * bad


def test_program_that_a_call_needs_for_its_arguments(lines):
    """Though it is traced inside of that call, which is not to be begun anew for it."""

    class Static:
        def __init__(self, function):
            self.function = function

        def __hash__(self):
            function, self.function = self.function, int
            function()
            return 1

        def __eq__(self, other):
            return type(self) is type(other)

    around = fx.jit(lambda x, static: (fx.print("around"), x)[1], static_argnums=1)
    inside = fx.jit(lambda: fx.print("inside"))
    x = jax.device_put(jnp.zeros(2), jax.NamedSharding(_mesh(0, 1), P("x")))
    assert lines(lambda: around(x, Static(int))) == ["around"]
    assert lines(lambda: around(x, Static(inside))) == ["around", "inside"]


def test_plain_jit_is_refused_over_several_devices():
    """JAX has no ordered effects there: the error says what to use instead."""
    with pytest.raises(NotImplementedError, match=r"`print` at .*test_devices.py.*`effects.jit`|fx.jit"):
        jax.jit(_shown)(jax.device_put(X, _rows()))


def test_unordered_results_are_refused_over_several_devices():
    """Copies of a call that all wait are known by their order alone."""
    f = fx.jit(lambda x: fx.callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=False))
    with pytest.raises(NotImplementedError, match=r"at .*test_devices.py.*[Oo]rdered"):
        f(jax.device_put(X, _rows()))


# The runtime token is nobody's argument


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_transfer_guards_do_not_see_the_token(kind, lines):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
    x = jax.device_put(jnp.arange(4), jax.NamedSharding(mesh, P("x")))
    f = fx.jit(lambda x: fx.print("{}", x))

    def guarded(x):
        with jax.transfer_guard("disallow"):
            for _ in range(8):
                f(x)

    assert lines(guarded, x) == ["[0 1 2 3]"] * 8


def test_eager_effects_say_the_device():
    """As the program that would be called with these values does."""

    def body(x):
        fx.print("{} {device}", x)

    rows = jax.device_put(jnp.arange(2.0), jax.NamedSharding(_mesh(2, 3), P("x")))
    xs = [jax.device_put(1, jax.devices()[2]), rows, jnp.zeros(()), 1, np.ones(1)]
    with fx.capture(suppress=True) as records:
        for x in xs:
            fx.jit(body)(x)
            body(x)
    assert [record.device for record in records] == [2, 2, -1, -1, 0, 0, 0, 0, 0, 0]
    assert [record.text for record in records][::2] == [record.text for record in records][1::2]
    with fx.capture(suppress=True) as records, jax.default_device(jax.devices()[3]):
        for x in xs[0], xs[2], 1:
            fx.jit(body)(x)
            body(x)
    assert [record.device for record in records] == [2, 2, 3, 3, 3, 3]


def test_arguments_on_devices_that_do_not_belong_together():
    """JAX speaks of the user's arguments."""
    x = jax.device_put(jnp.arange(4), jax.NamedSharding(jax.make_mesh((4,), ("x",)), P("x")))
    y = jax.device_put(jnp.arange(4), jax.devices()[1])
    with pytest.raises(ValueError, match=r"argument x of .* and argument y of ") as raised:
        fx.jit(lambda x, y: fx.print("{} {}", x, y))(x, y)
    assert "_runtime_token" not in str(raised.value)
    fx.effects_barrier()


@pytest.mark.parametrize("devices", [1, 2])
def test_mesh_of_devices_that_the_program_is_not_called_for(devices):
    """An abstract mesh has those that the program has, if they are as many."""
    mesh = _mesh()
    region = jax.shard_map(_shows_first, mesh=mesh.abstract_mesh, in_specs=P("x"), out_specs=P("x"))
    x = jnp.arange(4.0)
    given = x if devices == 1 else jax.device_put(x, jax.NamedSharding(_mesh(0, 1), P("x")))
    refusal = (
        r"^Effect `print` at .*:\d+ is in a `jax.shard_map` over an abstract mesh, of 4 devices, and the program was "
        rf"called for {devices}\. Every device .*\. Put an argument on all .*, with a mesh that has devices\."
    )
    for program in (region, lambda x: lax.fori_loop(0, 2, lambda i, x: region(x), x)):
        with pytest.raises(ValueError, match=refusal):
            fx.jit(program)(given)
    fx.effects_barrier(timeout=60)


def _shows_first(x):
    fx.print("{}", x[0])
    return x


@pytest.mark.parametrize("how", ["an argument", "jax.set_mesh"])
def test_abstract_mesh_has_the_devices_of_the_program(how, lines):
    region = fx.jit(jax.shard_map(_shows_first, mesh=_mesh().abstract_mesh, in_specs=P("x"), out_specs=P("x")))
    x = np.arange(4.0, dtype=np.float32)
    if how == "an argument":
        shown = lines(region, jax.device_put(x, jax.NamedSharding(_mesh(), P("x"))))
    else:
        with jax.set_mesh(_mesh()):
            shown = lines(region, x)
    assert shown == ["0.0", "1.0", "2.0", "3.0"]
