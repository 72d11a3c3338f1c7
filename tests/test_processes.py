"""Several processes of `jax.distributed`: programs over the devices of all, a barrier over all, and one log of all."""

import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import effects as fx
from effects import _cli
from effects._merge import LogError, merge, text_of
from tests.helpers import run_processes

# Programs over the devices of all processes

PROGRAM = """
start()
import contextlib, io, os, pathlib
import jax.numpy as jnp, numpy as np, effects as fx
from jax import lax, P
from tests.test_regions import _mesh, _program

FOLDER = pathlib.Path({folder!r})
ONE = jax.ShapeDtypeStruct((), jnp.int32)
MESH = _mesh(4)
report["devices"] = [device.process_index for device in jax.devices()]

def put(x):
    return jax.make_array_from_callback(x.shape, jax.NamedSharding(MESH, P("x")), lambda index: x[index])

x = put(np.arange(4, dtype=np.int32))
token = fx.add_handler(fx.JsonLinesHandler(FOLDER / f"{{jax.process_index()}}.jsonl"))
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
        fx.jit(lambda x: _program(program, x))(put(np.arange(4, dtype=np.int32)))
report["records"] = [[r.text, r.device, r.process, list(r.processes), r.token[2] % 2] for r in records]
report["lines"] = out.getvalue().splitlines()
fx.remove_handler(token)

# On devices of the first process alone: the others call it too, and wait for nothing
first = _mesh(1, devices=jax.devices()[:1])
shard = lambda index: np.arange(1, dtype=np.int32)
elsewhere = jax.make_array_from_callback((1,), jax.NamedSharding(first, P()), shard, dtype=np.int32)
with fx.capture(suppress=True) as records:
    fx.jit(lambda x: fx.print("elsewhere {{}}", x))(elsewhere)
report["elsewhere"] = [record.text for record in records]

# Without an order: where these come among the others nobody says
token = fx.add_handler(fx.JsonLinesHandler(FOLDER / f"unordered-{{jax.process_index()}}.jsonl"))
fx.jit(lambda x: [fx.print("unordered {{}} {{}}", i, x, ordered=False) for i in range(3)])(x)
fx.jit(lambda x: fx.print("elsewhere {{}}", x))(elsewhere)
fx.jit(lambda: fx.print("after"))()
fx.effects_barrier(scope="global", timeout=60)
fx.remove_handler(token)
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


def _logs(folder, count, name=""):
    return [folder / str(count) / f"{name}{process}.jsonl" for process in range(count)]


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
    assert [report["elsewhere"] for report in four] == [["elsewhere [0]"], [], [], []]


def test_records_say_which_processes_have_them(one, four):
    expected = {"all [0 1 2 3]": [0, 1, 2, 3], "[0] of 0": [], "by itself 5": [], "eager 3": []}
    texts = {text: processes for text, _, _, processes, _ in four[0]["records"]}
    assert {text: texts[text] for text in expected} == expected
    assert {text: processes for text, _, _, processes, _ in one[0]["records"]}["all [0 1 2 3]"] == [0]


def test_merged_log_is_that_of_one_process(folder, one, two, four):
    """To the byte."""
    whole = _merge(folder / "whole.jsonl", _logs(folder, 1))
    for count in (2, 4):
        assert _merge(folder / f"merged-{count}.jsonl", reversed(_logs(folder, count))) == whole
    written = [json.loads(line) for line in _logs(folder, 1)[0].read_text().splitlines()]
    kept = [json.loads(line) for line in whole.splitlines()]
    by_itself = [record for record in written if record["thread"] < 1 << 23]  # else of a program that a callback called
    assert [record for record in kept if record["thread"] is not None] == by_itself
    assert [record["text" if "text" in record else "event"] for record in kept] == [
        record["text" if "text" in record else "event"] for record in written
    ]
    texts = [text for text, *_ in one[0]["records"]]
    assert [text_of(record) for record in kept] == texts


def test_merged_log_has_unordered_records(folder, one, two, four):
    for count in (1, 2, 4):
        records = merge(_logs(folder, count, "unordered-"))
        texts = [record["text"] for record in records]
        assert texts[-2:] == ["elsewhere [0]", "after"]
        assert sorted(re.sub(r" \[.*", "", text) for text in texts) == [
            "after",
            "elsewhere",
            *(f"unordered {i}" for i in range(3)),
        ]


def _merge(output, logs, *options):
    assert _cli.main(["merge", *map(str, logs), "-o", str(output), *options]) == 0
    return output.read_text()


# The barrier over all processes

BARRIERS = """
start(heartbeat_timeout_seconds=100)
import os, signal, threading
import numpy as np, effects as fx
from effects import _jax as compat

def barrier(name, **options):
    try:
        fx.effects_barrier(scope="global", **{"timeout": 20, **options})
        outcome = "ok"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    report[name] = outcome

barrier("first")
service = compat.coordination_service()
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
        fx.effects_barrier(scope="global", timeout=20)
    seen.append(True)
fx.print("this thread is the first")
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(10):
    fx.effects_barrier(scope="global", timeout=20)
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
fx.jit(lambda x: fx.callback(lambda x: x == 1 and gate.wait(20), None, x))(PROCESS)
barrier("slow", timeout=1)
gate.set()
barrier("after slow")

# Different programs
token = fx.add_handler(fx.JsonLinesHandler(os.path.join(FOLDER, f"{PROCESS}.jsonl")))
fx.jit(lambda x: fx.print("same {}", x))(PROCESS)
fx.jit((lambda x: fx.print("zero {}", x)) if PROCESS == 0 else (lambda x: fx.print("one {}", x)))(1)
fx.remove_handler(token)

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
        r"BarrierTimeout: The barrier of 2 processes waited 0.5 s, and these have not come: process 1 \(which has "
        r"called 1 of this thread's 2\)\. It returns .*\. Wait longer, .*\.",
        early,
    )
    assert "process 1, this one, came when another had given up" in late


def test_global_barrier_names_a_process_whose_effects_have_not_ended(barriers):
    other, slow = (report["slow"] for report in barriers)
    assert "process 1 (whose own effects have not ended)" in other
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
    assert "BarrierTimeout: The barrier of 2 processes waited 1 s, and these have not come: process 1 (" in said


def test_different_programs_are_not_merged(barriers, folder):
    logs = [folder / "different" / f"{process}.jsonl" for process in range(2)]
    with pytest.raises(LogError) as caught:
        merge(logs)
    a, b = map(re.escape, map(str, logs))
    assert re.match(
        rf"The logs {a} and {b} differ: the first has line 2 \(print 'zero {{}}' at <string>:\d+, dispatch 6 of thread "
        r"1\), where the second has line 2 \(print 'one {}' at <string>:\d+, dispatch 6 of thread 1\)\. ",
        str(caught.value),
    )


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
    import effects as fx

    fx.effects_barrier(scope="global", timeout=10)


# Merging, offline


def _record(token, text, device=0, process=0, **more):
    if "processes" in more:
        device = -1
    return {
        "effect": "print", "fmt": "{}", "text": text, "fields": {}, "args": [text],
        "where": {"file": "f.py", "line": 1, "function": "f"}, "device": device, "process": process,
        "thread": token[0] >> 8, "token": list(token), "lane": [], **more,
    }  # fmt: skip


def _write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _of_run(records, process, count, run="r"):
    return [{**record, "process": process, "run": run, "process_count": count} for record in records]


@st.composite
def _whole_logs(draw):
    """The log of one process: of each thread, programs with whole records, regions of three devices, and lanes."""
    texts = map(str, itertools.count())
    threads = []
    for thread in range(1, 1 + draw(st.integers(1, 2))):
        own = []
        for epoch in range(draw(st.integers(0, 3))):
            for domain in range(draw(st.integers(1, 2))):
                index = 0
                for phase in range(draw(st.integers(1, 4))):
                    stream = thread << 8 | domain
                    if phase % 2:
                        counts = draw(st.tuples(*[st.integers(0, 3)] * 3))
                        places = sorted((at, device) for device in range(3) for at in range(counts[device]))
                        own += [
                            _record((stream, epoch, phase, at), next(texts), device, lane=list(lane))
                            for at, device in places
                            for lane in draw(st.sampled_from([[()], [(0,), (1,)], [(0, 2), (1, 0)]]))
                        ]
                    else:
                        for _ in range(draw(st.integers(0, 3))):
                            own.append(_record((stream, epoch, phase, index), next(texts), processes=[0]))
                            index += 1
        threads.append(own)
    return threads


@settings(deadline=None)
@given(threads=_whole_logs(), owners=st.permutations([0, 1, 2, 2]).map(lambda p: p[:3]), data=st.data())
def test_a_log_that_was_split_comes_together(threads, owners, data, tmp_path_factory):
    """Whole records to all, the others to their device's process; threads and domains interleaved in each as it was."""
    folder = tmp_path_factory.mktemp("split")
    whole = [record for thread in threads for record in thread]
    logs = []
    for process in range(3):
        own = [[r for r in thread if "processes" in r or owners[r["device"]] == process] for thread in threads]
        mixed = []
        while any(own):
            mixed.append(data.draw(st.sampled_from([thread for thread in own if thread])).pop(0))
        mixed = [{**r, "processes": [0, 1, 2]} if "processes" in r else r for r in mixed]
        logs.append(_of_run(mixed, process, 3))
    paths = [_write(folder / f"{process}.jsonl", log) for process, log in enumerate(logs) if log]
    if len(paths) < 3:  # a process that has written nothing cannot be told from one that is missing
        return
    merged = merge(data.draw(st.permutations(paths)))
    assert merged == merge([_write(folder / "whole.jsonl", whole)])
    assert [record["text"] for record in merged] == [record["text"] for record in whole]


def _two_logs(tmp_path, *both, **more):
    logs = [[_record((256, 0, 0, i), text, processes=[0, 1]) for i, text in enumerate("abc")] for _ in range(2)]
    for change in both:
        change(logs)
    paths = [_write(tmp_path / f"{process}.jsonl", _of_run(log, process, 2)) for process, log in enumerate(logs)]
    return paths


def test_what_processes_did_by_themselves(tmp_path):
    """Alike it is kept once, with values of their own for each."""
    logs = [
        [_record((256, 0, 0, 0), "alike", process), _record((256, 1, 0, 0), f"own {process}", process)]
        for process in range(2)
    ]
    paths = [_write(tmp_path / f"{process}.jsonl", _of_run(log, process, 2)) for process, log in enumerate(logs)]
    assert [(record["text"], record["device"]) for record in merge(paths)] == [
        ("alike", 0),
        ("own 0", 0),
        ("own 1", 1),
    ]


def test_devices_that_a_process_has_for_itself(tmp_path):
    """A program over several of them is its own, and need not be in other logs."""
    logs = [[_record((256, 0, 0, 0), f"own {process}", process, processes=[process])] for process in range(2)]
    logs[0].append(_record((256, 1, 0, 0), "of the first", processes=[0]))
    for process, log in enumerate(logs):
        log.append(_record((256, 2, 0, 0), "all", process, processes=[0, 1]))
    paths = [_write(tmp_path / f"{process}.jsonl", _of_run(log, process, 2)) for process, log in enumerate(logs)]
    assert [record["text"] for record in merge(paths)] == ["own 0", "own 1", "of the first", "all"]


def test_device_that_a_process_has_for_all(tmp_path):
    """A program on one device is called by all processes, and runs in one. The others have counted it."""
    texts = [["all", "of the first", None, "all"], ["all", None, "of the second", "all"]]
    logs = [
        [
            _record((256, epoch, 0, 0), text, process, **({"processes": [0, 1]} if text == "all" else {}))
            for epoch, text in enumerate(each)
            if text is not None
        ]
        for process, each in enumerate(texts)
    ]
    paths = [_write(tmp_path / f"{process}.jsonl", _of_run(log, process, 2)) for process, log in enumerate(logs)]
    assert [record["text"] for record in merge(paths)] == ["all", "of the first", "of the second", "all"]
    _write(paths[1], _of_run(logs[1][:2], 1, 2))  # the last of the first is lacking
    with pytest.raises(LogError, match="line 3 .* where the second ends"):
        merge(paths)
    more = _record((256, 1, 0, 1), "another", 1)  # of the program that has something else in the first
    _write(paths[1], _of_run([logs[1][0], more, *logs[1][1:]], 1, 2))
    with pytest.raises(LogError, match="line 2 .* where the second goes on with line 2"):
        merge(paths)


def test_what_has_no_place_stays_behind_what_it_came_behind(tmp_path):
    def change(logs):
        for process, log in enumerate(logs):
            log.insert(2, _record((256, 0, 0, 0), f"own {process}", ordered=False))
            log.insert(1 + process, _record((256, 0, 0, 0), "whole", ordered=False, processes=[0, 1]))
            log.append(_record((0xFFFFFF00 - 512 * process, 0, 0, 0), "nested"))

    texts = [record["text"] for record in merge(_two_logs(tmp_path, change))]
    assert texts == ["a", "whole", "b", "own 0", "own 1", "c", "nested"]


def _set(process, at, **values):
    return lambda logs: logs[process][at].update(values)


WHERE = {"file": "g.py", "line": 2, "function": "f"}
DIFFERENT = {
    "lacking": (
        lambda logs: logs[1].pop(1),
        r"line 2 \(print '{}' at f.py:1, .*\), where the second goes on with line 2 ",
    ),
    "lacking at the end": (lambda logs: logs[1].pop(), r"line 3 .* where the second ends\."),
    "lacking in the first": (lambda logs: logs[0].pop(0), r"1.jsonl and .*0.jsonl differ: .*line 1 .* with line 1 "),
    "values": (_set(1, 2, text="d", args=["d"]), r"line 3 .* where the second has line 3 "),
    "site": (_set(1, 1, where=WHERE), r"line 2 \(print '{}' at f.py:1, .*\), where the second has line 2 .* at g.py:2"),
    "format": (_set(0, 0, fmt="{:3}"), r"line 1 \(print '{:3}' "),
    "whose it is": (lambda logs: logs[1][1].pop("processes"), "line 2 .* line 2 "),
    "unordered": (_set(1, 2, ordered=False), "line 3"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_logs_of_different_programs(name, tmp_path):
    change, says = DIFFERENT[name]
    with pytest.raises(LogError, match=says) as caught:
        merge(_two_logs(tmp_path, change))
    assert str(caught.value).count(". ") == 2


def _change_text(path, change):
    path.write_text(change(path.read_text()))


def _other_run(paths):
    _change_text(paths[1], lambda text: text.replace('"run": "r"', '"run": "s"'))


REFUSED = {
    "another run": (_other_run, r"The logs .*1.jsonl and .*0.jsonl are of different runs\."),
    "a process twice": (
        lambda paths: _change_text(paths[1], lambda text: text.replace('"process": 1', '"process": 0')),
        r"both of process 0\.",
    ),
    "a process missing": (lambda paths: paths.pop(), r"There is no log of process 1, of 2 processes"),
    "the first missing": (lambda paths: paths.pop(0), r"There is no log of process 0, of 2 processes"),
    "cut off": (
        lambda paths: _change_text(paths[1], lambda text: text[:-9]),
        r"Line 3 of the log .*1.jsonl is cut off",
    ),
    "not JSON": (lambda paths: _change_text(paths[0], lambda text: text + "{\n"), r"Line 4 of .*0.jsonl is not JSON"),
    "JSON without end": (
        lambda paths: _change_text(paths[0], lambda _: "[" * 10**5 + "\n"),
        r"Line 1 of .* is not JSON",
    ),
    "not ours": (lambda paths: _change_text(paths[0], lambda text: '{"a": 1}\n'), r"Line 1 of .* is not a record"),
    "a wrong token": (
        lambda paths: _change_text(paths[0], lambda text: text.replace('"token": [256', '"token": ["x"')),
        r"Line 1 of .* is not a record",
    ),
    "no thread": (
        lambda paths: _change_text(paths[0], lambda text: text.replace('"thread": 1', '"thread": null')),
        r"Line 1 of .* is not a record",
    ),
    "empty": (lambda paths: _change_text(paths[0], lambda text: ""), r"The log .*0.jsonl is empty\."),
    "not there": (lambda paths: paths[0].unlink(), r"0.jsonl cannot be read: No such file or directory\."),
    "a folder": (lambda paths: paths.append(paths[0].parent), r"cannot be read: Is a directory\."),
    "not text": (lambda paths: paths[0].write_bytes(b"\xff\xfe"), r"cannot be read: it is not text\."),
    "a process that cannot be": (
        lambda paths: _change_text(paths[1], lambda text: text.replace('"process": 1', '"process": 2')),
        r"Line 1 of .* names a process that the run does not have",
    ),
    "two of one process": (
        lambda paths: _change_text(paths[0], lambda text: text + paths[1].read_text()),
        r"Line 4 of the log .*0.jsonl is of another process or run",
    ),
    "the same place": (lambda paths: _change_text(paths[0], lambda text: text * 2), r"Lines 1 and 4 of .*0.jsonl"),
    "the same log": (lambda paths: paths.append(paths[0]), r"both of process 0\."),
    "processes by themselves": (
        lambda paths: [_write(path, [_record((256, 0, 0, 0), "a")]) for path in paths],
        "are of different runs",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_logs_that_are_refused(name, tmp_path, capsys):
    """By the command, in three sentences, without a traceback."""
    change, says = REFUSED[name]
    paths = _two_logs(tmp_path)
    change(paths)
    assert _cli.main(["merge", *map(str, paths), "-o", str(tmp_path / "merged")]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert re.search(says, err), err
    assert err.count(". ") == 2 and err.endswith(".\n") and err.count("\n") == 1
    assert not (tmp_path / "merged").exists()


def test_command(tmp_path, capsys):
    paths = list(map(str, _two_logs(tmp_path)))
    assert _cli.main(["merge", *paths, "--text"]) == 0
    assert capsys.readouterr().out == "a\nb\nc\n"
    assert _cli.main(["merge", *paths]) == 0
    records = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert records == merge(paths)
    assert {record["process"] for record in records} == {0} and not {"run", "process_count"} & set().union(*records)
    assert _cli.main(["merge", *paths, "-o", paths[0]]) == 1
    assert "it is one of the logs" in capsys.readouterr().err
    assert _cli.main(["merge", *paths, "-o", os.path.join(paths[0], "x")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out:
        _cli.main(["merge", "--help"])
    assert "program order" in out.getvalue()


def test_merged_log_of_which_the_beginning_is_read(tmp_path):
    """As by `head`."""
    path = _write(tmp_path / "run.jsonl", [_record((256, epoch, 0, 0), "x" * 1000) for epoch in range(1000)])
    command = [sys.executable, "-m", "effects", "merge", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as merging:
        merging.stdout.read(10)
        merging.stdout.close()
        assert merging.stderr.read() == b""
    assert merging.returncode == 0


def test_log_of_one_process_stays_as_it_is(tmp_path):
    log = [_record((256, 0, 0, 0), "a", 2), {**_record((256, 1, 0, 0), ""), "event": "e", "fields": {"x": 1, "s": "t"}}]
    del log[1]["text"]
    path = _write(tmp_path / "run.jsonl", log)
    records = merge([path])
    assert records == log
    assert list(map(text_of, records)) == ["a", "e x=1 s=t"]


def test_logs_have_gaps(tmp_path):
    """What a handler is not to get, and branches that no lane takes, count all the same."""

    def f(x):
        lax.cond(x > 0, lambda: fx.log("positive", x=x), lambda: fx.log("negative", x=x))
        fx.print("{}", x)
        fx.log("end")

    path = tmp_path / "run.jsonl"
    handler = fx.add_handler(fx.JsonLinesHandler(path), effects="log")
    fx.jit(jax.vmap(f))(jnp.ones(2))
    fx.remove_handler(handler)
    log = list(map(json.loads, path.read_text().splitlines()))
    assert [record["token"][3] for record in log] == [1, 1, 3, 3]
    assert merge([path]) == log
