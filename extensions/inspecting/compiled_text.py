"""A compiled program as XLA writes it: its computations, their instructions, and the line of the user's of each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import NamedTuple

from effects._model.where import Where

_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (.+)")
_NAME = re.compile(r"%([^\s,(){}=]+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r'(\d+) (?:"(.*)"|\{(.*)\})')
_NUMBER = re.compile(r"(\w+)=(\d+)")
_ARRAY = re.compile(r"([a-z]+)(\d*)[a-z0-9]*\[([\d,]*)\]")

_RUN_BY: dict[str, tuple[str, ...]] = {
    "while": ("condition", "body"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "call": ("to_apply",),
    "async-start": ("calls",),
}
"""By opcode: the attributes that name the computations which an instruction runs step by step."""


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


class Instruction(NamedTuple):
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

    @property
    def run(self) -> list[str]:
        """The computations that it runs step by step."""
        return self.computations(*_RUN_BY.get(self.opcode, ()))


class CompiledText:
    """A compiled program.

    Attributes:
        computations: The instructions of each computation, in the order in which they run.
        entry: The name of the computation that the program begins with.
    """

    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        self.entry: str = ""
        self._tables: dict[str, dict[int, str | dict[str, int]]] = {name: {} for name in _TABLES}
        name = table = ""
        for line in text.splitlines():
            if header := _COMPUTATION.fullmatch(line):
                name, table = header.group(2), ""
                self.computations[name] = []
                self.entry = name if header.group(1) else self.entry
            elif name and (found := _INSTRUCTION.fullmatch(line)):
                self.computations[name].append(_instruction(found.group(2), found.group(3), bool(found.group(1))))
            elif line in _TABLES:
                table = line
            elif table and (row := _ROW.fullmatch(line)):
                numbers = {key: int(number) for key, number in _NUMBER.findall(row.group(3) or "")}
                self._tables[table][int(row.group(1))] = numbers if row.group(2) is None else row.group(2)

    def steps(self) -> Iterator[Instruction]:
        """The instructions that the program runs one by one: what is fused is one step, and a loop's body is here
        once."""
        for computation in self.running():
            yield from computation

    def running(self) -> Iterator[list[Instruction]]:
        """The computations of these instructions."""
        names, seen = [self.entry] if self.entry else [], {self.entry}
        while names:
            computation = self.computations[names.pop()]
            yield computation
            for instruction in computation:
                for name in instruction.run:
                    if name not in seen:
                        seen.add(name)
                        names.append(name)

    def fused(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions that are computed in one step: itself, or those of a fusion."""
        if instruction.opcode != "fusion":
            yield instruction
            return
        for name in instruction.computations("calls"):
            for inner in self.computations[name]:
                yield from self.fused(inner)

    def where(self, instruction: Instruction) -> Where | None:
        """The line of the user's that an instruction is of, if XLA knows it."""
        files, functions, locations, frames = (self._tables[name] for name in _TABLES)
        found = re.search(r"\bstack_frame_id=(\d+)", instruction.rest)
        frame = frames.get(int(found.group(1))) if found else None
        location = locations.get(frame["file_location_id"]) if isinstance(frame, dict) else None
        if not isinstance(location, dict):
            return None
        file, function = files[location["file_name_id"]], functions[location["function_name_id"]]
        return Where(str(file), location["line"], str(function))

    def is_copy(self, instruction: Instruction) -> bool:
        if instruction.opcode in ("copy", "copy-start"):
            return True
        if instruction.opcode != "fusion":
            return False
        (called,) = instruction.computations("calls")
        opcodes = [one.opcode for one in self.computations[called]]
        return opcodes == ["parameter", "copy"]


def copy_of(instruction: Instruction, instructions: dict[str, Instruction]) -> Copy:
    """What an instruction copies that is among these, which have their names."""
    buffer = instruction.operands[0]
    return Copy(instruction.name, instruction.shape, buffer, _origin(buffer, instructions))


def size_of(shape: str) -> int:
    """How many bytes a value of this type has, its parts together."""
    return sum(_size(*found) for found in _ARRAY.findall(shape))


def _size(kind: str, bits: str, sizes: str) -> int:
    count = 1
    for size in filter(None, sizes.split(",")):
        count *= int(size)
    return (count * (8 if kind == "pred" else int(bits or 0)) + 7) // 8  # a token has no bits


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].lstrip()
    opening = text.index("(")
    closing = _closing(text, opening)
    opcode, argument, rest = text[:opening], text[opening + 1 : closing], text[closing + 1 :]
    return Instruction(name, shape, opcode, _NAME.findall(argument), argument, rest, is_root)


def _closing(text: str, at: int) -> int:
    """Where the parenthesis is closed that is opened here."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)


def _origin(name: str, instructions: dict[str, Instruction]) -> str:
    instruction = instructions[name]
    if instruction.opcode in ("copy", "bitcast", "get-tuple-element") and instruction.operands:
        whose = _origin(instruction.operands[0], instructions)
        index = instruction.attribute("index")
        return f"element {index} of {whose}" if index else whose
    label = instruction.attribute("op_name")
    return f"the {instruction.opcode} `{label or name}`"
