"""`fx.sites`: what lines with effects a process has, and switches for them."""

from __future__ import annotations

import gc
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import effects as fx
from tests.effects.filters.common import loop, new_title, texts_of
from tests.helpers import let_go
from tests.internals import known_sites

INT = jax.ShapeDtypeStruct((), "int32")
HERE = "extensions/sites/test_sites.py"


def titles(sites):
    return [site.title.partition(" ")[2] for site in sites]


@pytest.fixture
def named():
    """Two lines in functions with names of their own, and a program of both."""
    first, second = new_title(), new_title()

    def layer_one(i):
        fx.print(f"{first} one {{}}", i)

    def layer_two(i):
        fx.log(f"{second} two", i=i)

    def program(n):
        loop(n, lambda i: (layer_one(i), layer_two(i), None)[2])

    f = fx.jit(program)
    texts_of(f, 2)
    yield f, first, second, layer_one.__code__.co_firstlineno + 1
    del f, program
    jax.clear_caches()


def mine(sites, *titles):
    return [site for site in sites if site.title.startswith(titles)]


# What there is


def test_a_site_says_what_it_is(named):
    """Where it is, its effect, what messages call it, how often devices have come and been shown, and its filter."""
    _, first, second, line = named
    one, two = mine(fx.sites(HERE), first, second)
    assert (one.effect, one.title, one.count, one.shown, one.filter) == ("print", f"{first} one {{}}", 2, 2, "all")
    assert (one.where.file, one.where.line) == (__file__, line)
    assert one.where.function.endswith("layer_one")
    assert (two.effect, two.count, two.shown) == ("log", 2, 2)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("test_sites.py", True),
        (HERE, True),
        (__file__, True),
        ("sites/*.py", True),
        ("*_sites.py", True),
        ("sites.py", False),
        ("test_site?.py", True),
        ("extensions", False),
        ("other.py", False),
    ],
)
def test_patterns_of_files(named, pattern, found):
    """A pattern is the end of a path, in whole names, or all of it."""
    _, first, second, line = named
    assert len(mine(fx.sites(pattern), first, second)) == 2 * found
    assert len(mine(fx.sites(f"{pattern}:{line}"), first, second)) == found
    assert mine(fx.sites(f"{pattern}:1"), first, second) == []


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"effect": "print"}, "one"),
        ({"effect": "log"}, "two"),
        ({"effect": ["log", "print"]}, "one two"),
        ({"effect": fx.Effect("print")}, "one"),
        ({"function": "layer_one"}, "one"),
        ({"function": "layer*"}, "one two"),
        ({"function": "named.<locals>.layer_two"}, "two"),
        ({"function": "layer"}, ""),
        ({"effect": "print", "function": "layer_two"}, ""),
    ],
)
def test_effects_and_functions(named, chosen, found):
    """An effect's name, several, or the effect itself; the name of a function, of which `*` stands for anything."""
    _, first, second, _ = named
    sites = mine(fx.sites(HERE, **chosen), first, second)
    assert [site.title.split()[2] for site in sites] == found.split()


def test_a_selection_is_a_sequence_and_a_table(named):
    """It prints with what is longer than a column cut off, and brackets as they are."""
    _, first, _, line = named
    sites = fx.sites(f"{HERE}:{line}")
    assert len(mine(sites, first)) == 1
    assert (sites[-1], sites[:1]) == ([*sites][-1], [*sites][:1])
    assert sites and not fx.sites("nothing.py")
    assert f"{first} one {{}}" in repr(sites) and f"test_sites.py:{line}" in repr(sites)
    title = new_title()
    texts_of(fx.jit(lambda: fx.print(f"{title} [bold]{'x' * 100}", every=7, first=3, level="debug", min_seconds=2.0)))
    text = repr(fx.sites(HERE))
    assert all(part in text for part in (title, "[bold]xxx", "xxx..."))
    assert repr(fx.sites("nothing.py")).startswith("No site of this process is one of `fx.sites('nothing.py')`.")


def test_lines_of_effects_outside_of_programs():
    """A line that is called eagerly is a site from its first call on, and vmap and shapes make no second one."""
    title = new_title()

    def show(x):
        fx.print(f"{title} {{}}", x)

    def f():
        show(1)
        fx.jit(jax.vmap(show))(jnp.arange(2))
        fx.jit(show)(jnp.zeros(3))

    texts_of(f)
    (site,) = mine(fx.sites(HERE), title)
    assert (site.count, site.shown) == (3, 3)


# Switches


def test_off_on_and_every(named):
    """What is off is not shown and counts; `on` shows it again."""
    f, first, second, _ = named
    sites = fx.sites(HERE, function="layer_one").off()
    assert texts_of(f, 2) == ["two i=0", "two i=1"]
    assert mine(sites, first)[0].filter == "off"
    sites.on()
    assert len(texts_of(f, 2)) == 4
    assert [(site.count, site.shown) for site in mine(fx.sites(HERE), first, second)] == [(6, 4), (6, 6)]
    sites.every(3)
    assert len(texts_of(f, 4)) == 4 + 2  # numbers 6 to 9
    assert mine(sites, first)[0].filter == "every 3"


def test_level(named):
    """A level in place of the logger's: it lets through what the logger does not take, and the other way around."""
    f, first, _, _ = named
    logger = logging.getLogger("effects")
    with fx.sites(HERE, function="layer_one").level("warning") as sites:
        assert len(texts_of(f, 1)) == 1
        assert mine(sites, first)[0].filter == "below its level, from warning on"
        logger.setLevel("ERROR")
        try:
            sites.level(logging.INFO)
            assert len(texts_of(f, 1)) == 1  # the print, and not the log
        finally:
            logger.setLevel(logging.NOTSET)
    assert len(texts_of(f, 1)) == 2


def test_context_manager_gives_back_what_was_ahead_of_it(named):
    """Behind the block all is as it was ahead of the first change, however many were made, also after an error."""
    f, first, second, _ = named
    before = fx.sites(HERE, function="layer_one").every(2)
    with pytest.raises(ZeroDivisionError), fx.sites(HERE, function="layer*").off().every(5).on().off() as sites:
        assert texts_of(f, 4) == []
        assert all("off" in site.filter for site in mine(sites, first, second))
        1 / 0  # noqa: B018
    assert [site.filter for site in mine(before, first)] == ["every 2"]
    assert len(texts_of(f, 4)) == 4 + 2


# JAX's own callbacks


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", ["print", "callback"])
def test_jaxs_own_callbacks(kind, ordered, lines):
    """`jax.debug.print` and `jax.debug.callback` under `fx.jit` are sites, and are turned off as ours are."""
    title = new_title()
    seen = []

    def of_jax(x):
        if kind == "print":
            jax.debug.print(f"{title} {{}}", x, ordered=ordered)
        else:
            jax.debug.callback(lambda x: (seen.append(int(x)), print(title, x))[1], x, ordered=ordered)

    f = fx.jit(lambda: loop(3, of_jax))
    assert sorted(lines(f)) == [f"{title} {i}" for i in range(3)]
    sites = fx.sites(HERE, function="*of_jax")
    assert [(site.count, site.shown) for site in mine(sites, title)] == [(3, 3)] * (kind == "print")
    with sites.off():
        assert lines(f) == []
    assert [(site.count, site.shown) for site in mine(sites, title)] == [(6, 3)] * (kind == "print")
    with sites.every(1000):
        assert len(lines(f)) <= 1
    assert len(lines(f)) == 3


def test_io_callback_cannot_be_turned_off():
    """The program waits for its results."""

    def of_io(x):
        return io_callback(lambda x: np.int32(x + 1), INT, x, ordered=True)

    f = fx.jit(of_io)
    assert int(f(1)) == 2
    with pytest.raises(ValueError, match=r"`fx.sites\(...\).off` cannot change .*Their programs wait for results"):
        fx.sites(HERE, function="of_io").off()
    (site,) = fx.sites(HERE, function="of_io")
    assert (site.filter, site.count) == ("has results", 1)


def test_callbacks_with_results_are_passed_over():
    """Of a selection of several, those that have results stay as they are."""
    title = new_title()

    def both(x):
        fx.print(f"{title} {{}}", x)
        return fx.callback(lambda x: np.int32(x + 1), INT, x)

    f = fx.jit(both)
    assert int(f(1)) == 2
    with fx.sites(HERE, function="*both").off(), fx.capture(suppress=True) as records:
        assert int(f(1)) == 2
    assert [record.effect for record in records] == ["callback"]


# What is refused


@pytest.mark.parametrize("switch", [lambda s: s.off(), lambda s: s.on(), lambda s: s.every(2), lambda s: s.level(10)])
def test_switch_of_nothing(switch, named):
    """A pattern that matches nothing is an empty selection, and to switch it is an error that says what there is."""
    sites = fx.sites("nothing.py:3", effect="print")
    assert len(sites) == 0
    said = (
        r"No site of this process is one of `fx.sites\('nothing.py:3', effect='print'\)`\. A line becomes a site when "
    )
    with pytest.raises(ValueError, match=said):
        switch(sites)


WRONG = {
    "every": (
        [0, -1, 1.5, True, "3", None], lambda n: fx.sites(HERE).every(n),
        r"`fx.sites\(\.\.\.\).every` was given {!r}\. `every` is a positive",
    ),
    "level": (
        ["loud", 1.5, None, True], lambda level: fx.sites(HERE).level(level),
        r"`fx.sites\(\.\.\.\).level` was given {!r}\. A level is",
    ),
    "pattern": (["", 3, ["train.py"]], fx.sites, r"`fx.sites` was given .*\. A pattern is a file"),
    "function": (
        ["", 3, ["f"], len, b"f"], lambda name: fx.sites(function=name),
        r"`fx.sites` was given function=.*the name of a function",
    ),
    "effect": (["no_such_effect"], lambda name: fx.sites(effect=name), "no_such_effect"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name, named):
    """What is no number, level, pattern, name or effect is refused."""
    values, call, said = WRONG[name]
    for value in values:
        with pytest.raises(TypeError if name in ("pattern", "function") else ValueError, match=said.format(value)):
            call(value)


def _free_programs(line):
    jax.clear_caches()
    gc.collect()
    let_go(lambda: known_sites.filters[line].num_sites)


@pytest.mark.parametrize(
    ("switch", "shown"),
    [
        (lambda sites: sites, ["1"]),
        (lambda sites: sites.off(), []),
        (lambda sites: sites.off().on(), ["1"]),
        (lambda sites: sites.every(3), []),
        (lambda sites: sites.level("error"), []),
    ],
    ids=["nothing", "off", "on", "every", "level"],
)
@pytest.mark.parametrize("is_freed", [False, True])
@pytest.mark.parametrize("how", ["in a program", "eagerly", "in a local function"])
def test_line_is_listed_and_switched_for_as_long_as_its_count(how, is_freed, switch, shown):
    """A line whose program is gone is there with its count, and what changes its filter acts on the next program."""
    title = new_title()

    def outliving(x):
        fx.print(f"{title} {{}}", x)

    kept = {"in a program": fx.jit(outliving), "eagerly": outliving}

    def call(x):
        return (kept.get(how) or fx.jit(lambda x: outliving(x)))(x)

    assert texts_of(call, 1) == ["1"]
    [line] = [line for line in known_sites.filters if line.title.startswith(title)]
    if is_freed:
        _free_programs(line)
    sites = fx.sites(f"{HERE}:{line.line}")
    assert [(site.count, site.shown) for site in mine(sites, title)] == [(1, 1)]
    switch(sites)
    assert texts_of(call, 1) == shown
    assert [(site.count, site.shown) for site in mine(sites, title)] == [(2, 1 + len(shown))]


def test_line_is_listed_until_its_count_is_forgotten():
    """The listing and the counts end together: a line that somebody changed, or that a program has, stays."""
    names, titles = ("gone", "changed", "kept"), [new_title() for _ in range(3)]
    functions = [fx.jit(lambda x, title=title: fx.print(f"{title} {{}}", x)) for title in titles]
    for f in functions:
        assert texts_of(f, 1) == ["1"]
    lines = [line for title in titles for line in known_sites.filters if line.title.startswith(title)]
    for f, line in zip(functions[:2], lines[:2], strict=True):
        f.clear_cache()
        gc.collect()
        let_go(lambda line=line: known_sites.filters[line].num_sites)
    known_sites.filters[lines[1]].turn(False)
    known_sites._forget_lines()
    listed = {site.title for site in fx.sites(HERE)}
    assert [name for name, title in zip(names, titles, strict=True) if f"{title} {{}}" in listed] == ["changed", "kept"]
