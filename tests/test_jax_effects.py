"""JAX's own callbacks inside `fx.jit`: the same bytes as under `jax.jit`, in the order of ours."""

import contextlib
import functools
import gc
import io
import logging
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import effects as fx
from effects._model.site import site_from
from effects.lowering.rules import jax_callbacks
from tests.helpers import run_python

F32 = jax.ShapeDtypeStruct((), jnp.float32)
show = functools.partial(jax.debug.print, ordered=True)


def _output(jit, f, *args):
    """What a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        jit(f)(*args)
        jax.effects_barrier()
    return out.getvalue()


def _say(*args, **kwargs):
    print(*args, kwargs)


def _double(x):
    print("double", x)
    return x * 2


X = jnp.float32(0.1)
ROW = jnp.linspace(0.0, 1.0, 5)


def _loop(body):
    return lambda x: jax.lax.fori_loop(0, 3, lambda i, x: (body(i, x), x + 1)[1], x)


def _grad(f):
    return lambda x: jax.grad(lambda x: jnp.sum(f(x)))(x)


def _custom_jvp(x):
    f = jax.custom_jvp(lambda x: (show("primal {}", x), x * 2)[1])
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 2))
    return jax.grad(f)(x)


def _references(x):
    ref = jax.new_ref(x)

    def body(i, _):
        ref[...] += 1
        show("ref {}", ref[...])

    jax.lax.fori_loop(0, 2, body, None)
    return jax.freeze(ref)


def _while(x):
    def test(x):
        show("test {}", x)
        return x < 3

    return jax.lax.while_loop(test, lambda x: (show("body {}", x), x + 1)[1], x)


def _switch(x):
    branches = [lambda x, k=k: (show("branch {}", k), x + k)[1] for k in range(3)]
    return jax.lax.fori_loop(0, 4, lambda i, x: jax.lax.switch(i, branches, x), x)


def _inner_jit(x):
    inner = jax.jit(lambda x: (show("inner {}", x), x + 1)[1])
    return inner(inner(x))


PROGRAMS = {  # name -> (program, argument)
    "scalar": (lambda x: show("x = {}", x), X),
    "named": (lambda x: show("{b} {a}", a=x, b=x + 1), X),
    "numbered": (lambda x: show("{1} {0} {1}", x, x + 1), X),
    "fixed": (lambda x: show("{:.3f}|{:+.2e}|{:10.4g}|{:%}", x, x, x, x), X),
    "integer": (lambda x: show("{} {:5d} {:x} {:,}", x, x, x, x * 10**6), jnp.int32(42)),
    "row": (lambda x: show("x = {}", x), ROW),
    "matrix": (lambda x: show("{}", x), jnp.arange(12.0).reshape(3, 4)),
    "long row": (lambda x: show("{}", x), jnp.arange(2000)),
    "empty": (lambda x: show("{}", x), jnp.zeros((0, 3))),
    "not finite": (lambda x: show("{} {} {}", x, -x, x - x), jnp.float32(np.inf)),
    "large": (lambda x: show("{!s:.30}", x), jnp.zeros(1 << 19)),
    "tree": (lambda x: show("{} {t}", [x, {"a": x}], t=(x, None)), ROW),
    "conversions": (lambda x: show("{!r} {!s} {!a}", x, x, x), ROW),
    "attribute": (lambda x: show("{0.shape} {0.dtype}", x), ROW),
    "item": (lambda x: show("{0[1]} {0[4]}", x), ROW),
    "computed specification": (lambda x: show("{:{w}.2f}|", x, w=9), X),
    "text": (lambda x: show("{:>6}|{!r} {}", "a", "b", x), X),
    "None": (lambda x: show("{} {}", None, x), X),
    "Python numbers": (lambda x: show("{} {} {} {}", 1, 2.5, True, 1j), X),
    "NumPy": (lambda x: show("{} {}", np.float64(0.1), np.arange(3)), X),
    "braces": (lambda x: show("{{{}}} {{}}", x), X),
    "braces first": (lambda x: show("{{}}"), X),
    "no fields": (lambda x: show("100% of it"), X),
    "empty format": (lambda x: show(""), X),
    "newlines": (lambda x: show("a\n{}\n", x), X),
    "not checked": (lambda x: show("values", x, x + 1, skip_format_check=True), X),
    "two calls": (lambda x: jax.debug.print(ordered=True)("{ordered}", ordered=x), X),
    "key": (lambda x: show("{} {k!r}", x, k=x), jax.random.key(7)),
    "keys": (lambda x: show("{}", x), jax.random.split(jax.random.key(7), 2)),
    "partitioned": (lambda x: show("{}", x, partitioned=True), X),
    "loop": (_loop(lambda i, x: show("{}: {}", i, x)), X),
    "scan": (lambda x: jax.lax.scan(lambda c, y: (c + y, show("{} {}", c, y)), x, jnp.arange(3.0))[0], X),
    "while": (_while, X),
    "cond": (
        lambda x: jax.lax.cond(x > 0, lambda x: show("positive {}", x), lambda x: show("negative {}", x), x),
        X,
    ),
    "switch": (_switch, jnp.int32(0)),
    "vmap": (jax.vmap(lambda x: show("lane {}", x)), ROW),
    "vmap in a loop": (
        lambda x: jax.lax.scan(lambda c, _: (c + 1, jax.vmap(lambda x: show("{}", x))(c)), x, None, 2),
        ROW,
    ),
    "grad": (_grad(lambda x: (show("{}", x), x**2)[1]), X),
    "grad of remat": (_grad(jax.checkpoint(lambda x: (show("{}", x), jnp.sin(x))[1])), X),
    "grad of scan": (_grad(lambda x: jax.lax.scan(lambda c, _: (c * x, show("{}", c)), x, None, 3)[0]), X),
    "custom_jvp": (_custom_jvp, X),
    "references": (_references, X),
    "inner jit": (_inner_jit, X),
    "callback": (lambda x: jax.debug.callback(_say, x, 1, "text", None, k=[x, "s"], ordered=True), ROW),
    "callback under vmap": (jax.vmap(lambda x: jax.debug.callback(_say, x, ordered=True)), ROW),
    "io_callback": (lambda x: io_callback(_say, None, x, {"a": x}, k=x, ordered=True), ROW),
    "io_callback with a result": (lambda x: show("{}", io_callback(_double, F32, x, ordered=True)), X),
    "io_callbacks in a loop": (_loop(lambda i, x: io_callback(_double, F32, x, ordered=True)), X),
    "effects of several kinds": (
        _loop(lambda i, x: (show("{}", i), jax.debug.callback(_say, x, ordered=True), show("{!r}", x))),
        X,
    ),
}
for _dtype in [
    *("bool", "int2", "int4", "int8", "int16", "uint4", "uint8", "uint32", "bfloat16", "float16", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"),
]:
    PROGRAMS[f"{_dtype} scalar"] = (lambda x: show("{} {!r}", x, [x]), jnp.ones((), _dtype))
    PROGRAMS[f"{_dtype} row"] = (lambda x: show("{} {!r}", x, x), jnp.ones(3, _dtype))


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_are_those_of_jax(name):
    """What an ordered program prints is the same to the byte."""
    program, x = PROGRAMS[name]
    expected = _output(jax.jit, program, x)
    assert _output(fx.jit, program, x) == expected
    assert expected


UNORDERED = {
    "print": (lambda x: jax.debug.print("{} {!r}", x, x), ROW),
    "alike": (lambda x: [jax.debug.print("again {}", x) for _ in range(3)], X),
    "vmap": (jax.vmap(lambda x: jax.debug.print("{}", x)), ROW),
    "loop": (_loop(lambda i, x: jax.debug.print("{} {}", i, x)), X),
    "callback": (_loop(lambda i, x: jax.debug.callback(_say, i, x)), X),
    "io_callback": (lambda x: jax.debug.print("{}", io_callback(_double, F32, x)), X),
    "io_callback under vmap": (jax.vmap(lambda x: io_callback(_say, None, x)), ROW),
    "partitioned": (lambda x: jax.debug.print("{}", x, partitioned=True), X),
    "while whose lanes end one by one": (
        jax.vmap(lambda x: jax.lax.while_loop(lambda x: x < 3, lambda x: (jax.debug.print("{}", x), x + 1)[1], x)),
        ROW * 4,
    ),
    "while whose lanes print in the condition": (
        jax.vmap(lambda x: jax.lax.while_loop(lambda x: (jax.debug.print("{}", x), x < 3)[1], lambda x: x + 1, x)),
        ROW * 4,
    ),
    "cond whose lanes differ": (
        jax.vmap(lambda x: jax.lax.cond(x > 0.5, lambda: jax.debug.print("yes {}", x), lambda: None)),
        ROW,
    ),
}


@pytest.mark.parametrize("name", UNORDERED)
def test_unordered_lines_are_those_of_jax(name):
    """What an unordered program prints is the same, in some order."""
    program, x = UNORDERED[name]
    expected = _output(jax.jit, program, x)
    assert sorted(_output(fx.jit, program, x).splitlines()) == sorted(expected.splitlines())


@pytest.mark.parametrize("jit", [jax.jit, fx.jit])
def test_results_are_those_of_jax(jit):
    """Results of loops whose lanes end one by one, and of callbacks that return Python numbers and wider types."""

    def lanes(x):
        return jax.lax.while_loop(lambda x: x < 3, lambda x: (jax.debug.print("{}", x), x + 1)[1], x)

    with contextlib.redirect_stdout(io.StringIO()):
        assert jit(jax.vmap(lanes))(jnp.array([0.5, 2.0, 7.0])).tolist() == [3.5, 3.0, 7.0]
        jax.effects_barrier()
    assert jit(lambda x: io_callback(lambda x: 2.5, F32, x))(X) == 2.5
    assert jit(lambda x: io_callback(lambda x: np.float64(2.5), F32, x, ordered=True))(X) == 2.5
    described = {"a": jax.ShapeDtypeStruct((2,), jnp.int4), "b": [F32]}
    result = jit(lambda x: io_callback(lambda x: {"a": np.ones(2, jnp.int4), "b": [x]}, described, x))(X)
    assert result["a"].dtype == jnp.int4 and result["a"].tolist() == [1, 1] and result["b"] == [X]


def test_print_options_are_those_of_the_trace():
    """NumPy's options count as they were when the program was traced, whatever they are when it runs."""

    def program(x):
        show("{} {} {}", x, x[0], [x])

    x = ROW / 3
    for options in ({"precision": 2, "linewidth": 30}, {"formatter": {"float": "<{:.1f}>".format}}):
        texts = []
        for jit in (jax.jit, fx.jit):
            function = jit(lambda x: program(x))
            with np.printoptions(**options):
                function.lower(x).compile()
                texts.append(_output(lambda _, function=function: function, None, x))
            texts.append(_output(lambda _, function=function: function, None, x))
        assert len(set(texts)) == 1 and str(x) not in texts[0]


SPECS = st.sampled_from(["", ".3f", ".0f", "e", ".10g", "+", ">12", "08.3f", "d", "x", "_", "%", "q", "<5", ".2"])
DTYPES = st.sampled_from(
    ["bool", "int4", "int8", "int32", "uint16", "uint32", "bfloat16", "float16", "float32", "complex64"]
)
VALUES = st.one_of(st.integers(-7, 7), st.floats(allow_nan=True, width=32))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_format_is_as_jax_has_it(data):
    """Formats with any specification of any type give what JAX's give; what JAX refuses is an error here too."""
    dtype, spec = data.draw(DTYPES), data.draw(SPECS)
    values = data.draw(st.lists(VALUES, min_size=1, max_size=3))
    with np.errstate(all="ignore"):
        array = np.nan_to_num(values, nan=1.0, posinf=3.0, neginf=-3.0) if dtype[0] in "iub" else np.asarray(values)
        array = jnp.asarray(
            array.clip(-7, 7) if dtype[0] == "i" else abs(array) % 8 if dtype[0] == "u" else array, dtype
        )
    x = array if data.draw(st.booleans()) else array[0]
    program = functools.partial(_print_twice, "v {:" + spec + "} w {}")
    try:
        expected = ("v {:" + spec + "} w {}\n").format(x, x)
    except (TypeError, ValueError):
        with pytest.raises(fx.EffectError):
            _output(fx.jit, program, x)
    else:
        assert _output(fx.jit, program, x) == expected == _output(jax.jit, program, x)


def _print_twice(fmt, x):
    show(fmt, x, x)


# What functions get


def test_arguments_are_those_of_jax():
    """A function gets arrays of JAX's, alike in type, weak type, device and all."""
    x = (ROW, jnp.ones(2, jnp.int4), jax.random.key(0), jnp.bfloat16(1), 1, jnp.zeros((0, 3)), np.float64(2), True)
    seen = {}

    def note(*args):
        described = [
            (type(a), a.dtype, a.shape, a.weak_type, a.committed, a.sharding, a.aval, np.asarray(a).tolist())
            for a in args
        ]
        seen[current, len(args)] = described  # in JAX the two are in no order
        assert jax.config.jax_default_device == jax.local_devices(backend="cpu")[0]

    def program(*x):
        jax.debug.callback(note, *x, 3, ordered=True)
        io_callback(note, None, *x[:4], x[4] * 1, ordered=True)

    for current, jit in (("jax", jax.jit), ("fx", fx.jit)):  # noqa: B007 - read by `note`
        jit(lambda *x: program(*x))(*x)
        jax.effects_barrier()
    assert seen["jax", 9] == seen["fx", 9] and seen["jax", 5] == seen["fx", 5]


def test_arguments_of_64_bits():
    """With x64, a function gets 64 bits and may return them."""
    seen = []
    with jax.enable_x64(True):
        f = fx.jit(lambda x: io_callback(lambda x: (seen.append(x.dtype), x * 2)[1], jax.typeof(x), x, ordered=True))
        result = f(jnp.int64(1 << 40))
        assert result == 1 << 41 and result.dtype == jnp.int64 and seen == [np.int64]
        assert _output(fx.jit, lambda x: show("{} {!r}", x, x), result) == f"{1 << 41} Array({1 << 41}, dtype=int64)\n"


def test_function_may_use_jax_and_programs_with_effects(lines):
    """What a callback of JAX's calls comes in its place."""
    inner = fx.jit(lambda x: (fx.print("inner {}", x), x + 1)[1])

    def f(x):
        show("before")
        jax.debug.callback(lambda x: print("got", float(jnp.sin(inner(x)))), x, ordered=True)
        show("after")

    assert lines(fx.jit(f), jnp.float32(-1)) == ["before", "inner -1.0", "got 0.0", "after"]


# Order


def test_one_order_with_ours(lines):
    """JAX's ordered callbacks and ours interleave as written; what is unordered disturbs nothing."""

    @fx.jit
    def f(x):
        def body(i, x):
            fx.print("a {}", i)
            show("b {}", i)
            jax.debug.print("unordered")
            fx.callback(lambda i: print("c", i), None, i)
            jax.debug.callback(lambda i: print("d", i), i, ordered=True)
            x = io_callback(lambda x: (print("e", x), x + 1)[1], F32, x, ordered=True)
            show("f {!r}", [i])
            return x

        return jax.lax.fori_loop(0, 3, body, x)

    got = lines(lambda x: (f(x), f(x)), jnp.float32(0))
    expected = [
        [f"a {i}", f"b {i}", f"c {i}", f"d {i}", f"e {float(i)}", f"f [Array({i}, dtype=int32)]"] for i in range(3)
    ]
    assert [line for line in got if line != "unordered"] == 2 * [line for turn in expected for line in turn]
    assert got.count("unordered") == 6


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
    done = run_python(
        """
        import jax, numpy as np, effects as fx
        F32 = jax.ShapeDtypeStruct((), "float32")
        def body(i, x):
            for _ in range(20):
                jax.debug.print("{} {}", i, x, ordered=True)
                jax.debug.callback(lambda x: None, x)
            return jax.pure_callback(lambda x: np.float32(jax.numpy.asarray(x) + 1), F32, x)
        print(fx.jit(lambda x: jax.lax.fori_loop(0, 200, body, x))(np.float32(0)))
        """.replace("\n        ", "\n"),
        env={"EFFECTS_RING_BYTES": "4096"},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 200 * 20 + 1


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
    assert _output(fx.jit, f, sharded) == f"print {whole}\ncallback {whole}\nio {whole}\n"
    assert _output(fx.jit, lambda x: jax.debug.print("{}", x), sharded) == f"{whole}\n"


def test_sharded_and_left_to_jax(sharded):
    """What shows each device's part, and unordered results, JAX does; a barrier waits for them."""
    f = fx.jit(lambda x: (jax.debug.print("{}", x, partitioned=True), x)[1])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        f(sharded)
        fx.effects_barrier(timeout=60)
    assert sorted(out.getvalue().splitlines()) == ["[0. 1.]", "[2. 3.]", "[4. 5.]", "[6. 7.]"]
    result = jax.ShapeDtypeStruct((2,), jnp.int4)
    y = fx.jit(lambda x: (io_callback(lambda x: np.ones(2, jnp.int4), result, x), fx.print("ours"))[0])(sharded)
    assert y.dtype == jnp.int4 and y.tolist() == [1, 1]


def test_shard_map_and_kernels_are_left_to_jax(sharded, lines):
    """Where tokens do not go yet, JAX's callbacks stay JAX's."""
    mesh = sharded.sharding.mesh
    f = jax.shard_map(lambda x: (jax.debug.print("{}", x), x)[1], mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    assert sorted(lines(fx.jit(f), sharded)) == ["[0. 1.]", "[2. 3.]", "[4. 5.]", "[6. 7.]"]

    def kernel(x, out):
        jax.debug.print("kernel {}", x[0])
        out[...] = x[...]

    g = pl.pallas_call(kernel, jax.ShapeDtypeStruct((8,), jnp.float32), interpret=True)
    assert lines(fx.jit(g), jnp.ones(8)) == lines(jax.jit(g), jnp.ones(8)) == ["kernel 1.0"]


def test_sharding_is_inspected():
    """`inspect_array_sharding` has the effect of a print, and prints nothing."""
    seen = []
    fx.jit(lambda x: (jax.debug.inspect_array_sharding(x, callback=seen.append), show("{}", x)))(X)
    fx.effects_barrier()
    assert len(seen) == 1


# Memory


def test_function_is_forgotten_with_its_programs():
    """A function lives as long as the programs that call it; traced again, it is the same."""
    before = len(jax_callbacks._functions)

    def traced_three_times():
        class Function:
            def __call__(self, x):
                return x

        function = Function()
        for n in range(1, 4):
            f = fx.jit(lambda x: io_callback(function, jax.typeof(x), x))
            assert f(jnp.ones(n)).shape == (n,)
            assert len(jax_callbacks._functions) == before + 1
        return weakref.ref(function)

    forgotten = traced_three_times()
    jax.clear_caches()
    for _ in range(3):
        fx.jit(lambda x: show("{}", x))(X)  # the drain forgets when it has something to do
        fx.effects_barrier()
        gc.collect()
    assert forgotten() is None and len(jax_callbacks._functions) <= before


def test_outside_fx_jit_nothing_changes(lines):
    """Under `jax.jit`, and where it calls `fx.jit`, they are JAX's own."""
    f = fx.jit(lambda x: show("{}", x))
    assert "debug_print" in str(jax.make_jaxpr(f)(X))
    assert lines(jax.jit(f), X) == ["0.10000000149011612"]
