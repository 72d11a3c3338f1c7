"""Asynchronous programs as text, in the syntax of HLO.

A program is written and read by the same tables: which attributes an instruction has, in order, and what they are. It
consists of blocks, whose instructions `Run` follows like the equations of a jaxpr. So what refuses a program that is
traced refuses what is read, too. Types are those of JAX. The type of what a start gives is a tuple, as in HLO: the
operands, the results, and the context, which is the ticket.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from effects import _jax
from effects._model.primitive import effect_p
from effects._model.site import Where
from effects.extensions.asynchronous.operation import (
    TICKET_LENGTH,
    Computation,
    Exchanged,
    HostStartOp,
    Kept,
    Operation,
)
from effects.extensions.asynchronous.primitives import (
    ASYNC,
    async_done_p,
    async_start_p,
    async_update_p,
    is_asynchronous,
)
from effects.extensions.asynchronous.tickets import Run, call_bodies
from effects.extensions.inspecting.compiled_text import Copy
from effects.lowering.holders import find_holder

MSG_TEXT = "Line {line}, column {column}: {what}. {remedy}"
_FORM = "Write what `Inspection.text` writes."


class TextError(ValueError):
    """What `effects.asynchronous.parse` was given is no text of a program.

    Attributes:
        lineno: The line, from 1.
        colno: The column, from 1.
    """

    def __init__(self, message: str, lineno: int, colno: int) -> None:
        super().__init__(message)
        self.lineno, self.colno = lineno, colno

    def __reduce__(self) -> Any:
        return TextError, (str(self), self.lineno, self.colno)


# Programs


@dataclasses.dataclass(eq=False)
class Value:
    """A value: its name, or a literal in quotes, and its type."""

    name: str
    aval: str
    may_be_ticket: bool = False

    def __str__(self) -> str:
        return f"{self.aval} {self.name}"


@dataclasses.dataclass(eq=False)
class Instruction:
    """An equation of a jaxpr, as `Run` asks for it."""

    opcode: str
    outvars: Sequence[Value]
    invars: Sequence[Value]
    params: dict[str, Any]
    source: str

    @property
    def primitive(self) -> Any:
        name = self.params.get("primitive", "")
        return _PRIMITIVES.get(self.opcode) or (_jax.shard_map_p if name == "shard_map" else _primitive(name))

    @property
    def is_part(self) -> bool:
        """Whether it starts, updates or ends an operation."""
        return "operation" in self.params

    @functools.cached_property
    def effects(self) -> list[Any]:
        within = (eqn.effects for body in _bodies(self.params) for eqn in body.eqns)
        return [ASYNC] if self.is_part or any(within) else []


@dataclasses.dataclass(eq=False)
class Block:
    """A jaxpr, as `Run` asks for it."""

    name: str
    invars: Sequence[Value] = ()
    constants: Sequence[Value] = ()
    eqns: list[Instruction] = dataclasses.field(default_factory=list)
    outvars: Sequence[Value] = ()

    jaxpr = property(lambda self: self)
    in_avals = property(lambda self: self.invars)
    out_avals = property(lambda self: self.outvars)


@dataclasses.dataclass(frozen=True)
class TextOperation:
    """An operation, as `Run` asks for it."""

    computation: Computation
    name: str
    where: Any
    lanes: tuple[int, ...]
    of_derivative: bool
    host_function: str | None = None
    is_received: bool = False

    kind = property(lambda self: self.computation.kind)
    into_reference = property(lambda self: dict(self.computation.attributes).get("into_reference", False))

    @classmethod
    def of(cls, operation: Operation) -> TextOperation:
        attributes = tuple((name, _plain(value)) for name, value in operation.computation.attributes)
        function = operation.site.content.function.key if isinstance(operation, HostStartOp) else None
        is_received = isinstance(operation, Exchanged) and operation.is_received
        computation = operation.computation._replace(attributes=attributes)
        own = operation.name, operation.where, operation.lanes, operation.of_derivative
        return cls(computation, *own, function, is_received)


@functools.cache
def _primitive(name: str) -> Any:
    return _jax.Primitive(name)


def _plain(value: Any) -> Any:
    """Data of Python's. Where nothing is said of any of several, nothing is said."""
    if isinstance(value, (tuple, list)):
        parts = tuple(map(_plain, value))
        return () if all(part in (None, ()) for part in parts) else parts
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _types(avals: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, avals))


def _bodies(params: dict[str, Any]) -> list[Block]:
    found = (value if isinstance(value, tuple) else (value,) for value in params.values())
    return [body for bodies in found for body in bodies if isinstance(body, Block)]


class TextRun(Run):
    """The run of a program of blocks."""

    each_call = True
    opened = staticmethod(lambda block: block)
    bodies = staticmethod(_bodies)
    source_of = staticmethod(lambda eqn, *around: eqn.source)
    is_reference = staticmethod(lambda value: value.aval.startswith("Ref"))

    def _call(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return self._walk_in_place(eqn, operands, eqn.params)


# The tables. An attribute is of a type of Python's, or of Block, or a tuple of such, or with `object` any data.

_PRIMITIVES: dict[str, Any] = {
    **{"start": async_start_p, "update": async_update_p, "done": async_done_p},
    **{"conditional": _jax.cond_p, "scan": _jax.scan_p, "while": _jax.while_p},
}
_PARTS = {async_start_p: "start", async_update_p: "update", async_done_p: "done"}

_OF_EACH: dict[str, Any] = {"lanes": (int,), "of_derivative": bool}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "equation": {"primitive": str},
    "call": {"primitive": str, "to_apply": (Block,), "newly_manual_axes": (str,)},
    "conditional": {"branches": (Block,)},
    "scan": {"jaxpr": Block, "num_consts": int, "num_carry": int},
    "while": {"cond_jaxpr": Block, "body_jaxpr": Block, "cond_nconsts": int, "body_nconsts": int},
    "start": {"name": str, "where": object, "host_function": object, "is_received": bool, **_OF_EACH},
    "update": {"partial": bool, **_OF_EACH},
    "done": _OF_EACH,
}
"""By opcode; of an operation, by part."""

_IN_COMMON: dict[str, Any] = {
    **{"schedule": bool, "into_reference": bool, "same_along": (object,), "placements": (object,)},
    **{"axes": (str,), "size": int, "receivers": object, "has_replicas": bool},
}
_OPERATIONS: dict[str, type[Operation]] = {"values": Kept, "collective": Exchanged, "callback": HostStartOp}
_OPCODES = {operation.kind: opcode for opcode, operation in _OPERATIONS.items()}
_MODULE = {"copies": object, "between": object}

_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("into_reference", "has_replicas", "of_derivative", "is_received", "partial"), False),
    **dict.fromkeys(("lanes", "same_along", "placements", "newly_manual_axes"), ()),
    **{"schedule": True, "receivers": None, "host_function": None},
}
"""Attributes that are left out if they are this."""


def _in_common(opcode: str) -> dict[str, Any]:
    """The attributes of the computation of an operation."""
    return {name: _IN_COMMON[name] for name in _OPERATIONS[opcode].in_common}


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return isinstance(value, tuple) and all(_fits(part, kind[0]) for part in value)
    return not any(_bodies({"": value})) if kind is object else type(value) is kind


# Types of what is started


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tupled(types: Sequence[str]) -> str:
    return f"({', '.join(types)})"


def _one_or_tupled(types: Sequence[str]) -> str:
    return types[0] if len(types) == 1 else _tupled(types)


def _elements(type_: str) -> tuple[str, ...] | None:
    """The elements of the type of a tuple; None of another one."""
    if not type_.startswith("("):
        return None
    return tuple(_Reader(type_[1:-1]).types()) if len(type_) > 2 else ()


def _taken(eqn: Instruction) -> tuple[str, ...] | None:
    """The types of the operands of an operation; None of an update or a done whose ticket a loop or a call gave."""
    if eqn.opcode == "start":
        return _types([value.aval for value in eqn.invars])
    elements = _elements(eqn.invars[-1].aval)
    return elements and _elements(elements[0])


# From a jaxpr


class _Translation:
    """The blocks of a jaxpr. Bodies are blocks of their own where an operation or a ticket comes into them."""

    def __init__(self) -> None:
        self._numbers, self._blocks = itertools.count(), dict[Any, Block]()
        self._block = Block("%main")

    def block(self, name: str, jaxpr: Any, operands: Sequence[Value] | None = None) -> Block:
        """`operands`: what it is run with; a parameter may be a ticket if the operand may."""
        jaxpr = _jax.closed_jaxpr(jaxpr)
        tickets = tuple(value.may_be_ticket for value in operands or [Value("", "")] * len(jaxpr.in_avals))
        if (known := self._blocks.get((jaxpr, tickets))) is not None:
            return known
        inner, around = jaxpr.jaxpr, self._block
        block = self._block = Block(f"%{name}.{len(self._blocks)}" if self._blocks else "%main")
        self._blocks[jaxpr, tickets] = block
        block.invars = [self._value(var.aval, flag) for var, flag in zip(inner.invars, tickets, strict=True)]
        block.constants = [self._value(var.aval) for var in inner.constvars]
        known_values = dict(zip([*inner.invars, *inner.constvars], [*block.invars, *block.constants], strict=True))

        def read(atom: Any) -> Value:
            return (
                Value(_quoted(str(_jax.plain_number(atom.val))), str(atom.aval))
                if hasattr(atom, "val")
                else known_values[atom]
            )

        for eqn in inner.eqns:
            known_values.update(zip(eqn.outvars, self._apply(eqn, [*map(read, eqn.invars)]), strict=True))
        block.outvars, self._block = [*map(read, inner.outvars)], around
        return block

    def _value(self, aval: Any, may_be_ticket: bool = False) -> Value:
        is_ticket = getattr(aval, "shape", ())[-1:] == (TICKET_LENGTH,) and aval.dtype == np.float32
        return Value(f"%{next(self._numbers)}", str(aval), may_be_ticket and is_ticket)

    def _add(
        self, opcode: str, eqn: Any, operands: Sequence[Value], avals: Sequence[Any], **params: Any
    ) -> list[Value]:
        tickets = any(value.may_be_ticket for value in operands) or is_asynchronous(eqn)
        results = [self._value(aval, tickets) for aval in avals]
        self._block.eqns.append(Instruction(opcode, results, operands, params, _jax.source_of(eqn)))
        return results

    def _apply(self, eqn: Any, operands: list[Value]) -> Sequence[Value]:
        primitive, params, avals = eqn.primitive, eqn.params, [var.aval for var in eqn.outvars]
        if (part := _PARTS.get(primitive)) is not None:
            operation = TextOperation.of(params["operation"])
            own = {"operation": operation, **({"partial": params["partial"]} if part == "update" else {})}
            results = self._add(part, eqn, operands, avals, **own)
            if part == "start":
                comes_to = _one_or_tupled(_types(params["operation"].results_of_lanes))
                results[0].aval = _tupled([_tupled([x.aval for x in operands]), comes_to, results[0].aval])
            elif part == "update":
                results[0].aval = operands[-1].aval
            return results
        block = self.block
        holds = (is_asynchronous(eqn) or any(value.may_be_ticket for value in operands)) and (
            any(_jax.jaxprs_in(params)) or find_holder(primitive) is not None
        )
        if not holds:
            name = params["site"].effect.name if primitive is effect_p else primitive.name
            return self._add("equation", eqn, operands, avals, primitive=name)
        if primitive is _jax.cond_p:
            branches = tuple(block("branch", branch, operands[1:]) for branch in params["branches"])
            return self._add("conditional", eqn, operands, avals, branches=branches)
        if primitive is _jax.scan_p:
            consts, carry = _jax.read_scan(params)
            body = block("body", params["jaxpr"], operands)
            return self._add("scan", eqn, operands, avals, jaxpr=body, num_consts=consts, num_carry=carry)
        if primitive is _jax.while_p:
            of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
            taken = operands[:of_condition] + operands[of_condition + of_body :]
            own = {"cond_jaxpr": block("condition", params["cond_jaxpr"], taken)}
            own["body_jaxpr"] = block("body", params["body_jaxpr"], operands[of_condition:])
            return self._add("while", eqn, operands, avals, **own, cond_nconsts=of_condition, body_nconsts=of_body)
        axes = tuple(sorted(map(str, params["newly_manual_axes"]))) if primitive is _jax.shard_map_p else ()

        def call(operands: Sequence[Value], bodies: Sequence[Any], avals: Sequence[Any]) -> Sequence[Value]:
            alone = [len(body.in_avals) for body in bodies] == [len(operands)]
            blocks = tuple(block(primitive.name, body, operands if alone else None) for body in bodies)
            own = {"primitive": primitive.name, "to_apply": blocks, "newly_manual_axes": axes}
            return self._add("call", eqn, operands, avals, **own)

        return call_bodies(
            eqn,
            operands,
            lambda operands, params: call(operands, Run.bodies(params), avals),
            lambda body, operands: call(operands, [body], body.out_avals),
        )


# Writing


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of blocks. Two are equal if their texts are.

    Attributes:
        entry: The block with which it begins.
    """

    entry: Block

    @classmethod
    def of(cls, jaxpr: Any) -> Program:
        return cls(_Translation().block("main", jaxpr))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.text(False) == other.text(False)

    def __hash__(self) -> int:
        return hash(self.text(False))

    def text(self, short: bool, copies: Any = (), between: Any = ()) -> str:
        order = [*_post_order(self.entry, set())]
        called = {} if short else _called(order)
        blocks = [_written(block, called, short) for block in order]
        computations = [_written_computation(name, *of) for of, name in called.items() if of[0] is not None]
        header = "HloModule" + _attributes(_MODULE, {"copies": copies, "between": between})
        return "\n\n".join([header, *computations, *blocks[:-1], f"ENTRY {blocks[-1]}"]) + "\n"


def _post_order(block: Block, known: set[Block]) -> Iterator[Block]:
    known.add(block)
    for body in (body for eqn in block.eqns for body in _bodies(eqn.params)):
        if body not in known:
            yield from _post_order(body, known)
    yield block


def _called(blocks: Sequence[Block]) -> dict[Any, str]:
    """The names of computations, by what they take and what they are. One of which it is not known what it takes is one
    that is started, if there is one."""
    names: dict[Any, str] = {}
    of = [(_taken(eqn), eqn.params["operation"].computation) for block in blocks for eqn in block.eqns if eqn.is_part]
    for taken, computation in sorted(of, key=lambda each: each[0] is None):
        known = (name for (_, other), name in names.items() if other == computation and taken is None)
        names.setdefault((taken, computation), next(known, f"%{_OPCODES[computation.kind]}.{len(names)}"))
    return names


def _written(block: Block, called: dict[Any, str], short: bool) -> str:
    lines = [f"{value.name} = {value.aval} parameter({at})" for at, value in enumerate(block.invars)]
    lines += [f"{value.name} = {value.aval} constant()" for value in block.constants]
    lines += [_line(eqn, called, short) for eqn in block.eqns]
    lines.append(f"ROOT tuple({', '.join(map(str, block.outvars))})")
    return "\n  ".join([f"{block.name} {{", *lines]) + "\n}"


def _line(eqn: Instruction, called: dict[Any, str], short: bool) -> str:
    opcode, table, values = eqn.opcode, _ATTRIBUTES[eqn.opcode], dict(eqn.params)
    if (operation := values.pop("operation", None)) is not None:
        computation = operation.computation
        own, kind = _OPCODES[computation.kind], "async"
        values |= {"results": computation.results}
        values |= {name: _plain(getattr(operation, name)) for name in table if hasattr(operation, name)}
        if short:
            kind, table = own, {"results": (str,), **_in_common(own), **table}
            values |= dict(computation.attributes)
        else:
            table = {"calls": None, **table}
            values["calls"] = called[_taken(eqn), computation]
        opcode = f"{kind}-{opcode}"
    results = ", ".join(value.name for value in eqn.outvars)
    types = ", ".join(value.aval for value in eqn.outvars)
    left = f"{results} = {types} " if results else ""
    values["source"] = eqn.source
    operands = ", ".join(map(str, eqn.invars))
    return f"{left}{opcode}({operands})" + _attributes({**table, "source": str}, values)


def _written_computation(name: str, taken: Sequence[str], computation: Computation) -> str:
    opcode, operands = _OPCODES[computation.kind], [Value(f"%operand{at}", x) for at, x in enumerate(taken)]
    lines = [f"{value.name} = {value.aval} parameter({at})" for at, value in enumerate(operands)]
    root = f"ROOT %results = {_one_or_tupled(computation.results)} {opcode}({', '.join(map(str, operands))})"
    lines.append(root + _attributes(_in_common(opcode), dict(computation.attributes)))
    return "\n  ".join([f"{name} {{", *lines]) + "\n}"


def _attributes(table: dict[str, Any], values: dict[str, Any]) -> str:
    said = (name for name in table if name not in _DEFAULTS or values[name] != _DEFAULTS[name])
    return "".join(f", {name}={values[name] if name == 'calls' else _data(values[name])}" for name in said)


def _data(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{{{', '.join(map(_data, value))}}}"
    return value.name if isinstance(value, Block) else _quoted(value)


# Reading


_WORD = re.compile(r"[A-Za-z_][\w\-]*")
_NAME = re.compile(r"%[\w.\-<>]+")
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SPACE = re.compile(r"\s*")
_WORDS = {"null": None, "true": True, "false": False}


class _Reader:
    def __init__(self, text: str, at_places: bool = False) -> None:
        """`at_places`: whether the source of each instruction is its place in the text."""
        self._text, self._at, self._at_places = text, 0, at_places
        self._blocks: dict[str, Any] = {}

    def fail(self, what: str, remedy: str = _FORM, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        line, column = self._place(at)
        raise TextError(MSG_TEXT.format(line=line, column=column, what=what, remedy=remedy), line, column)

    def _place(self, at: int) -> tuple[int, int]:
        return self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)

    def _skip(self) -> int:
        self._at = _SPACE.match(self._text, self._at).end()  # pyright: ignore[reportOptionalMemberAccess]
        return self._at

    def _accept(self, mark: str) -> bool:
        found = self._text.startswith(mark, self._skip())
        self._at += len(mark) * found
        return found

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            self.fail(f"`{mark}` was expected")

    def _take(self, pattern: re.Pattern[str], what: str) -> str:
        if (found := pattern.match(self._text, self._skip())) is None:
            self.fail(f"{what} was expected")
        self._at = found.end()
        return found.group()

    def _list(self, read: Callable[[], Any], end: str) -> list[Any]:
        """What stands ahead of a mark, separated by commas."""
        found: list[Any] = []
        while not self._accept(end):
            if found:
                self._expect(",")
            found.append(read())
        return found

    def types(self) -> list[str]:
        """Types with commas between them."""
        found = [self.type()]
        while self._accept(","):
            found.append(self.type())
        return found

    def type(self) -> str:
        if self._accept("("):
            return _tupled(self._list(self.type, ")"))
        depth, start, end = 0, self._skip(), len(self._text)
        for at in range(start, end):
            character = self._text[at]
            if character == "\n" or (depth == 0 and (character.isspace() or character in ",)")):
                end = at
                break
            depth += (character in "[{<(") - (character in "]}>)")
        self._at = end
        if end == start or depth:
            self.fail("a type was expected", at=start)
        return self._text[start:end]

    def _string(self) -> str:
        at = self._skip()
        try:
            return json.loads(self._take(_STRING, "a string"))
        except ValueError as error:
            self.fail(f"the string has {error.args[0]}", at=at)

    def _value(self) -> Any:
        at = self._skip()
        if self._accept("{"):
            return tuple(self._list(self._value, "}"))
        if self._text.startswith('"', at):
            return self._string()
        if self._text.startswith("%", at):
            return self._known(self._blocks, "block")
        if found := _INTEGER.match(self._text, at):
            self._at = found.end()
            return int(found.group())
        word = self._take(_WORD, "a value")
        return _WORDS[word] if word in _WORDS else self.fail(f"`{word}` is no value", at=at)

    def _known(self, names: dict[str, Any], what: str) -> Any:
        at, name = self._skip(), self._take(_NAME, f"the name of a {what}")
        if name not in names:
            self.fail(f"there is no {what} `{name}` ahead of here", "Define what is used ahead of its use.", at)
        return names[name]

    def _new(self, names: dict[str, Any], value: Any = None) -> str:
        at, name = self._skip(), self._take(_NAME, "a name")
        if name in names:
            self.fail(f"`{name}` is defined already", "Give each value and each block a name of its own.", at)
        names[name] = value
        return name

    def _attributes(self, table: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, kind in table.items():
            if not self._accept(f", {name}="):
                if name not in _DEFAULTS:
                    self.fail(f"the attribute `{name}` was expected")
                found[name] = _DEFAULTS[name]
                continue
            at, value = self._skip(), self._value()
            if not _fits(value, kind):
                self.fail(f"this is no value of the attribute `{name}`", at=at)
            found[name] = value
        return found

    def program(self) -> tuple[Program, dict[str, Any]]:
        """The program, and the attributes of the module."""
        self._expect("HloModule")
        module = self._attributes(_MODULE)
        while not (is_entry := self._accept("ENTRY")):
            self._block(is_entry)
        program = Program(self._block(is_entry))
        if self._skip() < len(self._text):
            self.fail("the text goes on behind its `ENTRY`", "End it there.")
        return program, module

    def _block(self, is_entry: bool) -> Block:
        name = self._new(self._blocks)
        block, values = Block(name), dict[str, Value]()
        self._expect("{")
        while not self._accept("ROOT"):
            self._instruction(block, values)
        at = self._skip()
        if self._accept("tuple"):
            self._expect("(")
            block.outvars = self._list(lambda: self._operand(values), ")")
            self._blocks[name] = block
        else:
            self._new(values)
            self._blocks[name] = self._computation(block, values)
            if is_entry:
                self.fail("the root of the `ENTRY` is no `tuple`", at=at)
        self._expect("}")
        return self._blocks[name]

    def _operand(self, values: dict[str, Value]) -> Value:
        at, type_ = self._skip(), self.type()
        if self._text.startswith('"', self._skip()):
            return Value(_quoted(self._string()), type_)
        value = self._known(values, "value")
        if value.aval != type_:
            self.fail(f"`{value.name}` is of type {value.aval}, and not {type_}", "Write the type that it has.", at)
        return value

    def _computation(self, block: Block, values: dict[str, Value]) -> tuple[tuple[str, ...], Computation]:
        """What an operation does: behind the name of the root."""
        self._expect("=")
        type_, at = self.type(), self._skip()
        opcode = self._take(_WORD, "an opcode")
        if opcode not in _OPERATIONS:
            self._unknown(opcode, at)
        self._expect("(")
        operands = self._list(lambda: self._operand(values), ")")
        if block.eqns or block.constants or operands != [*block.invars]:
            self.fail("the computation of an operation is one instruction of all parameters, in order", at=at)
        elements = _elements(type_)
        results = (type_,) if elements is None else elements
        attributes = tuple(self._attributes(_in_common(opcode)).items())
        return tuple(x.aval for x in operands), Computation(_OPERATIONS[opcode].kind, results, attributes)

    def _unknown(self, opcode: str, at: int) -> NoReturn:
        known = ", ".join(f"`{name}`" for name in (*_OPERATIONS, "async", *_ATTRIBUTES))
        self.fail(f"there is no opcode `{opcode}`", f"Those that begin a name are {known}.", at)

    def _instruction(self, block: Block, values: dict[str, Value]) -> None:
        start, results, own = self._skip(), list[Value](), dict[str, Value]()
        if self._text.startswith("%", start):
            while not results or self._accept(","):
                at = self._skip()
                value = Value(self._new(values), "")
                own[value.name] = value
                results.append(value)
            self._expect("=")
            at = self._skip()
            for value, type_ in itertools.zip_longest(results, self.types()):
                if value is None or type_ is None:
                    self.fail("there is not one type for each result", at=at)
                value.aval = type_
        for name in own:
            del values[name]
        at, opcode = self._skip(), self._take(_WORD, "an opcode")
        self._expect("(")
        if opcode in ("parameter", "constant"):
            if len(results) != 1 or block.eqns or (opcode == "parameter" and block.constants):
                self.fail(f"a `{opcode}` stands at the beginning of its block, and has one result", at=at)
            if opcode == "parameter" and int(self._take(_INTEGER, "a number")) != len(block.invars):
                self.fail("parameters are numbered in order", at=at)
            self._expect(")")
            values |= own
            kept: Any = block.invars if opcode == "parameter" else block.constants
            setattr(block, "invars" if opcode == "parameter" else "constants", [*kept, *results])
            return
        operands = self._list(lambda: self._operand(values), ")")
        kind, _, part = opcode.rpartition("-")
        table = _ATTRIBUTES.get(part or "?" if kind else opcode)
        if table is None or (part in _PARTS.values()) != (kind == "async" or kind in _OPERATIONS):
            self._unknown(opcode, at)
        source = f"line {self._place(start)[0]}, column {self._place(start)[1]}" if self._at_places else ""
        eqn = Instruction(part if kind else opcode, results, operands, {}, source)
        computation = self._computation_of(kind, eqn) if kind else None
        eqn.params = self._attributes({**table, "source": str})
        said = eqn.params.pop("source")
        eqn.source = source or said
        if computation is not None:
            self._operation(eqn, computation, at)
        if (wrong := _misfit(eqn)) is not None:
            self.fail(wrong, "Each block is run with what it takes, and gives what is taken of it.", at)
        block.eqns.append(eqn)
        values |= own

    def _computation_of(self, kind: str, eqn: Instruction) -> Computation:
        if not eqn.invars and eqn.opcode != "start":
            self.fail("an update and a done have the ticket as their operand")
        if kind != "async":
            found = self._attributes({"results": (str,), **_in_common(kind)})
            return Computation(_OPERATIONS[kind].kind, found.pop("results"), tuple(found.items()))
        self._expect(", calls=")
        at, called = self._skip(), self._known(self._blocks, "computation")
        if not isinstance(called, tuple):
            self.fail("this is not the computation of an operation", at=at)
        if called[0] != (taken := _taken(eqn)) and taken is not None:
            self.fail(f"this computation takes {_tupled(called[0])}, and the operation {_tupled(taken)}", at=at)
        return called[1]

    def _operation(self, eqn: Instruction, computation: Computation, at: int) -> None:
        """Makes the operation of an instruction. The types of its values alias each other as HLO says."""
        params, results, where = eqn.params, [value.aval for value in eqn.outvars], eqn.source
        name, count = computation.kind, len(computation.results)
        if eqn.opcode == "start":
            name, told = params.pop("name"), params.pop("where")
            if told is not None and not (isinstance(told, tuple) and [*map(type, told)] == [str, int, str]):
                self.fail("`where` is a file, a line and a function, or `null`", at=at)
            where = where if self._at_places or told is None else Where(*told)
            type_ = _elements(results[0]) if len(results) == 1 else None
            if type_ is None or len(type_) != 3 or type_[0] != _tupled(_taken(eqn)):
                self.fail(
                    "the type of a start is `((operands), results, context)`, with the types of its operands", at=at
                )
            given, results = type_[1], [results[0], *(_elements(type_[1]) or [type_[1]] * (count == 1))]
        elif eqn.opcode == "update":
            if results[:1] != [eqn.invars[-1].aval]:
                self.fail("the first result of an update has the type of its operand", at=at)
            results = results if params["partial"] else [results[0]] * (1 + count) if len(results) == 1 else []
        else:
            results = [eqn.invars[-1].aval, *results]
        comes_to = (_elements(eqn.invars[-1].aval) or ("",) * 2)[1] if eqn.opcode != "start" else ""
        if len(results) != 1 + count or (
            comes_to and (eqn.opcode == "done" or params.get("partial")) and _one_or_tupled(results[1:]) != comes_to
        ):
            self.fail(f"the results are not those of {computation}", at=at)
        own = {
            field: params.pop(field)
            for field in ("lanes", "of_derivative", "host_function", "is_received")
            if field in params
        }
        params["operation"] = TextOperation(computation, name, where, **own)


def _misfit(eqn: Instruction) -> str | None:
    """What is wrong with what the blocks of an instruction take and give."""
    params, operands, results = eqn.params, len(eqn.invars), len(eqn.outvars)
    wanted: list[tuple[Block, int, int]] = []
    if eqn.opcode == "conditional":
        wanted = [(branch, operands - 1, results) for branch in params["branches"]]
        if not wanted:
            return "a conditional has branches"
    elif eqn.opcode == "scan":
        wanted = [(params["jaxpr"], operands, results)]
        if not (params["num_consts"] >= 0 and 0 <= params["num_carry"] <= results):
            return "a scan carries some of its results"
        if params["num_consts"] + params["num_carry"] > operands:
            return "a scan has fewer operands than constants and carried values"
    elif eqn.opcode == "while":
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        if (
            min(of_condition, of_body, operands - of_condition - of_body) < 0
            or of_condition + of_body + results != operands
        ):
            return "a loop carries as many values as it gives"
        wanted = [(params["cond_jaxpr"], of_condition + results, 1), (params["body_jaxpr"], of_body + results, results)]
    elif eqn.opcode == "call" and [len(body.invars) for body in params["to_apply"]] == [operands]:
        wanted = [(params["to_apply"][0], operands, results)]
    for body, takes, gives in wanted:
        if (len(body.invars), len(body.outvars)) != (takes, gives):
            return f"`{body.name}` takes {len(body.invars)} values and gives {len(body.outvars)}, and not {takes} and {gives}"
    return None


def read(text: str, at_places: bool = False) -> tuple[Program, dict[str, Any]]:
    """The program of a text, and the attributes of its module."""
    return _Reader(text, at_places).program()


def check_copies(text: str, module: dict[str, Any], operations: int) -> tuple[tuple[Copy, ...], Sequence[Any]]:
    """The copies of a module, and for each operation the positions of those in between."""
    copies, between = module["copies"], module["between"]
    fields = [str] * len(dataclasses.fields(Copy))
    if not (isinstance(copies, tuple) and all(isinstance(x, tuple) and [*map(type, x)] == fields for x in copies)):
        _Reader(text).fail("`copies` has a name, a type, a buffer and an origin of each")
    if not (isinstance(between, tuple) and len(between) == operations and all(map(_is_some_of(len(copies)), between))):
        _Reader(text).fail("`between` has for each operation `null` or the positions of copies, in order")
    return tuple(Copy(*copy) for copy in copies), between


def _is_some_of(count: int) -> Callable[[Any], bool]:
    def is_some(own: Any) -> bool:
        return own is None or (_fits(own, (int,)) and [*own] == sorted({at for at in own if 0 <= at < count}))

    return is_some
