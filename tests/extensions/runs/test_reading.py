"""A run file has what was printed, in the order of the program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import run_python


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.fx"


def texts(run):
    return [record.text for record in run]


def test_records_are_those_of_a_capture(path):
    """Loops, lanes, branches, callbacks with what they call, effects outside of programs, and plain programs."""

    def called(v):
        inner(v)
        return v

    inner = fx.jit(lambda v: fx.print("inner {}", v))

    @fx.jit
    def outer(x):
        fx.print("begin {} {}", x, {"a": x})
        jax.lax.fori_loop(0, 3, lambda i, _: fx.log("step", i=i, x=x * i), None)
        y = fx.callback(called, x, x)
        jax.vmap(lambda z: fx.print("lane {}", z))(jnp.arange(2.0))
        jax.lax.cond(y > 0, lambda: fx.print("positive"), lambda: fx.print("negative"))
        fx.callback(called, None, y + 1)

    with fx.record(path), fx.capture(suppress=True) as records:
        outer(1.0)
        fx.print("between")
        outer(-1.0)
    run = fx.runs.read(path)
    assert texts(run) == [record.text for record in records]
    assert [record.token for record in run] == [record.token for record in records]
    assert [record.lane for record in run] == [record.lane for record in records]
    assert len(run) == len(records)
    [process] = run.processes
    assert (process.torn, process.lost, process.unknown, process.is_closed) == (0, 0, 0, True)


def test_unordered_calls_for_results_are_read_whichever_device_asks(path):
    """Each call has one record, of the device that comes first."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.zeros(2), jax.NamedSharding(mesh, jax.P("i")))
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def turn(_, total):
        return total + fx.callback(lambda: np.float32(1), shape, ordered=False)

    with fx.record(path):
        y = fx.jit(lambda x: jax.lax.fori_loop(0, 40, turn, 0.0) + x)(x)
        fx.effects_barrier()
    assert y[0] == 40 and len(fx.runs.read(path)) == 40


def test_values_are_read_whole(path):
    """Arrays of every size and kind, by records and as columns."""
    values = [np.arange(5, dtype=np.int8), np.float64(2.5), np.ones((300, 300), np.float32), np.zeros((0, 3), bool)]

    @fx.jit
    def f(*xs):
        for at, x in enumerate(xs):
            fx.log(f"value {at}", x=x)

    with jax.enable_x64(True), fx.record(path), fx.capture(suppress=True):
        f(*values)
        f(*values)
    run = fx.runs.read(path)
    for at, record in enumerate(run):
        np.testing.assert_array_equal(record.fields["x"], values[at % 4], strict=True)
    lines = sorted({record.line for record in run})
    assert lines == [run[0].line]
    with pytest.raises(fx.runs.RunError, match=r"is one of none.py. .* there are sites in .*test_reading.py"):
        run.select("none.py")
    assert len(run.select("test_reading.py", effect="log")) == 8 and not run.select("test_reading.py", device=1)


def test_columns_are_of_one_line(path):
    f = fx.jit(lambda x: jax.lax.fori_loop(0, 4, lambda i, _: fx.log("step", i=i, x=x * i), None))
    with fx.record(path), fx.capture(suppress=True):
        f(0.5)
    columns = fx.runs.read(path).columns("test_reading.py")
    np.testing.assert_array_equal(columns["x"], [0, 0.5, 1, 1.5])
    assert columns["i"].tolist() == [0, 1, 2, 3] and np.all(np.diff(columns["time"]) >= 0)


FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}

DEVICES = """
import jax, jax.numpy as jnp, effects as fx
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
@fx.jit
def f(x):
    fx.print("all {}", x.sum())
    def shard(x):
        fx.print("first {}", x[0])
        fx.print("second {}", x[0])
        return x
    return jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)
with fx.record({path!r}):
    x = f(f(jnp.arange(4.0)))
"""


def test_devices_stand_in_the_order_of_the_program(path):
    """What all have in common is there once, and each device's own effects as they are printed."""
    done = run_python(DEVICES.replace("{path!r}", repr(str(path))), env=FOUR_DEVICES)
    assert done.returncode == 0, done.stderr
    run = fx.runs.read(path)
    assert "".join(f"{text}\n" for text in texts(run)) == done.stdout
    assert [record.device for record in run.select(device=2)] == [2] * 4
    assert [record.device for record in run if record.text.startswith("all")] == [-1, -1]
    assert {record.device for record in run.newest()} >= {0, 1, 2, 3}


@pytest.mark.slow
def test_second_recording_is_refused(path, tmp_path):
    with fx.record(path):
        with pytest.raises(RuntimeError, match=f"records into {path}"):
            fx.record(tmp_path / "other.fx")
        done = run_python(f"import effects as fx; fx.record({str(path)!r})")
        assert "another process records into it" in done.stderr
    with fx.record(path):  # it is over
        pass


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_bytes": 0}, "was given `max_bytes=0`"),
        ({"max_bytes": True}, "was given `max_bytes=True`"),
        ({"max_bytes": 1e6}, "was given `max_bytes=1000000.0`"),
    ],
)
def test_options_are_checked(options, says, path):
    with pytest.raises(ValueError, match=says):
        fx.record(path, **options)
    assert not path.exists()


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="No such file or directory"):
        fx.record(tmp_path / "none" / "run.fx")


def test_full_file(path):
    """The newest half stays."""
    f = fx.jit(lambda: jax.lax.fori_loop(0, 5000, lambda i, _: fx.print("{}", i), None))
    with fx.record(path, max_bytes=1 << 16), fx.capture(suppress=True):
        f()
    numbers = [int(record.text) for record in fx.runs.read(path)]
    assert numbers == [*range(5000 - len(numbers), 5000)] and 400 < len(numbers) < 1000


def test_record_larger_than_the_file(path):
    f = fx.jit(lambda x: (fx.log("large", x=x), fx.log("small", x=x[0])))
    with fx.record(path, max_bytes=1 << 16), fx.capture(suppress=True):
        f(jnp.zeros(1 << 16))
    run = fx.runs.read(path)
    assert [record.event for record in run] == ["small"] and run.processes[0].lost == 1


@pytest.mark.slow
def test_process_without_effects_writes_no_file(tmp_path):
    """Two processes by themselves are one job."""
    environment = {"EFFECTS_RUN": f"{tmp_path}/"}
    assert run_python("import effects", env=environment).returncode == 0
    assert not [*tmp_path.iterdir()]
    for text in ("one", "another"):
        done = run_python(f"import effects as fx; fx.jit(lambda: fx.print({text!r}))()", env=environment)
        assert done.returncode == 0
        if text == "one":
            assert texts(fx.runs.read(tmp_path)) == ["one"]
    assert texts(fx.runs.read(tmp_path)) == ["one", "another"]
