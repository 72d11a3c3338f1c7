"""The table of token rules, and what a rule is.

A rule says how an equation with effects carries tokens. Tokens are arrays, one under each key: the name of an order
domain, or `UNORDERED` for the effects that have no place in any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from effects import _jax as compat
from effects._registry import OF_JAX
from effects._sites import Site
from effects._types import Effect

Tokens = dict[str, Any]

UNORDERED = "(unordered)"
"""The key of the token that unordered effects take. They do not chain; what they return is joined."""


def token_key(effect: Effect) -> str:
    """Under which key the token of this effect is."""
    return effect.domain if effect.ordered else UNORDERED


def own_effects(effects: Any) -> frozenset[Effect]:
    """Ours among a jaxpr's or an equation's effects."""
    return frozenset(effect for effect in effects if isinstance(effect, Effect))


def effects_of(effects: Any) -> frozenset[Effect]:
    """Those of a jaxpr's or an equation's effects that tokens are threaded for: ours, and JAX's own callbacks'."""
    if not effects:
        return frozenset()
    threaded = [effect if isinstance(effect, Effect) else OF_JAX.get(type(effect)) for effect in effects]
    return frozenset([effect for effect in threaded if effect is not None])


@compat.weakref_lru_cache
def effects_inside(jaxpr: Any) -> frozenset[Effect]:
    """Ours in a jaxpr, and in those inside of it whose equations do not show them."""
    found = own_effects(jaxpr.effects)
    for eqn in jaxpr.eqns:
        for inner in compat.jaxprs_in(eqn.params):
            found |= effects_inside(inner)
    return found


def equations_with_effects(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, and of those inside it, that show effects."""
    for eqn in jaxpr.eqns:
        if eqn.effects:
            yield eqn
            for inner in compat.jaxprs_in(eqn.params):
                yield from equations_with_effects(inner)


def sites_in(jaxpr: Any) -> set[Site]:
    """Every site of a jaxpr and of those inside it."""
    found: set[Site] = set()
    for eqn in equations_with_effects(jaxpr):
        if isinstance(site := eqn.params.get("site"), Site):
            found.add(site)
        found.update(eqn.params.get("sites", ()))  # of an exported program
    return found


def token_keys(effects: Iterable[Effect]) -> tuple[str, ...]:
    """The keys that a jaxpr or an equation with these effects needs, in the order in which its tokens are passed."""
    return tuple(sorted({token_key(effect) for effect in effects}))


@dataclasses.dataclass(slots=True)
class TokenContext:
    """What a rule may need to know of its equation.

    Attributes:
        eqn: The equation.
        primitive: Its primitive.
        where: The user's line that made it, as text.
        effects: The equation's effects, those that tokens are threaded for.
        outs: How many results the equation has.
        call: A number that no other equation of the same jaxpr has.
        edges: What the record that the equation becomes publishes besides itself.
        around: The token around the region that ends with the equation, if its record takes one.
        thread: `thread(jaxpr, tokens, args) -> (tokens, outs)` evaluates a jaxpr in place of the equation, with tokens
            through it.
        threaded: `threaded(jaxpr, tokens)` is the jaxpr with tokens, in the order of `tokens`, ahead of its inputs and
            outputs. Made once and cached, so that one function stays one function.
    """

    eqn: Any
    effects: frozenset[Effect]
    outs: int
    call: int
    edges: Any
    around: Any
    thread: Callable[..., tuple[Tokens, list[Any]]]
    threaded: Callable[[Any, Tokens], Any]

    @property
    def primitive(self) -> Any:
        return self.eqn.primitive

    @property
    def where(self) -> str:
        return compat.source_of(self.eqn)


class TokenRule(Protocol):
    def __call__(self, ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, Sequence[Any]]:
        """Carries tokens through one equation.

        Args:
            ctx: The equation's context.
            tokens: A token under each key that the equation's effects need.
            *args: The equation's operands.
            **params: The equation's parameters.

        Returns:
            The tokens after the equation, under the same keys, and its results.
        """
        ...


_token_rules: dict[Any, TokenRule] = {}  # by primitive; written when modules are loaded


def register_token_rule(*primitives: Any) -> Callable[[TokenRule], TokenRule]:
    """Says how tokens are carried through primitives.

    A rule takes `(ctx, tokens, *args, **params)` and returns `(tokens, outs)`. For a primitive that holds a jaxpr,
    `ctx.thread(jaxpr, tokens, args)` evaluates the jaxpr with tokens through it, and `ctx.threaded(jaxpr, tokens)`
    gives a jaxpr that takes and returns them first.

    Args:
        *primitives: The primitives.

    Returns:
        A decorator for the rule.

    Example:
        A primitive that runs its body twice.

        >>> import jax, lowering, effects as fx
        >>> from jax.extend.core import Primitive, jaxpr_as_fun
        >>> twice_p = Primitive("twice")
        >>> twice_p.multiple_results = True
        >>> _ = twice_p.def_effectful_abstract_eval(lambda *avals, body: (list(avals), set(body.effects)))
        >>> @lowering.register_token_rule(twice_p)
        ... def _twice_token_rule(ctx, tokens, *args, body):
        ...     tokens, args = ctx.thread(body, tokens, args)
        ...     return ctx.thread(body, tokens, args)
        >>> @fx.jit
        ... def f(x):
        ...     body = jax.make_jaxpr(lambda x: (fx.print("x = {}", x), x + 1)[1])(x)
        ...     return twice_p.bind(x, body=body)[0]
        >>> f(1)
        Array(3, dtype=int32, weak_type=True)
        >>> fx.effects_barrier()
        x = 1
        x = 2
    """

    def register(rule: TokenRule) -> TokenRule:
        for primitive in primitives:
            _token_rules[primitive] = rule
        return rule

    return register


def find_rule(primitive: Any) -> TokenRule | None:
    """The rule for a primitive."""
    return _token_rules.get(primitive)
