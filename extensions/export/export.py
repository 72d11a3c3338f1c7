"""`fx.export`: like `jax.export`, for functions with effects.

The exported function is the threaded one: it takes all its tokens and the arguments, returns the tokens again, and does
not close the program. So it can be part of any program: called by itself, it becomes the only part of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from effects import _errors as errors
from effects import _jax
from effects._model import wire as wire
from effects._model.effect import token_keys
from effects._model.operand import describe_tree, nodes_unknown_elsewhere
from effects._model.site import Site
from effects.dispatch.calling.jit import JitCall, JitFunction, jit
from effects.dispatch.calling.programs import RUNTIME_TOKEN, jit_with_all_tokens
from effects.extensions.export.exported import Exported, errors_count_users_arguments
from effects.lowering.holders import conversion
from effects.lowering.sites import exported_sites
from effects.lowering.summary import summarize

MSG_EXPORT_NODE = (
    "The program `{program}` cannot be exported: {effect} at {where} is given a {types}. Another process knows only "
    "dictionaries, lists, tuples and named tuples. Pass it as one of these."
)
MSG_EXPORT_REFERENCE = (
    "The program `{program}` cannot be exported: it takes a mutable reference, or closes over one. JAX exports "
    "functions of values only. Pass `ref[...]`, and return the new value."
)
MSG_EXPORT_OF_PROCESSES = (
    "The program `{program}` has effects, and was exported for several devices where there are several processes. Each "
    "process knows only its own devices, and the program would be of these. Export it in a process by itself."
)


_TARGETS = (
    wire.RECORD_TARGET,
    wire.SHARDS_TARGET,
    wire.CALL_TARGET,
    wire.CUSTOM_CALL_TARGET,
    wire.ENTER_TARGET,
    wire.LEAVE_TARGET,
    wire.SKIP_TARGET,
    wire.AFTER_TARGET,
    wire.BEGIN_TARGET,
    wire.KEEP_TARGET,
    wire.POST_TARGET,
    wire.TAKE_TARGET,
    wire.CLOSE_TARGET,
)
_CHECKS = tuple(map(jax.export.DisabledSafetyCheck.custom_call, _TARGETS))


def export(
    fun: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[jax.export.DisabledSafetyCheck] = (),
    **options: Any,
) -> Callable[..., Exported]:
    """Exports a function with effects, for other processes. Takes the options of `jax.export.export`.

    Prints and logs travel with the program. Of callbacks travel the names that `fx.register_callback` gave them, and
    one without a name is an error.

    Args:
        fun: The function, as it is or as `fx.jit` returned it.
        platforms: As for `jax.export.export`. A program with effects is called where there are native handlers: on CPUs
            and NVIDIA's GPUs.
        disabled_checks: As for `jax.export.export`.
        **options: Other options that `jax.export.export` of this version of JAX takes.

    Returns:
        A function of arguments, or of `jax.ShapeDtypeStruct`s with symbolic dimensions or without, that returns an
        `Exported`.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> @fx.jit
        ... def total(x):
        ...     fx.print("adding up {}", x)
        ...     return x.sum()
        >>> n, = jax.export.symbolic_shape("n")
        >>> data = fx.export(total)(jax.ShapeDtypeStruct((n,), jnp.int32)).serialize()
        >>> program = fx.deserialize(data)  # here, or in another process
        >>> program.call(jnp.arange(3))
        Array(3, dtype=int32)
        >>> fx.effects_barrier()
        adding up [0 1 2]
    """
    function = fun if isinstance(fun, JitFunction) else jit(fun)

    @_jax.for_users
    def do_export(*args: Any, **kwargs: Any) -> Exported:
        call = JitCall.of(function)
        _jax.check_symbolic_scopes(call.fun, args, kwargs)  # its error counts no tokens here, ahead of the threading
        jaxpr = conversion().convert(_jax.closed_jaxpr(function.trace(*args, **kwargs).jaxpr))
        summary = summarize(jaxpr)
        effects = summary.effects
        sites = {site.portable for site in summary.sites}
        for site in sites:
            _check_site(call.name, site)
        if any(map(_jax.is_reference_type, jaxpr.in_avals)) or any(map(_jax.is_reference, jaxpr.consts)):
            raise errors.unsupported(MSG_EXPORT_REFERENCE.format(program=call.name))
        keys = token_keys(effects)
        do_export = jax.export.export(
            jit_with_all_tokens(call.fun, call.options, keys),
            platforms=platforms,
            disabled_checks=(*disabled_checks, *_CHECKS),
            **options,
        )
        # Records have the sites as they are lowered: with a kernel's place in its grid, or with the bounds of shards.
        collecting = exported_sites.set(sites)
        try:
            with errors_count_users_arguments():
                exported = do_export((RUNTIME_TOKEN,) * len(keys), *args, **kwargs)
        finally:
            exported_sites.reset(collecting)
        if keys and exported.nr_devices > 1 and jax.process_count() > 1:
            raise errors.unsupported(MSG_EXPORT_OF_PROCESSES.format(program=exported.fun_name))
        return Exported(exported, effects, sorted(sites, key=lambda site: site.id))

    return do_export


def _check_site(name: str, site: Site) -> None:
    if not site.content.is_portable:
        raise errors.value_error(errors.why_it_stays(f"The program `{name}`", site.content.title, site.where))
    if types := nodes_unknown_elsewhere(describe_tree(site.tree)):
        shown = ", ".join(f"`{type_}`" for type_ in sorted(types))
        raise errors.value_error(
            MSG_EXPORT_NODE.format(program=name, effect=site.effect.name, where=site.where, types=shown)
        )
