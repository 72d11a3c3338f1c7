"""Asynchronous operations in kernels. In a simulated kernel a function of the host's begins in the programs in which
its mask holds. A compiled kernel starts nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from effects import _jax
from effects.extensions.asynchronous.operation import HostStartOp, Operation
from effects.extensions.asynchronous.primitives import async_done_p, async_start_p, async_update_p
from effects.extensions.kernels.grid import bind_where, register_grid_rule
from effects.extensions.kernels.log_rules import refuse_in_logged_kernels


@register_grid_rule(async_start_p, async_update_p, async_done_p)
def _bind_host_operation(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Binds the start, an update or the done of a function of the host's."""
    operation = eqn.params["operation"]
    if operation.kind != HostStartOp.kind:
        return None
    if operation.site is None or operation.site.mask is None or operation.site.lanes:
        return _jax.bind(eqn, operands)
    active = operands[0]
    operands, site = operation.site.without_idle_mask(operands)
    return bind_where(active, eqn, operands, operation=dataclasses.replace(operation, site=site))


@refuse_in_logged_kernels(async_start_p, async_update_p, async_done_p)
def _name_and_line(eqn: Any) -> tuple[str, Any]:
    operation: Operation = eqn.params["operation"]
    return operation.name, operation.where
