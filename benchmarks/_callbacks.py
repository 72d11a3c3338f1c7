"""What a call of Python costs inside a compiled loop, and a log record, and a large operand sent to the host."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import effects as fx
from benchmarks._build import library
from benchmarks._cases import Result, case
from benchmarks._measure import everywhere, interleave, jax_has_order, per, timed
from benchmarks._ratios import Ratio, cost, gain

STEPS = 1000
EVENTS = 10_000  # a record is so cheap that a thousand of them are measured with the call's own cost
LARGE = 256 << 20
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


class _Counted:
    """Calls of a function, and a check that there were as many as there should have been."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return x

    def expect(self, count: int) -> None:
        if self.count != count:
            raise AssertionError(f"{self.count} calls came, {count} should have. The measurement is void.")
        self.count = 0


def _loop(step: Callable[[Any, Any], Any], steps: int = STEPS) -> Callable[[Any], Any]:
    return lambda x: jax.lax.fori_loop(0, steps, step, x)


def _measuring(
    run: Callable[[Any], Any], barrier: Callable[[], None], check: Callable[[], None]
) -> Callable[[], float]:
    """Until the result is there, and all that the program asked of the host is done."""
    x = everywhere(jnp.float32(0))
    settle = jax.jit(lambda x: x + 1)
    settle(x).block_until_ready()

    def program() -> None:
        run(x).block_until_ready()
        barrier()

    def measure() -> float:
        seconds = timed(program)
        check()
        settle(x).block_until_ready()  # JAX frees arrays that were dropped in its next call, in another case's time
        return seconds

    return measure


def _against_io_callback(
    ours: Callable[[Any, Any], Any], jaxs: Callable[[Any, Any], Any], calls: _Counted, at_least: float, repeats: int
) -> Result:
    def check() -> None:
        calls.expect(STEPS)

    contenders = {
        "fx.callback": _measuring(fx.jit(_loop(ours)), fx.effects_barrier, check),
        "io_callback": _measuring(jax.jit(_loop(jaxs)), jax.effects_barrier, check),
    }
    figures = interleave(contenders, repeats)
    label = f"io_callback(ordered={jax_has_order()}) / fx.callback"
    ratio = gain(label, figures["io_callback"], figures["fx.callback"], at_least)
    return Result("step", [ratio], per(figures, STEPS))


@case("sync", f"an ordered callback whose result the program waits for, in fori_loop({STEPS:,})", "quick")
def sync(repeats: int) -> Result:
    """The device waits for its turn and for the function.

    Each contender's loop runs in one thread, ours in the drain's and JAX's in the caller's. So they may be on different
    processors, and if these are not equally fast (those of a virtual machine have neighbours), the ratio says that too.
    A process that is pinned to one processor (`taskset -c 0`) has the two on the same.
    """
    calls = _Counted()
    return _against_io_callback(
        lambda i, x: fx.callback(calls, SCALAR, x),
        lambda i, x: io_callback(calls, SCALAR, x, ordered=jax_has_order()),
        calls,
        10,
        repeats,
    )


@case("queued", f"an ordered callback without results, in fori_loop({STEPS:,}), until all have run", "quick")
def queued(repeats: int) -> Result:
    """The device waits for nothing."""
    calls = _Counted()

    def without_result(x: Any) -> None:
        calls(x)

    def ours(i: Any, x: Any) -> Any:
        fx.callback(without_result, None, x)
        return x + 1

    def jaxs(i: Any, x: Any) -> Any:
        io_callback(without_result, None, x, ordered=jax_has_order())
        return x + 1

    return _against_io_callback(ours, jaxs, calls, 20, repeats)


@case(
    "functions",
    f"a callback that returns what functions return, in fori_loop({STEPS:,}), and one that returns what it got",
)
def functions(repeats: int) -> Result:
    """Less what the function takes by itself: what is left is the way to the function and back."""
    vector, mebibyte = (jax.ShapeDtypeStruct((size,), jnp.float32) for size in (1 << 10, 1 << 18))
    on_device = jnp.float32(2)
    real: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "what it got": (SCALAR, lambda x: x),
        "np.float32(x + 1)": (SCALAR, lambda x: np.float32(x + 1)),
        "a number of Python's": (SCALAR, lambda x: float(x) + 1),
        "a tuple": ((SCALAR, SCALAR), lambda x: (x, x)),
        "a dictionary": ({"x": SCALAR, "twice": SCALAR}, lambda x: {"x": x, "twice": 2.0}),
        "an array of JAX's": (SCALAR, lambda x: on_device),
        "4 KiB that it got": (vector, lambda x: x),
        "4 KiB": (vector, lambda x: np.add(x, 1)),
        "4 KiB twice": ((vector, vector), lambda x: (x, x)),
        "1 MiB that it got": (mebibyte, lambda x: x),
        "1 MiB": (mebibyte, lambda x: np.add(x, 1)),
    }
    contenders = {}
    for name, (types, fn) in real.items():
        first = jax.tree.leaves(types)[0]

        def step(_: Any, x: Any, fn: Any = fn, types: Any = types) -> Any:
            return jax.tree.leaves(fx.callback(fn, types, x))[0]

        run, x = fx.jit(_loop(step)), jnp.zeros(first.shape, first.dtype)
        host = np.asarray(x)[()]
        contenders[name] = lambda run=run, x=x: timed(lambda: run(x).block_until_ready()) / STEPS
        contenders[f"{name}: alone"] = lambda fn=fn, host=host: timed(lambda: fn(host), STEPS)
    figures = interleave(contenders, repeats)
    ratios = []
    for name in real:
        base = figures[next((base for base in real if base[0] == name[0] != "a"), "what it got")]
        rounds = zip(figures[name].rounds, figures[f"{name}: alone"].rounds, base.rounds, strict=True)
        ratios.append(Ratio(f"{name} / what it got", tuple((x - alone) / got for x, alone, got in rounds), "less", 1.3))
    return Result("step", ratios, figures)


def _three(i: Any, x: Any) -> Any:
    fx.log("step", x=x, i=i, twice=2 * x)
    return x + 1


@case("log", f"an event with three scalars in fori_loop({EVENTS:,}), until all is in memory on the host")
def log(repeats: int) -> Result:
    """Into the in-memory handler, its columns read out; and a callback that appends to a list."""
    handler = fx.ListHandler()
    appended: list[Any] = []

    def jaxs(i: Any, x: Any) -> Any:
        jax.debug.callback(lambda *values: appended.append(values), x, i, 2 * x)
        return x + 1

    def read_columns() -> None:
        fx.effects_barrier()
        handler.columns("step")

    def check_ours() -> None:
        columns = handler.columns("step")
        if columns["i"].tolist() != list(range(EVENTS)) or columns["twice"][-1] != 2 * (EVENTS - 1):
            raise AssertionError("Not all events came as they should. The measurement is void.")
        handler.clear()

    def check_jaxs() -> None:
        if len(appended) != EVENTS:
            raise AssertionError("Not all calls came. The measurement is void.")
        appended.clear()

    with fx.add_handler(handler, effects="log"):
        contenders = {
            "fx.log": _measuring(fx.jit(_loop(_three, EVENTS)), read_columns, check_ours),
            "jax.debug.callback": _measuring(jax.jit(_loop(jaxs, EVENTS)), jax.effects_barrier, check_jaxs),
        }
        figures = interleave(contenders, repeats)
    ratio = gain("jax.debug.callback / fx.log", figures["jax.debug.callback"], figures["fx.log"], at_least=100)
    return Result("step", [ratio], per(figures, EVENTS))


@case("files", f"an event with three scalars in fori_loop({EVENTS:,}), until all are lines of JSON")
def files(repeats: int) -> Result:
    """And a callback that writes lines of JSON by itself, which say less."""
    with tempfile.TemporaryDirectory() as folder:
        contenders = {
            "fx.JsonLinesHandler": _into_file(lambda: fx.JsonLinesHandler(Path(folder, "json")), Path(folder, "json")),
            "jax.debug.callback": _jax_into_file(Path(folder, "jax")),
        }
        figures = interleave(contenders, repeats)
    jaxs, name = figures["jax.debug.callback"], "fx.JsonLinesHandler"
    ratio = gain(f"jax.debug.callback / {name}", jaxs, figures[name], at_least=50)
    return Result("step", [ratio], per(figures, EVENTS))


def _into_file(make: Callable[[], Any], path: Path) -> Callable[[], float]:
    """Until the events are in a file of a handler."""
    run, x = fx.jit(_loop(_three, EVENTS)), jnp.float32(0)

    def program() -> None:
        run(x).block_until_ready()
        fx.effects_barrier()

    def measure() -> float:
        with fx.add_handler(make(), effects="log"):
            seconds = timed(program)
        _check_lines(path, EVENTS)
        return seconds

    return measure


def _jax_into_file(path: Path) -> Callable[[], float]:
    def step(i: Any, x: Any) -> Any:
        jax.debug.callback(write, x, i, 2 * x, ordered=True)
        return x + 1

    def write(x: Any, i: Any, twice: Any) -> None:
        file.write(json.dumps({"event": "step", "x": float(x), "i": int(i), "twice": float(twice)}) + "\n")

    run, x = jax.jit(_loop(step, EVENTS)), jnp.float32(0)
    file = open(path, "w")  # noqa: SIM115 - it is written for as long as it is measured

    def program() -> None:
        run(x).block_until_ready()
        jax.effects_barrier()
        file.flush()

    def measure() -> float:
        file.truncate(0)
        file.seek(0)
        seconds = timed(program)
        _check_lines(path, EVENTS)
        return seconds

    return measure


def _check_lines(path: Path, count: int) -> None:
    if path.read_bytes().count(b"\n") != count:
        raise AssertionError("Not all lines are there. The measurement is void.")


@case("operand", f"a callback with an operand of {LARGE >> 20} MiB, and a copy of as much into warm memory")
def operand(repeats: int) -> Result:
    """From the call to the end of the callback, which looks at the last value; from the third call on."""
    x = jnp.ones(LARGE // 4, jnp.float32).block_until_ready()
    host = np.asarray(x)
    seen: list[float] = []
    program = fx.jit(lambda x: fx.callback(lambda x: seen.append(float(x[-1])), None, x))

    def call() -> None:
        program(x)
        fx.effects_barrier()

    def measure() -> float:
        seconds = timed(call)
        if seen != [1.0]:
            raise AssertionError("The operand did not come. The measurement is void.")
        seen.clear()
        return seconds

    warm = np.ones_like(host)
    for _ in range(2):
        measure()
    figures = interleave({"fx.callback": measure, "a copy": lambda: timed(lambda: np.copyto(warm, host))}, repeats)
    ratio = cost("fx.callback / a copy", figures["fx.callback"], figures["a copy"], at_most=1.3)
    return Result("call", [ratio], figures)


@case(
    "result", f"a callback with a result of {LARGE >> 20} MiB, and a handler of XLA's that copies as much", on_cpus=True
)
def result(repeats: int) -> Result:
    """From the call until the result is there."""
    host = np.ones(LARGE // 4, np.float32)
    shape = jax.ShapeDtypeStruct(host.shape, host.dtype)
    handler = library(Path(__file__).with_name("copy_handler.cc")).copy_from_host
    jax.ffi.register_ffi_target("benchmark.copy_from_host", jax.ffi.pycapsule(handler), platform="cpu")
    address = np.int64(host.ctypes.data)
    programs = {
        "fx.callback": fx.jit(lambda: fx.callback(lambda: host, shape)),
        "a handler": jax.jit(lambda: jax.ffi.ffi_call("benchmark.copy_from_host", shape)(address=address)),
    }

    def measuring(run: Callable[[], Any]) -> Callable[[], float]:
        assert run()[-1] == 1
        return lambda: timed(lambda: run().block_until_ready())

    figures = interleave({name: measuring(run) for name, run in programs.items()}, repeats)
    ratio = cost("fx.callback / a handler", figures["fx.callback"], figures["a handler"], at_most=1.3)
    return Result("call", [ratio], figures)
