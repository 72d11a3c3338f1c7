"""`fx.custom_call`: native functions of the user's as a part of programs, with order and errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax as compat
from effects._content import Message
from effects._registry import PRINT, registered_effects
from effects._sites import Operand, Site, Where, flat_arguments, where_called
from effects._targets import platforms_of, target_names
from effects._types import Effect, jax_effects

custom_call_p = compat.Primitive("custom_call")
custom_call_p.multiple_results = True
"""(*operands) -> results, those that are scratch memory last. `site` is that of records that the handler publishes.

With `masked` a boolean comes first: whether the call is made. `lanes`: sizes of the `vmap`s around it, the outermost
first, if it is made lane by lane; `lanes_of`: for each operand, the boolean included, in which of them it differs."""


def custom_call(
    target: str,
    result_shape_dtypes: Any,
    /,
    *operands: Any,
    effect: Effect | str | None = None,
    scratch: Any = (),
    input_output_aliases: Mapping[int, int] | None = None,
    input_layouts: Sequence[Any] | None = None,
    output_layouts: Sequence[Any] | None = None,
    vmap_method: str | None = None,
    **attributes: Any,
) -> Any:
    """Calls a native function that `register_custom_call` has made known.

    The function gets the operands, each a buffer, and writes the results. Pytrees are flattened as `jax.tree.leaves`
    does, nested tuples depth first. Inside `fx.jit` an error that it returns, or a C++ exception, is raised as
    `CustomCallError` by the call of the program, which returns when the program is over.

    Args:
        target: The name of the function.
        result_shape_dtypes: A pytree of objects with `shape` and `dtype`; None or `()` for no results.
        *operands: Pytrees of arrays.
        effect: What the call does beside giving results. None: nothing, so that it may be dropped, repeated or moved.
            An ordered effect: it happens once, in program order with others of its order domain; one of the kind
            `"device"` on the device, from program to program too.
        scratch: A pytree of objects with `shape` and `dtype`: memory for the function to work in, given to it behind
            the results, and dropped.
        input_output_aliases: Which operand is the memory of which result, both counted in flat order.
        input_layouts, output_layouts: For each flat operand or result the axes from the one that varies slowest, or
            None for row-major order. As for `jax.ffi.ffi_call`.
        vmap_method: What becomes of the call under `vmap`, as for `jax.ffi.ffi_call`.
        **attributes: What the function gets beside operands: numbers, strings, bytes, arrays, dictionaries of these.

    Returns:
        The results.

    Raises:
        CustomCallError: if the target is not registered; from the program, what the function returned as an error.
        TypeError, ValueError: while tracing, if an argument cannot be what it is to be.

    Example:
        A handler that comes with JAX. It reads and writes columns, in place, and says whether it could.

        >>> import effects as fx, jax, jax.numpy as jnp, numpy as np
        >>> from jaxlib.cpu import _lapack
        >>> _lapack.initialize()
        >>> fx.register_custom_call("cholesky", _lapack.registrations()["lapack_spotrf_ffi"])
        >>> columns, status = (1, 0), jax.ShapeDtypeStruct((), jnp.int32)
        >>> @fx.jit
        ... def cholesky(x):
        ...     factor, failed = fx.custom_call(
        ...         "cholesky", (x, status), x, uplo=np.uint8(ord("L")),
        ...         input_layouts=[columns], output_layouts=[columns, ()], input_output_aliases={0: 0},
        ...     )
        ...     return jnp.tril(factor), failed
        >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]]))
        (Array([[2., 0.],
               [1., 2.]], dtype=float32), Array(0, dtype=int32))
    """
    where = where_called()
    if not isinstance(target, str):
        raise TypeError(errors.MSG_TARGET_NAME.format(name=errors.shown(target)))
    if not platforms_of(target):
        raise unknown_target(target, where)
    if vmap_method not in _VMAP_METHODS:
        known = ", ".join(map(repr, _VMAP_METHODS))
        raise ValueError(errors.MSG_CUSTOM_VMAP_METHOD.format(where=where, given=vmap_method, known=known))
    arrays = [_take_operand(leaf, target, where) for leaf in jax.tree.leaves(operands)]
    results, tree = jax.tree.flatten(result_shape_dtypes)
    shapes = [_shape_of(shape, target, where) for shape in results]
    temporary = [_shape_of(shape, target, where) for shape in jax.tree.leaves(scratch)]
    layouts = (
        _layouts_of(input_layouts, [x.shape for x in arrays], "input_layouts", where),
        _layouts_of(output_layouts, [x.shape for x in shapes], "output_layouts", where)
        + tuple(_row_major(x.shape) for x in temporary),
    )
    outs = custom_call_p.bind(
        *arrays,
        site=_site(target, _effect_of(effect, where), where),
        results=tuple(shapes + temporary),
        aliases=_aliases_of(input_output_aliases, arrays, shapes, layouts, where),
        layouts=layouts,
        vmap_method=vmap_method,
        attributes=Attributes(attributes, where),
        masked=False,
        lanes=(),
        lanes_of=((),) * len(arrays),
    )
    return jax.tree.unflatten(tree, outs[: len(results)])


_VMAP_METHODS = (None, "sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


def unknown_target(target: str, where: Where, platform: str = "any platform") -> errors.CustomCallError:
    """An error for a target that has no handler."""
    known = ", ".join(f"`{name}` ({', '.join(platforms_of(name))})" for name in target_names()) or "none"
    message = errors.MSG_UNKNOWN_TARGET.format(target=target, where=where, platform=platform, known=known)
    return errors.CustomCallError(message, target, str(where), "NOT_FOUND", message)


def _effect_of(effect: Any, where: Where) -> Effect | None:
    if effect is None:
        return None
    known = registered_effects()
    name = effect.name if isinstance(effect, Effect) else effect
    if not isinstance(name, str) or name not in known or (isinstance(effect, Effect) and not _is_form_of(effect)):
        given = errors.shown(effect)
        raise ValueError(errors.MSG_CUSTOM_EFFECT.format(where=where, effect=given, known=", ".join(sorted(known))))
    return effect if isinstance(effect, Effect) else known[name]


def _is_form_of(effect: Effect) -> bool:
    known = registered_effects()[effect.name]
    return effect in (known, known.unordered())


def _site(target: str, effect: Effect | None, where: Where) -> Site:
    """The site of the records that the handler publishes: a level and a text, see `Message`."""
    level = Operand((), np.dtype(np.int32), np.dtype(np.int32))
    text = Operand((-1,), np.dtype(np.uint8), np.dtype(np.uint8))
    content = Message(target, effect is not None)
    return Site(effect or PRINT.unordered(), content, (level, text), flat_arguments(2), where, unknown=1)


def _take_operand(leaf: Any, target: str, where: Where) -> Any:
    if compat.is_reference(leaf):
        leaf = leaf[...]  # what it holds now
    try:
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise TypeError
    except Exception:
        given = errors.shown(leaf)
        raise TypeError(errors.MSG_CUSTOM_OPERAND.format(target=target, where=where, given=given)) from None
    return array


def _shape_of(shape: Any, target: str, where: Where) -> Any:
    try:
        dims = tuple(n if jax.export.is_symbolic_dim(n) else int(n) for n in shape.shape)
        dtype = np.dtype(shape.dtype)
        if dtype.kind in "OSUmM" or any(isinstance(n, int) and n < 0 for n in dims):
            raise TypeError
    except Exception:
        given = errors.shown(shape)
        raise TypeError(errors.MSG_CUSTOM_RESULT.format(target=target, where=where, given=given)) from None
    return compat.ShapedArray(dims, dtype)


def _row_major(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(range(len(shape)))


def _layouts_of(given: Any, shapes: Sequence[Any], name: str, where: Where) -> tuple[tuple[int, ...], ...]:
    """The axes of each array, the one that varies slowest first."""
    if given is None:
        return tuple(map(_row_major, shapes))
    try:
        layouts = [getattr(layout, "major_to_minor", layout) for layout in given]
        taken = [
            _row_major(shape) if layout is None else tuple(map(int, layout))
            for layout, shape in zip(layouts, shapes, strict=True)
        ]
        if any(sorted(layout) != list(_row_major(shape)) for layout, shape in zip(taken, shapes, strict=True)):
            raise ValueError
    except Exception:
        ranks = ", ".join(str(len(shape)) for shape in shapes) or "none"
        given = errors.shown(given)
        raise ValueError(errors.MSG_CUSTOM_LAYOUT.format(where=where, name=name, given=given, ranks=ranks)) from None
    return tuple(taken)


def _aliases_of(
    given: Any, operands: Sequence[Any], results: Sequence[Any], layouts: Any, where: Where
) -> tuple[tuple[int, int], ...]:
    aliases = []
    if not isinstance(given, (Mapping, type(None))):
        raise TypeError(errors.MSG_CUSTOM_ALIASES.format(where=where, given=errors.shown(given)))
    for operand, result in (given or {}).items():
        try:
            fits = (
                0 <= operand < len(operands)
                and 0 <= result < len(results)
                and operands[operand].shape == results[result].shape
                and operands[operand].dtype == results[result].dtype
                and layouts[0][operand] == layouts[1][result]
            )
        except TypeError:
            fits = False
        if not fits:
            raise ValueError(errors.MSG_CUSTOM_ALIAS.format(where=where, operand=operand, result=result))
        aliases.append((operand, result))
    if len({result for _, result in aliases}) < len(aliases):
        raise ValueError(errors.MSG_CUSTOM_ALIAS.format(where=where, operand="several operands", result="one result"))
    return tuple(sorted(aliases))


class Attributes:
    """What a handler gets beside operands. Equal ones have equal values of equal types."""

    def __init__(self, values: Mapping[str, Any], where: Where):
        self.values = {name: _take_attribute(value, name, where) for name, value in values.items()}
        self._key = _key_of(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.values)


def _take_attribute(value: Any, name: str, where: Where) -> Any:
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise ValueError(errors.MSG_ATTRIBUTE_NAME.format(where=where, name=errors.shown(name)))
    if isinstance(value, Mapping):
        return {inner: _take_attribute(each, inner, where) for inner, each in value.items()}
    fits = not isinstance(value, int) or -(2**63) <= value < 2**63
    if fits and isinstance(value, (str, bytes, bool, int, float)):
        return value
    try:
        if not fits:
            raise TypeError
        array = np.array(value)  # a copy, which nobody changes
        array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype.name not in _ATTRIBUTE_TYPES and not (array.ndim == 0 and array.dtype == bool):
            raise TypeError
    except Exception:
        given = errors.shown(value)
        raise TypeError(errors.MSG_ATTRIBUTE.format(where=where, name=name, given=given)) from None
    return array if array.ndim else array[()]


_ATTRIBUTE_TYPES = frozenset(
    [*(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float32", "float64"]
)
"""What XLA hands to handlers."""


def _key_of(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _key_of(each)) for name, each in value.items()))
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, value.dtype.name, value.shape, value.tobytes()
    return type(value).__name__, repr(value) if isinstance(value, float) else value


@custom_call_p.def_effectful_abstract_eval
def _custom_call_abstract_eval(
    *operands: Any, site: Site, results: Any, lanes: tuple[int, ...], **_: Any
) -> tuple[list[Any], set[Any]]:
    effects = jax_effects(site.effect) if site.content.has_effect else set()  # type: ignore[union-attr]
    return [compat.per_device(_mapped(result, lanes)) for result in results], effects


def _mapped(result: Any, lanes: tuple[int, ...]) -> Any:
    return compat.ShapedArray((*lanes, *result.shape), result.dtype)


def _custom_call_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    if any(type(tangent) is not compat.ad.Zero for tangent in tangents):
        raise _not_differentiable(params["site"])
    outs = custom_call_p.bind(*primals, **params)
    return outs, [compat.zero_tangent(out) for out in outs]


def _custom_call_transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
    raise _not_differentiable(params["site"])


def _not_differentiable(site: Site) -> errors.NotDifferentiable:
    return errors.NotDifferentiable(
        errors.MSG_CUSTOM_DERIVATIVE.format(target=site.content.target, where=site.where)  # type: ignore[union-attr]
    )


def _custom_call_batch(
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    results: Any,
    layouts: Any,
    lanes: Any,
    lanes_of: Any,
    **params: Any,
) -> tuple[Sequence[Any], Sequence[Any]]:
    site, method, size, masked = params["site"], params["vmap_method"], axis_data.size, params["masked"]
    mapped = [dim is not None for dim in dims]
    bind = functools.partial(custom_call_p.bind, **params)
    if not any(mapped) and (not site.content.has_effect or compat.is_axis_of_tangents(axis_data)):
        outs = bind(*operands, results=results, layouts=layouts, lanes=lanes, lanes_of=lanes_of)
        return outs, [None] * len(outs)
    if method is None:
        raise NotImplementedError(errors.MSG_CUSTOM_VMAP.format(target=site.content.target, where=site.where))
    moved = [
        x if dim is None else compat.lanes_at_front(x, dim, axis_data) for x, dim in zip(operands, dims, strict=True)
    ]
    # One by one, in the order of the lanes, the outermost first: that is known when the program is complete.
    if method.startswith("sequential") or lanes or (masked and mapped[0]):
        lanes_of = tuple((m, *differs) for m, differs in zip(mapped, lanes_of, strict=True))
        outs = bind(*moved, results=results, layouts=layouts, lanes=(size, *lanes), lanes_of=lanes_of)
        return outs, [0] * len(outs)
    mask, moved, mapped = moved[:masked], moved[masked:], mapped[masked:]
    if method != "legacy_vectorized":
        length = size if method == "broadcast_all" else 1
        moved = [x if m else jnp.broadcast_to(x, (length, *x.shape)) for x, m in zip(moved, mapped, strict=True)]
        mapped = [True] * len(moved)
    outs = bind(
        *mask,
        *moved,
        results=tuple(_mapped(result, (size,)) for result in results),
        layouts=(
            tuple(_with_lanes(layout) if m else layout for layout, m in zip(layouts[0], mapped, strict=True)),
            tuple(map(_with_lanes, layouts[1])),
        ),
        lanes=lanes,
        lanes_of=lanes_of,
    )
    return outs, [0] * len(outs)


def by_lane(
    call: Callable[..., tuple[Any, Sequence[Any]]],
    carry: Any,
    operands: Sequence[Any],
    *,
    results: Sequence[Any],
    masked: bool,
    lanes: tuple[int, ...],
    lanes_of: Sequence[tuple[bool, ...]],
    unroll: bool,
) -> tuple[Any, list[Any]]:
    """Makes a call for each lane that has it, in their order. `call(carry, *operands) -> (carry, results)`."""
    if not lanes:  # where there are none to choose from, the call is always made
        carry, outs = call(carry, *operands[masked:])
        return carry, list(outs)
    flat = [_by_lane(x, lanes, differs) for x, differs in zip(operands, lanes_of, strict=True)]

    def leave_out(carry: Any, *_: Any) -> tuple[Any, list[Any]]:
        return carry, [compat.as_per_device(jnp.zeros(result.shape, result.dtype)) for result in results]

    def one(carry: Any, of_lane: Any) -> tuple[Any, Any]:
        given = iter(of_lane)
        args = [next(given) if any(d) else x for x, d in zip(operands, lanes_of, strict=True)]
        return jax.lax.cond(args[0], call, leave_out, carry, *args[1:]) if masked else call(carry, *args)

    count = math.prod(lanes)
    # Something that has all lanes, where no operand does: how many there are may be known only when the program runs.
    xs = [x for x, differs in zip(flat, lanes_of, strict=True) if any(differs)] or [jnp.zeros(count, bool)]
    carry, outs = jax.lax.scan(one, carry, xs, unroll=count if unroll and isinstance(count, int) else 1)
    return carry, [out.reshape(*lanes, *out.shape[1:]) for out in outs]


def _by_lane(x: Any, lanes: tuple[int, ...], differs: tuple[bool, ...]) -> Any:
    """An operand with one axis for all lanes."""
    inner = x.shape[sum(differs) :]
    own = [size if d else 1 for size, d in zip(lanes, differs, strict=True)]
    return jnp.broadcast_to(x.reshape(*own, *inner), (*lanes, *inner)).reshape(math.prod(lanes), *inner)


def _with_lanes(layout: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *(axis + 1 for axis in layout))


compat.ad.primitive_jvps[custom_call_p] = _custom_call_jvp
compat.ad.primitive_transposes[custom_call_p] = _custom_call_transpose
compat.batching.fancy_primitive_batchers[custom_call_p] = _custom_call_batch
