"""Arrays on devices: `jax._src.array`."""

from __future__ import annotations

import contextlib
import functools
import uuid
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import core, distributed, xla_bridge
from jax._src.array import ArrayImpl
from jax._src.lib import xla_client
from jax.sharding import PartitionSpec

Array = ArrayImpl
"""The class of arrays that are there, which tracers are not instances of."""


def sharding_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sharding of the first argument that lies on several devices, which are those that run the program; None if
    there is none. Of a program that is only lowered, arguments may be described."""
    for x in jax.tree.leaves((args, kwargs)):
        sharding = x.sharding if type(x) in (ArrayImpl, jax.ShapeDtypeStruct) else None
        if sharding is not None and sharding.num_devices > 1:
            has_devices = type(sharding) is jax.NamedSharding and type(sharding.mesh) is jax.sharding.Mesh
            return sharding if has_devices else None
    return None


def platform_of(device: Any) -> str:
    """The platform of a device, as programs are lowered for it. A device says "gpu" of itself, whosever it is."""
    return getattr(device.client, "_raw_platform", device.platform)


def replicated(sharding: Any) -> Any:
    """What has the whole of an array on each of the devices of a sharding."""
    return jax.NamedSharding(sharding.mesh, jax.P())


def only_device() -> Any:
    """The device on which all is computed; None if there are several, of one platform or of different ones."""
    devices = [device for backend in xla_bridge.backends().values() for device in backend.devices()]
    return devices[0] if len(devices) == 1 else None


def default_device() -> Any:
    """The device of programs that name none; None if it is not known."""
    device = jax.config.jax_default_device
    if device is None:
        device = jax.local_devices()[0]
    return device if isinstance(device, jax.Device) else None


def committed_device_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The device that these arguments name, of which none lies on several; None if they name none."""
    for x in jax.tree.leaves((args, kwargs)):
        if type(x) is ArrayImpl and x.committed and x.sharding.num_devices == 1:
            return next(iter(x.sharding.device_set))
    return None


def is_addressable(where: Any) -> bool:
    """Whether a device is this process's, or one of a sharding's."""
    devices = {where} if isinstance(where, jax.Device) else where.device_set
    return any(device.process_index == jax.process_index() for device in devices)


class Placing:
    """All devices of a sharding, each of which is to have the whole of a small array; or, given a device, that one."""

    def __init__(self, where: Any):
        on_one = isinstance(where, jax.Device)
        self._sharding = jax.sharding.SingleDeviceSharding(where) if on_one else replicated(where)
        self._devices = [where] if on_one else list(self._sharding._addressable_device_assignment)
        self._committed = not on_one

    def place(self, x: np.ndarray) -> Any:
        """The array on these devices. JAX would do the same, and takes ten times as long."""
        aval = core.ShapedArray(x.shape, x.dtype)
        copies = [x] * len(self._devices)
        with jax.transfer_guard_host_to_device("allow"):  # it is no transfer of the user's
            return xla_client.batched_device_put(aval, self._sharding, copies, self._devices, self._committed)


# Where values lie, as their types say: `jax.memory` and explicit shardings.


class Placement(NamedTuple):
    """Another memory than the device's, or an explicit sharding; None where there is neither."""

    memory: Any
    spec: Any


def take_placement(x: Any) -> tuple[Any, Placement]:
    """A value in the device's memory and whole, and where it was."""
    type_ = jax.typeof(x)
    memory = None if type_.memory_space == jax.memory.Space.Device else type_.memory_space
    sharding = type_.sharding
    spec = None if sharding.mesh.empty or not any(sharding.spec) else sharding.spec
    if memory is not None:
        x = jax.device_put(x, jax.memory.Space.Device)
    if spec is not None:
        x = jax.sharding.reshard(x, PartitionSpec(*(None,) * x.ndim))
    return x, Placement(memory, spec)


def place(x: Any, placement: Placement) -> Any:
    """The value where it was."""
    if placement.spec is not None:
        x = jax.sharding.reshard(x, placement.spec)
    if placement.memory is not None:
        x = jax.device_put(x, placement.memory)
    return x


# Processes, and their devices: `jax._src.distributed`.


def coordination_service() -> Any:
    """The client of the service by which the processes of `jax.distributed` agree; None in a process by itself."""
    state = distributed.global_state  # `jax.process_count` would make backends, ahead of a later `initialize`
    return state.client if state.num_processes > 1 else None


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


@functools.cache
def has_one_device() -> bool:
    """True if no platform has another device than its first."""
    return all(backend.device_count() == 1 for backend in xla_bridge.backends().values())


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
