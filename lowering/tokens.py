"""Token rules: how an equation with effects carries tokens.

Tokens are arrays, one under each key: the name of an order domain, or `UNORDERED` for the effects that have no place in
any. Most primitives need no rule, since their holder says enough (see `holders.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from effects import _jax
from effects._model.effect import Effect, result_avals
from effects._model.site import Site

Tokens = dict[str, Any]


class TokenContext(NamedTuple):
    """What a rule may need to know of its equation.

    Attributes:
        eqn: The equation.
        primitive: Its primitive.
        where: The user's line that made it, as text.
        effects: The equation's effects, those that tokens are threaded for.
        outs: How many results the equation has.
        call: A number that no other equation of the same jaxpr has.
        edges: What the record that the equation becomes publishes besides itself.
        ahead: The sites and operands of the records that stand right ahead of the equation and have no calls of their
            own. The equation's call publishes them, too.
        outer_token: The token around the region that ends with the equation, if its record takes one.
        thread: `thread(jaxpr, tokens, args) -> (tokens, outs)` evaluates a jaxpr in place of the equation, with tokens
            through it.
        threaded: `threaded(jaxpr, tokens, after=0)` is the jaxpr with tokens, in the order of `tokens`, ahead of its
            outputs, and behind so many of its inputs. Made once and cached, so that one function stays one function.
        carry: `carry(ctx, tokens, *args, **params) -> (tokens, outs)` is the rule that is made from the primitive's
            holder.
    """

    eqn: Any
    effects: frozenset[Effect]
    outs: int
    call: int
    edges: Any
    ahead: Sequence[tuple[Site, list[Any]]]
    outer_token: Any
    thread: Callable[..., tuple[Tokens, list[Any]]]
    threaded: Callable[..., Any]
    carry: TokenRule

    @property
    def primitive(self) -> Any:
        return self.eqn.primitive

    @property
    def where(self) -> str:
        return _jax.source_of(self.eqn)


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
    """Registers how tokens are carried through primitives for which `lowering.holds` is not enough.

    A rule takes `(ctx, tokens, *args, **params)` and returns `(tokens, outs)`. For a primitive that holds a jaxpr,
    `ctx.thread(jaxpr, tokens, args)` evaluates the jaxpr with tokens through it, and `ctx.threaded(jaxpr, tokens)`
    gives a jaxpr that takes and returns them first. A rule takes precedence over the primitive's holder. It says
    nothing of masks: in a branch or a loop whose predicate differs between the lanes of a `vmap`, the primitive then
    runs for one lane after the other unless it has a holder or a mask rule.

    Args:
        *primitives: The primitives.

    Returns:
        A decorator for the rule.

    Example:
        A primitive that means no more than its body.

        >>> import jax, effects as fx
        >>> from effects import lowering
        >>> from jax.extend.core import Primitive
        >>> once_p = Primitive("once")
        >>> once_p.multiple_results = True
        >>> _ = once_p.def_effectful_abstract_eval(lambda *avals, body: (body.out_avals, set(body.effects)))
        >>> @lowering.register_token_rule(once_p)
        ... def _once_token_rule(ctx, tokens, *args, body):
        ...     return ctx.thread(body, tokens, args)
        >>> @fx.jit
        ... def f(x):
        ...     body = jax.make_jaxpr(lambda x: (fx.print("x = {}", x), x + 1)[1])(x)
        ...     return once_p.bind(x, body=body)[0]
        >>> f(1)
        Array(2, dtype=int32, weak_type=True)
        >>> fx.effects_barrier()
        x = 1
    """

    def register(rule: TokenRule) -> TokenRule:
        for primitive in primitives:
            _token_rules[primitive] = rule
        return rule

    return register


def registered_rule(primitive: Any) -> TokenRule | None:
    """The rule that was registered for a primitive."""
    return _token_rules.get(primitive)


# The leaves of a threaded program: what publishes.
#
# Tokens are `uint32[4]`, or in a region of replicas `uint32[8]`; see `effects/_model/wire.py` and `docs/design.md`.

TOKEN_NAME = "_runtime_token"
"""The name of a threaded function's first argument, which JAX shows in its messages."""


class BoundaryMarkers(NamedTuple):
    """What a record publishes besides itself, being the first or the last in a region or the last in its program."""

    enters: bool = False  # it takes the token around the region
    leaves: bool = False  # it gives that back; if it is not the first too, it takes it behind its own
    closes: bool = False
    devices: int = 0  # how many enter, or close
    may_diverge: bool = False  # as for `enter_p`

    def part(self, is_first: bool, is_last: bool) -> BoundaryMarkers:
        """What one of several publishes that have these together."""
        if not is_first and not is_last:
            return NO_MARKERS
        return self._replace(
            enters=self.enters and is_first, leaves=self.leaves and is_last, closes=self.closes and is_last
        )


NO_MARKERS = BoundaryMarkers()

record_p: _jax.Primitive = _jax.Primitive("record")
record_p.multiple_results = True
"""(token, *operands) -> (*results, token): publishes one record, and waits for what a callback returns. `region`: the
`InRegion` of a callback, from which devices go on together if all come there.

Were the token first, what a call returns could be all that a loop carries, in the loop's order, and XLA takes a body
that ends with such a call for one that changes nothing."""

records_p: _jax.Primitive = _jax.Primitive("records")
records_p.multiple_results = True
"""(token, *operands) -> (token,): publishes records that stand next to each other, as so many of `record_p` would.
`records`: of each its site, and how many of the operands are its own."""

close_p: _jax.Primitive = _jax.Primitive("close")
"""(*tokens) -> output token: the program has published all it will."""

skip_p: _jax.Primitive = _jax.Primitive("skip")
"""token -> token: the device has no effects with the next `count` numbers."""

gate_p: _jax.Primitive = _jax.Primitive("gate")
"""token -> token: what follows waits until the thread's programs before are over that call handlers in this domain."""


@record_p.def_abstract_eval
def _record_abstract_eval(
    token: Any, *operands: Any, site: Site, call: int, edges: BoundaryMarkers, region: Any
) -> list[Any]:
    if edges.enters and not edges.leaves:
        return [*result_avals(site), _jax.per_device(token)]
    return [*result_avals(site), operands[0] if edges.leaves and not edges.enters else token]


@records_p.def_abstract_eval
def _records_abstract_eval(
    token: Any, *operands: Any, records: tuple[tuple[Site, int], ...], call: int, edges: BoundaryMarkers
) -> list[Any]:
    of_last = operands[len(operands) - records[-1][1] :]
    return _record_abstract_eval(token, *of_last, site=records[-1][0], call=call, edges=edges, region=None)


_jax.infer_types_each_time(record_p)
_jax.infer_types_each_time(records_p)


gate_p.def_abstract_eval(lambda token, domain: token)
skip_p.def_abstract_eval(lambda token, count: token)


@close_p.def_abstract_eval
def _close_abstract_eval(*tokens: Any) -> Any:
    return tokens[0]
