"""`effects demo`. Each part is a function whose source is shown before it runs."""

from __future__ import annotations

import argparse
import inspect
import os
import textwrap
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

import effects as fx


def _loop() -> None:
    @fx.jit
    def count(n: Any) -> None:
        def body(i: Any, total: Any) -> Any:
            fx.print("step {}: total {}", i, total)
            return total + i

        total = jax.lax.fori_loop(0, n, body, 0)
        fx.print("done: total {}", total)

    count(4)


def _devices() -> None:
    @fx.jit
    def work(number: Any, parts: Any, steps: Any) -> Any:
        def part(i: Any, x: Any) -> Any:
            x = jax.lax.fori_loop(0, steps, lambda _, x: jax.numpy.sin(x) + 1, x)
            fx.print("program {}, part {}", number, i)
            return x

        return jax.lax.fori_loop(0, parts, part, jax.numpy.zeros(4096))

    long, short = jax.devices()[0], jax.devices()[-1]
    work(*jax.device_put((1, 3, 30_000), long))
    work(*jax.device_put((2, 2, 1), short))


def _calls() -> None:
    @fx.jit
    def guess(low: Any, high: Any) -> None:
        def ask(middle: Any) -> Any:
            print(f"Python is asked about {middle}")
            return middle < 5

        def halve(bounds: Any) -> Any:
            low, high = bounds
            middle = (low + high) // 2
            is_low = fx.callback(ask, jax.ShapeDtypeStruct((), "bool"), middle)
            fx.print("{} is {}", middle, jax.numpy.where(is_low, -1, 1))
            return jax.lax.cond(is_low, lambda: (middle + 1, high), lambda: (low, middle))

        low, _ = jax.lax.while_loop(lambda bounds: bounds[0] < bounds[1], halve, (low, high))
        fx.callback(lambda x: print(f"Python is told {x}"), None, low)

    guess(0, 8)


def _errors() -> None:
    def check(x: Any) -> None:
        if x == 2:
            raise ValueError(f"{x} is too much")

    @fx.jit
    def count(n: Any) -> None:
        jax.lax.fori_loop(0, n, lambda i, _: fx.callback(check, None, i), None)

    count(4)
    try:
        fx.effects_barrier()
    except fx.EffectError as error:
        print("caught", repr(error.__cause__))


_PARTS: tuple[tuple[str, str, Callable[[], None]], ...] = (
    (
        "A loop",
        "Every step of a compiled loop prints, in the order of the steps; the line after the loop comes last.",
        _loop,
    ),
    (
        "Two devices",
        "A long program on the first device, then a short one on the last. No call waits for the other's program; the "
        "lines still come in the order of the calls.",
        _devices,
    ),
    (
        "Callbacks",
        "A program asks Python and waits for the answer; then it tells Python something and does not wait. Prints and "
        "calls come in one order.",
        _calls,
    ),
    (
        "Errors",
        "A callback that raises does so where you wait for it, once, with its own exception as the cause.",
        _errors,
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`effects demo` takes none."""


def run_command(options: argparse.Namespace) -> int:
    """Prints in order through a loop and on two devices; callbacks and errors."""
    _ask_for_two_devices()
    console = Console(highlight=False)  # it writes to sys.stdout, as the lines do
    console.print(Text("Compiled programs print, and the lines come in the order of plain Python."))
    for number, (title, says, part) in enumerate(_PARTS, start=1):
        console.print()
        console.print(Rule(Text(f"{number}. {title}", "bold"), align="left"))
        console.print(Text(says))
        console.print()
        console.print(Text(textwrap.indent(_body_of(part), "    "), "dim"), soft_wrap=True)
        part()
        fx.effects_barrier()  # so that the lines come before this thread's text
    console.print()
    console.print(Rule(align="left"))
    console.print(Text("All in order."))
    return 0


def _ask_for_two_devices() -> None:
    """Asks for two CPU devices, which JAX heeds until its backends are initialized."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    jax.config.update("jax_platforms", "cpu")


def _body_of(part: Callable[[], None]) -> str:
    """The source of a part without its first line and without annotations, which it has for our sake."""
    body = inspect.getsource(part).partition("\n")[2]
    return textwrap.dedent(body).replace(": Any", "").replace(" -> Any", "").replace(" -> None", "")
