"""Looking into compiled programs: the examples with which JAX teaches debugging, with effects in order.

Each function is one example. What it prints stands in its docstring. `python examples/debugging.py` runs all of them.
"""

import logging
import sys

import jax
import jax.numpy as jnp
from jax.experimental import checkify

import effects as fx


def values():
    """Python's `print` shows what is known while tracing; `fx.print` shows values.

    while tracing: float32[]
    x = 2.0, named x = 2.0
    y = 0.909
    """

    @fx.jit
    def f(x):
        print(f"while tracing: {x.aval.str_short()}")
        fx.print("x = {}, named x = {x}", x, x=x)
        y = jnp.sin(x)
        fx.print("y = {:.3f}", y)
        return y

    f(jnp.float32(2))


def lanes():
    """`vmap` goes through the program with all lanes at once, `map` with one after the other. So do the lines.

    x: 0.0
    x: 1.0
    x: 2.0
    y: 0.0
    y: 1.0
    y: 4.0
    one by one
    x: 0.0
    y: 0.0
    x: 1.0
    y: 1.0
    x: 2.0
    y: 4.0
    """

    def f(x):
        fx.print("x: {}", x)
        y = x * x
        fx.print("y: {}", y)
        return y

    xs = jnp.arange(3.0)
    fx.jit(jax.vmap(f))(xs)
    fx.effects_barrier()
    print("one by one")
    fx.jit(lambda xs: jax.lax.map(f, xs))(xs)


def some_lanes():
    """Under a predicate that differs between lanes, only those print that are there: `cond` goes through the branch for
    False with its lanes, then through the one for True.

    positive: 3.0
    negative: -2.0
    negative: -1.0
    """

    def f(x):
        return jax.lax.cond(
            x < 0,
            lambda x: (fx.print("negative: {}", x), -x)[1],
            lambda x: (fx.print("positive: {}", x), x)[1],
            x,
        )

    fx.jit(jax.vmap(f))(jnp.array([-2.0, 3.0, -1.0]))


def forward():
    """Under `grad` an effect happens in the forward pass, once, compiled or not.

    x: 1.0
    x: 1.0
    """

    def f(x):
        fx.print("x: {}", x)
        return x * 2

    jax.grad(f)(1.0)
    fx.jit(jax.grad(f))(1.0)


def backward():
    """What flows backward is printed by `fx.print_grad`, in the iterations of a loop, from the last to the first.

    forward, turn 0
    forward, turn 1
    cotangent 1.0
    cotangent 3.0
    """

    def turn(x, i):
        fx.print("forward, turn {}", i)
        return fx.print_grad("cotangent {}", x * 3), None

    fx.jit(jax.grad(lambda x: jax.lax.scan(turn, x, jnp.arange(2))[0]))(1.0)


def order():
    """Lines come as they are written, although neither value depends on the other.

    x: 1
    y: 2
    """

    @fx.jit
    def f(x, y):
        fx.print("x: {}", x)
        fx.print("y: {}", y)
        return x + y

    f(1, 2)


def afterwards():
    """A call returns before its effects are visible. A barrier waits for them.

    x: 2.0
    everything is there
    """

    @fx.jit
    def f(x):
        fx.print("x: {}", x)
        return x

    f(2.0)
    fx.effects_barrier()
    print("everything is there")


def if_not_finite():
    """A condition decides at which values to look.

    not finite: inf
    """

    def look_if_not_finite(x):
        fx.print("not finite: {}", x, when=~jnp.isfinite(x).all())

    @fx.jit
    def f(x, y):
        z = x / y
        look_if_not_finite(z)
        return z

    f(2.0, 1.0)
    f(2.0, 0.0)


def to_logging():
    """A callback may do what it likes, such as logging; `fx.log` does that with the user's line.

    from a callback: 1.0
    step loss=1.0
    """
    logger = logging.getLogger("effects")
    handler = logging.StreamHandler(sys.stdout)
    logger.addHandler(handler)

    @fx.jit
    def f(x):
        fx.callback(lambda x: logger.warning("from a callback: %s", x), None, x)
        fx.log("step", level=logging.WARNING, loss=x)
        return x

    f(1.0)
    fx.effects_barrier()
    logger.removeHandler(handler)


def checks():
    """Checks that are made functional keep their effects, compiled inside or outside.

    index -1
    index -1
    the index must not be negative
    """

    def f(x, i):
        fx.print("index {}", i)
        checkify.check(i >= 0, "the index must not be negative")
        return x[i]

    x = jnp.ones(5)
    checkify.checkify(fx.jit(f))(x, -1)
    error, _ = fx.jit(checkify.checkify(f))(x, -1)
    fx.effects_barrier()
    print(error.get().partition(" (")[0])


EXAMPLES = [values, lanes, some_lanes, forward, backward, order, afterwards, if_not_finite, to_logging, checks]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
