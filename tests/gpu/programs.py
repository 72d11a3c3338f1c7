"""Programs with effects on the first device that JAX has: what they print, call and raise.

On a GPU `tests/gpu/test_on_gpu.py` runs them, and `test_with_stand_in.py` on CPUs with a stand-in for the driver.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from effects import _jax
from tests.helpers import meet_barrier, run_python
from tests.oracle.cases import case_number
from tests.oracle.compare import check
from tests.oracle.language import FEATURES
from tests.oracle.runners import library

FLOAT = jax.ShapeDtypeStruct((), "float32")
PLATFORM = _jax.platform_of(jax.devices()[0])


ON_GPU = PLATFORM != "cpu"
CHUNKS, RUNS = (50, 200) if ON_GPU and "SIMULATED_GPUS" not in os.environ else (4, 10)
"""Of ten random programs each; and of threads that call programs with callbacks."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs(chunk):
    """What random programs print is what a plain Python interpreter of them prints."""
    runner = library()
    handlers = {"native", "native_fails"} if ON_GPU else set()  # which read operands on the host
    features = FEATURES - handlers - {"devices"}
    for number in range(10 * chunk, 10 * chunk + 10):
        check(case_number(0, number, features), runner)


def test_loops(lines):
    """Each turn has its lines, in order, and so have the next calls."""

    @fx.jit
    def f(n):
        def turn(i, x):
            fx.print("turn {}: {}", i, x)
            x = jax.lax.cond(i % 2 == 0, lambda: (fx.print("even"), x + 1)[1], lambda: x * 2)
            return x

        return jax.lax.fori_loop(0, n, turn, 1.0)

    def expected(n):
        x = 1.0
        for i in range(n):
            yield f"turn {i}: {x}"
            if i % 2 == 0:
                yield "even"
            x = x + 1 if i % 2 == 0 else x * 2

    seen = lines(lambda: [f(n) for n in (5, 0, 7)])
    assert seen == [*expected(5), *expected(7)]


def test_what_is_shown_is_what_there_was(lines):
    """A value that is overwritten afterwards is shown as it was, a large one too."""

    @fx.jit
    def f(x):
        for i in range(3):
            fx.print("{}", x[::100_000])
            x = x.at[:].add(i + 1)
        return x

    x = jnp.zeros(400_000)
    assert lines(lambda: f(f(x))) == [
        f"[{n} {n} {n} {n}]".replace(" ", ". ").replace("]", ".]") for n in (0, 1, 3, 6, 7, 9)
    ]


def test_token_stays_on_the_device(lines):
    """What a program's call has to copy there by itself costs more than the program."""
    f = fx.jit(lambda x: (fx.print("{}", x), x + 1)[1])
    made = []

    def call():
        x = jnp.int32(0)
        for _ in range(40):
            x = f(x)
            fx.effects_barrier()

    def call_in_thread():  # which has no tokens yet
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    with pytest.MonkeyPatch.context() as patch:
        place = _jax.Placing.place
        patch.setattr(_jax.Placing, "place", lambda *args: made.append(args) or place(*args))
        assert lines(call_in_thread) == [str(i) for i in range(40)]
    assert 1 <= len(made) < 6  # several where a call comes before it is known that the one before is over


def test_many_records(lines):
    """None of a hundred thousand is lost, and all are in order."""

    @fx.jit
    def f(n):
        jax.lax.fori_loop(0, n, lambda i, _: fx.print("{}", i), None)

    assert lines(f, jnp.int32(20_000)) == [str(i) for i in range(20_000)]


def test_callbacks_give_results():
    """A loop goes on with what a callback returns, which may itself run a program on the device."""

    @fx.jit
    def inner(x):
        fx.print("inner {}", x)
        return x * 2

    def call(x):
        return np.float32(inner(jnp.float32(x)) + 1)

    @fx.jit
    def f(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: fx.callback(call, FLOAT, x), x)

    with fx.capture(suppress=True) as records:
        assert float(f(1.0)) == 15
        meet_barrier()
    assert [r.text for r in records if r.effect == "print"] == ["inner 1.0", "inner 3.0", "inner 7.0"]


def test_callback_that_raises():
    """The call raises it, with the user's line; effects before it came, and the next call is as any other."""

    def fail_at_two(i):
        if i == 2:
            raise ValueError("as asked")
        return np.float32(i)

    @fx.jit
    def f(n):
        def turn(i, x):
            fx.log("turn", i=i)
            return x + fx.callback(fail_at_two, FLOAT, i)

        return jax.lax.fori_loop(0, n, turn, 0.0)

    with fx.capture(suppress=True) as records:
        with pytest.raises(fx.EffectError, match="as asked"):
            f(4)
        assert float(f(2)) == 1
        meet_barrier()
    assert [int(record.fields["i"]) for record in records if record.effect == "log"] == [0, 1, 2, 0, 1]


FULL_RING = """
{stand_in}
import faulthandler
import jax, jax.numpy as jnp
import effects as fx

faulthandler.dump_traceback_later(200, exit=True)

def compute():
    is_full = False
    while not is_full:
        is_full = fx.stats()["waited"] > 0
        sum = float(jnp.arange(8.0).sum())
    print("computed", sum)

@fx.jit
def f(n):
    fx.callback(compute, None)
    jax.lax.fori_loop(0, n, lambda i, _: fx.print("{{}}", i), None)

f(jnp.int32(2000))
fx.effects_barrier()
"""


def test_full_ring_while_a_callback_computes():
    """A callback that waits for the device goes on though a full ring holds up the device."""
    stand_in = "from tests.gpu import stand_in" if "tests.gpu.stand_in" in sys.modules else ""
    # An interpreter of its own: the driver's thread that has a ring keeps it.
    done = run_python(FULL_RING.format(stand_in=stand_in), env={"EFFECTS_RING_BYTES": "4096"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["computed 28.0", *map(str, range(2000))]


def test_threads_that_wait_for_each_other():
    """Runs of two threads, whose programs print, call and start functions: none hangs, and each is in its order."""

    def answer(x):
        return np.float32(x + 1)

    @fx.jit
    def f(who, n):
        def turn(i, x):
            fx.print("{} turn {}: {}", who, i, x)
            future = fx.async_callback(answer, FLOAT, x)
            y = fx.callback(answer, FLOAT, x)
            return jax.lax.cond(i % 2 == 0, lambda: fx.async_done(future) + y, lambda: fx.async_done(future))

        return jax.lax.fori_loop(0, n, turn, 0.0)

    def call(who, n):
        with fx.capture(suppress=True) as records:
            f(jnp.int32(who), jnp.int32(n))
            fx.effects_barrier(timeout=120)
        seen[who] = [r.text for r in records if r.effect == "print"]

    def expected(who, n):
        x = 0.0
        for i in range(n):
            yield f"{who} turn {i}: {x}"
            x = 2 * (x + 1) if i % 2 == 0 else x + 1

    seen = {}
    for run in range(RUNS):
        faulthandler.dump_traceback_later(240, exit=True)
        numbers = {who: (3 * run + 2 * who) % 7 for who in range(2)}
        threads = [threading.Thread(target=call, args=of) for of in numbers.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        faulthandler.cancel_dump_traceback_later()
        assert seen == {who: [*expected(who, n)] for who, n in numbers.items()}


def test_callback_in_a_region_runs_a_program_on_each_device():
    """No device goes on to where it would wait for one whose callback has not been called yet."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    inner = jax.jit(lambda x: x + 1)
    own = [jax.device_put(jnp.float32(n), device) for n, device in enumerate(devices)]
    jax.block_until_ready([inner(x) for x in own])  # compiled: see `docs/gpu.md`

    def call(x):
        return np.asarray([sum(float(inner(y)) for y in own)], np.float32) + x

    @fx.jit
    def f(x):
        def body(x):
            y = fx.callback(call, jax.ShapeDtypeStruct((1,), "float32"), x)
            return jax.lax.psum(y, "i") + x

        return jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))(x)

    n = len(devices)
    x = jax.device_put(jnp.arange(float(n)), jax.NamedSharding(mesh, jax.P("i")))
    faulthandler.dump_traceback_later(240, exit=True)
    for _ in range(5):
        total = n * n * (n + 1) / 2 + n * (n - 1) / 2
        assert f(x).tolist() == [total + i for i in range(n)]
    fx.effects_barrier()
    faulthandler.cancel_dump_traceback_later()


def test_plain_programs(lines):
    """Those of plain `jax.jit` have effects in order too."""

    @jax.jit
    def f(x):
        fx.print("a {}", x)
        y = fx.callback(lambda x: x + 1, FLOAT, x)
        fx.print("b {}", y)
        return y

    assert lines(lambda: f(f(1.0))) == ["a 1.0", "b 2.0", "a 2.0", "b 3.0"]


def test_regions(lines):
    """Each device of a region has its own effects, by place and then by device, however many there are."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    @fx.jit
    def f(x):
        def body(x):
            fx.print("{}", x[0])
            y = fx.callback(lambda x: x + 1, jax.ShapeDtypeStruct((1,), "float32"), x)
            fx.print("then {}", y[0])
            return y

        x = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))(x)
        fx.print("sum {}", x.sum())
        return x

    n = len(devices)
    x = jax.device_put(jnp.arange(float(n)), jax.NamedSharding(mesh, jax.P("i")))
    expected = [*(f"{float(i)}" for i in range(n)), *(f"then {i + 1.0}" for i in range(n)), f"sum {n * (n + 1) / 2}"]
    assert lines(f, x) == expected
    with fx.capture(suppress=True) as records:
        f(x)
    assert [r.device for r in records if r.effect == "print"] == [*range(n), *range(n), -1 if n > 1 else 0]


def test_program_waits_for_the_search_of_a_watched_function(lines):
    """With `mode="stop"` the function is compiled and run once more on the device whose program waits meanwhile."""
    f = fx.jit(fx.watch(lambda x: jnp.log(x), mode="stop"))
    assert np.isfinite(f(jnp.float32([3, 1, 2]))).all()
    with pytest.raises(fx.NonFinite, match="`log` made nan at index"):
        jax.block_until_ready(f(jnp.float32([3, -1, 2])))
    assert lines(fx.jit(lambda x: fx.print("then {}", x)), 1) == ["then 1"]
