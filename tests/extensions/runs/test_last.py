"""`effects show --last` says where a run stands: what has not ended, what is not known to have, and what has failed."""

from __future__ import annotations

import json
import logging
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.helpers import run_python
from tests.internals import _cli
from tests.processes import run_processes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.fx"


def last_of(capsys, *paths):
    """What `--last` says, as text and as JSON."""
    capsys.readouterr()
    assert _cli.main(["show", "--last", *map(str, paths)]) == 0
    text = capsys.readouterr().out
    assert _cli.main(["show", "--last", "--json", *map(str, paths)]) == 0
    return text, json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["processes"]


def raises_in_trace(x):
    fx.print("{}", x)
    raise KeyError("traced")


def raises_nested(x):
    fx.jit(raises_in_trace)(x)


def raises_from_callback(x):
    raise ValueError("called")


def fails(x):
    return fx.callback(raises_from_callback, x, x)


def interrupted(x):
    fx.print("{}", x)
    raise KeyboardInterrupt


ENDS = {
    "traced": (raises_in_trace, KeyError),
    "nested": (raises_nested, KeyError),
    "interrupted": (interrupted, KeyboardInterrupt),
    "checked": (lambda x: fx.error_if(x > 0, "no"), Exception),
    "without effects": (lambda x: x + 1, None),
    "effects": (lambda x: fx.print("{}", x), None),
    "callback": (lambda x: fx.callback(lambda x: x, x, x), None),
    "failed": (fails, Exception),
}


@pytest.mark.parametrize("how", [fx.jit, lambda f: f], ids=["fx.jit", "eager"])
@pytest.mark.parametrize("name", ENDS)
def test_what_has_ended_is_not_said_to_go_on(name, how, path, capsys):
    """Also a call that fails while it is traced, in its program, or by an interrupt; as the first one and as a later
    one of its function."""
    function, error = ENDS[name]
    with fx.record(path):
        fx.jit(lambda x: fx.print("first {}", x))(1.0)
        for _ in range(2):
            if error is None:
                how(function)(jnp.float32(1))
                fx.effects_barrier()
            else:
                with pytest.raises(error):
                    jax.block_until_ready(how(function)(jnp.float32(1)))
                    fx.effects_barrier()
        jax.effects_barrier()
        capsys.readouterr()
    text, [process] = last_of(capsys, path)
    assert process["state"] == "ended" and "has not ended" not in text
    assert all(program["closed"] is not None for program in process["programs"])
    if name != "without effects":
        assert "All calls have returned" in text, text


@pytest.mark.parametrize("per_device", [False, True], ids=["one device", "devices"])
def test_what_hangs_behind_its_last_effect_is_named(per_device, path, capsys):
    """Until it is over it is not known to have ended, and the log names it. Then it is said to have ended."""
    is_asked, lets_go, said = threading.Event(), threading.Event(), threading.Event()
    logged = []

    class Listener(logging.Handler):
        def emit(self, record):
            logged.append(record.getMessage())
            said.set()

    def wait(x):
        is_asked.set()
        assert lets_go.wait(60)
        return x

    def body(x):
        fx.print("before")
        return jax.pure_callback(wait, x, x)

    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    @fx.jit
    def step(x):
        return jax.shard_map(body, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(x) if per_device else body(x)

    listener = Listener()
    logging.getLogger("effects").addHandler(listener)
    try:
        with fx.record(path), fx.capture(suppress=True), fx.config.override(stall_seconds=1.0):
            # JAX's barrier waits for the output token, which may be ready behind the results.
            caller = threading.Thread(target=lambda: [step(jnp.arange(2.0)), jax.effects_barrier()])
            caller.start()
            assert is_asked.wait(60)
            fx.effects_barrier(all_threads=True)
            text, [process] = last_of(capsys, path)
            [program] = [each for each in process["programs"] if each["name"].endswith("step")]
            assert program["closed"] is not None and process["state"] == "runs"
            assert "is not known to have ended.\n" in text and "came last to the `print` at " in text
            assert said.wait(60)
            assert logged[0].startswith("Nothing has moved for ") and "step` (thread " in logged[0]
            lets_go.set()
            caller.join()
    finally:
        logging.getLogger("effects").removeHandler(listener)
        lets_go.set()
    text, [process] = last_of(capsys, path)
    assert "All calls have returned and had their effects" in text and not process["programs"]


def test_what_found_no_room_is_not_said_to_go_on(path, capsys):
    """A file that lacks records says so."""
    with fx.record(path, max_bytes=1 << 16), fx.capture(suppress=True):
        fx.jit(lambda x: fx.print("{}", x))(jnp.zeros(1 << 16))
    text, [process] = last_of(capsys, path)
    assert process["missing"] == 1
    assert "The file lacks 1 record or more, so what is listed as not ended may have ended." in text


def test_program_whose_call_is_not_in_the_file_any_more_is_named(path, capsys):
    """A ring that a long program has filled since keeps none of its call, and the program has not ended."""
    is_asked, lets_go = threading.Event(), threading.Event()

    def wait(x):
        is_asked.set()
        assert lets_go.wait(60)
        return x

    @fx.jit
    def train(x):
        jax.lax.fori_loop(0, 3000, lambda i, _: fx.log("step", i=i), None)
        return fx.callback(wait, x, x)

    with fx.record(path, max_bytes=1 << 16), fx.capture(suppress=True):
        caller = threading.Thread(target=train, args=(1.0,))
        caller.start()
        try:
            assert is_asked.wait(60)
            text, [process] = last_of(capsys, path)
        finally:
            lets_go.set()
            caller.join()
    [program] = process["programs"]
    assert (program["name"], program["called"], program["closed"]) == (None, None, None)
    assert "The program `?` (thread " in text and ", whose call is not in the file any more, has not ended." in text
    assert [each["name"].rpartition(".")[2] for each in process["callbacks"]] == ["wait"]


MISSES_A_SUM = """
start()
import os, signal
import jax.numpy as jnp, numpy as np, effects as fx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def file_of(process, what):
    return os.path.join({folder!r}, f"{{process}}.{{what}}")

recording = fx.record(file_of(PROCESS, "fx"))
mesh = jax.make_mesh((PROCESSES,), ("d",), axis_types=(AxisType.Auto,))

@fx.jit
def sum_of_all(x):
    fx.log("before", of=x[0] * 0)
    return jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)

@fx.jit
def forward(x):
    fx.log("forward")
    return x

x = jax.make_array_from_callback((PROCESSES,), NamedSharding(mesh, P("d")), lambda index: np.arange(2.0)[index])
jax.block_until_ready(sum_of_all(forward(x)))
x = forward(x)
with open(file_of(PROCESS, "pid"), "w") as file:
    file.write(str(os.getpid()))
report["came"] = True
write_report()
if PROCESS == 0:
    jax.block_until_ready(sum_of_all(x))
kinds = lambda: [event.kind for event in fx.runs.read(file_of(0, "fx")).events()]
while kinds().count(fx.runs.Kind.DISPATCHED) < 4:
    pass
os.kill(int(open(file_of(0, "pid")).read()), signal.SIGKILL)
os._exit(0)
"""


@pytest.mark.slow
def test_collective_without_an_effect_behind_it_is_named(tmp_path, capsys):
    """A process waits in it for one that has not called the program. XLA may run it ahead of the last effect or behind
    that, so the program has not ended, or is not known to have."""
    processes = run_processes(MISSES_A_SUM.format(folder=str(tmp_path)), 2, timeout=100)
    assert all(process.report.get("came") for process in processes), processes[1].output
    text, found = last_of(capsys, tmp_path)
    _, _, own = text.partition("Process 0 ")
    assert "The program `sum_of_all` (thread 1, dispatch 3), called " in own, text
    assert " has not ended." in own or " before and is not known to have ended." in own
    assert "Process 1 has not called it; its newest call is dispatch 2, `forward`." in own
    [program] = [each for each in found[0]["programs"] if each["name"] == "sum_of_all"]
    assert program["not_called_by"] == [{"process": 1, "dispatch": 2, "name": "forward"}]


@pytest.mark.parametrize("late", ["print", "first"])
def test_recording_of_a_process_has_its_first_program_as_a_whole(tmp_path, capsys, late):
    """A file begins with the first effect of the process, which is an effect of a call that has begun."""
    code = f"""
import os
import effects as fx

@fx.jit
def first(x):
    fx.print("x = {{}}", x)
    fx.callback(lambda: os._exit(0) if {late == "first"} else None, None)

@fx.jit
def second(x):
    fx.callback(lambda: os._exit(0), None)

first(1)
fx.effects_barrier()
second(2)
fx.effects_barrier()
"""
    run_python(code, env={"EFFECTS_RUN": str(tmp_path / "run.fx")})
    text, [process] = last_of(capsys, tmp_path / "run.fx")
    assert "came before the recording" not in text
    assert all(program["called"] is not None for program in process["programs"])
    assert "first" in [program["name"] for program in process["programs"]] or late == "print"
