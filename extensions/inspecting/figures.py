"""What a compiled program computes, calls and copies, and how that differs from another compiled program."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any, NamedTuple

from effects._model.where import Where
from effects.extensions.inspecting.compiled_text import CompiledText, Copy, Instruction, copy_of, size_of

_LAYOUT = re.compile(r"\{[^}]*\}")
_COMPUTES_NOTHING = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call"),
    *("async-start", "async-update", "async-done", "copy-done", "after-all", "add-dependency", "opt-barrier"),
    *("custom-call", "domain", "partition-id", "replica-id"),
}
_MEANS_NOTHING = _COMPUTES_NOTHING | {"broadcast", "copy", "iota", "fusion"}
"""What XLA puts where it likes: by these no fusion is known."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures of a compiled program.

    Attributes:
        fusions: The fusions of several instructions.
        kernels: What computes: these, and the instructions that are by themselves.
        loops: The loops.
        calls: The calls of handlers.
        copies: The copies.
        copied_bytes: What they copy.
        temporary_bytes: Memory beside that of arguments and results; None if the platform does not tell.
    """

    fusions: int
    kernels: int
    loops: int
    calls: int
    copies: int
    copied_bytes: int
    temporary_bytes: int | None

    @classmethod
    def of(cls, text: CompiledText, compiled: Any) -> Figures:
        """The figures of a compiled program, of which this is the text."""
        opcodes, copies, kernels = Counter[str](), [], []
        for step in text.steps():
            if text.is_copy(step):
                copies.append(step)
            elif _computes(step):
                kernels.append(step)
            else:
                opcodes[step.opcode] += 1
        memory = compiled.memory_analysis()
        return cls(
            fusions=sum(sum(map(_computes, text.fused(kernel))) > 1 for kernel in kernels),
            kernels=len(kernels),
            loops=opcodes["while"],
            calls=opcodes["custom-call"],
            copies=len(copies),
            copied_bytes=sum(size_of(copy.shape) for copy in copies),
            temporary_bytes=None if memory is None else memory.temp_size_in_bytes,
        )


class Operation(NamedTuple):
    """Something that a program computes, at a line of the user's.

    Attributes:
        name: What XLA calls it.
        shape: The type of what it gives.
        where: The line; None where XLA knows none.
    """

    name: str
    shape: str
    where: Where | None

    def __str__(self) -> str:
        return f"{self.name} {self.shape}" + (f" at {self.where}" if self.where else "")


@dataclasses.dataclass(frozen=True)
class SplitFusion:
    """A fusion of the program without effects that the one with them does not have.

    Attributes:
        name: Its name in the program without effects.
        operations: What it computes.
        parts: The names of what computes that in the program with effects.
    """

    name: str
    operations: tuple[Operation, ...]
    parts: tuple[str, ...]

    def __str__(self) -> str:
        parts = ", ".join(f"%{part}" for part in self.parts) or "no kernel of its own"
        names: dict[str, list[str]] = {}
        for operation in self.operations:
            names.setdefault(f" at {operation.where}" if operation.where else "", []).append(operation.name)
        lines = [f"    {', '.join(same)}{place}" for place, same in names.items()]
        return "\n".join([f"%{self.name}, which with effects is {parts}", *lines])


@dataclasses.dataclass(frozen=True)
class ExtraWork:
    """What a program computes more often with its effects than without.

    Attributes:
        operation: What it is.
        times: In how many more places it stands in the compiled program.
    """

    operation: Operation
    times: int

    def __str__(self) -> str:
        return f"{self.operation}" + (f", {self.times} times" if self.times > 1 else "")


def _computes(instruction: Instruction) -> bool:
    return instruction.opcode not in _COMPUTES_NOTHING


def split_fusions(text: CompiledText, without: CompiledText) -> tuple[SplitFusion, ...]:
    """The fusions of a program without effects that the program with them does not have."""
    kernels = _kernels(text)
    split = []
    for name, fusion in _kernels(without).items():
        if fusion.total() < 2 or any(fusion <= kernel for kernel in kernels.values()):
            continue
        left, parts = Counter(fusion), []
        while left and (best := max(kernels, key=lambda kernel: (kernels[kernel] & left).total(), default=None)):
            if not kernels[best] & left:
                break
            parts.append(best)
            left -= kernels[best]
        split.append(SplitFusion(name, tuple(fusion), tuple(parts)))
    return tuple(split)


def extra_work(text: CompiledText, without: CompiledText) -> tuple[ExtraWork, ...]:
    """What the program with effects computes more often, by line."""
    more = sum(_kernels(text).values(), Counter()) - sum(_kernels(without).values(), Counter())
    found = [ExtraWork(operation, times) for operation, times in more.items()]
    return tuple(sorted(found, key=lambda work: (work.operation.where or ("", 0))[:2]))


def extra_copies(text: CompiledText, without: CompiledText) -> tuple[Copy, ...]:
    """The copies of the program with effects that the one without does not make. Copies are the same if they are of the
    same origin, or else of the same type."""
    copies, others = _copies(text), _copies(without)
    for key in (lambda copy: (copy.shape, copy.origin), lambda copy: copy.shape):
        kept, rest = [], Counter(map(key, others))
        for copy in copies:
            if rest[key(copy)]:
                rest[key(copy)] -= 1
                others.remove(next(other for other in others if key(other) == key(copy)))
            else:
                kept.append(copy)
        copies = kept
    return tuple(copies)


def _kernels(text: CompiledText) -> dict[str, Counter[Operation]]:
    """By the name of what computes: what it computes."""
    found = {}
    for step in text.steps():
        operations = Counter(_operation(one, text) for one in text.fused(step) if one.opcode not in _MEANS_NOTHING)
        if operations:
            found[step.name] = operations
    return found


def _operation(instruction: Instruction, text: CompiledText) -> Operation:
    return Operation(instruction.opcode, _LAYOUT.sub("", instruction.shape), text.where(instruction))


def _copies(text: CompiledText) -> list[Copy]:
    found = []
    for computation in text.running():
        by_name = {instruction.name: instruction for instruction in computation}
        found += [copy_of(one, by_name) for one in computation if text.is_copy(one)]
    return found
