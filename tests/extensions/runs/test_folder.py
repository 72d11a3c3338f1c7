"""A folder of runs is read as far as it can be, and a job with workers in it is one run."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import effects as fx
from tests.helpers import run_python
from tests.internals import _cli

JOB = """
import subprocess, sys, effects as fx, jax.numpy as jnp
name = sys.argv[1] if len(sys.argv) > 1 else "main"

def called(x):
    fx.print("{{}} called", name)
    return x

@fx.jit
def step(x, i):
    fx.print("{{}} step {{}}", name, i)
    fx.print("any {{}}", i, ordered=False)
    fx.callback(called, x, x)
    return x + 1

x = jnp.float32(0)
for i in range(3):
    x = step(x, i)
fx.effects_barrier()
if name == "main":
    for each in ("a", "b"):
        subprocess.run([sys.executable, {path!r}, each], check=True)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A folder with the files of a process and of two workers, whose tokens and sites are the same, and what each
    printed."""
    folder = tmp_path_factory.mktemp("job")
    script, runs = folder / "job.py", folder / "runs"
    script.write_text(JOB.format(path=str(script)))
    code = f"import runpy, sys; sys.argv = [{str(script)!r}]; runpy.run_path({str(script)!r}, run_name='__main__')"
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    done = run_python(code, env={"EFFECTS_RUN": f"{runs}{os.sep}", "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return runs, sorted(done.stdout.splitlines())


def show(capsys, *arguments):
    capsys.readouterr()
    status = _cli.main(["show", *map(str, arguments)])
    return status, *capsys.readouterr()


def prints(shown):
    """The lines that are no callback's, which are not printed."""
    return sorted(line for line in shown.splitlines() if not line.startswith("callback "))


@pytest.mark.slow
def test_workers_are_read_in_one_go(job, capsys):
    """Each has its records, in its order, and a number and a name; what only looks the same is there as often."""
    folder, printed = job
    status, shown, said = show(capsys, folder)
    assert (status, said) == (0, "")
    assert prints(shown) == printed and len(printed) == 27
    run = fx.runs.read(folder)
    assert [process.number for process in run.processes] == [0, 1, 2]
    assert {process.name for process in run.processes} == {path.stem for path in folder.iterdir()}
    for process in run.processes:
        [alone] = fx.runs.read(process.path).processes
        assert alone.number == 0
        own = [record.text for record in run.select(process=process.number)]
        assert own == [record.text for record in fx.runs.read(process.path)]
        name = own[0].split()[0]
        ordered = [text for text in own if text.startswith(f"{name} ")]
        assert ordered == [text for i in range(3) for text in (f"{name} step {i}", f"{name} called")]


@pytest.mark.slow
def test_every_command_takes_a_job_with_workers(job, tmp_path, capsys):
    """Each process is named apart, and none is taken for another."""
    folder, printed = job
    status, text, _ = show(capsys, folder, "--last")
    for number, process in enumerate(fx.runs.read(folder).processes):
        assert f"Process {number} (`{process.name}`) ended its recording" in text
    assert status == 0 and "not ended" not in text
    assert show(capsys, folder, "--stats")[0] == 0
    lines = [json.loads(line) for line in show(capsys, folder, "--json")[1].splitlines()]
    for number in range(3):
        assert len([line for line in lines if (line["process"], line["effect"]) == (number, "print")]) == 9
    assert _cli.main(["trace", str(folder), "-o", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X" and event["cat"] == "callback"} == {1, 2, 3}
    assert not any("unfinished" in event["args"] for event in events if event["ph"] == "X")
    capsys.readouterr()
    assert _cli.main(["tail", str(folder)]) == 0
    assert set(prints(capsys.readouterr().out)) <= set(printed)


def damages(folder):
    """Files that cannot be read, by name: how each is made, and what is said of it."""
    whole = min(folder.glob("*.fx")).read_bytes()
    newer = bytearray(whole)
    newer[8] += 7
    return {
        "empty": (b"", "it is empty"),
        "zeros": (bytes(len(whole)), "it is no run file"),
        "short": (whole[:100], "it is no run file"),
        "page": (whole[:4096], "it is cut"),
        "cut": (whole[: len(whole) // 2], "it is cut"),
        "text": (b"x = 0\n" * 10_000, "it is no run file"),
        "newer": (bytes(newer), "it is of version"),
        "page of zeros": (bytes(4096) + whole[4096:], "it is no run file"),
    }


@pytest.mark.slow
def test_what_cannot_be_read_is_named_and_the_rest_is_shown(job, tmp_path, capsys):
    """In a line each, on the error output, by each command; a file that is named by itself is an error."""
    folder, printed = job
    mixed = tmp_path / "mixed"
    shutil.copytree(folder, mixed)
    damaged = damages(folder)
    for name, (data, _) in damaged.items():
        (mixed / f"{name}.fx").write_bytes(data)
    os.mkfifo(mixed / "pipe.fx")
    (mixed / "folder.fx").mkdir()
    (mixed / "link.fx").symlink_to("nowhere")
    says = {name: text for name, (_, text) in damaged.items()}
    [data, *_] = [path.read_bytes() for path in folder.iterdir()]
    capacity = int.from_bytes(data[16:24], "little")
    (mixed / "described.fx").write_bytes(data[: 4096 + capacity])
    says["described"] = "it does not say of which process it is"
    says |= {"pipe": "it is no file", "folder": "it is no file", "link": "No such file"}

    for options in ([], ["--last"], ["--stats"], ["--json"]):
        status, shown, said = show(capsys, mixed, *options)
        lines = said.splitlines()
        assert status == 0 and len(lines) == len(says)
        for name, text in says.items():
            assert any(line.startswith(f"{mixed / name}.fx is left out: {text}") for line in lines), (name, said)
        assert options or prints(shown) == printed
    run = fx.runs.read(mixed)
    assert len(run.left_out) == len(run.select(process=0).left_out) == len(says) and len(run.processes) == 3
    for command in (["tail"], ["trace", "-o", str(tmp_path / "trace.json")]):
        assert _cli.main([*command, str(mixed)]) == 0
        assert len(capsys.readouterr().err.splitlines()) == len(says)

    for name, text in says.items():
        if name not in ("folder", "described"):
            status, shown, said = show(capsys, mixed / f"{name}.fx")
            assert (status, shown) == (2, "") and f"{mixed / name}.fx cannot be read: {text}" in said


def test_folder_of_which_nothing_can_be_read_is_an_error(tmp_path, capsys):
    (tmp_path / "empty.fx").touch()
    (tmp_path / "zeros.fx").write_bytes(bytes(9999))
    status, shown, said = show(capsys, tmp_path)
    assert (status, shown) == (2, "") and [line.rpartition(": ")[2] for line in said.splitlines()] == [
        "it is empty.",
        "it is no run file.",
    ]


@pytest.mark.parametrize("size", [*range(0, 4200, 300), 4096, 1 << 15, 1 << 16, (1 << 16) + 4095, (1 << 16) + 4096])
def test_a_cut_file_is_named_or_read_whole(size, tmp_path, capsys):
    """Wherever it is cut, no line is shown that was not printed, and it is never passed over in silence."""
    with fx.record(tmp_path / "run.fx", max_bytes=1 << 16):
        fx.jit(lambda x: [fx.print("line {}", x + i) for i in range(5)])(0)
        fx.effects_barrier()
        capsys.readouterr()
    data = (tmp_path / "run.fx").read_bytes()
    (tmp_path / "run.fx").write_bytes(data[:size])
    status, shown, said = show(capsys, tmp_path / "run.fx")
    lines = shown.splitlines()
    undescribed = all(line.lstrip("? ").startswith("[not shown ") for line in lines)  # the descriptions are cut off
    assert undescribed or lines == [f"line {i}" for i in range(5)], shown
    assert shown or str(tmp_path / "run.fx") in said, (status, said)
