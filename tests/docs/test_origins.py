"""The programs of the documents that the project began from, as JAX has them today: see `docs/reference/origins.md`.

What another test runs already is not here. The page names that test.
"""

from __future__ import annotations

import ast
import re
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.asynchronous import TextError, parse
from tests.helpers import ROOT, build_once, meet_barrier

pytestmark = pytest.mark.slow

VERDICTS = ("works", "differently", "needs a device", "not")


def test_page_counts_its_rows():
    """Each row has a verdict. A row with the verdict "works" or "differently" names a test."""
    head, *documents = (ROOT / "docs/reference/origins.md").read_text().split("\n## ")
    counts = {}
    for document in documents:
        title, *lines = document.splitlines()
        rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("| ")][2:]
        kinds = [re.match("|".join(VERDICTS), row[2])[0] for row in rows]
        assert all(
            len(row) == 4 and "::" in row[3]
            for row, kind in zip(rows, kinds, strict=True)
            if kind in ("works", "differently")
        )
        counts[title] = [kinds.count(verdict) for verdict in VERDICTS]
    counts["all"] = [*map(sum, zip(*counts.values(), strict=True))]
    shown = re.findall(r"^\| \[?([A-Za-z ]+?)(?:\]\(.*\))? \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", head, re.MULTILINE)
    assert {title: [*map(int, numbers)] for title, *numbers in shown} == counts


def test_every_test_that_the_page_names_exists():
    """And the page names every other test of this file."""
    named = {*re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/reference/origins.md").read_text())}
    there = {
        (file, node.name)
        for file in {file for file, _ in named}
        for node in ast.parse((ROOT / "tests" / file).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert len(named) > 80 and sorted(named - there) == []
    here = {name for file, name in there - named if file == "docs/test_origins.py"}
    assert here == {"test_page_counts_its_rows", "test_every_test_that_the_page_names_exists"}


@pytest.fixture
def run(lines):
    """`run(f, *args)` is what a program prints, and its results."""

    def run(f, *args):
        results = []
        return lines(lambda: results.append(fx.jit(f)(*args))), results[0]

    return run


# Sequencing side effects


@pytest.mark.filterwarnings("ignore:backend and device argument on jit")
@pytest.mark.parametrize("ordered", [True, False])
def test_hello_and_world_from_two_devices(ordered, lines):
    """In the order of the calls, or else in any, and the barrier waits for both devices."""

    @partial(fx.jit, device=jax.devices()[0])
    def f():
        fx.print("hello", ordered=ordered)
        return 2

    @partial(fx.jit, device=jax.devices()[1])
    def g():
        fx.print("world", ordered=ordered)
        return 3

    results = []
    shown = lines(lambda: results.extend((f(), g())))
    assert (shown if ordered else sorted(shown)) == ["hello", "world"]
    assert [(int(x), x.device) for x in results] == [(2, jax.devices()[0]), (3, jax.devices()[1])]


def test_hello_and_world_in_one_program(run):
    def f(x):
        fx.print("hello")
        fx.print("world")
        return x

    assert run(f, 1) == (["hello", "world"], 1)


def test_values_are_logged_as_written():
    logged = []

    def log_value(x):
        fx.callback(lambda x: logged.append(int(x)), None, x)

    @fx.jit
    def f(x, y):
        log_value(x)
        log_value(y)

    f(1, 2)
    meet_barrier()
    assert logged == [1, 2]


def test_barrier_waits_for_a_program_without_results(capsys, gates):
    """Of which nothing can be waited for: neither an order nor a result."""
    gate = gates()

    @fx.jit
    def f():
        fx.print("hello {}", gate(jnp.zeros(())), ordered=False)

    assert f() is None
    with pytest.raises(fx.BarrierTimeout):
        fx.effects_barrier(timeout=0.05)
    gate.open()
    meet_barrier()
    assert capsys.readouterr().out == "hello 0.0\n"


def test_output_token_depends_on_each_unordered_effect():
    """Nothing else in the program does."""

    def f(x):
        for number in range(3):
            fx.print("{} {}", number, x + number, ordered=False)

    text = fx.jit(f).lower(1.0).as_text()
    lines = dict(re.findall(r"^ *(%\w+) = (.*)", text, re.MULTILINE))
    needed = re.findall(r"return (%\w+)", text)[-1:]
    for name in needed:
        needed += [other for other in re.findall(r"%\w+", lines.get(name, "")) if other not in needed]
    records = {name for name, line in lines.items() if "@effects_record" in line}
    assert len(records) == 3 and records <= {*needed}


def test_devices_do_not_wait_and_the_barrier_waits_for_each(capsys, gates):
    """A program that is held keeps none of another device waiting; and a barrier waits for the effects of a program
    whose device has gone on to another one."""
    gate, called, go_on = gates(), threading.Event(), threading.Event()

    def hold(x):
        called.set()
        assert go_on.wait(60)

    held = fx.jit(lambda x: fx.print("hello {}", gate(x), ordered=False))
    shows = fx.jit(lambda x: (fx.print("world {}", x, ordered=False), x)[1])
    calls = fx.jit(lambda x: fx.callback(hold, None, x, ordered=False))
    here, there = (jax.device_put(jnp.float32(i), jax.devices()[i]) for i in range(2))
    held(here)
    calls(there)
    shows(there).block_until_ready()
    assert called.wait(60)
    for let_go in (gate.open, go_on.set):
        with pytest.raises(fx.BarrierTimeout):
            fx.effects_barrier(timeout=0.05)
        let_go()
    meet_barrier()
    assert sorted(capsys.readouterr().out.split("\n")) == ["", "hello 0.0", "world 1.0"]


# The design of Pallas


def test_kernel_adds_blocks_and_lanes(run):
    """Under `vmap` the lane is one more axis of the grid."""

    def add_kernel(x_ref, y_ref, o_ref):
        x = x_ref[:]
        y = y_ref[:]
        fx.print("{grid} {} + {}", x, y)
        o_ref[:] = x + y

    x, y = jnp.arange(8), jnp.arange(8, 16)
    add = partial(pl.pallas_call, add_kernel, out_shape=jax.ShapeDtypeStruct((8,), jnp.int32), interpret=True)
    assert run(add(), x, y)[0] == ["() [0 1 2 3 4 5 6 7] + [ 8  9 10 11 12 13 14 15]"]
    pair = pl.BlockSpec((2,), lambda i: i)
    add = add(in_specs=[pair, pair], out_specs=pair, grid=(4,))
    shown, result = run(add, x, y)
    assert shown == ["(0,) [0 1] + [8 9]", "(1,) [2 3] + [10 11]", "(2,) [4 5] + [12 13]", "(3,) [6 7] + [14 15]"]
    assert result.tolist() == (x + y).tolist()
    lanes, _ = run(jax.vmap(add), jnp.stack([x, x]), jnp.stack([y, y]))
    assert lanes == [line.replace("(", f"({lane}, ").replace(",)", ")") for lane in range(2) for line in shown]


def test_kernel_indexes(run):
    def f(x_ref, o_ref):
        x = x_ref[0, 2:5, :]
        fx.print("{}", x[0])
        o_ref[jnp.arange(3), :] = x
        fx.print("{}", o_ref[jnp.arange(2)[..., None], jnp.arange(2)[None, ...]].sum(0))
        x = x_ref[0, 2 + jnp.arange(3), :]
        o_ref[pl.ds(start=1, size=2), :] = x[:2] + 100
        fx.print("{}", o_ref[:, 0])

    x = jnp.arange(16).reshape(1, 8, 2)
    call = pl.pallas_call(f, out_shape=jax.ShapeDtypeStruct((3, 2), jnp.int32), interpret=True)
    assert run(call, x)[0] == ["[4 5]", "[10 12]", "[  4 104 106]"]


def test_templated_kernels(run):
    """A kernel closes over a function, and over a derivative, which is taken inside of it."""

    def make_kernel(eltwise_kernel):
        def add(x_ref, y_ref, o_ref):
            x = x_ref[()]
            y = y_ref[()]
            fx.print("{}", x + y)
            o_ref[()] = eltwise_kernel(x + y)

        return add

    x = jax.ShapeDtypeStruct((), jnp.float32)
    for eltwise, expected in ((lambda x: x * 2, 4.0), (jax.grad(lambda x: x**3), 12.0)):
        call = pl.pallas_call(make_kernel(eltwise), out_shape=x, grid=1, interpret=True)
        assert run(call, 1.0, 1.0) == (["2.0"], expected)


def test_templated_matmul(run):
    """The activation is traced into the kernel, with its effects."""

    def matmul_kernel(x_ref, y_ref, o_ref, *, activation, block_k):
        acc = jnp.zeros((x_ref.shape[0], y_ref.shape[1]), jnp.float32)
        for k in range(x_ref.shape[1] // block_k):
            x = x_ref[:, k * block_k : (k + 1) * block_k]
            y = y_ref[k * block_k : (k + 1) * block_k, :]
            acc += x @ y
        o_ref[:, :] = activation(acc).astype(o_ref.dtype)

    def activation(x):
        fx.print("{grid} {}", x[0, 0])
        return jax.nn.gelu(x)

    def matmul(x, y, block_m=128, block_n=256, block_k=128):
        rows = pl.BlockSpec((block_m, x.shape[1]), lambda i, j: (i, 0))
        columns = pl.BlockSpec((y.shape[0], block_n), lambda i, j: (0, j))
        return pl.pallas_call(
            partial(matmul_kernel, block_k=block_k, activation=activation),
            out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
            in_specs=[rows, columns],
            out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
            grid=(4, 4),
            interpret=True,
        )(x, y)

    shown, result = run(matmul, jnp.ones((512, 256)), jnp.ones((256, 1024)))
    assert shown == [f"{(i, j)} 256.0" for i in range(4) for j in range(4)]
    np.testing.assert_array_equal(result, np.full((512, 1024), 256))


def test_custom_vmap_replaces_the_axis_of_the_grid(run):
    """The rule of the user's calls a kernel of its own, with its own effects."""

    def kernel(x_ref, o_ref, *, name):
        fx.print(name + " {grid} {}", x_ref)
        o_ref[...] = x_ref[...] * 2

    def call(x, name):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(partial(kernel, name=name), out_shape=shape, interpret=True)(x)

    @jax.custom_batching.custom_vmap
    def double(x):
        return call(x, "alone")

    @double.def_vmap
    def _(size, batched, x):
        return call(x, "lanes"), batched[0]

    x = jnp.arange(4).reshape(2, 2)
    assert run(double, x[0])[0] == ["alone () [0 1]"]
    shown, result = run(jax.vmap(double), x)
    assert shown == ["lanes () [[0 1]", " [2 3]]"] and result.tolist() == [[0, 2], [4, 6]]


# Asynchronous operations in Pallas

N = 4
RING = jnp.arange(float(N))
ppermute_start = partial(fx.ppermute_start, axis_name="i", perm=[(i, (i + 1) % N) for i in range(N)])
ppermute_done = fx.async_done


def on_ring(f, **options):
    mesh = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), **options)


@pytest.mark.parametrize("barriers", [False, True])
def test_program_goes_on_between_start_and_done(barriers, run, gates):
    """Device 0 comes to its start when the others have computed what they have behind theirs. A `ppermute` that is done
    where it starts would wait there. With the optimization barriers of the document, and without them."""
    gate, others = gates(), threading.Semaphore(0)

    def f(x):
        me = jax.lax.axis_index("i")
        x = jax.lax.cond(me == 0, gate, lambda x: x, x)
        fut = ppermute_start(x)
        if barriers:
            x, fut = jax.lax.optimization_barrier((x, fut))
        z = x + 1
        fx.callback(lambda z: others.release(), None, z, ordered=False)
        fx.print("meanwhile {}", z)
        if barriers:
            z, fut = jax.lax.optimization_barrier((z, fut))
        y = ppermute_done(fut)
        return y, z

    def open_gate():
        for _ in range(N - 1):
            assert others.acquire(timeout=60)
        gate.open()

    thread = threading.Thread(target=open_gate)
    thread.start()
    shown, (y, z) = run(on_ring(f, check_vma=False), RING)
    thread.join()
    assert shown == [f"meanwhile [{d}.]" for d in (1, 2, 3, 4)]
    assert (y.tolist(), z.tolist()) == ([3, 0, 1, 2], [1, 2, 3, 4])


def test_kernel_sends_with_semaphores(run):
    """In one kernel, which JAX simulates, and which adds one between what it starts and what it waits for."""

    def ppermute_add_one_kernel(x_ref, y_ref, z_ref, send_sem, recv_sem, block_ref):
        right_neighbor = jax.lax.rem(jax.lax.axis_index("i") + 1, N)
        descriptor = pltpu.make_async_remote_copy(x_ref, y_ref, send_sem, recv_sem, device_id=right_neighbor)
        descriptor.start()
        fx.print("sent")
        pltpu.sync_copy(x_ref, block_ref)
        block_ref[...] += 1
        fx.print("meanwhile {}", block_ref[0, 0])
        pltpu.sync_copy(block_ref, z_ref)
        descriptor.wait_send()
        descriptor.wait_recv()
        fx.print("received by {device}")

    def ppermute_and_add_one(x):
        whole, semaphore = pl.BlockSpec(memory_space=pl.ANY), pltpu.SemaphoreType.DMA
        scratch = [semaphore, semaphore, pltpu.VMEM(x.shape, x.dtype)]
        options = {"in_specs": [whole], "out_specs": (whole, whole), "scratch_shapes": scratch}
        return pl.pallas_call(ppermute_add_one_kernel, (x, x), interpret=pltpu.InterpretParams(), **options)(x)

    x = jnp.zeros((8 * N, 128)) + jnp.repeat(RING, 8)[:, None]
    shown, (y, z) = run(on_ring(ppermute_and_add_one, check_vma=False), x)
    meanwhile, received = [f"meanwhile {d + 1}.0" for d in range(N)], [f"received by {d}" for d in range(N)]
    assert shown == ["sent"] * N + meanwhile + received
    assert (y[::8, 0].tolist(), z[::8, 0].tolist()) == ([3, 0, 1, 2], [1, 2, 3, 4])


def test_kernel_that_returns_semaphores_is_not_simulated():
    """JAX refuses it, without effects, so a start and a done cannot be kernels of their own."""

    def start_kernel(x_ref, send_sem, o_ref):
        pltpu.make_async_copy(x_ref, o_ref, send_sem).start()

    x, whole, semaphore = jnp.ones((8, 128)), pl.BlockSpec(memory_space=pl.ANY), pltpu.SemaphoreType.DMA(())
    specs = {"in_specs": [whole], "out_specs": (pl.BlockSpec(memory_space=pltpu.SEMAPHORE), whole)}
    start = pl.pallas_call(start_kernel, out_shape=(semaphore, x), interpret=pltpu.InterpretParams(), **specs)
    with pytest.raises(NotImplementedError):
        jax.jit(start)(x)


def scan(start, stop, body, init, unroll):
    return jax.lax.scan(lambda c, i: (body(i, c), None), init, jnp.arange(start, stop), unroll=unroll)[0]


def while_loop(start, stop, body, init, unroll):
    return jax.lax.while_loop(lambda c: c[0] < stop, lambda c: (c[0] + 1, body(*c)), (start, init))[1]


LOOPS = [(jax.lax.fori_loop, 1), (jax.lax.fori_loop, 2), (scan, 1), (scan, 2), (while_loop, 1)]


@pytest.mark.parametrize(("loop", "unroll"), LOOPS)
def test_values_go_around_a_ring_in_a_loop(loop, unroll, run):
    """In a turn, and from one turn to the next, with and without unrolling: twice around."""

    def in_a_turn(x):
        def body(i, x):
            fut = ppermute_start(x)
            y = ppermute_done(fut)
            fx.print("{}", y)
            return y

        return loop(0, 8, body, x, unroll=unroll), x

    def carried(x):
        fut = ppermute_start(x)
        out = jnp.zeros_like(x) + x

        def body(i, carry):
            out, fut = carry
            x = ppermute_done(fut)
            fut = ppermute_start(x)
            fx.print("{}", x)
            out = out + x
            return out, fut

        out, fut = loop(0, 7, body, (out, fut), unroll=unroll)
        return ppermute_done(fut), out

    for f, count, total in ((in_a_turn, 8, RING), (carried, 7, jnp.full(N, 12))):
        shown, (last, out) = run(on_ring(f), RING)
        assert shown == [f"[{(d - i) % N}.]" for i in range(1, 1 + count) for d in range(N)]
        assert last.tolist() == RING.tolist() and out.tolist() == total.tolist()


def test_future_ends_while_its_references_live(run):
    """It is done in the `run_state` that makes them, and what is copied stays in it."""
    left = []

    def f(x, escapes):
        @pl.run_state
        def state(refs):
            left.append(fx.copy_start(*refs))
            refs[0][...] += 1
            if not escapes:
                fx.async_done(left.pop())

        x, y = state((x, jnp.zeros_like(x)))
        if escapes:
            fx.async_done(left.pop())
        return x, y

    _, (x, y) = run(partial(f, escapes=False), RING)
    assert (x.tolist(), y.tolist()) == ((RING + 1).tolist(), RING.tolist())
    with pytest.raises(fx.FutureError, match="is never done"):
        fx.jit(partial(f, escapes=True))(RING)


# Asynchronous HLO

OPERATIONS = {
    "unary": jnp.sin,
    "binary": lambda x: x * x[::-1],
    "convert": lambda x: x.astype(jnp.int32),
    "reduce": jnp.sum,
    "window": jnp.cumsum,
    "sort": jnp.sort,
    "top_k": lambda x: jax.lax.top_k(x, 3),
    "dot": lambda x: jnp.dot(x.reshape(4, 4), x.reshape(4, 4)),
    "convolution": lambda x: jnp.convolve(x, x[:3]),
    "fft": jnp.fft.fft,
    "cholesky": lambda x: jnp.linalg.cholesky(jnp.diag(x)),
    "gather": lambda x: x[jnp.array([3, 1])],
    "scatter": lambda x: x.at[jnp.array([3, 1])].add(1),
    "slice": lambda x: x[2:5],
    "dynamic slice": lambda x: jax.lax.dynamic_slice(x, (x[1].astype(jnp.int32),), (3,)),
    "pad": lambda x: jnp.pad(x, 2),
    "copy": jnp.copy,
    "random": lambda x: jax.random.normal(jax.random.key(0), x.shape) + x,
    "while": lambda x: jax.lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x),
    "conditional": lambda x: jax.lax.cond(x[0] > 1, jnp.sin, jnp.cos, x),
    "call": jax.jit(jnp.tanh),
    "constant": lambda x: jnp.arange(3),
    "nothing": lambda x: (),
}


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_any_operation_is_started(jit):
    """What is done is what the operation by itself gives. Collectives and custom calls have their own tests."""
    x = jnp.arange(1.0, 17)
    started = jit(lambda x: [fx.async_done(fx.async_start(f, x)) for f in OPERATIONS.values()])(x)
    for name, got, f in zip(OPERATIONS, started, OPERATIONS.values(), strict=True):
        expected = jax.jit(f)(x)
        assert jax.tree.structure(got) == jax.tree.structure(expected), name
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


LONG = """HloModule, copies={}, between={{}}
%callback.0 {
  %operand0 = float32[64] parameter(0)
  %operand1 = float32[64] parameter(1)
  ROOT %results = (float32[32], float32[32]) callback(float32[64] %operand0, float32[64] %operand1)
}
ENTRY %main {
  %0 = float32[64] parameter(0)
  %1 = float32[64] parameter(1)
  %2 = STARTED async-start(float32[64] %0, float32[64] %1), calls=%callback.0, name="op"
  %3 = STARTED async-update(STARTED %2), calls=%callback.0
  %4 = STARTED async-update(STARTED %3), calls=%callback.0
  %5, %6 = float32[32], float32[32] async-done(STARTED %4), calls=%callback.0
  ROOT tuple(float32[32] %5, float32[32] %6)
}"""
STARTED = "((float32[64], float32[64]), (float32[32], float32[32]), float32[3])"
RESULTS = 'results={"float32[32]", "float32[32]"}'


@pytest.fixture(scope="module")
def inspection():
    """Two operands, two results and two updates."""
    half = jax.ShapeDtypeStruct((32,), jnp.float32)

    def f(x, y):
        future = fx.async_callback(lambda x, y: (x, y), (half, half), x, y, name="op")
        future = fx.async_update(future)
        future = fx.async_update(future)
        return fx.async_done(future)

    return fx.inspect(f)(jnp.ones(64), jnp.ones(64))


def test_long_and_short_text(inspection):
    long, short = inspection.text(), inspection.text(short=True)
    assert parse(long) == parse(short) == inspection
    shown = [re.sub(r', (where|source|host_function)=("[^"]*"|\{[^}]*\})', "", text) for text in (long, short)]
    as_short = re.sub(r"%callback.0 \{[^}]*\}\n", "", LONG).replace("calls=%callback.0", RESULTS)
    expected = [LONG, as_short.replace("async-", "callback-")]
    assert [text.replace("\n\n", "\n").replace(STARTED, "STARTED") for text in shown] == expected


def test_late_binding_is_refused(inspection):
    """A start has all operands of its computation, and an update adds none; a start has the types of all results."""
    started = f"%2 = {STARTED} async-start(float32[64] %0, float32[64] %1)"
    misfit = "the results are not those of"
    for old, new, said in (
        (started, started.replace(", float32[64]", "", 1).replace(", float32[64] %1", ""), "this computation takes"),
        (f"{STARTED} %2)", f"{STARTED} %2, float32[64] %1)", misfit),
        (started, started.replace("(float32[32], float32[32])", "()"), misfit),
    ):
        text = inspection.text()
        assert text.count(old) == 1
        with pytest.raises(TextError, match=said):
            parse(text.replace(old, new))


# Custom calls

F32 = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
TWO = jax.ShapeDtypeStruct((2,), jnp.int32)


@pytest.fixture(scope="module")
def call():
    """`call(name, ...)` calls a handler of `native/origins.cc`."""
    flags, includes = ["-O1", "-shared", "-fPIC"], ["-isystem", jax.ffi.include_dir()]
    library = build_once(ROOT / "tests/native/origins.cc", flags, includes, [], jax.__version__)

    def call(name, *args, **options):
        fx.register_custom_call(f"origins.{name}", (library, name))
        return fx.custom_call(f"origins.{name}", *args, **options)

    return call


def test_custom_call_adds(call, run):
    """Operands of any size, whose rank and type the handler says."""

    def do_it(b, c):
        return call("wrap", F32((2048,)), b, c)

    b, c = np.arange(128, dtype=np.float32), np.arange(2048, dtype=np.float32)
    np.testing.assert_array_equal(run(do_it, b, c)[1], b[np.arange(2048) % 128] + c)
    for wrong in (b[None], b.astype(np.int32)):
        with pytest.raises(fx.CustomCallError, match="origins.wrap"):
            fx.jit(do_it)(wrong, c)
            meet_barrier()


def test_custom_call_decodes_what_it_is_given(call):
    """A number, a text, an enumeration, a structure by itself or out of a dictionary; operands behind the first."""
    assert call("attributes", TWO, 0.0, i32=np.int32(42), str="string").tolist() == [42, 6]
    assert [float(call("calculate", F32(()), 5.0, command=np.int32(n))) for n in (0, 1)] == [10, 25]
    for name in ("from_range", "from_dictionary"):
        assert call(name, TWO, range={"lo": 0, "hi": 42}).tolist() == [0, 42]
    counts, *_ = call("rest", (TWO, (F32((1,)), TWO, TWO)), 1.0, [RING, {"y": RING}])
    assert counts.tolist() == [2, 3]


def test_custom_call_returns_an_error_or_none(call, run):
    def f(name):
        fx.print("before")
        call(name, None, effect="print")
        fx.print("after")

    assert run(partial(f, "always_success")) == (["before", "after"], None)
    with pytest.raises(fx.CustomCallError) as caught:
        fx.jit(partial(f, "always_error"))()
        meet_barrier()
    assert (caught.value.code, caught.value.message) == ("INTERNAL", "Oops!")
