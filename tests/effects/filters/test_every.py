"""`every=`: the first is shown and each n-th, wherever the line stands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import effects as fx
from tests.effects.filters.common import P, by_device, counts_of, loop, mesh, new_title, sharded, texts_of

JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}
NATIVE = [True, False]


def line(title, **options):
    """A function that prints one number in a line of its own."""
    options = {"every": 3, **options}
    return lambda i: fx.print(f"{title} {{}}", i, **options)


# Calls


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("jit", JITS)
def test_calls_of_a_function(jit, native):
    """Each call counts, of a program that is compiled once."""
    title = new_title()
    show = line(title)
    with fx.config.override(native=native):
        f = JITS[jit](lambda i: show(i))

        def train():
            for i in range(8):
                f(np.int32(i))

        assert texts_of(train) == ["0", "3", "6"]
        assert texts_of(train) == ["1", "4", "7"]  # the ninth is the second
    assert counts_of(title) == (16, 6)


def test_two_programs_with_one_line_count_together():
    """A line counts, not a program: shapes and transformations make several of one line."""
    title = new_title()
    show = line(title)
    f = fx.jit(lambda x: show(x.size))

    def calls():
        for size in (1, 2, 3, 1, 2, 3, 1):
            f(jnp.zeros(size))
        fx.jit(lambda: loop(3, show))()

    assert texts_of(calls) == ["1", "1", "1", "2"]
    assert counts_of(title) == (10, 4)


def test_two_lines_count_for_themselves():
    """Each line has its own count, and what one leaves out does not disturb the order of the others."""
    first, second = new_title(), new_title()

    def body(i):
        fx.print(f"{first} a{{}}", i, every=3)
        fx.print(f"{second} b{{}}", i, every=2)
        fx.print(": c{}", i)

    expected = []
    for i in range(7):
        expected += [f"a{i}"] * (i % 3 == 0) + [f"b{i}"] * (i % 2 == 0) + [f"c{i}"]
    assert texts_of(fx.jit(lambda: loop(7, body))) == expected


# Loops


def _fori(show, n):
    loop(n, show)


def _fori_unknown(show, n):
    loop(jnp.asarray(n) + 0, show)


def _scan(show, n):
    lax.scan(lambda c, i: (show(i), (c, None))[1], None, jnp.arange(n))


def _unrolled(show, n):
    lax.scan(lambda c, i: (show(i), (c, None))[1], None, jnp.arange(n), unroll=2)


def _while(show, n):
    lax.while_loop(lambda i: i < n, lambda i: (show(i), i + 1)[1], 0)


def _while_condition(show, n):
    lax.while_loop(lambda i: (show(i), i < n - 1)[1], lambda i: i + 1, 0)


def _map(show, n):
    lax.map(show, jnp.arange(n))


def _cond(show, n):
    loop(2 * n, lambda i: lax.cond(i % 2 == 0, lambda: show(i // 2), lambda: None))


def _nested(show, n):
    loop(n, lambda i: lax.fori_loop(0, 1, lambda j, _: show(i + j), None))


def _inner_jit(show, n):
    inner = jax.jit(show)
    loop(n, lambda i: inner(i))


def _remat(show, n):
    loop(n, lambda i: jax.checkpoint(lambda i: show(i))(i))


LOOPS = [_fori, _fori_unknown, _scan, _unrolled, _while, _while_condition, _map, _cond, _nested, _inner_jit, _remat]


@pytest.mark.slow
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("form", LOOPS, ids=lambda form: form.__name__)
def test_loops(form, jit, native):
    """Steps count, in all kinds of loops and what may stand in them, and on over calls."""
    title = new_title()
    show = line(title)
    with fx.config.override(native=native):
        f = JITS[jit](lambda: form(show, 7))
        assert texts_of(f) == ["0", "3", "6"]
        assert texts_of(f) == ["2", "5"]
    assert counts_of(title) == (14, 5)


@pytest.mark.parametrize("ordered", [True, False])
def test_order_of_effects(ordered):
    """Unordered effects have filters too."""
    show = line(new_title(), ordered=ordered)
    assert sorted(texts_of(fx.jit(lambda: loop(10, show)))) == ["0", "3", "6", "9"]


# Transformations


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("jit", JITS)
def test_vmap_counts_once(jit, native):
    """All lanes are shown, or none."""
    title = new_title()
    show = line(title)
    with fx.config.override(native=native):
        f = JITS[jit](lambda x: jax.vmap(show)(x))
        seen = texts_of(lambda: [f(jnp.arange(2) + 10 * i) for i in range(4)] and None)
    assert seen == ["0", "1", "30", "31"]
    assert counts_of(title) == (4, 2)


def test_nested_vmap_counts_once():
    show = line(new_title())
    f = fx.jit(lambda x: jax.vmap(jax.vmap(show))(x))
    x = jnp.arange(4).reshape(2, 2)
    assert texts_of(lambda: [f(x + 10 * i) for i in range(4)] and None) == ["0", "1", "2", "3", "30", "31", "32", "33"]


@pytest.mark.parametrize("native", NATIVE)
def test_vmap_inside_of_scan(native):
    title = new_title()
    show = line(title)

    def step(c, i):
        jax.vmap(lambda lane: show(10 * i + lane))(jnp.arange(2))
        return c, None

    with fx.config.override(native=native):
        assert texts_of(fx.jit(lambda: lax.scan(step, None, jnp.arange(5)))) == ["0", "1", "30", "31"]
    assert counts_of(title) == (5, 2)


def test_scan_inside_of_vmap():
    """Each step counts once, whatever number of lanes has it."""
    title = new_title()
    show = line(title)

    def lane(x):
        return lax.scan(lambda c, i: (show(10 * i + x), (c, None))[1], 0, jnp.arange(5))[0]

    assert texts_of(fx.jit(lambda: jax.vmap(lane)(jnp.arange(2)))) == ["0", "1", "30", "31"]
    assert counts_of(title) == (5, 2)


@pytest.mark.parametrize("native", NATIVE)
def test_step_that_no_lane_has_does_not_count(native):
    """Where a predicate differs between lanes, a step counts if any lane has the effect."""
    title = new_title()
    show = line(title)

    def step(i, x):
        lax.cond(x + i >= 4, lambda: show(10 * x + i), lambda: None)  # with lanes 0 and 1: from the third step on
        return x

    with fx.config.override(native=native):
        f = fx.jit(lambda: jax.vmap(lambda x: lax.fori_loop(0, 8, step, x))(jnp.arange(2)))
        seen = texts_of(f)
    # Steps 3 (lane 1 only) to 7 are five; of these the first and the fourth are shown.
    assert sorted(seen) == ["13", "16", "6"]
    assert counts_of(title) == (5, 2)


@pytest.mark.parametrize("wrap", ["grad", "value_and_grad", "jvp", "remat", "linearize", "vjp in a scan"])
def test_derivatives_count_the_forward_pass(wrap):
    """Under derivatives each forward effect counts once; `checkpoint` counts what it computes anew as JAX has it."""
    title = new_title()
    show = line(title)

    def f(x):
        show(x.astype(int))
        return jnp.sin(x)

    wrapped = {
        "grad": jax.grad(f),
        "value_and_grad": jax.value_and_grad(f),
        "jvp": lambda x: jax.jvp(f, (x,), (x,)),
        "remat": jax.grad(jax.checkpoint(f)),
        "linearize": lambda x: jax.linearize(f, x)[1](x),
        "vjp in a scan": jax.grad(lambda x: lax.scan(lambda c, _: (f(c) * 0 + x, None), x, None, length=1)[0]),
    }[wrap]
    g = fx.jit(wrapped)
    all_of_it = texts_of(fx.jit(wrapped), jnp.float32(0))
    title_count = counts_of(title)
    each = title_count[0]
    seen = texts_of(lambda: [g(jnp.float32(i)) for i in range(1, 8)] and None)
    come = [i for i in range(8) for _ in range(each)]
    expected = [str(i) for at, i in enumerate(come) if at % 3 == 0]
    assert all_of_it + seen == expected
    assert each == 1 or wrap == "remat"


def test_print_in_a_custom_derivative():
    """A rule of the user's has lines of its own."""
    show = line(new_title())

    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, x), lambda x, g: (show(x.astype(int)), (g,))[1])
    g = fx.jit(jax.grad(f))
    assert texts_of(lambda: [g(jnp.float32(i)) for i in range(5)] and None) == ["0", "3"]


# Several devices


def test_shard_map_counts_on_each_device():
    """Each device counts what it comes to; steps are shown by number, then by device."""
    title = new_title()
    show = line(title)

    def body(x):
        loop(7, lambda i: show(10 * i + x[0]))
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    with fx.capture(suppress=True) as records:
        f(jnp.arange(4))
    assert by_device(records) == {device: [device, 30 + device, 60 + device] for device in range(4)}
    assert [int(record.args[0]) for record in records] == [10 * i + device for i in (0, 3, 6) for device in range(4)]
    assert counts_of(title) == (28, 12)


def test_devices_of_shard_map_that_go_different_ways():
    """A device counts what itself comes to: the others' counts are theirs."""
    title = new_title()
    show = line(title)

    def body(x):
        loop(2 * x[0] + 1, lambda i: show(10 * i + x[0]))
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    with fx.capture(suppress=True) as records:
        f(jnp.arange(4))
    assert by_device(records) == {0: [0], 1: [1], 2: [2, 32], 3: [3, 33, 63]}
    assert counts_of(title) == (16, 7)


def test_vmap_inside_of_shard_map_inside_of_scan():
    title = new_title()
    show = line(title)

    def body(x, i):
        jax.vmap(lambda x: show(10 * i + x))(x)
        return x

    region = jax.shard_map(body, mesh=mesh(), in_specs=(P("d"), P()), out_specs=P("d"), check_vma=False)
    f = fx.jit(lambda x: lax.scan(lambda x, i: (region(x, i), None), x, jnp.arange(4))[0])
    with fx.capture(suppress=True) as records:
        f(jnp.arange(8))
    device = {d: [2 * d, 2 * d + 1, 30 + 2 * d, 31 + 2 * d] for d in range(4)}
    assert by_device(records) == device
    assert counts_of(title) == (16, 8)


@pytest.mark.parametrize("jit", ["fx.jit", "jax.jit"])
@pytest.mark.parametrize("spec", [(), ("d",)], ids=["replicated", "sharded"])
def test_automatic_sharding_shows_one_line(spec, jit):
    """What all devices have in common is one line and counts once; a sharded array is shown whole."""
    title = new_title()

    def f(x):
        loop(7, lambda i: fx.print(f"{title} {{}}", x + i, every=3))

    f = JITS[jit](f)
    x = sharded(jnp.arange(4), *spec)
    assert texts_of(f, x) == ["[0 1 2 3]", "[3 4 5 6]", "[6 7 8 9]"]
    assert texts_of(f, x) == ["[2 3 4 5]", "[5 6 7 8]"]
    if jit == "fx.jit":
        assert counts_of(title) == (14, 5)


def test_sharded_array_in_a_large_record():
    """What is left out of large whole values is not kept anywhere."""
    x = sharded(jnp.zeros(1 << 16), "d")
    f = fx.jit(
        lambda x: loop(31, lambda i: fx.callback(lambda x, i: seen.append((x.size, int(i))), None, x, i, every=10))
    )
    seen = []
    assert texts_of(f, x) == []
    assert seen == [(1 << 16, i) for i in (0, 10, 20, 30)]


def test_per_shard_counts_on_each_device():
    title = new_title()
    f = fx.jit(lambda x: loop(4, lambda i: fx.print(f"{title} {{}}", x + i, per_shard=True, every=3)))
    seen = texts_of(f, sharded(jnp.arange(4), "d"))
    assert seen == [f"[{i + device}]" for i in (0, 3) for device in range(4)]


# Kernels


@pytest.mark.parametrize("call", [fx.pallas_call, pl.pallas_call], ids=["fx", "pl"])
def test_simulated_kernel(call):
    """Programs of a grid count as steps."""
    title = new_title()
    show = line(title)

    def kernel(x_ref, o_ref):
        show(x_ref[0])
        o_ref[...] = x_ref[...]

    spec = pl.BlockSpec((1,), lambda i: (i,))
    shape = jax.ShapeDtypeStruct((8,), jnp.int32)
    f = fx.jit(call(kernel, grid=(8,), in_specs=[spec], out_specs=spec, out_shape=shape, interpret=True))
    x = jnp.arange(8, dtype=jnp.int32)
    assert texts_of(f, x) == ["0", "3", "6"]
    assert texts_of(f, x) == ["1", "4", "7"]
    assert counts_of(title) == (16, 6)


# What is compiled anew


@pytest.mark.parametrize("jit", ["fx.jit", "jax.jit"])
def test_count_goes_on_after_clear_caches(jit):
    """A program that is traced and compiled anew goes on counting, and so does one of another function's."""
    title = new_title()
    show = line(title)
    f = JITS[jit](lambda: loop(4, show))
    assert texts_of(f) == ["0", "3"]
    jax.clear_caches()
    assert texts_of(f) == ["2"]
    again = JITS[jit](lambda: loop(4, show))
    assert texts_of(again) == ["1"]
    assert counts_of(title) == (12, 4)


def test_growth_of_records_with_every():
    """A long loop with `every` publishes what it shows, and no more."""
    title = new_title()
    before = fx.stats()["published"]
    assert len(texts_of(fx.jit(lambda: loop(100_000, line(title, every=10_000))))) == 10
    assert fx.stats()["published"] - before == 10
    assert counts_of(title) == (100_000, 10)
