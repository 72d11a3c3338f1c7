"""Each change of JAX is needed: without it, effects happen too often, too seldom, or unseen."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import effects as fx
from effects._jax import patches


def _branch(x):
    jax.lax.cond(x > 1, lambda: fx.print("{}", x), lambda: None)


def _branch_of_jax(x):
    jax.lax.cond(x > 1, lambda: jax.debug.print("{}", x), lambda: None)


def _scan(x):
    def body(carry, _):
        fx.print("an iteration")
        return jnp.sin(carry) * x, None

    return jax.lax.scan(body, x, length=3)[0]


def _while(x):
    def body(carry):
        fx.print("an iteration")
        return carry * 2

    return jax.lax.while_loop(lambda carry: carry < x + 8, body, x)


def _run_state():
    def body(ref):
        fx.print("a state")
        ref[...] = ref[...] + 1

    from jax.experimental import pallas  # takes a second to import

    return pallas.run_state(body)(1.0)


def _custom_vmap():
    @jax.custom_batching.custom_vmap
    def twice(x):
        fx.print("a call")
        return 2 * x

    twice.def_vmap(lambda axis_size, in_batched, x: (twice(x), in_batched[0]))
    return twice(1.0)


def _checked(x):
    def goes_on(x):
        fx.print("a question")
        return x < 3

    return checkify.checkify(lambda x: jax.lax.while_loop(goes_on, lambda x: x + 1, x), checkify.float_checks)(x)[1]


def _records(function, x):
    """How many records a program gives."""
    with fx.capture() as records:
        fx.jit(lambda x: function(x))(x)
        fx.effects_barrier()
    return len(records)


def _failures_of_barrier():
    """How many failures `jax.effects_barrier` raises of one that there is."""

    def fail():
        raise ValueError("as asked")

    fx.jit(lambda: fx.callback(fail))()
    try:
        jax.effects_barrier()
    except fx.EffectError:
        return 1
    with pytest.raises(fx.EffectError):
        fx.effects_barrier()
    return 0


def _shapes_of_static_arguments():
    """Whether `jax.eval_shape` knows static arguments."""
    try:
        return jax.eval_shape(fx.jit(jnp.tile, static_argnums=1), jnp.ones(1), 2).size
    except ValueError:
        return 0


def _export_of_jitted():
    """Whether `jax.export.export` exports a program with effects."""
    try:
        return len(jax.export.export(fx.jit(lambda x: fx.print("{}", x)))(1).in_avals)
    except NotImplementedError:
        return 0


def _deserialized():
    """Whether `jax.export.deserialize` reads a program with effects."""
    data = fx.export(lambda x: fx.print("{}", x))(1).serialize()
    try:
        return len(jax.export.deserialize(data).in_avals)
    except Exception:  # of another library, which reads numbers where there are none
        return 0


# Functions of their own at each call, so that nothing comes from caches of JAX.
NEEDED = {
    "JAX's own callbacks": (lambda: _records(jax.vmap(_branch_of_jax), jnp.arange(3)), 1, 3),
    "vmap of cond": (lambda: _records(jax.vmap(_branch), jnp.arange(3)), 1, 3),
    "vmap of while": (lambda: _records(jax.vmap(_while), jnp.array([1.0, 8.0, 8.0])), 6, 12),
    "vmap of custom_vmap": (lambda: _records(jax.vmap(lambda x: x + _custom_vmap()), jnp.arange(3.0)), 3, 1),
    "vmap of run_state": (lambda: _records(jax.vmap(lambda x: x + _run_state()), jnp.arange(3.0)), 3, 1),
    "hoisting from scans": (lambda: _records(jax.grad(_scan), 1.0), 3, 1),
    "scan in remat": (lambda: _records(jax.grad(jax.checkpoint(lambda x: _scan(x))), 1.0), 3, 1),
    "linearized while": (lambda: _records(lambda x: jax.linearize(_while, x)[1](x), 1.0), 4, 8),
    "while in remat": (
        lambda: _records(lambda x: jax.linearize(jax.checkpoint(lambda x: _while(x)), x)[1](x), 1.0),
        4,
        8,
    ),
    "while in checkify": (lambda: _records(_checked, 1.0), 3, 6),
    "eval_shape": (_shapes_of_static_arguments, 2, 0),
    "export": (_export_of_jitted, 1, 0),
    "deserialize": (_deserialized, 1, 0),
    "effects_barrier": (_failures_of_barrier, 1, 0),
}
"""By row: what a program gives, with it and without it."""


@pytest.mark.parametrize("name", NEEDED)
def test_row_is_needed(name, monkeypatch):
    """With a row, effects happen as often as in Python. Without it they do not, so that no row outlives its reason."""
    program, with_row, without_row = NEEDED[name]
    assert program() == with_row
    [row] = [row for row in fx.patches() if row.name == name]
    for point in row.points:
        original = patches._originals[point.name]
        if not isinstance(point.owner, dict):
            monkeypatch.setattr(point.owner, point.key, original)
        elif original is None:
            monkeypatch.delitem(point.owner, point.key)
        else:
            monkeypatch.setitem(point.owner, point.key, original)
    assert program() == without_row


def test_every_row_is_shown_to_be_needed():
    """A new row comes with a program that needs it. Axes of tangents have theirs in `tests/transformations/`, and lanes
    of a device in `tests/lowering/regions/`."""
    elsewhere = ("axis of tangents", "lanes of a device")
    rows = {row.name for row in fx.patches() if not row.name.startswith(elsewhere)}
    assert rows == set(NEEDED)
