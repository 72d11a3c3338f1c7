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
        ({"name": "x", "allowed_in": {"moon"}}, ValueError, "allowed in moon"),
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


def test_allowed_in_is_enforced_by_jax():
    """An effect that may not appear in control flow is refused there, and works elsewhere."""
    from jax.extend.core import Primitive

    effect = fx.register_effect(fx.Effect("test-straight", allowed_in={"remat"}))
    straight_p = Primitive("straight")
    straight_p.multiple_results = True
    straight_p.def_effectful_abstract_eval(lambda: ([], {effect}))
    with pytest.raises(NotImplementedError, match="Effects not supported"):
        jax.make_jaxpr(lambda: jax.lax.fori_loop(0, 3, lambda i, c: (straight_p.bind(), c)[1], 0))()
    assert effect in jax.make_jaxpr(jax.checkpoint(lambda: straight_p.bind()))().effects


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
