"""Callbacks that the devices of a region wait for, and wait for each other."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import effects as fx
from tests.forks import run_forked
from tests.lowering.regions.meshes import by_device, in_process_of_its_own, mesh_of

P = jax.P
ONE = jax.ShapeDtypeStruct((1,), jnp.int32)


WATCHED = """
import faulthandler, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, effects as fx
from jax import lax, P
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
seen = []

def add(n, x):
    seen.append(int(n))
    return x + 1

def body(x):
    n = lax.axis_index("x")
    def turn(_, x):
        y = fx.callback(add, jax.ShapeDtypeStruct(x.shape, x.dtype), n, x)
        return y + 0 * lax.psum(y, "x")
    return lax.fori_loop(0, 2, turn, x)

f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
for _ in range(200):
    x = f(jnp.zeros(8))
assert x.tolist() == [2] * 8, x
assert seen == [*range(8)] * 400
print("done")
"""


def test_eight_devices_wait_for_callbacks_and_each_other():
    """Hundreds of times: who goes on after its answer waits in a collective for those that have none yet."""
    done = run_forked(WATCHED)
    assert done.stdout == "done\n", done.stderr[-2000:]


OF_THE_WHOLE = """
import faulthandler, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, effects as fx
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, jax.P("x")))
seen = []

def half(total):
    seen.append(float(total))
    return total / 2

@fx.jit
def f(x):
    for _ in range(2):
        x = x * fx.callback(half, jax.ShapeDtypeStruct((), x.dtype), x.sum())
        x = x / x.sum() * 64
    return x

for _ in range(300):
    f(x)
assert seen == [64.0] * 600, seen
print("done")
"""


def test_eight_devices_share_an_answer_and_wait_for_each_other():
    """Hundreds of times: all have the answer of one call, and each goes on to where it waits for the others."""
    done = run_forked(OF_THE_WHOLE)
    assert done.stdout == "done\n", done.stderr[-2000:]


@pytest.mark.slow
def test_collectives_come_after_effects():
    in_process_of_its_own(__file__, "check_collectives_come_after_effects")


@pytest.mark.parametrize("ending", ["psum", "gather", "keys"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("known", [True, False])
def check_collectives_come_after_effects(ending, check_vma, known, lines):
    """The devices that print have no reason of their own to do so before they wait for the devices that call, and
    those wait for what is printed. If it is `known` how many effects a device has, they wait for what is skipped."""

    def body(x):
        n = lax.axis_index("x")
        if ending == "keys":
            x = jax.random.key_data(x)[:, 1].astype(jnp.int32)
        call = lambda x: fx.callback(lambda n, x: (print(n, "called"), x + 1)[1], ONE, n, x)  # noqa: E731
        x = lax.cond(n % 2 == 0, call, lambda x: x, x)
        for turn in range(3):
            fx.print("{} {} {}", n, turn, x[0])
        if not known:
            lax.while_loop(lambda x: x < 0, lambda x: (fx.print("never"), x)[1], n)
        if ending == "keys":
            return jax.vmap(jax.random.key)(x)
        return lax.psum(x, "x") + x if ending == "psum" else x

    def f(x):
        x = by_device(body, check_vma=check_vma)(x)
        fx.print("all {}", jax.random.key_data(x)[:, 1] if ending == "keys" else x)

    values = [1, 1, 3, 3]
    own = [[f"{n} {turn} {values[n]}" for turn in range(3)] for n in range(4)]
    for n in range(4):
        own[n][:0] = [f"{n} called"] if n % 2 == 0 else [None] * known
    shown = [each[index] for index in range(4) for each in own if index < len(each) and each[index] is not None]
    shown.append("all [ 9  9 11 11]" if ending == "psum" else "all [1 1 3 3]")
    f, x = fx.jit(f), jnp.arange(4, dtype=jnp.int32)
    x = jax.vmap(jax.random.key)(x) if ending == "keys" else x
    for _ in range(30):
        assert lines(f, x) == shown


def test_device_that_waits_may_be_what_the_others_wait_for():
    in_process_of_its_own(__file__, "check_device_that_waits")


def check_device_that_waits(lines):
    """A callback of one device comes after what the others do when it has run. It is not waited for that."""

    def call(x):
        return fx.callback(lambda x: x + 1, ONE, x)

    def in_branch(n, x):
        return lax.cond(n == 2, call, lambda x: x, x)

    def in_loop(n, x):
        return lax.fori_loop(0, (n == 2).astype(jnp.int32), lambda _, x: call(x), x)

    def program(calls):
        def body(x):
            n = lax.axis_index("x")
            total = lax.psum(calls(n, x), "x")
            fx.print("{} {}", n, total[0])
            return total

        return fx.jit(jax.shard_map(body, mesh=mesh_of(4), in_specs=P("x"), out_specs=P()))

    for calls, shown in [(in_branch, ["0 7", "1 7", "2 7", "3 7"]), (in_loop, ["0 7", "1 7", "3 7", "2 7"])]:
        f = program(calls)
        for _ in range(2):
            assert lines(f, jnp.arange(4, dtype=jnp.int32)) == shown


LEFT_BEHIND = """
import logging, os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp, effects as fx
fx.config.stall_seconds = 0.2
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

class End(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
        sys.stdout.flush()
        os._exit(7)

logging.getLogger("effects").addHandler(End())

def fail(x):
    raise ValueError("as asked")

def named(x):
    x = jax.lax.cond(x[0] == 2, lambda x: fx.callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x), lambda x: x, x)
    return x + jax.lax.psum(x, "x")

f = fx.jit(jax.shard_map(named, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
jax.block_until_ready(f(jnp.arange(4.0)))
"""


def test_failure_is_logged_while_other_devices_wait():
    """XLA ends such a process, before any call raises what has failed."""
    done = run_forked(LEFT_BEHIND)
    assert done.returncode == 7, done.stderr[-2000:]
    [shown] = [line for line in done.stdout.splitlines() if line.startswith("- the program")]
    assert "runs on devices 0, 1, 3; has failed on device 2: The callback `fail` at <string>:" in shown
    assert "raised ValueError('as asked')" in shown
