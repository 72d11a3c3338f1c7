"""By what two things are one: keys of caches, of sites, of functions and of failures.

In each table the values of one row are one thing to the library, and those of different rows are different things.
Python's own equality would not do in most places: `0.0 == -0.0`, `1 == True`, and NaN is not equal to itself.
"""

import collections
import enum
import functools
import gc
import itertools
import threading
import types

import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.internals import (
    Attributes,
    HostFunction,
    Line,
    Numbering,
    Operand,
    Site,
    Where,
    first_of_each_line,
    read_operand,
    site_from,
    take_arguments,
)

HERE = Where("model.py", 1, "f")
NAN = float("nan")


class Text(enum.StrEnum):
    A = "a"


class Same(enum.StrEnum):
    A = "a"
    B = "b"

    def __str__(self):
        return "a"


class Named(str):
    def __repr__(self):
        return f"Named({str(self)!r})"


class Number(enum.IntEnum):
    ONE = 1


NUMBERS = [
    [0.0, float("0")],
    [-0.0],
    [NAN, float("nan")],
    [float("inf")],
    [0],
    [False],
    [1],
    [1.0],
    [True],
    [1 << 62],
    [np.float32(0)],
    [np.float32(-0.0)],
    [np.float32(NAN), np.float32(NAN)],
    [np.float64(0)],
    [np.int32(1), np.int32(1)],
    [np.int64(1)],
    [np.bool_(True)],
]
TEXTS = [["1"], [b"1"], [""], [b""], ["a"], [b"a"], ["nan"], ["1.0"]]

ATTRIBUTES = [
    *NUMBERS,
    *TEXTS,
    [np.array([1, 2]), [1, 2], (1, 2), np.array([1, 0, 2, 0])[::2], np.array([1, 2], ">i8")],
    [np.array([1, 2], np.int32)],
    [np.array([1, 2], np.uint64)],
    [np.array([1, 2]).view(np.float64)],
    [np.array([[1, 2]])],
    [np.array([1])],
    [np.array([0.0])],
    [np.array([-0.0])],
    [{"a": 1, "b": 0.0}, {"b": 0.0, "a": 1}],
    [{"a": 1, "b": -0.0}],
    [{"a": 1}],
    [{"a": {"a": 1}}],
    [{}],
]

STATIC = [
    *NUMBERS,
    *TEXTS,
    [1j, complex("1j")],
    [complex(0, -0.0)],
    [complex(0, 0.0)],
    [complex(-0.0, 0.0)],
    [np.dtype(jnp.bfloat16).type(1)],
    [1 << 70],
    [Text.A, Text("a")],
    [Same.A],
    [Same.B],
    [Named("a"), Named("a")],
    [Number.ONE],
]

Point = collections.namedtuple("Point", ["x", "y"])
Pair = collections.namedtuple("Pair", ["a", "b"])
STRUCTURES = [
    [(1, 2), (1, 2)],
    [[1, 2]],
    [(1, (2,))],
    [(1, 2, None)],
    [Point(1, 2)],
    [Pair(1, 2)],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    [{"a": 1, "c": 2}],
    [{1: 1, 2: 2}],
    [{"1": 1, "2": 2}],
    [{True: 1, 2: 2}],
    [{(1, 2): 1, (1, 3): 2}],
    [{(1, 2): 1, (1.0, 3): 2}],
    [collections.OrderedDict(a=1, b=2)],
    [collections.OrderedDict(b=2, a=1)],
]

F32, I32, I4, I8 = np.dtype(np.float32), np.dtype(np.int32), jnp.dtype(jnp.int4), np.dtype(np.int8)
OPERANDS = [
    [Operand((), F32, F32), Operand((), np.dtype("f4"), F32)],
    [Operand((), I32, I32)],
    [Operand((1,), F32, F32)],
    [Operand((1, 2), F32, F32)],
    [Operand((12,), F32, F32)],
    [Operand((-1,), F32, F32)],
    [Operand((2,), I4, I8)],
    [Operand((2,), I8, I8)],
    [Operand((2, 3), F32, F32, (True,))],
    [Operand((2, 3), F32, F32, (True, False))],
    [Operand((2, 3), F32, F32, (False, True))],
]


class Model:
    def save(self):
        pass

    def load(self):
        pass


def _closure(k):
    return lambda *_: k


FIRST, SECOND, CLOSURES = Model(), Model(), [_closure(1), _closure(1)]
PARTIALS = [functools.partial(print, 1), functools.partial(print, 1)]
FUNCTIONS = [
    [FIRST.save, FIRST.save],  # made anew whenever it is asked for
    [SECOND.save],
    [FIRST.load],
    [CLOSURES[0], CLOSURES[0]],
    [CLOSURES[1]],
    [PARTIALS[0], PARTIALS[0]],
    [PARTIALS[1]],
    [types.MethodType(CLOSURES[0], FIRST), types.MethodType(CLOSURES[0], FIRST)],
    [types.MethodType(CLOSURES[1], FIRST)],
    [types.MethodType(CLOSURES[0], SECOND)],
    [print],
]


def _failure(where, function, cause=None, type_=fx.EffectError):
    failure = type_("failed")
    failure.where, failure.function, failure.__cause__ = where, function, cause
    return failure


FAILURES = [
    [_failure("f.py:1", "f"), _failure("f.py:1", "f", ValueError("a")), _failure("f.py:1", "f", UnicodeError())],
    [_failure("f.py:2", "f")],
    [_failure("f.py:1", "g")],
    [_failure("f.py:1", "f", type_=fx.CheckError)],
    [_failure("", "f")],
    [_failure("", "f")],
    [ValueError("another's")],
    [ValueError("another's")],
]


def _by(key):
    return lambda a, b: key(a) == key(b) and hash(key(a)) == hash(key(b))


def _site(*args):
    _, leaves, tree = take_arguments(args, {}, "fx.print", HERE)
    return Site(fx.registered_effects()["print"], Line("{}"), leaves, tree, HERE)


@pytest.mark.parametrize(
    ("same", "rows"),
    [
        (_by(lambda value: Attributes({"x": value}, HERE)), ATTRIBUTES),
        (_by(_site), STATIC),
        (_by(_site), STRUCTURES),
        (_by(Operand.describe), OPERANDS),
        (_by(lambda function: HostFunction.of(function).key), FUNCTIONS),
        (lambda a, b: len(first_of_each_line([a, b])) == 1, FAILURES),
    ],
    ids=["attributes", "static operands", "structures", "operands", "functions", "failures"],
)
def test_what_is_one_and_what_is_two(same, rows):
    """A row is one, and no two rows are."""
    numbered = [(row, value) for row, values in enumerate(rows) for value in values]
    for (row, a), (other, b) in itertools.combinations(numbered, 2):
        assert same(a, b) == (row == other), (a, b)


def test_descriptions_of_sites_and_operands_are_read_back():
    """What is read describes itself as what was described, and has the values of the same types."""
    for value in itertools.chain(*STATIC, *STRUCTURES):
        site = _site(value)
        text = site.description
        again = site_from(text)
        assert again == site and again.description == text
        for read, written in zip(again.leaves, site.leaves, strict=True):
            assert repr(read.value) == repr(written.value)  # of a class of the user's, what is read has the text
    for operand in itertools.chain(*OPERANDS):
        assert read_operand(operand.describe()) == operand


def test_one_line_shows_each_of_its_static_operands(lines):
    """Two sites that differ in one of these values alone are two sites."""
    values = [value for row in STATIC for value in row]

    @fx.jit
    def f():
        for value in values:
            fx.print("{0!r} {0}", value)

    assert lines(f) == [f"{value!r} {value}" for value in values]


# Numbers of objects


class _Thing:
    pass


def test_numbers_go_with_their_objects():
    """An object that comes to lie where another was is another, and what has gone leaves nothing behind."""
    numbering = Numbering()
    kept = _Thing()
    number = numbering.number_of("thing", kept)
    assert [numbering.number_of("thing", _Thing()) for _ in range(100)] == [*range(1, 101)]
    assert numbering.number_of("thing", kept) == number and numbering.number_of("other", kept) == 0
    del kept
    gc.collect()
    assert len(numbering._numbers) == 0


class _Name(str):
    """A name which, when it is looked up the second time, lets another thread do something."""

    times = 0

    def __hash__(self):
        self.times += 1
        if self.times == 2:
            thread = threading.Thread(target=self.meanwhile)
            thread.start()
            thread.join(60)
        return super().__hash__()


def test_threads_that_number_at_one_time():
    """An object has one number, also if another thread gives it one between the look and the entry."""
    numbering, thing, others = Numbering(), _Thing(), []
    name = _Name("thing")
    name.meanwhile = lambda: others.extend(numbering.number_of("thing", each) for each in (thing, FIRST))
    number = numbering.number_of(name, thing)
    assert others[0] == number == numbering.number_of("thing", thing)
    assert others[1] == numbering.number_of("thing", FIRST) != number
    assert numbering.number_of("thing", SECOND) not in (number, others[1])
