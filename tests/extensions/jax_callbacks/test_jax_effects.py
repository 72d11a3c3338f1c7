"""JAX's own callbacks inside `fx.jit`: the same bytes and results as under `jax.jit`."""

import contextlib
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import io_callback

import effects as fx
from tests.helpers import output_of

F32 = jax.ShapeDtypeStruct((), jnp.float32)
show = functools.partial(jax.debug.print, ordered=True)


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
    "vmap": (jax.vmap(lambda x: show("lane {}", x)), ROW),
    "vmap of what is the same": (jax.vmap(lambda x: show("same")), ROW),
    "grad": (_grad(lambda x: (show("{}", x), x**2)[1]), X),
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
    PROGRAMS[_dtype] = (lambda x: show("{} {!r} {!r}", x, x, [x[0]]), jnp.ones(3, _dtype))


@functools.cache
def _in_jax(name):
    """What a program prints there."""
    return output_of(jax.jit, *(PROGRAMS | UNORDERED | JAXS_SEMANTICS)[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_are_those_of_jax(name):
    """What an ordered program prints is the same to the byte."""
    program, x = PROGRAMS[name]
    assert output_of(fx.jit, program, x) == _in_jax(name)
    assert _in_jax(name)


JAXS_SEMANTICS = {  # what JAX's transformations make of effects, where ours make something else of them
    "grad of remat": (_grad(jax.checkpoint(lambda x: (show("{}", x), jnp.sin(x))[1])), X),
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


UNORDERED = {
    "unordered print": (lambda x: jax.debug.print("{} {!r}", x, x), ROW),
    "unordered, three times the same": (lambda x: [jax.debug.print("again {}", x) for _ in range(3)], X),
    "unordered vmap": (jax.vmap(lambda x: jax.debug.print("{}", x)), ROW),
    "unordered loop": (_loop(lambda i, x: jax.debug.print("{} {}", i, x)), X),
    "unordered callback": (_loop(lambda i, x: jax.debug.callback(_say, i, x)), X),
    "unordered io_callback": (lambda x: jax.debug.print("{}", io_callback(_double, F32, x)), X),
    "unordered io_callback under vmap": (jax.vmap(lambda x: io_callback(_say, None, x)), ROW),
    "unordered partitioned": (lambda x: jax.debug.print("{}", x, partitioned=True), X),
}


@pytest.mark.parametrize("name", UNORDERED)
def test_unordered_lines_are_those_of_jax(name):
    """What an unordered program prints is the same, in some order."""
    assert sorted(output_of(fx.jit, *UNORDERED[name]).splitlines()) == sorted(_in_jax(name).splitlines())


@pytest.mark.parametrize("name", [*list(PROGRAMS)[::3], *UNORDERED, *JAXS_SEMANTICS])
def test_setting_keeps_semantics_of_jax(name):
    """With the setting "jax", programs show what they show in JAX, and without it some show less or more."""
    program, x = (PROGRAMS | UNORDERED | JAXS_SEMANTICS)[name]
    expected = sorted(_in_jax(name).splitlines())
    with fx.config.override(jax_effects="jax"):
        assert sorted(output_of(fx.jit, lambda x: program(x), x).splitlines()) == expected
    if name in JAXS_SEMANTICS:
        assert sorted(output_of(fx.jit, lambda x: program(x), x).splitlines()) != expected


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
                texts.append(output_of(lambda _, function=function: function, None, x))
            texts.append(output_of(lambda _, function=function: function, None, x))
        assert len(set(texts)) == 1 and str(x) not in texts[0]


SPECS = st.sampled_from(["", ".3f", ".0f", "e", ".10g", "+", ">12", "08.3f", "d", "x", "_", "%", "q", "<5", ".2"])


DTYPES = st.sampled_from(
    ["bool", "int4", "int8", "int32", "uint16", "uint32", "bfloat16", "float16", "float32", "complex64"]
)


# No subnormal numbers: JAX formats in one of XLA's threads, where converting such a number may give zero.
VALUES = st.one_of(st.integers(-7, 7), st.floats(allow_nan=True, width=32, allow_subnormal=False))


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
            output_of(fx.jit, program, x)
    else:
        assert output_of(fx.jit, program, x) == expected == output_of(jax.jit, program, x)


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
        assert (
            output_of(fx.jit, lambda x: show("{} {!r}", x, x), result) == f"{1 << 41} Array({1 << 41}, dtype=int64)\n"
        )
