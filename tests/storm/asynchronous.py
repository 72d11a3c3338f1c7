"""Runs of random mixtures under a watchdog: what they show, return and raise is compared with a sequential reading.

In each run one thread, or two at a time, calls a few programs over all devices. Some calls fail: a function raises on
one device, or a handler does. In some runs a handler does not answer until a barrier has given up.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import itertools
import json
import logging
import random
import shutil
import sys
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx
from tests.helpers import build_gate, build_handlers
from tests.storm.mixtures import DEVICES, HANDLED, MODULUS, NOBODY, Failed, Mixture, Read, failure, read

STUCK_AFTER = 120.0
"""Seconds after which a run hangs."""

RUNS_OF_A_POOL = 25
"""Runs for which programs are kept, since most of the time goes into compiling them."""

POOL = 4
"""How many programs there are at a time."""

ONE = jax.ShapeDtypeStruct((), np.int32)


class Call(NamedTuple):
    """A call that is to come: of which program, under which number, and what fails in it."""

    mixture: Mixture
    number: int
    fails: int
    x: np.ndarray


def run(count: int, seed: int) -> None:
    """Plays so many runs. Writes, as one line of JSON now and then, how far it is."""
    report = sys.stdout
    logging.getLogger("effects").addHandler(logging.NullHandler())  # what fails is compared
    chance, far = random.Random(seed), {"runs": 0, "calls": 0, "failed": 0, "lines": 0, "held": 0}
    storm = Storm(chance, far)
    while far["runs"] < count:
        faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
        if far["runs"] % RUNS_OF_A_POOL == 0:
            storm.renew()
        storm.play()
        far["runs"] += 1
        print(json.dumps(far), file=report, flush=True)
    faulthandler.cancel_dump_traceback_later()


class Storm:
    """What a run is made of. `far` counts."""

    def __init__(self, chance: random.Random, far: dict[str, int]) -> None:
        self._chance, self._far = chance, far
        self._numbers, self._gates = itertools.count(1), itertools.count(1)
        self._has_handlers = shutil.which("g++") is not None
        if self._has_handlers:
            self._gate = ctypes.CDLL(str(build_gate()))
            fx.register_custom_call("storm.never", (self._gate, "GateWait"))
            fx.register_custom_call("storm.fail_at", (ctypes.CDLL(str(build_handlers())), "fail_at"))
        self._pool: list[Mixture] = []

    def renew(self) -> None:
        """Other programs from now on."""
        jax.clear_caches()
        self._pool = [Mixture(self._chance, self._has_handlers) for _ in range(POOL)]

    def play(self) -> None:
        """One run, in one thread or two."""
        plans = [self._plan() for _ in range(self._chance.choice([1, 1, 2]))]
        held = self._has_handlers and self._chance.random() < 0.05
        out, errors = io.StringIO(), []

        def play(calls: list[Call]) -> None:
            try:
                for call in calls:
                    self._play(call)
                fx.effects_barrier(timeout=STUCK_AFTER / 2)
            except BaseException as error:
                error.add_note(f"after {[(call.number, call.fails) for call in calls]} of\n{calls[-1].mixture}")
                errors.append(error)

        with contextlib.redirect_stdout(out):
            threads = [threading.Thread(target=play, args=(calls,)) for calls in plans[1:]]
            for thread in threads:
                thread.start()
            play(plans[0])
            for thread in threads:
                thread.join()
            if held:
                self._hold()
        if errors:
            raise errors[0]
        lines = out.getvalue().splitlines()
        for calls in plans:
            self._compare(calls, lines)
        self._far["lines"] += len(lines)

    def _plan(self) -> list[Call]:
        return [self._call() for _ in range(self._chance.randint(1, 4))]

    def _call(self) -> Call:
        mixture, fails = self._chance.choice(self._pool), NOBODY
        if mixture.failing and self._chance.random() < 0.3:
            fails = failure(self._chance.choice(mixture.failing), self._chance.randrange(DEVICES))
        x = np.array([self._chance.randrange(MODULUS) for _ in range(DEVICES * DEVICES)], np.int32)
        return Call(mixture, next(self._numbers), fails, x)

    def _play(self, call: Call) -> None:
        """Makes a call, and compares what it returns or raises."""
        reading, ended = _read(call)
        self._far["calls"] += 1
        fails = ended is not None or _in_handler(call)
        try:
            result = call.mixture.call(call.x, np.int32(call.number), np.int32(call.fails))
            if fails:
                fx.effects_barrier(timeout=STUCK_AFTER / 2)
            np.testing.assert_array_equal(np.asarray(result).reshape(DEVICES, DEVICES), reading.x)
        except fx.EffectError as error:
            told = [*_leaves(error)]
            assert told and fails, (call, told)
            if ended is not None:
                assert [each.__cause__.args for each in told if isinstance(each.__cause__, Failed)] == [ended.args], (
                    told
                )
            else:
                assert [each for each in told if isinstance(each, fx.CustomCallError)], told
            self._far["failed"] += 1
            return
        assert not fails, f"a call that must fail raised nothing: {call}"

    def _compare(self, calls: list[Call], lines: list[str]) -> None:
        """Compares the lines of a thread's calls. Where a handler fails, other devices go on as far as they come."""
        numbers, expected = {str(call.number) for call in calls}, []
        shown = [line for line in lines if line.split()[0] in numbers]
        for call in calls:
            reading, _ = _read(call)
            if not _in_handler(call):
                expected += reading.lines
                continue
            here = [line for line in shown if line.split()[0] == str(call.number)]
            rest = iter(reading.lines)
            assert all(line in rest for line in here), (call, here, reading.lines)
            expected += here
        assert shown == expected, "\n".join(["what was shown:", *shown, "and must have been:", *expected, repr(calls)])

    def _hold(self) -> None:
        """A handler that does not answer is named by the barrier that gives up, and what follows comes after it."""
        number = next(self._gates)

        @fx.jit
        def held(x: Any) -> Any:
            square = jnp.ones((128, 128)) @ (jnp.ones((128, 128)) * x)  # lest XLA runs it in this thread
            x = x + (0 * square[0, 0]).astype(np.int32)
            return fx.custom_call("storm.never", ONE, x, effect=HANDLED, gate=number, fails=np.bool_(False))

        try:
            result = held(np.int32(number))
            try:
                fx.effects_barrier(timeout=0.01)
            except fx.BarrierTimeout as error:
                assert f"`storm.never` at {__file__}:" in str(error), error
            else:
                raise AssertionError("the barrier has not waited for a handler")
        finally:
            self._gate.OpenGate(ctypes.c_int64(number))
        assert int(result) == number
        fx.effects_barrier(timeout=STUCK_AFTER / 2)
        self._far["held"] += 1


def _read(call: Call) -> tuple[Read, Failed | None]:
    """What the program does until its end, or until a function raises."""
    reading = Read(call.x.reshape(DEVICES, DEVICES).astype(np.int64), call.number, call.fails)
    try:
        read(call.mixture.statements, reading)
    except Failed as failed:
        return reading, failed
    return reading, None


def _in_handler(call: Call) -> bool:
    return call.fails != NOBODY and call.fails // DEVICES in call.mixture.handlers


def _leaves(error: BaseException) -> Any:
    yield from error.failures if isinstance(error, fx.EffectError) else (error,)
