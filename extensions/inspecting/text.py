"""Asynchronous programs as text, in the syntax of HLO.

A program is written and read by the same tables: the attributes of each instruction, in order, and their types. It is
one block, whose instructions `Run` follows like the equations of a jaxpr. So a parsed program is refused as a traced
one is. Functions and regions with operations are written in place. Types are those of JAX. The type of a start is a
tuple, as in HLO: the operands, the results, and the context, which is the ticket.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import jax
import numpy as np

from effects import _errors as errors
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
from effects.extensions.asynchronous.tickets import (
    Run,
    bodies_in,
    check_tickets,
    inside_region_of,
    without_constants,
)
from effects.extensions.inspecting.compiled_text import Copy

_PAGE = "docs/guide/asynchronous.md#write-and-read-programs"
MSG_TEXT = "The text of a program cannot be read. Line {line}, column {column}: {what}. {remedy}"
MSG_NESTED = (
    "The asynchronous operations in the `{primitive}` at {where} cannot be written as text. In a text operations stand "
    "one after the other, and so none is in a loop or a branch. Read the report, `str(inspection)`, or inspect the "
    "body of the loop or branch by itself."
)
_FORM = "Write what `Inspection.text` writes."


class TextError(ValueError):
    """Raised by `effects.asynchronous.parse` if its argument is not the text of a program.

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
    place: str = ""  # of a parsed text

    def __post_init__(self) -> None:
        if (computation := self.computation) is not None:
            own = {"name": computation.kind, "into_reference": False, **dict(computation.attributes), **self.params}
            own |= {"where": self.place, "computation": computation, "kind": computation.kind}
            self.params["operation"] = types.SimpleNamespace(**own)

    @property
    def primitive(self) -> Any:
        return _PRIMITIVES.get(self.opcode) or _primitive(self.params["primitive"])

    @property
    def effects(self) -> list[Any]:
        return [ASYNC] if self.computation else []


@dataclasses.dataclass(eq=False)
class Block:
    """Has the attributes of a jaxpr that `Run` reads."""

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


class TextRun(Run):
    """A run of a block that was read."""

    source_of: ClassVar[Callable[..., Any]] = staticmethod(lambda eqn, *around: eqn.place)
    is_reference: ClassVar[Callable[..., bool]] = staticmethod(lambda value: value.aval.startswith("Ref"))


# The tables. An attribute has a Python type, or a tuple of such types, or with `object` any data.

_PRIMITIVES: dict[str, Any] = {"start": async_start_p, "update": async_update_p, "done": async_done_p}
_PARTS = {primitive: part for part, primitive in _PRIMITIVES.items()}

_OF_EACH: dict[str, Any] = {"lanes": (int,), "of_derivative": bool, "user_types": object}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "equation": {"primitive": str, "params": (object,)},
    "start": {"name": str, "where": (object,), "host_function": object, "computed": str, **_OF_EACH},
    "update": _OF_EACH,
    "done": _OF_EACH,
}
"""The attributes of an instruction by its opcode. An operation's opcode has the names of its parts here."""

_IN_COMMON: dict[str, Any] = {
    **{"schedule": bool, "into_reference": bool, "same_along": (object,), "placements": (object,)},
    **{"axes": (str,), "size": int, "receivers": object, "has_replicas": bool},
}
_OPERATIONS: dict[str, type[Operation]] = {
    **{"values": Kept, "copy": Kept, "callback": HostStartOp},
    **{"collective-permute": Exchanged, "all-to-all": Exchanged},
}
_RESULTS: dict[str, Any] = {"results": (str,)}
_MODULE: dict[str, Any] = {"copies": ((str,),), "between": (object,)}

_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("into_reference", "has_replicas", "of_derivative"), False),
    **dict.fromkeys(("params", "lanes", "same_along", "placements"), ()),
    **{"schedule": True, "receivers": None, "host_function": None, "user_types": None, "computed": None},
}
"""An attribute with this value is left out of the text."""


def _in_common(opcode: str) -> dict[str, Any]:
    """The attributes of the computation of an operation. Other opcodes are primitives of JAX's."""
    if opcode not in _OPERATIONS:
        return {**_in_common("values"), "params": (object,)}
    return {name: _IN_COMMON[name] for name in _OPERATIONS[opcode].in_common}


def _opcode(computation: Computation) -> str:
    has = dict(computation.attributes)
    if "primitive" in has:
        return has["primitive"]
    if computation.kind == Exchanged.kind:
        return "all-to-all" if has["receivers"] is None else "collective-permute"
    return "callback" if computation.kind == HostStartOp.kind else "copy" if has["into_reference"] else "values"


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return isinstance(value, tuple) and all(_fits(part, kind[0]) for part in value)
    return kind is object or type(value) is kind


# Types of operations


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
    """The operands and results that the type of a started value names. Zeros of a derivative name none: None."""
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
    found = {"host_function": function, "computed": None, **vars(operation)}
    found["user_types"] = None if operation.of_derivative or part == "update" else _user_types(operation)
    return {name: found[name] for name in _ATTRIBUTES[part]}


def _user_types(operation: Operation) -> str | None:
    """The types that the user's line has in each lane, if those of the operation differ."""
    if (finish := operation.finish) is None:
        return operation.user_types
    results = dataclasses.replace(operation, lanes=()).results_of_lanes
    return ", ".join(map(str, jax.make_jaxpr(lambda found: [*map(finish, found)])(results).out_avals))


def _data_of(params: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The parameters of an equation that are data, except empty ones. A site is shown as the title of its content."""
    said = {name: value.content.title if isinstance(value, Site) else value for name, value in params.items()}
    said |= {name: str(said[name]) for name in said if name == "attributes"}  # of a custom call
    return tuple((name, x) for name, x in said.items() if _is_data(x) and x is not None and x is not False and x != ())


def _is_data(value: Any) -> bool:
    return all(map(_is_data, value)) if type(value) is tuple else value is None or type(value) in (bool, int, str)


def instruction_of(eqn: Any, operands: Sequence[Value], results: Sequence[Value]) -> Instruction:
    """An equation as an instruction."""
    source, params = _jax.source_of(eqn), eqn.params
    if (part := _PARTS.get(eqn.primitive)) is None:
        name = params["site"].effect.name if eqn.primitive is effect_p else eqn.primitive.name
        return Instruction("equation", results, operands, {"primitive": name, "params": _data_of(params)}, source)
    operation = params["operation"]
    attributes = tuple((name, _plain(value)) for name, value in operation.computation.attributes)
    computation = operation.computation._replace(attributes=attributes)
    return Instruction(part, results, operands, _own(part, operation), source, computation)


class _Translation:
    """The block of a jaxpr, in which a function is written in place where an operation or a ticket comes into it."""

    def __init__(self, jaxpr: Any) -> None:
        inner, self._numbers, self.block = without_constants(jaxpr), itertools.count(), Block()
        self.block.invars = [self._value(var.aval) for var in inner.invars]
        self.block.outvars = self._walk(inner, self.block.invars)

    def _walk(self, jaxpr: Any, operands: Sequence[Value]) -> list[Value]:
        constants = [self._value(var.aval) for var in jaxpr.constvars]
        self.block.constants += constants
        known = dict(zip([*jaxpr.invars, *jaxpr.constvars], [*operands, *constants], strict=True))

        def read(atom: Any) -> Value:
            if hasattr(atom, "val"):
                return Value(_quoted(str(_jax.plain_number(atom.val))), str(atom.aval))
            return known[atom]

        for eqn in jaxpr.eqns:
            known.update(zip(eqn.outvars, self._apply(eqn, [*map(read, eqn.invars)]), strict=True))
        return [*map(read, jaxpr.outvars)]

    def _apply(self, eqn: Any, operands: list[Value]) -> Sequence[Value]:
        is_part, bodies = eqn.primitive in _PARTS, bodies_in(eqn.params)
        if is_part or not bodies or not (is_asynchronous(eqn) or any(value.may_be_ticket for value in operands)):
            return self._add(eqn, operands)
        alone = [(len(body.invars), len(body.outvars)) for body in bodies] == [(len(operands), len(eqn.outvars))]
        if eqn.primitive in (_jax.cond_p, _jax.scan_p, _jax.while_p) or not alone:
            raise errors.unsupported(MSG_NESTED.format(primitive=eqn.primitive, where=_jax.source_of(eqn)))
        with inside_region_of(eqn):
            outs = self._walk(bodies[0], self._across(eqn, operands, bodies[0].invars))
        return self._across(eqn, outs, eqn.outvars)

    def _across(self, eqn: Any, values: Sequence[Value], inside: Sequence[Any]) -> list[Value]:
        """The values on the other side of a function's border. The border of a region changes their types."""
        return [
            value if value.may_be_ticket or value.aval == str(var.aval) else self._add(eqn, [value], [var])[0]
            for value, var in zip(values, inside, strict=True)
        ]

    def _value(self, aval: Any, may_be_ticket: bool = False) -> Value:
        is_ticket = getattr(aval, "shape", ())[-1:] == (TICKET_LENGTH,) and aval.dtype == np.float32
        return Value(f"%{next(self._numbers)}", str(aval), may_be_ticket and is_ticket)

    def _add(self, eqn: Any, operands: Sequence[Value], outvars: Sequence[Any] | None = None) -> Sequence[Value]:
        tickets = any(x.may_be_ticket for x in operands) or eqn.primitive is async_start_p
        results = [self._value(var.aval, tickets) for var in (eqn.outvars if outvars is None else outvars)]
        if eqn.primitive is async_start_p:
            comes_to = _one_or_tupled([*map(str, eqn.params["operation"].results_of_lanes)])
            results[0].aval = _tupled([_tupled(_avals(operands)), comes_to, results[0].aval])
        elif eqn.primitive is async_update_p:
            results[0].aval = operands[-1].aval
        self.block.eqns.append(instruction_of(eqn, operands, results))
        return results


# A start whose operands one equation has computed is written as the start of that equation.

_NEVER_STARTED = frozenset({"async", "equation", "parameter", "constant", "tuple"})


def _folded(block: Block) -> Block:
    """The block in which a start takes the operands of the one equation that has computed its own."""
    uses = Counter(value.name for values in [*(eqn.invars for eqn in block.eqns), block.outvars] for value in values)
    tickets: dict[str, tuple[Value, tuple[tuple[str, Any], ...]]] = {}  # with the equation that was started
    eqns: list[Instruction] = []
    for eqn in block.eqns:
        operands = [tickets[x.name][0] if x.name in tickets else x for x in eqn.invars]
        results, params, computation = eqn.outvars, {**eqn.params}, eqn.computation
        root = tickets[operands[-1].name][1] if operands and operands[-1].name in tickets else ()
        if computation is not None:
            own = tuple(each for each in computation.attributes if each[0] not in ("primitive", "params"))
            computation = computation._replace(attributes=own)
            if eqn.opcode == "start" and eqns and _is_started(eqns[-1], eqn, computation, uses):
                computed = eqns.pop()
                operands, root = [*computed.invars], tuple(computed.params.items())
                params["computed"] = None if computed.source == eqn.source else computed.source
                elements = _elements(results[0].aval) or ()
                results = [Value(results[0].name, _tupled([_tupled(_avals(operands)), *elements[1:]]))]
            elif eqn.opcode == "update":
                results = [Value(results[0].name, operands[-1].aval)]
            if root and eqn.opcode != "done":
                tickets[results[0].name] = results[0], root
            computation = computation._replace(attributes=own + root)
        eqns.append(Instruction(eqn.opcode, results, operands, params, eqn.source, computation, eqn.place))
    return Block(block.invars, block.constants, eqns, block.outvars)


def _is_started(computed: Instruction, start: Instruction, computation: Computation, uses: Counter[str]) -> bool:
    if _opcode(computation) != "values" or computed.opcode != "equation" or not computed.outvars:
        return False
    if computed.params["primitive"] in {*_OPERATIONS, *_NEVER_STARTED}:
        return False
    if [x.name for x in computed.outvars] != [x.name for x in start.invars]:
        return False
    fits = (_started(start.outvars[0].aval) or ((), ()))[1] == _avals(computed.outvars)
    return fits and all(uses[x.name] == 1 for x in computed.outvars)


def _unfolded(eqn: Instruction) -> list[Instruction]:
    """The equation and the start of its results, if both were read as one start."""
    has = dict(eqn.computation.attributes) if eqn.computation and eqn.opcode == "start" else {}
    if "primitive" not in has:
        return [eqn]
    _, comes_to = _started(eqn.outvars[0].aval) or ((), ())
    values = [Value(f"{eqn.outvars[0].name}<{at}>", aval) for at, aval in enumerate(comes_to)]
    params = {name: has[name] for name in ("primitive", "params")}
    source = eqn.params["computed"] or eqn.source
    start = Instruction("start", eqn.outvars, values, eqn.params, eqn.source, eqn.computation, eqn.place)
    return [Instruction("equation", values, eqn.invars, params, source, None, eqn.place), start]


# Writing


def translated(jaxpr: Any) -> Block:
    """The block of a jaxpr. Raises NotImplementedError if it has operations in a loop or a branch."""
    return _Translation(jaxpr).block


def written(block: Block, short: bool, copies: Any, between: Any) -> str:
    """The text of a program, in the short form or the long one."""
    block = _folded(block)
    called = {} if short else _called(block)
    computations = [_written_computation(name, *of) for of, name in called.items() if of[0] is not None]
    header = "HloModule" + _attributes(_MODULE, {"copies": copies, "between": between})
    return "\n\n".join([header, *computations, f"ENTRY {_written(block, called, short)}"])


def _called(block: Block) -> dict[Any, str]:
    """The names of computations, by operand types and computation. Where the operand types are not known, a computation
    that has been started with the same attributes is taken, if there is one."""
    names: dict[Any, str] = {}
    of = [(_taken(eqn.opcode, eqn.invars), eqn.computation) for eqn in block.eqns if eqn.computation]
    for taken, computation in sorted(of, key=lambda each: each[0] is None):
        known = (name for (_, other), name in names.items() if other == computation and taken is None)
        names.setdefault((taken, computation), next(known, f"%{_opcode(computation)}.{len(names)}"))
    return names


def _written(block: Block, called: dict[Any, str], short: bool) -> str:
    lines = [f"{value.name} = {value.aval} constant()" for value in block.constants]
    lines += [_line(eqn, called, short) for eqn in block.eqns]
    return _braced("%main", block.invars, [*lines, f"ROOT tuple({', '.join(map(str, block.outvars))})"])


def _line(eqn: Instruction, called: dict[Any, str], short: bool) -> str:
    opcode, table, values = eqn.opcode, _ATTRIBUTES[eqn.opcode], {**eqn.params, "source": eqn.source}
    if (computation := eqn.computation) is not None:
        kind = _opcode(computation)
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
    opcode, operands = _opcode(computation), [Value(f"%operand{at}", x) for at, x in enumerate(taken)]
    root = f"ROOT %results = {_one_or_tupled(computation.results)} {opcode}({', '.join(map(str, operands))})"
    return _braced(name, operands, [root + _attributes(_in_common(opcode), dict(computation.attributes))])


def _braced(name: str, operands: Sequence[Value], lines: Sequence[str]) -> str:
    parameters = (f"{value.name} = {value.aval} parameter({at})" for at, value in enumerate(operands))
    return "\n  ".join([f"{name} {{", *parameters, *lines]) + "\n}"


def _attributes(table: dict[str, Any], values: dict[str, Any]) -> str:
    said = (name for name in table if name not in _DEFAULTS or values[name] != _DEFAULTS[name])
    return "".join(f", {name}={values[name] if name == 'calls' else _data(values[name])}" for name in said)


def _data(value: Any) -> str:
    return f"{{{', '.join(map(_data, value))}}}" if isinstance(value, tuple) else _quoted(value)


# Reading


_WORD = re.compile(r"[A-Za-z_][\w\-]*")
_NAME = re.compile(r"%[\w.\-<>]+")
_SPACE = re.compile(r"\s*")
_JSON = json.JSONDecoder()


class Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._computations: dict[str, tuple[tuple[str, ...], Computation]] = {}  # with the operation's operands

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
        return tuple(self._list(self._value, "}")) if self._accept("{") else self._datum()

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
            self.fail(f"`{name}` is defined already", "Give each value and each computation a name of its own.", at)
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

    def program(self) -> tuple[Block, Run, tuple[Copy, ...], list[tuple[Copy, ...] | None]]:
        """The program, the run of it, its copies, and those in between of each operation."""
        try:
            return self._program()
        except RecursionError:
            self.fail("what stands here is nested too deeply", "Nest less.")

    def _program(self) -> tuple[Block, Run, tuple[Copy, ...], list[tuple[Copy, ...] | None]]:
        self._expect("HloModule")
        at, module = self._at, self._attributes(_MODULE)
        try:
            copies = tuple(Copy(*copy) for copy in module["copies"])
            between = [None if own is None else tuple(copies[at] for at in own) for own in module["between"]]
        except (TypeError, IndexError):
            self.fail("`copies` are names, types, buffers and origins, and `between` some of their positions", at=at)
        while not self._accept("ENTRY"):
            name, block, values = self._unused(self._computations), Block(), dict[str, Value]()
            self._body(block, values)
            self._computations[name] = self._computation(block, values)
            self._expect("}")
        self._expect("%main")
        entry, values = Block(), {}
        self._body(entry, values)
        self._expect("tuple(")
        entry.outvars = self._list(lambda: self._operand(values), ")")
        self._expect("}")
        if self._skip() < len(self._text):
            self.fail("the text goes on behind its `ENTRY`", "End it there.")
        check_tickets(entry, run := TextRun())
        if len(run.flights) != len(between):
            self.fail("`between` is not of as many operations as are started", at=len("HloModule"))
        return entry, run, copies, between

    def _body(self, block: Block, values: dict[str, Value]) -> None:
        """The instructions ahead of the root."""
        self._expect("{")
        while not self._accept("ROOT"):
            self._instruction(block, values)

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
        if (opcode := self._take(_WORD, "an opcode")) in _NEVER_STARTED:
            self._unknown(opcode, at)
        self._expect("(")
        if self._list(lambda: self._operand(values), ")") != [*block.invars] or block.eqns or block.constants:
            self.fail("the computation of an operation is one instruction of all parameters, in order", at=at)
        return _avals(block.invars), self._operation(opcode, at, _elements(type_) or (type_,))

    def _operation(self, opcode: str, at: int, results: tuple[str, ...] | None = None) -> Computation:
        """Reads the attributes of an operation, and its results if they are among them."""
        found = self._attributes((_RESULTS if results is None else {}) | _in_common(opcode))
        results = found.pop("results") if results is None else results
        found = found if opcode in _OPERATIONS else {**found, "primitive": opcode, "params": found.pop("params")}
        computation = Computation(_OPERATIONS.get(opcode, Kept).kind, results, tuple(found.items()))
        if _opcode(computation) != opcode:
            self.fail(f"the opcode of an operation with these attributes is `{_opcode(computation)}`", at=at)
        return computation

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
            is_part = bool(kind) and part in _PARTS.values() and kind not in _NEVER_STARTED - {"async"}
            if not is_part and (kind or part in _PARTS.values() or part not in _ATTRIBUTES):
                self._unknown(opcode, at)
            computation = self._computation_of(kind, part, operands, at) if is_part else None
            params = self._attributes({**_ATTRIBUTES[part], "source": str})
            if part == "start":
                if len(params["where"]) != 3:
                    self.fail("`where` is a file, a line and a function", at=at)
                params["where"] = Where(*params["where"])
            place = "line {}, column {}".format(*self._place(start))
            eqn = Instruction(part, results, operands, params, params.pop("source"), computation, place)
            if computation is not None:
                self._check_types(eqn, computation, at)
            block.eqns += _unfolded(eqn)
        values |= dict(zip(names, results, strict=True))

    def _computation_of(self, kind: str, part: str, operands: Sequence[Value], at: int) -> Computation:
        if not operands and part != "start":
            self.fail("an update and a done have the ticket as their operand", at=at)
        if kind != "async":
            return self._operation(kind, at)
        self._expect(", calls=")
        at, called = self._skip(), self._known(self._computations, "computation")
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
