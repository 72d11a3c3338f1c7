"""References between which an asynchronous operation moves values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from effects import _errors as errors
from effects import _jax
from effects._model.where import Where

MSG_NO_REFERENCE = (
    "`fx.{call}` at {where} was given {given} as a reference. It reads references such as `jax.new_ref` makes, and "
    "writes whole ones. Make a reference for each slot of a buffer, or start with the value `ref[slot]` and write "
    "`ref[other] = fx.async_done(future)`."
)
MSG_REFERENCE_TYPES = (
    "`fx.{call}` at {where} was given references of {source} to read and of {target} to write. The done writes to each "
    "what the start has read. Pass references of the same shapes and types in the same structure."
)
MSG_REFERENCE_TO_ITSELF = (
    "`fx.{call}` at {where} was given one reference of type {type} twice. It is written while the operation is under "
    "way, so it cannot be what is read or written besides. Make a second reference with `jax.new_ref`."
)


class Into:
    """References that the done of an operation writes to. Two are equal if the references are the same."""

    def __init__(self, references: Sequence[Any]) -> None:
        self._references = tuple(references)

    def write(self, values: Sequence[Any]) -> None:
        """Writes a value to each."""
        for reference, value in zip(self._references, values, strict=True):
            reference[...] = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Into) and [*map(id, self._references)] == [*map(id, other._references)]

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._references)))

    def __repr__(self) -> str:  # in JAX's error for a loop whose body returns a future with another destination
        numbers = ", ".join(f"{_jax.typeof(reference)} number {id(reference)}" for reference in self._references)
        return f"<to be written to: {numbers}. {_IN_A_LOOP}>"


_IN_A_LOOP = (
    "All turns of a loop write to the same references: unroll it so that each turn ends as it began, or start with "
    "values and write what the done returns"
)


def are_references(x: Any) -> bool:
    """Returns True if a pytree has references among its leaves."""
    return any(map(_jax.is_reference, jax.tree.leaves(x)))


def read_references(source: Any, target: Any, call: str, where: Where) -> tuple[Any, Into]:
    """Returns the values of the source references, and the target references to write them to."""
    (sources, structure), (targets, into) = jax.tree.flatten(source), jax.tree.flatten(target)
    wrong = [leaf for leaf in (*sources, *targets) if not _jax.is_reference(leaf)]
    for leaf in (*wrong, *(leaf for leaf in targets if isinstance(leaf, _jax.TransformedRef))):
        raise errors.type_error(MSG_NO_REFERENCE.format(call=call, where=where, given=errors.shown(leaf)))
    types = [[(leaf.shape, leaf.dtype) for leaf in leaves] for leaves in (sources, targets)]
    if structure != into or types[0] != types[1]:
        shown = [", ".join(str(leaf.aval) for leaf in leaves) for leaves in (sources, targets)]
        raise errors.type_error(MSG_REFERENCE_TYPES.format(call=call, where=where, source=shown[0], target=shown[1]))
    for at, leaf in enumerate(targets):
        if any(leaf is other for other in (*sources, *targets[:at])):
            raise errors.value_error(MSG_REFERENCE_TO_ITSELF.format(call=call, where=where, type=_jax.typeof(leaf)))
    return jax.tree.unflatten(structure, [leaf[...] for leaf in sources]), Into(targets)
