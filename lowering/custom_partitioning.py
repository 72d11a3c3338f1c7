"""`custom_partitioning`: a rule of the user's says what each device does in place of a function.

XLA asks the rule when it partitions a compiled program, and only then JAX lowers what the rule returns. So tokens go
into the call as operands, and come out of it as results, that every device has whole, and what the rule returns becomes
a per-device region like the body of a `shard_map`. On one device, and in a `shard_map`, JAX calls the function itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from effects import _errors as errors
from effects import _jax
from effects._jax import patches
from effects._model.effect import Effect, Order, is_numbered
from effects.lowering.effect import calls_handlers
from effects.lowering.holders import others
from effects.lowering.masks import call_lanes, needs_masks
from effects.lowering.shard_map import region_of
from effects.lowering.summary import summarize
from effects.lowering.tokens import TokenContext, Tokens, checked_jaxpr, register_token_rule

MSG_WITHOUT_TOKENS = (
    "Effect {effects} is in the `custom_partitioning` function `{function}`, or in what its partition rule returned, "
    "in a program for several devices{place}. XLA asks the rule when the program has been lowered, and what it returns "
    "gets no tokens there. {remedy}."
)
MSG_MORE_IN_RULE = (
    "The partition rule of the `custom_partitioning` function `{function}` returned a function with {more}, which "
    "`{function}` itself does not have. XLA asks the rule when the program has been lowered, and which tokens it gets "
    "is settled by then. Have effects of the same kinds in both functions, or use `jax.shard_map`."
)
MSG_RESULTS = (
    "The partition rule of the `custom_partitioning` function `{function}` returned a function with {got} results, and "
    "`{function}` has {expected}. The program goes on with those. Return equally many from both."
)

_p = _jax.custom_partitioning_p

keep_p: _jax.Primitive = _jax.Primitive("keep")
"""token -> token. Its lowering keeps a shard's sites with the rule: JAX drops them once it has lowered the shard."""
keep_p.def_abstract_eval(lambda token, rule: token)


def _lower_keep(ctx: Any, token: Any, *, rule: _Partition) -> list[Any]:
    rule.kept.append(_jax.kept_with_module(ctx))
    return [token]


_jax.mlir.register_lowering(keep_p, _lower_keep)


@patches.implements("effects of custom_partitioning")
def _showing_effects(abstract_eval: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*avals: Any, call: Any, **params: Any) -> Any:
        outs, effects = abstract_eval(*avals, call=call, **params)
        shown = (isinstance(effect, (Effect, Order)) or _jax.is_callback_effect(effect) for effect in call.effects)
        return outs, {*effects, *itertools.compress(call.effects, shown)}

    return rule


@patches.implements("vmap of custom_partitioning")
def _batch(_: None) -> Callable[..., Any]:
    def rule(axis_data: Any, args: Any, dims: Any, *, call: Any, **params: Any) -> Any:
        if any(dim is not None for dim in dims):
            raise NotImplementedError("Batching rule for 'custom_partitioning' not implemented")
        bind = functools.partial(_p.bind, call=call, **params)
        if needs_masks(call) and not _jax.is_axis_of_tangents(axis_data):
            return call_lanes(axis_data, args, dims, body=jax.make_jaxpr(bind)(*args))
        outs = bind(*args)
        return outs, [None] * len(outs)

    return rule


@patches.implements("lowering of custom_partitioning")
def _lowering_what_has_tokens(lower: Callable[..., Any]) -> Callable[..., Any]:
    def rule(ctx: Any, *values: Any, call: Any, partition: Any, **params: Any) -> Any:
        if _jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx):
            if effects := summarize(call).all_effects:
                raise _refused(call, effects, " that `fx.jit` has not made", "Write `fx.jit` in place of `jax.jit`")
            if not isinstance(partition, _Partition):
                partition = _without_effects(call, partition)
            elif not calls_handlers(ctx):
                remedy = "Use CPUs, or CUDA with its driver, and the setting `native`"
                raise _refused(partition.call, partition.ctx.effects, " without native handlers", remedy)
        return lower(ctx, *values, call=call, partition=partition, **params)

    return rule


@register_token_rule(_p)
def _custom_partitioning_token_rule(
    ctx: TokenContext,
    tokens: Tokens,
    *args: Any,
    call: Any,
    partition: Any,
    infer_sharding_from_operands: Any,
    propagate_user_sharding: Any,
    sharding_rule: Any,
    in_tree: Any,
    out_tree: Any,
    **params: Any,
) -> tuple[Tokens, list[Any]]:
    if _jax.is_in_region_over_some_axes():
        place = " that are replicas of each other in a `jax.shard_map` over some axes of its mesh"
        raise _refused(call, ctx.effects, place, "Name all axes in its `axis_names`, or move the effect out")
    keys = sorted(tokens, key=lambda key: not is_numbered(key))
    count = len(keys)

    def infer(*given: Any) -> Any:
        *known, (_, args), (_, results) = given
        return (_jax.on_each_device(),) * count, infer_sharding_from_operands(*known, args, results)

    def propagate(*given: Any) -> Any:
        *known, (_, results) = given
        return (_jax.on_each_device(),) * count, propagate_user_sharding(*known, results)

    outs = _p.bind(
        *(tokens[key] for key in keys),
        *args,
        call=ctx.threaded(call, {key: tokens[key] for key in keys}),
        partition=_Partition(ctx, keys, call, partition),
        infer_sharding_from_operands=infer_sharding_from_operands and infer,
        propagate_user_sharding=propagate_user_sharding and propagate,
        sharding_rule=sharding_rule and _jax.sharding_rule_with_tokens(sharding_rule, count),
        in_tree=_jax.behind_leaves(in_tree, count),
        out_tree=_jax.behind_leaves(out_tree, count),
        **params,
    )
    return dict(zip(keys, outs, strict=False)), list(outs[count:])


class _Partition:
    """The user's partition rule in a call that takes tokens and gives them back."""

    def __init__(self, ctx: TokenContext, keys: Sequence[str], call: Any, partition: Any):
        self.ctx, self.call, self._keys, self._partition = ctx, call, keys, partition
        self.kept: list[Any] = []
        """What lowering what the rule returns keeps for the program. The program keeps the rule."""

    def __call__(self, *given: Any) -> Any:
        *known, (tokens, args), (_, results) = given
        mesh, function, of_results, of_args = self._partition(*known, args, results)
        if mesh.empty:
            mesh = _jax.mesh_of_all(tokens[0].sharding)
        whole = (_jax.on_each_device(),) * len(self._keys)

        def lower(tokens: Sequence[Any], args: Sequence[Any]) -> list[Any]:
            with others().tracing(), _jax.inside_region(mesh, mesh.axis_names, False):
                jaxpr = checked_jaxpr(jax.make_jaxpr(function)(*args))
                self._check(jaxpr)
                flat = jax.tree.leaves(args)
                if not summarize(jaxpr).effects:
                    return [*tokens, *_jax.evaluate(jaxpr, flat)]
                by_key = dict(zip(self._keys, [keep_p.bind(tokens[0], rule=self), *tokens[1:]], strict=True))
                region = region_of(self.ctx, by_key, jaxpr, mesh, mesh.axis_names, check_vma=False, counts=True)
                return list(region(*by_key.values(), *flat))

        return mesh, lower, (whole, of_results), (whole, of_args)

    def _check(self, jaxpr: Any) -> None:
        own, around, function = summarize(jaxpr), summarize(self.call), _jax.function_of(self.call)
        if (got := len(jaxpr.out_avals)) != (expected := len(self.call.out_avals)):
            raise ValueError(MSG_RESULTS.format(function=function, got=got, expected=expected))
        more = sorted(f"the effect `{effect}`" for effect in own.all_effects - around.all_effects)
        more += ["a callback"] if own.has_callbacks > around.has_callbacks else []
        more += ["a callback whose results it waits for"] if own.awaits_results > around.awaits_results else []
        more += ["a custom call"] if bool(own.handlers) > bool(around.handlers) else []
        if more:
            raise errors.MissingTokenRule(MSG_MORE_IN_RULE.format(function=function, more=" and ".join(more)))


def _without_effects(call: Any, partition: Any) -> Callable[..., Any]:
    """The user's partition rule in a call without effects, where what the rule returns may have none either."""

    def checked(*given: Any) -> Any:
        mesh, function, *shardings = partition(*given)
        jitted = _jax.jit(function, inline=True)

        def lower(*args: Any) -> Any:
            jaxpr = jitted.trace(*args).jaxpr
            if effects := [*summarize(jaxpr).all_effects, *filter(_jax.is_callback_effect, jaxpr.effects)]:
                remedy = "Use `fx.jit`, with the same effects in both functions, or use `jax.shard_map`"
                raise _refused(call, effects, "", remedy)
            return jitted(*args)

        return mesh, lower, *shardings

    return checked


def _refused(call: Any, effects: Any, place: str, remedy: str) -> Exception:
    names = ", ".join(sorted(f"`{effect}`" for effect in effects))
    shown = {"effects": names, "function": _jax.function_of(call), "place": place, "remedy": remedy}
    return _jax.Refused(MSG_WITHOUT_TOKENS.format(**shown))
