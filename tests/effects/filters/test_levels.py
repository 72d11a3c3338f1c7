"""Levels: an effect is shown if its logger takes it now, also in programs that are compiled and run."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import effects as fx
from tests.effects.filters.common import P, counts_of, loop, mesh, new_title, site_of, texts_of
from tests.internals import known_sites

pytestmark = pytest.mark.slow

INT = jax.ShapeDtypeStruct((), "int32")
LOGGER = logging.getLogger("effects")


@contextlib.contextmanager
def level(value, name="effects"):
    """The level of a logger, for a while."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(value)
    try:
        yield
    finally:
        logger.setLevel(before)


@pytest.fixture(autouse=True)
def _all_is_enabled():
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
@pytest.mark.parametrize("native", [True, False])
def test_level_is_followed_by_compiled_programs(jit, native):
    """What the logger takes now is shown, also if its level was too high while the program was traced."""
    title = new_title()
    with fx.config.override(native=native):
        f = jit(lambda: fx.print(f"{title} {{}}", 1, level="info"))
        for of_logger, shown in (("WARNING", []), ("INFO", ["1"]), ("ERROR", []), ("DEBUG", ["1"])):
            with level(of_logger):
                assert texts_of(f) == shown
                assert site_of(title).filter == ("all" if shown else "below its level")
        assert texts_of(f) == ["1"]
    assert counts_of(title) == (5, 3)


@pytest.mark.parametrize(("asked", "least"), [("info", 20), ("INFO", 20), (20, 20), (np.int64(20), 20), (25, 25)])
def test_levels_are_numbers_or_names(asked, least):
    f = fx.jit(lambda: fx.print(f"{title} {{}}", 1, level=asked))
    title = new_title()
    with level(least):
        assert texts_of(f) == ["1"]
    with level(least + 1):
        assert texts_of(f) == []


LINES = {
    "print": lambda seen, **asked: fx.print("seen", **asked),
    "log": lambda seen, **asked: fx.log("seen", **asked),
    "progress": lambda seen, **asked: fx.progress(3, "seen", **asked).update(1),
}
OTHERS = {
    "callback": lambda seen, **asked: fx.callback(lambda: seen.append(1), None, **asked),
    "unordered callback": lambda seen, **asked: fx.callback(lambda: seen.append(1), None, ordered=False, **asked),
    "check": lambda seen, **asked: fx.check(False, "seen", **asked),
}
WITHOUT_LEVEL = {
    "breakpoint": lambda seen: fx.breakpoint(),
    "error_if": lambda seen: fx.error_if(1, True, "seen"),
    "callback with results": lambda seen: fx.callback(lambda: seen.append(1) or 1, INT),
    "asynchronous callback": lambda seen: fx.async_done(fx.async_callback(lambda: seen.append(1) or 1, INT)),
    "jax.debug.callback": lambda seen: jax.debug.callback(lambda: seen.append(1)),
    "jax.debug.print": lambda seen: jax.debug.print("seen"),
    "io_callback": lambda seen: io_callback(lambda: seen.append(1), None, ordered=True),
}


def _happens(kind, call, jit=fx.jit, **asked):
    """True if the effect is carried out, whatever that means for its kind."""
    seen = []

    def run():
        call(seen, **asked)

    with fx.capture() as records, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody sits at the breakpoint
        try:
            jit(run)()
            fx.effects_barrier(timeout=120)
        except fx.EffectError as error:
            seen.append(error)
    return bool(seen or records)


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
@pytest.mark.parametrize("kind", LINES | OTHERS)
@pytest.mark.parametrize("name", ["effects", "filters.named"])
def test_logger_leaves_out_lines_and_what_has_a_level(kind, jit, name):
    """A logger's level leaves out lines. Of other effects it leaves out those alone whose call has `level=`."""
    call = (LINES | OTHERS)[kind]
    asked = {} if name == "effects" else {"logger": name}
    with level("CRITICAL", name):
        assert not _happens(kind, call, jit, level="info", **asked)
        assert _happens(kind, call, jit, level="critical", **asked)
        if kind in LINES or not asked:
            assert _happens(kind, call, jit, **asked) == (kind in OTHERS)
    assert _happens(kind, call, jit, level="info", **asked)


@pytest.mark.parametrize("kind", WITHOUT_LEVEL)
def test_logger_leaves_out_nothing_without_level(kind):
    """What takes no level is never left out by one."""
    with level("CRITICAL"):
        assert _happens(kind, WITHOUT_LEVEL[kind])


@pytest.mark.parametrize("kind", OTHERS)
def test_logger_without_level_is_refused(kind):
    """A logger that would leave out nothing is a mistake."""
    with pytest.raises(ValueError, match="logger='filters' and no level"):
        OTHERS[kind]([], logger="filters")


def test_level_of_a_selection_without_levels_is_refused():
    """A threshold for a selection that has no level would change nothing."""

    def saves():
        fx.callback(lambda: None, None)

    f = fx.jit(saves)
    f()
    with pytest.raises(ValueError, match="A level counts for lines"):
        fx.sites(effect="callback", function="*saves").level("error")


def test_named_logger_and_its_parent():
    """A line follows the logger that it names, and a logger without a level of its own the nearest above it."""
    first, second = new_title(), new_title()

    def f():
        fx.print(f"{first} model", logger="filters.model")
        fx.print(f"{second} data", logger="filters.data")
        fx.print(": neither")

    f = fx.jit(f)
    assert texts_of(f) == ["model", "data", "neither"]
    with level("ERROR", "filters"):
        assert texts_of(f) == ["neither"]
        with level("INFO", "filters.model"):
            assert texts_of(f) == ["model", "neither"]
    with level("ERROR", "filters.model"):
        assert texts_of(f) == ["data", "neither"]
    with level("ERROR"):
        assert texts_of(f) == ["model", "data"]
    assert texts_of(f) == ["model", "data", "neither"]


def test_parent_logger_that_is_made_later():
    """A logger that is made between a named one and the root after the program was compiled counts too."""
    title = new_title()
    f = fx.jit(lambda: fx.print(f"{title} x", logger="filters_later.between.model"))
    assert texts_of(f) == ["x"]
    with level("ERROR", "filters_later.between"):
        assert texts_of(f) == []
    assert texts_of(f) == ["x"]


def test_levels_that_do_not_count(lines):
    """The root's is `WARNING` without anybody's doing, and `logging.disable` keeps libraries quiet: no print is."""
    f = fx.jit(lambda: fx.print("x"))
    with level("CRITICAL", "root"):
        assert lines(f) == ["x"]
    logging.disable(logging.CRITICAL)
    assert lines(f) == ["x"]


# While programs run


def _turn_off(title):
    [line] = [line for line in known_sites.filters if line.title.startswith(title)]
    fx.sites(f"{line.file}:{line.line}", effect="print").off()


SWITCHES = {  # the level at the beginning, what is done at step 300, and which steps are shown
    "raised": ("INFO", lambda _: LOGGER.setLevel("ERROR"), [*range(301)]),
    "lowered": ("ERROR", lambda _: LOGGER.setLevel("INFO"), [*range(301, 600)]),
    "off": ("INFO", _turn_off, [*range(301)]),
    "every": ("INFO", lambda _: fx.sites(__file__, function="*body").every(100), [*range(301), 400, 500]),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_switch_that_a_running_program_follows(name):
    """What is ahead of the step at which a filter is changed is shown as before, and what is behind it is not."""
    before, switch, shown = SWITCHES[name]
    title = new_title()

    def turn(i):
        switch(title)
        return np.int32(i)

    def body(i, c):
        fx.print(f"{title} {{}}", i)
        return c + jax.lax.cond(i == 300, lambda: fx.callback(turn, INT, i), lambda: jnp.int32(0))

    with level(before):
        assert texts_of(fx.jit(lambda: jax.lax.fori_loop(0, 600, body, 0))) == [str(i) for i in shown]
    fx.sites(__file__, function="*body").every(1).on()


@contextlib.contextmanager
def _meanwhile(turn):
    """Another thread that does something over and over."""
    over = threading.Event()

    def run():
        while not over.is_set():
            turn()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


TURNS = {
    "levels": lambda: (LOGGER.setLevel("ERROR"), LOGGER.setLevel("INFO")),
    "sites": lambda: fx.sites(__file__, function="*step").every(2).every(1),
}


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize(("devices", "steps"), [(1, 3000), (4, 500)])
def test_other_effects_keep_their_order_while_filters_change(devices, steps, name):
    """Another thread changes the filters of a program that runs: what is shown is in order, on each device, with all of
    what another logger has, in so far as that is not changed."""
    title, other = new_title(), new_title()

    def body(x):
        def step(i):
            fx.print(f"{title} {{}}", i)
            fx.print(f"{other} {{}}", i, logger="filters.always")

        loop(steps, step)
        return x

    f = body
    if devices > 1:
        f = jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False)
    f, x = fx.jit(f), jnp.arange(4)
    texts_of(f, x)
    with level("INFO"), _meanwhile(TURNS[name]), fx.capture(suppress=True) as records:
        f(x)
    fx.sites(__file__, function="*step").every(1)
    of_other = [record.device for record in records if record.fmt.startswith(other)]
    assert len(of_other) == devices * steps if name == "levels" else len(of_other) <= devices * steps
    keys = [(int(record.args[0]), record.fmt.startswith(other), record.device) for record in records]
    assert keys == sorted(set(keys))
