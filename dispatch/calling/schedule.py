"""The schedule that XLA made of a program: its compiled text, read in the order in which it runs.

The tickets of asynchronous operations are followed through tuples, loops and branches, so that it is known which
instructions are between a start and its done.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from effects._wire import AFTER_TARGET, BEGIN_TARGET, KEEP_TARGET, POST_TARGET
from effects.lowering.passes.flights import Path, exclude

_STARTS = (BEGIN_TARGET, KEEP_TARGET, POST_TARGET)
_NOTHING: frozenset[int] = frozenset()

_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (.+)")
_NAME = re.compile(r"%([^\s,(){}=]+)")


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy that a compiled program makes.

    Attributes:
        name: Its name in the compiled text.
        shape: The type of what is copied.
        buffer: The name of what is copied.
        origin: What computes that: the operation of JAX's, or the name of the argument, as XLA's metadata say it.
    """

    name: str
    shape: str
    buffer: str
    origin: str

    def __str__(self) -> str:
        return f"%{self.name} = {self.shape} copy(%{self.buffer}), of {self.origin}"


class _Time(NamedTuple):
    number: int
    path: Path


@dataclasses.dataclass
class Interval:
    """A started operation: where its start stands, and when it and each call that takes its ticket come."""

    place: tuple[str, ...]
    start: _Time
    ends: list[_Time] = dataclasses.field(default_factory=list)


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    operands: list[str]
    argument: str
    rest: str
    is_root: bool

    def attribute(self, name: str) -> str:
        found = re.search(rf'\b{name}="?(\{{[^}}]*\}}|[^\s,"]+)', self.rest)
        return found.group(1) if found else ""

    def computations(self, *names: str) -> list[str]:
        return [name for attribute in names for name in _NAME.findall(self.attribute(attribute))]


class Schedule:
    """What a compiled program does, each loop's body read twice.

    Attributes:
        intervals: The operations that it starts, in order.
        copies: When it copies, and what.
    """

    def __init__(self, text: str) -> None:
        self.intervals: list[Interval] = []
        self.copies: list[tuple[_Time, Copy]] = []
        self._computations, entry = _read(text)
        self._number = self._visits = 0
        self._path: Path = ()
        self._around: tuple[str, ...] = ()
        if entry:
            self._run(entry, [])

    def copies_between(self, interval: Interval) -> list[Copy]:
        """The copies between a start and its done, each once."""
        found = [copy for end in interval.ends for time, copy in self.copies if _is_between(interval.start, time, end)]
        return list(dict.fromkeys(found))

    @property
    def _now(self) -> _Time:
        return _Time(self._number, self._path)

    def _run(self, computation: str, args: Sequence[Any]) -> Any:
        values: dict[str, Any] = {}
        instructions = {instruction.name: instruction for instruction in self._computations[computation]}
        result: Any = _NOTHING
        for instruction in instructions.values():
            self._number += 1
            operands = [values.get(name, _NOTHING) for name in instruction.operands]
            if self._is_copy(instruction):
                self.copies.append((self._now, _copy(instruction, instructions)))
            around, self._around = self._around, (*self._around, instruction.name)
            value = values[instruction.name] = self._value(instruction, operands, args)
            result = value if instruction.is_root else result
            self._around = around
        return result

    def _value(self, instruction: _Instruction, operands: list[Any], args: Sequence[Any]) -> Any:
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

    def _is_copy(self, instruction: _Instruction) -> bool:
        if instruction.opcode in ("copy", "copy-start"):
            return True
        if instruction.opcode != "fusion":
            return False
        (called,) = instruction.computations("calls")
        opcodes = [one.opcode for one in self._computations[called]]
        return opcodes == ["parameter", "copy"]


def _is_between(start: _Time, time: _Time, end: _Time) -> bool:
    if not start.number < time.number < end.number:
        return False
    return not exclude(time.path, start.path) and not exclude(time.path, end.path)


def _read(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """The instructions of each computation, and the name of the one that the program begins with."""
    computations: dict[str, list[_Instruction]] = {}
    entry = name = ""
    for line in text.splitlines():
        if header := _COMPUTATION.fullmatch(line):
            name = header.group(2)
            computations[name] = []
            entry = name if header.group(1) else entry
        elif line.startswith("}"):
            name = ""
        elif name and (found := _INSTRUCTION.fullmatch(line)):
            computations[name].append(_instruction(found.group(2), found.group(3), bool(found.group(1))))
    return computations, entry


def _instruction(name: str, text: str, is_root: bool) -> _Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].lstrip()
    opening = text.index("(")
    closing = _closing(text, opening)
    opcode, argument, rest = text[:opening], text[opening + 1 : closing], text[closing + 1 :]
    return _Instruction(name, shape, opcode, _NAME.findall(argument), argument, rest, is_root)


def _closing(text: str, at: int) -> int:
    """Where the parenthesis is closed that is opened here."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)


def _copy(instruction: _Instruction, instructions: dict[str, _Instruction]) -> Copy:
    buffer = instruction.operands[0]
    return Copy(instruction.name, instruction.shape, buffer, _origin(buffer, instructions))


def _origin(name: str, instructions: dict[str, _Instruction]) -> str:
    instruction = instructions[name]
    if instruction.opcode in ("copy", "bitcast", "get-tuple-element") and instruction.operands:
        whose = _origin(instruction.operands[0], instructions)
        index = instruction.attribute("index")
        return f"element {index} of {whose}" if index else whose
    label = instruction.attribute("op_name")
    return f"the {instruction.opcode} `{label or name}`"


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
