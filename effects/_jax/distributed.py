"""Processes, and their devices: `jax._src.distributed`."""

from __future__ import annotations

import contextlib
import functools
import uuid
from typing import Any

import jax
import numpy as np
from jax._src import distributed


def coordination_service() -> Any:
    """The client of the service by which the processes of `jax.distributed` agree; None in a process by itself."""
    return distributed.global_state.client if jax.process_count() > 1 else None


def run_id() -> str | None:
    """What all processes of this run have and no other run has; None in a process by itself."""
    return None if jax.process_count() == 1 else _agreed_run_id()


@functools.cache
def _agreed_run_id() -> str:
    service = coordination_service()
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was first
        service.key_value_set("token-effects/run", uuid.uuid4().hex)
    return service.blocking_key_value_get("token-effects/run", 60_000)


@functools.cache
def device_places(platform: str) -> dict[int, int]:
    """The places in `jax.devices()` of a platform's devices, by the numbers that XLA gives handlers for them; none
    where the number is the place. Of GPUs, whose numbers are each process's own, those of this process."""
    if platform == "cpu":
        several = jax.process_count() > 1
        return {device.id: place for place, device in enumerate(jax.devices(platform))} if several else {}
    try:
        devices = jax.devices(platform)
    except RuntimeError:  # there are none
        return {}
    here = {x.local_hardware_id: place for place, x in enumerate(devices) if x.process_index == jax.process_index()}
    return {} if all(number == place for number, place in here.items()) else here


@functools.cache
def host_device() -> int:
    """The number of the device on whose behalf this process's host publishes."""
    return 0 if jax.process_count() == 1 else jax.local_devices(backend="cpu")[0].id


def own_devices(ctx: Any, devices: int) -> int | None:
    """How many of the devices that run this program are this process's; None if it is not known which devices run it.
    `devices`: how many run it in all."""
    if jax.process_count() == 1:
        return devices
    assigned = _assigned_devices(ctx)
    return None if assigned is None else _own_devices(assigned)


def processes_of(ctx: Any) -> tuple[int, ...]:
    """The processes whose devices run this program; none if that is not known."""
    if jax.process_count() == 1:
        return (0,)
    assigned = _assigned_devices(ctx)
    return () if assigned is None else _processes_of(assigned)


def is_within_processes(ctx: Any, axes: tuple[Any, ...]) -> bool:
    """Whether the devices of the region that is lowered which are different along these axes alone are of one process;
    False if it is not known which devices they are."""
    if jax.process_count() == 1:
        return True
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    return isinstance(mesh, jax.sharding.Mesh) and _is_within_processes(mesh, axes)


def _assigned_devices(ctx: Any) -> tuple[Any, ...] | None:
    axis_context = ctx.module_context.axis_context
    mesh = getattr(axis_context, "mesh", None)
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh._flat_devices_tuple
    return getattr(axis_context, "device_assignment", None)


@functools.lru_cache(64)
def _own_devices(devices: tuple[Any, ...]) -> int:
    return sum(device.process_index == jax.process_index() for device in devices)


@functools.lru_cache(64)
def _is_within_processes(mesh: jax.sharding.Mesh, axes: tuple[Any, ...]) -> bool:
    processes = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.devices)
    along = tuple(mesh.axis_names.index(axis) for axis in axes)
    return bool((processes.min(along) == processes.max(along)).all())


@functools.lru_cache(64)
def _processes_of(devices: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(sorted({device.process_index for device in devices}))
