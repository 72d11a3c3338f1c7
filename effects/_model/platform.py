"""What each platform can do: a row for each that is not like all others."""

from __future__ import annotations

from typing import NamedTuple


class Platform(NamedTuple):
    """A platform of JAX's.

    Attributes:
        name: As JAX calls it.
        records: The module of `lowering/emit/` that publishes records: `"native"`, from the device by handlers of the
            native module, or `"callback"`, from the host by JAX's Python callbacks.
        handlers: What XLA calls it for handlers of the user's; None where there can be none.
        tokens_on_host: Whether native code reads tokens where they lie, so that a custom call knows its place.
    """

    name: str
    records: str
    handlers: str | None
    tokens_on_host: bool


PLATFORMS = {
    row.name: row
    for row in (
        Platform("cpu", "native", "cpu", True),
        Platform("cuda", "callback", "CUDA", False),
        Platform("rocm", "callback", "ROCM", False),
        Platform("tpu", "callback", None, False),
    )
}
"""By name. Records of a platform without a row are published by callbacks."""


def platforms_with(records: str) -> tuple[str, ...]:
    """The platforms whose records this module of `lowering/emit/` publishes."""
    return tuple(row.name for row in PLATFORMS.values() if row.records == records)


def platforms_with_handlers() -> tuple[str, ...]:
    """The platforms where handlers of the user's may run."""
    return tuple(row.name for row in PLATFORMS.values() if row.handlers is not None)
