"""Threads that have ended: what they issued, and what it raised, belongs to whoever comes to a barrier."""

from __future__ import annotations

import concurrent.futures
import threading

import jax.numpy as jnp
import pytest

import effects as fx
from tests.effects.raising import Boom, good_program_runs


@pytest.fixture(params=["thread", "process"])
def order(request):
    with fx.config.override(order=request.param):
        yield request.param
        fx.effects_barrier(timeout=60)


def _in_thread(run):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def _raises(x):
    raise Boom(str(x))


def test_barrier_waits_for_threads_that_have_ended(order):
    """What a joined thread issued is visible after the barrier of the one that joined it."""
    seen, go_on = [], threading.Event()

    @fx.jit
    def f(x):
        fx.callback(lambda x: go_on.wait(60), None, x)
        fx.callback(lambda x: seen.append(int(x)), None, x)

    def run():
        for n in range(3):
            f(jnp.int32(n))

    f(jnp.int32(9))  # compiles, and waits in the main thread
    _in_thread(run)
    with pytest.raises(fx.BarrierTimeout):
        fx.effects_barrier(timeout=0)
    go_on.set()
    fx.effects_barrier(timeout=60)
    assert sorted(seen) == [0, 1, 2, 9]


def test_barrier_raises_what_threads_that_have_ended_raised(order):
    """Nobody else will. It is raised once."""
    f = fx.jit(lambda x: fx.callback(_raises, None, x))
    _in_thread(lambda: f(jnp.int32(1)))
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    assert str(info.value.__cause__) == "1"
    fx.effects_barrier(timeout=60)
    good_program_runs()


def test_whoever_waits_first_gets_what_ended_threads_raised(order):
    """It may be another thread than the one that joined it."""
    f = fx.jit(lambda x: fx.callback(_raises, None, x))
    errors = []

    def run():
        try:
            fx.effects_barrier(timeout=60)
        except fx.EffectError as error:
            errors.append(str(error.__cause__))

    _in_thread(lambda: f(jnp.int32(1)))
    _in_thread(run)
    assert errors == ["1"]
    fx.effects_barrier(timeout=60)


def test_threads_of_a_pool_are_waited_for_when_it_is_over(order):
    """All that an executor's threads have issued is visible after it, and a barrier."""
    seen = []
    f = fx.jit(lambda x: fx.callback(lambda x: seen.append(int(x)), None, x))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: f(jnp.int32(n)), range(20)))
    fx.effects_barrier(timeout=60)
    assert sorted(seen) == list(range(20))


def test_threads_that_live_keep_their_own(order):
    """What a thread that lives has issued is not waited for, and what it raised is raised in its own barrier."""
    failed, go_on = threading.Event(), threading.Event()
    errors = []

    def raises(x):
        failed.set()
        raise Boom(str(x))

    f = fx.jit(lambda x: fx.callback(raises, None, x))

    def run():
        f(jnp.int32(1))
        failed.wait(60)
        go_on.wait(60)
        try:
            fx.effects_barrier(timeout=60)
        except fx.EffectError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    failed.wait(60)
    fx.effects_barrier(timeout=60)
    go_on.set()
    thread.join()
    assert len(errors) == 1
    fx.effects_barrier(timeout=60)


def test_barrier_of_a_callback_does_not_wait_for_ended_threads():
    """The program that it belongs to may be one of an ended thread's: it would wait for itself."""
    seen = []

    def waits(x):
        fx.effects_barrier(timeout=60)
        seen.append(int(x))

    f = fx.jit(lambda x: fx.callback(waits, None, x))
    f(jnp.int32(0))  # compiles: a program that is not known yet might wait, and so waits for the callbacks before it
    fx.effects_barrier(timeout=60)
    go_on = threading.Event()
    blocks = fx.jit(lambda x: fx.callback(lambda x: go_on.wait(60), None, x))
    _in_thread(lambda: (blocks(jnp.int32(0)), f(jnp.int32(1))))
    _in_thread(lambda: f(jnp.int32(2)))
    go_on.set()
    fx.effects_barrier(timeout=60)
    assert sorted(seen) == [0, 1, 2]


def test_capture_waits_for_ended_threads():
    """Its barrier waits for them as any other does."""
    f = fx.jit(lambda x: fx.callback(_raises, None, x))
    with pytest.raises(fx.EffectError), fx.capture():
        _in_thread(lambda: f(jnp.int32(1)))
