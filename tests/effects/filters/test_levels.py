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
    """What the logger takes now is shown; raising and lowering its level compiles nothing anew."""
    title = new_title()
    with fx.config.override(native=native):
        f = jit(lambda: fx.print(f"{title} {{}}", 1, level="info"))
        assert texts_of(f) == ["1"]
        with level("WARNING"):
            assert texts_of(f) == []
            assert site_of(title).filter == "below its level"
        with level("INFO"):
            assert texts_of(f) == ["1"]
        with level("DEBUG"):
            assert texts_of(f) == ["1"]
    assert counts_of(title) == (4, 3)


def test_level_ahead_of_tracing():
    """A level that was too high while the program was traced may be lowered afterwards."""
    title = new_title()
    f = fx.jit(lambda: fx.print(f"{title} {{}}", 1, level="debug"))
    with level("INFO"):
        assert texts_of(f) == []
    with level("DEBUG"):
        assert texts_of(f) == ["1"]


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


@pytest.mark.parametrize("kind", ["print", "log", "callback", "check", "progress"])
def test_every_kind_of_effect_has_a_level(kind):
    """Prints, logs, callbacks without results, checks and progress; what is off raises nothing either."""
    title = new_title()
    seen = []

    def f(x):
        if kind == "print":
            fx.print(f"{title} {{}}", x, level="warning")
        elif kind == "log":
            fx.log(title, level="warning", x=x)
        elif kind == "callback":
            fx.callback(lambda x: seen.append(int(x)), None, x, level="warning")
        elif kind == "check":
            fx.check(x < 0, f"{title} {{}}", x, level="warning")
        else:
            fx.progress(3, title, level="warning").update(x)

    f = fx.jit(f)
    with level("ERROR"), fx.capture(suppress=kind != "callback") as records:
        f(1)
        fx.effects_barrier(timeout=120)
    assert list(records) == [] == seen
    with level("WARNING"):
        if kind == "check":
            with pytest.raises(fx.EffectError, match=title):
                f(1)
                fx.effects_barrier(timeout=120)
            return
        with fx.capture(suppress=kind != "callback") as records:
            f(1)
            fx.effects_barrier(timeout=120)
    assert len(records) == 1
    assert len(seen) == (kind == "callback")


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


def test_root_logger_does_not_count():
    """The root's level is `WARNING` without anybody's doing, and a print is shown."""
    title = new_title()
    f = fx.jit(lambda: fx.print(f"{title} x"))
    with level("CRITICAL", "root"):
        assert texts_of(f) == ["x"]


def test_logging_disable_keeps_no_print():
    """`logging.disable` keeps libraries quiet in a notebook, say. It says nothing of prints."""
    title = new_title()
    f = fx.jit(lambda: fx.print(f"{title} info"))
    assert texts_of(f) == ["info"]
    logging.disable(logging.CRITICAL)
    try:
        assert texts_of(f) == ["info"]
    finally:
        logging.disable(logging.NOTSET)


# While programs run


def switched(switch, steps=2000, at=1000):
    """The numbers of a loop's steps that are shown, where a function runs at one step and the loop waits for it."""
    title = new_title()

    def turn(i):
        switch(title)
        return np.int32(i)

    def body(i, c):
        fx.print(f"{title} {{}}", i)
        answer = jax.lax.cond(i == at, lambda: fx.callback(turn, INT, i), lambda: jnp.int32(0))
        return c + answer

    program = fx.jit(lambda: jax.lax.fori_loop(0, steps, body, 0))
    return [int(text) for text in texts_of(program)]


def test_level_that_a_running_program_follows():
    """What is ahead of the step at which the level is raised is shown, and what is behind it is not."""
    try:
        assert switched(lambda _: LOGGER.setLevel("ERROR")) == [*range(1001)]
    finally:
        LOGGER.setLevel(logging.NOTSET)


def test_level_that_is_lowered_while_a_program_runs():
    LOGGER.setLevel("ERROR")
    try:
        assert switched(lambda _: LOGGER.setLevel("INFO")) == [*range(1001, 2000)]
    finally:
        LOGGER.setLevel(logging.NOTSET)


def test_site_that_is_turned_off_while_a_program_runs():
    """`fx.sites` acts on running programs as well."""

    def turn_off(title):
        [site] = [line for line in known_sites.filters if line.title.startswith(title)]
        fx.sites(f"{site.file}:{site.line}", effect="print").off()

    seen = switched(turn_off)
    assert seen == [*range(1001)]
    fx.sites(__file__, effect="print").on()


def test_every_that_is_set_while_a_program_runs():
    """Of what comes afterwards one in so many is shown, by the count since the beginning."""
    seen = switched(lambda _: fx.sites(__file__, function="*body").every(300))
    assert seen == [*range(1001), 1200, 1500, 1800]
    fx.sites(__file__, function="*body").every(1)


def test_other_effects_keep_their_order_while_levels_change():
    """A thread raises and lowers the level while a program runs: what is shown is in order, with all of what has
    another logger."""
    title, other = new_title(), new_title()

    def body(i, c):
        fx.print(f"{title} a{{}}", i)
        fx.print(f"{other} b{{}}", i, logger="filters.always")
        return c + jax.lax.cond(i % 500 == 0, lambda: fx.callback(lambda i: np.int32(i), INT, i), lambda: jnp.int32(0))

    over = threading.Event()

    def turn():
        while not over.is_set():
            LOGGER.setLevel("ERROR")
            LOGGER.setLevel("INFO")

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        seen = texts_of(fx.jit(lambda: jax.lax.fori_loop(0, 3000, body, 0)))
    finally:
        over.set()
        thread.join()
        LOGGER.setLevel(logging.NOTSET)
    assert [text for text in seen if text[0] == "b"] == [f"b{i}" for i in range(3000)]
    keys = [(int(text[1:]), text[0]) for text in seen]
    assert keys == sorted(set(keys))


def test_levels_that_change_while_devices_run():
    """In a region too the order stays whole, whatever is left out on each device."""
    title, other = new_title(), new_title()

    def body(x):
        def step(i):
            fx.print(f"{title} {{}}", i)
            fx.print(f"{other} {{}}", i, logger="filters.always")

        loop(500, step)
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    over = threading.Event()

    def turn():
        while not over.is_set():
            fx.sites(__file__, function="*step").every(2).every(1)

    f(jnp.arange(4))
    fx.effects_barrier(timeout=120)
    thread = threading.Thread(target=turn)
    thread.start()
    try:
        with fx.capture(suppress=True) as records:
            f(jnp.arange(4))
    finally:
        over.set()
        thread.join()
    kept = [(record.device, record.text) for record in records if record.fmt.startswith(other)]
    assert len(kept) <= 4 * 500
    keys = [(int(record.args[0]), record.fmt.startswith(other), record.device) for record in records]
    assert keys == sorted(set(keys))
