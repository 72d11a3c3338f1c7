"""The token pass: one loop over the equations of a jaxpr.

It evaluates the jaxpr under whatever trace is current. An equation without effects stays as it is; one with effects
goes through its rule, which takes tokens and returns them. The result is an ordinary function of tokens and arguments,
in which JAX sees no effects.

Tokens are arrays, one per key. A key is the name of an order domain, or `UNORDERED` for all effects without an order.
Most primitives need no rule, since their holder says enough (see `holders.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from effects import _errors as errors
from effects import _jax
from effects._model.dependency import add_dependency
from effects._model.effect import UNORDERED, Effect, registered_effects, token_keys
from effects._model.primitive import result_avals
from effects._model.site import Site
from effects.lowering.holders import Extra, conversion, find_holder, registering
from effects.lowering.regions import InRegion, communicates, in_region, inside, joins_error_vote
from effects.lowering.summary import effects_of, is_collective, is_ordered_record, summarize

# Token rules: how an equation with effects carries tokens.

Tokens = dict[str, Any]


class TokenContext(NamedTuple):
    """The context that a rule gets with its equation.

    Attributes:
        eqn: The equation.
        primitive: Its primitive.
        where: The user's line that made the equation, as text.
        effects: The effects with tokens of the equation and of the records ahead of it, so none of JAX's own.
        outs: The number of the equation's results.
        call: A number that is unique among the equations of one jaxpr. It keeps apart calls that are otherwise equal.
        edges: The boundary markers that the equation's record also publishes.
        ahead: The records directly before the equation that have no calls of their own, as (site, operands). The
            equation's call publishes them, too.
        outer_token: The token around the region, if the equation's record ends the region and takes that token as an
            operand.
        thread: `thread(jaxpr, tokens, args) -> (tokens, outs)` evaluates a jaxpr in place of the equation and threads
            tokens through the jaxpr.
        threaded: `threaded(jaxpr, tokens, after=0)` returns a jaxpr that takes the tokens after its first `after`
            inputs and returns them before its outputs, in the order of `tokens`. Cached: the same jaxpr gives the same
            result, which JAX lowers once.
        carry: `carry(ctx, tokens, *args, **params) -> (tokens, outs)` is the rule made from the primitive's holder.
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
    gives a jaxpr that takes and returns them first. A rule takes precedence over the primitive's holder. A token rule
    does not cover masks: in a branch or a loop whose predicate differs between the lanes of a `vmap`, the primitive
    runs lane by lane unless it has a holder or a mask rule.

    Args:
        *primitives: The primitives.

    Returns:
        A decorator for the rule.

    Example:
        A primitive that is equivalent to its body.

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

    return registering(_token_rules, primitives)


def registered_rule(primitive: Any) -> TokenRule | None:
    """The rule that was registered for a primitive."""
    return _token_rules.get(primitive)


# The primitives that publish: the leaves of a threaded program.
#
# Tokens are `uint32[4]`, or in a region of replicas `uint32[6]`; see `effects/_model/wire.py` and `docs/design.md`.

TOKEN_NAME = "_runtime_token"
"""The name of a threaded function's first argument, which JAX shows in its messages."""


class BoundaryMarkers(NamedTuple):
    """The boundaries that a record publishes: it is the first or the last of a region, or the last of its program."""

    enters: bool = False  # the record reads the outer token and creates the device's own
    leaves: bool = False  # the record returns the outer token, operand 0 if it also enters, else operand 1
    closes: bool = False  # the record is the last of its program
    devices: int = 0  # the number of devices that enter or close
    may_diverge: bool = False  # as for `enter_p`

    def part(self, is_first: bool, is_last: bool) -> BoundaryMarkers:
        """The markers of one of several consecutive records: the first enters, the last leaves and closes."""
        if not is_first and not is_last:
            return NO_MARKERS
        return self._replace(
            enters=self.enters and is_first, leaves=self.leaves and is_last, closes=self.closes and is_last
        )


NO_MARKERS = BoundaryMarkers()

record_p: _jax.Primitive = _jax.Primitive("record")
record_p.multiple_results = True
"""(token, *operands) -> (*results, token): publishes one record. The results of a callback are those that its function
returns; the program waits for them. `region`: for a callback, its `InRegion`. If all devices reach the callback, with
equal counts of effects, the host answers them all at once.

The token is the last result on purpose. If operands and results were exactly a while loop's carry, in its order, XLA
would take the carry for loop-invariant: `GetInvariantGTEsForWhileBody` in xla/service/while_util.cc does not check that
the body's root is a tuple (JAX 0.10.2 and 0.12; `io_callback` has the fault too). Once it does, the order is free."""

records_p: _jax.Primitive = _jax.Primitive("records")
records_p.multiple_results = True
"""(token, *operands) -> (token,): publishes consecutive records, as one `record_p` for each would. `records`: the site
of each record, and the number of its operands."""

close_p: _jax.Primitive = _jax.Primitive("close")
"""(*tokens) -> output token: the program has published its last record."""

skip_p: _jax.Primitive = _jax.Primitive("skip")
"""token -> token: the device has no effects at the next `count` indices."""


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


skip_p.def_abstract_eval(lambda token, count: token)
close_p.def_abstract_eval(lambda *tokens: tokens[0])


# The pass.

MSG_MISSING_RULE = (
    "Effect {effects} reached the primitive `{primitive}` at {where}, which has no token rule. Effects need one "
    "unbroken chain of tokens through the program, and it would break here. Move the effect out of `{primitive}`, or "
    "say with `@lowering.holds` how the primitive holds its bodies."
)
MSG_UNKNOWN_IN_PROGRAM = (
    "The program has the effect {effect!r} at {where}, which is not registered. Order domains are settled when an "
    "effect is registered. Call `fx.register_effect` with it before tracing."
)
MSG_RULE_RETURNED = (
    "The token rule for `{primitive}` returned {got}. A rule returns `(tokens, outs)`: the tokens under the keys it "
    "was given ({keys}), and one value for each of the equation's {outs} results. Correct the rule."
)


class Schedule(Protocol):
    """Adds dependencies between the equations of one jaxpr. The token pass calls it for each equation in turn."""

    def before(self, eqn: Any, operands: list[Any], tokens: Tokens) -> tuple[list[Any], Tokens]:
        """Returns the operands to bind an equation with, and the tokens that change."""
        ...

    def note(self, eqn: Any, outs: Sequence[Any]) -> None:
        """Notes the results of an equation."""
        ...

    def last(self, x: Any) -> Any:
        """Returns the version of a result that was last tied to a token; the result itself if it never was."""
        ...


class Passes(NamedTuple):
    """The passes that a jaxpr with a certain effect goes through besides the token pass.

    Attributes:
        check: `check(jaxpr)` raises if the jaxpr misuses the effect.
        schedule: `schedule(jaxpr)` returns the jaxpr to thread in place of this one, and its `Schedule`.
    """

    check: Callable[[Any], None]
    schedule: Callable[[Any], tuple[Any, Schedule]]


_passes: dict[Effect, Passes] = {}


def register_passes(effect: Effect, passes: Passes) -> None:
    """Sends jaxprs with this effect through these passes, too."""
    _passes[effect] = passes


def passes_of(effects: Iterable[Effect]) -> list[Passes]:
    """The registered passes of these effects."""
    return [_passes[effect] for effect in effects if effect in _passes]


_changes: list[Callable[[Any], Any]] = []


def change_programs(change: Callable[[Any], Any]) -> None:
    """Has `change(jaxpr)` make another jaxpr of each whole program, after JAX's transformations."""
    _changes.append(change)


def checked_jaxpr(jaxpr: Any) -> Any:
    """Closes a jaxpr, converts JAX's own callbacks to effects, and applies the registered changes of programs. Raises
    if the jaxpr misuses futures or references."""
    jaxpr = conversion().convert(_jax.closed_jaxpr(jaxpr))
    for change in _changes:
        jaxpr = change(jaxpr)
    for passes in passes_of(summarize(jaxpr).effects):
        passes.check(jaxpr)
    return jaxpr


def last_record_closes(jaxpr: Any) -> bool:
    """True if a program's last record can also close the program. There must be no other token, and the record must be
    in the outermost jaxpr, or in a region there without replicas."""
    summary = summarize(jaxpr)
    if len(token_keys(summary.effects)) != 1:
        return False
    last = summary.last
    if last.primitive is _jax.shard_map_p:
        if _jax.region_axes(last.params["mesh"], last.params["newly_manual_axes"])[1]:
            return False
        last = summarize(last.params["jaxpr"]).last
    return is_ordered_record(last)


def thread_tokens(
    jaxpr: Any,
    tokens: Tokens,
    args: Sequence[Any],
    edges: BoundaryMarkers = NO_MARKERS,
    outer_token: Any = None,
    once: bool = False,
) -> tuple[Tokens, list[Any]]:
    """Evaluates a closed jaxpr, and threads tokens through its effects.

    Args:
        jaxpr: The jaxpr.
        tokens: A token under every key of the jaxpr's effects. Tokens under other keys are returned unchanged.
        args: The jaxpr's arguments.
        edges: The boundary markers for the first and the last equation with effects, which must be records.
        outer_token: The token around the region, if the last record is to leave the region.
        once: True if the current trace evaluates the jaxpr only once, so that equations without effects are copied
            faster (see `_jax.interpret`).

    Returns:
        The tokens after the jaxpr, and its results.
    """
    tokens = dict(tokens)
    joined: list[Any] = []
    between: Schedule | None = None
    for passes in passes_of(summarize(jaxpr).effects):
        jaxpr, between = passes.schedule(jaxpr)
    summary = summarize(jaxpr)
    first, last = (summary.first, summary.last) if edges != NO_MARKERS else (None, None)
    calls = itertools.count()
    after_effects = in_region().collectives_after_effects
    # Among asynchronous operations, and where collectives are ordered, each equation may depend on tokens.
    may_depend = between is not None or after_effects
    published_with_next = frozenset() if may_depend else summary.published_with_next
    ahead: list[tuple[Any, list[Any]]] = []

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if id(eqn) in published_with_next:
            ahead.append((eqn, operands))
            return []
        if between is None:
            return bind_threaded(eqn, operands)
        operands, changed = between.before(eqn, operands, tokens)
        tokens.update(changed)
        outs = bind_threaded(eqn, operands)
        between.note(eqn, outs)
        return outs

    def bind_threaded(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        effects, rule, call = effects_of(eqn.effects), find_rule(eqn.primitive), next(calls)
        # Converted callbacks of JAX's are restored if the equation has no other effects, and its primitive has no rule
        # or does not declare its effects: JAX can lower them there itself.
        has_jaxs_only = (rule is None or not effects) and conversion().all_converted(list(_jax.jaxprs_in(eqn.params)))
        is_threaded = bool(effects) and not has_jaxs_only
        if after_effects and (is_collective(eqn) or joins_error_vote(eqn) if is_threaded else communicates(eqn)):
            operands = add_dependency(tokens.values(), operands)
        if not is_threaded:
            eqn = conversion().restore(eqn) if has_jaxs_only else eqn
            refuse_hidden_effects(eqn)
            return _jax.bind(eqn, operands)
        effects = effects.union(*(effects_of(other.effects) for other, _ in ahead))
        taken = {key: tokens[key] for key in token_keys(effects)}
        is_first = first is (ahead[0][0] if ahead else eqn)
        edges_of_one = edges.part(is_first, eqn is last)
        own_outer_token = outer_token if edges_of_one.leaves and not edges_of_one.enters else None
        with_it = [(other.params["site"], its_operands) for other, its_operands in ahead]
        ahead.clear()
        ctx = TokenContext(
            eqn, effects, len(eqn.outvars), call, edges_of_one, with_it, own_outer_token, _thread, _threaded, _carry
        )
        returned, outs = _apply_rule(rule, ctx, taken, operands)
        for key, token in returned.items():
            # Nothing orders unordered effects, so all take the incoming token. An equation with a jaxpr is an
            # exception: its token replaces the incoming one, since XLA (xla/service/hlo_cse.cc) would merge two calls
            # of one function with equal operands.
            if key == UNORDERED and not any(_jax.jaxprs_in(eqn.params)):
                joined.append(token)
            else:
                tokens[key] = token
        return outs

    outs = _jax.interpret(jaxpr, args, apply, None if may_depend else summary.with_effects, once)
    if between is not None:
        outs = [*map(between.last, outs)]
    if joined:
        tokens[UNORDERED] = _join([tokens[UNORDERED], *joined])
    return tokens, outs


@_jax.weakref_lru_cache
def threaded_jaxpr(
    jaxpr: Any, keys: tuple[str, ...], token_avals: tuple[Any, ...], after: int, region: InRegion
) -> Any:
    """The jaxpr with tokens before its outputs, and after its first `after` inputs. Cached, so that JAX lowers one
    function once."""

    def threaded(*flat: Any) -> list[Any]:
        taken, args = flat[after : after + len(keys)], [*flat[:after], *flat[after + len(keys) :]]
        with inside(region):
            tokens, outs = thread_tokens(jaxpr, dict(zip(keys, taken, strict=True)), args, once=True)
        return [*(tokens[key] for key in keys), *outs]

    avals = jaxpr.in_avals
    return _jax.trace_to_jaxpr(threaded, [*avals[:after], *token_avals, *avals[after:]], like=jaxpr)


def _thread(
    jaxpr: Any, tokens: Tokens, args: Sequence[Any], edges: BoundaryMarkers = NO_MARKERS, outer_token: Any = None
) -> tuple[Tokens, list[Any]]:
    return thread_tokens(_jax.closed_jaxpr(jaxpr), tokens, args, edges, outer_token)


def _threaded(jaxpr: Any, tokens: Tokens, after: int = 0) -> Any:
    keys = tuple(tokens)
    avals = tuple(_jax.typeof(tokens[key]) for key in keys)
    return threaded_jaxpr(_jax.closed_jaxpr(jaxpr), keys, avals, after, in_region())


def find_rule(primitive: Any) -> TokenRule | None:
    """The rule that was registered for a primitive, else the one that is made from its holder."""
    return _token_rules.get(primitive) or (None if find_holder(primitive) is None else _carry)


def _carry(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, list[Any]]:
    """Carries tokens as state of the primitive's holder."""
    keys = tuple(tokens)

    def run(body: Any, state: Sequence[Any], args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        after, outs = _thread(body, dict(zip(keys, state, strict=True)), args)
        return [after[key] for key in keys], outs

    primitive = ctx.eqn.primitive
    holder = find_holder(primitive)
    assert holder is not None
    extra = Extra(primitive.bind, lambda body, after: _threaded(body, tokens, after), run, state=tuple(tokens.values()))
    outs = holder(extra, *args, **params)
    return dict(zip(keys, extra.state, strict=True)), list(outs)


def _apply_rule(
    rule: TokenRule | None, ctx: TokenContext, tokens: Tokens, operands: Sequence[Any]
) -> tuple[Tokens, Sequence[Any]]:
    known = registered_effects()
    for effect in ctx.effects:
        if effect.name not in known:
            raise errors.value_error(MSG_UNKNOWN_IN_PROGRAM.format(effect=effect.name, where=ctx.where))
    if rule is None:
        raise _missing_rule(ctx.eqn, ctx.effects)
    result = rule(ctx, tokens, *operands, **ctx.eqn.params)
    if (
        not isinstance(result, tuple)
        or len(result) != 2
        or not isinstance(result[0], dict)
        or result[0].keys() != tokens.keys()
        or len(result[1]) != ctx.outs
    ):
        raise errors.type_error(
            MSG_RULE_RETURNED.format(primitive=ctx.primitive, got=result, keys=", ".join(tokens), outs=ctx.outs)
        )
    return result


def _missing_rule(eqn: Any, effects: Any) -> errors.MissingTokenRule:
    names = ", ".join(sorted(f"`{effect}`" for effect in effects))
    return errors.MissingTokenRule(
        MSG_MISSING_RULE.format(effects=names, primitive=eqn.primitive, where=_jax.source_of(eqn))
    )


def refuse_hidden_effects(eqn: Any) -> None:
    """Raises if a jaxpr inside an equation has effects that the equation does not declare."""
    for inner in _jax.jaxprs_in(eqn.params):
        if hidden := summarize(inner).all_effects:
            raise _missing_rule(eqn, hidden)


def _join(tokens: Sequence[Any]) -> Any:
    """One token that depends on all of these tokens, which hold equal numbers."""
    first, *rest = tokens
    for token in rest:
        first = jax.lax.max(first, token)
    return first
