"""`effects demo`: a function whose source is shown before it runs."""

from __future__ import annotations

import argparse
import inspect
import os
import textwrap
from typing import Any

import jax

import effects as fx


def _tour() -> None:
    # A loop prints, in the order of its steps. It asks Python, and waits for the answer.
    def ask(middle: Any) -> Any:
        print(f"Python is asked about {middle}")
        return middle < 5

    @fx.jit
    def guess(low: Any, high: Any) -> Any:
        def halve(bounds: Any) -> Any:
            low, high = bounds
            middle = (low + high) // 2
            is_low = fx.callback(ask, jax.ShapeDtypeStruct((), "bool"), middle)
            fx.print("{} is too low: {}", middle, is_low)
            return jax.lax.cond(is_low, lambda: (middle + 1, high), lambda: (low, middle))

        return jax.lax.while_loop(lambda bounds: bounds[0] < bounds[1], halve, (low, high))[0]

    guess(0, 8)

    # A long program on the first device, then a short one on the last: lines come in the order of the calls.
    @fx.jit
    def work(number: Any, steps: Any) -> Any:
        x = jax.lax.fori_loop(0, steps, lambda _, x: jax.numpy.sin(x) + 1, jax.numpy.zeros(4096))
        fx.print("program {} has a mean of {:.3f}", number, x.mean())

    work(*jax.device_put((1, 30_000), jax.devices()[0]))
    work(*jax.device_put((2, 1), jax.devices()[-1]))

    # A check that fails is raised where you wait for it.
    fx.jit(lambda x: fx.check(x < 2, "{} is too much", x))(2)
    try:
        fx.effects_barrier()
    except fx.CheckError as error:
        print("caught:", error.message)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`effects demo` takes none."""


def run_command(options: argparse.Namespace) -> int:
    """Prints in order through a loop and on two devices; callbacks and errors."""
    # Two CPU devices, which JAX makes until its backends are initialized.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    jax.config.update("jax_platforms", "cpu")
    source = textwrap.dedent(inspect.getsource(_tour).partition("\n")[2])
    print(source.replace(": Any", "").replace(" -> Any", ""))
    _tour()
    return 0
