"""Printing in order from a loop, a branch and a nested jit.

    python examples/ordered_printing.py

prints

    start at 10
    10 is even
      halving 10
    5 is odd
    6 is even
      halving 6
    3 is odd
    step 0 leaves 5
    step 1 leaves 6
    step 2 leaves 3
    step 3 leaves 4
    Python goes on
"""

import jax
import jax.numpy as jnp

import effects as fx


# A function that plain `jax.jit` compiled, and that prints. Called from inside an `fx.jit` function, its lines take
# their place among those of the caller.
@jax.jit
def halve(x):
    fx.print("  halving {}", x)
    return x // 2


# The branch that is taken prints; the other one does not. The data decides, while the program runs.
def next_number(x):
    def even(x):
        fx.print("{} is even", x)
        return halve(x)

    def odd(x):
        fx.print("{} is odd", x)
        return x + 1

    return jax.lax.cond(x % 2 == 0, even, odd, x)


# `fx.jit` instead of `jax.jit` is all that differs. A loop prints at every step, in order.
@fx.jit
def run(x):
    fx.print("start at {}", x)

    def step(x, _):
        x = next_number(x)
        return x, x

    _, visited = jax.lax.scan(step, x, length=4)
    jax.lax.fori_loop(0, 4, lambda i, _: fx.print("step {} leaves {}", i, visited[i]), None)
    return visited


visited = run(jnp.int32(10))

# The call has returned, perhaps before the program has run. The barrier returns when all its lines are out.
fx.effects_barrier()
print("Python goes on")
