"""Rounds of operations that are interrupted, in a process of their own, which says how it fares."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import logging
import random
import sys
from typing import Any

from tests.storm.interrupts import Interrupts

ROUND = 100
"""How many interrupts a round has, at least."""

STUCK_AFTER = 60.0
"""Seconds after which a round hangs."""


def make_operations(control: bool, devices: int) -> Any:
    if control:
        from tests.storm.control import Control

        return Control(devices)
    from tests.storm.operations import Operations

    return Operations(devices)


def run(control: bool, devices: int, count: int, seed: int) -> None:
    """Interrupts so many times. Writes, as one line of JSON after each round, how far it is."""
    report = sys.stdout
    logging.getLogger("effects").addHandler(logging.NullHandler())  # what fails is counted
    # An interrupt while JAX collects garbage is lost, as in plain JAX. No Python, lest that be interrupted too.
    sys.unraisablehook = collections.deque(maxlen=0).append
    operations = make_operations(control, devices)
    interrupts, chance = Interrupts(seed), random.Random(seed)
    number = returned = 0

    def attempt() -> None:
        nonlocal number, returned
        number += 1
        act, note = operations.choose(number, chance)
        outcome = interrupts.attempt(act)
        note(outcome)
        returned += outcome.returned

    def play_round(last: int, least: int) -> None:
        faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
        operations.begin()
        with contextlib.redirect_stdout(getattr(operations, "out", report)):
            end = number + least
            while interrupts.count < last or number < end:
                attempt()
            interrupts.stop()
            operations.end()

    play_round(0, 100)  # all programs are compiled
    while interrupts.count < count:
        interrupts.start()
        play_round(min(interrupts.count + ROUND, count), 0)
        print(json.dumps({"interrupts": interrupts.count, "operations": number, "returned": returned}), flush=True)
    faulthandler.cancel_dump_traceback_later()
