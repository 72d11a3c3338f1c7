"""The leaves of a threaded program: what publishes.

Tokens are `uint32[4]`, or in a region of replicas `uint32[8]`; see `effects/_wire.py` and `docs/design.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from effects import _jax as compat
from effects._primitive import effect_p, result_avals
from effects._sites import Site, size_operands
from lowering._rules import TokenContext, Tokens, register_token_rule, token_key

TOKEN_NAME = "_runtime_token"
"""What JAX is told a threaded function's first argument is called."""


class Edges(NamedTuple):
    """What a record publishes besides itself, being the first or the last in a region or the last in its program."""

    enters: bool = False  # it takes the token around the region
    leaves: bool = False  # it gives that back; if it is not the first too, it takes it behind its own
    closes: bool = False
    devices: int = 0  # how many enter, or close
    apart: bool = False  # as for `enter_p`


NO_EDGES = Edges()

record_p = compat.Primitive("record")
record_p.multiple_results = True
"""(token, *operands) -> (*results, token): publishes one record, and waits for what a callback returns.

Were the token first, what a call returns could be all that a loop carries, in the loop's order, and XLA takes a body
that ends with such a call for one that changes nothing."""

close_p = compat.Primitive("close")
"""(*tokens) -> output token: the program has published all it will."""


@record_p.def_abstract_eval
def _record_abstract_eval(token: Any, *operands: Any, site: Site, call: int, edges: Edges) -> list[Any]:
    if edges.enters and not edges.leaves:
        return [*result_avals(site), compat.per_device(token)]
    return [*result_avals(site), operands[0] if edges.leaves and not edges.enters else token]


compat.infer_types_each_time(record_p)


@close_p.def_abstract_eval
def _close_abstract_eval(*tokens: Any) -> Any:
    return tokens[0]


@register_token_rule(effect_p)
def _effect_token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, site: Site) -> tuple[Tokens, list[Any]]:
    return bind_record(ctx, tokens, operands, site)


def bind_record(ctx: TokenContext, tokens: Tokens, operands: Sequence[Any], site: Site) -> tuple[Tokens, list[Any]]:
    """Publishes a record in place of an equation."""
    key = token_key(site.effect)
    operands, site = site.without_idle_mask(operands)
    # Ordered calls are told apart by their tokens. Unordered ones may be alike in all, and still are two.
    call = 0 if site.effect.ordered else ctx.call
    around = () if ctx.around is None else (ctx.around,)
    *results, token = record_p.bind(
        tokens[key], *around, *size_operands(site), *operands, site=site, call=call, edges=ctx.edges
    )
    return {key: token}, results


class HostSink(Protocol):
    """The host's side of a program: knows its sites, and publishes for devices without native handlers what they hand
    over through JAX's Python callbacks."""

    def meet(self, site: Site) -> object:
        """Makes a site known whose records a program may bring. What is returned, if it is not None, the program keeps
        for as long as it may."""
        ...

    def record(self, site: Site, token: Any, operands: Sequence[Any]) -> list[Any]:
        """Publishes a record; returns the next token, and the results once a callback has run."""
        ...

    def close(self, tokens: Sequence[Any]) -> Any:
        """Publishes the end of a program; returns its output token."""
        ...

    def plain(self, site: Site, operands: Sequence[Any]) -> list[Any]:
        """Publishes a record of a program that JAX dispatched; returns the results."""
        ...


_host_sink: HostSink | None = None


def set_host_sink(sink: HostSink) -> None:
    """Called once, by the package that has one."""
    global _host_sink
    _host_sink = sink


def host_sink() -> HostSink:
    """The host's sink."""
    assert _host_sink is not None, "`dispatch` is loaded together with `lowering`"
    return _host_sink
