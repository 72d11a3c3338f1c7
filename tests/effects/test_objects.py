"""Arguments that are no arrays: their text is made while tracing, as `jax.debug.print` takes them."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import output_of
from tests.internals import site_from


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Settings:
    """Not hashable, and not known to JAX."""

    rate: float
    colour: Colour


class Braces:
    """Its text would break a format."""

    def __str__(self):
        return "{x} {0} }{"

    def __format__(self, spec):
        return f"{{{spec}}}{self!s}"


MESH = jax.make_mesh((1,), ("x",))
SPEC = jax.sharding.PartitionSpec("x", None)
OBJECTS = {
    "dtype": np.dtype("float32"), "type": jnp.float32, "enum": Colour.RED, "mesh": MESH, "spec": SPEC,
    "sharding": jax.sharding.NamedSharding(MESH, SPEC), "device": jax.devices()[0], "date": datetime.date(2024, 1, 2),
    "decimal": decimal.Decimal("1.50"), "path": pathlib.Path("/a"), "function": len, "braces": Braces(),
    "ellipsis": ..., "frozenset": frozenset({1}), "range": range(3), "aval": jax.typeof(jnp.ones(3)),
    "dataclass": Settings(0.1, Colour.RED), "set": {1}, "strings": np.array(["a", "b"]),
    "struct": jax.ShapeDtypeStruct((3,), int),
}  # fmt: skip
FORMATS = {
    "{}": (1, 0), "{!r}": (1, 0), "{!s:>30}": (1, 0), "{!a}": (1, 0), "{} {}": (2, 0), "{1} {0} {1}": (2, 0),
    "{v:.2f} {x}": (0, 1), "{0.__class__.__name__:>20}|": (1, 0), "a {{}} {}": (1, 0), "{:{}}": (-1, 0),
    "{:%Y}": (1, 0),
}  # fmt: skip


def _call(show, fmt, thing):
    """A function of an array that shows a thing in this format, and what of NumPy's it shows."""
    given, named = FORMATS[fmt]

    def f(v):
        positional = (thing, "") if given < 0 else (thing, v)[:given]
        return show(fmt, *positional, **({"x": thing, "v": v} if named else {}))

    return f


@pytest.mark.parametrize("thing", OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_object_is_shown_as_str_format_shows_it(jit, thing):
    """Any object, in any format, is the text that `str.format` makes of it, and a format that it refuses is an error
    while tracing."""
    x = np.asarray(np.float32(2.5))
    calls, expected = [], ""
    for fmt in FORMATS:
        try:
            expected += _call(str.format, fmt, thing)(x) + "\n"
        except (TypeError, ValueError):
            with pytest.raises(fx.FormatError, match="cannot be filled"):
                jit(_call(fx.print, fmt, thing)).trace(x)
        else:
            calls.append(_call(fx.print, fmt, thing))
    assert output_of(jit, lambda x: [call(x) for call in calls] and None, x) == expected


Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: jax.Array
    kind: object


PROGRAMS = {
    "dict": lambda show, x: show("{}", {"x": x, "dtype": x.dtype}),
    "nested": lambda show, x: show("{t} {t[a][1]}", t={"a": (x, Colour.RED), "b": [Point(x, x.dtype), None]}),
    "dataclass": lambda show, x: show("{0} {0.kind.value:>6} {0.w}", State(x, Colour.RED)),
    "known only": lambda show, x: show("{}", (x.dtype, "text", Colour.RED)),
    "several": lambda show, x: show("{} {} {}", x.dtype, x, SPEC),
    "named": lambda show, x: show("{x} of {dtype!r} on {mesh}", x=x, dtype=x.dtype, mesh=MESH),
    "attribute": lambda show, x: show("{0.name} {1.axis_names[0]}", x.dtype, MESH),
    "enum behind text": lambda show, x: show("{} {!r} {:>7}", "a", Colour.RED, "b"),
    "nothing": lambda show, x: show("{} {}", None, ()),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_print_is_jaxs_print_by_another_name(program):
    """`jax.debug.print` that is called `fx.print` shows the same, in pytrees too, whose arrays are NumPy's here."""
    x = jnp.float32(2.5)
    expected = output_of(jax.jit, lambda x: program(jax.debug.print, x), x)
    assert output_of(fx.jit, lambda x: program(fx.print, x), x) == expected.replace("Array(", "array(")


def test_text_is_that_of_the_trace(lines):
    """An object that changes later is shown as it was when the function was traced."""
    settings = Settings(0.1, Colour.RED)
    program = fx.jit(lambda: fx.print("{.rate} {}", settings, {"s": settings}))

    def call():
        program()
        settings.rate = 0.2
        program()

    assert lines(call) == ["0.1 {'s': Settings(rate=0.1, colour=<Colour.RED: 'red'>)}"] * 2


def test_text_of_an_object_in_lanes_and_eagerly(lines):
    assert lines(fx.jit(jax.vmap(lambda x: fx.print("{} {}", x.dtype, x))), jnp.arange(2)) == ["int32 0", "int32 1"]
    assert lines(lambda: fx.print("{:%Y} {}", datetime.date(2024, 1, 2), np.dtype(int))) == ["2024 int64"]


def test_text_of_an_object_in_records_and_in_another_process():
    """Records have the object's text, and what is read elsewhere has the same."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda x: fx.print("{} {t}", x.dtype, t=[x, x.dtype]))(jnp.float32(1))
    (record,) = records
    assert record.text == "float32 [array(1., dtype=float32), dtype('float32')]"
    assert record.args == ("float32",) and record.fields["t"][1] == "float32"
    assert json.loads(json.dumps(record.to_dict()))["args"] == ["float32"]
    again = site_from(record._site.description)
    assert again == record._site and repr(again.leaves) == repr(record._site.leaves)


def test_object_in_checks():
    """Messages of checks take objects too."""
    fx.jit(lambda x: fx.check(x > 0, "{} of {!r}", x, x.dtype))(jnp.float32(-1))
    with pytest.raises(fx.CheckError, match=r"-1.0 of dtype\('float32'\)"):
        fx.effects_barrier()
    with pytest.raises(fx.CheckError, match="of red"):
        fx.jit(lambda x: fx.error_if(x, x < 0, "of {.value}", Colour.RED))(jnp.float32(-1))


@dataclasses.dataclass(frozen=True)
class Box:
    inside: object
    name: str = "box"


@pytest.mark.parametrize(
    "program",
    [
        lambda x: fx.print("{}", Box(x)),
        lambda x: fx.print("{.inside}", Box(x)),
        lambda x: fx.print("{t[0]!r} {t}", t=(Box(x), x)),
        lambda x: fx.check(x > 0, "{}", Box(x)),
    ],
    ids=["whole", "attribute", "tree", "check"],
)
def test_traced_value_inside_of_an_object(program):
    """A traced value inside of an object is refused, since its text would show the tracer."""
    with pytest.raises(TypeError, match="traced value") as caught:
        fx.jit(program)(1.0)
    assert f"{__file__}:{program.__code__.co_firstlineno}" in str(caught.value)


def test_traced_value_that_is_not_shown(lines):
    """An object may hold a traced value where the format shows something else of it."""
    assert lines(fx.jit(lambda x: fx.print("{.name}", Box(x))), 1.0) == ["box"]


class Unshown:
    def __repr__(self):
        raise OSError("no text today")


@pytest.mark.parametrize("fmt", ["{}", "{!r}", "{t}", "{:{}}"])
def test_object_whose_text_cannot_be_made(fmt, lines):
    """An object whose text cannot be made is an error while tracing, which names the user's line."""
    args = (Unshown(), "") if fmt == "{:{}}" else () if "t" in fmt else (Unshown(),)
    with pytest.raises(fx.FormatError, match="cannot be filled: no text today") as caught:
        fx.jit(lambda: fx.print(fmt, *args, **({"t": [1, Unshown()]} if "t" in fmt else {})))()
    assert f"{__file__}:" in str(caught.value)
    assert lines(fx.jit(lambda: fx.print("{.__class__.__name__}", Unshown()))) == ["Unshown"]
