"""JAX's own callbacks inside `fx.jit`: their order among our effects, their errors, and what is left to JAX."""

import contextlib
import functools
import io
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import effects as fx
from tests.forks import run_forked
from tests.helpers import output_of
from tests.internals import site_from

pytestmark = pytest.mark.slow

F32 = jax.ShapeDtypeStruct((), jnp.float32)
show = functools.partial(jax.debug.print, ordered=True)
X = jnp.float32(0.1)
ROW = jnp.linspace(0.0, 1.0, 5)


def test_call_does_not_wait():
    """A call returns before its callbacks have run, and `jax.effects_barrier` waits for them."""
    gate, seen = threading.Event(), []
    f = fx.jit(lambda x: (jax.debug.callback(lambda x: seen.append(gate.wait(60)), x), show("{}", x), x + 1)[-1])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert f(jnp.float32(1)) == 2
        assert not seen
        gate.set()
        jax.effects_barrier()
    assert seen == [True] and out.getvalue() == "1.0\n"


def test_lines_go_to_the_output_of_the_call():
    """As those of `fx.print` do, however they are formatted."""
    out, gate = io.StringIO(), threading.Event()

    @fx.jit
    def f(x):
        fx.callback(lambda: gate.wait(60), None)
        show("native {}", x)
        show("NumPy's {}", x[None])
        show("JAX's {!r}", x)

    with contextlib.redirect_stdout(out):
        f(X)
    gate.set()
    fx.effects_barrier()
    assert out.getvalue() == "native 0.10000000149011612\nNumPy's [0.1]\nJAX's Array(0.1, dtype=float32)\n"


def test_records_and_sites(capsys):
    """A print is a record like ours, with the user's line; its site describes itself."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda x: (show("x {}", x), show("not shown {!r}", x)))(ROW)
    assert capsys.readouterr().out == ""
    record, _ = records
    assert (record.effect, record.text, record.where.file) == ("jax.debug", f"x {ROW}", __file__)
    assert site_from(record._site.description).content == record._site.content
    seen = []
    token = fx.add_handler(lambda record: seen.append(record.effect), effects="jax.io_callback")
    fx.jit(lambda x: (show("{}", x), io_callback(lambda x: None, None, x)))(X)
    fx.effects_barrier(effects="jax.io_callback")
    fx.remove_handler(token)
    assert seen == ["jax.io_callback"]


def test_log_is_that_of_jax(caplog):
    """`jax.debug.log` makes the same log records."""
    texts = []
    for jit in (jax.jit, fx.jit):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="jax._src.debugging"):
            jit(lambda x: jax.debug.log("step {} {}", x, [x], ordered=True))(X)
            jax.effects_barrier()
        texts += [(r.name, r.levelname, r.getMessage(), r.pathname, r.lineno) for r in caplog.records]
    assert texts[0] == texts[1] and texts[0][2] == "step 0.10000000149011612 [Array(0.1, dtype=float32)]"
    assert len(texts) == 2


# Errors


def _fail(*args):
    raise ValueError("no")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: io_callback(_fail, F32, x),
        lambda x: io_callback(_fail, None, x, ordered=True),
        lambda x: jax.debug.callback(_fail, x),
    ],
)
def test_error_is_logged_as_in_jax(caplog, program):
    """What a function raises is logged where JAX logs it, once, with its traceback."""
    logged = []
    for jit in (jax.jit, fx.jit):
        caplog.clear()
        with pytest.raises(Exception, match="ValueError"):
            jax.block_until_ready(jit(program)(X))
            jax.effects_barrier()
        logged.append([(r.name, r.levelname, r.getMessage(), r.exc_info[0]) for r in caplog.records])
    assert logged[0] == logged[1] and len(logged[0]) == 1


def test_error_is_raised_as_ours():
    """A function that raises is an `EffectError` with the user's line: at the call that waits, else at a barrier."""
    with pytest.raises(fx.EffectError, match=rf"callback `_fail` at {__file__}:\d+, .* raised ValueError"):
        fx.jit(lambda x: io_callback(_fail, F32, x, ordered=True))(X)
    for program in (
        lambda x: jax.debug.callback(_fail, x),
        lambda x: jax.debug.callback(_fail, x, ordered=True),
        lambda x: io_callback(_fail, None, x),
        lambda x: show("{:q}", x),
        lambda x: show("{} {:q}", [x], x),
    ):
        fx.jit(program)(X)
        with pytest.raises(fx.EffectError, match=__file__) as caught:
            jax.effects_barrier()
        assert isinstance(caught.value.__cause__, ValueError)
    fx.effects_barrier()


@pytest.mark.parametrize(
    ("returned", "result"), [(np.zeros(3), F32), (np.int32(1), F32), ((1.0, 2.0), F32), (1.0, None)]
)
def test_wrong_results(returned, result):
    """What is returned must be what was asked for, as in JAX."""
    fx.jit(lambda x: x)(X)
    with pytest.raises(fx.EffectError, match="returned"):
        fx.jit(lambda x: io_callback(lambda x: returned, result, x))(X)
        fx.effects_barrier()


# Where JAX stays in charge


def test_pure_callback_is_left_to_jax(lines):
    """A pure callback that nobody needs is dropped, as in JAX; one in a loop of ours does not stop the drain."""
    calls = []

    def pure(x):
        calls.append(1)
        return np.float32(x + 1)

    @fx.jit
    def f(x):
        jax.pure_callback(pure, F32, x)

        def body(i, x):
            fx.print("{} {}", i, x)
            x = fx.callback(lambda x: x, F32, jax.pure_callback(pure, F32, x))
            return io_callback(lambda x: x, F32, x, ordered=True)

        return jax.lax.fori_loop(0, 50, body, x)

    assert lines(f, jnp.float32(0)) == [f"{i} {float(i)}" for i in range(50)]
    assert len(calls) == 50


def test_pure_callback_beside_full_rings():
    """Rings that are full while pure callbacks run empty all the same."""
    done = run_forked(
        """
        import jax, numpy as np, effects as fx
        F32 = jax.ShapeDtypeStruct((), "float32")
        def body(i, x):
            for _ in range(20):
                jax.debug.print("{} {}", i, x, ordered=True)
                jax.debug.callback(lambda x: None, x)
            return jax.pure_callback(lambda x: np.float32(jax.numpy.asarray(x) + 1), F32, x)
        print(fx.jit(lambda x: jax.lax.fori_loop(0, 60, body, x))(np.float32(0)))
        """.replace("\n        ", "\n"),
        env={"EFFECTS_RING_BYTES": "4096"},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 60 * 20 + 1


@pytest.fixture
def sharded():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))


def test_sharded(sharded):
    """Over several devices a callback comes once, on the whole value; also in order, which JAX refuses for prints."""

    def f(x):
        show("print {}", x)
        jax.debug.callback(lambda x: print("callback", x), x, ordered=True)
        io_callback(lambda x: print("io", x), None, x, ordered=True)
        return x

    whole = np.arange(8.0)
    assert output_of(fx.jit, f, sharded) == f"print {whole}\ncallback {whole}\nio {whole}\n"


@pytest.mark.parametrize("setting", ["program_order", "jax"])
def test_results_of_sharded_programs(sharded, setting):
    """Over several devices a callback's results are those of one call, with an order or without."""
    result = jax.ShapeDtypeStruct((2,), jnp.int4)
    with fx.config.override(jax_effects=setting):
        y = fx.jit(lambda x: (io_callback(lambda x: np.ones(2, jnp.int4), result, x), fx.print("ours"))[0])(sharded)
    assert y.dtype == jnp.int4 and y.tolist() == [1, 1]


def test_sharding_is_inspected():
    """`inspect_array_sharding` has the effect of a print, and prints nothing."""
    seen = []
    fx.jit(lambda x: (jax.debug.inspect_array_sharding(x, callback=seen.append), show("{}", x)))(X)
    fx.effects_barrier()
    assert len(seen) == 1
