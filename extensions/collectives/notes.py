"""Notes in a run file, of each device: it comes to a collective or begins a program, and has the result.

The notes are those of an asynchronous operation that keeps nothing. Its start depends on the operands of the
collective, which depend on its ticket; its end depends on the results. Nothing of this reaches the drain.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.after import after
from effects._model.content import Content
from effects._model.effect import Effect, jax_effects, leave_order_to_device, register_effect, token_key
from effects._model.line import Line
from effects._model.operand import flat_arguments
from effects._model.site import Site
from effects._model.where import Where
from effects._model.wire import KEEP_TARGET, TAKE_TARGET, Attribute
from effects.extensions.asynchronous.operation import TICKET_LENGTH
from effects.extensions.runs.collectives import Noted
from effects.lowering.effect import advances_token, calls_handlers, emit_call
from effects.lowering.holders import find_holder
from effects.lowering.rewrite import rewritten, with_jaxprs
from effects.lowering.sites import known_sites
from effects.lowering.summary import summarize
from effects.lowering.tokens import TokenContext, Tokens, change_programs, register_token_rule, registered_rule

COLLECTIVE: Effect = register_effect(Effect("collective", kind="device"))
"""The effect of notes. They are in order on each device, and count nothing."""

leave_order_to_device(COLLECTIVE)
_KEY = token_key(COLLECTIVE)


class Note(NamedTuple):
    """What a device comes to: a collective along axes, or without axes a program."""

    name: str
    place: str  # a line of the user's
    axes: tuple[Any, ...] = ()
    within: Any = None  # JAX's `axis_index_groups`


note_p: _jax.Primitive = _jax.Primitive("note")
note_p.multiple_results = True
"""(*operands) -> (ticket, *operands): the device comes to what `note` says. (ticket, *results) -> results: it has the
results, if `note` is None. XLA copies a value that is also used without having been passed through."""

publish_note_p: _jax.Primitive = _jax.Primitive("publish_note")
publish_note_p.multiple_results = True
"""(token) -> (ticket, token), or (token, ticket) -> (token,)."""

_TICKET = _jax.ShapedArray((TICKET_LENGTH,), np.dtype(np.float32))


@note_p.def_effectful_abstract_eval
def _note_abstract_eval(*operands: Any, note: Note | None) -> tuple[list[Any], set[Any]]:
    return [_jax.per_device(_TICKET), *operands] if note else [*operands[1:]], jax_effects(COLLECTIVE)


@publish_note_p.def_abstract_eval
def _publish_note_abstract_eval(token: Any, *ticket: Any, note: Note | None) -> list[Any]:
    return [_jax.per_device(_TICKET), token] if note else [token]


_jax.infer_types_each_time(note_p)
_jax.infer_types_each_time(publish_note_p)
_jax.need_devices([publish_note_p], always=True)


@register_token_rule(note_p)
def _note_token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, note: Note | None) -> tuple[Tokens, list[Any]]:
    ticket, values = ([], operands) if note else (operands[:1], operands[1:])
    if jax.sharding.get_abstract_mesh().manual_axes:
        token, *values = after([], [tokens[_KEY], *values])
    else:  # results of a program, which XLA's partitioner may distribute
        token = after(values, [tokens[_KEY]])[0] if values else tokens[_KEY]
    *ticket, token = publish_note_p.bind(token, *ticket, note=note)
    return {_KEY: token}, [*ticket, *after(ticket, values)] if note else [*values]


def _lower_note(ctx: Any, token: Any, *ticket: Any, note: Note | None) -> Any:
    """Publishes nothing where handlers cannot be called, so that what JAX compiles is compiled here."""
    if not calls_handlers(ctx) or _jax.is_for_export(ctx) or _jax.left_to_host_by(ctx):
        zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in ctx.avals_out[:-1]]
        return _jax.mlir.lower_fun(lambda token, *_: [*zeros, token])(ctx, token, *ticket)
    _jax.keep_with_program(ctx, known_sites.register(_SITE))
    if note is None:
        target, attributes = TAKE_TARGET, {Attribute.BY_LANE: False, Attribute.WHERE: ""}
    else:
        groups, line = _jax.groups_of(ctx, note.axes, note.within), os.path.basename(note.place)
        text = Noted(f"{note.name} at {line}", note.place, not note.axes, groups).text()
        target, attributes = KEEP_TARGET, {Attribute.BY_LANE: False, Attribute.OPTIONAL: True, Attribute.NAME: text}
    replicated = bool(_jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx))
    aliases = {0: len(ctx.avals_out) - 1} if advances_token(ctx) else None
    return emit_call(ctx, target, (token, *ticket), attributes, replicated=replicated, aliases=aliases)


_jax.mlir.register_lowering(publish_note_p, _lower_note, cacheable=False)

_CONTENT: Content = Line("collectives are noted")
_SITE = Site(COLLECTIVE, _CONTENT, (), flat_arguments(0), Where("effects run --collectives", 0, ""))
"""A site without records: with the first site of a process its recording begins."""


def note_programs() -> None:
    """Makes every program that is traced from now on note its collectives, and where it begins and ends."""
    change_programs(noted_program)


# A cache must not give back the jaxpr that it was asked for: see `extensions/jax_callbacks/taking_over.py`.
@_jax.weakref_lru_cache
def noted_program(jaxpr: Any) -> Any:
    """The program with notes of its collectives, and of its beginning and its end."""
    name, _, place = (jaxpr.jaxpr.debug_info.func_src_info or "?").rpartition(" at ")

    def run(*args: Any) -> list[Any]:
        [ticket] = note_p.bind(note=Note(f"the program {name}", place))
        return note_p.bind(ticket, *_jax.interpret(jaxpr, args, _apply), note=None)

    return _jax.trace_to_jaxpr(run, jaxpr.in_avals, like=jaxpr)


@_jax.weakref_lru_cache
def _noted(jaxpr: Any) -> Any:
    return rewritten(jaxpr, _apply)


def _apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    if (name := _jax.name_of_collective(eqn)) is not None:
        axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
        axes = axes if isinstance(axes, tuple) else (axes,)
        within = eqn.params.get("axis_index_groups")
        within = None if within is None else tuple(map(tuple, within))
        frames = _jax.user_frames(eqn)
        place = _jax.named_line(*frames[0][:2]) if frames else "a line that JAX does not know"
        ticket, *operands = note_p.bind(*operands, note=Note(name, place, axes, within))
        return note_p.bind(ticket, *_jax.bind(eqn, operands), note=None)
    if any(summarize(inner).has_collectives for inner in _jax.jaxprs_in(eqn.params)) and _takes_notes(eqn):
        eqn = with_jaxprs(eqn, _noted)
    return _jax.bind(eqn, operands)


def _takes_notes(eqn: Any) -> bool:
    """True if tokens come to the bodies of an equation. In a region over some axes of its mesh, where devices have one
    effect with their replicas, there are no notes."""
    if eqn.primitive is _jax.shard_map_p:
        return not _jax.region_axes(eqn.params["mesh"], eqn.params["newly_manual_axes"])[1]
    return registered_rule(eqn.primitive) is not None or find_holder(eqn.primitive) is not None
