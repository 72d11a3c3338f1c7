"""`fx.progress`: what it records, what it refuses, and the lines of an output that is no terminal."""

from __future__ import annotations

import contextlib
import io
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from effects._model.record import Records
from tests.internals import wire


def said(records):
    return [int(record.fields["done"]) for record in records]


def lines_of(function, *args):
    """What is written, without times."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*args)
        fx.effects_barrier(timeout=60)
    return re.sub(r" in [\d.]+ s(, [\d.]+ s left)?", "", out.getvalue()).splitlines()


def loop(n, **options):
    def count(x):
        bar = fx.progress(n, **options)

        def step(i, x):
            bar.update(i + 1)
            return x + 1

        return jax.lax.fori_loop(0, 10, step, x)

    return fx.jit(count)


@pytest.mark.parametrize(
    ("total", "every", "expected"),
    [
        (10, None, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (10, 4, [4, 8, 10]),
        (2000, None, [10]),
        (None, None, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (None, 3, [3, 6, 9]),
    ],
)
def test_update_says_every_so_many_steps(total, every, expected):
    """And the last one; a bar with a total says some 200 of them unless it is asked for more or fewer."""
    with fx.capture(suppress=True) as records:
        loop(total, every=every)(0)
    assert said(records) == expected


def test_bar_without_total_says_fewer_and_fewer():
    """Some hundred between two powers of two, so that a long loop is not slowed down."""

    @fx.jit
    def count(n):
        bar = fx.progress()

        def step(i, x):
            bar.update(i + 1)
            return x

        return jax.lax.fori_loop(0, n, step, 0)

    with fx.capture(suppress=True) as records:
        count(2048)
    assert said(records) == [*range(1, 256), *range(256, 512, 2), *range(512, 1024, 4), *range(1024, 2048, 8), 2048]


def test_update_outside_of_programs():
    """A loop of Python's drives a bar too: it is one bar, whose steps are no programs of their own."""

    def count():
        bar = fx.progress(4, "python")
        for i in range(4):
            bar.update(np.int64(i + 1))

    lines = lines_of(count)
    assert (lines[0], lines[-1]) == ("python: 25% 1/4", "python: 100% 4/4")


@pytest.mark.parametrize(
    ("total", "shown"),
    [
        (10, [f"steps: {10 * i}% {i}/10" for i in range(1, 11)]),
        (20, [f"steps: {5 * i}% {i}/20" for i in range(1, 11)]),
        (None, [f"steps: {i}" for i in range(1, 11)]),
    ],
    ids=["all", "ends early", "unknown"],
)
def test_lines_where_there_is_no_terminal(total, shown):
    """Some of the steps are shown, in their order, and always the last that its program had."""
    lines = lines_of(loop(total, description="steps"), 0)
    assert lines[-1] == shown[-1]
    assert lines == [line for line in shown if line in lines]


def test_output_that_is_closed():
    """The bar is shown where text of `print` would go, and the drain goes on."""
    program, gate = loop(20, description="closed"), threading.Event()
    waits = fx.jit(lambda: fx.callback(lambda: gate.wait(60)))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        gate.set()
        program(0), waits()
        fx.effects_barrier(timeout=60)
        gate.clear()
        waits(), program(0)
        with contextlib.redirect_stdout(io.StringIO()) as other:
            out.close()
            gate.set()
            fx.effects_barrier(timeout=60)
    assert other.getvalue().startswith("closed: ")
    assert lines_of(loop(10, description="next"), 0)[-1] == "next: 100% 10/10"


class Prints(io.StringIO):
    """An output that runs a program, which prints, when it is written to."""

    def __init__(self, program):
        super().__init__()
        self.program, self.runs = program, True

    def write(self, text):
        if self.runs:
            self.runs = False
            self.program(len(text))
            fx.effects_barrier(timeout=60)
        return super().write(text)


def test_output_that_runs_programs_may_show_bars():
    """No thread waits for another that draws."""
    out = Prints(fx.jit(lambda n: fx.print("{} characters", n)))
    with contextlib.redirect_stdout(out):
        loop(10, description="bar")(0)
        fx.effects_barrier(timeout=60)
    assert " characters\n" in out.getvalue() and "bar: 100% 10/10" in out.getvalue()


def test_exported_program_has_its_bar():
    exported = fx.export(loop(10, description="exported"))(0)
    program = fx.deserialize(exported.serialize())
    assert lines_of(program.call, 0)[-1] == "exported: 100% 10/10"


def test_order_of_a_bar():
    """Its steps are ordered effects, unless it is made without."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda x: (fx.progress(2).update(x), fx.progress(2, ordered=False).update(x)))(1)
    assert sorted(record.ordered for record in records) == [False, True]


BAD = {
    "total": (lambda x: fx.progress(1.5), "total"),
    "negative": (lambda x: fx.progress(-1), "total"),
    "boolean": (lambda x: fx.progress(True), "total"),
    "array": (lambda x: fx.progress(jnp.arange(2)), "total"),
    "float": (lambda x: fx.progress(x * 1.5), "total"),
    "every": (lambda x: fx.progress(3, every=0), "every"),
    "computed every": (lambda x: fx.progress(3, every=x), "every"),
    "description": (lambda x: fx.progress(3, 7), "description"),
    "traced description": (lambda x: fx.progress(3, f"at {x}"), "description"),
    "done": (lambda x: fx.progress(3).update(x * 1.5), "done"),
    "loop": (lambda x: fx.fori_loop_with_progress(0, 3, lambda i, x: x, x, every=-1), "every"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_errors_at_their_line(case):
    """Three sentences: what was given, what it must be, what to pass."""
    function, name = BAD[case]
    with pytest.raises((TypeError, ValueError)) as caught:
        fx.jit(function)(1)
    text = str(caught.value)
    assert name in text and "test_progress.py:" in text and " Pass" in text


def test_newest_of_each_device_and_of_the_same_lanes_is_shown():
    """Of records that come together those are left out that later ones of their device have made old. A record of other
    lanes is not old: it may be the last that says how far these are."""

    @fx.jit
    @jax.vmap
    def count(n):
        bar = fx.progress(n)
        jax.lax.fori_loop(0, n, lambda i, x: (bar.update(i + 1), x)[1], 0)

    def shown(program, *records):
        with fx.capture(suppress=True) as captured:
            program()
        site = captured[0]._site
        data = b"".join(
            wire.write_header(site.id, (0, 0, 0, 0), device, site.payload_size, 0.0)
            + bytes(mask)
            + bytes(site.payload_size - len(mask))
            for device, mask in records
        )
        return [(at, parts[2]) for at, parts in Records(data, len(records), lambda _: site).shown_parts()]

    devices = [(device, ()) for device in (0, 1, 0, 2, 1)]
    assert shown(lambda: loop(10, every=10)(0), *devices) == [(2, 0), (3, 2), (4, 1)]
    lanes = [(0, mask) for mask in [(1, 1), (1, 0), (0, 1), (1, 0)]]
    assert shown(lambda: count(jnp.array([1, 2])), *lanes) == [(0, 0), (2, 0), (3, 0)]
