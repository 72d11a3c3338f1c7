"""`when=`: an effect is there where a predicate holds, as in a `cond` around it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import effects as fx
from tests.effects.filters.common import P, by_device, counts_of, loop, mesh, new_title, sharded, texts_of

NATIVE = [True, False]


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_when_in_a_loop(jit, native):
    """Steps at which it does not hold neither show nor count anything, and cost no record."""
    title = new_title()

    def body(i):
        fx.print(f"{title} {{}}", i, when=i % 3 == 1)

    with fx.config.override(native=native):
        assert texts_of(jit(lambda: loop(8, body))) == ["1", "4", "7"]
    assert counts_of(title) == (3, 3)


def _per_lane(f):
    return jax.vmap(f)(jnp.arange(4))


TRANSFORMATIONS = {
    "vmap": _per_lane,
    "nested vmap": lambda f: jax.vmap(jax.vmap(f))(jnp.arange(4).reshape(2, 2)),
    "scan": lambda f: lax.scan(lambda c, x: (c, f(x)), None, jnp.arange(4)),
    "vmap in scan": lambda f: lax.scan(lambda c, x: (c, _per_lane(lambda y: f(x + y))), None, jnp.arange(4)),
    "scan in vmap": lambda f: _per_lane(lambda y: lax.scan(lambda c, x: (c, f(x + y)), None, jnp.arange(4))),
    "grad": lambda f: jax.grad(lambda x: (f(x.astype(int)), x)[1])(1.0),
    "grad of vmap": lambda f: jax.grad(lambda x: _per_lane(lambda y: (f((x + y).astype(int)), x)[1]).sum())(1.0),
    "remat": lambda f: jax.checkpoint(f)(jnp.int32(1)),
    "cond in vmap": lambda f: _per_lane(lambda x: lax.cond(x > 1, f, lambda x: None, x)),
    "switch": lambda f: [lax.switch(jnp.int32(k), [f, lambda x: None], jnp.int32(1)) for k in (0, 1)],
    "inner jit": lambda f: jax.jit(f)(jnp.int32(1)),
    "known": lambda f: [f(k) for k in range(3)],
}


@pytest.mark.slow
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_when_is_a_cond(name, native):
    """It does what `lax.cond` around the call does, under each transformation."""
    form = TRANSFORMATIONS[name]
    title = new_title()

    def program(show):
        def f(x):
            fx.print(": before {}", x)
            show(x)
            fx.print(": after {}", x)

        return fx.jit(lambda: (form(f), None)[1])

    def by_cond(x):
        lax.cond(x % 2 == 1, lambda x: fx.print(f"{title} {{}}", x), lambda x: None, x)

    with fx.config.override(native=native):
        seen = texts_of(program(lambda x: fx.print(f"{title} {{}}", x, when=x % 2 == 1)))
        assert seen == texts_of(program(by_cond))
    assert any(text.isdecimal() for text in seen)


def test_when_on_each_device():
    """In a region each device decides for itself."""
    title = new_title()

    def body(x):
        loop(4, lambda i: fx.print(f"{title} {{}}", 10 * i + x[0], when=i > x[0]))
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    with fx.capture(suppress=True) as records:
        f(jnp.arange(4))
    assert by_device(records) == {0: [10, 20, 30], 1: [21, 31], 2: [32]}
    assert counts_of(title) == (6, 6)


def test_when_of_sharded_arrays():
    """With automatic sharding it is one value of the whole program, and so is what is shown."""
    title = new_title()
    f = fx.jit(lambda x: loop(3, lambda i: fx.print(f"{title} {{}}", x, when=(x + i).sum() > 8)))
    assert texts_of(f, sharded(jnp.arange(4), "d")) == ["[0 1 2 3]", "[0 1 2 3]"]
    assert counts_of(title) == (2, 2)


def test_when_in_a_kernel():
    def kernel(x_ref, o_ref):
        fx.print("{}", x_ref[0], when=x_ref[0] > 4)
        o_ref[...] = x_ref[...]

    spec = pl.BlockSpec((1,), lambda i: (i,))
    shape = jax.ShapeDtypeStruct((8,), jnp.int32)
    f = fx.jit(fx.pallas_call(kernel, grid=(8,), in_specs=[spec], out_specs=spec, out_shape=shape, interpret=True))
    with fx.capture(suppress=True) as records:
        f(jnp.arange(8, dtype=jnp.int32))
    assert [record.text for record in records] == ["5", "6", "7"]


@pytest.mark.parametrize("value", [jnp.zeros((), bool), np.bool_(False), False], ids=["array", "NumPy", "Python"])
@pytest.mark.parametrize("jit", [fx.jit, lambda f: f], ids=["jit", "eager"])
def test_never_true_shows_nothing(value, jit):
    """Where it never holds nothing is shown; where that is known while tracing, nothing is in the program."""

    def f():
        fx.print("never", when=value)
        fx.log("never", when=value)
        fx.check(False, "never", when=value)
        fx.callback(lambda: seen.append(1), when=value)
        fx.progress(3, "never", when=value).update(1)

    seen = []
    assert texts_of(jit(f)) == [] == seen
    if not isinstance(value, jax.Array):
        assert not jax.make_jaxpr(f)().effects


def test_when_of_a_reference():
    """A mutable reference is what it holds when the program gets there."""

    def f():
        ref = jax.new_ref(jnp.bool_(False))

        def body(i):
            fx.print("{}", i, when=ref)
            ref[...] = i == 1

        loop(4, body)

    with fx.capture(suppress=True) as records:
        fx.jit(f)()
    assert [record.text for record in records] == ["2"]


def test_when_with_every_and_first():
    """Those at which it holds are counted: of them one in so many is shown, and so many of these."""
    title = new_title()

    def body(i):
        fx.print(f"{title} {{}}", i, when=i >= 4, every=3, first=2)

    assert texts_of(fx.jit(lambda: loop(20, body))) == ["4", "7"]
    assert counts_of(title) == (16, 2)


def test_when_of_check_under_vmap():
    """A check of a lane at which it does not hold raises nothing."""

    def lane(x):
        fx.check(x < 2, "too large", when=x != 3)

    with pytest.raises(fx.EffectError, match="too large") as caught:
        fx.jit(lambda: jax.vmap(lane)(jnp.arange(4)))()
        fx.effects_barrier(timeout=120)
    assert "lane 2" in str(caught.value)
    assert "lane 3" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (jnp.array([True, False]), r"an array of bool\[2\]"),
        (np.ones(1, bool), r"an array of bool\[1\]"),
        (jnp.int32(1), r"an array of int32\[\]"),
        (1, "1"),
        ("yes", "'yes'"),
    ],
)
@pytest.mark.parametrize("traced", [True, False])
def test_when_that_is_no_boolean(value, said, traced):
    """What is not one boolean is refused while tracing, at the user's line."""

    def f(value):
        fx.print("x", when=value)

    if traced and hasattr(value, "dtype"):
        with pytest.raises(TypeError, match=rf"`fx.print` at .*test_when.py:\d+.* was given {said} as `when`"):
            fx.jit(f)(value)
    else:
        with pytest.raises(TypeError, match=rf"`fx.print` at .*test_when.py:\d+.* was given {said} as `when`"):
            f(value)
