"""The first program of the README, which shows what it prints.

python examples/first_program.py
"""

import jax

import effects as fx


@fx.jit
def collatz(n):
    def step(carry):
        n, i = carry
        n = jax.lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n)
        fx.print("step {}: {n}", i, n=n)
        return n, i + 1

    return jax.lax.while_loop(lambda carry: carry[0] != 1, step, (n, 1))[1] - 1


steps = collatz(6)
fx.effects_barrier()
print("reached 1 after", steps, "steps")
