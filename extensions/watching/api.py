"""`fx.watch`, what users call."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.operand import is_array
from effects._model.where import where_called
from effects.dispatch.calling.jit import jit
from effects.extensions.watching.call import bind_watched
from effects.extensions.watching.options import Watch

MSG_NOT_CALLABLE = (
    "`fx.watch` at {where} was given {fun} as its function. It watches a function, and returns one that is called in "
    "its place. Write `fx.watch(f)(x)`."
)
MSG_MODE = "`fx.watch` at {where} was given mode={mode}. The mode is one of {known}. Pass one of them."
MSG_NOTHING = (
    "`fx.watch` at {where} was given nothing to look for: `nan` and `inf` are false. Without `when` one of them is "
    "true. Pass `inf=True`, or a predicate as `when`."
)
MSG_FLAG = (
    "`fx.watch` at {where} was given {name}={value}. It is True or False. Pass one of these, or a predicate "
    "of values as `when`."
)
MSG_WHEN = (
    "`fx.watch` at {where} was given when={when}. `when` is a function of an array that returns True for the bad "
    "elements. Pass, say, `when=lambda x: abs(x) > 1e4`."
)
MSG_SITES = (
    "`fx.watch` at {where} was given sites={sites}. They are patterns for what is watched: a file, `file.py:12`, a "
    "function or an operation. Pass a string or several."
)
MSG_TOGETHER = (
    "`fx.watch` at {where} was given `{name}` and {other}. Summaries (`summary=True`) are of all values, and a bad "
    "result can be traced (`results=True`) for NaN and infinities only. Leave one of them out."
)
_MODES = ("raise", "log", "stop")

P = ParamSpec("P")
R = TypeVar("R")


@_jax.for_users
def watch(
    fun: Callable[P, R],
    nan: bool = True,
    inf: bool = False,
    when: Callable[[Any], Any] | None = None,
    sites: str | Sequence[str] | None = None,
    *,
    results: bool = False,
    summary: bool = False,
    mode: Literal["raise", "log", "stop"] = "raise",
) -> Callable[P, R]:
    """A function that computes what `fun` does, and finds the first bad value on the way: a NaN.

    Every operation is watched inside the compiled program, in loops, branches and nested functions, on all devices. A
    value is bad if an operation made it of good ones. The first in program order is raised as `fx.NonFinite`, at the
    next call or barrier as a check is, and says which operation and line made it and of what. Results are those of
    `fun`, bit for bit.

    Works with all transformations. `jax.grad(fx.watch(f))` watches the backward pass too, and `vmap` of a watched
    function says the lane.

    Args:
        fun: The function. Arrays among its arguments are traced; other values are passed unchanged.
        nan: True if NaN is bad.
        inf: True if infinities are bad.
        when: A function that is called with each array of numbers that an operation takes or gives, single numbers
            among them, while tracing, and returns which elements are bad: a boolean, or one for each. In place of
            `nan` and `inf`.
        sites: The operations to look at, as patterns with `*`: `"model.py"`, `"model.py:31"`, the name of a
            function or of an operation such as `"log"`. By default all. A pattern that names none is an error.
        results: True to ignore bad values that reach no result of `fun` or of its derivative, as behind a `jnp.where`.
            The first operation whose bad value reaches a result is named.
        summary: In place of all this, what each operation computes is an event of `fx.log` that has the operation's
            name and line, with the fields `min`, `max`, `mean` and `norm` of the finite elements, the shares `zeros`
            and `nonfinite`, and in a loop `iteration`. So `effects diff` compares two runs operation by operation.
        mode: The reaction to a bad value. `"raise"`: the first of each call is raised, and the program continues.
            `"log"`: each is an event `non_finite` of `fx.log`, with the level `"error"`. `"stop"`: the first ends the
            program, whose call raises it.

    Returns:
        The function.

    Raises:
        TypeError, ValueError: at once, if an argument is not as described; while tracing, if `when` fails or returns
            something else than booleans; by `fx.export`, but for summaries.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> @fx.jit
        ... @fx.watch
        ... def f(x):
        ...     return jnp.where(x > 0, jnp.log(x), 0.0)
        >>> f(jnp.array([1.0, -2.0]))
        Array([0., 0.], dtype=float32)
        >>> try:
        ...     fx.effects_barrier()
        ... except fx.NonFinite as error:
        ...     print(error.message)
        `log` made nan at index (1,) of float32[2] from x: float32[2] in [-2, 1], -2 there
    """
    where = where_called()
    if not callable(fun):
        raise errors.type_error(MSG_NOT_CALLABLE.format(where=where, fun=errors.shown(fun)))
    for name, flag in {"nan": nan, "inf": inf, "results": results, "summary": summary}.items():
        if not isinstance(flag, (bool, np.bool_)):
            raise errors.type_error(MSG_FLAG.format(where=where, name=name, value=errors.shown(flag)))
    if mode not in _MODES:
        known = ", ".join(map(repr, _MODES))
        raise errors.value_error(MSG_MODE.format(where=where, mode=errors.shown(mode), known=known))
    if when is not None and not callable(when):
        raise errors.type_error(MSG_WHEN.format(where=where, when=errors.shown(when)))
    if summary and (when is not None or inf or mode != "raise"):
        raise errors.value_error(MSG_TOGETHER.format(where=where, name="summary", other="something to look for"))
    if results and (when is not None or summary):
        raise errors.value_error(MSG_TOGETHER.format(where=where, name="results", other="`when` or `summary`"))
    if when is None and not nan and not inf:
        raise errors.value_error(MSG_NOTHING.format(where=where))
    patterns: tuple[Any, ...] = tuple(sites) if isinstance(sites, (tuple, list)) else (sites,) * (sites is not None)
    if sites == [] or sites == () or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise errors.type_error(MSG_SITES.format(where=where, sites=errors.shown(sites)))
    asked = Watch(bool(nan), bool(inf), when, patterns, mode, where, summary=bool(summary), results=bool(results))

    def call(f: Callable[..., Any], given: Any) -> Any:
        return _call_watched(f, asked, given)

    program = jit(call, static_argnums=0)

    def run(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = _flat((args, kwargs))
        return _filled((program if _jax.runs_now() and _can_be_hashed(given) else call)(f, given))

    def on_state(state: Any, graph: Any) -> Any:
        nnx = sys.modules["flax.nnx"]
        function: Callable[..., Any] = fun
        with nnx.merge_context("fx.watch", inner=True) as context:
            args, kwargs = context.merge(graph, state)
        out = function(*args, **kwargs)
        with nnx.split_context("fx.watch") as context:
            return context.split((args, kwargs, out))

    @functools.wraps(fun)
    def watching(*args: P.args, **kwargs: P.kwargs) -> R:
        nnx = sys.modules.get("flax.nnx")
        if nnx is None or not _has_modules(nnx, (args, kwargs)):
            return run(fun, *args, **kwargs)
        # Modules are mutable and may share parts. So their state is passed in, returned, and written back.
        with nnx.update_context("fx.watch"):
            with nnx.split_context("fx.watch") as context:
                graph, state = context.split((args, kwargs))
            graph, state = run(on_state, state, graph)
            with nnx.merge_context("fx.watch", inner=False) as context:
                return context.merge(graph, state)[-1]

    return watching


def _has_modules(nnx: Any, tree: Any) -> bool:
    """True if mutable objects of Flax's are among the nodes of a tree."""
    kinds = (nnx.Variable, nnx.Object)
    return any(isinstance(x, kinds) for x in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, kinds)))


@jax.tree_util.register_static
class _Static:
    """A node of a tree, without leaves, for a value that is no array."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and type(self.value) is type(other.value) and self.value == other.value


def _flat(tree: Any) -> list[Any]:
    """Flattens a tree into a list: its structure, then its leaves. Only arrays are leaves of the list."""
    leaves, structure = jax.tree.flatten(tree)
    return [_Static(structure), *(leaf if _is_traced(leaf) else _Static(leaf) for leaf in leaves)]


def _filled(flat: Sequence[Any]) -> Any:
    """The tree that `_flat` has flattened."""
    structure, *leaves = (each.value if isinstance(each, _Static) else each for each in flat)
    return jax.tree.unflatten(structure, leaves)


def _can_be_hashed(flat: Sequence[Any]) -> bool:
    try:
        hash(tuple(each for each in flat if isinstance(each, _Static)))
    except TypeError:
        return False
    return True


def _is_traced(leaf: Any) -> bool:
    return is_array(leaf) and getattr(leaf, "dtype", None) != jax.dtypes.float0


def _call_watched(fun: Callable[..., Any], watch: Watch, given: Sequence[Any]) -> Any:
    arrays, structure = jax.tree.flatten(given)
    made: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        args, kwargs = _filled(structure.unflatten(arrays))
        leaves, *made[:] = jax.tree.flatten(_flat(fun(*args, **kwargs)))
        return leaves

    traced = jax.make_jaxpr(flat)(*arrays)
    watch.check_sites(traced)
    leaves, _ = jax.tree_util.tree_flatten_with_path(_filled(given))
    names = _names(fun, [path for path, leaf in leaves if _is_traced(leaf)])
    return made[0].unflatten(bind_watched(traced, arrays, watch, names))


def _names(fun: Callable[..., Any], paths: Sequence[Any]) -> tuple[str, ...]:
    """The user's names of the arrays among the arguments."""
    try:
        parameters = [*inspect.signature(fun).parameters]
    except (ValueError, TypeError):
        parameters = []
    names = []
    for (which, key), *rest in ((path[:2], *path[2:]) for path in paths):
        position = getattr(key, "idx", None)
        known = parameters[position] if position is not None and position < len(parameters) else f"argument {position}"
        names.append((known if which.idx == 0 else str(key.key)) + jax.tree_util.keystr(tuple(rest)))
    return tuple(names)
