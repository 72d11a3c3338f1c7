"""Running sequences on devices: what the sequential reading expects of them, and what a runner makes of them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from tests.internals import _jax
from tests.oracle.devices.language import DeviceCase, Item, MeshRun, Outside
from tests.oracle.devices.placing import DEVICES, P
from tests.oracle.devices.reading import DeviceReading
from tests.oracle.devices.statements import TALKS
from tests.oracle.host import Host, Runner
from tests.oracle.jax_ import to_jax
from tests.oracle.language import REGISTERS, Failure, Run, State
from tests.oracle.observe import Outcome, events_as_lines, failures_of, label_of_error, without_signed_zeros
from tests.oracle.rings import in_new_thread
from tests.oracle.runners import eager_effect, write_line
from tests.oracle.tokens import seen_of


def expect(
    sequence: Sequence[Item], stops: bool = False, kind: type[DeviceReading] = DeviceReading
) -> tuple[Outcome, list[tuple[str, int] | None]]:
    """What one thread's sequence should do by a reading of this kind, and of which loose region and device each line
    is. `stops`: as of `Reading`."""
    outcome, reading = Outcome(), kind(stops)
    state: tuple[int, ...] = ()
    number = 0
    for item in sequence:
        if isinstance(item, Outside):
            if item.label:
                reading.lines.append(f"{item.label} {item.value}")
            continue
        state = state if item.state is None else item.state
        if item.change:
            reading.filters.change(item.change)
        try:
            placing = item.placing if isinstance(item, MeshRun) else None
            state = reading.run(item.program, state, number, placing)
            outcome.states.append(state)
            if reading.stopped:
                outcome.stopped.append(number)
        except Failure as failure:
            outcome.states.append(str(failure))
        if item.barrier:
            outcome.at_barriers.append((number, [*reading.lines]))
        number += 1
    reading.note_places()
    outcome.lines, outcome.errors = reading.lines, reading.failures
    outcome.counts = reading.filters.counts()
    return outcome, reading.places


def _exporting(jitted: Callable[..., State], runner: Runner) -> Callable[..., State]:
    """A jitted function as a program that is exported for its first arguments, and read again."""
    made: list[Callable[..., State]] = []

    def call(*args: Any) -> State:
        if not made:
            made.append(runner.export(jitted, *args))
        return made[0](*args)

    return call


def _jitted(item: Run, runner: Runner, host: Host) -> Callable[..., State]:
    """A function of the dispatch number and the registers, which puts them where they belong."""
    if not isinstance(item, MeshRun):
        jitted = runner.jit(to_jax(item.program, runner, host))
        jitted = _exporting(jitted, runner) if item.exported else jitted
        device = None if item.device is None else jax.devices()[item.device]

        def run(number: Any, *state: Any) -> State:
            if device is None:
                return jitted(number, *state)
            if item.by_default:
                with jax.default_device(device):
                    return jitted(number, *(np.asarray(value) for value in state))
            return jitted(*jax.device_put((number, *state), device))

        return run

    placing = item.placing
    fun = to_jax(item.program, runner, host, {"@placing": placing})
    everywhere, rows = placing.shard(False, P()), placing.shard(False)

    def packed(number: Any, registers: Any) -> State:
        if placing.explicit:
            registers = placing.constrain(registers, False, P())
        return fun(number, *(registers[j] for j in range(len(REGISTERS))))

    def pack(state: State) -> Any:
        """The registers and zeros, one for each device at least."""
        size = DEVICES * math.ceil(len(REGISTERS) / DEVICES)
        return np.array([*map(int, state), *[0] * (size - len(REGISTERS))], np.int32)

    options = {"in_shardings": (everywhere, rows)} if placing.entry == "in_shardings" else {}
    jitted = runner.jit(fun if placing.entry in ("replicated", "uncommitted") else packed, **options)
    jitted = _exporting(jitted, runner) if item.exported else jitted

    def run_there(number: Any, *state: Any) -> State:
        with jax.set_mesh(placing.mesh(False)) if placing.explicit else contextlib.nullcontext():
            if placing.entry == "replicated":
                return jitted(*jax.device_put((number, *state), everywhere))
            if placing.entry == "uncommitted":
                return jitted(number, *(np.asarray(value) for value in state))
            if placing.entry == "sharded":
                return jitted(jax.device_put(number, everywhere), jax.device_put(pack(state), rows))
            return jitted(number, pack(state))

    return run_there


def _dispatch(sequence: Sequence[Item], runner: Runner, outcome: Outcome, written: io.StringIO) -> None:
    """Does what the sequence says, without waiting but where it says so, and at the end."""
    host = Host(write_line, runner.actions)
    jitted: dict[Any, Callable[..., State]] = {}
    results: list[State | str] = []
    state: State = ()

    def barrier(**options: Any) -> None:
        try:
            runner.barrier(**options)
        except runner.error as error:
            outcome.errors += [label_of_error(failure, host) for failure in failures_of(error)]

    for item in sequence:
        if isinstance(item, Outside):
            if item.kind:
                eager_effect(item.kind, item.label, item.value)
            elif item.label:
                runner.emit["ordered"](item.label, (np.int32(item.value),))
            else:
                barrier()
            continue
        state = state if item.state is None else tuple(map(np.int32, item.state))
        if item.change:
            barrier()
            in_new_thread(lambda item=item: runner.change(item.change))
        key = dataclasses.replace(item, state=None, change="", barrier="")
        if key not in jitted:
            jitted[key] = _jitted(item, runner, host)
        number = len(results)
        try:
            state = tuple(jitted[key](np.int32(number), *state))
            if isinstance(item, MeshRun) and item.placing.explicit:  # elsewhere JAX does not take what has such a type
                state = tuple(map(np.asarray, state))
            results.append(state)
        except runner.error as error:
            results.append(label_of_error(error, host))
        if item.barrier:
            barrier(effects=item.barrier)
            outcome.at_barriers.append((number, without_signed_zeros(written.getvalue().splitlines())))
    barrier()
    outcome.counts = runner.counts()
    outcome.states = [state if isinstance(state, str) else tuple(int(value) for value in state) for state in results]


Seen = tuple[list[Outcome], list[str], list[tuple[str, int]]]
"""What each thread has, all lines, and the records that were captured: text and device."""


def observe(case: DeviceCase, runner: Runner) -> Seen:
    """Runs the case."""
    outcomes = [Outcome() for _ in case.sequences]
    failed: list[BaseException] = []
    records: Any = []

    def run(number: int) -> None:
        try:
            _dispatch(case.sequences[number], runner, outcomes[number], written)
        except BaseException as error:
            failed.append(error)

    with contextlib.redirect_stdout(io.StringIO()) as written, events_as_lines(), contextlib.ExitStack() as stack:
        stack.enter_context(runner.in_case())
        import effects as fx

        settings = {"order": case.order, "after_error": case.after_error, "errors": "barrier"}
        stack.enter_context(fx.config.override(**settings))
        if len(case.sequences) > 1:
            threads = [threading.Thread(target=run, args=(number,)) for number in range(len(case.sequences))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        elif case.capture:
            with fx.capture() as captured:
                run(0)
            records = captured
            outcomes[0].tokens = [seen_of(record) for record in captured]
        else:
            run(0)
    if failed:
        raise failed[0]
    texts = without_signed_zeros(record.text.split("(", 1)[0] for record in records)
    found = [(text, record.device) for text, record in zip(texts, records, strict=True)]
    return outcomes, without_signed_zeros(written.getvalue().splitlines()), found


def jax_refuses(case: DeviceCase, runner: Runner, error: Exception) -> bool:
    """Whether JAX raises the same if nothing in the case has an effect, since types in regions are its own affair.

    JAX 0.10 unrolls scans wrongly where axes are explicit: plain JAX has the error with `jax.set_mesh`.
    """
    if jax.__version_info__ < (0, 11) and str(error).startswith("dynamic_update_slice operand sharding must be equal"):
        return True

    def nothing(*args: Any, **kwargs: Any) -> None: ...

    def callback(fn: Any, results: Any, *args: Any, **kwargs: Any) -> Any:
        zeros = lambda shape: _jax.as_per_device(jnp.zeros(shape.shape, shape.dtype))  # noqa: E731
        return None if results is None else jax.tree.map(zeros, results)

    synchronous = types.SimpleNamespace(
        async_callback=callback,
        async_start=lambda fun, *operands: fun(*operands),
        async_update=lambda future: future,
        async_done=lambda future: future,
        custom_call=lambda target, results, *args, **kwargs: callback(None, results),
        **{f"{talk}_start": getattr(jax.lax, talk) for talk in TALKS},
    )
    silent = dataclasses.replace(
        runner,
        jit=jax.jit,
        asynchronous=synchronous,
        emit=dict.fromkeys(runner.emit, nothing),
        log=nothing,
        print_grad=lambda label, x: x,
        callback=callback,
        jax_callback=lambda kind, fn, results, *args, **kwargs: callback(fn, results, *args, **kwargs),
        barrier=nothing,
        export=lambda jitted, *args: jax.export.export(jitted)(*args).call,
    )
    try:
        observe(case, silent)
    except Exception as other:
        return type(other) is type(error) and str(other).split("\n", 1)[0] == str(error).split("\n", 1)[0]
    return False
