"""Effects of programs that JAX dispatches have places among those of `fx.jit`, and neither wait for good."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx

F32 = jax.ShapeDtypeStruct((), jnp.float32)


@pytest.mark.parametrize("inner", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_effects_of_one_thread_are_in_order(inner, lines):
    """Whichever dispatches them: prints, callbacks with results and without, outside of programs too."""
    seen = []

    def show(text, x):
        fx.print(f"{text} {{}}", x)
        fx.callback(lambda x: seen.append(f"{text} {x}"), None, x)
        return fx.callback(lambda x: x + 1, F32, x)

    plain = jax.jit(lambda x: show("plain", x))
    ours, outer = inner(lambda x: show("ours", x)), fx.jit(lambda x: show("outer", x))

    def run():
        x = jnp.float32(0)
        for _ in range(3):
            x = show("eager", outer(ours(plain(x))))

    expected = [
        f"{text} {4.0 * i + at}" for i in range(3) for at, text in enumerate(["plain", "ours", "outer", "eager"])
    ]
    assert lines(run) == expected
    assert seen == expected


def test_text_of_plain_programs_goes_to_the_present_output(capsys, tmp_path):
    """That is the one at the time at which it is written, whatever it was when the program was called."""
    f = jax.jit(lambda x: fx.print("{}", x))
    f(1)
    fx.effects_barrier()
    with (tmp_path / "out").open("w") as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        f(2)
        fx.effects_barrier()
    assert capsys.readouterr().out == "1\n"
    assert (tmp_path / "out").read_text() == "2\n"


def test_a_program_that_takes_what_another_thread_has_asked_for(lines, gates):
    """The callback of one comes when the other has been called, which waits for its result."""

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

    for turn in range(2):
        assert lines(run, turn) == [f"{turn + 1.0}"]


@pytest.mark.parametrize("outer", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_a_callback_that_waits_for_one_of_jaxs_programs(outer):
    """The latter comes behind the former, and goes ahead since its program waits for it."""
    seen, later = [], threading.Event()

    def waits(x):
        later.wait()
        seen.append("waits")

    def asked(x):
        seen.append("asked")
        later.set()
        return x

    outer(lambda x: fx.callback(waits, None, x))(jnp.float32(1))
    jax.jit(lambda x: fx.callback(asked, F32, x))(jnp.float32(2)).block_until_ready()
    fx.effects_barrier()
    assert seen == ["asked", "waits"]


@pytest.mark.parametrize("ordered", [True, False])
def test_barrier_does_not_wait_for_dropped_effects(ordered):
    """What a full ring drops ends, and what comes after it is shown."""
    seen = []
    with fx.config.override(when_full="drop"):
        f = jax.jit(lambda x: fx.callback(lambda x: seen.append(int(x[0])), None, x, ordered=ordered))
        for i in range(50):
            f(jnp.full(100_000, i))
        fx.effects_barrier()
    f(jnp.full(2, 50))
    fx.effects_barrier()
    assert seen[-1] == 50 and len(seen) <= 51
