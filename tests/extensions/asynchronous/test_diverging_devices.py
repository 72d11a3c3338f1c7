"""Asynchronous callbacks of the whole program behind regions in which devices start different numbers of operations."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import effects as fx
from tests.helpers import meet_barrier

P = jax.P
I32 = jax.ShapeDtypeStruct((), np.int32)
WAYS = ("straight", "carried", "lanes", "mapped")
REGIONS = (("x", "y"), ("x",), ("y",))


def add_one(x):
    return np.int32(x + 1)


def show_and_double(x):
    fx.print("function {}", x)
    return np.int32(2 * x)


def start(kind, x):
    return fx.async_callback(add_one, I32, x) if kind == "callback" else fx.async_start(lambda x: x + 1, x)


def region(x, axes, turns, kind):
    """Each device makes its number of turns, each of which adds one; the sum of what they get."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def of_device(numbers, x):
        number = numbers[0]
        turn = lambda _, x: fx.async_done(start(kind, x))  # noqa: E731
        return lax.fori_loop(0, jnp.array(turns)[number], turn, x + number)[None]

    many = 4 if len(axes) == 2 else 2
    options = {"in_specs": (P(axes), P()), "out_specs": P(axes), "axis_names": {*axes}, "check_vma": False}
    return jax.shard_map(of_device, mesh=mesh, **options)(jnp.arange(many, dtype=np.int32), x).sum()


def whole(x, way):
    """Starts and ends callbacks outside of regions."""
    if way == "straight":
        future = fx.async_callback(show_and_double, I32, x)
        fx.print("between {}", x)
        return fx.async_done(future)
    if way == "carried":
        again = lambda _, future: fx.async_callback(show_and_double, I32, fx.async_done(future) + 1)  # noqa: E731
        return fx.async_done(lax.fori_loop(0, 2, again, fx.async_callback(show_and_double, I32, x)))
    over = jax.vmap if way == "lanes" else lambda f: lambda xs: lax.map(f, xs)
    futures = over(lambda x: fx.async_callback(show_and_double, I32, x))(jnp.stack([x, x + 1]))
    return over(fx.async_done)(futures).sum()


def read(program, x):
    """What a program returns and prints."""
    lines = []

    def function(x):
        lines.append(f"function {x}")
        return 2 * x

    for step in program:
        if isinstance(step, tuple):
            _, turns, _ = step
            x = sum(x + number + count for number, count in enumerate(turns))
        elif step == "straight":
            lines.append(f"between {x}")
            x = function(x)
        elif step == "carried":
            for more in (0, 1, 1):
                x = function(x + more)
        else:
            x = function(x) + function(x + 1)
        x %= 97
    return x, lines


def run(program, x):
    def traced(x):
        for step in program:
            x = (region(x, *step) if isinstance(step, tuple) else whole(x, step)) % 97
        return x

    jitted = fx.jit(traced)
    with fx.capture() as records:
        results = [int(jitted(jnp.int32(x))) for _ in range(2)]
        meet_barrier()
    return results, [record.text for record in records if record.effect == "print"]


def agrees(program, x):
    result, lines = read(program, x)
    assert run(program, x) == ([result] * 2, lines * 2), program


def test_a_callback_behind_a_region_in_which_devices_diverge():
    """Device 3 starts four operations, and device 0 one."""
    agrees([(("x", "y"), (1, 2, 3, 4), "values"), "straight"], 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_as_they_are_read(seed):
    rng = random.Random(seed)

    def step():
        if rng.random() < 0.5:
            return rng.choice(WAYS)
        axes = rng.choice(REGIONS)
        return axes, tuple(rng.randint(0, 3) for _ in range(2 ** len(axes))), rng.choice(("values", "callback"))

    agrees([step() for _ in range(3)] + [rng.choice(WAYS)], rng.randint(0, 9))


CALLS = {
    "callback": lambda x: fx.callback(add_one, I32, x),
    "async_callback": lambda x: fx.async_done(fx.async_callback(add_one, I32, x)),
}
EXCHANGES = {
    "psum": (lambda x: fx.psum_start(x, "x"), lambda xs: [sum(xs)] * 4),
    "ppermute": (
        lambda x: fx.ppermute_start(x, "x", [(i, (i + 1) % 4) for i in range(4)]),
        lambda xs: [xs[-1], *xs[:-1]],
    ),
    "all_gather": (lambda x: fx.all_gather_start(x, "x"), lambda xs: [xs] * 4),
    "all_to_all": (
        lambda x: fx.all_to_all_start(x + jnp.arange(4), "x", 0, 0),
        lambda xs: [[x + i for x in xs] for i in range(4)],
    ),
    "psum_scatter": (
        lambda x: fx.psum_scatter_start(x + jnp.arange(4), "x"),
        lambda xs: [sum(xs) + 4 * i for i in range(4)],
    ),
}
"""By name: what starts an exchange of a value of each device, and what the devices get, of all values."""


@pytest.mark.parametrize("name", [*EXCHANGES][:1] + [pytest.param(n, marks=pytest.mark.slow) for n in [*EXCHANGES][1:]])
@pytest.mark.parametrize("places", ["ahead", pytest.param("both", marks=pytest.mark.slow)])
@pytest.mark.parametrize("call", ["callback", pytest.param("async_callback", marks=pytest.mark.slow)])
def test_exchange_among_loops_with_callbacks_of_each_devices_own_number(call, places, name):
    """A device that has no more callbacks waits where the exchange is done, and the others' callbacks are called."""
    start, read_exchange = EXCHANGES[name]

    @fx.jit
    @jax.shard_map(
        mesh=jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,)),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
    )
    def f(xs):
        count = lax.axis_index("x")
        calls = lambda x: lax.fori_loop(0, count, lambda _, x: CALLS[call](x), x)  # noqa: E731
        y = fx.async_done(start(calls(xs[0]))).astype(np.int32)
        return jax.vmap(calls)(y.reshape(-1))[None] if places == "both" else y.reshape(-1)[None]

    xs = [3, 5, 8, 13]
    exchanged = read_exchange([x + device for device, x in enumerate(xs)])
    more = np.arange(4)[:, None] if places == "both" else 0
    np.testing.assert_array_equal(f(jnp.array(xs, np.int32)), np.array(exchanged).reshape(4, -1) + more)
    meet_barrier()
