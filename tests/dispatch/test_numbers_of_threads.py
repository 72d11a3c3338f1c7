"""Numbers of threads: each is used again, and means one thread at a time."""

from __future__ import annotations

import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.raising import Boom
from tests.internals import Numbers, runtime, wire

P = jax.sharding.PartitionSpec
FIRST = itertools.count(1 << 18, 100)  # numbers that no other test uses


@pytest.fixture
def numbers(monkeypatch):
    """`numbers(count)`: from now on there are so many for threads that call programs."""

    def limit(count, name="numbers"):
        first = next(FIRST)
        monkeypatch.setattr(runtime.streams, name, Numbers(range(first, first + count)))
        return range(first, first + count)

    return limit


@pytest.fixture
def records():
    """All records of prints."""
    seen = []
    with fx.add_handler(seen.append, effects="print"):
        yield seen


def _in_thread(run, *args):
    thread = threading.Thread(target=run, args=args)
    thread.start()
    thread.join()


_look = fx.jit(lambda: fx.print("the drain looks after ended threads while programs run"))


def _wait_until_forgotten(number):
    """Waits until nothing of a thread that has ended is left, and raises nothing."""
    while number in [stream.thread for stream in runtime.streams.all()]:
        _look()
        assert not runtime.waiting.for_all(60)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_numbers_are_used_again_while_other_threads_run(numbers, records, devices):
    """Many threads have few numbers, one after the other, and no two of their calls have one place."""
    mesh = jax.make_mesh((devices,), ("i",))
    x = jax.device_put(jnp.arange(devices), jax.NamedSharding(mesh, P("i")))

    @fx.jit
    @jax.shard_map(mesh=mesh, in_specs=(P("i"), P()), out_specs=P())
    def f(x, n):
        fx.print("{} {}", n, x[0])

    go_on, seen = threading.Event(), []

    def calls(n, count):
        seen.append(runtime.streams.current().thread)
        for _ in range(count):
            f(x, np.int32(n))

    def calls_meanwhile():
        calls(0, 1)
        while not go_on.is_set():
            f(x, np.int32(0))
            fx.effects_barrier(timeout=60)

    f(x, np.int32(0))
    _look()
    few = numbers(4)
    other = threading.Thread(target=calls_meanwhile)
    other.start()
    for n in range(1, 41):
        _in_thread(calls, n, 3)
        _wait_until_forgotten(seen[-1])
    go_on.set()
    other.join()
    fx.effects_barrier(timeout=60)
    first, *others = seen
    assert {*seen} == {*few} and first not in others
    of_threads = [record for record in records if len(record.args) == 2 and record.args[0]]
    assert [int(record.args[0]) for record in of_threads] == [*np.repeat(np.arange(1, 41), 3 * devices)]
    assert len({(*record.token, record.device) for record in of_threads}) == len(of_threads) == 120 * devices


def test_error_where_all_numbers_are_in_use(numbers, lines):
    """The call that needs one more raises, and so does the next, until a thread has ended."""
    few = numbers(2)
    f, plain = fx.jit(lambda x: fx.print("{}", x)), fx.jit(lambda x: x + 1)
    go_on, used, errors = threading.Event(), threading.Barrier(3), []

    def holds():
        f(1)
        used.wait(60)
        go_on.wait(60)

    def is_refused():
        for _ in range(2):
            with pytest.raises(fx.EffectError) as info:
                f(2)
            errors.append(str(info.value))
        fx.effects_barrier(timeout=60)  # needs none
        plain(1)  # nor does a program that is known to have no effects

    def calls():
        threads = [threading.Thread(target=holds) for _ in few]
        for thread in threads:
            thread.start()
        used.wait(60)
        _in_thread(is_refused)
        go_on.set()
        for thread in threads:
            thread.join()
        _wait_until_forgotten(few[0])
        _in_thread(f, 3)

    f(0)
    plain(0)
    printed = lines(calls)
    assert [line for line in printed if line.isdigit()] == ["1", "1", "3"]
    assert len(errors) == 2 and all("while 2 threads had all the numbers" in error for error in errors)


def test_failure_of_an_ended_thread_is_no_later_threads(numbers):
    """While what it raised is kept for a barrier, its number is no other's."""

    def raises(x):
        raise Boom(str(x))

    f, g = fx.jit(lambda x: fx.callback(raises, None, x)), fx.jit(lambda x: fx.callback(lambda x: None, None, x))
    few, seen = numbers(2), []

    def calls(program):
        program(1)
        seen.append(runtime.streams.current().thread)

    def calls_in_thread(program):
        _in_thread(calls, program)
        _wait_until_forgotten(seen[-1])

    for program in (f, g, g, g):
        calls_in_thread(program)
    assert seen == [few[0], few[1], few[1], few[1]]
    with pytest.raises(fx.EffectError, match="raises"):
        fx.effects_barrier(timeout=60)
    calls_in_thread(g)
    assert seen[-1] == few[0]
    fx.effects_barrier(timeout=60)


def test_nested_numbers_are_used_again(numbers, lines):
    """Functions that run beside their programs have numbers too, for what they call."""
    few = numbers(5, "nested_numbers")
    inner = fx.jit(lambda x: fx.print("inner {}", x))
    seen = []

    def function(x):
        inner(x)
        seen.append(runtime.streams.current().thread)
        return x + 1

    @fx.jit
    def f(x):
        fx.print("begin {}", x)
        y = fx.async_done(fx.async_callback(function, jax.ShapeDtypeStruct((), jnp.int32), x))
        fx.print("end {}", y)

    def calls():
        for n in range(20):
            f(jnp.int32(n))
            fx.effects_barrier(timeout=60)
            _wait_until_forgotten(seen[-1])

    printed = [line for line in lines(calls) if not line.startswith("the drain")]
    assert printed == [line for n in range(20) for line in (f"begin {n}", f"inner {n}", f"end {n + 1}")]
    assert {*seen} <= {*few} and len(seen) == 20


def _is_token(array):
    return array.shape == (wire.TOKEN_LENGTH,) and array.dtype == jnp.uint32


@pytest.mark.slow
def test_cells_of_ended_threads_are_used_again(gates):
    """A token on a device that an ended thread has left gives its cell back when the program is over."""
    x = jax.device_put(jnp.float32(0), jax.devices()[1])
    seen, newest = [], []

    def calls(gate):
        y = fx.jit(lambda x: (fx.print("{}", gate(x)), x)[1])(x)  # returns before the program is over
        seen.append(runtime.streams.current().thread)
        tokens = [np.asarray(one) for one in jax.live_arrays() if _is_token(one) and one.is_ready()]
        newest.append(max(int(token[1]) for token in tokens if token[0] == wire.stream_of(wire.PLACED_THREAD)))
        gate.open()
        y.block_until_ready()

    for _ in range(8):
        _in_thread(calls, gates())
        _wait_until_forgotten(seen[-1])
    assert newest[-1] <= newest[2]
