"""`fx.jit`: like `jax.jit`, for functions with effects."""

from __future__ import annotations

import copy
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, Never, ParamSpec, TypeVar, Unpack, overload

import jax

from effects import _errors as errors
from effects import _jax
from effects._jax import api_boundary
from effects._model.wire import ProgramTraits
from effects.dispatch.calling.dispatcher import Dispatcher
from effects.dispatch.calling.programs import JitOptions, programs_of, runtime_token_for, trace, with_program_of_ours
from effects.lowering.holders import conversion
from effects.lowering.summary import summarize

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")


@overload
def jit(fun: Callable[P, R], /, **options: Unpack[JitOptions]) -> JitFunction[P, R]: ...
@overload
def jit(**options: Unpack[JitOptions]) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
def jit(*fun: Any, **options: Any) -> Any:
    """Compiles a function with effects. Takes the options of `jax.jit`; the result has its methods.

    Effects appear on the host in program order: within the program, and after those of the programs that the same
    thread called before. Calls return as early as those of `jax.jit` do. Under another transformation the function is
    transparent, and its effects are the outer program's. JAX's own callbacks, such as `jax.debug.print` and
    `io_callback`, take part as if they were ours.

    Args:
        fun: The function. Without it, a decorator is returned. It may have been compiled already, by `jax.jit`,
            `equinox.filter_jit` or `flax.nnx.jit`: it keeps the options that it has, and is called as before.
            Of these, only what `jax.jit` has compiled takes further options, which are those of a jit around it.
        **options: As for `jax.jit`: `static_argnums`, `donate_argnames`, `in_shardings`, ...

    Returns:
        The compiled function. It also looks like one of `jax.jit`: `<PjitFunction of <function f at 0x...>>`.

    Example:
        >>> import effects as fx
        >>> @fx.jit
        ... def double(x):
        ...     fx.print("doubling {}", x)
        ...     return 2 * x
        >>> double(3)
        Array(6, dtype=int32, weak_type=True)
        >>> fx.effects_barrier()
        doubling 3
    """
    if len(fun) != 1:
        _jax.jit(*fun, **options)  # raises JAX's error for wrong options
        return functools.partial(jit, **options)
    if (taken := with_program_of_ours(fun[0], options, jit)) is not None:
        return taken
    if options.get("device") is None and options.get("backend") is None:
        return JitFunction(fun[0], options)
    with warnings.catch_warnings(record=True) as shown:  # JAX warns of these options, in each of our calls
        warnings.simplefilter("always")
        made = JitFunction(fun[0], options)
    for warning in shown[:1]:
        warnings.warn(warning.message, stacklevel=2)
    return made


jit.__signature__ = inspect.signature(_jax.jit)  # type: ignore[attr-defined]


class JitFunction(Dispatcher[P, R]):
    """A function that `fx.jit` compiled. It calls itself as JAX's do, which libraries look for."""

    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, fun)
        self._fun, self._options = fun, options
        name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__
        if callable(fun) and not isinstance(fun, staticmethod):  # JAX refuses others
            weakref.ref(fun)  # raises; `jax.jit` would, too, and crash the next time (JAX 0.10.2, 0.12)
        programs = programs_of(fun, options)
        for name_ in ("__name__", "__qualname__"):  # JAX names partial functions and objects, too
            setattr(self, name_, getattr(programs.traced, name_))
        self.__doc__ = getattr(fun, "__doc__", None) or ""
        super().__init__(name, programs.traced, programs.threaded, programs.traits, programs.plain)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> JitFunction[P, R]: ...
    @overload
    def __get__(self: JitFunction[Concatenate[S, Q], R], instance: S, owner: Any = None) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        try:
            return f"<PjitFunction of {vars(self)['__wrapped__']!r}>"
        except Exception:  # the user's function may raise, or have been deleted
            return "<PjitFunction>"

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._fun)

    def __getstate__(self) -> dict[str, Any]:
        return self._without_tokens.__getstate__()

    def __reduce__(self) -> Any:
        users = {name: value for name, value in vars(self).items() if name not in _OURS}
        return JitFunction, (self._fun, self._options), users

    def __deepcopy__(self, memo: dict[int, Any]) -> JitFunction[P, R]:
        _, _, users = self.__reduce__()
        copied = JitFunction(copy.deepcopy(self._fun, memo), self._options)  # a copied device is the device itself
        vars(copied).update(copy.deepcopy(users, memo))
        return copied

    @api_boundary
    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """Lowers the program for these arguments, tokens included, as `jax.jit(f).lower` does."""

        token = runtime_token_for(args, kwargs)
        return Lowered(self, self._threaded.trace(token, *args, **kwargs).lower())

    @api_boundary
    def trace(self, /, *args: Any, **kwargs: Any) -> Traced:
        """Traces the function for these arguments, as `jax.jit(f).trace` does: its jaxpr has no tokens."""

        return Traced(self, trace(self._without_tokens, args, kwargs), args, kwargs)

    @api_boundary
    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and types of the results, as `jax.jit(f).eval_shape` does. No effect happens."""
        with conversion().tracing():
            return self._without_tokens.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets the compiled programs, as `jax.jit(f).clear_cache` does."""
        self._without_tokens.clear_cache()
        self._threaded.clear_cache()
        self._plain.clear_cache()

    def _cache_size(self) -> int:
        """The number of kinds of arguments for which calls take the fast path, as `jax.jit(f)._cache_size` counts them.
        On several devices a kind that is met late may make the kinds before it take the fast path anew. If the first
        call of a function turns out to have no effects, that kind counts twice."""
        return self._threaded._cache_size() + self._plain._cache_size()


PjitFunction = JitFunction
JitFunction.__name__ = JitFunction.__qualname__ = "PjitFunction"


class JitCall(NamedTuple):
    """The call of `fx.jit` that made a function.

    Attributes:
        fun: The user's function.
        options: The options.
        name: What messages call it.
    """

    fun: Callable[..., Any]
    options: dict[str, Any]
    name: str

    @classmethod
    def of(cls, function: JitFunction[..., Any]) -> JitCall:
        return cls(function._fun, function._options, function._name)


_OURS = frozenset(
    f"_{name}" for name in ("caller", "fast_path", "fun", "name", "options", "plain", "plain_caller", "threaded")
) | {"_traits_of", "_without_tokens"}
"""The own attributes of a jitted function. The others are those of the user's function, and what the user has set."""


# Compiled programs: JAX's own objects around an executable of ours.
#
# JAX describes and calls a compiled function through its executable. An `Executable` acts as that of the user's
# function, and supplies the runtime token.

MSG_SERIALIZE_EXECUTABLE = (
    "`jax.experimental.serialize_executable` was given `{program}`, which `fx.jit` compiled. Such a program takes and "
    "returns tokens, of which the other process knows nothing. Write `fx.export(f)(*args).serialize()`, and call "
    "`fx.deserialize` there."
)


class Executable:
    """JAX's executable of a threaded function, in the form of an executable of the function without tokens."""

    def __init__(self, compiled: Any, traits: Sequence[ProgramTraits], name: str):
        """`compiled`: JAX's compiled function with the token."""
        self._compiled = compiled
        self._threaded: Any = compiled._executable
        self._traits = traits
        self._function_name = name
        self._token = len(compiled._params.const_args)  # the token's argument number: constants come before it

    def create_cpp_call(self, params: Any) -> Dispatcher[..., Any]:
        """The function that JAX calls with the user's arguments."""
        traits = self._traits[0] if self._traits else ProgramTraits((), False, False)
        return _Call(self._function_name, self._compiled, traits, params)

    @property
    def _unloaded_executable(self) -> Never:
        raise errors.unsupported(MSG_SERIALIZE_EXECUTABLE.format(program=self._function_name))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._threaded, name)
        traits, token = self._traits, self._token
        kept = self._threaded._kept_var_idx
        if name in _INPUTS:
            return [*value[:token], *value[token + (token in kept) :]]
        if name in _OUTPUTS:
            return value[: len(value) - len(traits)]
        if name == "_all_args_info" and value is not None:
            return value._replace(in_avals=[*value.in_avals[:token], *value.in_avals[token + 1 :]])
        if name == "_kept_var_idx":
            return {i - (i > token) for i in kept if i != token}
        return value


_INPUTS = ("in_avals", "_in_shardings", "_xla_in_layouts", "_dispatch_in_layouts")
"""The attributes of an executable that describe those of its inputs that it uses."""

_OUTPUTS = ("out_avals", "_out_shardings", "_xla_out_layouts")


class _Call(Dispatcher[..., Any]):
    """The call of a compiled program."""

    def __init__(self, name: str, compiled: Any, traits: ProgramTraits, params: Any):
        super().__init__(name, self._call_elsewhere, compiled, lambda args, kwargs: traits)
        self._params = params._replace(executable=self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            if jax.tree.structure((args, kwargs)) == self._params.in_tree:
                raise
        return self._call_elsewhere(*args, **kwargs)  # JAX's error, without the token

    def _call_elsewhere(self, /, *args: Any, **kwargs: Any) -> Any:
        """In a trace, or without jit: JAX refuses tracers, and else calls `call`."""
        return jax.stages.Compiled.call(self._params, *args, **kwargs)[0]

    def call(self, *flat: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(self._params.in_tree, flat[len(self._params.const_args) :])
        with _jax.outside_of_traces():
            return jax.tree.leaves(self(*args, **kwargs))


# The stages of compilation: the results of `trace`, `lower` and `compile` of a jitted function.

MSG_JAX_EXPORT = (
    "`jax.export` was given `{program}`, which `fx.jit` compiled. Such a function takes and returns tokens, of which "
    "`jax.export` knows nothing. Write `fx.export` in place of `jax.export.export`."
)


class _Stage:
    """A stage of compilation: JAX's own object, with some attributes replaced."""

    def __init__(self, function: Dispatcher[..., Any], stage: Any):
        self._function = function
        self._stage = stage

    @property
    def __class__(self) -> Any:
        """The class of JAX's own object, for `isinstance`."""
        return type(self._stage)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class Traced(_Stage):
    """A traced function, returned by `fx.jit(f).trace`."""

    def __init__(self, function: Dispatcher[..., Any], stage: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        super().__init__(function, stage)
        self._arguments = args, kwargs

    def lower(self, **options: Any) -> Lowered:
        if "_private_parameters" in options:  # `jax.export` would take the tokens for arguments
            if not summarize(self._stage.jaxpr).effects:
                return self._stage.lower(**options)
            raise errors.unsupported(MSG_JAX_EXPORT.format(program=self._function._name))
        args, kwargs = self._arguments
        threaded = self._function._threaded.trace(runtime_token_for(args, kwargs), *args, **kwargs)
        return Lowered(self._function, threaded.lower(**options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage(*args, **kwargs)


class Lowered(_Stage):
    """A lowered function, returned by `fx.jit(f).lower`. It describes inputs and outputs without the tokens."""

    _INPUTS = ("args_info", "in_avals", "input_shardings", "input_formats")
    _OUTPUTS = ("out_info", "output_shardings", "output_formats")

    def __getattr__(self, name: str) -> Any:
        if name == "in_tree":
            return _jax.without_first_argument(self._stage.in_tree)
        if name == "out_tree":
            return self._stage.out_tree.children()[0]
        value = getattr(self._stage, name)
        if name in self._INPUTS:
            (_, *args), kwargs = value
            return tuple(args), kwargs
        if name in self._OUTPUTS:
            return value[0]
        if name == "donate_argnums":
            return tuple(n - 1 for n in value)
        return value

    def compile(self, *args: Any, **options: Any) -> jax.stages.Compiled:
        """Compiles the program to JAX's own object, as `jax.stages.Lowered.compile` does. It takes no tokens."""
        compiled = self._stage.compile(*args, **options)
        _, output_tokens = compiled.out_tree.children()
        executable = Executable(compiled, tuple(output_tokens.node_data()[1]), self._function._name)
        constants = compiled._params.const_args
        return jax.stages.Compiled(executable, constants, self.args_info, self.out_tree, compiled._no_kwargs)  # type: ignore
