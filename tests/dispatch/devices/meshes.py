"""Meshes, regions over them, and programs that count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import effects as fx

P = jax.P


def mesh_over(*numbers, kind=AxisType.Auto):
    devices = np.array([jax.devices()[number] for number in numbers or range(4)])
    return jax.sharding.Mesh(devices, ("x",), axis_types=(kind,))


def by_device(body, *numbers, **kwargs):
    return jax.shard_map(body, mesh=mesh_over(*numbers), in_specs=P("x"), out_specs=P("x"), **kwargs)


def on(number, x):
    return jax.device_put(x, jax.devices()[number])


def plain(x):
    return {"twice": x * 2, "weak": (2.0, [jnp.sum(x), None]), "same": x}


def shown(x):
    fx.print("{}", jnp.sum(x))
    result = plain(x)
    fx.print("end")
    return result


def rows_of(**kwargs):
    return jax.NamedSharding(mesh_over(), P("x"), **kwargs)
