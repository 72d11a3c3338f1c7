"""`fx.inspect`: asynchronous operations, with the equations between start and done, and the copies there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from effects import _errors as errors
from effects import _removed
from effects._model.where import Where
from effects._model.wire import AFTER_TARGET, BEGIN_TARGET, KEEP_TARGET, POST_TARGET
from effects.dispatch.calling.jit import JitFunction, jit
from effects.extensions.asynchronous.operation import Kept
from effects.extensions.asynchronous.tickets import Flight, Path, Place, Run, Step, exclude
from effects.extensions.inspecting.compiled_text import CompiledText, Copy, copy_of
from effects.extensions.inspecting.compiled_text import Instruction as CompiledInstruction
from effects.extensions.inspecting.text import Block, Instruction, Reader, Value, instruction_of, translated, written

MSG_NOT_TEXT = "`parse` was given {text}. It reads what `Inspection.text` has written. Pass `inspection.text()`."

# XLA's schedule of a program: its compiled text, read in execution order.
#
# The tickets of asynchronous operations are followed through tuples, loops and branches, to find the instructions
# between a start and its done.

_STARTS = (BEGIN_TARGET, KEEP_TARGET, POST_TARGET)
_NOTHING: frozenset[int] = frozenset()


class _Time(NamedTuple):
    number: int
    path: Path


@dataclasses.dataclass
class Interval:
    """A started operation: the place of its start, and the times of the start and of each call that takes its
    ticket."""

    place: tuple[str, ...]
    start: _Time
    ends: list[_Time] = dataclasses.field(default_factory=list)


class Schedule:
    """The schedule of a compiled program, in which the body of each loop is read twice.

    Attributes:
        intervals: The operations that it starts, in order.
        copies: Its copies, with their times.
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

    def copies_in(self, intervals: Sequence[Interval]) -> tuple[Copy, ...]:
        """The copies between a start and its done in any of these, each once, in the order of the schedule."""
        pairs = [(interval.start, end) for interval in intervals for end in interval.ends]
        found = (copy for time, copy in self.copies if any(_is_between(start, time, end) for start, end in pairs))
        return tuple(dict.fromkeys(found))

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

    def _value(self, instruction: CompiledInstruction, operands: list[Any], args: Sequence[Any]) -> Any:
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
                (condition, body), carry = instruction.run, operands[0]
                for _ in range(2):
                    self._run(condition, [carry])
                    carry = self._run(body, [carry])
                return carry
            case "conditional":
                return self._branches(instruction.run, operands[1:])
            case "call":
                return self._run(*instruction.run, operands)
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
    """Returns the tickets in a value, or in several."""
    if isinstance(value, (tuple, list)):
        return _NOTHING.union(*map(_tickets, value))
    return value


def _join(values: Sequence[Any]) -> Any:
    """The union of values: of tuples element by element, of others the tickets."""
    tuples = [value for value in values if isinstance(value, tuple)]
    if tuples and len(tuples) == len(values):
        return tuple(map(_join, zip(*tuples, strict=False)))
    return _tickets(values)


@_removed.without_arguments("fx.inspect", "compare")
def inspect(fn: Callable[..., Any]) -> Callable[..., Inspection]:
    """Shows the asynchronous operations of a function, without running it.

    For each operation: its start, updates and dones, what stands between them in the program, and every copy that
    XLA makes there in the compiled program.

    Args:
        fn: The function, of `fx.jit` or as it would be given to `fx.jit`.

    Returns:
        A function of the same arguments that returns an `fx.Inspection`, whose `str` is the report.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> def f(x):
        ...     future = fx.async_start(jnp.sin, x)
        ...     return x * x + fx.async_done(future)
        >>> (operation,) = fx.inspect(f)(1.0).operations
        >>> operation.name, operation.kind, operation.copies, operation.between[0][:4]
        ('sin', 'async_start', (), 'mul ')
    """
    function = fn if isinstance(fn, JitFunction) else jit(fn)

    def inspected(*args: Any, **kwargs: Any) -> Inspection:
        traced = function.trace(*args, **kwargs)
        return _inspect(traced.jaxpr, traced.lower().compile().as_text() or "")

    return inspected


@dataclasses.dataclass(frozen=True)
class InspectedOperation:
    """An asynchronous operation of a function.

    Attributes:
        name: Its name in messages.
        kind: "async_callback", "collective" or "async_start".
        where: The line that starts it.
        start: Its start in the syntax of HLO, with the types of the operands of the user's call, and the line.
        updates: Its updates.
        dones: Its dones, with the types of the results: more than one if it is done in several branches, or both in a
            loop and behind it.
        between: The equations between the start and a done, one line for each.
        steps: The starts, updates and dones, and what stands between, which is indented, in the order of the program.
        copied: The copies that the library itself makes, at the start and at a done: the types of the function's
            results or a device's values, and of the returned values, before a collective adds them up. None if `copies`
            is.
        copies: The copies that the compiled program makes there; None if that cannot be told, because it has starts in
            other places, as where a loop was unrolled or left out. `Inspection.copies` has the copies of all
            operations.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> (operation,) = fx.inspect(lambda x: fx.async_done(fx.async_start(jnp.sin, x)))(1.0).operations
        >>> len(operation.dones), operation.between
        (1, ())
    """

    name: str
    kind: str
    where: Where | None
    start: str
    updates: tuple[str, ...]
    dones: tuple[str, ...]
    between: tuple[str, ...]
    steps: tuple[str, ...]
    copied: tuple[str, str] | None
    copies: tuple[Copy, ...] | None

    def __str__(self) -> str:
        if self.copies is None or self.copied is None:
            return "\n".join([*self.steps, "copies in between: not known for this operation alone"])
        started, done = (types or "nothing" for types in self.copied)
        own = f"copied by the library: {started} at the start, {done} at the done"
        return "\n".join([*self.steps, *[_NO_OVERLAP] * (self.kind == Kept.kind), own, *_said(self.copies)])


_NO_OVERLAP = "overlap: none, since XLA computes a function at its start"


@dataclasses.dataclass(frozen=True, eq=False)
class Inspection:
    """The result of `fx.inspect`. Two are equal if their texts are, or without texts their reports.

    Attributes:
        operations: The asynchronous operations, in the order of the program.
        copies: The copies that the compiled program makes between the start and the done of any of them.
        program: The program that `text` writes; or the reason why there is no text.

    Example:
        >>> import effects as fx
        >>> print(fx.inspect(lambda x: x + 1)(1.0))
        no asynchronous operations
    """

    operations: tuple[InspectedOperation, ...]
    copies: tuple[Copy, ...]
    program: Block | str = dataclasses.field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inspection) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> str:
        return str(self) if isinstance(self.program, str) else self.text()

    def text(self, short: bool = False) -> str:
        """The whole program as text in the syntax of HLO, which `effects.asynchronous.parse` reads.

        The type of what a start gives is that of its operands, its results and its context, and each instruction has
        the user's line as its source. A function with operations in it is written in place; any other function, branch
        or loop is one instruction.

        Args:
            short: True for a separate opcode per operation, as in `sin-start`, in place of an `async-start` that
                calls a computation.

        Raises:
            NotImplementedError: if the program has operations in a loop or a branch.

        Example:
            >>> import effects as fx, jax.numpy as jnp
            >>> inspection = fx.inspect(lambda x: fx.async_done(fx.async_start(jnp.sin, x)))(jnp.ones(2))
            >>> "((float32[2]), float32[2], float32[3]) sin-start(float32[2] %0)" in inspection.text(short=True)
            True
        """
        if isinstance(self.program, str):
            raise errors.unsupported(self.program)
        between = (operation.copies for operation in self.operations)
        return written(
            self.program,
            short,
            tuple(dataclasses.astuple(copy) for copy in self.copies),
            tuple(None if own is None else tuple(map(self.copies.index, own)) for own in between),
        )

    def __str__(self) -> str:
        if not self.operations:
            return "no asynchronous operations"
        parts = list(map(str, self.operations))
        if any(operation.copies is None for operation in self.operations):
            parts.append("\n".join(["all operations", *_said(self.copies)]))
        return "\n\n".join(parts)


def _said(copies: Iterable[Copy]) -> list[str]:
    return [f"copy in between: {copy}" for copy in copies] or ["copies in between: none"]


def parse(text: str) -> Inspection:
    """Reads what `Inspection.text` has written.

    The rules of asynchronous operations hold for a parsed text as for a traced function: a future is used up once, by
    the operation that it is of.

    Args:
        text: The text, with or without called computations.

    Returns:
        An inspection that is equal to the one that was written.

    Raises:
        effects.asynchronous.TextError: if this is no text of a program; `lineno` and `colno` have the place.
        FutureError: if the program does not use its futures as it must, with lines and columns of the text.
        ValueError: if it uses a reference that an operation in flight writes to, with lines and columns of the text.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> inspection = fx.inspect(lambda x: fx.async_done(fx.async_start(jnp.sin, x)))(jnp.ones(2))
        >>> fx.asynchronous.parse(inspection.text()) == inspection
        True
        >>> try:
        ...     fx.asynchronous.parse(inspection.text(short=True).replace("sin-done", "sin-end"))
        ... except fx.asynchronous.TextError as error:
        ...     print(error.lineno, error.colno)
        6 19
    """
    if not isinstance(text, str):
        raise errors.type_error(MSG_NOT_TEXT.format(text=errors.shown(text)))
    entry, run, copies, between = Reader(text).program()
    return _inspection(entry, run, copies, between, lambda eqn: eqn)


class _RunOfCalls(Run):
    """A run that walks a function at each of its calls."""

    each_call = True


def _inspect(jaxpr: Any, text: str) -> Inspection:
    run, schedule = _RunOfCalls(), Schedule(text)
    run.walk(jaxpr, [None] * len(jaxpr.in_avals))
    try:
        program: Block | str = translated(jaxpr)
    except NotImplementedError as error:
        program = str(error)
    intervals = _intervals_of(places := _places(run), schedule)
    between: list[tuple[Copy, ...] | None] = [None] * len(places)
    if intervals is not None:
        between = [schedule.copies_in(intervals[place]) for place in places]
    return _inspection(program, run, schedule.copies_in(schedule.intervals), between, _as_instruction)


def _as_instruction(eqn: Any) -> Instruction:
    return instruction_of(eqn, *([Value("", str(atom.aval)) for atom in of] for of in (eqn.invars, eqn.outvars)))


def _places(run: Run) -> dict[Place, list[Flight]]:
    """The operations of a program by the places where they start."""
    places = dict[Place, list[Flight]]()
    for flight in run.flights:
        places.setdefault(flight.place, []).append(flight)
    return places


def _inspection(
    program: Block | str,
    run: Run,
    copies: tuple[Copy, ...],
    between: Sequence[tuple[Copy, ...] | None],
    read: Callable[[Any], Instruction],
) -> Inspection:
    """Assembles the result. `read` makes an instruction from an equation of the run."""
    instructions = {id(step.eqn): read(step.eqn) for step in run.steps}
    steps = [step._replace(eqn=instructions[id(step.eqn)]) for step in run.steps]
    of_each = enumerate(zip(_places(run).values(), between, strict=True), 1)
    return Inspection(tuple(_operation(number, run, steps, *each) for number, each in of_each), copies, program)


def _intervals_of(places: Collection[Place], schedule: Schedule) -> dict[Place, list[Interval]] | None:
    """The intervals of the compiled program by the place of their start. Both are in the order of the program."""
    compiled: dict[tuple[str, ...], list[Interval]] = {}
    for interval in schedule.intervals:
        compiled.setdefault(interval.place, []).append(interval)
    return dict(zip(places, compiled.values(), strict=True)) if len(places) == len(compiled) else None


def _operation(
    number: int, run: Run, steps: Sequence[Step], same: list[Flight], copies: tuple[Copy, ...] | None
) -> InspectedOperation:
    operation, name = same[0].operation, same[0].operation.name
    own: dict[int, str] = {}  # by position: the line of a start, an update or a done
    others: set[int] = set()
    copied = {"start": "", "update": "", "done": ""}
    for at, step in enumerate(steps):
        for flight in (flight for flight in step.flights if flight in same):
            own[at] = _own_line(step.eqn, name, number)
            copied[step.eqn.opcode] = _types(step.eqn.invars if step.eqn.opcode == "start" else step.eqn.outvars)
            others |= {*run.between(flight, at)} if step.eqn.opcode == "done" else set()
    lines: dict[str, dict[int, str]] = {"start": {}, "update": {}, "done": {}, "between": {}, "all": {}}
    for at in sorted({*own, *others}):  # an equation of a loop counts at its first run
        eqn = steps[at].eqn
        line = own[at] if at in own else _line(steps[at])
        lines[eqn.opcode if at in own else "between"].setdefault(id(eqn), line)
        lines["all"].setdefault(id(eqn), line if at in own else f"    {line}")
    return InspectedOperation(
        name=name,
        kind=operation.kind,
        where=steps[same[0].start].eqn.params["where"],
        start=own[same[0].start],
        updates=tuple(lines["update"].values()),
        dones=tuple(lines["done"].values()),
        between=tuple(lines["between"].values()),
        steps=tuple(lines["all"].values()),
        copied=None if copies is None else (copied["start"], copied["done"]),
        copies=copies,
    )


def _own_line(eqn: Any, name: str, number: int) -> str:
    part, ticket = eqn.opcode, f"%{number}"
    operands = _user_types(eqn, eqn.invars) if part == "start" else ticket
    results = ", ".join(filter(None, [ticket if part != "done" else "", _user_results(eqn)]))
    return f"{results} = {name}-{part}({operands})  {eqn.source}"


def _line(step: Step) -> str:
    eqn, results = step.eqn, _types(step.eqn.outvars)
    name = eqn.params.get("primitive", "")
    if step.flights:
        first = min(step.flights, key=lambda flight: flight.start)
        name, results = f"{first.operation.name}-{eqn.opcode}", _user_results(eqn)
    return f"{name} {results}".rstrip() + f"  {eqn.source}"


def _user_results(eqn: Any) -> str:
    """The types of what a start, an update or a done gives beside a ticket, as the user's line has them."""
    values = eqn.outvars[eqn.opcode != "done" :]
    return _user_types(eqn, values) if values else ""


def _user_types(eqn: Any, values: Sequence[Any]) -> str:
    types, lanes = eqn.params["user_types"], eqn.params["lanes"]
    if types is None:
        return _types(values)
    return f"{types} in lanes {lanes}" if lanes else str(types)


def _types(values: Iterable[Any]) -> str:
    return ", ".join(value.aval for value in values)
