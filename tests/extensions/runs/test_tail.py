"""`effects tail` shows each record once, while it is recorded."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.extensions.runs.reading import Following
from tests.helpers import ROOT


def looks(following, until):
    """The texts of all records that come, up to the first look that begins when `until()` is true."""
    texts, is_last = [], False
    while not is_last:
        is_last = until()
        texts += [record.text for record in following.look()]
    return texts


def test_each_record_comes_once_from_four_devices(tmp_path):
    """What all devices have comes once, however far apart they publish it; what is a shard's own, from each."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])

    @fx.jit
    def f(x, n):
        def turn(i, x):
            fx.print("turn {} {}", n, i)
            return x + 1

        def shard(x):
            fx.print("shard {} {}", n, x[0])
            return x

        x = jax.lax.fori_loop(0, 20, turn, jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x))
        fx.print("unordered {}", n, ordered=False)
        return x

    x = jax.device_put(jnp.arange(4), jax.NamedSharding(mesh, P("d")))
    with fx.capture(suppress=True), fx.record(tmp_path / "run.fx"):
        following, ended = Following(tmp_path / "run.fx"), threading.Event()

        def run():
            of_all = x
            for n in range(50):
                of_all = f(of_all, n)  # one program after the other on each device
            fx.effects_barrier()
            ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        texts = looks(following, ended.is_set)
        thread.join()
    expected = [record.text for record in fx.runs.read(tmp_path / "run.fx")]
    assert sorted(texts) == sorted(expected)
    turns = [text for text in texts if text.startswith("turn")]
    assert turns == [text for text in expected if text.startswith("turn")]


def test_what_is_overwritten_before_a_look_is_left_out(tmp_path):
    """The newest records come, in order, and none twice."""
    f = fx.jit(lambda n: jax.lax.fori_loop(0, 100, lambda i, _: fx.log("row", i=n * 100 + i), None))
    seen = []
    with fx.capture(suppress=True), fx.record(tmp_path / "run.fx", max_bytes=1 << 16):
        following = Following(tmp_path / "run.fx")
        for n in range(40):
            f(n)
            fx.effects_barrier()
            if n % 8 in (0, 7):
                seen += [record.fields["i"].item() for record in following.look()]
    assert seen[:100] == [*range(100)] and seen[-1] == 3999 and len(seen) < 4000
    assert seen == sorted({*seen})


def test_who_reads_a_file_keeps_it_when_another_run_is_recorded(tmp_path):
    """A file of the same name is a new one, so that a reader's mapping does not become shorter."""
    path = tmp_path / "run.fx"
    f = fx.jit(lambda x: fx.print("{}", x))
    with fx.capture(suppress=True), fx.record(path):
        f(1)
    before = fx.runs.read(path)
    with fx.capture(suppress=True), fx.record(path):
        f(2)
        assert [record.text for record in before] == ["1"]
    assert [record.text for record in fx.runs.read(path)] == ["2"]


PROGRAM = """
import sys, jax, jax.numpy as jnp, effects as fx

@fx.jit
def step(i):
    fx.log("step", loss=jnp.exp(-i / 10), i=i)
    fx.print("i = {}", i)

with fx.record(sys.argv[1]):
    for i, line in enumerate(sys.stdin):
        step(i)
        fx.effects_barrier()
        print("done", flush=True)
"""


@contextlib.contextmanager
def running(path):
    """A process that records, and a function that has it do so many steps."""
    command = [sys.executable, "-c", PROGRAM, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def steps(number):
            for _ in range(number):
                process.stdin.write("\n")
                process.stdin.flush()
                while process.stdout.readline() != "done\n":
                    assert process.poll() is None

        try:
            steps(3)
            yield steps
        finally:
            process.stdin.close()
    assert process.returncode == 0


def test_lines_come_while_the_program_runs(tmp_path):
    """The newest lines that there are, and each that comes then, until the recording ends."""
    path = tmp_path / "run.fx"
    with running(path) as steps:
        steps(7)
        command = [sys.executable, "-m", "effects", "tail", "--effect", "print", str(path)]
        popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        with popen as process, contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(process.kill)
            assert [process.stdout.readline() for _ in range(10)] == [f"i = {i}\n" for i in range(10)]
            process.send_signal(signal.SIGSTOP)  # so that more than ten come between two looks
            steps(15)
            process.send_signal(signal.SIGCONT)
            for i in range(10, 25):
                assert process.stdout.readline() == f"i = {i}\n"
            steps(1)
            if_it_fails.pop_all()
    assert process.wait(120) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["missing.fx"], "No such file"),
        (["."], "has no run files"),
        (["text.fx"], "no run file"),
        (["run.fx", "--site", "other.py"], "No site of"),
    ],
)
def test_what_is_no_run_is_an_error(tmp_path, arguments, error):
    (tmp_path / "other").mkdir()
    with fx.capture(suppress=True), fx.record(tmp_path / "run.fx"):
        fx.print("x")
    (tmp_path / "text.fx").write_text("text" * 2000)
    folder = tmp_path / "other" if arguments == ["."] else tmp_path
    process = subprocess.run(
        [sys.executable, "-m", "effects", "tail", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2 and error in process.stderr
