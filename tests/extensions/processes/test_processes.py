"""Programs over the devices of several processes, and the barrier over all of them."""

import json
import re

import pytest

import effects as fx
from tests.processes import run_processes

pytestmark = pytest.mark.slow

PROGRAM = """
start()
import contextlib, io, os, pathlib
import jax.numpy as jnp, numpy as np, effects as fx
from jax import lax, P
from tests.lowering.regions.meshes import mesh_of
from tests.lowering.regions.statements import program_of

FOLDER = pathlib.Path({folder!r})
ONE = jax.ShapeDtypeStruct((), jnp.int32)
MESH = mesh_of(4)
report["devices"] = [device.process_index for device in jax.devices()]

def put(x):
    return jax.make_array_from_callback(x.shape, jax.NamedSharding(MESH, P("x")), lambda index: x[index])

x = put(np.arange(4, dtype=np.int32))
recording = fx.record(FOLDER / f"{{jax.process_index()}}.fx")
records = []
out = io.StringIO()

def body(x):
    n = lax.axis_index("x")
    fx.print("{{}} of {{}}", x, n)
    lax.cond(n % 2 == 0, lambda: fx.log("even", n=n), lambda: None)
    lax.fori_loop(0, n, lambda turn, _: fx.print("turn {{}} of {{}}", turn, n), None)
    y = fx.callback(lambda n: np.int32(10 * n), ONE, n)
    jax.vmap(lambda lane: fx.print("lane {{}}", lane))(n + jnp.arange(2))
    return x + y + lax.psum(x, "x")

@fx.jit
def whole(x):
    fx.print("all {{}}", x)
    x = jax.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)
    total = fx.callback(lambda total: np.int32(total + 1), ONE, x.sum())
    jax.jit(lambda total: fx.log("total", total=total))(total)
    lax.scan(lambda _, i: (None, fx.print("scan {{}}", i)), None, jnp.arange(2))
    return x * total

@fx.jit
def calls(x):
    fx.callback(lambda x: fx.print("nested {{}}", x.tolist()), None, x)

statements = {statements!r}
with contextlib.redirect_stdout(out), fx.capture() as records:
    for _ in range(2):
        x = whole(x)
    calls(x)
    fx.print("eager {{}}", 3)
    fx.jit(lambda x: fx.print("by itself {{}}", x))(5)
    shown = len(out.getvalue())
    for program in statements:
        fx.jit(lambda x: program_of(program, x))(put(np.arange(4, dtype=np.int32)))
report["records"] = [[r.text, r.device, r.process, list(r.processes), r.token[2] % 2] for r in records]
report["lines"] = out.getvalue().splitlines()
recording.close()

# On devices of the first process alone: the others call it too, and wait for nothing
first = mesh_of(1, devices=jax.devices()[:1])
shard = lambda index: np.arange(1, dtype=np.int32)
elsewhere = jax.make_array_from_callback((1,), jax.NamedSharding(first, P()), shard, dtype=np.int32)
with fx.capture(suppress=True) as records:
    fx.jit(lambda x: fx.print("elsewhere {{}}", x))(elsewhere)
    places = fx.jit(lambda x: (fx.print("placed {{}}", x), x)[1], out_shardings=jax.NamedSharding(first, P()))
    for i in range(3):  # no argument says where
        places(np.int32(i))
report["elsewhere"] = [record.text for record in records]

# Without an order: where these come among the others nobody says
(FOLDER / "unordered").mkdir(exist_ok=True)
recording = fx.record(FOLDER / "unordered" / f"{{jax.process_index()}}.fx")
fx.jit(lambda x: [fx.print("unordered {{}} {{}}", i, x, ordered=False) for i in range(3)])(x)
fx.jit(lambda x: fx.print("elsewhere {{}}", x))(elsewhere)
fx.jit(lambda: fx.print("after"))()
fx.effects_barrier(scope="global", timeout=60)
recording.close()
report["done"] = True
"""

PRINT, SYNC, TALK = ("print",), ("sync",), ("talk",)


STATEMENTS = [
    [("region", [PRINT, TALK, SYNC, PRINT], True), PRINT],
    [PRINT, ("scan", [("region", [SYNC, ("loop", "n", [PRINT]), ("if", 1, [PRINT, PRINT])], False)])],
    [("region", [("loop", 2, [("if", 0, [SYNC]), PRINT]), ("jit", [PRINT]), TALK], False), PRINT],
    [("region", [TALK, PRINT, TALK, SYNC, TALK], True), ("region", [("queued",), PRINT], False)],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


def _runs(folder, count):
    where = folder / str(count)
    where.mkdir()
    code = PROGRAM.format(folder=str(where), statements=STATEMENTS)
    processes = run_processes(code, count, devices=4 // count)
    for process in processes:
        assert process.report.get("done"), process.output[-4000:]
    return [process.report for process in processes]


@pytest.fixture(scope="module")
def four(folder):
    """Reports of four processes with a device each."""
    return _runs(folder, 4)


@pytest.fixture(scope="module")
def two(folder):
    """Of two processes with two devices each."""
    return _runs(folder, 2)


@pytest.fixture(scope="module")
def one(folder):
    """Of one process with four devices."""
    return _runs(folder, 1)


def test_records_of_all_processes(one, two, four):
    """Each process shows what is of whole values, and of a region what is of its own devices."""
    [alone] = one
    for reports in (two, four):
        for process, report in enumerate(reports):
            assert report["devices"] == alone["devices"] or report["devices"] == sorted(report["devices"])
            mine = {device for device, owner in enumerate(report["devices"]) if owner == process}
            expected = [[text, device] for text, device, *_, region in alone["records"] if region and device in mine]
            assert [[text, device] for text, device, *_, region in report["records"] if region] == expected
            expected = [text for text, *_, region in alone["records"] if not region]
            assert [text for text, *_, region in report["records"] if not region] == expected
            assert {own for _, _, own, _, _ in report["records"]} == {process}
            assert {device for _, device, *_ in report["records"]} <= {-1, *mine}


def test_program_that_runs_elsewhere(four):
    shown = ["elsewhere [0]", "placed 0", "placed 1", "placed 2"]
    assert [report["elsewhere"] for report in four] == [shown, [], [], []]


def test_records_say_which_processes_have_them(one, four):
    expected = {"all [0 1 2 3]": [0, 1, 2, 3], "[0] of 0": [], "by itself 5": [], "eager 3": []}
    texts = {text: processes for text, _, _, processes, _ in four[0]["records"]}
    assert {text: texts[text] for text in expected} == expected
    assert {text: processes for text, _, _, processes, _ in one[0]["records"]}["all [0 1 2 3]"] == [0]


def test_run_of_several_processes_is_that_of_one(folder, one, two, four):
    """Whole values are there once, and each device's own records where one process with all devices has them."""
    [alone] = one
    runs = {count: fx.runs.read(folder / str(count)) for count in (1, 2, 4)}
    assert [record.text for record in runs[1]] == [text for text, *_ in alone["records"]]
    for count in (2, 4):
        assert [process.number for process in runs[count].processes] == [*range(count)]
        assert [_place(record) for record in runs[count]] == [_place(record) for record in runs[1]]
        shown = {json.dumps(record.to_dict()["where"]) for record in runs[count]}
        assert shown == {json.dumps(record.to_dict()["where"]) for record in runs[1]}


def _place(record):
    """Of programs that callbacks call, the numbers are the drain's own."""
    nested = record.thread >= 1 << 19
    return record.text, record.token[2] % 2 and record.device, record.lane, None if nested else record.token


def test_run_has_unordered_records_once(folder, one, two, four):
    for count in (1, 2, 4):
        texts = [record.text for record in fx.runs.read(folder / str(count) / "unordered")]
        assert texts[-2:] == ["elsewhere [0]", "after"]
        assert sorted(re.sub(r" \[.*", "", text) for text in texts) == [
            "after",
            "elsewhere",
            *(f"unordered {i}" for i in range(3)),
        ]


# The barrier over all processes

BARRIERS = """
start(heartbeat_timeout_seconds=100)
import os, signal, threading
import numpy as np, effects as fx
from tests.internals import _jax

def barrier(name, **options):
    try:
        fx.effects_barrier(scope="global", **{"timeout": 20, **options})
        outcome = "ok"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    report[name] = outcome

barrier("first")
service = _jax.coordination_service()
if PROCESS == 1:  # comes when the other has given up
    service.blocking_key_value_get("test/given-up/0", 60_000)
barrier("late", timeout=0.5)
service.key_value_set(f"test/given-up/{PROCESS}", "")
barrier("after late")

# A callback that raises: no other process waits for it
fx.jit(lambda x: fx.callback(lambda x: 1 // (1 - int(x)), None, x))(PROCESS)
barrier("raised")
barrier("after raised")

# Threads meet their own
seen = []
def work():
    for turn in range(30):
        fx.effects_barrier(scope="global", timeout=60)
    seen.append(True)
fx.print("this thread is the first")
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(10):
    fx.effects_barrier(scope="global", timeout=60)
for thread in threads:
    thread.join()
report["threads"] = len(seen)

# From a callback
def nested(x):
    barrier(f"nested {x}")
    return x
f = fx.jit(lambda x: fx.callback(nested, jax.ShapeDtypeStruct((), "int32"), x))
for turn in range(2):
    f(np.int32(turn))

# A slow callback
gate = threading.Event()
fx.jit(lambda x: fx.callback(lambda x: x == 1 and gate.wait(60), None, x))(PROCESS)
barrier("slow", timeout=1)
gate.set()
barrier("after slow")

# Where a process cannot tell which effects are its own
from jax import P
def refused(name, mesh, **options):
    def body(x):
        fx.print("{}", x)
        return x
    region = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False, **options)
    whole = jax.NamedSharding(both, P())
    x = jax.make_array_from_callback((2,), whole, lambda index: np.zeros(2, np.float32)[index])
    try:
        fx.jit(region)(x)
    except fx.MissingTokenRule as error:
        report[name] = str(error)

both = jax.make_mesh((1, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
refused("some axes", both, axis_names={"x"})
refused("abstract", both.abstract_mesh)

# And one that dies
barrier("before")
write_report()
if PROCESS == 1:
    os.kill(os.getpid(), signal.SIGKILL)
barrier("died", timeout=1)
write_report()
os._exit(0)
"""


@pytest.fixture(scope="module")
def barriers(folder):
    where = folder / "different"
    where.mkdir()
    processes = run_processes(f"FOLDER = {str(where)!r}\n{BARRIERS}", 2)
    assert processes[0].report.get("died"), processes[0].output[-4000:]
    return [process.report for process in processes]


def test_global_barrier(barriers):
    for report in barriers:
        for name in ("first", "after late", "after raised", "nested 0", "nested 1", "after slow", "before"):
            assert report[name] == "ok", name
        assert report["threads"] == 2


def test_global_barrier_names_who_has_not_come(barriers):
    early, late = (report["late"] for report in barriers)
    assert re.fullmatch(
        r"BarrierTimeout: The barrier of 2 processes waited 0.5 s, and these had not come in time: process 1\. "
        r"It returns .*\. Pass a longer `timeout`, .*\.",
        early,
    )
    assert "these had not come in time: process 1." in late


def test_global_barrier_names_a_process_whose_effects_have_not_ended(barriers):
    other, slow = (report["slow"] for report in barriers)
    assert "these had not come in time: process 1." in other
    assert "The barrier waited 1 s and these have not ended: the callback `<lambda>" in slow


def test_callback_that_raises_keeps_no_process_waiting(barriers):
    other, raised = (report["raised"] for report in barriers)
    assert other == "ok"
    assert re.match("EffectError: .*ZeroDivisionError", raised)


def test_regions_whose_own_effects_a_process_cannot_tell(barriers):
    for report in barriers:
        assert "over some axes of its mesh, and there are several processes" in report["some axes"]
        assert "an abstract mesh does not say which these are" in report["abstract"]


def test_process_that_died_is_named(barriers):
    said = barriers[0]["died"]
    assert "BarrierTimeout: The barrier of 2 processes waited 1 s, and these had not come in time: process 1." in said


def test_process_that_died_ends_a_barrier_without_a_limit():
    """When JAX notices, just before it ends the other processes: it may be faster, but not always."""
    code = """
start(heartbeat_timeout_seconds=2)
import os, signal, effects as fx
fx.effects_barrier(scope="global")
if PROCESS == 1:
    os.kill(os.getpid(), signal.SIGKILL)
fx.effects_barrier(scope="global")
"""
    outputs = []
    for _ in range(4):
        process, _ = run_processes(code, 2)
        assert process.returncode != 0
        outputs.append(process.output)
        if "A barrier of all processes cannot go on: process 1 sends no heartbeats any more." in process.output:
            return
    raise AssertionError(outputs)


def test_global_barrier_of_one_process():

    fx.effects_barrier(scope="global", timeout=60)
