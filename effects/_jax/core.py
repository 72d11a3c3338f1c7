"""Types, primitives, values and jaxprs: `jax._src.core`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import jax
from jax._src import ad_util, core, literals, source_info_util, tree_util
from jax._src import effects as jax_effects
from jax._src import linear_util as lu
from jax._src.api import jit
from jax._src.interpreters import partial_eval as pe
from jax._src.state.types import AbstractRef, RefEffect
from jax._src.state.types import TransformedRef as TransformedRef

Primitive = core.Primitive
ShapedArray = core.ShapedArray
Tracer = core.Tracer
JaxEffect = jax_effects.Effect
typeof = core.typeof
abstract_token = core.abstract_token
physical_aval = core.physical_aval


def with_type(x: Any, aval: Any) -> Any:
    """A value with this type: if the type is of PRNG keys, the keys with these numbers."""
    return (
        jax.random.wrap_key_data(x, impl=aval.dtype._impl)
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
        else x
    )


zero_tangent = ad_util.zero_from_primal
"""The tangent of a value that does not depend on the differentiated argument."""

DEVICE_MEMORY = core.MemorySpace.Device


def is_reference(x: Any) -> bool:
    """True for a mutable reference, such as `jax.new_ref` makes."""
    return isinstance(getattr(x, "aval", None), AbstractRef)


def is_reference_type(aval: Any) -> bool:
    """True for the type of a mutable reference."""
    return isinstance(aval, AbstractRef)


def plain_number(x: Any) -> Any:
    """Converts a typed number of JAX's to Python's int, float or complex; returns anything else as it is. Functions
    with custom derivative rules get typed numbers when they are called outside of programs."""
    plain = _PLAIN.get(type(x))
    return x if plain is None else plain(x)


_PLAIN: dict[type, Any] = {literals.TypedInt: int, literals.TypedFloat: float, literals.TypedComplex: complex}


def tracer_names() -> set[str]:
    """The words with which the text of a tracer may begin: the names of all tracer classes, those of other libraries
    included, and the names that JAX prints in their place."""
    names, classes = {"JitTracer", "GradTracer", "VmapTracer"}, [Tracer]
    while classes:
        names.add(classes[-1].__name__)
        classes += classes.pop().__subclasses__()
    return names


# Jaxprs. Since JAX 0.11 a jaxpr holds its constants; before, a ClosedJaxpr did.

# `jax.extend.core` has `ClosedJaxpr` in every version, but its import imports Pallas.
ClosedJaxpr: Any = getattr(core, "ClosedJaxpr", core.Jaxpr)


def is_closed(jaxpr: Any) -> bool:
    """True if a jaxpr holds its constants, as all do since JAX 0.11."""
    return isinstance(jaxpr, ClosedJaxpr)


def closed_jaxpr(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    """A jaxpr with its constants. For a jaxpr without constants, each call returns the same object."""
    if isinstance(jaxpr, ClosedJaxpr) and not consts:
        return jaxpr
    return ClosedJaxpr(jaxpr, consts) if consts else pe.close_jaxpr(jaxpr)


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr with its constants turned into its first arguments."""
    if not jaxpr.consts:
        return jaxpr.jaxpr
    return pe.convert_constvars_jaxpr(jaxpr.jaxpr)


def trace_to_jaxpr(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], like: Any) -> Any:
    """Traces a function of flat values into a jaxpr with constants. `like` is the jaxpr that it was made from."""
    debug_info = like.jaxpr.debug_info.with_unknown_names()
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(fun, debug_info=debug_info), list(avals))
    return closed_jaxpr(jaxpr, consts)


def without_results(jaxpr: Any, count: int) -> Any:
    """A jaxpr with constants, without the first `count` of its results."""
    inner = jaxpr.jaxpr
    debug_info = inner.debug_info.with_unknown_names()
    return closed_jaxpr(inner.replace(outvars=inner.outvars[count:], debug_info=debug_info), jaxpr.consts)


def evaluate(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with constants, unchanged."""
    return core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args)


def evaluate_as_typed(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr whose arguments may vary over more mesh axes of a region than their types in the jaxpr say, as
    JAX itself passes them to loops. The jaxpr is then wrapped in a jitted function, inside of which its types hold. The
    result cannot be transposed: the transpose would sum over those axes."""
    if any(_varying(typeof(x)) != _varying(aval) for x, aval in zip(args, jaxpr.in_avals, strict=True)):
        jaxpr = trace_to_jaxpr(jit(core.jaxpr_as_fun(jaxpr)), jaxpr.in_avals, like=jaxpr)
    return evaluate(jaxpr, args)


def _varying(aval: Any) -> frozenset[Any]:
    """The axes of a region over which values of this type vary."""
    return aval.manual_axis_type.varying if isinstance(aval, core.ShapedArray) else frozenset()


def bind(eqn: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Binds an equation as it is to new arguments; always returns a sequence."""
    bind_params = eqn.primitive.get_bind_params(eqn.params)
    if isinstance(bind_params, tuple):  # up to JAX 0.10, functions are separate from other parameters
        subfuns, bind_params = bind_params
        out = eqn.primitive.bind(*subfuns, *args, **bind_params)
    else:
        out = eqn.primitive.bind(*args, **bind_params)
    return out if eqn.primitive.multiple_results else [out]


def interpret(
    jaxpr: Any,
    args: Sequence[Any],
    apply: Callable[[Any, list[Any]], Sequence[Any]],
    applied: Container[int] | None = None,
    once: bool = False,
) -> list[Any]:
    """Evaluates a jaxpr with constants, with `apply(equation, operands)` for each equation. New equations that `apply`
    binds get the source line, name stack and settings of the old one.

    If `applied` is given, the equations at other positions are copied into the jaxpr being traced, if their operands
    have the types that they were traced for. Binding them would give the same equations and take several times as long.
    `once`: True if the jaxpr is evaluated only once in this trace, which allows a faster copy.
    """
    inner = jaxpr.jaxpr
    environment = Keeping(inner, once)
    environment.update(zip(inner.constvars, jaxpr.consts, strict=True))
    environment.update(zip(inner.invars, args, strict=True))
    keeps = applied is not None and environment.is_possible and _have_types_of(args, inner.invars)

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else environment[atom]

    for position, eqn in enumerate(inner.eqns):
        if keeps and position not in applied:
            environment.keep(eqn)
            continue
        operands = [read(atom) for atom in eqn.invars]
        source = eqn.source_info
        name_stack = source_info_util.current_name_stack() + source.name_stack
        with source_info_util.user_context(source.traceback, name_stack=name_stack), eqn.ctx.manager:
            outs = apply(eqn, operands)
        environment.update(zip(eqn.outvars, outs, strict=True))
        keeps = keeps and _have_types_of(outs, eqn.outvars)
    return [read(atom) for atom in inner.outvars]


def _have_types_of(values: Sequence[Any], variables: Sequence[Any]) -> bool:
    return all(typeof(x) == variable.aval for x, variable in zip(values, variables, strict=True))


def without_dead_code(jaxpr: Any) -> Any:
    """A jaxpr with its constants as its first arguments, after dead code elimination."""
    return closed_jaxpr(pe.dce_jaxpr(open_jaxpr(jaxpr), True, True)[0])


def has_state(jaxpr: Any) -> bool:
    """True if a jaxpr reads or writes references of the function around it."""
    return any(isinstance(effect, RefEffect) for effect in jaxpr.effects)


OWN_REFERENCE = core.internal_mutable_array_effect
"""The effect of a jaxpr that makes references, invisible outside of the jaxpr."""


def has_axis(jaxpr: Any) -> bool:
    """True if a jaxpr uses a named axis, of devices or lanes, that is bound around it."""
    return any(isinstance(effect, core.NamedAxisEffect) for effect in jaxpr.effects)


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """The user's names of a jaxpr's inputs, as far as they are known."""
    names = jaxpr.jaxpr.debug_info.arg_names or ()
    return tuple(name or "" for name in names) if len(names) == len(jaxpr.in_avals) else ()


jaxprs_in: Callable[[dict[str, Any]], Iterator[Any]] = core.jaxprs_in_params
"""The jaxprs among an equation's parameters, with or without constants."""


def eqns_in(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of all jaxprs inside it; a jaxpr that is called several times counts once."""
    jaxprs, known = [jaxpr], {jaxpr}
    for each in jaxprs:
        for eqn in each.eqns:
            yield eqn
            new = {inner: None for inner in jaxprs_in(eqn.params) if inner not in known}
            jaxprs += new
            known.update(new)


def with_jaxprs(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """An equation with the jaxprs among its parameters changed into others of the same type."""

    def changed(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            parts = [*map(changed, value)]
            same = all(part is old for part, old in zip(parts, value, strict=True))
            return value if same else getattr(value, "_make", type(value))(parts)  # of a named tuple
        if isinstance(value, core.Jaxpr) and not is_closed(value) and (count := len(value.constvars)):
            # The references of a kernel over a mesh, up to JAX 0.10.
            return pe.convert_invars_to_constvars(change(pe.convert_constvars_jaxpr(value)), count)
        return change(value) if isinstance(value, (core.Jaxpr, ClosedJaxpr)) else value

    params = {name: changed(value) for name, value in eqn.params.items()}
    effects = frozenset().union(*(inner.effects for inner in core.jaxprs_in_params(params)))
    return eqn.replace(params=params, effects=effects & frozenset(eqn.effects))


# Equations that are added to the jaxpr being traced without JAX's `bind`, which takes several times as long:
# `jax._src.interpreters.partial_eval`.


def stage(primitive: Any, *operands: Any, **params: Any) -> Any:
    """Binds a primitive, faster than `primitive.bind`: it has several results, no effects and no lowering of types."""
    trace = core.trace_ctx.trace
    if not isinstance(trace, pe.DynamicJaxprTrace):
        return primitive.bind(*operands, **params)
    source = source_info_util.current()
    tracers = [trace.to_jaxpr_tracer(x, source) for x in operands]
    types, effects = primitive.abstract_eval(*[tracer.aval for tracer in tracers], **params)
    return trace.emit_eqn(tracers, types, primitive, params, effects, source)


class Keeping(dict[Any, Any]):
    """The values of a jaxpr's variables, while its equations are copied into the jaxpr being traced."""

    def __init__(self, jaxpr: Any, once: bool):
        """`once`: True if the jaxpr is evaluated only once in this trace. Then the new one may share its variables."""
        super().__init__()
        self._trace = core.trace_ctx.trace
        self._around = source_info_util.current_name_stack()
        self._keeps_variables = once and not self._around.stack
        self.is_possible = (
            isinstance(self._trace, pe.DynamicJaxprTrace)
            and not jaxpr.is_high
            and core.current_jaxpr_eqn_context().xla_metadata is None
        )
        """True if copied equations are the same as bound ones."""

    def __missing__(self, variable: Any) -> Any:
        """The value of a variable that the new jaxpr shares."""
        return self._trace.var_to_tracer(variable, None)

    def keep(self, eqn: Any) -> None:
        """Copies an equation without effects into the new jaxpr. Its operands must have the types that it was traced
        with."""
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


# Where an equation comes from in the user's code: `jax._src.source_info_util`.


def source_of(*eqns: Any) -> str:
    """The user's line and function that made an equation. `eqns` are the equation and those around it, the innermost
    first: the first whose source is known counts."""
    for eqn in eqns:
        if (frame := source_info_util.user_frame(eqn.source_info.traceback)) is not None:
            return f"{named_line(frame.file_name, frame.start_line)} ({frame.function_name})"
    return "a line that JAX does not know"


def user_frames(eqn: Any) -> list[tuple[str, int, str]]:
    """File, line and function of the user's frames that made an equation, the innermost first, up to the function that
    was traced."""
    frames: list[tuple[str, int, str]] = []
    for frame in eqn.source_info.traceback.frames if eqn.source_info.traceback else ():
        if frame.function_name.startswith("trace_to_jaxpr") and frame.file_name.endswith("partial_eval.py"):
            break
        if source_info_util.is_user_filename(frame.file_name):
            frames.append((frame.file_name, frame.line_num, frame.function_name))
    return frames


def named_line(file: str, line: int) -> str:
    """A line of the user's source, as messages have it: `file:line`, or `Cell In[3], line 2` in a notebook."""
    shell = ipython_shell()
    cell = shell and shell.compile.format_code_name(file)
    return f"{' '.join(cell)}, line {line}" if cell else f"{file}:{line}"


def ipython_shell() -> Any:
    """The shell of IPython, or of a notebook's kernel, if Python runs in one."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def user_frame() -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made the equation in whose context this is called."""
    frame = source_info_util.user_frame(source_info_util.current().traceback)
    return None if frame is None else (frame.file_name, frame.start_line, frame.function_name)


# The structure of pytrees: `jax._src.tree_util`.


def without_first_argument(tree: Any) -> Any:
    """The structure of `(args[1:], kwargs)`, from that of `(args, kwargs)`. It is built from its child structures and
    not from an unflattened tree, since a user class may refuse leaves that are not arrays."""
    positional, named = tree.children()
    tuple_of = tree_util.pytree.treedef_tuple

    def rest(registry: Any) -> Any:
        return tuple_of(registry, [tuple_of(registry, positional.children()[1:]), named])

    try:
        return rest(tree_util.default_registry)
    except ValueError:  # of the other registry: a treedef has no attribute for its registry
        return rest(tree_util.tracing_registry)
