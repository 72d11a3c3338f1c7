"""Notes in a run file, of each device: it comes to a collective or begins a program, and has the result.

The notes are those of an asynchronous operation that keeps nothing. Its start depends on the operands, which are passed
on with a dependency on its ticket; its end depends on the results. Nothing of this reaches the drain.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.dependency import add_dependency
from effects._model.effect import Effect, jax_effects, leave_order_to_device, register_effect, token_key
from effects._model.line import Line
from effects._model.operand import flat_arguments
from effects._model.site import Site
from effects._model.where import Where
from effects._model.wire import KEEP_TARGET, TAKE_TARGET, Attribute
from effects.extensions.asynchronous.operation import TICKET_LENGTH
from effects.extensions.runs.collectives import Note
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

_SITE = Site(COLLECTIVE, Line("noted"), (), flat_arguments(0), Where("effects run --collectives", 0, ""))
"""A site without records. The recording of a process begins with its first site."""

note_p: _jax.Primitive = _jax.Primitive("note")
note_p.multiple_results = True
"""(*operands) -> (ticket, *operands): the device comes to `note`, which is a name, a line, and of a collective its axes
and JAX's `axis_index_groups`. Without a note, (ticket, *results) -> results: it has them."""

publish_note_p: _jax.Primitive = _jax.Primitive("publish_note")
publish_note_p.multiple_results = True
"""(token) -> (ticket, token), or (token, ticket) -> (token,)."""

_TICKET = _jax.ShapedArray((TICKET_LENGTH,), np.dtype(np.float32))


@note_p.def_effectful_abstract_eval
def _note_abstract_eval(*operands: Any, note: Any) -> tuple[list[Any], set[Any]]:
    return [_jax.per_device(_TICKET), *operands] if note else [*operands[1:]], jax_effects(COLLECTIVE)


@publish_note_p.def_abstract_eval
def _publish_note_abstract_eval(token: Any, *ticket: Any, note: Any) -> list[Any]:
    return [_jax.per_device(_TICKET), token] if note else [token]


_jax.infer_types_each_time(note_p)
_jax.infer_types_each_time(publish_note_p)
_jax.need_devices([publish_note_p], always=True)


@register_token_rule(note_p)
def _note_token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, note: Any) -> tuple[Tokens, list[Any]]:
    ticket, values, token = ([], operands, tokens[_KEY]) if note else (operands[:1], operands[1:], tokens[_KEY])
    if jax.sharding.get_abstract_mesh().manual_axes:  # XLA copies a value that is also used without a dependency
        token, *values = add_dependency([], [token, *values])
    elif values:  # the results of a program, which XLA's partitioner may distribute
        [token] = add_dependency(values, [token])
    *ticket, token = publish_note_p.bind(token, *ticket, note=note)
    return {_KEY: token}, [*ticket, *(add_dependency(ticket, values) if note else values)]


def _lower_note(ctx: Any, token: Any, *ticket: Any, note: Any) -> Any:
    """Publishes nothing where no handler can be called: what JAX compiles is compiled here."""
    if not calls_handlers(ctx) or _jax.is_for_export(ctx) or _jax.left_to_host_by(ctx):
        nothing = [_TICKET][: len(ctx.avals_out) - 1]
        return _jax.mlir.lower_fun(lambda token, *_: [*map(jnp.zeros_like, nothing), token])(ctx, token, *ticket)
    _jax.keep_with_program(ctx, known_sites.register(_SITE))
    target, attributes = TAKE_TARGET, {Attribute.BY_LANE: False, Attribute.WHERE: ""}
    if note:
        name, line, *of_collective = note
        groups = _jax.groups_of(ctx, *of_collective)
        text = Note(f"{name} at {os.path.basename(line)}", line, not of_collective, groups).text()
        target, attributes = KEEP_TARGET, {Attribute.BY_LANE: False, Attribute.OPTIONAL: True, Attribute.NAME: text}
    replicated = bool(_jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx))
    aliases = {0: len(ctx.avals_out) - 1} if advances_token(ctx) else None
    return emit_call(ctx, target, (token, *ticket), attributes, replicated=replicated, aliases=aliases)


_jax.mlir.register_lowering(publish_note_p, _lower_note, cacheable=False)


def note_programs() -> None:
    """Makes devices note each program that is traced from now on, and its collectives."""
    change_programs(_noted_program)


# A cache must not give back the jaxpr that it was asked for: see `extensions/jax_callbacks/conversion.py`.
@_jax.weakref_lru_cache
def _noted_program(jaxpr: Any) -> Any:
    name, _, line = (jaxpr.jaxpr.debug_info.func_src_info or "?").rpartition(" at ")

    def run(*args: Any) -> list[Any]:
        [ticket] = note_p.bind(note=(f"the program {name}", line))
        return note_p.bind(ticket, *_jax.interpret(jaxpr, args, _apply), note=None)

    return _jax.trace_to_jaxpr(run, jaxpr.in_avals, like=jaxpr)


@_jax.weakref_lru_cache
def _noted(jaxpr: Any) -> Any:
    return rewritten(jaxpr, _apply)


def _apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    if (name := _jax.name_of_collective(eqn)) is not None:
        axes, within = eqn.params.get("axes", eqn.params.get("axis_name")), eqn.params.get("axis_index_groups")
        axes, within = axes if isinstance(axes, tuple) else (axes,), within and tuple(map(tuple, within))
        frames = _jax.user_frames(eqn)
        line = _jax.named_line(*frames[0][:2]) if frames else "a line that JAX does not know"
        ticket, *operands = note_p.bind(*operands, note=(name, line, axes, within))
        return note_p.bind(ticket, *_jax.bind(eqn, operands), note=None)
    if any(summarize(inner).has_collectives for inner in _jax.jaxprs_in(eqn.params)) and _takes_notes(eqn):
        eqn = with_jaxprs(eqn, _noted)
    return _jax.bind(eqn, operands)


def _takes_notes(eqn: Any) -> bool:
    """True if tokens come to the bodies of an equation. In a region over some axes of its mesh devices have no effects
    of their own."""
    if eqn.primitive is _jax.shard_map_p:
        return not _jax.region_axes(eqn.params["mesh"], eqn.params["newly_manual_axes"])[1]
    return registered_rule(eqn.primitive) is not None or find_holder(eqn.primitive) is not None
