"""Devices as records have them: a number, by which handlers know a device, and its place in `jax.devices()`.

XLA numbers CPUs over all processes, and GPUs within each. The numbers of GPUs begin where no CPU's are.
"""

from __future__ import annotations

from typing import Any

from effects import _jax
from effects._model.platform import PLATFORMS


def device_number(device: Any) -> int:
    """The number that records have for a device of this process."""
    platform = _jax.platform_of(device)
    row = PLATFORMS.get(platform)
    if row is None or row.first_device == 0:
        return device.id
    return row.first_device + (device.id if platform == "cpu" else device.local_hardware_id)


def device_place(number: int) -> int:
    """The place of the device with this number among those of its platform; -1 for all of a program's."""
    gpus = PLATFORMS["cuda"]
    first, platform = (gpus.first_device, gpus.name) if number >= gpus.first_device else (0, "cpu")
    return _jax.device_places(platform).get(number - first, number - first)


def places_are_plain() -> bool:
    """Whether places follow from numbers alone, so that native code may show them."""
    return not any(_jax.device_places(platform) for platform in ("cpu", "cuda"))
