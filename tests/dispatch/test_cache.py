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

x = np.float32(2)
for function in (program, anonymous):
    events.clear()
    fx.jit(function)(x)
    fx.effects_barrier()
    print(json.dumps([event for event in events if event in ("cache_hits", "cache_misses")]))
"""


@pytest.mark.parametrize("sharded", [False, True], ids=["one device", "four devices"])
def test_second_process_hits_the_cache_and_prints(tmp_path, sharded):
    """A program from the cache prints, logs and calls registered functions; one with another function never hits."""
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    code = CODE
    if sharded:
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        code = code.replace(
            "x = np.float32(2)",
            "mesh = jax.sharding.Mesh(np.array(jax.devices()), ('d',))\n"
            "x = jax.device_put(np.float32(2), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))",
        )
    for process, found in ((1, "cache_misses"), (2, "cache_hits")):
        done = run_python(code.replace("PROCESS", str(process)), env=env)
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
            json.dumps(["cache_misses"]),
        ]
