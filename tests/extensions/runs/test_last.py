"""`effects show --last` says where a run stands: what has not ended, what is not known to have, and what has failed."""

from __future__ import annotations

import json
import os
import signal
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.helpers import run_python
from tests.internals import _cli, wire
from tests.processes import run_processes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.fx"


def last_of(capsys, *paths):
    """What `--last` says, as text and as JSON."""
    capsys.readouterr()
    assert _cli.main(["show", "--last", *map(str, paths)]) == 0
    text = capsys.readouterr().out
    assert _cli.main(["show", "--last", "--json", *map(str, paths)]) == 0
    return text, json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["processes"]


def raises_in_trace(x):
    fx.print("{}", x)
    raise KeyError("traced")


def raises_nested(x):
    fx.jit(raises_in_trace)(x)


def raises_from_callback(x):
    raise ValueError("called")


def fails(x):
    return fx.callback(raises_from_callback, x, x)


def interrupted(x):
    fx.print("{}", x)
    raise KeyboardInterrupt


ENDS = {
    "traced": (raises_in_trace, KeyError),
    "nested": (raises_nested, KeyError),
    "interrupted": (interrupted, KeyboardInterrupt),
    "checked": (lambda x: fx.error_if(x > 0, "no"), Exception),
    "without effects": (lambda x: x + 1, None),
    "effects": (lambda x: fx.print("{}", x), None),
    "callback": (lambda x: fx.callback(lambda x: x, x, x), None),
    "failed": (fails, Exception),
}


@pytest.mark.parametrize("how", [fx.jit, lambda f: f], ids=["fx.jit", "eager"])
@pytest.mark.parametrize("name", ENDS)
def test_what_has_ended_is_not_said_to_go_on(name, how, path, capsys):
    """Also a call that fails while it is traced, in its program, or by an interrupt; as the first one and as a later
    one of its function."""
    function, error = ENDS[name]
    with fx.record(path):
        fx.jit(lambda x: fx.print("first {}", x))(1.0)
        for _ in range(2):
            if error is None:
                how(function)(jnp.float32(1))
                fx.effects_barrier()
            else:
                with pytest.raises(error):
                    jax.block_until_ready(how(function)(jnp.float32(1)))
                    fx.effects_barrier()
        jax.effects_barrier()
        capsys.readouterr()
    text, [process] = last_of(capsys, path)
    assert process["state"] == "ended" and "has not ended" not in text
    assert all(program["closed"] is not None for program in process["programs"])
    if name != "without effects":
        assert "All calls have returned" in text, text


HANGS = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, effects as fx
from tests.internals import wire
jax.config.update("jax_num_cpu_devices", 2)
is_asked, lock = threading.Event(), threading.Event()

def wait(x):
    is_asked.set()
    lock.wait()
    return x

@fx.jit
def step(x):
    fx.print("before {{}}", x)
    return jax.pure_callback(wait, x, x)

fx.record({path!r})
with fx.config.override(stall_seconds=0.4):
    for _ in range({calls}):
        fx.jit(lambda x: fx.log("ahead", x=x))(0.5)
    step(jnp.float32(1))
    is_asked.wait()
    fx.effects_barrier()
    print("hangs", flush=True)
    for line in sys.stdin:
        break
os.kill(os.getpid(), signal.SIGKILL)
"""
