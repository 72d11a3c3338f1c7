"""A run file has all that was published when its process was killed, and what is damaged is left out."""

from __future__ import annotations

import os
import shutil
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from effects.extensions.runs.reading import STOPPED, missing
from tests.extensions.runs.storms import check_storm
from tests.helpers import run_python


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "seed"), [(1, "0"), (1, "1"), (2, "2")])
def test_what_was_published_outlives_the_process(processes, seed, tmp_path):
    assert check_storm(tmp_path, seed, processes)[0] > 0


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small file, and the texts of its records."""
    path = tmp_path_factory.mktemp("small") / "run.fx"
    done = run_python(
        "import effects as fx, jax\n"
        "loop = lambda x: jax.lax.fori_loop(0, 20, lambda i, _: fx.print('{} {}', i, x), None)\n"
        "f = fx.jit(lambda x: (loop(x), fx.log('end', x=x)))\n"
        f"with fx.record({str(path)!r}, max_bytes=1 << 16): f(1.5)\n"
    )
    assert done.returncode == 0, done.stderr
    return path.read_bytes(), [record.text for record in fx.runs.read(path)]


def read_damaged(path, data, texts):
    """What is read of a damaged file: an error, or some of the records, each whole and in its order."""
    path.write_bytes(data)
    try:
        run = fx.runs.read(path)
    except fx.runs.RunError:
        return None
    read = [text for text in (record.text for record in run) if not text.startswith("[not shown")]
    at = iter(texts)
    assert all(text in at for text in read), read
    [*run.events()], run.newest(), run.counts()
    return len(read), run.processes[0]


def test_files_that_are_cut_off(small, tmp_path):
    data, texts = small
    ends = [*range(0, 200, 7), 4095, *range(4096, 4096 + 6000, 61), *range(len(data) - 400, len(data), 3)]
    read = [read_damaged(tmp_path / "run.fx", data[:end], texts) for end in ends]
    assert read[0] is None and read[-1][0] > 0


def test_one_damaged_record_is_counted(small, tmp_path):
    data, texts = small
    damaged = bytearray(data)
    place = data.index((7).to_bytes(4, "little") + b"\0\0\0\0" + b"\0\0\xc0\x3f")  # the operands 7 and 1.5
    damaged[place] ^= 1
    count, process = read_damaged(tmp_path / "run.fx", damaged, texts)
    assert (count, process.torn) == (len(texts) - 1, 1)


@pytest.mark.parametrize(
    ("at", "new", "says"),
    [
        (0, b"no run", "is no run file"),
        (8, (99).to_bytes(4, "little"), "is of version 99"),
        (12, (0x01020304).to_bytes(4, "big"), "with another byte order"),
        (16, b"\1", "first page is damaged"),
    ],
)
def test_files_of_others(at, new, says, small, tmp_path):
    data = bytearray(small[0])
    data[at : at + len(new)] = new
    (tmp_path / "run.fx").write_bytes(data)
    with pytest.raises(fx.runs.RunError, match=says):
        fx.runs.read(tmp_path / "run.fx")


def test_files_that_are_none(tmp_path):
    (tmp_path / "empty").touch()
    for name, says in [("empty", "it is empty"), ("none", "No such file"), (".", "has no run files")]:
        with pytest.raises(fx.runs.RunError, match=says):
            fx.runs.read(tmp_path / name)


@pytest.mark.slow
def test_file_that_is_being_written(tmp_path):
    """It can be read at any time, and has all that had been published."""
    f, go_on = fx.jit(lambda x: fx.log("step", x=x)), threading.Event()
    with fx.record(tmp_path / "run.fx"), fx.capture(suppress=True):
        for i in range(20):
            f(i)
            fx.effects_barrier()
            run = fx.runs.read(tmp_path / "run.fx")
            assert [record.fields["x"] for record in run.select("test_killed.py")] == [*range(i + 1)]
            assert run.processes[0].is_written
    assert not go_on.is_set() and fx.runs.read(tmp_path / "run.fx").processes[0].is_closed


def test_drain_that_hangs(tmp_path):
    """What is behind a callback that does not return is in the file."""
    held, reached = threading.Event(), threading.Event()

    def holds(x):
        reached.set()
        held.wait(60)

    f = fx.jit(lambda x: (fx.callback(holds, None, x), fx.log("behind", x=x), x)[-1])
    recording = fx.record(tmp_path / "run.fx")
    with recording, fx.capture(suppress=True):
        jax.block_until_ready(f(jnp.float32(2)))
        assert reached.wait(60)
        assert [record.event for record in fx.runs.read(tmp_path / "run.fx").select(effect="log")] == ["behind"]
        held.set()


def test_folder_that_is_removed(tmp_path):
    """Recording goes on in the file that has lost its name; the program sees nothing of it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with fx.record(folder / "run.fx"), fx.capture(suppress=True) as records:
        shutil.rmtree(folder)
        fx.jit(lambda x: fx.print("{}", x))(1)
    assert [record.text for record in records] == ["1"]


@pytest.mark.slow
def test_limit_on_the_size_of_files(tmp_path):
    """An error at once; and where descriptions find no room, recording stops with one line in the log."""
    code = (
        "import resource, sys, effects as fx, jax\n"
        "sys.dont_write_bytecode = True  # the limit would cut it off\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST))\n"
        f"with fx.record({str(tmp_path / 'run.fx')!r}, max_bytes=1 << 16):\n"
        "    for i in range(3): fx.jit(lambda x: fx.print('{} {}', x, i))(i)\n"
        "    fx.effects_barrier()\n"
        "print('done')"
    )
    done = run_python(code.replace("MOST", str(1 << 15)))
    assert "OSError: The run file " in done.stderr and "File too large" in done.stderr
    done = run_python(code.replace("MOST", str((1 << 16) + 4096 + 500)))
    assert done.stdout == "0 0\n1 1\n2 2\ndone\n", done.stderr
    assert done.stderr.count("Recording into ") == 1 and "has stopped" in done.stderr
    lines = missing(fx.runs.read(tmp_path / "run.fx"))
    assert lines == [f"{tmp_path / 'run.fx'}: {STOPPED}"]  # how many records that were is not known


@pytest.mark.slow
def test_whole_process(tmp_path):
    """EFFECTS_RUN names a file, or a folder for the files of several processes; effects at the end are there."""
    code = (
        "import effects as fx, atexit\natexit.register(lambda: fx.print('last'))\n"
        "fx.jit(lambda x: fx.print('{}', x))(1)"
    )
    for path in (str(tmp_path / "run.fx"), f"{tmp_path / 'folder'}{os.sep}"):
        done = run_python(code, env={"EFFECTS_RUN": path})
        assert done.returncode == 0, done.stderr
        run = fx.runs.read(path)
        assert [record.text for record in run] == ["1", "last"]
        assert run.processes[0].is_closed
