"""Random programs with planted NaN: `fx.watch` must find the equation that a reading equation by equation finds."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import effects as fx
from effects import _jax
from tests.oracle.compare import describe, run_and_compare
from tests.oracle.expressions import Name
from tests.oracle.generator import Generator
from tests.oracle.host import Host
from tests.oracle.jax_ import remainder, to_jax
from tests.oracle.language import MODULUS, REGISTERS, Case, Run, State
from tests.oracle.observe import Outcome
from tests.oracle.place import RandomDraw
from tests.oracle.runners import library
from tests.oracle.statements.derivatives import Scale
from tests.oracle.watching import arrays
from tests.oracle.watching.reading import Bad, read

if TYPE_CHECKING:
    from tests.oracle.jax_ import Scope
    from tests.oracle.source import Source


@dataclass(frozen=True)
class Planted(Scale):
    """What scales `x`, and makes it NaN for some values of a register."""

    bad: int = 0

    def kinds(self) -> tuple[str, ...]:
        return ("planted",)

    def python(self, out: Source) -> None:
        super().python(out)
        out.line(f"x += 0 * sqrt(({self.shift.python()}) % 5 - {self.bad})")

    def jax(self, scope: Scope, state: State) -> State:
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


def case_number(seed: int, number: int) -> Case:
    """Case `number` of the bulk run with `seed`: one program. Two of three have faults planted."""
    draw = random.Random(f"watch:{seed}:{number}")
    program = Generator(RandomDraw(draw), "A", frozenset({"vmap", "grad"}), "none").program(draw.choice((6, 10, 16)))
    program = _planted(program, draw) if number % 3 else program
    return Case((Run(program, tuple(draw.randrange(MODULUS) for _ in REGISTERS)),))


def check_arrays(number: int) -> list[str]:
    """Checks a program on arrays of all types."""
    f, x = arrays.program(random.Random(number))
    return _compare(f, (x,), lambda: f"check_arrays({number}), of {x.dtype}")


def check_lanes(number: int) -> list[str]:
    """Checks a program on arrays under `vmap`: what is found is what the reading finds in the first lane with a bad
    value."""
    f, x = arrays.program(random.Random(number))
    xs = jnp.stack([jnp.roll(x, shift) for shift in range(arrays.SIZE)])
    in_lanes = ([f"{each} in lane ({lane},)" for each in _read(f, (x,))] for lane, x in enumerate(xs))
    expected = next(filter(None, in_lanes), [])
    return _watch(jax.vmap(fx.watch(f)), (xs,), expected, lambda: f"check_lanes({number}), of {x.dtype}")


def check(case: Case) -> list[Outcome]:
    """Raises an AssertionError if `fx.watch` finds something else than the reading, or something where there is
    nothing.

    Returns:
      What was expected: an error for the first bad value.
    """
    [run] = case.runs
    number = zlib.crc32(describe(case).encode())
    (check_arrays, check_lanes)[number % 2](number)
    f, args = to_jax(run.program, library(), Host(lambda _: None, {})), tuple(map(np.int32, (0, *(run.state or ()))))
    return [Outcome(errors=_compare(f, args, lambda: describe(case)))]


def _compare(f: Any, args: tuple[Any, ...], describe: Callable[[], str]) -> list[str]:
    """What a reading finds, which is what `fx.watch` must find."""
    return _watch(fx.watch(f), args, _read(f, args), describe)


def _read(f: Any, args: tuple[Any, ...]) -> list[str]:
    traced = jax.make_jaxpr(f)(*args)
    with fx.capture(suppress=True):
        try:
            read(_jax.without_dead_code(traced), [*traced.consts, *args])
        except Bad as bad:
            return [str(bad)]
    return []


def _watch(watched: Any, args: tuple[Any, ...], expected: list[str], describe: Callable[[], str]) -> list[str]:
    """Raises an AssertionError if a watched function finds something else than what is expected."""

    def watch() -> list[str]:
        with fx.capture(suppress=True):
            try:
                fx.jit(watched)(*args)
                fx.effects_barrier()
            except fx.NonFinite as error:
                lane = f" in lane {error.lane}" * bool(error.lane)
                return [f"{Bad(error.operation, error.where, error.iteration)}{lane}"]
        return []

    def compare(found: list[str]) -> list[str]:
        return [] if found == expected else [f"expected {expected}, found {found}"]

    run_and_compare(library(), watch, compare, describe)
    return expected
