"""The schedule that XLA made of a program: its compiled text, read in the order in which it runs.

The tickets of asynchronous operations are followed through tuples, loops and branches, so that it is known which
instructions are between a start and its done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from effects._model.wire import AFTER_TARGET, BEGIN_TARGET, KEEP_TARGET, POST_TARGET
from effects.dispatch.calling.compiled_text import CompiledText, Copy, Instruction, copy_of
from effects.lowering.passes.flights import Path, exclude

_STARTS = (BEGIN_TARGET, KEEP_TARGET, POST_TARGET)
_NOTHING: frozenset[int] = frozenset()


class _Time(NamedTuple):
    number: int
    path: Path


@dataclasses.dataclass
class Interval:
    """A started operation: where its start stands, and when it and each call that takes its ticket come."""

    place: tuple[str, ...]
    start: _Time
    ends: list[_Time] = dataclasses.field(default_factory=list)


class Schedule:
    """What a compiled program does, each loop's body read twice.

    Attributes:
        intervals: The operations that it starts, in order.
        copies: When it copies, and what.
    """

    def __init__(self, text: str) -> None:
        self.intervals: list[Interval] = []
        self.copies: list[tuple[_Time, Copy]] = []
        self._compiled = compiled = CompiledText(text)
        self._number = self._visits = 0
        self._path: Path = ()
        self._around: tuple[str, ...] = ()
        if compiled.entry:
            self._run(compiled.entry, [])

    def copies_between(self, interval: Interval) -> list[Copy]:
        """The copies between a start and its done, each once."""
        found = [copy for end in interval.ends for time, copy in self.copies if _is_between(interval.start, time, end)]
        return list(dict.fromkeys(found))

    @property
    def _now(self) -> _Time:
        return _Time(self._number, self._path)

    def _run(self, computation: str, args: Sequence[Any]) -> Any:
        values: dict[str, Any] = {}
        instructions = {instruction.name: instruction for instruction in self._compiled.computations[computation]}
        result: Any = _NOTHING
        for instruction in instructions.values():
            self._number += 1
            operands = [values.get(name, _NOTHING) for name in instruction.operands]
            if self._compiled.is_copy(instruction):
                self.copies.append((self._now, copy_of(instruction, instructions)))
            around, self._around = self._around, (*self._around, instruction.name)
            value = values[instruction.name] = self._value(instruction, operands, args)
            result = value if instruction.is_root else result
            self._around = around
        return result

    def _value(self, instruction: Instruction, operands: list[Any], args: Sequence[Any]) -> Any:
        match instruction.opcode:
            case "parameter":
                number = int(instruction.argument)
                return args[number] if number < len(args) else _NOTHING
            case "get-tuple-element":
                number = int(instruction.attribute("index"))
                return operands[0][number] if isinstance(operands[0], tuple) else _tickets(operands[0])
            case "tuple":
                return tuple(operands)
            case "while":
                (condition,), (body,) = instruction.computations("condition"), instruction.computations("body")
                carry = operands[0]
                for _ in range(2):
                    self._run(condition, [carry])
                    carry = self._run(body, [carry])
                return carry
            case "conditional":
                branches = ("branch_computations", "true_computation", "false_computation")
                names = instruction.computations(*branches)
                return self._branches(names, operands[1:])
            case "call":
                (name,) = instruction.computations("to_apply")
                return self._run(name, operands)
            case "custom-call":
                return self._call(instruction.attribute("custom_call_target"), operands)
        return _join(operands)

    def _branches(self, names: list[str], operands: list[Any]) -> Any:
        self._visits += 1
        around, visit, outs = self._path, self._visits, []
        for i, (name, operand) in enumerate(zip(names, operands, strict=True)):
            self._path = (*around, (visit, i))
            outs.append(self._run(name, [operand]))
        self._path = around
        return _join(outs)

    def _call(self, target: str, operands: list[Any]) -> Any:
        tickets = _tickets(operands)
        if target in _STARTS:
            self.intervals.append(Interval(self._around, self._now))
            return frozenset([len(self.intervals) - 1]), _NOTHING
        if target == AFTER_TARGET:
            return _join(operands)
        for number in tickets:
            self.intervals[number].ends.append(self._now)
        return _NOTHING


def _is_between(start: _Time, time: _Time, end: _Time) -> bool:
    if not start.number < time.number < end.number:
        return False
    return not exclude(time.path, start.path) and not exclude(time.path, end.path)


def _tickets(value: Any) -> frozenset[int]:
    """All tickets in a value, or in values."""
    if isinstance(value, (tuple, list)):
        return _NOTHING.union(*map(_tickets, value))
    return value


def _join(values: Sequence[Any]) -> Any:
    """What one of these values is."""
    tuples = [value for value in values if isinstance(value, tuple)]
    if tuples and len(tuples) == len(values):
        return tuple(map(_join, zip(*tuples, strict=False)))
    return _tickets(values)
