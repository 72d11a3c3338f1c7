"""JAX's persistent compilation cache, between processes."""

from __future__ import annotations

import json

import pytest

from tests.helpers import run_python

CODE = """
import json, logging, sys
import jax, jax.monitoring, jax.numpy as jnp, numpy as np
import effects as fx

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rsplit("/", 1)[-1]))
logging.basicConfig(stream=sys.stdout, format="log %(message)s")
logging.getLogger("effects").setLevel(logging.INFO)

@fx.register_callback("cached")
def named(x):
    print("named", float(x))
    return np.float32(x + PROCESS)

def program(x):
    fx.print("x {:.2f} {} {}", x, {"a": x}, "text")
    fx.log("step", x=x)
    y = fx.callback(named, jax.ShapeDtypeStruct((), "float32"), x)
    jax.lax.fori_loop(0, 2, lambda i, c: fx.print("{}: {}", i, c) or c + y, y)
    jax.vmap(lambda i: fx.print("lane {}", i))(jnp.arange(2))

def anonymous(x):
    fx.callback(lambda x: print("anonymous of", PROCESS, float(x)), None, x)

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
on_all = jax.device_put(np.float32(2), jax.sharding.NamedSharding(mesh, jax.P()))
for function, x in ((program, on_all), (anonymous, np.float32(2))):
    events.clear()
    fx.jit(function)(x)
    fx.effects_barrier()
    print(json.dumps([event for event in events if event in ("cache_hits", "cache_misses")]))
"""


CLOSURES = """
import functools
import jax, jax.monitoring, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
import effects as fx

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rsplit("/", 1)[-1]))
FLOAT = jax.ShapeDtypeStruct((), "float32")

class Model:
    def __init__(self, k):
        self.k = k

    def save(self, x):
        print("saved", self.k, float(x))

def show(k, x):
    print("shown", k, float(x))

def make(k):
    model = Model(k)

    def program(x):
        fx.callback(lambda x: print("closure", k, float(x)), None, x)
        fx.callback(model.save, None, x)
        fx.callback(functools.partial(show, k), None, x)
        y = fx.callback(lambda x: np.float32(x + k), FLOAT, x)
        jax.debug.print("{!r} {}", x, {"y": y}, ordered=True)
        jax.debug.callback(lambda x: print("debug", k, float(x)), x, ordered=True)
        return y + io_callback(lambda x: np.float32(x * k), FLOAT, x, ordered=True)

    return program

x = np.float32(2)
programs = [fx.jit(make(k)) for k in (1, 2)]  # two closures of one code
for _ in range(2):
    for program in programs[::ORDER]:
        print(float(program(x)))
        fx.effects_barrier()
jax.clear_caches()
fx.jit(make(3))(x)
fx.effects_barrier()
print("compiled", "cache_misses" in events)
"""


def _shown_by_closure(k):
    return [
        f"closure {k} 2.0",
        f"saved {k} 2.0",
        f"shown {k} 2.0",
        f"Array(2., dtype=float32) {{'y': Array({2.0 + k:g}., dtype=float32)}}",
        f"debug {k} 2.0",
    ]


@pytest.mark.slow
def test_functions_without_a_name_are_found_in_their_process(tmp_path):
    """A second process finds programs with functions that are not registered, of ours and of JAX's, and calls its own.

    Two closures of one code stay two, in whatever order their programs are compiled.
    """
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for order, compiles in ((1, True), (-1, False)):
        done = run_python(CLOSURES.replace("ORDER", str(order)), env=env)
        assert done.returncode == 0, done.stderr
        expected = []
        for k in (1, 2)[::order] * 2:
            expected += [*_shown_by_closure(k), str(2.0 + k + 2 * k)]
        assert done.stdout.splitlines() == [*expected, *_shown_by_closure(3), f"compiled {compiles}"]


def test_second_process_hits_the_cache_and_prints(tmp_path):
    """A program from the cache prints, logs and calls functions of the process that runs it, registered or not."""
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for process, found in ((1, "cache_misses"), (2, "cache_hits")):
        done = run_python(CODE.replace("PROCESS", str(process)), env=env)
        assert done.returncode == 0, done.stderr
        y = 2.0 + process
        assert done.stdout.splitlines() == [
            "x 2.00 {'a': array(2., dtype=float32)} text",
            "log step x=2.0",
            "named 2.0",
            f"0: {y}",
            f"1: {2 * y}",
            "lane 0",
            "lane 1",
            json.dumps([found]),
            f"anonymous of {process} 2.0",
            json.dumps([found]),
        ]
