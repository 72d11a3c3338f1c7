"""Counts of `fx.sites`, and what is shown, beside a plain reading: of random programs on random devices one after the
other, whose filters change in between."""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.filters.common import P, counts_of, loop, new_title
from tests.internals import known_sites

TURNS = 5
JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit}
INT = jax.ShapeDtypeStruct((), "int32")


@dataclasses.dataclass
class Reading:
    """A line as it is read: a count for what is outside of regions, and one for each device in them."""

    every: int = 1
    first: int | None = None
    on: bool = True
    come: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    shown: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)

    def shows(self, device: int = -1) -> bool:
        number = self.come[device]
        self.come[device] += 1
        within = self.first is None or self.shown[device] < self.first
        is_shown = self.on and number % self.every == 0 and within
        self.shown[device] += is_shown
        return is_shown

    @property
    def counts(self) -> tuple[int, int]:
        return self.come.total(), self.shown.total()


def _mesh(places):
    return jax.sharding.Mesh(
        np.array([jax.devices()[i] for i in places]), ("d",), axis_types=(jax.sharding.AxisType.Auto,)
    )


class Programs:
    """Programs with one line, on whatever devices."""

    def __init__(self, title, asked, has_results):
        self.title, self.asked, self.has_results, self.made = title, asked, has_results, {}
        self.seen = []

    def act(self, i, ordered):
        """The line: a print with a filter, or a callback that the program waits for, which is never left out."""
        if not self.has_results:
            fx.print(f"{self.title} {{}}", i, ordered=ordered, **self.asked)
            return 0
        return fx.callback(self, INT, i, ordered=ordered)

    def __call__(self, i):
        self.seen.append(int(i))
        return np.int32(0)

    @property
    def __name__(self):
        return self.title

    def _body(self, x, ordered):
        return x + jax.lax.fori_loop(0, TURNS, lambda i, total: total + self.act(i, ordered), 0)

    def run(self, jit, kind, places, ordered):
        key = (jit, kind, places, ordered)
        if kind == "eager":
            self.act(0, ordered)
            return
        if key not in self.made:
            f = functools.partial(self._body, ordered=ordered)
            if kind == "region":
                f = jax.shard_map(f, mesh=_mesh(places), in_specs=P("d"), out_specs=P("d"), check_vma=False)
            self.made[key] = JITS[jit](f)
        x = jnp.zeros(4 * len(places), "int32")
        if kind == "one":
            x = jax.device_put(x, jax.devices()[places[0]])
        else:
            spec = P("d") if kind != "replicated" else P()
            x = jax.device_put(x, jax.NamedSharding(_mesh(places), spec))
        jax.block_until_ready(self.made[key](x))
        fx.effects_barrier(timeout=120)


def _expected(reading, kind, places):
    if kind == "eager":
        return [0] if reading.shows() else []
    devices = places if kind == "region" else [-1]
    return [i for device in devices for i in range(TURNS) if reading.shows(device)]


@pytest.mark.slow
@pytest.mark.parametrize("has_results", [False, True], ids=["print", "callback with results"])
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_on_random_devices(seed, has_results):
    """What is shown of each program, and the counts at its end, are those of the reading."""
    draw = random.Random(seed)
    asked = {} if has_results else draw.choice([{}, {"every": 2}, {"every": 3}, {"first": 7}, {"every": 2, "first": 9}])
    programs, reading = Programs(new_title(), asked, has_results), Reading(**asked)
    for _ in range(12):
        kind = draw.choice(["one", "one", "replicated", "sharded", "region", "eager"])
        places = tuple(draw.sample(range(4), 1 if kind == "one" else draw.choice([2, 4])))
        jit, ordered = draw.choice(["fx.jit", "jax.jit"]), draw.random() < 0.6
        if has_results and kind == "region" and len(places) > 1 and jit == "fx.jit" and not ordered:
            ordered = True
        with fx.capture(suppress=True) as records:
            programs.run(jit, kind, places, ordered)
        got = programs.seen if has_results else [int(record.args[0]) for record in records]
        assert sorted(got) == sorted(_expected(reading, kind, places)), (jit, kind, places, ordered)
        programs.seen = []
        assert counts_of(programs.title) == reading.counts, (jit, kind, places, ordered)
        if not has_results and draw.random() < 0.5:
            [known] = [known for line, known in known_sites.filters.items() if line.title.startswith(programs.title)]
            reading.on, reading.every = draw.random() < 0.7, draw.choice([1, 2, 3, 5])
            known.turn(reading.on)
            known.show_every(reading.every)


@pytest.mark.parametrize("asked", [{"every": 3}, {"first": 10}, {"every": 2, "first": 7}], ids=str)
@pytest.mark.parametrize("jit", JITS)
def test_threads_on_devices_of_their_own(jit, asked):
    """Threads that run at the same time, each on its device, have one count, of which as many are shown."""
    title, reading = new_title(), Reading(**asked)
    f = JITS[jit](lambda x: loop(50, lambda i: fx.print(f"{title} {{}}", x + i, **asked)))

    def run(device):
        for _ in range(5):
            f(jax.device_put(jnp.int32(0), device))
        fx.effects_barrier(timeout=120)

    with fx.add_handler(fx.ListHandler(), effects="print") as handler:
        threads = [threading.Thread(target=run, args=(device,)) for device in jax.devices()[:4]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fx.effects_barrier(all_threads=True, timeout=120)
    for _ in range(4 * 5 * 50):
        reading.shows()
    assert counts_of(title) == reading.counts
    assert len(handler) == reading.shown.total()


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_filters_of_programs_that_are_gone_are_forgotten(compiled, every):
    """Texts that are new in each call leave nothing behind that grows, with a filter of their own or without."""
    with fx.capture(suppress=True):
        for i in range(300 if compiled else 3000):
            show = functools.partial(fx.print, f"text {i}", every=every)
            (fx.jit(show) if compiled else show)()
        fx.effects_barrier(timeout=120)
    assert sum(line.title.startswith("text ") for line in known_sites.filters) < 3000
