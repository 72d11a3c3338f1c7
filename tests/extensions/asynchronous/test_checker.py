"""Every future is used up once: what is refused, with the lines of both ends."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx

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
    """The text of the error that refuses a program. It has three sentences."""
    with pytest.raises(fx.FutureError) as raised:
        fx.jit(f).lower(*(args or [X]))
    message = str(raised.value)
    for mark in ("start", "end", "first", "loop"):
        if f"# {mark}\n" in inspect.getsource(f):
            assert marked(f, mark) in message
    return message


REFUSED = {}
"""By the names of their functions, programs, and what is said of each."""


def refused(*texts):
    return lambda f: REFUSED.setdefault(f.__name__, (f, texts))[0]


@refused("`sin` that starts at", "is never done. Each start has one done")
def never_done(x):
    fx.async_start(jnp.sin, x)  # start
    return x


@refused("is never done")
def updated_in_one_branch_and_never_done(x):
    future = fx.async_start(jnp.sin, x)  # start
    return jax.lax.cond(x[0] > 0, lambda future: (fx.async_update(future), x)[1], lambda future: x, future)


@refused("and was done at")
def copy_done_twice(x):
    """The second done is the mistake, and not the first one's use of the reference."""
    source, target = jax.new_ref(x), jax.new_ref(x)
    future = fx.copy_start(source, target)  # start
    done(future)  # first
    done(future)  # end
    return target[...]


@refused("is done at", "and was done at", "Keep the results of its done")
def done_twice(x):
    future = fx.async_start(jnp.sin, x)  # start
    y = done(future)  # first
    return y + done(future)  # end


@refused("and was done at")
def done_twice_in_functions(x):
    future = jax.jit(start)(x)
    y = jax.jit(lambda future: done(future))(future)  # first
    return y + jax.checkpoint(lambda future: done(future))(future)  # end


@refused("in one branch of the `cond` or `switch` at")
def done_in_one_branch(x):
    future = fx.async_start(jnp.sin, x)  # start
    return jax.lax.cond(  # loop
        x[0] > 0,
        lambda future, x: done(future),  # end
        lambda future, x: x,
        future,
        x,
    )


@refused("is never done")
def started_and_dropped_in_a_branch(x):
    begin = lambda x: (fx.async_start(jnp.sin, x), x)[1]  # noqa: E731  # start
    return jax.lax.cond(x[0] > 0, begin, lambda x: x, x)


@refused("returns a number in its place")
def future_in_one_branch_and_number_in_another(x):
    future = fx.async_start(jnp.sin, x)  # start
    other = fx.Future(jnp.ones_like(future.ticket) * x[0], future.operation, future.structure)
    return done(jax.lax.cond(x[0] > 0, lambda: future, lambda: other))  # loop


@refused("is dropped in the loop at")
def started_and_dropped_in_a_loop(x):
    def body(i, x):
        fx.async_start(jnp.sin, x)  # start
        return x

    return jax.lax.fori_loop(0, 3, body, x)  # loop


@refused("is dropped in the loop at")
def carried_future_dropped_in_a_loop(x):
    future = fx.async_start(jnp.sin, x)  # start

    def body(carry):
        i, future = carry
        return i + 1, fx.Future(fx.async_start(jnp.sin, x).ticket, future.operation, future.structure)

    return done(jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, future))[1])  # loop


@refused("in each iteration of the loop at")
def constant_of_a_loop(x):
    future = fx.async_start(jnp.sin, x)  # start

    def body(i, y):
        return y + done(future)  # end

    return jax.lax.fori_loop(0, 3, body, x)  # loop


@refused("in each iteration of the loop at")
def done_by_the_condition_of_a_loop(x):
    future = fx.async_start(jnp.sin, x)  # start

    def go_on(y):
        return (y + done(future)).sum() < 3  # end

    return jax.lax.while_loop(go_on, lambda y: y + 1, x)  # loop


@refused("its body has a number in its place")
def loop_that_does_not_carry_on(x):
    future = fx.async_start(jnp.sin, x)  # start

    def body(i, future):
        return fx.Future(jnp.ones_like(future.ticket) * done(future)[0], future.operation, future.structure)

    return done(jax.lax.fori_loop(0, 3, body, future))  # loop


@refused("was taken by a loop at")
def done_behind_the_loop_that_takes_it(x):
    future = fx.async_start(jnp.sin, x)  # start
    last = jax.lax.fori_loop(0, 3, lambda i, future: start(done(future)), future)  # first
    return done(last) + done(future)  # end


@refused(
    "as one of async_start of float32[2] (schedule=False, ",
    "and was started as async_start of float32[2] (schedule=True, ",
)
def done_as_another_operation(x):
    future = fx.async_start(jnp.sin, x)  # start
    other = fx.async_start(jnp.sin, x, schedule=False)
    done(fx.Future(other.ticket, other.operation, other.structure))
    return done(fx.Future(future.ticket, other.operation, future.structure))  # end


@refused("is updated at", "and was done at")
def updated_after_done(x):
    future = fx.async_start(jnp.sin, x)  # start
    y = done(future)  # first
    fx.async_update(future)  # end
    return y


@refused("and was updated at", "go on with the future that came out of the update")
def updated_by_two(x):
    future = fx.async_start(jnp.sin, x)  # start
    one = fx.async_update(future)  # first
    two = fx.async_update(future)  # end
    return done(one) + done(two)


@refused("and was updated at")
def done_after_update(x):
    future = fx.async_start(jnp.sin, x)  # start
    fx.async_update(future)  # first
    return done(future)  # end


@refused("is used as a number by `mul` at")
def used_as_a_number(x):
    future = fx.async_start(jnp.sin, x)  # start
    future = jax.tree.map(lambda ticket: ticket * 2, future)  # end
    return done(future)


@refused("is used as a number by `async_start` at")
def started_with_a_ticket(x):
    future = fx.async_start(jnp.sin, x)  # start
    return done(fx.async_start(jnp.negative, done(fx.async_start(lambda x: x, future.ticket))))  # end


@refused("is chosen by a `where` at")
def chosen_by_where(x):
    one = fx.async_start(jnp.sin, x)
    two = fx.async_start(jnp.sin, x * 2)  # start
    ticket = jnp.where(x[0] > 0, one.ticket, two.ticket)  # end
    return done(fx.Future(ticket, one.operation, one.structure))


@refused("is returned from the program without being done")
def leaked(x):
    return fx.async_start(jnp.sin, x)  # start


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """The error says what became of the future, and marks the lines of both ends."""
    f, texts = REFUSED[name]
    message = refusal(f)
    for text in texts:
        assert text in message


@pytest.mark.parametrize("place", ["branch", "loop"])
def test_futures_of_other_kinds_are_told_by_what_they_are_of(place):
    """JAX refuses these, and shows what our futures hold."""
    shape = jax.ShapeDtypeStruct((2,), "float32")

    def f(x):
        future = fx.async_start(jnp.sin, x)
        if place == "branch":
            return done(jax.lax.cond(x[0] > 0, lambda _: fx.async_callback(np.sin, shape, x), lambda f: f, future))
        return done(jax.lax.fori_loop(0, 3, lambda i, f: fx.async_callback(np.sin, shape, done(f)), future))

    with pytest.raises(TypeError) as raised:
        fx.jit(f)(X)
    assert "Future'> with pytree metadata (async_start of float32[2] (schedule=True, " in str(raised.value)
    assert "Future'> with pytree metadata (async_callback of float32[2] (schedule=True)" in str(raised.value)


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
        kept.append(fx.Future(np.ones(3, np.float32), future.operation, future.structure))
        return done(future)

    kept = []
    fx.jit(g).lower(X)
    assert "is no future of this program" in refusal(f, kept[0])

    def constant(x):
        return done(kept[0])  # end

    assert "is no future of this program" in refusal(constant)


def test_tangent_that_is_zeros_in_a_rule_of_the_users():
    """A rule of the user's may end the tangent of a future, but not zeros in its place."""

    @jax.custom_jvp
    def scaled(future, y):
        return done(future) * y

    def rule(primals, tangents):
        x, y = done(primals[0]), primals[1]
        return x * y, done(tangents[0]) * y + x * tangents[1]  # end

    scaled.defjvp(rule)

    def tangent(f):
        return lambda x: jax.jvp(f, (x,), (x,))[1]

    np.testing.assert_array_equal(fx.jit(tangent(lambda x: scaled(start(x), x)))(X), 2 * X * X)
    with pytest.raises(fx.FutureError, match="is no future of this program") as raised:
        fx.jit(tangent(lambda x: scaled(start(jnp.ones_like(x)), x))).lower(X)
    assert marked(rule, "end") in str(raised.value)


MESH = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def region(body, in_specs, out_specs):
    return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def test_callback_started_outside_of_a_region_and_done_inside():
    def f(x):
        future = fx.async_callback(np.sin, x, x)  # start
        return region(lambda x: done(future), P("i"), P("i"))(x)  # end

    message = refusal(f, jnp.arange(4.0))
    assert "outside of any `jax.shard_map`, is done at" in message
    assert "in a `jax.shard_map` over 'i'" in message


@pytest.mark.parametrize("started", ["values", "callback", "collective"])
def test_started_in_a_region_and_done_outside(started):
    begin = {
        "values": start,
        "callback": lambda x: fx.async_callback(np.sin, x, x),
        "collective": lambda x: fx.psum_start(x, "i"),
    }[started]

    def f(x):
        future = region(begin, P("i"), P())(x)
        return done(future)  # end

    message = refusal(f, jnp.arange(4.0))
    assert "in a `jax.shard_map` over 'i', is done at" in message
    assert "outside of any `jax.shard_map`. In a" in message


@pytest.mark.parametrize("call", [fx.async_done, fx.async_update])
@pytest.mark.parametrize("around", [jax.vmap, lambda f: functools.partial(jax.lax.map, f)], ids=["vmap", "map"])
def test_one_end_for_several_starts(call, around):
    """The futures of lanes or turns, taken for one."""

    def f(x):
        futures = around(start)(x)
        return call(futures)  # end

    message = refusal(f, jnp.ones((3, 2)))
    assert "has a ticket of shape (3, 3), and one of shape (3,) is wanted there" in message
    assert f"around `fx.{call.__name__}`" in message
