"""A run file becomes a timeline that trace viewers read."""

from __future__ import annotations

import collections
import itertools
import json
import math
import re
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import run_python
from tests.internals import _cli, wire
from tests.processes import run_processes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.fx"


def trace_of(*paths, **options):
    """The events of the trace, by phase, of which every reader can make something."""
    output = paths[0].parent / "trace.json"
    fx.runs.trace(fx.runs.read(*paths), output, **options)
    events = json.loads(output.read_text(), parse_constant=pytest.fail)["traceEvents"]
    by_phase = collections.defaultdict(list)
    for event in events:
        by_phase[event["ph"]].append(event)
    named = {(event["pid"], event.get("tid")) for event in by_phase["M"]}
    rows = collections.defaultdict(list)
    for event in by_phase["X"]:
        rows[event["pid"], event["tid"]].append(event)
    assert rows.keys() <= named
    for slices in rows.values():
        slices.sort(key=lambda each: each["ts"])
        assert all(each["dur"] > 0 or each["cat"] == "jax" for each in slices)
        ours = [each for each in slices if each["cat"] != "jax"]
        assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in itertools.pairwise(ours))
    begun, ended = ({event["id"]: event for event in by_phase[phase]} for phase in "sf")
    assert begun.keys() == ended.keys() and len(begun) == len(by_phase["s"]) == len(by_phase["f"])
    for each in (*begun.values(), *ended.values()):
        assert any(on["ts"] <= each["ts"] < on["ts"] + on["dur"] for on in rows[each["pid"], each["tid"]]), each
    return by_phase


def slices_of(events, *cat):
    return [event for event in events["X"] if event["cat"] in cat]


def names_of(slices):
    return [each["name"].rpartition(".")[2] for each in slices]


def test_programs_and_callbacks_have_slices(path):
    """Calls, programs on their devices, callbacks and barriers."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def save(x):
        pass

    @fx.jit
    def step(x):
        def shard(x):
            fx.log("shard", at=x[0])
            return x

        x = jax.shard_map(shard, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(x)
        fx.callback(save, None, x.sum())
        return x

    with fx.record(path), fx.capture(suppress=True):
        x = step(step(jnp.arange(4.0)))
        thread = threading.Thread(target=lambda: step(x))
        thread.start()
        thread.join()
        fx.print("outside")
    events = trace_of(path)
    kinds = collections.Counter(event.kind for event in fx.runs.read(path).events())
    assert kinds[wire.Kind.DISPATCHED] == kinds[wire.Kind.RETURNED] == 4
    calls, programs = slices_of(events, "call", "barrier"), slices_of(events, "program")
    assert names_of(calls) == [*["step"] * 3, "an eager call", "barrier", "barrier"]
    assert sorted(names_of(programs)) == ["an eager call", *["step"] * 6]
    assert names_of(slices_of(events, "callback")) == ["save"] * 3
    assert not any("unfinished" in event["args"] for event in events["X"])
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"
    }
    assert len({rows[call["pid"], call["tid"]] for call in calls}) == 2
    instants = collections.Counter(event["name"] for event in events["i"])
    assert instants["shard at=0.0"] == 3 and instants["outside"] == 1


def test_numbers_of_logs_are_counters(path):
    """Each scalar field is one, by event; what is no number of JSON's is left out."""

    @fx.jit
    def f(x):
        fx.log("step", n=jnp.int32(x), loss=x, low=x.astype(jnp.bfloat16), off=x / 0, yes=x > 0, rows=x[None], word="a")
        jax.vmap(lambda y: fx.log("lane", y=y))(jnp.arange(2.0))
        fx.print("{}", x)

    with fx.record(path), fx.capture(suppress=True):
        f(0.5)
        f(1.5)
    counters = [(event["name"], event["args"]) for event in trace_of(path)["C"]]
    assert [args for name, args in counters if name == "step"] == [
        {"n": n, "loss": x, "low": x} for n, x in ((0, 0.5), (1, 1.5))
    ]
    assert [args["y"] for name, args in counters if name == "lane lane (1,)"] == [1, 1]


VALUES = [
    *(None, True, "word", "a\udc80\x00\n", 3, -(2**31), 0.5, 1e30, math.nan, math.inf, 1j, complex(math.nan, 1)),
    *({}, {"a": 1}, {"a": {"b": [1, None, "c"]}}, [], [1.5, "x"], (), (None, {"k": (1,)})),
]
DTYPES = [
    *(jnp.bool_, jnp.int4, jnp.int8, jnp.uint32, jnp.int32, jnp.bfloat16, jnp.float16, jnp.float32),
    *(jnp.float8_e4m3fn, jnp.complex64),
]


@pytest.mark.parametrize("nest", [lambda x: x, lambda x: {"of": [x, None]}], ids=["fields", "nested"])
@pytest.mark.parametrize(
    "how", [fx.jit, jax.jit, lambda f: f, lambda f: fx.jit(jax.vmap(f))], ids=["ours", "jax", "eager", "lanes"]
)
def test_every_field_is_taken(how, nest, path):
    """A trace is valid JSON whatever `fx.log` was given. Finite real scalars are counters, and nothing else is."""
    arrays = [jnp.ones(shape, dtype) for dtype in DTYPES for shape in ((1,), (1, 0), (1, 2, 3))]
    arrays += [jnp.full(1, fill, dtype) for fill in (jnp.nan, -jnp.inf) for dtype in (jnp.bfloat16, jnp.float32)]

    def log(*arrays):
        arrays = [x.reshape(x.shape[1:]) if x.size == 1 and x.ndim == 1 else x for x in arrays]
        fx.log("all", **{f"x{at}": nest(x) for at, x in enumerate((*arrays, *VALUES))})

    with fx.record(path), fx.capture(suppress=True) as records:
        how(log)(*arrays)
    events = trace_of(path)
    assert len(events["i"]) == len(records) == 1
    counted = {} if not events["C"] else events["C"][0]["args"]
    plain = {name: value for name, value in records[0].fields.items() if np.isscalar(value) or np.shape(value) == ()}
    real = {
        name: float(value)
        for name, value in plain.items()
        if not isinstance(value, (bool, str, complex, dict, type(None)))
        and np.asarray(value).dtype.kind not in "bc"
        and math.isfinite(value)
    }
    assert counted == real
    if nest(1) == 1:
        assert len(real) == 12


def test_failures_have_their_texts(path):
    """Also those that a call raises, which then has an end."""

    def bad(x):
        raise ValueError("no")

    @fx.jit
    def raises(x):
        fx.print("{}", x)
        raise KeyError

    with fx.record(path):
        with pytest.raises(fx.EffectError):
            fx.jit(lambda x: fx.callback(bad, x, x))(1.0).block_until_ready()
        with pytest.raises(KeyError):
            raises(1.0)
    events = trace_of(path)
    assert [event["name"] for event in events["i"] if event["cat"] == "failure"] == ["failed: ValueError('no')"]
    assert not any("unfinished" in event["args"] for event in events["X"])


def test_asynchronous_functions_have_slices(path):
    """From the start to the done, in loops and lanes, in programs of JAX's too."""

    def double(x):
        return 2 * x

    def f(x):
        x = fx.async_done(fx.async_callback(double, x, x))
        jax.lax.fori_loop(0, 2, lambda i, x: fx.async_done(fx.async_callback(double, x, x)), x)
        jax.vmap(lambda x: fx.async_done(fx.async_callback(double, x, x)))(jnp.arange(2.0))

    with fx.record(path):
        fx.jit(f)(1.0)
        jax.jit(f)(1.0)
        fx.effects_barrier()
    events = trace_of(path)
    started = slices_of(events, "operation")
    assert [re.sub(r".*\.(\w+) at .*", r"\1", each["name"]) for each in started] == ["double"] * 8  # one for all lanes
    assert not any("unfinished" in event["args"] for event in events["X"])


def test_operations_have_slices(path):
    """Of collectives, copies and what was started, on each device, from the start until a done has what it came to."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        def shard(x):
            return fx.async_done(fx.asynchronous.psum_start(x, "x"))

        def turn(i, x):
            return fx.async_done(fx.async_start(jnp.sin, x))

        x = jax.lax.fori_loop(0, 3, turn, shard(x))
        ref = jax.new_ref(jnp.zeros(4))
        fx.async_done(fx.copy_start(jax.new_ref(x), ref))
        return ref[...] + jax.vmap(lambda x: fx.async_done(fx.async_start(jnp.cos, x)))(x)

    with fx.record(path):
        fx.jit(f)(jnp.ones(4))
        jax.jit(lambda x: fx.async_done(fx.async_start(jnp.tan, x)))(1.0)
        fx.effects_barrier()
    events = trace_of(path)
    operations = slices_of(events, "operation")
    found = [(each["name"].split(" at ")[0], each["args"]["device"]) for each in operations]
    both = [(name, device) for name in ("copy", "cos", "psum", "sin", "sin", "sin") for device in (0, 1)]
    assert sorted(found) == sorted([*both, ("tan", 0)])
    assert all(f" at {__file__}:" in each["name"] for each in operations)
    programs = slices_of(events, "program")
    assert len(programs) == 2  # one on each device; what JAX has dispatched has no end
    for each in operations:
        on_device = [program for program in programs if program["ts"] <= each["ts"]]
        assert on_device and each["dur"] >= 1
    assert not any("unfinished" in event["args"] for event in events["X"])


WAITS = """
import os, signal, jax, effects as fx, jax.numpy as jnp
def die(x):
    os.kill(os.getpid(), signal.SIGKILL)
@fx.jit
def step(x):
    first = fx.async_done(fx.async_start(jnp.sin, x))
    future = fx.async_start(jnp.cos, x)
    return fx.callback(die, first, first) + fx.async_done(future)
fx.record({path!r})
step(1.0)
fx.effects_barrier()
"""


@pytest.mark.slow
def test_operation_that_is_not_done_is_named(path, capsys):
    assert run_python(WAITS.format(path=str(path))).returncode == -signal.SIGKILL
    operations = slices_of(trace_of(path), "operation")
    assert [each["name"].split(" at ")[0] for each in operations] == ["sin", "cos"]
    assert ["unfinished" in each["args"] for each in operations] == [False, True]
    assert _cli.main(["show", str(path), "--last"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"  Device 0 started `cos at <string>:8` .* before, and does not have its result.\n", said)
    assert said.count(" started `") == 1


KILLED = """
import os, signal, effects as fx
def die(x):
    os.kill(os.getpid(), signal.SIGKILL)
@fx.jit
def step(x):
    fx.log("step", x=x)
    return fx.callback(die, x, x)
fx.record({path!r})
fx.jit(lambda x: fx.print("before {{}}", x))(1.0)
step(1.0)
fx.effects_barrier()
"""


@pytest.mark.slow
def test_killed_process_has_slices_without_end(path):
    """They are marked, and end at the last time known."""
    assert run_python(KILLED.format(path=str(path))).returncode == -signal.SIGKILL
    events = trace_of(path)
    left = {(each["cat"], each["name"]): each for each in events["X"] if "unfinished" in each["args"]}
    assert left.keys() >= {("program", "step (unfinished)"), ("callback", "die (unfinished)")}
    last = max(each["ts"] + each["dur"] for each in events["X"])
    assert all(last - 1 <= each["ts"] + each["dur"] for each in left.values())


PROCESSES = """
start()
import jax.numpy as jnp, effects as fx
mesh = jax.make_mesh((PROCESSES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((PROCESSES,), jax.NamedSharding(mesh, jax.P("d")), lambda at: jnp.arange(2.0)[at])
def save(x):
    pass
@fx.jit
def step(x):
    fx.log("sum", x=x.sum())
    fx.callback(save, None, x.sum())
    return x + 1
with fx.record({folder!r} + f"/{{PROCESS}}.fx"):
    step(step(x))
report["done"] = True
"""


@pytest.mark.slow
def test_processes_stand_side_by_side(tmp_path):
    """Each has its programs and callbacks. What they have in common is there once."""
    done = run_processes(PROCESSES.format(folder=str(tmp_path)), 2)
    assert all(process.report.get("done") for process in done), done[0].output
    events = trace_of(tmp_path / "0.fx", tmp_path / "1.fx")
    for pid in (1, 2):
        mine = [each for each in events["X"] if each["pid"] == pid]
        assert [each["name"] for each in mine if each["cat"] == "program"] == ["step"] * 2
        assert [each["name"] for each in mine if each["name"] == "save"] == ["save"] * 2
    assert [event["args"]["x"] for event in events["C"]] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{path}", "-o", "{path}"], "it is a file of the run"),
        (["{path}", "-o", "{folder}/none/trace.json"], "No such file or directory"),
        (["{folder}/none.fx", "-o", "{folder}/trace.json"], "cannot be read"),
    ],
)
def test_command_says_what_is_wrong(arguments, says, path, tmp_path, capsys):
    """On the error output, with a status of its own, and nothing is written."""
    with fx.record(path):
        pass
    before = path.read_bytes()
    given = [each.format(path=path, folder=tmp_path) for each in arguments]
    assert _cli.main(["trace", *given]) == 2
    output, error = capsys.readouterr()
    assert says in error and not output and path.read_bytes() == before
    assert not (tmp_path / "trace.json").exists()


def test_command_needs_an_output(path, capsys):
    with fx.record(path):
        pass
    with pytest.raises(SystemExit) as ended:
        _cli.main(["trace", str(path)])
    assert ended.value.code == 2 and "--output" in capsys.readouterr().err
