"""What each filter lets through, wherever the line stands."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

import effects as fx
from tests.effects.filters.common import P, by_device, counts_of, loop, mesh, new_title, sharded, site_of, texts_of
from tests.transformations.constructs import CONSTRUCTS
from tests.transformations.language import TRANSFORMATIONS

JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}
NATIVE = [True, False]
FOREVER = 1e9  # seconds, beyond any test


def line(title, **options):
    """A function that prints one number in a line of its own."""
    options = {"every": 3, **options}
    return lambda i: fx.print(f"{title} {{}}", i, **options)


# Calls


ASKED = {  # what is asked for at step i; what two calls of seven steps show; how many come in both; what the filter is
    "every": (lambda i: {"every": 3}, "0 3 6", "2 5", 14, "every 3"),
    "first": (lambda i: {"first": 8}, "0 1 2 3 4 5 6", "0", 14, "first 8"),
    "min_seconds": (lambda i: {"min_seconds": FOREVER}, "0", "", 14, None),
    "no seconds": (lambda i: {"min_seconds": 0.0}, "0 1 2 3 4 5 6", "0 1 2 3 4 5 6", 14, None),
    "when": (lambda i: {"when": i % 3 == 1}, "1 4", "1 4", 4, "all"),
    "together": (
        lambda i: {"when": i % 2 == 0, "every": 3, "min_seconds": 0.0, "first": 2, "level": "warning"},
        "0 6", "", 8, "every 3, first 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("name", ASKED)
def test_calls_of_a_loop(name, jit, native):
    """Steps count, and on over calls: `when` says which, of these one in so many is shown, and so many of those."""
    asked, first, second, come, said = ASKED[name]
    title = new_title()
    with fx.config.override(native=native):
        f = JITS[jit](lambda: loop(7, lambda i: fx.print(f"{title} {{}}", i, **asked(i))))
        assert [texts_of(f), texts_of(f)] == [first.split(), second.split()]
    assert counts_of(title) == (come, len(first.split() + second.split()))
    assert said is None or site_of(title).filter == said


@pytest.mark.parametrize("jit", JITS)
def test_calls_of_a_line(jit):
    """A line counts, not a program: each call of one, and those of others that shapes make of it."""
    title = new_title()
    show = line(title)
    f = JITS[jit](lambda x: show(x.size))

    def calls():
        for size in (1, 2, 3, 1, 2, 3, 1):
            f(jnp.zeros(size))
        fx.jit(lambda: loop(3, show))()

    assert texts_of(calls) == ["1", "1", "1", "2"]
    assert counts_of(title) == (10, 4)


def _nth(n):
    """Tells whether an effect is one in so many of its line."""
    come = collections.Counter()

    def shows(place, number):
        come[place] += 1
        return (come[place] - 1) % n == 0

    return shows


IN_CONSTRUCTS = {
    "every": (lambda x: {"every": 3}, _nth, [each for each in TRANSFORMATIONS if each.argument.ndim == 0]),
    "when": (lambda x: {"when": x % 2 == 1}, lambda _: lambda place, number: number % 2 == 1, TRANSFORMATIONS[1::5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("jit", ["fx.jit", "jax.jit"])
@pytest.mark.parametrize("name", IN_CONSTRUCTS)
def test_constructs(name, jit, native):
    """Of what the table of transformations has in each cell the filter leaves out what it leaves out of Python's
    reading: each line counts its own."""
    asked, reading, transformations = IN_CONSTRUCTS[name]
    title, shows, functions, expected = new_title(), reading(3), [], []

    def show(place, x):
        fx.print(f"{title} {place}{{:.0f}}", x, **asked(x))
        return x

    for construct in CONSTRUCTS:
        for each in transformations if jit == "fx.jit" and native else transformations[:1]:
            has_lanes = "not mapped" in each.name or (name == "every" and "batch_size" in construct.name)
            if not has_lanes and (effects := each.expected(construct)) is not None:
                functions.append((each.apply(lambda x, program=construct.program: program(show, x)), each.argument))
                expected += [effect for effect in effects.split() if shows(effect[0], float(effect[1:]))]
    with fx.config.override(native=native):
        program = JITS[jit](lambda xs: [f(x) for (f, _), x in zip(functions, xs, strict=True)])
        assert texts_of(program, [x for _, x in functions]) == expected


# Lanes


def _of_lanes(show):
    """A lane with x = 0 and one with x = 1 show `10 * i + x` at steps 2 (only the second lane) to 5."""

    def lane(x):
        return lax.fori_loop(0, 6, lambda i, x: (lax.cond(x + i >= 3, show, lambda _: None, 10 * i + x), x)[1], x)

    return jax.vmap(lane)(jnp.arange(2))


LANES = {
    "around a loop": (_of_lanes, ["21", "50", "51"], 4),
    "in a loop": (lambda show: loop(5, lambda i: jax.vmap(show)(10 * i + jnp.arange(2))), ["0", "1", "30", "31"], 5),
    "nested": (
        lambda show: loop(4, lambda i: jax.vmap(jax.vmap(show))(10 * i + jnp.arange(4).reshape(2, 2))),
        ["0", "1", "2", "3", "30", "31", "32", "33"],
        4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("name", LANES)
def test_lanes_count_once(name, jit, native):
    """All lanes that have an effect are shown, or none; a step that no lane has does not count."""
    program, expected, come = LANES[name]
    title = new_title()
    with fx.config.override(native=native):
        assert texts_of(JITS[jit](lambda: (program(line(title)), None)[1])) == expected
    assert counts_of(title) == (come, 2)


# Several devices


def test_devices_of_shard_map_that_go_different_ways():
    """A device counts what itself comes to. Steps are shown by number, then by device."""
    title = new_title()

    def body(x):
        loop(2 * x[0] + 1, lambda i: fx.print(f"{title} {{}}", 10 * i + x[0], every=3, when=x[0] != 1))
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    with fx.capture(suppress=True) as records:
        f(jnp.arange(4))
    assert by_device(records) == {0: [0], 2: [2, 32], 3: [3, 33, 63]}
    assert [int(record.args[0]) for record in records] == [0, 2, 3, 32, 33, 63]
    assert counts_of(title) == (13, 6)


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


def test_min_seconds_of_devices_that_agree():
    """What all devices have in common is shown whole, or not at all: they agree about the time."""
    title = new_title()
    f = fx.jit(lambda x: loop(3000, lambda i: fx.print(f"{title} {{}}", i, min_seconds=1e-4)))
    numbers = [int(text) for text in texts_of(f, sharded(jnp.arange(4)))]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    assert counts_of(title) == (3000, len(numbers))


# Kernels


@pytest.mark.parametrize("call", [fx.pallas_call, pl.pallas_call], ids=["fx", "pl"])
def test_simulated_kernel(call):
    """Programs of a grid count as steps, and `when` is for each."""
    title = new_title()
    show = line(title)

    def kernel(x_ref, o_ref):
        show(x_ref[0])
        fx.print(": {} of the last", x_ref[0], when=x_ref[0] > 5)
        o_ref[...] = x_ref[...]

    spec = pl.BlockSpec((1,), lambda i: (i,))
    shape = jax.ShapeDtypeStruct((8,), jnp.int32)
    f = fx.jit(call(kernel, grid=(8,), in_specs=[spec], out_specs=spec, out_shape=shape, interpret=True))
    x = jnp.arange(8, dtype=jnp.int32)
    assert texts_of(f, x) == ["0", "3", "6", "6 of the last", "7 of the last"]
    assert texts_of(f, x) == ["1", "4", "6 of the last", "7", "7 of the last"]
    assert counts_of(title) == (16, 6)


def test_growth_of_records_with_every():
    """A long loop with `every` publishes what it shows, and no more."""
    title = new_title()
    before = fx.stats()["published"]
    assert len(texts_of(fx.jit(lambda: loop(100_000, line(title, every=10_000))))) == 10
    assert fx.stats()["published"] - before == 10
    assert counts_of(title) == (100_000, 10)
