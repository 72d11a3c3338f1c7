"""Programs of `fx.jit` and those that JAX dispatches by itself, where they wait for each other's places in the order.

A record of a program that JAX dispatched comes after the programs of `fx.jit` that were dispatched before it was
published, since it is not known when its own was. If one of these waits for that very program, neither goes on: say it
takes what another thread has asked for, and that waits for a callback. Which waits for which cannot be known. So when
nothing has been computed for a while, such records pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import jax

from effects._api.log import LOGGER
from effects.lowering.native_module import native

MSG_PASSED = (
    "Effects of a program of `jax.jit` come ahead of programs of `fx.jit` that were called before: nothing had been "
    "computed for {seconds:g} seconds, and they waited for each other. The order of `jax.jit` beside `fx.jit` is that "
    "in which programs run, and a program that waits for a callback of another thread's runs late. Write `fx.jit` in "
    "both places, or wait for the one program before you call the other."
)

_PATIENCE = 8.0
"""Seconds for which nothing must have been computed. XLA aborts the process after 40."""

_IDLE = 0.1
"""The share of a processor's time below which nothing is computed."""


class Stall:
    """What was seen of records that are held up. The leader of the drain looks now and then."""

    def __init__(self, computed: Callable[[], float]) -> None:
        self._computed = computed
        self._since: tuple[float, float] | None = None  # when it was first seen, and what had been computed by then
        self._told = False

    def look(self, running: Mapping[int, Any]) -> None:
        """Lets records pass that are held up for good. `running`: functions of the user's."""
        if running or not native.is_untracked_held_up() or jax.default_backend() != "cpu":
            self._since = None
            return
        now, computed = monotonic(), self._computed()
        since, before = self._since or (now, computed)
        if computed - before > _IDLE * (now - since) + 0.01:
            since, before = now, computed
        self._since = since, before
        if now - since >= _PATIENCE and jax.process_count() == 1:
            self._since = None
            native.let_untracked_pass()
            LOGGER.log(logging.DEBUG if self._told else logging.WARNING, MSG_PASSED.format(seconds=_PATIENCE))
            self._told = True
