"""Effects and their registry."""

from __future__ import annotations

import jax
import pytest

import effects as fx


def test_register_twice_is_once():
    """The same effect may be registered again; a different one under the name may not."""
    effect = fx.register_effect(fx.Effect("test-twice", ordered=False))
    assert fx.register_effect(fx.Effect("test-twice", ordered=False)) == effect
    with pytest.raises(ValueError, match="The name 'test-twice' is taken"):
        fx.register_effect(fx.Effect("test-twice", ordered=True))
    assert fx.registered_effects()["test-twice"] == effect


def test_domain_is_its_own_unless_named():
    """An effect has a domain of its own, or shares one that exists."""
    assert fx.Effect("test-own").domain == "test-own"
    first = fx.register_effect(fx.Effect("test-first"))
    assert fx.register_effect(fx.Effect("test-second", domain="test-first")).domain == first.domain
    assert fx.registered_effects()["print"].domain == "program"
    with pytest.raises(ValueError, match="names the order domain 'nowhere', which does not exist"):
        fx.register_effect(fx.Effect("test-lost", domain="nowhere"))
    assert "test-lost" not in fx.registered_effects()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"name": "x", "kind": "gpu"}, ValueError, "the kind 'gpu'"),
        ({"name": ""}, TypeError, "the name ''"),
        ({"name": 3}, TypeError, "the name 3"),
        ({"name": "x", "domain": 3}, TypeError, "the domain 3"),
    ],
)
def test_wrong_declaration(arguments, error, text):
    """What is wrong with a declaration is said when it is made."""
    with pytest.raises(error, match=text):
        fx.Effect(**arguments)


def test_register_something_else():
    """Only effects are registered."""
    with pytest.raises(TypeError, match="What is registered is an `fx.Effect`"):
        fx.register_effect("print")


def test_registry_is_read_only():
    """The view of the registry cannot be written to."""
    with pytest.raises(TypeError):
        fx.registered_effects()["x"] = fx.Effect("x")


def test_effect_of_ones_own_may_appear_everywhere():
    """JAX takes it in control flow, in rules of derivatives and in what is rematerialized."""
    from jax.extend.core import Primitive

    effect = fx.register_effect(fx.Effect("test-anywhere"))
    effect_p = Primitive("anywhere")
    effect_p.multiple_results = True
    effect_p.def_effectful_abstract_eval(lambda: ([], {effect}))

    @jax.custom_jvp
    def f(x):
        effect_p.bind()
        return x

    f.defjvp(lambda primals, tangents: (f(*primals), *tangents))
    for function in (
        lambda x: jax.lax.fori_loop(0, 3, lambda i, x: (effect_p.bind(), x)[1], x),
        lambda x: jax.jvp(f, (x,), (x,)),
        jax.checkpoint(lambda x: (effect_p.bind(), x)[1]),
    ):
        assert effect in jax.make_jaxpr(function)(1.0).effects


def test_unregistered_effect_in_a_program():
    """A program with an effect that nobody registered is refused."""
    from jax.extend.core import Primitive

    from effects import lowering

    ghost_p = Primitive("ghost")
    ghost_p.multiple_results = True
    ghost_p.def_effectful_abstract_eval(lambda: ([], {fx.Effect("test-ghost")}))
    lowering.register_token_rule(ghost_p)(lambda ctx, tokens: (tokens, []))
    with pytest.raises(ValueError, match="effect 'test-ghost'.*not registered"):
        fx.jit(lambda: ghost_p.bind())()
