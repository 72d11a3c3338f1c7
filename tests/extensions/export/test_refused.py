"""What cannot be exported, or called once it was."""

from __future__ import annotations

import collections

import jax
import jax.export
import jax.numpy as jnp
import pytest

import effects as fx

X = jnp.arange(3.0)


def test_callback_without_a_name_cannot_leave():
    """The error names the function, the user's line and the remedy."""

    def anonymous(x):
        pass

    def f(x):
        jax.lax.fori_loop(0, 2, lambda i, _: fx.callback(anonymous, None, x), None)

    with pytest.raises(ValueError, match=r"`.*anonymous` at .*register_callback") as caught:
        fx.export(f)(1)
    assert f"{__file__}:" in str(caught.value)


def _with_rule(tangent_of):
    f = jax.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, tangents: (primals[0], tangent_of(tangents[0])))
    return f


REFUSED = {
    "node": (
        lambda: fx.export(lambda x: fx.print("{}", collections.defaultdict(int, a=x)))(1),
        ValueError,
        "print at .*given a `defaultdict`",
    ),
    "reference": (
        lambda: fx.export(lambda r: fx.print("{}", r))(jax.new_ref(1)),
        NotImplementedError,
        "takes a mutable reference",
    ),
    "derivative": (
        lambda: jax.grad(fx.export(lambda x: (fx.print("{}", x), x)[1])(1.0).call)(1.0),
        fx.NotDifferentiable,
        "derivative of the exported program",
    ),
    "serialized derivative": (
        lambda: fx.export(lambda x: fx.print("{}", x))(1.0).serialize(vjp_order=1),
        NotImplementedError,
        "derivative of the exported program",
    ),
    "vmap": (
        lambda: jax.vmap(fx.export(lambda x: fx.print("{}", x))(1.0).call)(X),
        fx.MissingTokenRule,
        "with `fx.jit`",
    ),
    "tangents": (
        lambda: jax.jacfwd(
            _with_rule(lambda tangent: fx.export(lambda x: (fx.print("{}", x), x)[1])(1.0).call(tangent))
        )(1.0),
        fx.NotDifferentiable,
        "derivative of the exported program",
    ),
    "watch": (
        lambda: fx.export(fx.watch(lambda x: 1 / x, mode="stop"))(1.0),
        ValueError,
        "it has `fx.watch` at .*Take `fx.watch` out",
    ),
    "jax.jit": (
        lambda: jax.jit(fx.export(lambda x: fx.print("{}", x))(1.0).call)(1.0),
        fx.MissingTokenRule,
        "with `fx.jit`",
    ),
    "shape": (
        lambda: fx.export(lambda x: fx.print("{}", x))(X).call(X[1:]),
        ValueError,
        r"args\[0\].shape\[0\]",
    ),
    "jax.export": (
        lambda: jax.export.export(fx.jit(lambda x: fx.print("{}", x)))(1.0),
        NotImplementedError,
        "Write `fx.export`",
    ),
    "other data": (lambda: fx.deserialize(b"nothing"), ValueError, "was given something else"),
    "other version": (
        lambda: fx.deserialize(b"token-effects program 999\n"),
        ValueError,
        "was given another version of it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_or_called_is_said(name):
    """What JAX's export cannot do with effects is an error that says so."""
    program, type_, text = REFUSED[name]
    with pytest.raises(type_, match=text):
        program()
