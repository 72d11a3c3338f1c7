"""Arrays on devices: `jax._src.array`."""

from __future__ import annotations

import collections
import contextlib
import functools
import uuid
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import core, distributed, xla_bridge
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla
from jax._src.lib import xla_client
from jax.sharding import PartitionSpec

Array = ArrayImpl
"""The class of concrete arrays. Tracers are not instances of it."""


def sharding_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sharding of the first argument that lies on several devices, which then run the program; None if there is
    none. For a program that is only lowered, arguments may be `jax.ShapeDtypeStruct`s."""
    for x in jax.tree.leaves((args, kwargs)):
        sharding = x.sharding if type(x) in (ArrayImpl, jax.ShapeDtypeStruct) else None
        if sharding is not None and sharding.num_devices > 1:
            has_devices = type(sharding) is jax.NamedSharding and type(sharding.mesh) is jax.sharding.Mesh
            return sharding if has_devices else None
    return None


def platform_of(device: Any) -> str:
    """The platform of a device by the name for lowering: "cuda" or "rocm", where `device.platform` is "gpu"."""
    return getattr(device.client, "_raw_platform", device.platform)


def replicated(sharding: Any) -> Any:
    """The sharding that replicates an array over the mesh of this sharding."""
    return jax.NamedSharding(sharding.mesh, jax.P())


def only_device() -> Any:
    """The only device, of all platforms; None if there are several."""
    devices = [device for backend in xla_bridge.backends().values() for device in backend.devices()]
    return devices[0] if len(devices) == 1 else None


def default_device() -> Any:
    """The device of programs that name none; None if it is not known."""
    device = jax.config.jax_default_device
    if device is None:
        device = jax.local_devices()[0]
    return device if isinstance(device, jax.Device) else None


def committed_device_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The device of the first committed argument; None if there is none. No argument is on several devices."""
    for x in jax.tree.leaves((args, kwargs)):
        if type(x) is ArrayImpl and x.committed and x.sharding.num_devices == 1:
            return next(iter(x.sharding.device_set))
    return None


def is_addressable(where: Any) -> bool:
    """True if a device, or any device of a sharding, belongs to this process."""
    devices = {where} if isinstance(where, jax.Device) else where.device_set
    return any(device.process_index == jax.process_index() for device in devices)


class Placing:
    """Copies small arrays to a device, or replicates them to all devices of a sharding."""

    def __init__(self, where: Any):
        on_one = isinstance(where, jax.Device)
        self._sharding = jax.sharding.SingleDeviceSharding(where) if on_one else replicated(where)
        self._devices = [where] if on_one else list(self._sharding._addressable_device_assignment)
        self._committed = not on_one

    def place(self, x: np.ndarray) -> Any:
        """The array on these devices, as by `jax.device_put`, which takes ten times as long."""
        aval = core.ShapedArray(x.shape, x.dtype)
        copies = [x] * len(self._devices)
        with jax.transfer_guard_host_to_device("allow"):  # the user's guard is not for our transfer
            return xla_client.batched_device_put(aval, self._sharding, copies, self._devices, self._committed)


# The placement of values in their types: `jax.memory` and explicit shardings.


class Placement(NamedTuple):
    """The memory of a value, if not the device's, and its explicit sharding, if it has one; else None."""

    memory: Any
    spec: Any


def take_placement(x: Any) -> tuple[Any, Placement]:
    """Moves a value to the device's memory and replicates it; returns it with its former placement."""
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
    """Moves a value back to a placement."""
    if placement.spec is not None:
        x = jax.sharding.reshard(x, placement.spec)
    if placement.memory is not None:
        x = jax.device_put(x, placement.memory)
    return x


# Processes, and their devices: `jax._src.distributed`.


def process_count() -> int:
    """Returns the number of processes of `jax.distributed`. `jax.process_count` would make backends, for which it waits
    until all processes make theirs, and ahead of a later `jax.distributed.initialize`."""
    return distributed.global_state.num_processes or 1


def coordination_service() -> Any:
    """The client of the service by which the processes of `jax.distributed` agree; None in a process by itself."""
    return distributed.global_state.client if process_count() > 1 else None


def run_id() -> str | None:
    """An identifier of this run, the same in all its processes; None in a process by itself."""
    return None if jax.process_count() == 1 else _agreed_run_id()


@functools.cache
def _agreed_run_id() -> str:
    service = coordination_service()
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process has set it
        service.key_value_set("token-effects/run", uuid.uuid4().hex)
    return service.blocking_key_value_get("token-effects/run", 60_000)


@functools.cache
def device_places(platform: str) -> dict[int, int]:
    """The places in `jax.devices()` of a platform's devices, by the numbers that XLA gives to handlers; empty if the
    number is the place. XLA numbers GPUs within each process, so only this process's GPUs are included."""
    if platform == "cpu":
        several = jax.process_count() > 1
        return {device.id: place for place, device in enumerate(jax.devices(platform))} if several else {}
    try:
        devices = jax.devices(platform)
    except RuntimeError:  # no such platform
        return {}
    here = {x.local_hardware_id: place for place, x in enumerate(devices) if x.process_index == jax.process_index()}
    return {} if all(number == place for number, place in here.items()) else here


@functools.cache
def host_device() -> int:
    """The number of the device in records that the host of this process publishes."""
    return 0 if jax.process_count() == 1 else jax.local_devices(backend="cpu")[0].id


@functools.cache
def has_one_device() -> bool:
    """True if no platform has another device than its first."""
    return all(backend.device_count() == 1 for backend in xla_bridge.backends().values())


def own_devices(ctx: Any, devices: int) -> int | None:
    """The number of this program's devices that belong to this process; None if the devices are not known. `devices`:
    the number of the program's devices in all processes."""
    if jax.process_count() == 1:
        return devices
    assigned = _assigned_devices(ctx)
    return None if assigned is None else _processes_of(assigned)[jax.process_index()]


def processes_of(ctx: Any) -> tuple[int, ...]:
    """The processes whose devices run this program; empty if the devices are not known."""
    if jax.process_count() == 1:
        return (0,)
    assigned = _assigned_devices(ctx)
    return () if assigned is None else tuple(sorted(_processes_of(assigned)))


def groups_of(ctx: Any, axes: Any = (), within: Any = None) -> list[list[int]]:
    """The groups of devices, as positions in `jax.devices()`, that exchange values along these axes of the region being
    lowered; without axes, all devices of the program. `within`: `axis_index_groups`. Empty if they are not known."""
    if (assigned := _assigned_devices(ctx)) is None:
        return []
    groups: Any = pxla.axis_groups(ctx.module_context.axis_context, axes) if axes else [range(len(assigned))]
    places = {device: place for place, device in enumerate(jax.devices(assigned[0].platform))}
    parts = [[group[at] for at in each] for group in groups for each in within or [range(len(group))]]
    return [[places[assigned[at]] for at in part] for part in parts]


def is_within_processes(ctx: Any, axes: tuple[Any, ...]) -> bool:
    """True if in the region being lowered devices that differ only along these axes belong to one process; False if
    the devices are not known."""
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
def _is_within_processes(mesh: jax.sharding.Mesh, axes: tuple[Any, ...]) -> bool:
    processes = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.devices)
    along = tuple(mesh.axis_names.index(axis) for axis in axes)
    return bool((processes.min(along) == processes.max(along)).all())


@functools.lru_cache(64)
def _processes_of(devices: tuple[Any, ...]) -> collections.Counter[int]:
    return collections.Counter(device.process_index for device in devices)
