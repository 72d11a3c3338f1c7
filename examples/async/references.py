"""Rings of devices that send from reference to reference: the done writes the target, and returns nothing.

Each function is one example: a program of one device with `jax.new_ref`, beside the same with values. What it prints
stands in its docstring. `python examples/async/references.py` runs all of them: on all GPUs, or on eight devices of the
CPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import effects as fx


def _neighbours():
    count = jax.device_count()
    return [(i, (i + 1) % count) for i in range(count)]


def _send(source, target):
    return fx.ppermute_start(source, target, "ring", _neighbours())


def _send_and_wait(x):
    return jax.lax.ppermute(x, "ring", _neighbours())


def _slots(x):
    return jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))


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
    """The source has been read when the start returns, so it may be written while the values are on their way.

    the same values
    the same derivatives
    the same lanes
    """

    def program(x):
        source, target = _slots(x)
        future = _send(source, target)
        source[...] = jnp.sin(source[...])
        fx.async_done(future)
        return source[...] + target[...]

    def synchronous(x):
        return jnp.sin(x) + _send_and_wait(x)

    _compare(program, synchronous)


def two_slots():
    """A buffer of two slots: while one is sent and computed with, the other is filled. Each turn goes forth and back.

    the same values
    the same derivatives
    the same lanes
    """

    def program(x):
        one, other = _slots(x)

        def turn(_, total):
            for full, empty in ((one, other), (other, one)):
                future = _send(full, empty)
                total = total + full[...] ** 2
                fx.async_done(future)
            return total

        return jax.lax.fori_loop(0, 2, turn, jnp.zeros_like(x))

    def synchronous(x):
        def turn(_, carry):
            x, total = carry
            return _send_and_wait(x), total + x**2

        return jax.lax.fori_loop(0, 4, turn, (x, jnp.zeros_like(x)))[1]

    _compare(program, synchronous)


def staggered():
    """A loop that carries the future of the second slot: the next turn is the one that fills it.

    the same values
    the same derivatives
    the same lanes
    """

    def program(x):
        one, other = _slots(x)

        def turn(_, future):
            fx.async_done(future)
            back = _send(other, one)
            computed = jnp.sin(other[...])
            fx.async_done(back)
            one[...] += computed
            return _send(one, other)

        fx.async_done(jax.lax.fori_loop(0, 2, turn, _send(one, other)))
        return other[...]

    def synchronous(x):
        def turn(_, x):
            return _send_and_wait(_send_and_wait(x) + jnp.sin(x))

        return jax.lax.fori_loop(0, 2, turn, _send_and_wait(x))

    _compare(program, synchronous)


EXAMPLES = [overlap, two_slots, staggered]

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
