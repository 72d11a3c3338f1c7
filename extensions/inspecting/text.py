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
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

import jax
import numpy as np

from effects import _jax
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.where import Where
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
from effects.extensions.asynchronous.tickets import Run, call_bodies, check_tickets, without_constants
from effects.extensions.inspecting.compiled_text import Copy
from effects.lowering.holders import find_holder

MSG_TEXT = "The text of a program cannot be read. Line {line}, column {column}: {what}. {remedy}"
_FORM = "Write what `Inspection.text` writes."


class TextError(ValueError):
    """What `effects.asynchronous.parse` was given is no text of a program.

    Attributes:
        lineno: The line, from 1.
        colno: The column, from 1.
    """

    def __init__(self, message: str, lineno: int, colno: int) -> None:
        super().__init__(message)
        self.lineno: int = lineno
        self.colno: int = colno

    def __reduce__(self) -> Any:
        return TextError, (str(self), self.lineno, self.colno)


TextError.__module__ = "effects.asynchronous"


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
    """Has the attributes of an equation of a jaxpr that `Run` reads. A start, an update or a done has a computation."""

    opcode: str
    outvars: Sequence[Value]
    invars: Sequence[Value]
    params: dict[str, Any]
    source: str
    computation: Computation | None = None
    place: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if (computation := self.computation) is not None:
            own = {"name": computation.kind, "where": self.source, "into_reference": False}
            own |= dict(computation.attributes) | self.params
            self.params["operation"] = types.SimpleNamespace(computation=computation, kind=computation.kind, **own)

    @property
    def primitive(self) -> Any:
        name = self.params.get("primitive", "")
        return _PRIMITIVES.get(self.opcode) or (_jax.shard_map_p if name == "shard_map" else _primitive(name))

    @functools.cached_property
    def effects(self) -> list[Any]:
        within = (eqn.effects for body in _bodies(self.params) for eqn in body.eqns)
        return [ASYNC] if self.computation or any(within) else []


@dataclasses.dataclass(eq=False)
class Block:
    """Has the attributes of a jaxpr that `Run` reads."""

    name: str
    invars: list[Value] = dataclasses.field(default_factory=list)
    constants: list[Value] = dataclasses.field(default_factory=list)
    eqns: list[Instruction] = dataclasses.field(default_factory=list)
    outvars: Sequence[Value] = ()


@functools.cache
def _primitive(name: str) -> Any:
    return _jax.Primitive(name)


def _plain(value: Any) -> Any:
    """A value as data of Python's, which can be written and read. A tuple of nothing but empty values becomes ()."""
    if isinstance(value, (tuple, list)):
        parts = tuple(map(_plain, value))
        return () if all(part in (None, ()) for part in parts) else parts
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _avals(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(value.aval for value in values)


def _bodies(params: dict[str, Any]) -> list[Block]:
    found = (value if isinstance(value, tuple) else (value,) for value in params.values())
    return [body for bodies in found for body in bodies if isinstance(body, Block)]


class TextRun(Run):
    """A run of a program of blocks. It checks that each block gets as many values as it has parameters and results."""

    each_call = True
    source_of: ClassVar[Callable[..., Any]] = staticmethod(lambda eqn, *around: eqn.source)
    is_reference: ClassVar[Callable[..., bool]] = staticmethod(lambda value: value.aval.startswith("Ref"))

    @staticmethod
    def bodies(params: Any) -> list[Any]:
        return _bodies(params)

    def call(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return self.walk_in_place(eqn, operands, eqn.params)

    def walk(self, jaxpr: Any, args: Sequence[Any], own: Sequence[Any] = ()) -> list[Any]:
        if len(args) != len(jaxpr.invars):
            raise _misfit(self.around[-1], f"`{jaxpr.name}` takes {len(jaxpr.invars)} values, and not {len(args)}")
        return super().walk(jaxpr, args, own)

    def apply(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        results = [len(branch.outvars) for branch in eqn.params.get("branches", ())] or [len(eqn.outvars)]
        outs = super().apply(eqn, operands) if len({*results}) == 1 else ()
        if len(outs) != len(eqn.outvars):
            raise _misfit(eqn, f"there are not {len(eqn.outvars)} results")
        return outs

    def loop(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        counts = [value for value in eqn.params.values() if isinstance(value, int)]
        missing = len(operands) - sum(counts) - len(eqn.outvars) * (eqn.opcode == "while")
        if min(counts) < 0 or missing < 0 or (missing and eqn.opcode == "while"):
            raise _misfit(eqn, "the loop has other numbers of constants and carried values")
        return super().loop(eqn, operands)


def _misfit(eqn: Instruction, what: str) -> TextError:
    line, column = eqn.place
    return TextError(MSG_TEXT.format(line=line, column=column, what=what, remedy=_FORM), line, column)


# The tables. An attribute is of a type of Python's, or of Block, or a tuple of such, or with `object` any data.

_PRIMITIVES: dict[str, Any] = {
    **{"start": async_start_p, "update": async_update_p, "done": async_done_p},
    **{"conditional": _jax.cond_p, "scan": _jax.scan_p, "while": _jax.while_p},
}
_PARTS = {async_start_p: "start", async_update_p: "update", async_done_p: "done"}

_OF_EACH: dict[str, Any] = {"lanes": (int,), "of_derivative": bool, "user_types": object}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "equation": {"primitive": str, "params": (object,)},
    "call": {"primitive": str, "to_apply": (Block,), "newly_manual_axes": (str,)},
    "conditional": {"branches": (Block,)},
    "scan": {"jaxpr": Block, "num_consts": int, "num_carry": int},
    "while": {"cond_jaxpr": Block, "body_jaxpr": Block, "cond_nconsts": int, "body_nconsts": int},
    "start": {"name": str, "where": (object,), "host_function": object, **_OF_EACH},
    "update": _OF_EACH,
    "done": _OF_EACH,
}
"""The attributes of an instruction by its opcode. An operation's opcode has the names of its parts here."""

_IN_COMMON: dict[str, Any] = {
    **{"schedule": bool, "into_reference": bool, "same_along": (object,), "placements": (object,)},
    **{"axes": (str,), "size": int, "receivers": object, "has_replicas": bool},
}
_OPERATIONS: dict[str, type[Operation]] = {"values": Kept, "collective": Exchanged, "callback": HostStartOp}
_OPCODES = {operation.kind: opcode for opcode, operation in _OPERATIONS.items()}
_RESULTS: dict[str, Any] = {"results": (str,)}
_MODULE: dict[str, Any] = {"copies": ((str,),), "between": (object,)}

_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("into_reference", "has_replicas", "of_derivative"), False),
    **dict.fromkeys(("params", "lanes", "same_along", "placements", "newly_manual_axes"), ()),
    **{"schedule": True, "receivers": None, "host_function": None, "user_types": None},
}
"""An attribute with this value is left out of the text."""


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
    """The element types of a tuple type, or None if the type is no tuple."""
    return tuple(Reader(type_[1:]).types(")")) if type_.startswith("(") else None


def _started(type_: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The operands and results that the type of a started value names. A loop or a call gives a context only: None."""
    elements = _elements(type_) or ()
    if len(elements) != 3 or (operands := _elements(elements[0])) is None:
        return None
    results = _elements(elements[1])
    return operands, (elements[1],) if results is None else results


def _taken(part: str, operands: Sequence[Value]) -> tuple[str, ...] | None:
    """The types of the operands of an operation, if its start, an update or the done with these operands say that."""
    if part == "start":
        return _avals(operands)
    started = _started(operands[-1].aval)
    return started and started[0]


# From a jaxpr


def _own(part: str, operation: Operation) -> dict[str, Any]:
    """The attributes of a start, an update or a done itself."""
    function = operation.site.content.function.key if isinstance(operation, HostStartOp) else None
    found = {"host_function": function, **vars(operation)}
    found["user_types"] = None if operation.of_derivative or part == "update" else _user_types(operation)
    return {name: found[name] for name in _ATTRIBUTES[part]}


def _user_types(operation: Operation) -> str | None:
    """The types that the user's line has in each lane, where the operation has others."""
    if (finish := operation.finish) is None:
        return operation.user_types
    results = dataclasses.replace(operation, lanes=()).results_of_lanes
    return ", ".join(map(str, jax.make_jaxpr(lambda found: [*map(finish, found)])(results).out_avals))


def _data_of(params: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The parameters of an equation that are data, but for those that say nothing. A site is what its content says."""
    said = {name: value.content.title if isinstance(value, Site) else value for name, value in params.items()}
    said |= {name: str(said[name]) for name in said if name == "attributes"}  # of a custom call
    return tuple((name, x) for name, x in said.items() if _is_data(x) and x is not None and x is not False and x != ())


def _is_data(value: Any) -> bool:
    return all(map(_is_data, value)) if type(value) is tuple else value is None or type(value) in (bool, int, str)


class _Translation:
    """The blocks of a jaxpr. Bodies are blocks of their own where an operation or a ticket comes into them."""

    def __init__(self) -> None:
        self._numbers, self._blocks = itertools.count(), dict[Any, Block]()
        self._block = Block("%main")

    def block(self, name: str, jaxpr: Any, operands: Sequence[Value] | None = None) -> Block:
        """`operands`: what it is run with; a parameter may be a ticket if the operand may."""
        inner, around = without_constants(jaxpr), self._block
        tickets = tuple(value.may_be_ticket for value in operands or [Value("", "")] * len(inner.invars))
        if (known := self._blocks.get((inner, tickets))) is not None:
            return known
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}.{len(self._blocks)}" if self._blocks else name
        block = self._block = Block(f"%{name}")
        self._blocks[inner, tickets] = block
        block.invars = [self._value(var.aval, flag) for var, flag in zip(inner.invars, tickets, strict=True)]
        block.constants = [self._value(var.aval) for var in inner.constvars]
        known_values = dict(zip([*inner.invars, *inner.constvars], [*block.invars, *block.constants], strict=True))

        def read(atom: Any) -> Value:
            if hasattr(atom, "val"):
                return Value(_quoted(str(_jax.plain_number(atom.val))), str(atom.aval))
            return known_values[atom]

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
        tickets, operation = any(x.may_be_ticket for x in operands) or is_asynchronous(eqn), eqn.params.get("operation")
        results, computation = [self._value(aval, tickets) for aval in avals], None
        if opcode in _PARTS.values():
            attributes = tuple((name, _plain(value)) for name, value in operation.computation.attributes)
            computation = operation.computation._replace(attributes=attributes)
        if opcode == "start":
            comes_to = _one_or_tupled([*map(str, operation.results_of_lanes)])
            results[0].aval = _tupled([_tupled(_avals(operands)), comes_to, results[0].aval])
        elif opcode == "update":
            results[0].aval = operands[-1].aval
        self._block.eqns.append(Instruction(opcode, results, operands, params, _jax.source_of(eqn), computation))
        return results

    def _apply(self, eqn: Any, operands: list[Value]) -> Sequence[Value]:
        primitive, params, avals = eqn.primitive, eqn.params, [var.aval for var in eqn.outvars]
        if (part := _PARTS.get(primitive)) is not None:
            return self._add(part, eqn, operands, avals, **_own(part, params["operation"]))
        block = self.block
        is_looked_into = is_asynchronous(eqn) or any(value.may_be_ticket for value in operands)
        if not is_looked_into or not (any(_jax.jaxprs_in(params)) or find_holder(primitive) is not None):
            name = params["site"].effect.name if primitive is effect_p else primitive.name
            return self._add("equation", eqn, operands, avals, primitive=name, params=_data_of(params))
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
            alone = [len(body.invars) for body in bodies] == [len(operands)]
            blocks = tuple(block(primitive.name, body, operands if alone else None) for body in bodies)
            own = {"primitive": primitive.name, "to_apply": blocks, "newly_manual_axes": axes}
            return self._add("call", eqn, operands, avals, **own)

        return call_bodies(
            eqn,
            operands,
            lambda operands, params: call(operands, Run.bodies(params), avals),
            lambda body, operands: call(operands, [without_constants(body)], body.out_avals),
        )


# Writing


def translated(jaxpr: Any) -> Block:
    """The block of a jaxpr, with which a program begins."""
    return _Translation().block("main", jaxpr)


def written(entry: Block, short: bool, copies: Any, between: Any) -> str:
    """The text of the program that begins with a block, in the short form or the long one."""
    order = [*_post_order(entry, set())]
    called = {} if short else _called(order)
    blocks = [_written(block, called, short) for block in order]
    computations = [_written_computation(name, *of) for of, name in called.items() if of[0] is not None]
    header = "HloModule" + _attributes(_MODULE, {"copies": copies, "between": between})
    return "\n\n".join([header, *computations, *blocks[:-1], f"ENTRY {blocks[-1]}"])


def _post_order(block: Block, known: set[Block]) -> Iterator[Block]:
    known.add(block)
    for body in (body for eqn in block.eqns for body in _bodies(eqn.params)):
        if body not in known:
            yield from _post_order(body, known)
    yield block


def _called(blocks: Sequence[Block]) -> dict[Any, str]:
    """The names of computations, by operand types and computation. Where the operand types are not known, a computation
    that has been started with the same attributes is taken, if there is one."""
    names: dict[Any, str] = {}
    parts = [eqn for block in blocks for eqn in block.eqns if eqn.computation]
    of = [(_taken(eqn.opcode, eqn.invars), eqn.computation) for eqn in parts]
    for taken, computation in sorted(of, key=lambda each: each[0] is None):
        known = (name for (_, other), name in names.items() if other == computation and taken is None)
        names.setdefault((taken, computation), next(known, f"%{_OPCODES[computation.kind]}.{len(names)}"))
    return names


def _written(block: Block, called: dict[Any, str], short: bool) -> str:
    lines = [f"{value.name} = {value.aval} constant()" for value in block.constants]
    lines += [_line(eqn, called, short) for eqn in block.eqns]
    return _braced(block.name, block.invars, [*lines, f"ROOT tuple({', '.join(map(str, block.outvars))})"])


def _line(eqn: Instruction, called: dict[Any, str], short: bool) -> str:
    opcode, table, values = eqn.opcode, _ATTRIBUTES[eqn.opcode], {**eqn.params, "source": eqn.source}
    if (computation := eqn.computation) is not None:
        kind = _OPCODES[computation.kind]
        if short:
            table = _RESULTS | _in_common(kind) | table
            values |= {"results": computation.results, **dict(computation.attributes)}
        else:
            values["calls"] = called[_taken(opcode, eqn.invars), computation]
            table, kind = {"calls": None} | table, "async"
        opcode = f"{kind}-{opcode}"
    results = ", ".join(value.name for value in eqn.outvars)
    types = ", ".join(value.aval for value in eqn.outvars)
    left = f"{results} = {types} " if results else ""
    operands = ", ".join(map(str, eqn.invars))
    return f"{left}{opcode}({operands})" + _attributes({**table, "source": str}, values)


def _written_computation(name: str, taken: Sequence[str], computation: Computation) -> str:
    opcode, operands = _OPCODES[computation.kind], [Value(f"%operand{at}", x) for at, x in enumerate(taken)]
    root = f"ROOT %results = {_one_or_tupled(computation.results)} {opcode}({', '.join(map(str, operands))})"
    return _braced(name, operands, [root + _attributes(_in_common(opcode), dict(computation.attributes))])


def _braced(name: str, operands: Sequence[Value], lines: Sequence[str]) -> str:
    parameters = (f"{value.name} = {value.aval} parameter({at})" for at, value in enumerate(operands))
    return "\n  ".join([f"{name} {{", *parameters, *lines]) + "\n}"


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
_SPACE = re.compile(r"\s*")
_JSON = json.JSONDecoder()


class Reader:
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
        """Reads items that commas separate, up to a mark."""
        found: list[Any] = []
        while not self._accept(end):
            if found:
                self._expect(",")
            found.append(read())
        return found

    def types(self, end: str) -> list[str]:
        """Types with commas between them, up to a mark."""
        return self._list(self.type, end)

    def type(self) -> str:
        if self._accept("("):
            return _tupled(self.types(")"))
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

    def _value(self) -> Any:
        at = self._skip()
        if self._accept("{"):
            return tuple(self._list(self._value, "}"))
        if self._text.startswith("%", at):
            return self._known(self._blocks, "block")
        return self._datum()

    def _datum(self) -> Any:
        """A string, an integer, `true`, `false` or `null`."""
        at = self._skip()
        try:
            value, self._at = _JSON.raw_decode(self._text, at)
        except ValueError:
            value = 0.0
        return self.fail("a value was expected", at=at) if isinstance(value, (float, list, dict)) else value

    def _known(self, names: dict[str, Any], what: str) -> Any:
        at, name = self._skip(), self._take(_NAME, f"the name of a {what}")
        if name not in names:
            self.fail(f"there is no {what} `{name}` ahead of here", "Define what is used ahead of its use.", at)
        return names[name]

    def _unused(self, names: dict[str, Any]) -> str:
        at, name = self._skip(), self._take(_NAME, "a name")
        if name in names:
            self.fail(f"`{name}` is defined already", "Give each value and each block a name of its own.", at)
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

    def program(self) -> tuple[Block, tuple[Copy, ...], list[tuple[Copy, ...] | None]]:
        """The program, its copies, and those in between of each operation."""
        try:
            return self._program()
        except RecursionError:
            self.fail("what stands here is nested too deeply", "Nest less.")

    def _program(self) -> tuple[Block, tuple[Copy, ...], list[tuple[Copy, ...] | None]]:
        self._expect("HloModule")
        at, module = self._at, self._attributes(_MODULE)
        try:
            copies = tuple(Copy(*copy) for copy in module["copies"])
            between = [None if own is None else tuple(copies[at] for at in own) for own in module["between"]]
        except (TypeError, IndexError):
            self.fail("`copies` are names, types, buffers and origins, and `between` some of their positions", at=at)
        while not self._accept("ENTRY"):
            self._block()
        at, entry = self._skip(), self._block()
        if not isinstance(entry, Block):
            self.fail("the root of the `ENTRY` is no `tuple`", at=at)
        if self._skip() < len(self._text):
            self.fail("the text goes on behind its `ENTRY`", "End it there.")
        check_tickets(entry, run := TextRun())
        if len({flight.place for flight in run.flights}) != len(between):
            self.fail("`between` is not of as many operations as are started", at=len("HloModule"))
        return entry, copies, between

    def _block(self) -> Any:
        """A block, or what the computation of an operation takes and is."""
        name = self._unused(self._blocks)
        block, values = Block(name), dict[str, Value]()
        self._expect("{")
        while not self._accept("ROOT"):
            self._instruction(block, values)
        if is_block := self._accept("tuple("):
            block.outvars = self._list(lambda: self._operand(values), ")")
        self._blocks[name] = block if is_block else self._computation(block, values)
        self._expect("}")
        return self._blocks[name]

    def _operand(self, values: dict[str, Value]) -> Value:
        at, type_ = self._skip(), self.type()
        if self._text.startswith('"', self._skip()):
            return Value(_quoted(self._datum()), type_)
        value = self._known(values, "value")
        if value.aval != type_:
            self.fail(f"`{value.name}` is of type {value.aval}, and not {type_}", "Write the type that it has.", at)
        return value

    def _computation(self, block: Block, values: dict[str, Value]) -> tuple[tuple[str, ...], Computation]:
        self._expect("%results =")
        type_, at = self.type(), self._skip()
        if (opcode := self._take(_WORD, "an opcode")) not in _OPERATIONS:
            self._unknown(opcode, at)
        self._expect("(")
        if self._list(lambda: self._operand(values), ")") != [*block.invars] or block.eqns or block.constants:
            self.fail("the computation of an operation is one instruction of all parameters, in order", at=at)
        elements, attributes = _elements(type_), self._attributes(_in_common(opcode))
        computation = (type_,) if elements is None else elements, tuple(attributes.items())
        return _avals(block.invars), Computation(_OPERATIONS[opcode].kind, *computation)

    def _unknown(self, opcode: str, at: int) -> NoReturn:
        known = ", ".join(f"`{name}`" for name in (*_OPERATIONS, "async", *_ATTRIBUTES))
        self.fail(f"there is no opcode `{opcode}`", f"What opcodes are made of is {known}.", at)

    def _instruction(self, block: Block, values: dict[str, Value]) -> None:
        start, names, result_types = self._skip(), list[str](), list[str]()
        if self._text.startswith("%", start):
            while not names or self._accept(","):
                names.append(self._unused(values))
            self._expect("=")
            while not result_types or self._accept(","):
                result_types.append(self.type())
            if not len({*names}) == len(names) == len(result_types):
                self.fail("there is not one name and one type for each result", at=start)
        results = [*map(Value, names, result_types)]
        at, opcode = self._skip(), self._take(_WORD, "an opcode")
        self._expect("(")
        if opcode in ("parameter", "constant"):
            kept, later = (block.invars, block.constants) if opcode == "parameter" else (block.constants, [])
            if len(results) != 1 or later or block.eqns or (opcode == "parameter" and self._datum() != len(kept)):
                self.fail("parameters, in order, and then constants are ahead of all else, with a result each", at=at)
            self._expect(")")
            kept.extend(results)
        else:
            operands = self._list(lambda: self._operand(values), ")")
            kind, _, part = opcode.rpartition("-")
            is_part = part in _PARTS.values() and kind in (*_OPERATIONS, "async")
            if not is_part and (kind or part in _PARTS.values() or part not in _ATTRIBUTES):
                self._unknown(opcode, at)
            computation = self._computation_of(kind, part, operands, at) if is_part else None
            params = self._attributes({**_ATTRIBUTES[part], "source": str})
            source = params.pop("source")
            if part == "start":
                if len(params["where"]) != 3:
                    self.fail("`where` is a file, a line and a function", at=at)
                params["where"] = Where(*params["where"])
            place = self._place(start)
            if self._at_places:
                source = "line {}, column {}".format(*place)
                params |= {"where": source} if part == "start" else {}
            eqn = Instruction(part, results, operands, params, source, computation, place)
            if computation is not None:
                self._check_types(eqn, computation, at)
            block.eqns.append(eqn)
        values |= dict(zip(names, results, strict=True))

    def _computation_of(self, kind: str, part: str, operands: Sequence[Value], at: int) -> Computation:
        if not operands and part != "start":
            self.fail("an update and a done have the ticket as their operand", at=at)
        if kind != "async":
            found = self._attributes(_RESULTS | _in_common(kind))
            return Computation(_OPERATIONS[kind].kind, found.pop("results"), tuple(found.items()))
        self._expect(", calls=")
        at, called = self._skip(), self._known(self._blocks, "computation")
        if not isinstance(called, tuple):
            self.fail("this is not the computation of an operation", at=at)
        if called[0] != (taken := _taken(part, operands)) and taken is not None:
            self.fail(f"this computation takes {_tupled(called[0])}, and the operation {_tupled(taken)}", at=at)
        return called[1]

    def _check_types(self, eqn: Instruction, computation: Computation, at: int) -> None:
        """The operands and the results of an operation are the same from its start to its done."""
        ticket, given = eqn.outvars[:1] if eqn.opcode == "start" else eqn.invars[-1:], _avals(eqn.outvars)
        started = _started(ticket[0].aval) if ticket else None
        if eqn.opcode == "start" and (started is None or started[0] != _avals(eqn.invars)):
            self.fail("the type of a start is `((operands), results, context)`, with the types of its operands", at=at)
        is_done = eqn.opcode == "done"
        comes_to = started[1] if started else given if is_done else computation.results
        wanted = comes_to if is_done else _avals(ticket)
        if given != wanted or len(comes_to) != len(computation.results):
            self.fail(f"the results are not those of {computation}", at=at)
