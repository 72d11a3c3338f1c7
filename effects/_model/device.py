"""Devices as records have them: a number, by which handlers know a device, and its place in `jax.devices()`.

XLA numbers CPUs over all processes, and GPUs within each. The numbers of GPUs begin where no CPU's are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from effects import _jax
from effects._model.wire import FIRST_GPU

# The capabilities of each platform: a row for each that differs from the default.


class Platform(NamedTuple):
    """A platform of JAX's.

    Attributes:
        name: As JAX calls it.
        records: Who publishes records: `"native"`, handlers of the native module (`lowering/effect.py`), or
            `"callback"`, JAX's Python callbacks (`lowering/host_path.py`).
        handlers: XLA's name of the platform, for user handlers; None if there can be none. JAX must know the
            platform, since rules are registered for it when extensions are loaded.
        tokens_on_host: True if native code reads and writes tokens and values in place. Then the handlers do the
            counting, and exchange the operands of asynchronous collectives.
        in_order: True if a device runs programs in the order in which it gets them.
        is_usable: Returns True if handlers can be called there in this process; None if they always can.
        first_device: The number of its first device in records.
    """

    name: str
    records: str
    handlers: str | None
    tokens_on_host: bool
    in_order: bool = True
    is_usable: Callable[[], bool] | None = None
    first_device: int = 0


PLATFORMS = {
    row.name: row
    for row in (
        Platform("cpu", "native", "cpu", True, in_order=False),
        Platform("cuda", "callback", "CUDA", False, first_device=FIRST_GPU),  # `extensions/cuda` has handlers for it
        Platform("rocm", "callback", "ROCM", False),
        Platform("tpu", "callback", None, False),
    )
}
"""By name. Records of a platform without a row are published by callbacks."""


def publish_natively(platform: str, is_usable: Callable[[], bool]) -> None:
    """Declares that handlers of the native module publish the records of a platform; `is_usable` as for `Platform`."""
    PLATFORMS[platform] = PLATFORMS[platform]._replace(records="native", is_usable=is_usable)


def platforms_with_handlers() -> tuple[str, ...]:
    """The platforms where user handlers may run."""
    return tuple(row.name for row in PLATFORMS.values() if row.handlers is not None)


def publishes_natively(device: Any) -> bool:
    """True if handlers publish the records of a device of this process."""
    row = PLATFORMS.get(_jax.platform_of(device))
    return row is not None and row.records == "native" and (row.is_usable is None or row.is_usable())


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
    """True if the place of each device follows from its number alone, so that native code may show places."""
    return not any(_jax.device_places(platform) for platform in ("cpu", "cuda"))
