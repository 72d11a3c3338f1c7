"""Two runs beside each other: what differs is found, and what is the same is so on other devices, too."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.extensions.runs import tables
from tests.helpers import run_python
from tests.oracle.devices.language import DeviceCase, MeshRun
from tests.oracle.devices.placing import Placing
from tests.oracle.devices.region import Region
from tests.oracle.expressions import Name
from tests.oracle.language import Program
from tests.oracle.runs import mutating
from tests.oracle.statements.effects import Effect
from tests.processes import run_processes


@pytest.fixture
def record(tmp_path):
    """Records what a function does, and returns the file."""
    numbers = itertools.count()

    def record(f, *args, times=1):
        path = tmp_path / f"run{next(numbers)}.fx"
        with fx.record(path), fx.capture(suppress=True):
            for _ in range(times):
                f(*args)
        return path

    return record


def mesh_of(count):
    return jax.make_mesh((count,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:count])


def train(params, steps=3):
    """A program with a loop, which logs its parameters in each of its iterations."""

    def step(i, w):
        w = w * 0.5 + 1.0
        fx.log("params", i=i, w=w)
        return w

    w = jax.lax.fori_loop(0, steps, step, params)
    fx.print("end {}", w.sum())
    return w


def test_bit_that_is_flipped(record):
    """The first record that differs is found, with its iteration, both values and the place in the array, and how the
    difference goes on."""
    w = np.linspace(1, 2, 12, dtype=np.float32).reshape(3, 4)
    flipped = w.copy()
    flipped.view(np.uint32)[1, 2] ^= 1 << 3
    f = fx.jit(train)
    a, b = record(f, w, times=2), record(lambda: (f(w), f(flipped)))
    found = fx.runs.diff(a, b)
    assert not found.equal
    first = found.first
    assert (first.title, first.iteration, first.argument, first.index, first.count) == ("params", 0, "w", (1, 2), 1)
    np.testing.assert_array_equal(first.a, w * 0.5 + 1)
    np.testing.assert_array_equal(first.b, flipped * 0.5 + 1)
    assert first.distance == abs(float(first.a[1, 2]) - float(first.b[1, 2]))
    params, end = found.sites
    assert (params.compared, params.differing, end.compared) == (6, 3, 2)
    assert params.last.iteration == 2 and params.last.distance < params.first.distance == params.largest.distance
    report = str(found)
    assert "They differ first at\n  log 'params' at" in report and "iteration 0" in report and "w[1, 2]: " in report
    assert fx.runs.diff(a, b, atol=1e-5).equal and not fx.runs.diff(a, b, atol=1e-8).equal


@pytest.mark.parametrize("order", ["kernel", "plain"])
def test_kernel_that_accumulates_in_another_order(order, record):
    """A kernel in place of plain code: equal if it computes the same, or the rounding of its sum is found."""
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)

    def plain(x):
        def step(i, total):
            total = total + x[i]
            fx.print("sum {}", total)
            return total

        return jax.lax.fori_loop(0, 64, step, jnp.float32(0))

    def kernel(x_ref, out_ref):
        def step(i, total):
            total = total + x_ref[i if order == "plain" else 63 - i]
            fx.print("sum {}", total)
            return total

        out_ref[0] = jax.lax.fori_loop(0, 64, step, jnp.float32(0))

    in_kernel = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((1,), jnp.float32), interpret=True)
    found = fx.runs.diff(record(fx.jit(plain), x), record(fx.jit(in_kernel), x))
    if order == "plain":
        assert found.equal, str(found)
    else:
        [site] = found.sites
        assert site.compared == 64 and site.first.iteration == 0 and site.differing > 60
        assert 0 < site.last.distance < 1e-4


def test_change_around_a_region_is_found_in_its_place():
    """A value that is changed, an effect that is moved, left out or added is found in a region and around it, and
    nowhere else."""
    before, inside, behind = (
        tuple(Effect("ordered", f"{place}{number}", (Name(value),)) for number in range(3))
        for place, value in (("before", "a"), ("inside", "mine"), ("behind", "b"))
    )
    form = ("one_axis", True, 1, "device", "mine", (5, 7), Name("a"), (), inside, Name("mine"), "c", "wide")
    program = Program((), (*before, Region("region", *form), *behind))
    case = DeviceCase(((MeshRun(program, (1, 2, 3), placing=Placing((0, 1))),),))
    changes = [*mutating.mutations(program)]
    assert len(changes) == 3 * (3 * 3 + 2)
    assert mutating._check_each(case, changes) == len(changes) + 1


def test_bfloat16_beside_float32(record):
    """Values of two types are compared as numbers."""
    f = fx.jit(train)
    a, b = record(f, jnp.linspace(1, 2, 7)), record(f, jnp.linspace(1, 2, 7).astype(jnp.bfloat16))
    found = fx.runs.diff(a, b)
    assert not found.equal and found.first.a.dtype == np.float32 and found.first.b.dtype == jnp.bfloat16
    assert fx.runs.diff(a, b, rtol=1e-2).equal


def test_other_numbers_of_devices_are_equal(record):
    """What is whole is the same on 1, 2 and 4 devices."""
    inner = fx.jit(lambda v: fx.print("called {}", v))

    @fx.jit
    def f(x):
        fx.print("all {}", x)
        jax.lax.fori_loop(0, 3, lambda i, _: fx.log("step", i=i, x=x * i), None)
        jax.vmap(lambda row: fx.print("lane {}", row))(x.reshape(4, 4))
        fx.callback(lambda v: inner(v), None, x[3])
        jax.lax.cond(x[1] > 2, lambda: fx.print("more"), lambda: fx.print("less"))
        return x * 2

    def on(count):
        f(f(jax.device_put(jnp.arange(16.0), jax.NamedSharding(mesh_of(count), P("d")))))
        fx.print("outside")

    one, two, four = (record(on, count) for count in (1, 2, 4))
    for run in (two, four):
        found = fx.runs.diff(one, run)
        assert found.equal and len(found.sites) == 7, str(found)


def test_programs_part(record):
    """The call in which effects differ is named, and what only one of them has."""

    @fx.jit
    def a(x):
        fx.print("begin {}", x)
        jax.lax.cond(x > 1, lambda: fx.print("large"), lambda: fx.print("small"))

    @fx.jit
    def more(x):
        fx.print("more {}", x)

    one, other = record(lambda: (a(0), a(2))), record(lambda: (a(0), more(5), a(1), a(1)))
    found = fx.runs.diff(one, other)
    parting = found.parting
    assert not found.equal and (parting.a.title, parting.b.title) == ("begin {}", "more {}")
    sites = {site.title: site for site in found.sites}
    assert (sites["more {}"].only_a, sites["more {}"].only_b) == (0, 1)
    assert (sites["large"].only_a, sites["large"].only_b) == (1, 0)
    # A call that only one run has does not shift those behind it.
    assert (sites["begin {}"].compared, sites["begin {}"].differing, sites["begin {}"].only_b) == (2, 1, 1)
    assert f"A goes on with print 'begin {{}}' at {parting.a.where}" in str(found)


def test_run_that_ends_early(record):
    """What only one run has is counted, down to a run without a record."""
    f = fx.jit(train)
    found = fx.runs.diff(record(f, jnp.ones(3), times=3), record(f, jnp.ones(3), times=2))
    assert found.first is None and not found.equal
    assert found.parting.a.title == "params" and found.parting.b is None
    assert [(site.only_a, site.only_b) for site in found.sites] == [(3, 0), (1, 0)]
    assert "B has no more effects in this call" in str(found)
    a, b = record(lambda: None), record(f, jnp.ones(3))
    assert fx.runs.diff(a, a).equal
    found = fx.runs.diff(a, b)
    assert not found.equal and found.parting.a is None and str(found)
    assert [(site.only_a, site.only_b) for site in found.sites] == [(0, 3), (0, 1)]


def test_loop_says_which_iteration(record):
    f = fx.jit(lambda n: jax.lax.fori_loop(0, 10, lambda i, _: fx.log("turn", x=jnp.where(i < n, i, -i)), None))
    found = fx.runs.diff(record(lambda: (f(10), f(10))), record(lambda: (f(10), f(7))))
    [site] = found.sites
    assert [pair.iteration for pair in (site.first, site.largest, site.last)] == [7, 9, 9]
    assert [pair.distance for pair in (site.first, site.last)] == [14, 18]
    assert found.parting is None


def test_lines_that_have_moved(record):
    """Lines of another version of a file are found by effect and title, in their order."""
    f = fx.jit(lambda x: (fx.print("x {}", x), fx.print("x {}", x + 1)))
    g = fx.jit(
        lambda x: (
            fx.print("x {}", x),
            fx.print("x {}", x + 1),
        )
    )
    found = fx.runs.diff(record(f, 1), record(g, 1))
    assert found.equal and found.sites[0].compared == 2


def test_values_of_all_kinds(record):
    """NaN is the same as NaN, infinities are, and texts, numbers and shapes are compared."""

    def f(x, name, shape, flag):
        fx.log("a", x=x, who=name)
        fx.log("b", x=jnp.zeros(shape), flag=flag, n=np.int64(2))
        fx.log("c", x=jnp.zeros((0, 3)))

    f = fx.jit(f, static_argnums=(1, 2))
    x = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    same = record(f, x, "one", (2,), True)
    assert fx.runs.diff(same, record(f, x, "one", (2,), True)).equal
    for args, argument in [
        ((np.array([1, np.inf, -np.inf, 0], np.float32), "one", (2,), True), "x"),
        ((np.array([np.nan, np.inf, np.inf, 0], np.float32), "one", (2,), True), "x"),
        ((x, "two", (2,), True), "who"),
        ((x, "one", (3,), True), "x"),
        ((x, "one", (2,), False), "flag"),
    ]:
        found = fx.runs.diff(same, record(f, *args), rtol=0.5, atol=10 * (argument != "flag"))
        assert not found.equal and found.first.argument == argument, str(found)
        assert str(found)


FULL = """
import threading, jax, jax.numpy as jnp, effects as fx
@fx.jit
def f(call, n):
    jax.lax.fori_loop(0, 100, lambda i, _: fx.log("turn", call=call, x=jnp.where(i < n, i, -1)), None)
def run(calls, bad=None):
    for call in range(calls):
        f(call, 90 if call == bad else 100)
    fx.effects_barrier()
def record(name, calls, bad=None, max_bytes=1 << 16, threads=1):
    with fx.record(FOLDER + name, max_bytes=max_bytes), fx.capture(suppress=True):
        run(calls, bad)
        if threads == 2:
            thread = threading.Thread(target=run, args=(calls,))
            thread.start()
            thread.join()
whole = 1 << 22
"""


@pytest.mark.slow
def test_beginning_that_is_overwritten(tmp_path):
    """If a file keeps only the newest records, its whole calls are compared with the calls of the same numbers. Calls
    before the recording do not matter. The report says how many calls are left out."""
    code = FULL + (
        "record('cut', 30); record('whole', 30, max_bytes=whole); record('early', 30, 2, whole)\n"
        "record('long', 40); record('short', 20); record('two', 30, threads=2)\n"
        "f = fx.jit(lambda: jax.lax.fori_loop(0, 3000, lambda i, _: fx.log('turn', x=i), None))\n"
        "with fx.record(FOLDER + 'call', max_bytes=1 << 16), fx.capture(suppress=True): f()"
    )
    done = run_python(f"FOLDER = {str(tmp_path)!r} + '/'" + code)
    assert done.returncode == 0, done.stderr
    runs = {path.name: fx.runs.read(path) for path in tmp_path.iterdir()}
    assert len(runs["cut"]) < 1000 and len(runs["whole"]) == 3000

    def diff(a, b):
        return fx.runs.diff(runs[a], runs[b])

    for a, b in [("whole", "cut"), ("cut", "whole"), ("cut", "early")]:
        found = diff(a, b)
        [site] = found.sites
        assert found.equal and 20 < found.begin < 29 and site.compared == 100 * (30 - found.begin)
        assert f"The first {found.begin} calls and what callbacks" in str(found)
    [site] = diff("cut", "long").sites  # which has ten calls more
    assert (site.differing, site.only_a) == (0, 0) and site.only_b > 0
    [site] = diff("cut", "short").sites
    assert (site.compared, site.only_b) == (0, 0) and site.only_a > 0
    with pytest.raises(fx.runs.RunError, match="has no call from its beginning on"):
        diff("call", "whole")
    with pytest.raises(fx.runs.RunError, match="programs of threads 1, 2. Which"):
        diff("two", "whole")


def test_records_without_room_are_refused(record, tmp_path):
    """The call of a lost record is unknown, so runs cannot be compared."""
    with fx.record(tmp_path / "lost.fx", max_bytes=1 << 16), fx.capture(suppress=True):
        fx.jit(lambda x: fx.log("step", x=x))(jnp.zeros(1 << 16))
        fx.effects_barrier()
    with pytest.raises(fx.runs.RunError, match="lacks 1 record or more, for which it had no room"):
        fx.runs.diff(tmp_path / "lost.fx", record(lambda: None))


def cli(*args):
    from effects.cli import main

    return main(["diff", *map(str, args)])


def test_exit_statuses(record, tmp_path, capsys):
    """As of `diff`: 0 for equal runs, 1 for others, and 2 with an error where that can't be said."""
    f = fx.jit(train)
    a, b = record(f, jnp.ones(3)), record(f, jnp.full(3, 1.001))
    assert cli(a, a) == 0 and f"{a} and {a} are equal: 4 records at 2 lines\n" == capsys.readouterr().out
    assert cli(a, b) == 1 and "They differ first at" in capsys.readouterr().out
    assert cli(a, b, "--rtol", "1e-2") == 0 and cli(a, b, "--atol", "0.1") == 0
    assert cli(a, b, "--only", "test_diff.py") == 1
    capsys.readouterr()
    garbage, empty = tmp_path / "garbage.fx", tmp_path / "empty.fx"
    garbage.write_bytes(b"no run at all" * 1000)
    empty.write_bytes(b"")
    for args, says in [
        ((a, tmp_path / "none.fx"), "No such file"),
        ((a, garbage), "cannot be read"),
        ((empty, a), "cannot be read"),
        ((a, b, "--only", "nothing.py"), "is one of nothing.py"),
    ]:
        assert cli(*args) == 2
        written = capsys.readouterr()
        assert says in written.err and not written.out
    with pytest.raises(SystemExit) as ended:
        cli(a, b, "--rtol", "much")
    assert ended.value.code == 2


def test_only_one_line(record):
    """A pattern leaves lines out; those that only one run has are found, too."""
    f = fx.jit(train)
    a, b = record(f, jnp.ones(3)), record(f, jnp.zeros(3))
    log, end = fx.runs.diff(a, b).sites
    [site] = fx.runs.diff(a, b, only=f"test_diff.py:{end.where.line}").sites
    assert site.title == "end {}" and log.title == "params"
    with pytest.raises(fx.runs.RunError, match="is one of train.py:1"):
        fx.runs.diff(a, b, only="train.py:1")


def test_assertion_has_the_report(record):
    f = fx.jit(train)
    a, b = record(f, jnp.ones(3)), record(f, jnp.zeros(3))
    fx.testing.assert_same_run(a, a)
    fx.testing.assert_same_run(a, b, atol=1)
    with pytest.raises(AssertionError, match="They differ first at\n  log 'params' at .*test_diff.py"):
        fx.testing.assert_same_run(a, b)


def test_threads_and_what_callbacks_call(record):
    """Threads have other numbers in another recording, and so have those in which callbacks run."""
    import threading

    inner = fx.jit(lambda v: fx.print("inner {}", v))
    f = fx.jit(lambda x: (fx.print("outer {}", x), fx.callback(lambda v: inner(v), None, x)))

    def both(x):
        thread = threading.Thread(target=lambda: (f(x), fx.effects_barrier()))
        thread.start()
        thread.join()
        f(x + 1)

    a, b, c = record(both, 1.0), record(both, 1.0), record(both, 5.0)
    assert fx.runs.diff(a, b).equal, str(fx.runs.diff(a, b))
    found = fx.runs.diff(a, c)
    assert found.beside and "What callbacks have called is not compared" in str(found)
    assert {site.title: (site.compared, site.differing) for site in found.sites} == dict.fromkeys(
        ["outer {}", "<lambda>"], (2, 2)
    )
    found = fx.runs.diff(record(f, 1.0), record(f, 5.0))
    [called] = [site for site in found.sites if site.title == "inner {}"]
    assert called.first.iteration == 0 and called.first.b == 5 and not found.beside


def test_unordered_records_of_each_device_are_compared(record):
    """No token tells which device of a region has published an unordered record."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = P("i")

    def device(x):
        future = fx.async_callback(lambda v: np.float32(v), jax.ShapeDtypeStruct((), jnp.float32), x[0])
        return fx.async_done(future)[None]

    f = fx.jit(jax.shard_map(device, mesh=mesh, in_specs=spec, out_specs=spec))
    a, b = record(f, jnp.array([1.0, 2.0])), record(f, jnp.array([1.0, 3.0]))
    assert fx.runs.diff(a, a).equal
    [site] = [site for site in fx.runs.diff(a, b).sites if site.differs]
    assert (site.differing, site.first.device, site.first.b) == (1, 1, 3)
    assert "device 1" in str(fx.runs.diff(a, b))


def test_unordered_records_have_the_order_of_their_times():
    """A program may publish them from several threads, so a file may have them in another order."""
    site = SimpleNamespace(effect=SimpleNamespace(ordered=False))
    zeros = np.zeros(3, int)
    arrays = dict.fromkeys(("thread", "call", "domain", "phase", "index", "device", "lane", "position"), zeros)
    values = [(np.arange(3), {"x": np.array([3, 1, 2])})]
    table = tables.Table(site, **arrays, time=np.array([0.3, 0.1, 0.2]), columns=values, shares_tokens=True)
    [(rows, columns)] = tables._joined([table]).columns
    assert columns["x"][np.argsort(rows)].tolist() == [1, 2, 3]


def test_call_that_has_lost_its_only_line_is_still_a_call(record):
    """Calls behind it keep their numbers, since the call is still dispatched."""
    start = jnp.float32(0)

    def runs(shows):
        def once(x):
            jax.lax.fori_loop(0, jnp.int32(x), lambda i, c: (fx.print("turn {}", i), c)[1], 0)
            if shows:
                fx.print("once {}", x)

        first, second = fx.jit(once), fx.jit(lambda x: fx.print("then {}", x))
        return lambda: [first(start), second(start), first(start), second(start)]

    a, b = record(runs(True)), record(runs(False))
    differing = {site.title: (site.only_a, site.only_b) for site in fx.runs.diff(a, b).sites if site.differs}
    assert differing == {"once {}": (2, 0)}


def test_threads_that_begin_in_another_order(record):
    """Threads with the same records correspond, whatever their numbers are."""
    import threading

    f = fx.jit(lambda x: (fx.print("all {}", x), fx.log("rows", x=jnp.full(3, x), who=["text", None])))

    def run(values):
        for x in values:
            thread = threading.Thread(target=lambda x=x: (f(x), f(2 * x), fx.effects_barrier()))
            thread.start()
            thread.join()

    a, b, c = record(run, (1.0, 2.0, 3.0)), record(run, (3.0, 1.0, 2.0)), record(run, (3.0, 1.0, 2.0, 5.0))
    assert fx.runs.diff(a, b).equal, str(fx.runs.diff(a, b))
    found = fx.runs.diff(a, c)
    assert [(site.differing, site.only_a, site.only_b) for site in found.sites] == [(0, 0, 2), (0, 0, 2)]
    d = record(run, (3.0, 1.0, 2.5))
    assert [site.differing for site in fx.runs.diff(a, d).sites] == [2, 2]


def test_arguments_that_only_one_has(record):
    """A version that logs one more field differs from the one before, at the lines that have it."""
    a, b = fx.jit(lambda x: fx.log("loss", x=x)), fx.jit(lambda x: fx.log("loss", x=x, y=x))
    found = fx.runs.diff(record(a, 1.0), record(b, 1.0), atol=100)
    assert found.first.argument == "y" and found.first.a is None and found.first.b == 1
    assert "y: A has nothing, B has float32[]" in str(found)


def test_programs_of_plain_jit_differ(record):
    """They have no calls, so the place is the effect and the iteration."""
    plain = jax.jit(lambda x: fx.print("plain {}", x))
    a, b = record(lambda: (plain(1), plain(2))), record(lambda: (plain(1), plain(3)))
    assert re.search(r"effect \d+ of programs of plain jax.jit, iteration 0", str(fx.runs.diff(a, b)))


def test_shards_correspond_by_what_they_are_of(record):
    """A shard has its part of the whole as its place, whatever device has it."""
    f = fx.jit(lambda x: fx.print("shard {}", x, per_shard=True))

    def on(count, scale):
        x = jax.device_put(jnp.arange(16.0), jax.NamedSharding(mesh_of(count), P("d")))
        return record(lambda: (f(x), f(x * scale)))

    a, b, other = on(4, 2), on(4, 3), on(2, 2)
    found = fx.runs.diff(a, b)
    [site] = found.sites
    assert (site.compared, site.differing) == (8, 4) and found.first.lane == (0, 4) and found.first.call == 1
    [site] = fx.runs.diff(a, other).sites
    assert (site.compared, site.only_a, site.only_b) == (0, 8, 4)


def test_nested_lanes_with_and_without_effects(record):
    """Lanes of lanes, some masked, and values that are the same in all of them."""

    def f(x, y, scale):
        fx.log("both", x=x, y=y, scale=scale, who="text")
        jax.lax.cond(x > y[0], lambda: fx.log("some", x=x * scale), lambda: None)

    f = fx.jit(jax.vmap(jax.vmap(f, (0, None, None)), (None, 0, None)))
    x, y = jnp.arange(3.0), jnp.arange(8.0).reshape(4, 2) / 2
    a, b, c = record(f, x, y, 2.0), record(f, x, y, 2.0), record(f, x.at[2].set(9), y, 2.0)
    run = fx.runs.read(a)
    assert fx.runs.diff(a, b).equal
    both, some = sorted(fx.runs.diff(a, c).sites, key=lambda site: site.title)
    assert (both.compared, both.differing, both.first.lane) == (12, 4, (0, 2))
    assert some.compared == sum(record.event == "some" for record in run) and some.only_b == 2
    assert (both.first.argument, both.first.a, both.first.b) == ("x", 2, 9)


PROCESSES = """
start()
import os
import jax.numpy as jnp, numpy as np, effects as fx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))

@fx.jit
def step(x):
    fx.log("sum", total=x.sum())
    jax.lax.fori_loop(0, 2, lambda i, _: fx.log("turn", i=i, total=x.sum() * i), None)
    def of_device(x):
        fx.print("mine {{}}", x)
        return x + 1
    return jax.shard_map(of_device, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)

os.makedirs({folder!r}, exist_ok=True)
with fx.record({folder!r} + f"/{{PROCESS}}.fx"), fx.capture(suppress=True):
    data = np.array([1.0, {second}], np.float32)
    x = jax.make_array_from_callback((2,), NamedSharding(mesh, P("d")), lambda index: data[index])
    for _ in range(3):
        x = step(x)
    fx.print("seen {{}}", jnp.float32({own}))
"""


@pytest.mark.slow
def test_several_processes(tmp_path):
    """Processes have one run between them, which is the same as that of one process with all of the devices."""

    def run(name, count, second=2.0, own="1.0"):
        folder = str(tmp_path / name)
        done = run_processes(PROCESSES.format(folder=folder, second=second, own=own), count, devices=2 // count)
        assert [each.returncode for each in done] == [0] * count, done
        return folder

    one, two = run("one", 1), run("two", 2)
    assert fx.runs.diff(one, two).equal, str(fx.runs.diff(one, two))
    assert fx.runs.diff(two, one).equal
    found = fx.runs.diff(two, run("other", 2, second=2.5))
    sites = {site.title: site for site in found.sites}
    assert {title: (site.compared, site.differing) for title, site in sites.items()} == {
        "sum": (3, 3), "turn": (6, 3), "mine {}": (6, 3), "seen {}": (1, 0)
    }  # fmt: skip
    assert sites["mine {}"].first.device == 1
    # What one process has otherwise than the others.
    [seen] = [site for site in fx.runs.diff(two, run("apart", 2, own="1.0 + PROCESS")).sites if "seen" in site.title]
    assert (seen.differing, float(seen.first.a), float(seen.first.b)) == (1, 1.0, 2.0)


def test_calls_are_counted_from_the_beginning_of_the_recording(record):
    """The numbers of calls, in differences and partings, do not count calls before the recording."""
    f, g = fx.jit(lambda x: fx.print("f {}", x)), fx.jit(lambda x: fx.print("g {}", x))
    with fx.capture(suppress=True):
        for _ in range(7):
            f(0)
    a, b = record(lambda: (f(1), f(2), g(3))), record(lambda: (f(1), f(5), f(3), g(3)))
    found = fx.runs.diff(a, b)
    assert found.first.call == 1 and found.parting.call == 2, str(found)
    assert "call 1 of thread" in str(found) and "part in call 2 of thread" in str(found)
