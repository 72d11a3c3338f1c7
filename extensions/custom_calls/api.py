"""`fx.custom_call`: native functions of the user's as a part of programs, with order and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax, _removed
from effects._api.print import PRINT
from effects._model.effect import Effect, named_effect
from effects._model.operand import Operand, flat_arguments
from effects._model.site import Site
from effects._model.where import Where, where_called
from effects.extensions.custom_calls.message import Message
from effects.extensions.custom_calls.primitive import custom_call_p
from effects.extensions.custom_calls.targets import MSG_TARGET_NAME, platforms_of, unknown_target

# Attributes of custom calls: constants of the program, which handlers get beside operands.

MSG_ATTRIBUTE_NAME = (
    "`fx.custom_call` at {where} was given an attribute with the name {name}. A handler finds attributes by name, an "
    "identifier in ASCII letters. Rename it."
)
MSG_ATTRIBUTE = (
    "`fx.custom_call` at {where} was given {given} as the attribute `{name}`. An attribute is known while tracing: a "
    "number, a string, bytes, an array (of integers, float32 or float64), or a dictionary of these. Pass what is "
    "computed as an operand."
)


class Attributes:
    """The attributes that a handler gets beside operands. Two are equal if their values and the types of these are."""

    def __init__(self, values: Mapping[str, Any], where: Where):
        self.values: dict[str, Any] = {name: _take_attribute(value, name, where) for name, value in values.items()}
        self._key = _key_of(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.values)


def _take_attribute(value: Any, name: str, where: Where) -> Any:
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise errors.value_error(MSG_ATTRIBUTE_NAME.format(where=where, name=errors.shown(name)))
    if isinstance(value, Mapping):
        return {inner: _take_attribute(each, inner, where) for inner, each in value.items()}
    fits = not isinstance(value, int) or -(2**63) <= value < 2**63
    if fits and isinstance(value, (str, bytes, bool, int, float)):
        return value
    try:
        if not fits:
            raise TypeError
        array = np.array(value)  # a copy, which does not change
        array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype.name not in _ATTRIBUTE_TYPES and not (array.ndim == 0 and array.dtype == bool):
            raise TypeError
    except Exception:
        given = errors.shown(value)
        raise errors.type_error(MSG_ATTRIBUTE.format(where=where, name=name, given=given)) from None
    return array if array.ndim else array[()]


_ATTRIBUTE_TYPES = frozenset(
    [*(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float32", "float64"]
)
"""The element types of arrays that XLA passes to handlers as attributes."""


def _key_of(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _key_of(each)) for name, each in value.items()))
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, value.dtype.name, value.shape, value.tobytes()
    return type(value).__name__, repr(value) if isinstance(value, float) else value


MSG_CUSTOM_OPERAND = (
    "The custom call `{target}` at {where} was given the operand {given}. Operands are arrays of numbers. Pass an "
    "array; pass what is known while tracing as an attribute, by name, and of a random key its `jax.random.key_data`."
)
MSG_CUSTOM_RESULT = (
    "The custom call `{target}` at {where} was given {given} among its results. A result is described by an object "
    "with `shape` and `dtype`. Pass `jax.ShapeDtypeStruct(shape, dtype)`, or an array of that shape and type."
)
MSG_CUSTOM_ALIAS = (
    "`fx.custom_call` at {where} was asked to give {operand} and {result} the same memory. An operand and a result, "
    "counted in flat order from 0, can share it if their shapes and types are the same. Change "
    "`input_output_aliases`."
)
MSG_CUSTOM_ALIASES = (
    "`fx.custom_call` at {where} was given {given} as `input_output_aliases`. It says which operand is the memory of "
    "which result, both counted in flat order from 0. Pass a dictionary, say `{{0: 0}}`."
)
MSG_CUSTOM_VMAP_METHOD = (
    "`fx.custom_call` at {where} was given the vmap_method {given!r}. It says how a handler is called for many lanes. "
    "Pass one of {known}."
)


@_jax.for_users
@_removed.without_arguments("fx.custom_call", "input_layouts", "output_layouts")
def custom_call(
    target: str,
    result_shape_dtypes: Any,
    /,
    *operands: Any,
    effect: Effect | str | None = None,
    scratch: Any = (),
    input_output_aliases: Mapping[int, int] | None = None,
    vmap_method: str | None = None,
    **attributes: Any,
) -> Any:
    """Calls a native function that `register_custom_call` has made known.

    The function gets the operands, each a buffer in row-major order, and writes the results. Pytrees are flattened as
    `jax.tree.leaves` does, nested tuples depth first. Inside `fx.jit` an error that it returns, or a C++ exception, is
    raised as `CustomCallError` by the thread's next call, which is not made, or by the barrier; or by the call of the
    program, if that is over when its call returns.

    Args:
        target: The name of the function.
        result_shape_dtypes: A pytree of objects with `shape` and `dtype`; None or `()` for no results.
        *operands: Pytrees of arrays.
        effect: The effect of the call. None: it has none, so that it may be dropped, repeated or moved. An ordered
            effect: it happens once, in program order with others of its order domain; one of the kind `"device"` on the
            device, from program to program too.
        scratch: A pytree of objects with `shape` and `dtype`: memory for the function to work in, given to it behind
            the results, and dropped.
        input_output_aliases: A dictionary from operands to the results that share their memory, both counted in flat
            order.
        vmap_method: The treatment of the call under `vmap`, as for `jax.ffi.ffi_call`.
        **attributes: Further arguments of the function: numbers, strings, bytes, arrays, dictionaries of these.

    Returns:
        The results.

    Raises:
        CustomCallError: if the target is not registered; for the program, the error that the handler returned.
        TypeError, ValueError: while tracing, if an argument is not what its description above asks for.

    Example:
        A handler that comes with JAX. It factors a symmetric matrix in place and returns a status. It takes rows for
        columns, and so the lower triangle for the upper one.

        >>> import effects as fx, jax, jax.numpy as jnp, numpy as np
        >>> from jaxlib.cpu import _lapack
        >>> _lapack.initialize()
        >>> fx.register_custom_call("cholesky", _lapack.registrations()["lapack_spotrf_ffi"])
        >>> status = jax.ShapeDtypeStruct((), jnp.int32)
        >>> @fx.jit
        ... def cholesky(x):
        ...     factor, failed = fx.custom_call(
        ...         "cholesky", (x, status), x, uplo=np.uint8(ord("U")), input_output_aliases={0: 0}
        ...     )
        ...     return jnp.tril(factor), failed
        >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]]))
        (Array([[2., 0.],
               [1., 2.]], dtype=float32), Array(0, dtype=int32))
    """
    where = where_called(2)  # past `without_arguments`
    if not isinstance(target, str):
        raise errors.type_error(MSG_TARGET_NAME.format(name=errors.shown(target)))
    if not platforms_of(target):
        raise unknown_target(target, where)
    if vmap_method not in _VMAP_METHODS:
        known = ", ".join(map(repr, _VMAP_METHODS))
        raise errors.value_error(MSG_CUSTOM_VMAP_METHOD.format(where=where, given=vmap_method, known=known))
    arrays = [_take_operand(leaf, target, where) for leaf in jax.tree.leaves(operands)]
    results, tree = jax.tree.flatten(result_shape_dtypes)
    shapes = [_shape_of(shape, target, where) for shape in results]
    temporary = [_shape_of(shape, target, where) for shape in jax.tree.leaves(scratch)]
    outs = custom_call_p.bind(
        *arrays,
        site=_site(target, None if effect is None else named_effect("fx.custom_call", where, effect), where),
        results=tuple(shapes + temporary),
        aliases=_aliases_of(input_output_aliases, arrays, shapes, where),
        vmap_method=vmap_method,
        attributes=Attributes(attributes, where),
        masked=False,
        lanes=(),
        lanes_of=((),) * len(arrays),
    )
    return jax.tree.unflatten(tree, outs[: len(results)])


_VMAP_METHODS = (None, "sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


def _site(target: str, effect: Effect | None, where: Where) -> Site:
    """The site of the lines that the handler prints, see `Message`."""
    text = Operand((-1,), np.dtype(np.uint8), np.dtype(np.uint8))
    content = Message(target, effect is not None)
    return Site(
        effect or PRINT.unordered(),
        content,
        (text,),
        flat_arguments(1),
        where,
        num_dynamic_sizes=1,
    )


def _take_operand(leaf: Any, target: str, where: Where) -> Any:
    if _jax.is_reference(leaf):
        leaf = leaf[...]  # its present value
    try:
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise TypeError
    except Exception:
        given = errors.shown(leaf)
        raise errors.type_error(MSG_CUSTOM_OPERAND.format(target=target, where=where, given=given)) from None
    return array


def _shape_of(shape: Any, target: str, where: Where) -> Any:
    try:
        dims = tuple(n if jax.export.is_symbolic_dim(n) else int(n) for n in shape.shape)
        dtype = np.dtype(shape.dtype)
        if dtype.kind in "OSUmM" or any(isinstance(n, int) and n < 0 for n in dims):
            raise TypeError
    except Exception:
        given = errors.shown(shape)
        raise errors.type_error(MSG_CUSTOM_RESULT.format(target=target, where=where, given=given)) from None
    return _jax.ShapedArray(dims, dtype)


def _aliases_of(
    given: Any, operands: Sequence[Any], results: Sequence[Any], where: Where
) -> tuple[tuple[int, int], ...]:
    aliases = []
    if not isinstance(given, (Mapping, type(None))):
        raise errors.type_error(MSG_CUSTOM_ALIASES.format(where=where, given=errors.shown(given)))
    for operand, result in (given or {}).items():
        try:
            fits = (
                0 <= operand < len(operands)
                and 0 <= result < len(results)
                and operands[operand].shape == results[result].shape
                and operands[operand].dtype == results[result].dtype
            )
        except TypeError:
            fits = False
        if not fits:
            raise errors.value_error(MSG_CUSTOM_ALIAS.format(where=where, operand=operand, result=result))
        aliases.append((operand, result))
    if len({result for _, result in aliases}) < len(aliases):
        raise errors.value_error(MSG_CUSTOM_ALIAS.format(where=where, operand="several operands", result="one result"))
    return tuple(sorted(aliases))
