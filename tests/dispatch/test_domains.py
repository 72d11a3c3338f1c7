"""A function that runs holds up no effect of another order domain, no unordered effect, and no barrier for these."""

from __future__ import annotations

import contextlib
import io
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx

SAVE, PROBE = (fx.register_effect(fx.Effect(f"test.domains.{name}")) for name in ("save", "probe"))
QUIET = fx.register_effect(fx.Effect("test.domains.quiet", ordered=False))
WAIT = {"timeout": 60}

HELD = {
    "callback": {},
    "of an effect": {"effect": SAVE},
    "unordered": {"ordered": False},
    "unordered of an effect": {"effect": QUIET, "ordered": False},
}
"""Callbacks that are held, by what they are given."""

NAMES = {
    "callback": "callback",
    "of an effect": SAVE.name,
    "unordered": "callback",
    "unordered of an effect": QUIET.name,
}

LINES = {
    "print": lambda i: fx.print("print {}", i),
    "test.domains.probe": lambda i: fx.print("probe {}", i, effect=PROBE),
    "test.domains.quiet": lambda i: fx.print("quiet {}", i, effect=QUIET, ordered=False),
    "print ": lambda i: fx.print("unordered {}", i, ordered=False),
    "test.domains.probe ": lambda i: fx.print("unordered probe {}", i, effect=PROBE, ordered=False),
}
"""Effects that do not wait for those, by their names."""


@pytest.mark.slow
@pytest.mark.parametrize("to_python", [False, True], ids=["native", "python"])
@pytest.mark.parametrize("where", ["in one program", "in several", "eagerly"])
@pytest.mark.parametrize("held", HELD)
def test_nothing_else_waits_for_a_function_that_runs(held, where, to_python):
    """While a function runs, effects of another domain and unordered ones come, before it or after, in the same program
    or a later one. A barrier for these returns, and a barrier for the function does not."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    seen: list[int] = []

    def function(i):
        begun.release()
        assert go_on.wait(240)
        seen.append(int(i))

    lines = {
        name: line
        for name, line in LINES.items()
        if not (name == "print" and held == "callback") and name.strip() != NAMES[held]
    }

    def body(i):
        for line in [*lines.values()][::2]:
            line(i)
        fx.callback(function, None, i, **HELD[held])
        for line in lines.values():
            line(i + 100)

    out = io.StringIO()
    count = 4
    with (
        contextlib.redirect_stdout(out),
        fx.add_handler(lambda record: None) if to_python else contextlib.nullcontext(),
    ):
        if where == "in one program":
            fx.jit(lambda x: [body(x[i]) for i in range(count)] and None)(np.arange(count))
        else:
            step = fx.jit(body) if where == "in several" else body
            for i in range(count):
                step(jnp.int32(i))
        assert begun.acquire(timeout=120)
        for name in lines:
            if (held, name) != ("callback", "print "):  # an ordered print would be of the function's domain
                fx.effects_barrier(effects=name.strip(), **WAIT)
        shown = out.getvalue().split("\n")[:-1]
        with pytest.raises(fx.BarrierTimeout):
            fx.effects_barrier(effects=NAMES[held], timeout=0.01)
        assert not seen
        go_on.set()
        fx.effects_barrier(effects=NAMES[held], **WAIT)
        assert sorted(seen) == [*range(count)]
        fx.effects_barrier(**WAIT)
    assert len(shown) == len(set(shown)) == count * (len(lines) + len([*lines][::2]))
    for start in ("print", "probe") if "print" in lines else ("probe",):
        numbers = [int(line.split()[1]) for line in shown if line.startswith(start)]
        assert numbers == [n for i in range(count) for n in (i, i + 100) if n in numbers]


def test_barrier_of_a_program_that_ends_with_a_function_that_runs():
    """A barrier for other effects returns, whether the host hears of the program's end before the function or after."""
    go_on = threading.Event()

    @fx.jit
    def program(x):
        fx.print("x = {}", x)
        fx.callback(lambda x: go_on.wait(240), None, x, effect=SAVE)

    with contextlib.redirect_stdout(io.StringIO()):
        for i in range(100):
            go_on.clear()
            program(i)
            try:
                fx.effects_barrier(effects="print", **WAIT)
            finally:
                go_on.set()
            fx.effects_barrier(**WAIT)
