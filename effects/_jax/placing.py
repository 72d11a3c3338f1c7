"""Arrays on devices: `jax._src.array`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import core, xla_bridge
from jax._src.array import ArrayImpl
from jax._src.lib import xla_client

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


def devices_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[Any]:
    """The devices on which a program runs with these arguments, if it names none itself."""
    arrays = [x for x in jax.tree.leaves((args, kwargs)) if type(x) is ArrayImpl]
    found = {device for x in arrays if x.committed for device in x.sharding.device_set}
    return found or {default_device()}


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
        try:
            return xla_client.batched_device_put(aval, self._sharding, copies, self._devices, self._committed)
        except RuntimeError as error:
            if "Disallowed host-to-device transfer" not in str(error):
                raise
            with jax.transfer_guard_host_to_device("allow"):  # it is no transfer of the user's
                return xla_client.batched_device_put(aval, self._sharding, copies, self._devices, self._committed)
