"""Rings of devices: each sends to its neighbour, and computes until the neighbour's value is there.

Each function is one example: a program of one device, beside the same with `jax.lax.ppermute`, which sends and waits.
What it prints stands in its docstring. `python examples/async/rings.py` runs all of them: on all GPUs, or on eight
devices of the CPU.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import effects as fx


def _neighbours():
    count = jax.device_count()
    return [(i, (i + 1) % count) for i in range(count)]


def _send(x):
    return fx.ppermute_start(x, "ring", _neighbours())


def _send_and_wait(x):
    return jax.lax.ppermute(x, "ring", _neighbours())


def _compare(program, synchronous):
    """Two programs of one device give the same on a ring of all devices, and so do their derivatives and lanes."""
    mesh = jax.make_mesh((jax.device_count(),), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.linspace(0.5, 1, 6 * jax.device_count()).reshape(-1, 3)

    def results(jit, program):
        def on_ring(program):
            return jax.shard_map(program, mesh=mesh, in_specs=P("ring"), out_specs=P("ring"))

        yield "values", jit(on_ring(program))(x)
        yield "derivatives", jit(jax.grad(lambda x: jnp.sin(on_ring(program)(x)).sum()))(x)
        yield "lanes", jit(on_ring(jax.vmap(program)))(x)

    for (what, value), (_, expected) in zip(results(fx.jit, program), results(jax.jit, synchronous), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        print("the same", what)


def overlap():
    """What stands between the start and the done is computed while the values are on their way.

    the same values
    the same derivatives
    the same lanes
    """

    def program(x):
        future = _send(x)
        y = jnp.sin(x)
        return y + fx.async_done(future)

    def synchronous(x):
        return jnp.sin(x) + _send_and_wait(x)

    _compare(program, synchronous)


def loop():
    """A start and its done in one turn of a loop: each turn passes the values on by one device.

    the same values
    the same derivatives
    the same lanes
    """

    def program(x):
        def turn(_, carry):
            x, total = carry
            future = _send(x)
            total = total + x * x
            return fx.async_done(future), total

        return jax.lax.fori_loop(0, 3, turn, (x, x))[1]

    def synchronous(x):
        return jax.lax.fori_loop(0, 3, lambda _, carry: (_send_and_wait(carry[0]), carry[1] + carry[0] ** 2), (x, x))[1]

    _compare(program, synchronous)


def staggered():
    """A loop that carries a future: what one turn starts, the next turn finishes. The last is done behind the loop.

    the same values
    the same derivatives
    the same lanes
    """

    def program(x):
        def turn(_, future):
            return _send(jnp.sin(fx.async_done(future)))

        return fx.async_done(jax.lax.fori_loop(0, 3, turn, _send(x)))

    def synchronous(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: _send_and_wait(jnp.sin(x)), _send_and_wait(x))

    _compare(program, synchronous)


def accumulate():
    """The sum of a function over the ring: each turn passes a value on at once, and adds to the sum meanwhile.

    the same values
    the same derivatives
    the same lanes
    """

    def program(x):
        def turn(carry, _):
            total, future = carry
            x = fx.async_done(future)
            future = _send(x)
            return (total + jnp.exp(x), future), None

        future = _send(x)
        (total, future), _ = jax.lax.scan(turn, (jnp.exp(x), future), length=jax.device_count() - 2)
        return total + jnp.exp(fx.async_done(future))

    def synchronous(x):
        def turn(carry, _):
            total, x = carry
            x = _send_and_wait(x)
            return (total + jnp.exp(x), x), None

        return jax.lax.scan(turn, (jnp.exp(x), x), length=jax.device_count() - 1)[0][0]

    _compare(program, synchronous)


EXAMPLES = [overlap, loop, staggered, accumulate]

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    if jax.device_count() < 2:
        sys.exit("A ring needs two devices, and there is one. `JAX_PLATFORMS=cpu` takes eight of the CPU.")
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
