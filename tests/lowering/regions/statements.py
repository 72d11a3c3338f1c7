"""Random programs with regions, as lists of statements: what they are in JAX."""

import jax
import jax.numpy as jnp
from jax import lax

import effects as fx
from tests.lowering.regions.meshes import by_device

ONE = jax.ShapeDtypeStruct((1,), jnp.int32)


def _run(statements, n, x):
    """In a region: as JAX has it."""
    for what, *rest in statements:
        if what == "print":
            fx.print("print {} {}", n, x[0])
        elif what == "queued":
            fx.callback(lambda n, x: print("queued", n, x[0]), None, n, x)
        elif what == "sync":
            x = fx.callback(lambda n, x: (print("sync", n, x[0]), x + 1)[1], ONE, n, x)
        elif what == "talk":
            x = (x + lax.psum(x, "x")) % 97
        elif what == "jit":
            x = jax.jit(lambda n, x, inner=rest[0]: _run(inner, n, x))(n, x)
        elif what == "if":
            x = lax.cond(n % 2 == rest[0], lambda x, inner=rest[1]: _run(inner, n, x), lambda x: x, x)
        else:
            turns = n if rest[0] == "n" else rest[0]
            x = lax.fori_loop(0, turns, lambda _, x, inner=rest[1]: _run(inner, n, x), x)
    return x


def program_of(statements, x, by_device=by_device):
    for what, *rest in statements:
        if what == "print":
            fx.print("all {}", x)
        elif what == "scan":
            x = lax.scan(lambda x, _, inner=rest[0]: (program_of(inner, x, by_device), None), x, length=2)[0]
        else:
            body = lambda x, inner=rest[0]: _run(inner, lax.axis_index("x"), x)  # noqa: E731
            x = by_device(body, check_vma=rest[1])(x)
    return x
