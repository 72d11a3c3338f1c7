"""Functions with a partition rule: `jax._src.custom_partitioning`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import custom_partitioning, sharding_impls
from jax._src import custom_partitioning_sharding_rule as sharding_rules

custom_partitioning_p = custom_partitioning.custom_partitioning_p


def on_each_device() -> Any:
    """A sharding for a partition rule to return: each device has the whole. JAX does not read of it which they are."""
    return sharding_impls.GSPMDSharding.get_replicated(jax.devices()[:1])


def mesh_of_all(sharding: Any) -> jax.sharding.Mesh:
    """A mesh of the devices of a sharding in their order in the program."""
    return jax.sharding.Mesh(np.array(sharding._device_assignment), ("_devices",))


def sharding_rule_with_tokens(rule: Any, count: int) -> Any:
    """A sharding rule of Shardy's with `count` tokens ahead of operands and results, which have nothing to do with
    either."""

    def changed(*given: Any) -> Any:
        *known, operands, results = given
        own = rule(*known, operands[count:], results[count:]) if callable(rule) else rule
        own, sizes = own if isinstance(own, (list, tuple)) else (own, {})
        if isinstance(own, str):
            own = sharding_rules.str_to_sdy_sharding_rule(own, **sizes)
        names = [f"token{i}" for i in range(count)]
        tokens = tuple(map(sharding_rules.ArrayMapping, names))
        return sharding_rules.SdyShardingRule(
            (*tokens, *own.operand_mappings),
            (*tokens, *own.result_mappings),
            reduction_factors=own.reduction_factors,
            need_replication_factors=(*names, *own.need_replication_factors),  # in the order in which they come
            permutation_factors=own.permutation_factors,
            **own.factor_sizes,
        )

    return changed


def kept_with_module(ctx: Any) -> Sequence[object]:
    """What is kept for as long as the program that is being lowered, also what is still to come."""
    return ctx.module_context.keepalives


def function_of(jaxpr: Any) -> str:
    """The function that was traced, and where it stands."""
    return str(jaxpr.jaxpr.debug_info.func_src_info)
