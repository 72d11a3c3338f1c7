"""The calls of handlers in a lowered program, and what becomes of tokens between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from effects import _jax
from effects._model.wire import Attribute

COUNT, LEAVE = [0, 0, 0, 1], [0, 0, 2, 0]


class Call(NamedTuple):
    """A call of one of our handlers.

    Attributes:
        target: The handler.
        before: What gave its token: the number of a call ahead of it, or "argument".
        added: What the program has added to that.
        is_in_place: Whether the call gives a token back in the memory of an operand.
        ahead: How many effects it counts beside that.
    """

    target: str
    before: int | str
    added: list[int]
    is_in_place: bool
    ahead: int = 0


def lowered(f: Any, *args: Any, jit: Any) -> Any:
    """The program of a function for CUDA, as a module."""
    return jit(f).trace(*args).lower(lowering_platforms=("cuda",)).compiler_ir("stablehlo")


def calls_in(module: Any, prefix: str = "effects_") -> list[Call]:
    """All calls of our handlers in a module, in the order of its text."""
    ops: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value.startswith(prefix):
            ops.append(op)
        return _jax.mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return [_read(op, ops) for op in ops]


def _read(op: Any, ops: list[Any]) -> Call:
    is_in_place = "output_operand_aliases" in op.attributes
    is_of_ours = "mhlo.backend_config" in op.attributes
    attributes = op.attributes["mhlo.backend_config"] if is_of_ours else {}
    ahead = attributes[Attribute.AHEAD].value if Attribute.AHEAD in attributes else 0
    added = np.zeros(4, int)
    value = op.operands[0] if len(op.operands) else None
    while value is not None and not isinstance(value.owner, _jax.mlir.ir.Block):
        owner = value.owner
        if owner.name in ("stablehlo.add", "stablehlo.and"):
            constant = owner.operands[1].owner.attributes["value"]
            if owner.name == "stablehlo.add":
                added = added + np.array(constant)[:4]
            value = owner.operands[0]
        else:
            before = next((at for at, other in enumerate(ops) if other == owner), owner.name)
            return Call(op.attributes["call_target_name"].value, before, added.tolist(), is_in_place, ahead)
    return Call(op.attributes["call_target_name"].value, "argument", added.tolist(), is_in_place, ahead)
