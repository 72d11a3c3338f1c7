"""Stages of compilation: what `trace`, `lower` and `compile` of a jitted function return."""

from __future__ import annotations

from typing import Any

import jax

from effects import _jax
from effects.dispatch.calling.dispatcher import Dispatcher
from effects.dispatch.calling.executable import Executable
from effects.dispatch.calling.threaded import runtime_token_for
from effects.lowering.summary import summarize

MSG_JAX_EXPORT = (
    "`jax.export` was given `{program}`, which `fx.jit` compiled. It knows nothing of the tokens that such a function "
    "takes and returns. Write `fx.export` in place of `jax.export.export`."
)


class _Stage:
    """A stage of compilation: JAX's own object, with what differs."""

    def __init__(self, function: Dispatcher[..., Any], stage: Any):
        self._function = function
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class Traced(_Stage):
    """What `fx.jit(f).trace` returns."""

    def __init__(self, function: Dispatcher[..., Any], stage: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        super().__init__(function, stage)
        self._arguments = args, kwargs

    def lower(self, **options: Any) -> Lowered:
        if "_private_parameters" in options:  # of `jax.export`, which would take the tokens for arguments
            if not summarize(self._stage.jaxpr).effects:
                return self._stage.lower(**options)
            raise NotImplementedError(MSG_JAX_EXPORT.format(program=self._function._name))
        args, kwargs = self._arguments
        threaded = self._function._threaded.trace(runtime_token_for(args, kwargs), *args, **kwargs)
        return Lowered(self._function, threaded.lower(**options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage(*args, **kwargs)


class _ThreadedStage(_Stage):
    """A stage of the threaded function, without the tokens among what it says of inputs and outputs."""

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


class Lowered(_ThreadedStage):
    """What `fx.jit(f).lower` returns."""

    def compile(self, *args: Any, **options: Any) -> jax.stages.Compiled:
        """As `jax.stages.Lowered.compile`: JAX's own object, which is called with the arguments."""
        compiled = self._stage.compile(*args, **options)
        constants = compiled._params.const_args
        _, output_tokens = compiled.out_tree.children()
        traits = tuple(output_tokens.node_data()[1])
        whole = compiled if compiled._params.is_high else None
        executable = Executable(compiled._executable, traits, self._function._name, len(constants), whole)
        return jax.stages.Compiled(executable, constants, self.args_info, self.out_tree, compiled._no_kwargs)  # type: ignore
