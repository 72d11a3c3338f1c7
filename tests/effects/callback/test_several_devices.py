"""Callbacks of programs over several devices, and those that compute on the devices that wait for them."""

import contextlib
import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.forks import run_forked
from tests.helpers import meet_barrier, run_python

pytestmark = pytest.mark.slow

F32, EIGHT = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((), (8,)))


@pytest.fixture(autouse=True)
def _little_patience():
    with fx.config.override(stall_seconds=0.3, stall_fail_seconds=0.6):
        yield


def _sharded():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("x")))


def _numbered(numbers):
    """A function that returns the number of its call, and so tells which devices were given the answer of which."""
    return lambda *_: np.float32(next(numbers))


def test_unordered_calls_of_a_sharded_program():
    """Without an order, too, a call with results runs once for all devices: in loops, beside calls that are the same in
    all, in a function that is called twice, and again with each call of the program."""
    numbers = itertools.count()
    number = functools.partial(fx.callback, _numbered(numbers), F32, ordered=False)

    @jax.jit
    def twice(x):
        return number(x) + 0 * x.sum(), number(x) + 0 * x.sum()

    @fx.jit
    def f(x):
        def turn(carry, _):
            first, second = number(x), number(x)
            together = (x * 0 + first).sum() / 8  # devices communicate between the calls
            return carry + together - first, jnp.stack([first, second])

        differences, of_turns = jax.lax.scan(turn, jnp.float32(0), None, 5)
        return differences, of_turns.ravel(), jnp.stack([*twice(x), *twice(x), number()])

    for program in range(3):
        differences, *answers = f(_sharded())
        found = np.concatenate(answers)
        assert differences == 0 and sorted(found) == [15 * program + i for i in range(15)]
        for answer in answers:  # on every device
            shards = answer.addressable_shards
            assert all((np.asarray(shard.data) == np.asarray(answer)[shard.index]).all() for shard in shards)
    meet_barrier()


def test_unordered_call_of_replicas():
    """In a `shard_map` over some axes of its mesh, devices that are replicas of each other have one answer."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    calls = []

    def region(x):
        double, add = lambda x: (calls.append(1), 2 * x)[1], lambda x: x + 1
        return sum(fx.callback(fn, jax.ShapeDtypeStruct((4,), "float32"), x, ordered=False) for fn in (double, add))

    f = fx.jit(jax.shard_map(region, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"), axis_names={"x"}))
    x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P(("x", "y"))))
    for _ in range(3):
        assert f(x).tolist() == [3.0 * i + 1 for i in range(8)]
    assert len(calls) == 2 * 3
    meet_barrier()


def test_unordered_call_that_raises_in_a_sharded_program():
    """Every device hears that the function has failed, and the next program goes on."""

    def fail(x):
        raise ValueError("as asked")

    f, g = (fx.jit(lambda x, fn=fn: fx.callback(fn, EIGHT, x, ordered=False) + x) for fn in (fail, lambda x: x))
    for _ in range(2):
        with pytest.raises(fx.EffectError, match="as asked"):
            f(_sharded())
        assert g(_sharded()).tolist() == [2.0 * i for i in range(8)]
    meet_barrier()


def test_sharded_program_that_waits_lets_earlier_callbacks_use_the_devices():
    """Devices run one program over several of them at a time; one that waits for another does not block them."""
    seen = []
    queued = fx.jit(lambda x: fx.callback(lambda: seen.append(float(jax.jit(lambda y: y.sum())(_sharded()))), None))
    waits = fx.jit(lambda x: fx.callback(lambda x: x + 1, EIGHT, x))
    for _ in range(5):
        queued(1.0)
        assert waits(_sharded())[0] == 1
    meet_barrier()
    assert seen == [28.0] * 5


_double = jax.jit(lambda y: y * 2)
_double_and_print = fx.jit(lambda y: (fx.print("{}", y), y * 2)[1])


def _fill_the_queue(x):
    for _ in range(100):
        x = _double(x)


def _call_and_compute(results):
    """Waits in a callback of a program on one device."""

    def called(x):
        def compute(c):
            _double(x).block_until_ready()
            return c

        fx.jit(lambda c: fx.callback(compute, results, c))(jnp.float32(1))

    return called


_WAYS = {
    "numpy": lambda x: np.asarray(_double(x)),
    "method": lambda x: _double(x).block_until_ready(),
    "mapped": lambda x: list(map(operator.methodcaller("block_until_ready"), [_double(x)])),
    "function": lambda x: jax.block_until_ready([_double(x)]),
    "operator": lambda x: (x + 1).block_until_ready(),
    "print": lambda x: str(x + 1),
    "compiled": lambda x: _double.lower(x).compile()(x).block_until_ready(),
    "queue": _fill_the_queue,
    "effects": _double_and_print,
    "callback": fx.jit(lambda x: fx.callback(lambda x: x, EIGHT, x)),
    "nested": _call_and_compute(F32),
    "nested, queued": _call_and_compute(None),
    "jax's effects": lambda x: (jax.jit(lambda y: jax.debug.print("{}", y))(x), jax.effects_barrier()),
}


@pytest.mark.parametrize("way", _WAYS)
def test_callback_that_waits_for_the_devices_that_wait_for_it(way):
    """It cannot go on, so its program ends with an error that says why; the next one runs."""
    x = _sharded()

    def called(y):
        _WAYS[way](x)
        return y

    f = fx.jit(lambda y: fx.callback(called, EIGHT, y))
    with pytest.raises(fx.EffectError, match="waits for what JAX computes"):
        f(x)
    _settle()
    g = fx.jit(lambda x: fx.callback(lambda x: x + 1, EIGHT, x))
    assert g(x)[0] == 1


@pytest.mark.parametrize("way", ["numpy", "function", "effects", "callback"])
def test_callback_of_a_region_that_waits_for_the_devices(way):
    """The same where each device has its own: those that have their answers wait for the others."""
    x = _sharded()

    def called(y):
        _WAYS[way](x)
        return y

    def by_device(fn):
        body = lambda y: fx.callback(fn, jax.ShapeDtypeStruct(y.shape, y.dtype), y)  # noqa: E731
        return fx.jit(jax.shard_map(body, mesh=x.sharding.mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))

    with pytest.raises(fx.EffectError, match="waits for what JAX computes"):
        by_device(called)(x)
    _settle()
    assert by_device(lambda y: y + 1)(x)[0] == 1


def _settle():
    """What the function was about goes on when its program has ended, or fails; that is not what is tested."""
    with contextlib.suppress(fx.EffectError):
        meet_barrier()


_FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


_OVER_FOUR_DEVICES = (
    "import faulthandler; faulthandler.dump_traceback_later(100, exit=True)\n"
    "import jax, jax.numpy as jnp, numpy as np, effects as fx\n"
    "EIGHT = jax.ShapeDtypeStruct((8,), jnp.float32)\n"
    "mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))\n"
    "x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P('x')))\n"
)


def test_callback_that_only_starts_a_computation_over_several_devices():
    """It need not wait for it, and may take its time; the computation begins when the program has ended."""
    code = _OVER_FOUR_DEVICES + (
        "import threading\n"
        "import logging\n"
        "said, started = threading.Event(), []\n"
        "fx.config.stall_seconds = fx.config.stall_fail_seconds = 0.1\n"
        "logging.getLogger('effects').addFilter(lambda record: said.set())\n"
        "double = jax.jit(lambda x: x * 2)\n"
        "def called(y):\n"
        "    started.append(double(x))\n"
        "    assert said.wait(60)\n"
        "    return y\n"
        "f = fx.jit(lambda y: fx.callback(called, EIGHT, y))\n"
        "for _ in range(2): assert f(x)[1] == 1\n"
        "assert [y[1] for y in started] == [2, 2]\n"
        "fx.effects_barrier()\n"
    )
    done = run_forked(code, env={**_FOUR_DEVICES, "PJRT_NPROC": "16"})  # so that dispatching waits for no thread
    assert done.returncode == 0, done.stdout + done.stderr


_STARVED = _OVER_FOUR_DEVICES + (
    "fx.config.stall_seconds = fx.config.stall_fail_seconds = {patience}\n"
    "a, matmul = jnp.ones((512, 512)), jax.jit(lambda a: a @ a)\n"
    "def called(y):\n"
    "    {wait}\n"
    "    return y\n"
    "f = fx.jit(lambda y: fx.callback(called, EIGHT, y))\n"
    "try: f(x)\n"
    "except fx.EffectError as error: print(error)\n"
    "else: print('fine')\n"
    "assert matmul(a)[0, 0] == 512\n"
)


@pytest.mark.parametrize(
    ("wait", "threads", "patience", "said"),
    [
        ("np.asarray(matmul(a))", 1, 0.7, "PJRT_NPROC"),
        ("float(matmul(a)[0, 0])", 1, 0.7, "PJRT_NPROC"),
        ("matmul(a).block_until_ready()", 1, 0.7, "PJRT_NPROC"),
        ("np.asarray(matmul(a))", 8, 8.0, "fine"),
    ],
)
def test_callback_that_computes_while_programs_have_all_threads(wait, threads, patience, said):
    """A program takes one of XLA's threads for each device. If none is left, it ends with an error that says so."""
    done = run_forked(_STARVED.format(wait=wait, patience=patience), env={**_FOUR_DEVICES, "PJRT_NPROC": str(threads)})
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("results", ["F32", "None"])
def test_callback_of_the_first_program_of_a_process(results):
    """It runs though nothing but JAX has dispatched anything."""
    code = (
        "import faulthandler; faulthandler.dump_traceback_later(100, exit=True)\n"
        "import jax, effects as fx\n"
        "F32 = jax.ShapeDtypeStruct((), 'float32')\n"
        f"f = jax.jit(lambda x: fx.callback(lambda x: (print('called'), x)[1], {results}, x))\n"
        "jax.block_until_ready(f(1.0))\n"
        "fx.effects_barrier(timeout=60)\n"
    )
    done = run_forked(code)
    assert done.returncode == 0 and done.stdout == "called\n", done.stderr


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_nothing_waited_for_is_dropped(when_full):
    """Rings too small for what a callback's program prints: whoever waits is answered, and nothing hangs."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np, effects as fx\n"
        "F = jax.ShapeDtypeStruct((), jnp.float32)\n"
        "inner = fx.jit(lambda x: (jax.lax.fori_loop(0, 3000, lambda i, _: fx.print('{}', i), None), x + 1)[1])\n"
        "f = fx.jit(lambda x: fx.callback(lambda x: np.asarray(inner(x)), F, x))\n"
        "for i in range(3): assert f(jnp.float32(i)) == i + 1\n"
        "fx.effects_barrier(timeout=100)\n"
        "if fx.config.when_full == 'wait': assert fx.stats()['dropped'] == 0\n"
    )
    done = run_python(code, env={"EFFECTS_RING_BYTES": "4096", "EFFECTS_WHEN_FULL": when_full})
    assert done.returncode == 0, done.stderr
