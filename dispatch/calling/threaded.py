"""The threaded function: the user's, with a runtime token ahead of its arguments and output tokens behind its results.

It is traced as `jax.jit` would trace it, and its jaxpr is threaded with tokens. What comes out is an ordinary function,
without effects that JAX knows of, so it takes JAX's fast dispatch path.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from effects import _jax
from effects._model.wire import TOKEN_LENGTH, ProgramTraits, domain_number
from effects.dispatch.calling.options import jit_with_tokens, signature_of
from effects.dispatch.draining.runtime import runtime
from effects.lowering.others import others
from effects.lowering.record import TOKEN_NAME, Edges, close_p, gate_p, record_p
from effects.lowering.summary import summarize
from effects.lowering.thread import last_record_closes, passes_of, thread_tokens
from effects.lowering.tokens import token_key, token_keys

RUNTIME_TOKEN = jax.ShapeDtypeStruct((TOKEN_LENGTH,), np.uint32)


def runtime_token_for(args: Any, kwargs: Any) -> jax.ShapeDtypeStruct:
    """The runtime token of a call with these arguments, on their devices."""
    if (sharding := _jax.sharding_of_call(args, kwargs)) is None:
        return RUNTIME_TOKEN
    return RUNTIME_TOKEN.update(sharding=_jax.replicated(sharding))


def make_threaded(traceable: Any, jitted: Any) -> Any:
    """The function of (runtime token, *args) that returns (results, {ProgramTraits: output token}).

    `jitted`: what `jax.jit` has made of the user's function, `traceable`.
    """

    @functools.wraps(traceable, updated=())
    def threaded(token: Any, /, *args: Any, **kwargs: Any) -> Any:
        by_hand = not isinstance(token, _jax.Tracer)
        runtime.streams.begin_trace(by_hand)
        if by_hand:  # JAX does that to find where a NaN came from: effects happen as they do without jit
            return traceable.find_fun()(*args, **kwargs), {}
        traced = trace(jitted, args, kwargs)
        return run_traced(traced, args, kwargs, lambda jaxpr, flat: run_threaded(jaxpr, token, flat))

    _hide_token(traceable, threaded)
    return threaded


def trace(traceable: Any, args: Any, kwargs: Any) -> Any:
    """What JAX traces of a jitted function, with JAX's own callbacks as effects of ours."""
    with others().tracing():
        return traceable.trace(*args, **kwargs)


def checked_jaxpr(traced: Any) -> Any:
    """The jaxpr of what was traced. Its effects are all ours, and futures and references are used as they may be."""
    jaxpr = others().take_over(_jax.closed_jaxpr(traced.jaxpr))
    for passes in passes_of(summarize(jaxpr).effects):
        passes.check(jaxpr, traced.jaxpr)
    return jaxpr


def run_traced(traced: Any, args: Any, kwargs: Any, run: Callable[[Any, list[Any]], tuple[list[Any], Any]]) -> Any:
    """The results of `run(jaxpr, flat arguments)`, the first of them as the traced function returns it."""
    # What was static is no tracer; the rest comes in the order of the jaxpr's inputs.
    flat = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, _jax.Tracer)]
    flat = [*_jax.tracers_closed_over(traced), *flat]
    outs, rest = run(checked_jaxpr(traced), flat)
    return jax.tree.unflatten(traced.out_tree, outs), rest


def jit_with_all_tokens(fun: Callable[..., Any], options: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """The jitted function of (tokens, *args) that returns (results, tokens): a program that others can be part of.

    It does not close. There is one token under each key.
    """
    traceable = jax.jit(fun, **options)

    @functools.wraps(fun, updated=())
    def threaded(tokens: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
        def run(jaxpr: Any, flat: list[Any]) -> Any:
            after, outs = thread_tokens(jaxpr, dict(zip(keys, tokens, strict=True)), flat, once=True)
            return outs, tuple(after[key] for key in keys)

        return run_traced(trace(traceable, args, kwargs), args, kwargs, run)

    _hide_token(fun, threaded)
    return jit_with_tokens(threaded, traceable, options)


def run_threaded(jaxpr: Any, token: Any, args: Sequence[Any]) -> tuple[list[Any], dict[ProgramTraits, Any]]:
    """Evaluates a whole program with tokens that begin at the runtime token."""
    summary = summarize(jaxpr)
    keys = token_keys(summary.effects)
    _jax.need_devices([record_p, close_p])  # each process counts its own
    # The domains of one program differ in the lowest bits of the stream, in the order of their keys.
    tokens = {key: token if i == 0 else token + np.array([i, 0, 0, 0], np.uint32) for i, key in enumerate(keys)}
    domains = {token_key(site.effect) for site in summary.sites if site.content.calls_handler and site.effect.ordered}
    handlers = {key: domain_number(key) for key in keys if key in domains}
    tokens |= {key: gate_p.bind(tokens[key], domain=domain) for key, domain in handlers.items()}
    closes = bool(keys) and last_record_closes(jaxpr)
    tokens, outs = thread_tokens(jaxpr, tokens, args, Edges(closes=closes), once=True)
    names = tuple(sorted({effect.name for effect in summary.effects}))
    awaits, calls = summary.awaits_results, bool(summary.handlers)
    called = tuple(sorted(f"`{site.content.title}` at {site.where}" for site in summary.handlers))
    traits = ProgramTraits(names, summary.has_callbacks, awaits, calls, tuple(handlers.values()), called)
    if tokens:
        return outs, {traits: tokens[keys[0]] if closes else close_p.bind(*tokens.values())}
    return outs, {traits: close_p.bind(token)} if calls else {}


def _hide_token(fun: Callable[..., Any], threaded: Any) -> None:
    """Gives the threaded function the name and signature of the user's, with the token ahead."""
    del threaded.__wrapped__
    inner = fun
    while isinstance(inner, functools.partial):
        inner = inner.func
        threaded.__name__ = getattr(inner, "__name__", threaded.__name__)
    if (signature := signature_of(fun)) is not None:
        token = inspect.Parameter(TOKEN_NAME, inspect.Parameter.POSITIONAL_ONLY)
        threaded.__signature__ = signature.replace(parameters=[token, *signature.parameters.values()])
