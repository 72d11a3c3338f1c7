"""Compiled programs that travel: `jax.experimental.serialize_executable`.

JAX takes a compiled function apart and puts it together in another process. What it takes from a compiled function of
ours supplies the runtime token there too, so that JAX's own function can be called as the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from effects._wire import ProgramTraits
from effects.dispatch.calling.dispatcher import Dispatcher
from effects.dispatch.draining.runtime import runtime

MSG_LOADED_IN_TRACE = (
    "The compiled program `{program}` was called while another function is traced. It is compiled and cannot become "
    "part of another. Call it outside, or call the function that it was compiled from."
)


class Executable:
    """JAX's executable of a threaded function, as that of the function without tokens."""

    def __init__(self, threaded: Any, traits: Sequence[ProgramTraits], name: str, inputs: int):
        self._threaded = threaded
        self._made_with = traits, name, inputs
        outputs = len(threaded.out_avals)
        flat = jax.stages.Compiled(threaded, [], ((0,) * inputs, {}), jax.tree.structure((0,) * outputs))

        def call(token: Any, *args: Any) -> tuple[list[Any], dict[ProgramTraits, Any]]:
            outs = list(flat(token, *args))
            return outs[: outputs - len(traits)], dict(zip(traits, outs[outputs - len(traits) :], strict=True))

        def refuse(*args: Any) -> Any:
            raise RuntimeError(MSG_LOADED_IN_TRACE.format(program=name))

        self.call = Dispatcher(name, refuse, call)

    def create_cpp_call(self, *args: Any) -> None:
        """There is none: JAX calls `call` with flat arguments."""

    @property
    def _unloaded_executable(self) -> Unloaded | None:
        unloaded = getattr(self._threaded, "_unloaded_executable", None)
        return None if unloaded is None else Unloaded(unloaded, *self._made_with)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._threaded, name)
        traits = self._made_with[0]
        if name in _INPUTS:
            return value[1:]
        if name in _OUTPUTS:
            return value[: len(value) - len(traits)]
        if name == "_all_args_info":
            return None if value is None else value._replace(in_avals=value.in_avals[1:])
        if name == "_kept_var_idx":
            return {i - 1 for i in value if i > 0}
        return value


_INPUTS = ("in_avals", "_in_shardings", "_xla_in_layouts", "_dispatch_in_layouts")
_OUTPUTS = ("out_avals", "_out_shardings", "_xla_out_layouts")


class Unloaded:
    """What is pickled of an `Executable`."""

    def __init__(self, threaded: Any, traits: Sequence[ProgramTraits], name: str, inputs: int):
        self._threaded = threaded
        self._made_with = traits, name, inputs

    @property
    def mut(self) -> Any:
        return self._threaded.mut

    def load(self) -> Executable:
        runtime.start()
        return Executable(self._threaded.load(), *self._made_with)
