"""A compiled program as XLA writes it: its computations, and their instructions."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (.+)")
_NAME = re.compile(r"%([^\s,(){}=]+)")

_RUN_BY: dict[str, tuple[str, ...]] = {
    "while": ("condition", "body"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "call": ("to_apply",),
}
"""By opcode: the attributes that name the computations which an instruction runs step by step."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy that a compiled program makes.

    Attributes:
        name: Its name in the compiled text.
        shape: The type of the copied value.
        buffer: The name of the copied value.
        origin: The source of that value: JAX's operation, or the name of the argument, from XLA's metadata.
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
        name = ""
        for line in text.splitlines():
            if header := _COMPUTATION.fullmatch(line):
                name = header.group(2)
                self.computations[name] = []
                self.entry = name if header.group(1) else self.entry
            elif name and (found := _INSTRUCTION.fullmatch(line)):
                self.computations[name].append(_instruction(found.group(2), found.group(3), bool(found.group(1))))

    def is_copy(self, instruction: Instruction) -> bool:
        if instruction.opcode in ("copy", "copy-start"):
            return True
        if instruction.opcode != "fusion":
            return False
        (called,) = instruction.computations("calls")
        opcodes = [one.opcode for one in self.computations[called]]
        return opcodes == ["parameter", "copy"]


def copy_of(instruction: Instruction, instructions: dict[str, Instruction]) -> Copy:
    """Describes the copy that an instruction makes. `instructions` has those of its computation, by name."""
    buffer = instruction.operands[0]
    return Copy(instruction.name, instruction.shape, buffer, _origin(buffer, instructions))


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].lstrip()
    opening = text.index("(")
    closing = _closing(text, opening)
    opcode, argument, rest = text[:opening], text[opening + 1 : closing], text[closing + 1 :]
    return Instruction(name, shape, opcode, _NAME.findall(argument), argument, rest, is_root)


def _closing(text: str, at: int) -> int:
    """Returns the position of the parenthesis that closes the one at `at`."""
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
