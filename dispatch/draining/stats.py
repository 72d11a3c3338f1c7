"""`fx.stats`."""

from __future__ import annotations

from effects.lowering.native_module import native


def stats() -> dict[str, int]:
    """Counts since the process started.

    Returns:
        `published`: records that devices published; `released`: those that left in order; `dropped`: lost because a
        ring was full; `discarded`: other devices' copies of the same record, and what came of a program that had
        failed before. After a barrier of all threads, `published` is the sum of these three. `cancelled`: callbacks
        that did not run because their program had failed; `waited`: times a device waited for room; `bytes`: published,
        headers included; `high_water`: the most bytes that one ring held.

    Example:
        >>> import effects as fx
        >>> sorted(fx.stats())
        ['bytes', 'cancelled', 'discarded', 'dropped', 'high_water', 'published', 'released', 'waited']
    """
    return native.stats()
