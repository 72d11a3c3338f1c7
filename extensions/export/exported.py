"""Exported programs: the results of `fx.export`, here and in other processes."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.export

from effects import _errors as errors
from effects import _jax
from effects._model.effect import Effect, describe_effect, jax_effects, register_effect, registered_effects, token_keys
from effects._model.site import Site, site_from
from effects.dispatch.calling.jit import jit
from effects.dispatch.calling.programs import RUNTIME_TOKEN
from effects.dispatch.runtime.runtime import runtime
from effects.extensions.export.saved import pack, unpack
from effects.lowering.effect import calls_handlers
from effects.lowering.masks import call_lanes
from effects.lowering.tokens import TokenContext, Tokens, register_token_rule

MSG_EXPORT_VJP = (
    "The derivative of the exported program `{program}` was asked for, and the program has effects. An exported "
    "derivative computes the program anew, and its effects would happen again. Export the derivative as a function of "
    "its own: `fx.export(jax.grad(f))`."
)
MSG_EXPORTED_FOR_ONE = (
    "The program `{program}` was exported for one device, has effects, and is called over {devices} devices. Every "
    "device would have the effects. Export it for as many devices: `fx.export(fx.jit(f, in_shardings=...))`."
)
MSG_EXPORTED_OF_PROCESSES = (
    "The exported program `{program}` has effects, and is called over the devices of several processes. A process "
    "waits for the effects of its own devices, and the program does not say how many these are. Call the function that "
    "it was exported from."
)
MSG_EXPORTED_WITHOUT_NATIVE = (
    "The exported program `{program}` has effects, and is called where there are no native handlers. The program "
    "needs them, and they exist for CPUs and NVIDIA's GPUs while the setting `native` is on. Call the program "
    "there, or call the function that it was exported from."
)
MSG_EXPORTED_IN_JAX_JIT = (
    "The exported program `{program}`, which has effects, is part of a program that plain `jax.jit` compiles. Its "
    "effects are ordered by tokens, which `fx.jit` supplies. Compile the outer function with `fx.jit`."
)
MSG_MISSING_CALLBACKS = (
    "The exported program `{program}` calls back functions that are not registered here: {names}. A program carries "
    "the names of its callbacks, and each process its own functions. Decorate them with `@fx.register_callback(name)` "
    "before `fx.deserialize`."
)


class Exported:
    """An exported program: what `fx.export(f)(*args)` and `fx.deserialize` return.

    It has what `jax.export.Exported` has, and speaks of the user's arguments and results: no tokens.

    Attributes:
        call: Calls the program. Inside `fx.jit` it becomes part of the outer program, and its effects take their place
            among the outer ones.

    Example:
        >>> import effects as fx
        >>> exported = fx.export(lambda x: fx.print("x = {}", x))(1)
        >>> exported.in_avals, exported.platforms
        ((ShapedArray(int32[], weak_type=True),), ('cpu',))
        >>> exported.call(2)
        >>> fx.effects_barrier()
        x = 2
    """

    def __init__(self, threaded: jax.export.Exported, effects: frozenset[Effect], sites: Sequence[Site]):
        self._threaded = threaded
        self._effects = effects
        self._sites = tuple(sites)
        self._claims = [*map(runtime.sites.register, sites)]
        self._keys = token_keys(effects)
        program = copy.copy(self)  # without `call`: JAX would keep it alive forever

        def call(*args: Any, **kwargs: Any) -> Any:
            flat, tree = jax.tree.flatten((args, kwargs))
            if tree != program.in_tree:
                dataclasses.replace(threaded, in_tree=program.in_tree).call(*args, **kwargs)  # raises JAX's error
            if not effects:
                return jax.tree.unflatten(program.out_tree, program._run([], flat)[0])
            outs = exported_program_p.bind(*flat, program=program, sites=program._sites)
            return jax.tree.unflatten(program.out_tree, outs)

        call.__name__ = call.__qualname__ = threaded.fun_name
        self.call: Callable[..., Any] = jit(call)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._threaded, name)
        if re.match("in_(avals|shardings)", name):
            users = slice(len(self._keys), None)
        elif re.match("out_(avals|shardings)", name):
            users = slice(self.out_tree.num_leaves)
        else:
            return value
        return value[users] if isinstance(value, tuple) else lambda *args: value(*args)[users]

    def __repr__(self) -> str:
        return f"<fx.Exported {self.fun_name}>"

    @functools.cached_property
    def in_tree(self) -> Any:
        """The structure of `(args, kwargs)`."""
        return _jax.without_first_argument(self._threaded.in_tree)

    @functools.cached_property
    def out_tree(self) -> Any:
        """The structure of the results."""
        return self._threaded.out_tree.children()[0]

    def has_vjp(self) -> bool:
        """Returns True if the program has a derivative; one with effects has none."""
        return not self._effects and self._threaded.has_vjp()

    def vjp(self) -> Any:
        """The derivative, as `jax.export.Exported.vjp`."""
        if self._effects:
            raise errors.unsupported(MSG_EXPORT_VJP.format(program=self.fun_name))
        return self._threaded.vjp()

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """The program as bytes, for `fx.deserialize`; with as many of its derivatives."""
        if vjp_order:
            self.vjp()
        header = {
            "effects": [describe_effect(effect) for effect in sorted(self._effects, key=str)],
            "sites": [site.description for site in self._sites],
        }
        return pack(header, self._threaded.serialize(vjp_order))

    def _run(self, tokens: Sequence[Any], flat: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """The results and the tokens after the program."""
        args, kwargs = jax.tree.unflatten(self._threaded.in_tree, [*tokens, *flat])
        with errors_count_users_arguments():
            outs, after = self._threaded.call(*args, **kwargs)
        return jax.tree.leaves(outs), list(after)


_jax.hold_weakly_in_caches(Exported)  # for the caches of equations that call it


@contextlib.contextmanager
def errors_count_users_arguments() -> Iterator[None]:
    """Corrects the positions of arguments in JAX's errors, which count the tokens as the first argument."""
    try:
        yield
    except ValueError as error:
        error.args = (re.sub(r"\bargs\[(\d+)\]", lambda i: f"args[{int(i[1]) - 1}]", str(error)),)
        raise


def deserialize(data: bytes | bytearray) -> Exported:
    """Reads an exported program from what `serialize` returned.

    Effects that the program has and this process does not know are registered as the program describes them. Callbacks
    must have been registered by name before.

    Args:
        data: The bytes that `Exported.serialize` returned, from a source that you trust: programs can do anything.

    Returns:
        The program.

    Raises:
        ValueError: if the data is something else or damaged, or callbacks of the program are not registered.

    Example:
        >>> import effects as fx
        >>> data = fx.export(lambda x: fx.print("x = {}", x))(1).serialize()
        >>> fx.deserialize(data).call(2)
        >>> fx.effects_barrier()
        x = 2
    """
    header, program = unpack(data)
    threaded = jax.export.deserialize(program)
    sites = list(map(site_from, header["sites"]))
    functions = (function for site in sites for function in site.content.functions)
    if missing := sorted({function.name for function in functions if function.fn is None}):
        names = ", ".join(map(repr, missing))
        raise errors.value_error(MSG_MISSING_CALLBACKS.format(program=threaded.fun_name, names=names))
    effects = frozenset(Effect(**description) for description in header["effects"])
    # Effects with a domain of their own come first: others may name that domain.
    for effect in sorted(effects, key=lambda effect: (effect.domain != effect.name, effect.name)):
        known = registered_effects().get(effect.name)
        register_effect(Effect(**{**vars(effect), "ordered": known.ordered if known else effect.ordered}))
    return Exported(threaded, effects, sites)


# The call of an exported program with effects inside another.

exported_program_p: _jax.Primitive = _jax.Primitive("exported_program")
exported_program_p.multiple_results = True


@exported_program_p.def_effectful_abstract_eval
def _exported_program_abstract_eval(*avals: Any, program: Exported, sites: Any) -> tuple[list[Any], set[Any]]:
    tokens = [RUNTIME_TOKEN] * len(program._keys)
    args = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    outs, _ = jax.eval_shape(program._run, tokens, args)
    effects = set().union(*map(jax_effects, program._effects))
    weak = [aval.weak_type for aval in program.out_avals]
    shaped = [_jax.ShapedArray(x.shape, x.dtype, weak_type=w) for x, w in zip(outs, weak, strict=True)]
    return shaped, effects


@exported_program_p.def_impl
def _exported_program_impl(*flat: Any, program: Exported, sites: Any) -> list[Any]:
    with jax.disable_jit(False):
        return jit(lambda *flat: exported_program_p.bind(*flat, program=program, sites=sites))(*flat)


@register_token_rule(exported_program_p)
def _exported_program_token_rule(
    ctx: TokenContext, tokens: Tokens, *flat: Any, program: Exported, sites: Any
) -> tuple[Tokens, list[Any]]:
    here = [exported_for_p.bind(token, program=program) for token in tokens.values()]
    outs, after = program._run(here, flat)
    return dict(zip(tokens, after, strict=True)), outs


exported_for_p: _jax.Primitive = _jax.Primitive("exported_for")
"""token -> token: what follows calls native handlers, and was lowered for as many devices as the program was exported
for."""
exported_for_p.def_abstract_eval(lambda token, program: token)


def _exported_for_lowering(ctx: Any, token: Any, *, program: Exported) -> list[Any]:
    if not calls_handlers(ctx) and not _jax.is_for_export(ctx):
        raise errors.unsupported(MSG_EXPORTED_WITHOUT_NATIVE.format(program=program.fun_name))
    devices = _jax.automatic_devices(ctx)
    # JAX may run a program exported for one device on several, but each device would publish its records.
    if devices and program.nr_devices == 1:
        raise errors.unsupported(MSG_EXPORTED_FOR_ONE.format(program=program.fun_name, devices=devices))
    if devices and _jax.own_devices(ctx, devices) != devices:
        raise errors.unsupported(MSG_EXPORTED_OF_PROCESSES.format(program=program.fun_name))
    return [token]


def _exported_program_jvp(primals: Any, tangents: Any, *, program: Exported, sites: Any) -> Any:
    raise errors.NotDifferentiable(MSG_EXPORT_VJP.format(program=program.fun_name))


def _exported_program_batch(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, Any]:
    """Calls the program for each lane, since it is compiled for one; along an axis of tangents once."""
    if _jax.is_axis_of_tangents(axis_data):
        if any(dim is not None for dim in dims):
            raise errors.NotDifferentiable(MSG_EXPORT_VJP.format(program=params["program"].fun_name))
        outs = exported_program_p.bind(*args, **params)
        return outs, [None] * len(outs)
    avals = [_jax.without_lanes(x, dim) for x, dim in zip(args, dims, strict=True)]
    body = jax.make_jaxpr(functools.partial(exported_program_p.bind, **params))(*avals)
    return call_lanes(axis_data, args, dims, body=body)


def _exported_program_lowering(ctx: Any, *flat: Any, program: Exported, sites: Any) -> Any:
    raise errors.MissingTokenRule(MSG_EXPORTED_IN_JAX_JIT.format(program=program.fun_name))


_jax.batching.fancy_primitive_batchers[exported_program_p] = _exported_program_batch
_jax.ad.primitive_jvps[exported_program_p] = _exported_program_jvp
_jax.mlir.register_lowering(exported_program_p, _exported_program_lowering)
_jax.mlir.register_lowering(exported_for_p, _exported_for_lowering)
