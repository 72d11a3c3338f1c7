"""Asynchronous collectives where the devices are those of several processes."""

import pytest

from tests.processes import run_processes

pytestmark = pytest.mark.slow

PROGRAM = """
start()
import jax.numpy as jnp, numpy as np, effects as fx
from jax import P, lax
from tests.extensions.asynchronous.test_collectives import N, PROGRAMS, X, Pair, Sync, _in_region
from tests.lowering.regions.meshes import mesh_of

MESH = mesh_of(4)

def put(x, mesh=MESH, spec=P("x")):
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, jax.NamedSharding(mesh, spec), lambda index: x[index])

def mine(x):
    jax.block_until_ready(x)
    return [np.asarray(shard.data).tolist() for shard in x.addressable_shards]

def loss(f):
    return lambda x: (f(x) * jnp.arange(2.0 * N)).sum()

TRANSFORMS = {
    "value": lambda f: f,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x + 1,))[1],
    "grad": lambda f: jax.grad(loss(f)),
    "remat": lambda f: jax.grad(loss(jax.checkpoint(f))),
}
USED = {"overlap": "remat", "staggered": "grad", "branches": "grad", "lanes_of_sum": "grad", "to_all": "jvp"}
x = put(X, jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)), P("i"))
report["pairs"] = {}
for at, program in enumerate(PROGRAMS):
    ours, theirs = (_in_region(lambda x, c=c: program(c, x)) for c in (Pair(), Sync()))
    name = USED.get(program.__name__, "value")
    both = fx.jit(TRANSFORMS[name](ours))(x), jax.jit(TRANSFORMS[name](theirs))(x)
    report["pairs"][f"{program.__name__} {name}"] = [mine(each) for each in both]

# Under types that say what varies, and where JAX dispatches the program
checked = _in_region(lambda x: PROGRAMS[0](Pair(), x), check_vma=True)
report["checked"] = mine(fx.jit(checked)(x))
report["dispatched by JAX"] = mine(jax.jit(checked)(x))

# Along one axis the devices are of one process, and along the other of several
square = mesh_of(2, 2)

def groups(x):
    first = lax.axis_index("x") == 0
    within = lax.cond(first, lambda x: fx.async_done(fx.psum_start(x, "y")), lambda x: x, x)  # by the mailbox
    a, b = fx.psum_start(x, "x"), fx.psum_start(x * 100, ("x", "y"))
    return jnp.concatenate([within, fx.async_done(b), fx.async_done(a)], axis=1)

region = jax.shard_map(groups, mesh=square, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False)
program = fx.jit(region)
arg = put(np.arange(4.0, dtype=np.float32).reshape(2, 2), square, P("x", "y"))
report["groups"] = mine(program(arg))
text = program.lower(arg).as_text()
report["posts"] = text.count("stablehlo.custom_call @effects_post")
report["exchanges"] = text.count("stablehlo.all_to_all")

# Devices diverge, and some wait for callbacks before they come to a start in which the others wait for them
def call(x):
    fx.print("called {}", x[0])
    return x + 1

def apart(x, starts_first):
    n = lax.axis_index("x")
    y = lax.cond(n % 2 == 1, lambda x: fx.callback(call, x, x), lambda x: x, x)
    future = fx.psum_start(y, "x") if starts_first else None
    fx.print("{}", n)
    return x + fx.async_done(future or fx.psum_start(y, "x"))

report["apart"] = []
for starts_first in (False, True):
    body = lambda x: apart(x, starts_first)
    region = jax.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    with fx.capture(suppress=True) as records:
        values = mine(fx.jit(region)(put(np.arange(4.0, dtype=np.float32))))
        fx.effects_barrier(timeout=60)
    report["apart"].append([values, [record.text for record in records]])
"""


@pytest.fixture(scope="module")
def reports():
    processes = run_processes(PROGRAM, 2, devices=2)
    for process in processes:
        assert "apart" in process.report, process.output[-4000:]
    return [process.report for process in processes]


def test_pairs_are_what_the_synchronous_ones_are(reports):
    """Each process finds the results of its own devices: loops, branches, lanes and derivatives."""
    for report in reports:
        assert len(report["pairs"]) == 14
        for name, (ours, theirs) in report["pairs"].items():
            for a, b in zip(ours, theirs, strict=True):
                assert a == pytest.approx(b, rel=1e-4), name


def test_other_programs_with_pairs(reports):
    """With `check_vma`, and dispatched by JAX."""
    for report in reports:
        [values, _] = report["pairs"]["overlap remat"]
        assert len(values) == len(report["checked"]) == 2
        assert report["checked"] == report["dispatched by JAX"]
    numbers = [each for report in reports for shard in report["checked"] for each in shard]
    assert numbers == [3 * a * b for a, b in zip([7, 8, *range(1, 7)], range(1, 9), strict=True)]


def test_only_what_other_processes_must_hear_of_is_synchronous(reports):
    """Along an axis within each process the mailbox is used, and devices without a part in it need not come."""
    for process, report in enumerate(reports):
        expected = [[[1, 600, 2], [1, 600, 4]], [[2, 600, 2], [3, 600, 4]]][process]
        assert [shard for [shard] in report["groups"]] == expected
        assert (report["posts"], report["exchanges"]) == (1, 2)


def test_devices_that_wait_for_callbacks_before_a_synchronous_start(reports):
    """What stands ahead of the start is published before it, so that no callback waits for what comes after it."""
    for process, report in enumerate(reports):
        even, odd = 2 * process, 2 * process + 1
        (values, texts), (same_values, same_texts) = report["apart"]
        assert values == same_values == [[8 + even], [8 + odd]]
        assert texts == [f"call([{odd}.])", f"called {odd}.0", f"{even}", f"{odd}"]
        assert sorted(same_texts) == sorted(texts)
