"""Native functions in programs. Build the handlers as CMakeLists.txt says; then `python custom_call.py handlers.so`.

The output is asserted in tests/lowering/custom_call/test_elsewhere.py.
"""

import logging
import sys

import jax
import jax.numpy as jnp

import effects as fx

library = sys.argv[1]
for name in ("cyclic_add", "smooth", "root", "halve"):
    fx.register_custom_call(f"example.{name}", (library, name))

number = jax.ShapeDtypeStruct((), jnp.float32)


@fx.jit
def cyclic_add(a, b):
    """Sizes are known while tracing: they are attributes."""
    return fx.custom_call("example.cyclic_add", b, a, b, m=a.size, n=b.size)


@fx.jit
def smooth(x):
    """The handler gets memory to work in."""
    return fx.custom_call("example.smooth", x, x, scratch=x)


@fx.jit
def root(x):
    """The handler may fail."""
    return fx.custom_call("example.root", number, x)


@fx.jit
def halve(x):
    """What the handler says comes where it is called. An effect keeps the call, and keeps it in its place."""
    fx.print("before: {}", x)
    x = jax.lax.fori_loop(0, 2, lambda _, x: fx.custom_call("example.halve", number, x, effect="print"), x)
    fx.print("after: {}", x)
    return x


logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")

print(cyclic_add(jnp.array([10.0, 20.0, 30.0]), jnp.arange(5.0)))
print(smooth(jnp.array([0.0, 0.0, 27.0, 0.0, 0.0])))
print(root(2.0))
try:
    root(-2.0)
    fx.effects_barrier()
except fx.CustomCallError as error:
    print(error.target, error.code, error.message)
print(root(9.0))
halve(8.0)
fx.effects_barrier()
