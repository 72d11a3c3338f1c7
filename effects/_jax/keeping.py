"""Equations that go into the jaxpr that is traced without the way through JAX's `bind`, which takes several times as
long: `jax._src.interpreters.partial_eval`."""

from __future__ import annotations

from typing import Any

from jax._src import core, source_info_util
from jax._src.interpreters import partial_eval as pe


def stage(primitive: Any, *operands: Any, **params: Any) -> Any:
    """What `primitive.bind` returns, for a primitive with several results, no effects and no lowering of its types."""
    trace = core.trace_ctx.trace
    if not isinstance(trace, pe.DynamicJaxprTrace):
        return primitive.bind(*operands, **params)
    source = source_info_util.current()
    tracers = [trace.to_jaxpr_tracer(x, source) for x in operands]
    types, effects = primitive.abstract_eval(*[tracer.aval for tracer in tracers], **params)
    return trace.emit_eqn(tracers, types, primitive, params, effects, source)


class Keeping(dict[Any, Any]):
    """The values of a jaxpr's variables, while its equations become part of the jaxpr that is traced."""

    def __init__(self, jaxpr: Any, once: bool):
        """`once`: whether the jaxpr is evaluated once in this trace. Its variables may then be those of the new one."""
        super().__init__()
        self._trace = core.trace_ctx.trace
        self._around = source_info_util.current_name_stack()
        self._keeps_variables = once and not self._around.stack
        self.is_possible = (
            isinstance(self._trace, pe.DynamicJaxprTrace)
            and not jaxpr.is_high
            and core.current_jaxpr_eqn_context().xla_metadata is None
        )
        """Whether equations would be the same if they were bound."""

    def __missing__(self, variable: Any) -> Any:
        """The value of a variable that is one of the new jaxpr's, too."""
        return self._trace.var_to_tracer(variable, None)

    def keep(self, eqn: Any) -> None:
        """Makes an equation without effects one of the new jaxpr. Its operands must have the types that it was traced
        for."""
        if not self._keeps_variables:
            source = eqn.source_info
            if self._around.stack:
                source = source.replace(name_stack=self._around + source.name_stack)
            types = [variable.aval for variable in eqn.outvars]
            operands = self._operands(eqn, source)
            outs = self._trace.emit_eqn(operands, types, eqn.primitive, eqn.params, eqn.effects, source, eqn.ctx)
            self.update(zip(eqn.outvars, outs, strict=True))
        elif any([type(atom) is core.Var and atom in self for atom in eqn.invars]):  # noqa: C419 - half the time
            operands = self._operands(eqn, eqn.source_info)
            parts = eqn.primitive, eqn.params, eqn.effects, eqn.source_info, eqn.ctx
            self._trace.frame.tracing_eqns.append(pe.TracingEqn(operands, eqn.outvars, *parts))
        else:
            self._trace.frame.tracing_eqns.append(eqn)

    def _operands(self, eqn: Any, source: Any) -> list[Any]:
        operands: list[Any] = []
        for atom in eqn.invars:
            if type(atom) is core.Literal:
                operands.append(pe.DynamicJaxprTracer(self._trace, atom.aval, atom, source))
            else:
                operands.append(self._trace.to_jaxpr_tracer(self[atom], source))
        return operands
