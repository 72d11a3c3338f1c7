"""Programs of `fx.jit` and of `jax.jit` that wait for each other's places in the order."""

import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx
from tests.internals import supervisor

F32 = jax.ShapeDtypeStruct((), jnp.float32)


def test_a_program_that_takes_what_another_thread_has_asked_for(monkeypatch, caplog, lines, gates):
    """The callback of one comes when the other has been called, which waits for its result."""
    monkeypatch.setattr(supervisor, "_PATIENCE_AT_STALL", 0.3)

    @fx.jit
    def consume(x):
        fx.print("{}", x)
        return x

    consume(jnp.float32(0))
    fx.effects_barrier()

    def run(turn):
        gate, made = gates(), []
        produce = jax.jit(lambda x: fx.callback(lambda x: np.float32(x + 1), F32, gate(x)))
        thread = threading.Thread(target=lambda: made.append(produce(jnp.float32(turn))))
        thread.start()
        thread.join()
        consume(made[0])
        gate.open()
        fx.effects_barrier()

    with caplog.at_level(logging.WARNING):
        for turn in range(2):
            assert lines(run, turn) == [f"{turn + 1.0}"]
    [record] = [record for record in caplog.records if "waited for each other" in record.getMessage()]
    assert record.name == "effects" and "Write `fx.jit` in both places" in record.getMessage()


def test_a_program_that_runs_is_waited_for(monkeypatch):
    """Nothing is computed while a function runs, and it keeps its place."""
    monkeypatch.setattr(supervisor, "_PATIENCE_AT_STALL", 0.1)
    seen, later = [], threading.Event()

    def slow(x):
        later.wait(0.6)
        seen.append("slow")

    def asked(x):
        seen.append("asked")
        later.set()
        return x

    fx.jit(lambda x: fx.callback(slow, None, x))(jnp.float32(0))
    jax.jit(lambda x: fx.callback(asked, F32, x))(jnp.float32(1)).block_until_ready()
    fx.effects_barrier()
    assert seen == ["slow", "asked"]
