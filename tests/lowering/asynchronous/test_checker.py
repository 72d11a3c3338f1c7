"""Every future is used up once: what is refused, with the lines of both ends, and what is not."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.dispatch.calling import threaded
from effects.lowering.passes import futures
from effects.lowering.passes.futures import check_futures
from effects.lowering.passes.jax_callbacks import take_over
from tests.helpers import meet_barrier

done = fx.async_done
X = jnp.arange(2.0) + 1


def start(x):
    return fx.async_start(lambda x: x, x, name="op")


def marked(f, mark):
    """The line of a function that ends with a comment."""
    lines, first = inspect.getsourcelines(f)
    (at,) = (at for at, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))
    return f"{__file__}:{first + at}"


def refusal(f, *args):
    """What the user is told of a program, in three sentences, with the marked lines."""
    with pytest.raises(fx.FutureError) as raised:
        fx.jit(f).lower(*(args or [X]))
    message = str(raised.value)
    for mark in ("start", "end", "first", "loop"):
        if f"# {mark}\n" in inspect.getsource(f):
            assert marked(f, mark) in message
    return message


def test_never_done():
    def f(x):
        fx.async_start(jnp.sin, x)  # start
        return x

    assert "`sin` that starts at" in (message := refusal(f))
    assert "is never done. What is started is done once" in message


def test_done_twice():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        y = done(future)  # first
        return y + done(future)  # end

    message = refusal(f)
    assert "is done at" in message
    assert "and was done at" in message
    assert "Keep the results of the first done" in message


def test_done_twice_in_functions():
    def f(x):
        future = jax.jit(start)(x)
        y = jax.jit(lambda future: done(future))(future)  # first
        return y + jax.checkpoint(lambda future: done(future))(future)  # end

    assert "and was done at" in refusal(f)


def test_done_in_one_branch():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        return jax.lax.cond(  # loop
            x[0] > 0,
            lambda future, x: done(future),  # end
            lambda future, x: x,
            future,
            x,
        )

    assert "in one branch of the `cond` or `switch` at" in refusal(f)


def test_started_and_dropped_in_a_branch():
    def f(x):
        return jax.lax.cond(
            x[0] > 0,
            lambda x: (fx.async_start(jnp.sin, x), x)[1],  # start
            lambda x: x,
            x,
        )

    assert "is never done" in refusal(f)


def test_future_in_one_branch_and_number_in_another():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        other = fx.Future(x * 2, future.operation, future.structure)
        return done(jax.lax.cond(x[0] > 0, lambda: future, lambda: other))  # loop

    assert "returns a number in its place" in refusal(f)


def test_started_and_dropped_in_a_loop():
    def f(x):
        def body(i, x):
            fx.async_start(jnp.sin, x)  # start
            return x

        return jax.lax.fori_loop(0, 3, body, x)  # loop

    assert "is dropped in the loop at" in refusal(f)


def test_carried_future_dropped_in_a_loop():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start

        def body(carry):
            i, future = carry
            return i + 1, fx.Future(fx.async_start(jnp.sin, x).ticket, future.operation, future.structure)

        return done(jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, future))[1])  # loop

    assert "is dropped in the loop at" in refusal(f)


def test_constant_of_a_loop():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start

        def body(i, y):
            return y + done(future)  # end

        return jax.lax.fori_loop(0, 3, body, x)  # loop

    assert "in each iteration of the loop at" in refusal(f)


def test_done_by_the_condition_of_a_loop():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start

        def go_on(y):
            return (y + done(future)).sum() < 3  # end

        return jax.lax.while_loop(go_on, lambda y: y + 1, x)  # loop

    assert "in each iteration of the loop at" in refusal(f)


def test_loop_that_does_not_carry_on():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start

        def body(i, future):
            return fx.Future(done(future), future.operation, future.structure)

        return done(jax.lax.fori_loop(0, 3, body, future))  # loop

    assert "its body has a number in its place" in refusal(f)


def test_done_behind_the_loop_that_takes_it():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        last = jax.lax.fori_loop(0, 3, lambda i, future: start(done(future)), future)  # first
        return done(last) + done(future)  # end

    message = refusal(f)
    assert "was taken by a loop at" in message
    assert "Go on with the future that came out of there." in message


def test_updated_after_done():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        y = done(future)  # first
        fx.async_update(future)  # end
        return y

    message = refusal(f)
    assert "is updated at" in message
    assert "and was done at" in message


def test_updated_by_two():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        one = fx.async_update(future)  # first
        two = fx.async_update(future)  # end
        return done(one) + done(two)

    message = refusal(f)
    assert "and was updated at" in message
    assert "Go on with the future that the update returned." in message


def test_done_after_update():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        fx.async_update(future)  # first
        return done(future)  # end

    assert "and was updated at" in refusal(f)


def test_used_as_a_number():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        future = jax.tree.map(lambda ticket: ticket * 2, future)  # end
        return done(future)

    assert "is used as a number by `mul` at" in refusal(f)


def test_started_with_a_ticket():
    def f(x):
        future = fx.async_start(jnp.sin, x)  # start
        return done(fx.async_start(jnp.negative, done(fx.async_start(lambda x: x, future.ticket))))  # end

    assert "is used as a number by `async_start` at" in refusal(f)


def test_chosen_by_where():
    def f(x):
        one = fx.async_start(jnp.sin, x)
        two = fx.async_start(jnp.sin, x * 2)  # start
        ticket = jnp.where(x[0] > 0, one.ticket, two.ticket)
        return done(fx.Future(ticket, one.operation, one.structure))

    assert "is chosen by a `where` at" in refusal(f)


def test_leaked():
    def f(x):
        return fx.async_start(jnp.sin, x)  # start

    assert "is returned from the program without being done" in refusal(f)


def test_leaked_from_a_region():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        def local(x):
            return fx.psum_start(x, "i").ticket  # start

        return jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)

    assert "`psum`" in (message := refusal(f, jnp.arange(8.0)))
    assert "is returned from the program without being done" in message


@pytest.mark.parametrize("control", ["cond", "while"])
def test_predicate_that_differs_between_lanes(control):
    def branch(x):
        future = fx.async_start(jnp.sin, x)  # start
        return jax.lax.cond(x > 0, lambda f: done(f), lambda f: 2 * done(f), future)  # end

    def loop(x):
        future = fx.async_start(lambda x: x, x)  # start
        _, future = jax.lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1, start(done(c[1]))), (0.0, future))
        return done(future)

    f = {"cond": branch, "while": loop}[control]
    with pytest.raises(fx.FutureError) as raised:
        fx.jit(jax.vmap(f)).lower(X)
    message = str(raised.value)
    assert "a predicate that differs between the lanes of a `vmap`" in message
    if control == "cond":
        assert marked(f, "start") in message
        assert marked(f, "end") in message


def test_future_of_another_program():
    def f(future):
        return done(future)  # end

    def g(x):
        future = fx.async_start(jnp.sin, x)
        kept.append(fx.Future(np.ones(2, np.float32), future.operation, future.structure))
        return done(future)

    kept = []
    fx.jit(g).lower(X)
    assert "is no future of this program" in refusal(f, kept[0])

    def constant(x):
        return done(kept[0])  # end

    assert "is no future of this program" in refusal(constant)


# What is valid


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
            check_futures(take_over(jax.make_jaxpr(change(f))(X)))


def test_condition_of_a_loop_may_start_and_end():
    f = fx.jit(lambda x: jax.lax.while_loop(lambda y: done(start(y)).sum() < 9, lambda y: y + 1, x))
    np.testing.assert_array_equal(f(X), X + 3)


def test_zeros_are_a_future_of_zeros():
    """Derivatives make them. They are done once, twice or not at all."""

    def f(x):
        future = start(x)
        zeros = fx.Future(jnp.zeros(2), future.operation, future.structure)
        return done(future) + done(zeros) + done(zeros)

    np.testing.assert_array_equal(fx.jit(f)(X), X)
    meet_barrier()


# What analysis does not see


@pytest.mark.parametrize("kind", ["value", "host", "exchange"])
def test_unknown_ticket_is_an_error(monkeypatch, kind):
    """And never a wait, whatever let the ticket through."""
    monkeypatch.setattr(threaded, "check_futures", lambda jaxpr: None)
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
    with pytest.raises(Exception, match="was not started"):
        jax.block_until_ready(fx.jit(f)(jnp.arange(8.0) if kind == "exchange" else X))
        meet_barrier()
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
    """Else nested functions would cost what the program costs to run."""
    counted = itertools.count()
    apply = futures._Run._apply
    monkeypatch.setattr(futures._Run, "_apply", lambda *args: (next(counted), apply(*args))[1])

    def twice(f):
        return jax.jit(lambda x: f(f(x)))

    f = lambda x: done(start(x))  # noqa: E731
    for _ in range(20):
        f = twice(f)
    check_futures(jax.make_jaxpr(f)(X))
    assert next(counted) < 100
