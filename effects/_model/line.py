"""Lines: the content of `fx.print`, `fx.print_grad` and `jax.debug.print`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._jax import patches
from effects._model.content import NativeText, Report, described_by
from effects._model.operand import Operand, Static, flat_arguments, holds_tracer
from effects._model.plan import Plan
from effects._model.record import Mark, Record, after_shard, shown_index
from effects._model.site import Site
from effects._model.text import filled_plan, text_plan
from effects._model.where import Where, where_called

# Checks a format while tracing, and fills it when the values are there.

MSG_FMT_TYPE = (
    "`{call}` at {where} was given {fmt!r} as its format. The format is a string, as for `str.format`. Write "
    "`{example}`."
)
MSG_FORMAT = (
    "The format {fmt!r} of `{call}` at {where} cannot be filled: {why}. Formats follow `str.format`, with one argument "
    "for every field. {remedy}"
)
MSG_UNUSED = (
    "`{call}` at {where} has arguments that its format {fmt!r} does not use: {unused}. Every argument must have its "
    "field, since an argument without one is never seen. Add {fields} to the format, as in `{example}`, or remove the "
    "arguments."
)
MSG_OF_PYTHONS_PRINT = (
    "`fx.print` at {where} was given {unused}, as Python's `print` takes it. Each call is one line of the output that "
    "was in force when the program was called. Leave it out, and write what stands between the values into the format."
)
MSG_TRACER_IN_FMT = (
    "The format of `{call}` at {where} holds the text of a traced value: {fmt!r}. An f-string is filled while tracing, "
    "when values are not known yet. Write `{example}`."
)
MSG_FORMATTED_TRACER = (
    "A traced value was formatted with {spec!r} at {where}. An f-string is filled while tracing, when values are not "
    "known yet. Write `fx.print('x = {{:{spec}}}', x)`."
)
MSG_NO_FORMAT = (
    "`{call}` at {where} has no message. The message is a format, as for `str.format`, and says what is wrong. Write "
    "`{example}`."
)
MSG_TRACER_IN_OBJECT = (
    "`{call}` at {where} shows an object with a traced value inside: the format {fmt!r} would be {text!r}. The text of "
    "an object is made while tracing, when values are not known yet. Pass the value itself, as an argument of its own."
)

_EXAMPLES = {
    "fx.print_grad": "fx.print_grad('the cotangent is {}', x)",
    "fx.check": "fx.check(x > 0, 'x = {}', x)",
    "fx.error_if": "fx.error_if(x, x <= 0, 'x = {}', x)",
}
"""By call, a correct example, where the format is not the first argument."""


def _example(call: str) -> str:
    return _EXAMPLES.get(call, f"{call}('x = {{}}', x)")


Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class _Formatter(string.Formatter):
    """Fills a format as `str.format` does, and shows pytrees as a whole."""

    def __init__(self) -> None:
        self._numbers = itertools.count()  # numbers fields without an explicit number
        self.computed_spec = False

    def parse(self, format_string: str) -> Any:
        # `string.Formatter` numbers `{}` only; `str.format` numbers `{.shape}` and `{[0]}` too.
        for literal, name, spec, conversion in super().parse(format_string):
            if name is not None and name[:1] in ("", ".", "["):
                name = f"{next(self._numbers)}{name}"
            self.computed_spec |= bool(spec) and "{" in spec
            yield literal, name, spec, conversion

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec != _OF_WHOLES or isinstance(value, (Mark, str)):
            return super().format_field(value, format_spec)
        from effects._model.whole import stats  # imported late: few formats need it

        lines = []
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            lines.append(f"{name}: {stats(np.asarray(leaf))}" if path else stats(np.asarray(leaf)))
        return "\n".join(lines)


_OF_WHOLES = "stats"
"""The specification that shows an array, or each array of a pytree, as a whole."""


class _Fields(_Formatter):
    """Walks over the fields of a format without showing anything, and notes which arguments they use."""

    def __init__(self) -> None:
        super().__init__()
        self.unused: list[int | str] = []
        self.used: set[int | str] = set()

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        if isinstance(key, int) and key >= len(args):
            raise _NoArgument(key + 1)
        return super().get_value(key, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion not in (None, "s", "r", "a"):
            raise ValueError(f"unknown conversion {conversion!r}")
        return value

    def check_unused_args(self, used_args: set[int | str], args: Any, kwargs: Any) -> None:
        self.used = used_args
        self.unused = [i for i in range(len(args)) if i not in used_args]
        self.unused += [name for name in kwargs if name not in used_args]

    def written_out(self, fmt: str, given: Arguments, marked: Arguments) -> str:
        """The format, with the fields that show statically known arguments replaced by their text.

        Args:
            fmt: The format, or the specification of a field.
            given: The arguments.
            marked: The same, with `_Known` in place of each static argument.
        """
        parts = []
        for literal, name, spec, conversion in self.parse(fmt):
            parts.append(_escaped(literal))
            if name is None:
                continue
            spec = self.written_out(spec or "", given, marked)
            if "{" not in spec and self._is_known(name, marked):
                value = super().convert_field(self.get_field(name, *given)[0], conversion)
                parts.append(_escaped(format(value, spec)))
            else:
                parts.append(f"{{{name}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}")
        return "".join(parts)

    def _is_known(self, name: str, marked: Arguments) -> bool:
        try:
            return isinstance(self.get_field(name, *marked)[0], _Known)
        except Exception:  # a record fills the field, or a class of the user raised
            return False


class _Known:
    """Stands for a static argument, and so do its attributes and its items."""

    def __getattribute__(self, name: str) -> _Known:
        return self

    def __getitem__(self, key: Any) -> _Known:
        return self


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


class _NoArgument(Exception):
    """A field's argument is missing. The exception's argument is its number, counted from 1."""


def _is_filled(fmt: str, leaves: Sequence[Operand | Static], tree: Any) -> bool:
    """True if there is one `{}` for each argument and no other field, as in most formats."""
    text = fmt.replace("{}", "")
    fields = (len(fmt) - len(text)) // 2
    return "{" not in text and "}" not in text and fields == len(leaves) and tree == flat_arguments(fields)


def _filled_in(tree: Any, leaves: Sequence[Operand | Static], shown: Callable[[Static], Any]) -> Arguments:
    """The arguments, with zeros in place of arrays and `shown(leaf)` in place of static leaves."""
    return jax.tree.unflatten(tree, [leaf.zeros() if isinstance(leaf, Operand) else shown(leaf) for leaf in leaves])


def write_out(fmt: str, leaves: Sequence[Operand | Static], tree: Any) -> str:
    """A format, with the fields that show statically known arguments replaced by their text."""
    given = _filled_in(tree, leaves, lambda static: static.value)
    return _Fields().written_out(fmt, given, _filled_in(tree, leaves, lambda _: _Known()))


def check_format(
    call: str, fmt: Any, site_leaves: tuple[Operand | Static, ...], tree: Any, where: Where, per_shard: bool = False
) -> tuple[str, tuple[Operand | Static, ...], tuple[str, ...]]:
    """Checks a format and its arguments, and raises every error that can be known before there are values.

    Returns:
        The format; the leaves; the names of the fields that the record fills: `device`, `lane`, in a kernel `grid`, and
        with `per_shard` also `index`, unless there are arguments of these names. The text of an
        argument that is an object is made now: it replaces the field in the format, and the object in the leaves.
    """
    if fmt is None:
        raise errors.type_error(MSG_NO_FORMAT.format(call=call, where=where, example=_example(call)))
    if not isinstance(fmt, str):
        raise errors.type_error(MSG_FMT_TYPE.format(call=call, where=where, fmt=fmt, example=_example(call)))
    if holds_tracer(fmt):
        raise errors.FormatError(MSG_TRACER_IN_FMT.format(call=call, where=where, fmt=fmt, example=_example(call)))
    has_objects = any(isinstance(leaf, Static) and leaf.travels_as_text for leaf in site_leaves)
    if not has_objects and _is_filled(fmt, site_leaves, tree):
        return fmt, site_leaves, ()
    args, kwargs = _filled_in(tree, site_leaves, lambda static: static.value)
    fields = _Fields()
    given: dict[str, Any] = {"device": 0, "lane": ()} if call in _FILLED_BY_RECORDS else {}
    given |= {"grid": ()} if given and _jax.is_in_kernel() else {}
    given |= {"index": ""} if per_shard else {}
    record_fields = {name: value for name, value in given.items() if name not in kwargs}
    try:
        fields.vformat(fmt, args, {**record_fields, **kwargs})
    except Exception as error:
        raise _cannot_fill(call, fmt, where, error) from None
    fields.unused = [name for name in fields.unused if name not in record_fields or name in kwargs]
    record_fields = {name: value for name, value in record_fields.items() if name in fields.used}
    if fields.unused:
        unused = [f"number {i + 1}" if isinstance(i, int) else f"`{i}`" for i in fields.unused]
        shown = ["{}" if isinstance(i, int) else f"{{{i}}}" for i in fields.unused]
        pythons = call == "fx.print" and {*fields.unused} <= {"end", "file", "flush", "sep"}
        raise errors.FormatError(
            (MSG_OF_PYTHONS_PRINT if pythons else MSG_UNUSED).format(
                call=call,
                where=where,
                fmt=fmt,
                unused=", ".join(unused),
                fields=", ".join(shown),
                example=_example(call),
            )
        )
    is_large = any(isinstance(leaf, Operand) and leaf.shape for leaf in site_leaves)
    text, written = "", fmt
    try:
        if not fields.computed_spec:  # a nested specification is known only with the values
            with np.printoptions(threshold=8) if is_large else contextlib.nullcontext():
                text = fill(fmt, args, {**record_fields, **kwargs})
        if has_objects:
            written = write_out(fmt, site_leaves, tree)
    except Exception as error:
        raise _cannot_fill(call, fmt, where, error) from None
    if has_objects and holds_tracer(text := text or written):
        text = errors.beginning(text)
        raise errors.type_error(MSG_TRACER_IN_OBJECT.format(call=call, where=where, fmt=fmt, text=text))
    leaves = tuple(leaf.as_text() if isinstance(leaf, Static) else leaf for leaf in site_leaves)
    return written, leaves, tuple(record_fields)


_FILLED_BY_RECORDS = ("fx.print", "fx.print_grad", "fx.check", "fx.error_if")
"""Calls whose formats may have fields without an argument, which records fill."""

_FILLED_IN = {"index": "with `per_shard=True`", "grid": "in a Pallas kernel"}
"""By name of such a field, the condition under which it exists; the others always do."""


def _cannot_fill(call: str, fmt: str, where: Where, error: Exception) -> errors.FormatError:
    if isinstance(error, KeyError):
        name = str(error.args[0])
        why, remedy = f"there is no argument {error}", f"Pass `{name}=...`, or remove the field."
        if not name.isidentifier():
            is_code = name[:1].isidentifier()  # as in an f-string: `{x + 1}`, `{x=}`
            as_text = "Write `{{` and `}}` for braces that are text."
            remedy = f"Pass its value, `{call}('{{}}', {name.rstrip('= ')})`." if is_code else as_text
        elif call in _FILLED_BY_RECORDS and (place := _FILLED_IN.get(name)):
            remedy = f"A record fills `{{{name}}}` {place}; elsewhere pass `{name}=...`, or remove the field."
    elif isinstance(error, _NoArgument):
        why, remedy = f"it has no argument number {error}", "Pass the missing argument, or remove the field."
    else:
        why, remedy = str(error) or repr(error), "Change the field so that it fits its argument."
    return errors.FormatError(MSG_FORMAT.format(call=call, where=where, fmt=fmt, why=why, remedy=remedy))


# A traced value in an f-string with a specification: formatting fails before the call that gets the text.


@patches.implements("text of traced values")
def _refusing_specifications(original: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
    def __format__(tracer: Any, spec: str) -> str:
        if spec and _uses_effects(sys._getframe(1)):
            raise errors.FormatError(MSG_FORMATTED_TRACER.format(spec=spec, where=where_called()))
        return original(tracer, spec)

    return __format__


def _uses_effects(frame: FrameType) -> bool:
    """True if a name in a function's code refers to this library, or to one of its functions."""
    known, code = {**frame.f_globals, **frame.f_locals}, frame.f_code
    for name in {*code.co_names, *code.co_varnames, *code.co_freevars}:
        thing = known.get(name)
        of = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", "")
        if str(of).partition(".")[0] == "effects":
            return True
    return False


# Filling


def fill(fmt: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The text of a format. A specification such as `.3f` applies to each element of an array, also of an array inside
    a pytree that a field shows a part of; `stats` applies to the array as a whole."""
    if ":" in fmt:
        args = [*map(_with_elements, args)]
        kwargs = {name: _with_elements(value) for name, value in kwargs.items()}
    if f":{_OF_WHOLES}}}" in fmt:
        return _Formatter().vformat(fmt, args, kwargs)
    return fmt.format(*args, **kwargs)


def _with_elements(value: Any) -> Any:
    if type(value) is Mark:
        return value
    return jax.tree.map(lambda x: x.view(_Elements) if type(x) is np.ndarray and x.ndim else x, value)


class _Elements(np.ndarray):
    """An array that formats its elements."""

    def __format__(self, spec: str) -> str:
        array = self.view(np.ndarray)
        if not spec:
            return str(array)
        return np.array2string(array, formatter={"all": lambda x: format(getattr(x, "item", lambda: x)(), spec)})

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __str__(self) -> str:
        return str(self.view(np.ndarray))


_OF_RECORD: dict[str, Callable[[Record], Any]] = {
    "device": lambda record: record.device,
    "lane": lambda record: record.lane,
    "grid": lambda record: record.grid,
    "index": shown_index,
}
"""By name of a field that records fill, the function from a record to its value."""


@described_by("line")
@dataclasses.dataclass(frozen=True)
class Line(NativeText):
    """A line of `fx.print`, or of `jax.debug.print`, which knows NumPy's print options when it is traced."""

    fmt: str
    options: tuple[tuple[str, Any], ...] | None = None  # NumPy's print options; None: those in force at the call
    record_fields: tuple[str, ...] = ()  # fields that the record fills: `device`, `lane`, `grid`, `index`

    @property
    def labels(self) -> Mapping[str, Any]:
        return {"fmt": self.fmt}

    @functools.cached_property
    def only_fills(self) -> bool:
        """True unless a field has both a conversion and a specification, which pads or cuts the converted text: then
        the text must exist first."""
        if "!" not in self.fmt:
            return True
        return not any(spec and conversion for _, _, spec, conversion in string.Formatter().parse(self.fmt))

    @property
    def print_options(self) -> Mapping[str, Any] | None:
        return None if self.options is None else self._options

    def text(self, record: Record) -> str:
        if not self.record_fields:
            if self.options is not None:  # a print of JAX's: `jax.debug.print` shows a shard without its index
                return jax_text(self.fmt, self._options, record.args, record.fields)
            return after_shard(record, fill(self.fmt, record.args, record.fields))
        fields = {name: _OF_RECORD[name](record) for name in self.record_fields}
        return fill(self.fmt, record.args, {**record.fields, **fields})

    @functools.cached_property
    def _options(self) -> dict[str, Any]:
        return dict(self.options or ())

    def native_plan(self, site: Site) -> Plan | None:
        if self.options is None and _is_filled(self.fmt, site.leaves, site.tree):
            return filled_plan(site, f"{self.fmt}\n".split("{}"))
        return text_plan(site, self.line)

    def line(self, record: Record) -> str:
        return f"{record.text}\n"

    def is_shown(self, suppressed: bool, takes_lines: bool | None) -> bool:
        return not suppressed and not takes_lines

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        write_lines(records, self.line, write)


def write_lines(records: Iterable[Record], shown: Callable[[Record], str], write: Callable[[str], None]) -> None:
    """Writes the line of each record, all at once."""
    lines: list[str] = []
    try:
        for record in records:
            lines.append(shown(record))
    finally:  # including the lines before a record that cannot be shown
        if lines:
            write("".join(lines))


def jax_text(fmt: str, options: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The text of a format of JAX's, under NumPy's print options."""
    if options == np.get_printoptions():  # setting the options is slower than reading them
        return fmt.format(*args, **kwargs)
    with np.printoptions(**options):
        return fmt.format(*args, **kwargs)
