"""What filters do with each kind of effect, who sees what they show, and what is refused."""

from __future__ import annotations

import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.filters.common import counts_of, loop, new_title, texts_of
from tests.internals import native

INT = jax.ShapeDtypeStruct((), "int32")

# Kinds of effects


def test_all_kinds_have_filters(caplog):
    """What is shown is called, logged and drawn, once for each lane; handlers and captures have the same records."""
    title, seen = new_title(), []

    def note(i):
        seen.append(int(i))

    def program():
        bar = fx.progress(7, title, first=2)

        def body(i):
            fx.print(f"{title} {{}}", i, every=3)
            fx.callback(note, None, i, when=i % 3 == 0)
            fx.callback(lambda i: note(-i), None, i, first=2)
            fx.log(title, i=i, every=4, logger="filters.logs", level="debug")
            jax.vmap(lambda lane: fx.callback(note, None, lane, every=5))(100 * i + jnp.arange(2))
            bar.update(i + 1)

        loop(7, body)

    caplog.set_level(logging.DEBUG, "filters.logs")
    with fx.add_handler(fx.ListHandler()) as handler, fx.capture() as records:
        fx.jit(program)()
    assert seen == [0, 0, 0, 1, -1, 3, 500, 501, 6]
    kinds = [(record.effect, int((record.args or [*record.fields.values()])[0])) for record in records]
    assert kinds == [
        ("print", 0), ("callback", 0), ("callback", 0), ("log", 0), ("callback", 0), ("callback", 1), ("progress", 1),
        ("callback", 1), ("progress", 2), ("print", 3), ("callback", 3), ("log", 4), ("callback", 500),
        ("callback", 501), ("print", 6), ("callback", 6),
    ]  # fmt: skip
    assert [record.text for record in handler.records] == [record.text for record in records]
    assert [(record.name, int(record.i)) for record in caplog.records] == [("filters.logs", 0), ("filters.logs", 4)]


def test_checks_have_filters():
    """Of failures those are raised that the filter shows, and those at which the check holds count for nothing."""
    title = new_title()

    def body(i):
        fx.check(i % 4 != 3, f"{title} at {{}}", i, every=2)

    with fx.capture(suppress=True) as records, pytest.raises(fx.EffectError, match=f"{title} at 3"):
        fx.jit(lambda: loop(16, body))()
        fx.effects_barrier(timeout=120)
    assert [int(record.args[0]) for record in records] == [3, 11]
    assert counts_of(title) == (4, 2)


def test_check_that_is_off_raises_nothing():
    title = new_title()
    f = fx.jit(lambda x: fx.check(x > 0, f"{title}: not positive"))
    with pytest.raises(fx.EffectError, match="not positive"):
        f(0)
        fx.effects_barrier(timeout=120)
    with fx.sites(__file__, function="*lambda>", effect="check").off():
        f(0)
        fx.effects_barrier(timeout=120)
    assert counts_of(title) == (2, 1)


def test_when_of_check_under_vmap():
    """A check of a lane at which it does not hold raises nothing."""

    def lane(x):
        fx.check(x < 2, "too large", when=x != 3)

    with pytest.raises(fx.EffectError, match="too large") as caught:
        fx.jit(lambda: jax.vmap(lane)(jnp.arange(4)))()
        fx.effects_barrier(timeout=120)
    assert "lane 2" in str(caught.value)
    assert "lane 3" not in str(caught.value)


def test_unordered_and_large_effects_have_filters():
    """What is large and left out is not copied, whether it has an order or not."""
    for ordered in (True, False):
        title = new_title()

        def body(i, title=title, ordered=ordered):
            fx.print(f"{title} {{}} {{}}", i, jnp.zeros(100_000) + i, every=4, ordered=ordered)

        before = fx.stats()["bytes"]
        seen = texts_of(fx.jit(lambda body=body: loop(9, body)))
        assert [text.split()[0] for text in seen] == ["0", "4", "8"]
        assert fx.stats()["bytes"] - before < 4 * 400_000


@pytest.mark.parametrize("value", [jnp.zeros((), bool), np.bool_(False), False], ids=["array", "NumPy", "Python"])
@pytest.mark.parametrize("jit", [fx.jit, lambda f: f], ids=["jit", "eager"])
def test_never_true_shows_nothing(value, jit):
    """Where it never holds nothing is shown; where that is known while tracing, nothing is in the program."""

    def f():
        fx.print("never", when=value)
        fx.log("never", when=value)
        fx.check(False, "never", when=value)
        fx.callback(lambda: seen.append(1), when=value)
        fx.progress(3, "never", when=value).update(1)

    seen = []
    assert texts_of(jit(f)) == [] == seen
    if not isinstance(value, jax.Array):
        assert not jax.make_jaxpr(f)().effects


def test_when_of_a_reference():
    """A mutable reference is what it holds when the program gets there."""

    def f():
        ref = jax.new_ref(jnp.bool_(False))

        def body(i):
            fx.print("{}", i, when=ref)
            ref[...] = i == 1

        loop(4, body)

    with fx.capture(suppress=True) as records:
        fx.jit(f)()
    assert [record.text for record in records] == ["2"]


# What is refused


BAD = {
    "zero": ({"every": 0}, ValueError, r"every=0\. It is a positive whole number"),
    "negative": ({"every": -1}, ValueError, r"every=-1\. It is a positive whole number"),
    "fraction": ({"every": 1.5}, ValueError, r"every=1.5"),
    "beyond 64 bits": ({"every": 2**64}, ValueError, rf"every={2**64}\. It is a positive whole number of at most 64"),
    "first beyond 64 bits": ({"first": 2**70}, ValueError, rf"first={2**70}\. It is"),
    "seconds beyond numbers": ({"min_seconds": 10**400}, ValueError, r"min_seconds=1000.*finite"),
    "endless seconds": ({"min_seconds": float("inf")}, ValueError, r"min_seconds=inf"),
    "boolean": ({"every": True}, ValueError, r"every=True"),
    "text": ({"every": "100"}, ValueError, r"every='100'"),
    "first zero": ({"first": 0}, ValueError, r"first=0\. It is a positive whole number"),
    "seconds below zero": ({"min_seconds": -1}, ValueError, r"min_seconds=-1\. It is a number of seconds"),
    "seconds as text": ({"min_seconds": "1"}, ValueError, r"min_seconds='1'"),
    "no number of seconds": ({"min_seconds": float("nan")}, ValueError, r"min_seconds=nan"),
    "when that returns": ({"when": lambda: True}, TypeError, r"<function .* as `when`"),
    "when of numbers": ({"when": 1.0}, TypeError, r"1\.0 as `when`"),
    "boolean as a level": ({"level": True}, TypeError, r"the level True\."),
    "unknown level": ({"level": "loud"}, TypeError, r"the level 'loud'\. A level is a whole number"),
    "no level": ({"level": None}, TypeError, r"the level None\."),
    "level and a half": ({"level": 1.5}, TypeError, r"the level 1\.5\."),
    "logger": ({"logger": logging.getLogger("x")}, TypeError, r"logger=<Logger x"),
    "empty logger": ({"logger": ""}, TypeError, r"logger=''"),
    "when of two": ({"when": np.array([True, False])}, TypeError, r"an array of bool\[2\] as `when`"),
}
CALLS = {
    "fx.print": lambda **options: fx.print("x", **options),
    "fx.log": lambda **options: fx.log("x", **options),
    "fx.callback": lambda **options: fx.callback(lambda: None, **options),
    "fx.check": lambda **options: fx.check(False, "x", **options),
    "fx.progress": lambda **options: fx.progress(3, **options).update(1),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", BAD)
def test_bad_input(bad, call):
    """What is no number, no level and no logger is refused at the user's line, eager and while tracing."""
    options, error, said = BAD[bad]
    if (call == "fx.progress" and "every" in options) or (bad == "no level" and call in ("fx.callback", "fx.check")):
        return  # there it is how many steps are between two updates, and there None is as by default
    for f in (CALLS[call], fx.jit(lambda: CALLS[call](**options))):
        with pytest.raises(error, match=rf"`{call}.*` at .*test_filters\.py:\d+.* was given .*{said}"):
            f(**options) if f is CALLS[call] else f()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (jnp.array([True, False]), r"an array of bool\[2\]"),
        (np.ones(1, bool), r"an array of bool\[1\]"),
        (jnp.int32(1), r"an array of int32\[\]"),
        (1, "1"),
        ("yes", "'yes'"),
    ],
)
def test_when_that_is_no_boolean(value, said):
    """What is not one boolean is refused at the user's line, eager and while tracing."""

    def f(value):
        fx.print("x", when=value)

    for call in (f, *[fx.jit(f)] * hasattr(value, "dtype")):
        with pytest.raises(TypeError, match=rf"`fx.print` at .*test_filters.py:\d+.* was given {said} as `when`"):
            call(value)


@pytest.mark.parametrize("name", ["every", "first", "min_seconds"])
def test_traced_numbers_are_refused(name):
    """The host counts, so that it must know how far while the program is traced."""
    with pytest.raises(ValueError, match=rf"was given {name}=.*there is `when=`"):
        fx.jit(lambda n: fx.print("x", **{name: n}))(3)


@pytest.mark.parametrize(
    "options", [{"every": 2}, {"first": 1}, {"min_seconds": 1}, {"level": "debug"}, {"when": True}]
)
def test_callbacks_with_results_have_no_filters(options):
    """The program waits for results each time."""
    with pytest.raises(ValueError, match=r"callback .* at .*test_filters\.py:\d+.* has results, and one of `level`"):
        fx.jit(lambda: fx.callback(lambda: np.int32(1), INT, **options))()


# What native code keeps


def test_native_code_keeps_no_python_object_of_a_filter():
    """Any thread may let go of a filter, also one that has a lock for which the holder of Python's lock waits."""
    known = native.Filter()
    before = sys.getrefcount(known)
    assert native.filter_of(2**63 + 12345, known) is known
    assert sys.getrefcount(known) == before
