"""Types, primitives and values: `jax._src.core`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
from jax._src import ad_util, core, literals, source_info_util, tree_util
from jax._src import effects as jax_effects
from jax._src.state.types import AbstractRef, RefEffect
from jax._src.state.types import TransformedRef as TransformedRef

Primitive = core.Primitive
ShapedArray = core.ShapedArray
Tracer = core.Tracer
JaxEffect = jax_effects.Effect
typeof = core.typeof
abstract_token = core.abstract_token
physical_aval = core.physical_aval


def physical_key_data(x: Any) -> Any:
    """The numbers of a PRNG key array."""
    return jax.random.key_data(x)


def with_type(x: Any, aval: Any) -> Any:
    """A value as one of this type, which its numbers may be of a PRNG key."""
    return (
        jax.random.wrap_key_data(x, impl=aval.dtype._impl)
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
        else x
    )


zero_tangent = ad_util.zero_from_primal
"""The tangent of a value that does not depend on what is differentiated."""

DEVICE_MEMORY = core.MemorySpace.Device


def is_reference(x: Any) -> bool:
    """Whether this is a mutable reference, such as `jax.new_ref` makes."""
    return is_reference_type(getattr(x, "aval", None))


def is_reference_type(aval: Any) -> bool:
    """Whether this is the type of a mutable reference."""
    return isinstance(aval, AbstractRef)


def plain_number(x: Any) -> Any:
    """A number as Python has it, in place of one to which JAX has given a type: functions with rules of their own get
    such where they are called outside of programs. Anything else as it is."""
    plain = _PLAIN.get(type(x))
    return x if plain is None else plain(x)


_PLAIN: dict[type, Any] = {literals.TypedInt: int, literals.TypedFloat: float, literals.TypedComplex: complex}


def has_state(jaxpr: Any) -> bool:
    """Whether a jaxpr reads or writes references of the function around it."""
    return any(isinstance(effect, RefEffect) for effect in jaxpr.effects)


OWN_REFERENCE = core.internal_mutable_array_effect
"""The effect of a jaxpr that makes references of its own. Nothing outside of it sees them."""


def has_axis(jaxpr: Any) -> bool:
    """Whether a jaxpr is for devices or lanes along a named axis, which is around it."""
    return any(isinstance(effect, core.NamedAxisEffect) for effect in jaxpr.effects)


def tracer_names() -> set[str]:
    """What the text of a value that is not known yet begins with: the names of all classes of such values, those of
    other libraries too, and what JAX shows of some instead."""
    names, classes = {"JitTracer", "GradTracer", "VmapTracer"}, [Tracer]
    while classes:
        names.add(classes[-1].__name__)
        classes += classes.pop().__subclasses__()
    return names


# Where an equation comes from in the user's code: `jax._src.source_info_util`.


def source_of(*eqns: Any) -> str:
    """Place and function of the user's code that made an equation, or if that is not known one of those around it, the
    innermost first."""
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
#
# A structure is made of others, and nothing is put into it: a class of the user's may refuse to be made of anything but
# arrays.


def without_first_argument(tree: Any) -> Any:
    """The structure of `(args[1:], kwargs)`, from that of `(args, kwargs)`."""
    positional, named = tree.children()
    return _make(lambda registry: _tuple(registry, [_tuple(registry, positional.children()[1:]), named]))


def compiled_with_token(executable: Any, params: Any, output_tokens: Any) -> Any:
    """The compiled function of `(token, *args)` that returns `(results, output tokens)`, from JAX's description of the
    user's function and an object of the structure of the output tokens."""
    positional, named = params.in_tree.children()

    def in_tree(registry: Any) -> Any:
        token = registry.flatten(0)[1]
        return _tuple(registry, [_tuple(registry, [token, *positional.children()]), named])

    out_tree = _make(lambda registry: _tuple(registry, [params.out_tree, registry.flatten(output_tokens)[1]]))
    compiled = jax.stages.Compiled(executable, params.const_args, ((), {}), out_tree, params.no_kwargs)
    compiled._params = compiled._params._replace(in_tree=_make(in_tree))
    return compiled


def behind_leaves(tree: Any, count: int) -> Any:
    """The structure of a pair, of a tuple of `count` leaves and of what has this structure."""
    return _make(lambda registry: _tuple(registry, [_tuple(registry, [registry.flatten(0)[1]] * count), tree]))


_tuple = tree_util.pytree.treedef_tuple


def _make(structure: Callable[[Any], Any]) -> Any:
    """A structure belongs to the registry of what it is made of, which does not say which that is."""
    try:
        return structure(tree_util.default_registry)
    except ValueError:
        return structure(tree_util.tracing_registry)
