"""Random programs with planted NaN: `fx.watch` finds the equation that an interpreter finds, and none where none is."""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from effects import _jax
from tests.extensions.watching.reading import Bad, read
from tests.helpers import meet_barrier
from tests.oracle.expressions import Name
from tests.oracle.generator import Generator
from tests.oracle.host import Host
from tests.oracle.jax_ import remainder, to_jax
from tests.oracle.language import REGISTERS
from tests.oracle.place import RandomDraw
from tests.oracle.runners import library
from tests.oracle.statements.derivatives import Scale


@dataclasses.dataclass(frozen=True)
class Planted(Scale):
    """What scales `x`, and makes it NaN for some values of a register."""

    bad: int = 0

    def jax(self, scope: Any, state: Any) -> Any:
        *registers, x = super().jax(scope, state)
        number = lax.convert_element_type(remainder(self.shift, 5, scope, state), np.float32)
        return (*registers, x + 0 * jnp.sqrt(number - self.bad))


def _planted(tree: Any, draw: random.Random) -> Any:
    """A program with faults among its statements."""
    if isinstance(tree, tuple):
        parts = [_planted(part, draw) for part in tree]
        if any(hasattr(part, "kinds") for part in parts) and draw.random() < 0.4:
            fault = Planted((1, 2), Name("b"), Name(draw.choice(REGISTERS)), draw.choice((0, 2, 3)))
            parts.insert(draw.randint(0, len(parts)), fault)
        return tuple(parts)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        parts = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree) if field.init}
        return dataclasses.replace(tree, **{name: _planted(part, draw) for name, part in parts.items()})
    return tree


def _check(seed: int, plants: bool) -> bool:
    """Compares one program with its reading. Returns whether it has a bad value."""
    draw = random.Random(seed)
    program = Generator(RandomDraw(draw), "A", frozenset({"vmap", "grad"}), "none").program(draw.choice((6, 10, 16)))
    program = _planted(program, draw) if plants else program
    f = to_jax(program, library(), Host(lambda _: None, {}))
    args = tuple(np.int32(draw.randrange(97)) for _ in range(4))
    jaxpr = _jax.without_dead_code(jax.make_jaxpr(f)(*args))
    expected: Any = None
    found: Any = None
    with fx.capture(suppress=True):
        try:
            read(jaxpr, [*jax.make_jaxpr(f)(*args).consts, *args])
        except Bad as bad:
            expected = bad.args
        try:
            fx.jit(fx.watch(f))(*args)
            meet_barrier()
        except fx.NonFinite as error:
            found = error.operation, error.where, error.iteration
    assert found == expected, (seed, found, expected)
    return expected is not None


@pytest.mark.parametrize("first", range(0, 12, 6))
def test_planted_faults_are_found_in_random_programs(first):
    """Whatever is nested in whatever, the first bad value is that of a reading equation by equation."""
    for seed in range(first, first + 6):
        _check(seed, plants=True)


def test_random_programs_without_faults_raise_nothing():
    """There is no false alarm."""
    assert not any(_check(seed, plants=False) for seed in range(1000, 1006))


if __name__ == "__main__":  # python -m tests.extensions.watching.test_random FIRST LAST
    faults = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            faults += _check(number, plants=number % 3 > 0)
        except Exception as failure:
            print(number, type(failure).__name__, str(failure)[:600], flush=True)
    print("faults", faults)
