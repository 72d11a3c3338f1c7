"""`first=`, `min_seconds=`, what sees filtered records, and what is refused."""

from __future__ import annotations

import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.filters.common import P, by_device, counts_of, loop, mesh, new_title, sharded, site_of, texts_of
from tests.internals import known_sites, native

NATIVE = [True, False]
FOREVER = 1e9  # seconds, beyond any test
INT = jax.ShapeDtypeStruct((), "int32")


@pytest.mark.parametrize("native_handlers", NATIVE)
@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_first_shows_so_many(jit, native_handlers):
    """So many are shown, over calls, and then none."""
    title = new_title()
    with fx.config.override(native=native_handlers):
        f = jit(lambda: loop(3, lambda i: fx.print(f"{title} {{}}", i, first=4)))
        assert texts_of(f) == ["0", "1", "2"]
        assert texts_of(f) == ["0"]
        assert texts_of(f) == []
    assert counts_of(title) == (9, 4)


def test_first_on_each_device():
    title = new_title()

    def body(x):
        loop(5, lambda i: fx.print(f"{title} {{}}", i, first=2, every=2))
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    with fx.capture(suppress=True) as records:
        f(jnp.arange(4))
    assert by_device(records) == {device: [0, 2] for device in range(4)}


@pytest.mark.parametrize("native_handlers", NATIVE)
def test_min_seconds_shows_the_first(native_handlers):
    """Within the time after one that was shown, none is."""
    title = new_title()
    with fx.config.override(native=native_handlers):
        f = fx.jit(lambda: loop(100, lambda i: fx.print(f"{title} {{}}", i, min_seconds=FOREVER)))
        assert texts_of(f) == ["0"]
        assert texts_of(f) == []
    assert counts_of(title) == (200, 1)
    assert texts_of(fx.jit(lambda: loop(3, lambda i: fx.print(f"{title} {{}}", i, min_seconds=0)))) == ["0", "1", "2"]


def test_min_seconds_of_devices_that_agree():
    """What all devices have in common is shown whole, or not at all: they agree about the time."""
    title = new_title()
    f = fx.jit(lambda x: loop(3000, lambda i: fx.print(f"{title} {{}}", i, min_seconds=1e-4)))
    numbers = [int(text) for text in texts_of(f, sharded(jnp.arange(4)))]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    assert counts_of(title) == (3000, len(numbers))


def test_all_four_together():
    """`when` decides what is counted, then `every`, then the time, and `first` limits what is shown."""
    title = new_title()

    def body(i):
        fx.print(f"{title} {{}}", i, when=i % 2 == 1, every=3, min_seconds=0.0, first=3, level="warning")

    assert texts_of(fx.jit(lambda: loop(40, body))) == ["1", "7", "13"]
    assert site_of(title).filter == "every 3, first 3"


# Kinds of effects


def test_callbacks_without_results_have_filters():
    """The function is called where its filter shows it, once for each lane."""
    seen = []

    def note(x):
        seen.append(int(x))

    fx.jit(lambda: loop(7, lambda i: fx.callback(note, None, i, every=3)))()
    fx.effects_barrier(timeout=120)
    assert seen == [0, 3, 6]
    seen.clear()
    f = fx.jit(lambda x: jax.vmap(lambda x: fx.callback(note, None, x, every=2))(x))
    for start in (0, 10, 20):
        f(jnp.arange(2) + start)
    fx.effects_barrier(timeout=120)
    assert seen == [0, 1, 20, 21]


@pytest.mark.parametrize("name", ["{}", None], ids=["a field", "one name"])
def test_logs_have_filters(name, caplog):
    """Python's logging sees what is shown, through the logger that the line names."""
    logger = logging.getLogger("filters.logs")
    with caplog.at_level(logging.DEBUG, "filters.logs"):
        event = new_title()
        fx.jit(lambda: loop(7, lambda i: fx.log(event, i=i, every=3, logger="filters.logs", level="debug")))()
        fx.effects_barrier(timeout=120)
    assert [(record.name, int(record.i)) for record in caplog.records if record.name == logger.name] == [
        ("filters.logs", 0),
        ("filters.logs", 3),
        ("filters.logs", 6),
    ]


def test_progress_has_filters():
    """A bar's updates are shown as its filter lets them; `every` of a loop means steps there."""
    title = new_title()

    def f():
        bar = fx.progress(10, title, first=2)
        loop(10, lambda i: bar.update(i + 1))

    with fx.capture(suppress=True) as records:
        fx.jit(f)()
    assert [int(record.fields["done"]) for record in records] == [1, 2]


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


# Who sees what is shown


def test_handlers_see_what_is_shown():
    """Handlers of the user's, captures and standard output have the same records, in order with callbacks."""
    handler = fx.ListHandler()
    token = fx.add_handler(handler)
    seen = []
    title = new_title()

    def body(i):
        fx.print(f"{title} {{}}", i, every=3)
        fx.callback(lambda i: seen.append(int(i)), None, i, when=i % 3 == 0)
        fx.callback(lambda i: seen.append(-int(i)), None, i, first=2)

    try:
        with fx.capture(suppress=True) as records:
            fx.jit(lambda: loop(7, body))()
    finally:
        fx.remove_handler(token)
    assert seen == [0, 0, -1, 3, 6]
    kinds = [(record.effect, int(record.args[0])) for record in records]
    assert kinds == [(record.effect, int(record.args[0])) for record in handler.records]
    expected = [("print", 0), ("callback", 0), ("callback", 0), ("callback", 1)]
    assert kinds == [*expected, *[(kind, i) for i in (3, 6) for kind in ("print", "callback")]]


def test_indices_of_effects_behind_those_left_out(lines):
    """Effects that are left out keep their numbers, so that records say how many effects came ahead of them."""
    title = new_title()

    def f():
        loop(5, lambda i: fx.print(f"{title} {{}}", i, every=4))
        fx.print("end")

    with fx.capture(suppress=True) as records:
        fx.jit(f)()
    first = records[0].token[3]
    assert [record.token[3] - first for record in records] == [0, 4, 5]


def test_callback_with_results_behind_effects_that_are_left_out():
    """A callback with a result runs at once behind effects that are left out."""
    title = new_title()

    def body(i, c):
        fx.print(f"{title} {{}}", i, first=1)
        return c + fx.callback(lambda x: np.int32(x + 1), INT, i)

    assert int(fx.jit(lambda: jax.lax.fori_loop(0, 200, body, 0))()) == sum(range(1, 201))


def test_whole_process_order():
    """With one order for the whole process, and a barrier after each call, filters do the same."""
    title = new_title()
    for settings in ({"order": "process"}, {"sync": True}, {"when_full": "drop"}):
        with fx.config.override(**settings):
            f = fx.jit(lambda x: loop(3, lambda i: fx.print(f"{title} {{}}", x + i, every=3)))
            assert texts_of(lambda f=f: (f(10), f(20))[0]) == ["10", "20"]


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


def test_lines_without_number_are_forgotten():
    """A program whose texts differ each time leaves nothing behind that grows."""
    for i in range(5000):
        fx.print(f"text {i}", when=False)
    with fx.capture(suppress=True):
        for i in range(5000):
            fx.print(f"text {i}")
    assert len(known_sites.filters) < 5000
