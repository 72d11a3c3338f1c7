"""Asynchronous operations in kernels, which are refused."""

from __future__ import annotations

from typing import Any

from effects.extensions.asynchronous.operation import Operation
from effects.extensions.asynchronous.primitives import async_done_p, async_start_p, async_update_p
from effects.extensions.kernels.rules import refuse_in_kernels


@refuse_in_kernels(async_start_p, async_update_p, async_done_p)
def _name_and_line(eqn: Any) -> tuple[str, Any]:
    operation: Operation = eqn.params["operation"]
    return operation.name, operation.where
