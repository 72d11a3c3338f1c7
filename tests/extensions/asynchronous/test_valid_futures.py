"""Programs that use each of their futures once are accepted, whatever transformations make of them."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.extensions.asynchronous.primitives import ASYNC
from effects.extensions.asynchronous.tickets import Run, check_tickets
from effects.extensions.jax_callbacks.conversion import convert
from effects.lowering import tokens
from tests.helpers import meet_barrier

pytestmark = pytest.mark.slow

done = fx.async_done
X = jnp.arange(2.0) + 1


def start(x):
    return fx.async_start(lambda x: x, x, name="op")


def branch_that_hands_on(x):
    return done(jax.lax.cond(x[0] > 0, lambda f: start(done(f)), lambda f: f, start(x)))


def branches_that_swap(x):
    a, b = jax.lax.cond(x[0] > 0, lambda a, b: (a, b), lambda a, b: (b, a), start(x), start(2 * x))
    return done(a) - done(b)


def staggered(x):
    return done(jax.lax.fori_loop(0, 2, lambda i, f: start(jnp.sin(done(f))), start(x * x)))


def loop_from_a_constant(x):
    return done(jax.lax.fori_loop(0, 2, lambda i, f: start(x * done(f)), start(jnp.ones_like(x))))


def loop_that_swaps(x):
    a, b = jax.lax.fori_loop(0, 3, lambda i, c: (c[1], c[0]), (start(x), start(2 * x)))
    return done(a) - done(b)


def ring(x):
    def body(carry, y):
        out, future = carry
        z = done(future)
        return (out + y * z, start(z)), z

    (out, future), each = jax.lax.scan(body, (x, start(x)), jnp.stack([x, 2 * x]))
    return out * done(future) + each.sum(0)


def stacked(x):
    _, futures = jax.lax.scan(lambda c, x: (c, start(x)), 0, jnp.stack([x, 2 * x]))
    return jax.lax.scan(lambda c, f: (c + done(f), None), x, futures)[0]


def calls(x):
    future = jax.jit(lambda x: jax.jit(start)(x))(x)
    return jax.jit(jax.checkpoint(lambda f: jnp.sin(done(f))))(future)


@jax.custom_vjp
def product(x):
    return done(start(x))


product.defvjp(lambda x: (product(x), start(x)), lambda future, t: (done(future) * t,))


def custom_vjp(x):
    return product(x)


@jax.custom_jvp
def identity(x):
    return done(start(x))


@identity.defjvp
def identity_jvp(primals, tangents):
    return identity(*primals), done(start(*tangents))


def custom_jvp(x):
    return identity(x)


@jax.custom_batching.custom_vmap
def mapped(x):
    return done(start(x))


@mapped.def_vmap
def mapped_rule(size, batched, x):
    return done(start(2 * x)), True


def custom_vmap(x):
    return mapped(x)


def updates(x):
    return done(fx.async_update(start(x)))


def unasked(x):
    return done(start(2 * x)) + jax.lax.stop_gradient(done(start(x)))


def branch_in_lanes(x):
    return jax.vmap(lambda x: jax.lax.cond(x > 0, lambda x: done(start(x)), lambda x: x, x))(x)


def future_from_outside_of_lanes(x):
    future = start(x)
    return jax.vmap(lambda y: done(future) * y)(jnp.stack([x, x])).sum(0)


def zeros_that_are_numbers(x):
    return jax.lax.fori_loop(0, 2, lambda i, c: (c[0] + 1, done(start(c[1]))), (jnp.zeros_like(x), x))[1]


def while_(x):
    return done(jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, start(done(c[1]))), (0, start(x)))[1])


def on_devices(x):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(x):
        future = fx.ppermute_start(x, "i", [(i, (i + 1) % 4) for i in range(4)])
        future = jax.lax.fori_loop(
            0, 2, lambda i, f: fx.ppermute_start(done(f), "i", [(i, (i + 1) % 4) for i in range(4)]), future
        )
        return done(future) * done(fx.psum_start(x, "i"))

    return jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(jnp.concatenate([x, x]))[:2]


VALID = [
    branch_that_hands_on,
    branches_that_swap,
    staggered,
    loop_from_a_constant,
    loop_that_swaps,
    ring,
    stacked,
    calls,
    custom_vjp,
    custom_jvp,
    custom_vmap,
    updates,
    unasked,
    branch_in_lanes,
    future_from_outside_of_lanes,
    zeros_that_are_numbers,
    while_,
    on_devices,
]


def total(f):
    return lambda x: (f(x) * jnp.array([1.0, 3.0])).sum()


def in_lanes(f):
    return lambda x: jax.vmap(f)(jnp.stack([x, x]))


def in_scan(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]


WAYS = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(total(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x + 1,))[1],
    "remat": lambda f: jax.grad(total(jax.checkpoint(f))),
    "vmap": in_lanes,
    "vmap of grad": lambda f: in_lanes(jax.grad(total(f))),
    "grad of vmap": lambda f: jax.grad(lambda x: total(in_lanes(f))(x).sum()),
    "grad of scan": lambda f: jax.grad(total(in_scan(f))),
    "grad of scan of remat": lambda f: jax.grad(total(in_scan(jax.checkpoint(f)))),
    "grad of grad": lambda f: jax.grad(lambda x: jax.grad(total(f))(x).sum()),
    "jit": lambda f: jax.jit(fx.jit(f)),
}


def has_no_meaning(f, way):
    """What JAX refuses, and predicates that differ. In second derivatives JAX runs the forward rule of a `custom_vjp`
    without the backward one, which would do its future."""
    differentiates = "grad" in way or way == "remat"
    return (
        (f in (while_, custom_vmap) and differentiates)
        or (f is custom_vjp and way in ("jvp", "grad of grad"))
        or (f in (branch_that_hands_on, branches_that_swap) and "vmap" in way)
    )


@pytest.mark.parametrize("f", VALID, ids=lambda f: f.__name__)
def test_valid_program_is_accepted(f):
    for way, change in WAYS.items():
        if not has_no_meaning(f, way):
            check_tickets(convert(jax.make_jaxpr(change(f))(X)))


def test_condition_of_a_loop_may_start_and_end():
    f = fx.jit(lambda x: jax.lax.while_loop(lambda y: done(start(y)).sum() < 9, lambda y: y + 1, x))
    np.testing.assert_array_equal(f(X), X + 3)


def test_zeros_of_a_derivative_are_a_future_of_zeros():
    """What the loop is given does not depend on what is differentiated, so the first iteration's tangent is zeros."""
    derivative = fx.jit(lambda x: jax.jvp(loop_from_a_constant, (x,), (jnp.ones_like(x),))[1])
    np.testing.assert_array_equal(derivative(X), 2 * X)
    meet_barrier()


@pytest.mark.parametrize("check_vma", [True, False])
def test_run_state_in_a_region(check_vma):
    """To look into a `run_state` is to trace it once more, in the region that it is in."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        def body(ref):
            future = fx.psum_start(ref[...], "i")
            ref[...] = ref[...] * jax.lax.axis_index("i")
            ref[...] += done(future)

        return pallas.run_state(body)(x)

    region = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)
    np.testing.assert_array_equal(fx.jit(region)(jnp.arange(4.0)), [6, 7, 10, 15])
    meet_barrier()


# What analysis does not see


@pytest.mark.parametrize("kind", ["value", "host", "exchange"])
def test_unknown_ticket_is_an_error(monkeypatch, kind):
    """And never a wait, whatever let the ticket through."""
    monkeypatch.setitem(tokens._passes, ASYNC, tokens._passes[ASYNC]._replace(check=lambda jaxpr: None))
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def begin(x):
        if kind == "value":
            return start(x)
        if kind == "host":
            return fx.async_callback(lambda x: x, jax.ShapeDtypeStruct((2,), "float32"), x)
        return fx.psum_start(x, "i")

    def f(x):
        future = begin(x)
        forged = fx.Future(future.ticket + 7, future.operation, future.structure, future.finish)
        return done(future) + done(forged)

    if kind == "exchange":
        f = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    with pytest.raises(Exception, match="was not started") as raised:
        jax.block_until_ready(fx.jit(f)(jnp.arange(8.0) if kind == "exchange" else X))
        meet_barrier()
    lines, first = inspect.getsourcelines(f)
    (at,) = (at for at, line in enumerate(lines) if "done(forged)" in line)
    assert f"{__file__}:{first + at}" in str(raised.value)
    np.testing.assert_array_equal(fx.jit(lambda x: done(start(x)))(X), X)
    meet_barrier()


@pytest.mark.parametrize("kind", ["value", "host"])
def test_done_twice_in_a_program_of_jax(kind):
    """Which nothing checks."""

    def f(x):
        shape = jax.ShapeDtypeStruct((2,), "float32")
        future = start(x) if kind == "value" else fx.async_callback(lambda x: x, shape, x)
        return done(future) + done(future)

    with pytest.raises(Exception, match="was done before"):
        jax.block_until_ready(jax.jit(f)(X))
    if kind == "host":
        with pytest.raises(fx.EffectError, match="was done before"):
            meet_barrier()


def test_function_that_is_called_often_is_walked_once(monkeypatch):
    """Else nested functions would cost what the program costs to run, and these would not come to an end."""
    counted = itertools.count()
    apply = Run.apply
    monkeypatch.setattr(Run, "apply", lambda *args: (next(counted), apply(*args))[1])

    def twice(f):
        return jax.jit(lambda x: f(f(x)))

    f = lambda x: done(start(x))  # noqa: E731
    for _ in range(60):
        f = twice(f)
    jaxpr = jax.make_jaxpr(f)(X)
    check_tickets(jaxpr)
    assert next(counted) < 200
