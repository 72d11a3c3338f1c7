"""Sites are known for as long as a program has them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import effects as fx
from tests.helpers import let_go, meet_barrier
from tests.internals import Event, Line, _jax, content_from, known_sites

X = jnp.arange(4.0)
_numbers = itertools.count()


def _print(name):
    return lambda x: fx.print("{} {}: {}", name, 3, x)


def _kernel(name):
    def kernel(x_ref, o_ref):
        fx.print("{} {}: {}", name, 3, x_ref[...])
        o_ref[...] = x_ref[...]

    return lambda x: pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def _without_native(f):
    with fx.config.override(native=False):
        f(X)


def _with_logs(make, name):
    with _jax.with_kernel_options(logs_simulated=True):
        make(_kernel(name))(X)


RUNS = {
    "fx.jit": lambda name: fx.jit(_print(name))(X),
    "jax.jit": lambda name: jax.jit(_print(name))(X),
    "without native code": lambda name: _without_native(fx.jit(_print(name))),
    "outside of programs": lambda name: _print(name)(X),
    "exported": lambda name: fx.export(_print(name))(X).call(X),
    "deserialized": lambda name: fx.deserialize(fx.export(_print(name))(X).serialize()).call(X),
    "log of a kernel": lambda name: _with_logs(fx.jit, name),
    "log of an exported kernel": lambda name: _with_logs(lambda f: fx.export(f)(X).call, name),
}
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def _run(run):
    """Runs programs, each with a text of its own. Returns what they have printed, and what they should have."""
    names = [f"name {next(_numbers)}" for _ in range(2)]
    with contextlib.redirect_stdout(out := io.StringIO()):
        for name in names:
            run(name)
        meet_barrier()
        jax.effects_barrier()
    return out.getvalue().splitlines(), [f"{name} 3: [0. 1. 2. 3.]" for name in names]


@each_run
def test_sites_go_with_their_programs(run):
    """A text or a number that is known while tracing makes another site each time, and none is left behind."""
    before = {*known_sites._sites}
    printed, expected = _run(run)
    assert printed == expected
    let_go(lambda: {*known_sites._sites} - before)


def test_records_outlive_their_sites(lines):
    """A handler may keep records for longer than there is their program."""

    class Keeps:
        def __init__(self):
            self.kept = []

        def handle(self, record): ...

        def handle_many(self, records):
            self.kept.append(records)

    before = {*known_sites._sites}
    with fx.add_handler(Keeps(), effects="print") as handler:
        printed = lines(lambda: [fx.jit(_print(f"name {i}"))(X) for i in range(3)])
    let_go(lambda: {*known_sites._sites} - before)
    assert [record.text for records in handler.kept for record in records] == printed


def test_site_comes_back(lines):
    """A program that is compiled again has its site again, and so has one of the same text."""
    f = fx.jit(_print("again"))
    before = {*known_sites._sites}
    for _ in range(2):
        assert lines(lambda: (f(X), fx.jit(_print("again"))(X))) == ["again 3: [0. 1. 2. 3.]"] * 2
        jax.clear_caches()
        let_go(lambda: {*known_sites._sites} - before)


@pytest.mark.slow
@pytest.mark.parametrize("jit", [fx.jit, jax.jit])
def test_threads_make_and_drop_the_same_sites(jit, lines):
    """A program that a thread drops takes no site from another thread's program of the same text."""

    def make_and_drop(_):
        for i in range(12):
            jit(_print(f"name {i % 2}"))(X)

    def all_threads():
        with ThreadPoolExecutor(4) as threads:
            [*threads.map(make_and_drop, range(4))]
        jax.effects_barrier()

    assert sorted(lines(all_threads)) == [f"name {i} 3: [0. 1. 2. 3.]" for i in (0, 1) for _ in range(24)]


@pytest.mark.parametrize(
    ("content", "description"),
    [
        (Line("a {}"), {"line": "a {}"}),
        (Line("b", (("precision", 3),)), {"line": "b", "options": [["precision", 3]]}),
        (Line("c {lane}", record_fields=("lane",)), {"line": "c {lane}", "record_fields": ["lane"]}),
        (Event("d", 20, ()), {"event": "d", "level": 20, "fields": []}),
    ],
)
def test_content_is_described_by_its_fields(content, description):
    """A content is described by its kind and those of its fields that are not as by default, and comes back equal."""
    read = json.loads(json.dumps(content.describe()))
    assert read == description and list(read) == list(description)
    assert content_from(read, None) == content and hash(content_from(read, None)) == hash(content)
