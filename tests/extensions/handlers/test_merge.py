"""Logs of several processes that become one."""

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
from tests.internals import LogError, _cli, merge, text_of


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


@settings(deadline=None)
@given(threads=_whole_logs(), owners=st.permutations([0, 1, 2, 2]).map(lambda p: p[:3]), data=st.data())
def test_logs_of_a_crash_have_a_common_part(threads, owners, data, tmp_path_factory):
    """Cut off anywhere: of each thread and domain the beginning is merged, as far as all processes have come."""
    folder = tmp_path_factory.mktemp("crash")
    whole = [record for thread in threads for record in thread]
    paths, kept = [], []
    for process in range(3):
        own = [r for r in whole if "processes" in r or owners[r["device"]] == process]
        own = [{**r, "processes": [0, 1, 2]} if "processes" in r else r for r in own]
        kept.append(own[: data.draw(st.integers(0, len(own)))])
        text = "".join(json.dumps(record) + "\n" for record in _of_run(kept[-1], process, 3))
        if len(own) > len(kept[-1]):  # the half of a line, perhaps
            text += json.dumps(own[len(kept[-1])])[: data.draw(st.integers(0, 20))]
        paths.append(folder / f"{process}.jsonl")
        paths[-1].write_text(text)
    if not all(kept):
        return
    ends = []
    merged = [record["text"] for record in merge(paths, partial=True, ends=ends)]
    assert len(merged) == len(set(merged))
    order = [record["text"] for record in whole]
    assert merged == [text for text in order if text in set(merged)]  # in program order
    parts = {(r["thread"], r["token"][0] & 0xFF) for r in whole}
    for part in parts:
        of_part = [r for r in whole if (r["thread"], r["token"][0] & 0xFF) == part]
        have = [{r["text"] for r in log} for log in kept]
        shared = [r for r in of_part if "processes" in r]
        common = [r["text"] for r in shared if all(r["text"] in texts for texts in have)]
        assert [r["text"] for r in shared if r["text"] in merged] == common
    assert [end.path for end in ends] == list(map(str, paths))
    assert all(end.left_out >= 0 for end in ends)


def test_partial_merge_says_where_each_log_ends(tmp_path, capsys):
    """A process that was killed first decides how far the merged log goes."""
    paths = _two_logs(tmp_path, lambda logs: logs[1].pop())
    with paths[1].open("a") as file:
        file.write('{"effect": "pr')
    assert _cli.main(["merge", *map(str, paths)]) == 1
    assert "is cut off" in capsys.readouterr().err
    assert _cli.main(["merge", "--partial", "--text", *map(str, paths)]) == 0
    out, err = capsys.readouterr()
    assert out == "a\nb\n"
    assert f"{paths[0]} ends with line 3 (print '{{}}' at f.py:1, dispatch 0 of thread 1). " in err
    assert "left out: 1 record." in err and "left out: 0 records." in err
    _change_text(paths[1], lambda text: text[:20])  # nothing says which process it is of
    assert _cli.main(["merge", "--partial", *map(str, paths)]) == 1
    assert "1.jsonl has no whole line." in capsys.readouterr().err


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


@pytest.mark.parametrize("lacking", [0, 1])
def test_unordered_record_that_one_process_lacks(lacking, tmp_path):
    """A whole value's unordered record is in the logs of all, wherever it stands."""

    def change(logs):
        for process, log in enumerate(logs):
            for at in range(2 - (process == lacking)):
                log.insert(at, _record((256, 0, 0, 0), "whole", ordered=False, processes=[0, 1]))

    with pytest.raises(LogError, match="where the second does not have it as often"):
        merge(_two_logs(tmp_path, change))


def test_device_that_two_logs_have(tmp_path):
    """A record of a region is in one log: that of its device's process."""

    def change(logs):
        for log in logs:
            log.append(_record((256, 0, 1, 0), "of a device", 3))

    with pytest.raises(LogError, match="line 4 .* where the second has line 4"):
        merge(_two_logs(tmp_path, change))


def test_log_that_ends_ahead_of_a_program_of_another_process(tmp_path):
    """What only one process has is its own if the other has gone on, which says that it has counted it."""

    def change(logs):
        logs[0].append(_record((256, 1, 0, 0), "of the first"))
        for log in logs:
            log.append(_record((256, 2, 0, 0), "all", processes=[0, 1]))

    paths = _two_logs(tmp_path, change)
    assert [record["text"] for record in merge(paths)] == ["a", "b", "c", "of the first", "all"]
    for path in paths:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(LogError, match="line 4 .* where the second ends"):
        merge(paths)


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
    """What a handler is not to get counts all the same. A branch that no lane takes has no effect to count."""

    def f(x):
        lax.cond(x > 0, lambda: fx.log("positive", x=x), lambda: fx.log("negative", x=x))
        fx.print("{}", x)
        fx.log("end")

    path = tmp_path / "run.jsonl"
    handler = fx.add_handler(fx.JsonLinesHandler(path), effects="log")
    fx.jit(jax.vmap(f))(jnp.ones(2))
    fx.remove_handler(handler)
    log = list(map(json.loads, path.read_text().splitlines()))
    assert [record["token"][3] for record in log] == [0, 0, 2, 2]
    assert merge([path]) == [{name: value for name, value in record.items() if name != "time"} for record in log]
