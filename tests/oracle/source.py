"""A program as Python source: what it means, and what an error shows."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from tests.oracle.counts import most_of
from tests.oracle.language import STATE, Block_, Function, Program

# Python source that every rendered program starts with; `ordered`, `unordered`, ... come from EFFECTS.
PRELUDE = """\
from itertools import count

import numpy as np

def fold(values, register):
    return (sum((j + 1) * y for j, y in enumerate(values)) + register) % 97
"""


class Source:
    """Python source under construction: lines, their indentation, and numbers for helper functions."""

    def __init__(self, functions: Sequence[Function] = ()) -> None:
        self.functions = {function.name: function.body for function in functions}
        self.lines: list[str] = []
        self.depth = 0
        self.numbers: collections.Counter[str] = collections.Counter()

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def fresh(self, stem: str) -> str:
        self.numbers[stem] += 1
        return f"{stem}_{self.numbers[stem]}"

    def function(self, name: str, body: Block_, parameters: str = STATE, result: str = STATE) -> None:
        with self.block(f"def {name}({parameters}):"):
            self.body(body)
            self.line(f"return {result}")

    def body(self, body: Block_) -> None:
        for statement in body:
            statement.python(self)

    @contextlib.contextmanager
    def alternatives(self, *bodies: Block_) -> Iterator[None]:
        """One of these follows."""
        with self.block(f"with alternatives({most_of(bodies, self.functions)!r}):"):
            yield

    def branch(self, head: str, number: int, body: Block_) -> None:
        with self.block(head), self.block(f"with branch({number}):"):
            self.body(body)


@contextlib.contextmanager
def held(out: Source, holds: bool) -> Iterator[None]:
    """If it `holds`, a block that leaves `x` as it is and has no derivative: none goes backward through a `while`."""
    if not holds:
        yield
        return
    kept = out.fresh("kept")
    out.line(f"{kept} = x")
    with out.block("with held():"):
        yield
    out.line(f"x = {kept}")


def call(out: Source, expression: str, keep: bool, differentiated: bool = True) -> None:
    """A call that gives a new state, or not; what is made of `x` in it may have no derivative."""
    if keep and differentiated:
        out.line(f"{STATE} = {expression}")
        return
    with out.block("with dropped():" if differentiated else "with held():"):
        out.line(f"{STATE} = {expression}" if keep else expression)


def render(program: Program) -> str:
    """The program as Python source: what it means, and what an error shows."""
    out = Source(program.functions)
    for function in program.functions:
        out.line(f"# {function.through}")
        out.function(function.name, function.body, f"n, {STATE}")
    with out.block("def program(n, a, b, c):"):
        out.line("x = n")
        out.body(program.body)
        out.line("return a, b, c")
    return "\n".join(out.lines) + "\n"


@functools.lru_cache(maxsize=64)
def compiled(program: Program) -> Any:
    return compile(PRELUDE + render(program), "<program>", "exec")
