"""Compiled programs. They are JAX's own objects, around an executable of ours.

JAX describes and calls a compiled function by its executable, and `jax.experimental.serialize_executable` takes it
apart and puts it together in another process. An `Executable` is that of the user's function: it supplies the runtime
token, here and there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from effects import _jax
from effects._model.wire import ProgramTraits
from effects.dispatch.calling.dispatcher import Dispatcher
from effects.dispatch.draining.runtime import runtime


class Executable:
    """JAX's executable of a threaded function, as that of the function without tokens."""

    def __init__(
        self, threaded: Any, traits: Sequence[ProgramTraits], name: str, num_constants: int, whole: Any = None
    ):
        """`num_constants`: how many constants of the program come ahead of the token. `whole`: JAX's compiled function
        with the token, which alone can take values of JAX's experimental "hijax" types, if it has such."""
        self._threaded = threaded
        self._made_with = traits, name, num_constants
        self._whole = whole

    def create_cpp_call(self, params: Any) -> Dispatcher[..., Any]:
        """What JAX calls with the user's arguments."""
        traits, name, _ = self._made_with
        whole = self._whole or _jax.compiled_with_token(self._threaded, params, dict.fromkeys(traits, 0))
        return _Call(name, whole, any(of_program.awaits_results for of_program in traits), params)

    @property
    def _unloaded_executable(self) -> Unloaded | None:
        unloaded = getattr(self._threaded, "_unloaded_executable", None)
        return None if unloaded is None else Unloaded(unloaded, *self._made_with)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._threaded, name)
        traits, _, token = self._made_with  # it is the argument of this number
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
"""What an executable says of those of its inputs that it uses."""

_OUTPUTS = ("out_avals", "_out_shardings", "_xla_out_layouts")


class _Call(Dispatcher[..., Any]):
    """The call of a compiled program."""

    def __init__(self, name: str, compiled: Any, awaits_results: bool, params: Any):
        super().__init__(name, self._call_elsewhere, compiled, lambda args, kwargs: awaits_results)
        self._params = params._replace(executable=self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            if jax.tree.structure((args, kwargs)) == self._params.in_tree:
                raise
        return self._call_elsewhere(*args, **kwargs)  # JAX says what differs, and does not count the token

    def _call_elsewhere(self, /, *args: Any, **kwargs: Any) -> Any:
        """In a trace, or without jit: JAX refuses tracers, and else calls `call`."""
        return jax.stages.Compiled.call(self._params, *args, **kwargs)[0]

    def call(self, *flat: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(self._params.in_tree, flat[len(self._params.const_args) :])
        with _jax.outside_of_traces():
            return jax.tree.leaves(self(*args, **kwargs))


class Unloaded:
    """What is pickled of an `Executable`."""

    def __init__(self, threaded: Any, traits: Sequence[ProgramTraits], name: str, num_constants: int):
        self._threaded = threaded
        self._made_with = traits, name, num_constants

    @property
    def mut(self) -> Any:
        return self._threaded.mut

    def load(self) -> Executable:
        runtime.start()
        return Executable(self._threaded.load(), *self._made_with)
