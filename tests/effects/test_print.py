"""What `fx.print` shows: all of `str.format`, over every type of array."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import effects as fx

DTYPES = [
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32",
    "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e3m4",
    "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn",
]  # fmt: skip


VALUES = 1, [0, 1, 1], [[1, 0], [0, 1]], np.zeros((0, 3))


@pytest.mark.parametrize("name", DTYPES)
def test_print_shows_every_dtype_as_numpy_does(lines, name):
    """An array of any type and shape is shown as the NumPy array of its values, and numbers keep to specifications."""
    specs = (".1f", ".0f", ".3e", ".2g", "6.2f") if "float" in name else ()

    def program(xs, number):
        for x in xs:
            fx.print("{} {x!r} {x!s}", x, x=x)
        for spec in specs:
            fx.print(f"{{:{spec}}}", number)

    with jax.enable_x64(name in ("int64", "uint64", "float64", "complex128")):
        xs = [jnp.asarray(np.asarray(value)).astype(getattr(jnp, name)) for value in VALUES]
        number = jnp.asarray(0.3, getattr(jnp, name))
        shown = lines(fx.jit(program), xs, number)
    text = "\n".join(f"{x} {x!r} {x!s}" for x in map(np.asarray, xs))
    assert shown == [*text.splitlines(), *(format(np.asarray(number)[()], spec) for spec in specs)]


@pytest.mark.parametrize("number", [3, True, 2.5, 1j])
def test_numbers_are_pythons_own_in_functions_with_rules(lines, number):
    """Outside of programs JAX gives them a type there, which users have not written."""

    @jax.custom_jvp
    def f(number, x):
        fx.print("{} {!r}", number, number)
        fx.callback(lambda number: print(type(number).__name__), None, number)
        return x

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[1]))
    assert lines(f, number, 1.0) == [f"{number} {number!r}", type(number).__name__]


def _bits(dtype):
    return st.integers(0, 2 ** (8 * np.dtype(dtype).itemsize) - 1)


FORMATS = ["{}", "{!s}", "{!r}", "{:.3f}", "{:.0f}", "{:.7e}", "{:.4g}", "{:+.2f}", "{:>12}", "{:012.3f}", "{0:.1%}"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_print_formats_floats_byte_for_byte_as_python(lines, dtype):
    """Whatever the bits of a float, what native code writes is what Python writes."""
    unsigned = {"float16": np.uint16, "float32": np.uint32, "float64": np.uint64}[dtype]
    random = np.random.default_rng(0)
    bits = random.integers(0, np.iinfo(unsigned).max, 3000, unsigned, endpoint=True)
    special = np.array([0.0, -0.0, 1e-4, 9.999e-5, 1e4, 1e15, 1e16, 1e17, 1e22, np.inf, -np.inf, np.nan, 0.1, 16777216])
    with np.errstate(over="ignore"):
        values = np.concatenate([bits.view(dtype), special.astype(dtype)])
    fmt = " ".join(f.replace("{0", "{") for f in FORMATS)

    with jax.enable_x64(dtype == "float64"):
        program = fx.jit(lambda xs: jax.lax.map(lambda x: fx.print(fmt, *[x] * len(FORMATS)), xs))
        shown = lines(program, values)
    assert shown == [fmt.format(*[np.asarray(v)] * len(FORMATS)) for v in values]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.integers(-(2**31), 2**31 - 1).map(np.int32),
            st.floats(width=32).map(np.float32),
            st.booleans().map(np.bool_),
            st.text(alphabet="ab{}%é☃", max_size=3),
            st.integers(-(10**20), 10**20),
            st.none(),
        ),
        max_size=4,
    ),
    st.lists(st.text(alphabet="x %é☃\t", max_size=3), min_size=5, max_size=5),
)
def test_print_is_str_format(lines, values, literals):
    """Any mix of arrays, strings, numbers and None, with any text between, is what `str.format` makes of it."""
    arrays = [jnp.asarray(v) if isinstance(v, np.generic) else v for v in values]
    fmt = "{}".join(literals[: len(values) + 1]).replace("\t", "\t")

    def program(*dynamic):
        given = iter(dynamic)
        fx.print(fmt, *(next(given) if isinstance(v, jax.Array) else v for v in arrays))

    shown = lines(fx.jit(program), *(v for v in arrays if isinstance(v, jax.Array)))
    assert "\n".join(shown) == fmt.format(*(np.asarray(v) if isinstance(v, np.generic) else v for v in values))


Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    left: jax.Array
    right: jax.Array


def test_print_takes_pytrees_and_nested_fields(lines):
    """Fields reach into pytrees by index, key and attribute; a whole pytree is shown with NumPy leaves."""

    @fx.jit
    def program(x):
        tree = {"a": [x, x + 1], "b": Point(x, None), "c": Pair(x * 2, x * 3)}
        fx.print("{t[a][1]} {t[b].x:>3} {0.left} {0} {t[a]} {t[b]}", tree["c"], t=tree)

    leaf = np.asarray
    x = leaf(np.int32(1))
    tree = {"a": [x, leaf(np.int32(2))], "b": Point(x, None), "c": Pair(leaf(np.int32(2)), leaf(np.int32(3)))}
    expected = "{t[a][1]} {t[b].x:>3} {0.left} {0} {t[a]} {t[b]}".format(tree["c"], t=tree)
    assert lines(program, 1) == [expected]


def test_print_computed_specification(lines):
    """A field's specification may itself be computed, from static values and from arrays."""
    program = fx.jit(lambda x, width: fx.print("{:{}.{p}f}|", x, width, p=2))
    assert lines(program, 1.5, 8) == ["    1.50|"]


def test_print_braces_and_newlines(lines):
    """Escaped braces and line ends are text."""
    assert lines(fx.jit(lambda x: fx.print("{{{}}}\n{{}}", x)), 1) == ["{1}", "{}"]


def test_print_shows_a_key_as_its_data(lines):
    """A PRNG key is shown as its key data, the same inside and outside of a program."""
    key = jax.random.key(3)
    assert lines(fx.jit(lambda k: fx.print("{}", k)), key) == ["[0 3]"]
    assert lines(lambda: fx.print("{}", key)) == ["[0 3]"]


def test_print_options_of_the_caller_are_in_force(lines):
    """NumPy's print options are those in force when the program was called, in a block or set for good."""
    program = fx.jit(lambda x: fx.print("{}", x))
    x = jnp.array([1 / 3, 2 / 3])

    def call():
        with np.printoptions(precision=2):
            program(x)
        program(x)

    assert lines(call) == ["[0.33 0.67]", "[0.33333334 0.6666667 ]"]


def test_print_large_array_takes_another_way(lines):
    """An array that is larger than the ring arrives whole, in its place."""
    n = fx.config.ring_bytes

    @fx.jit
    def program(x):
        fx.print("before")
        fx.print("{0[0]} {0[1048575]} {1}", x, x.sum())
        fx.print("after")

    assert lines(program, jnp.ones(n, jnp.int32)) == ["before", f"1 1 {n}", "after"]


def test_print_static_numbers_keep_their_precision(lines):
    """A NumPy scalar is a number, not an operand: its digits are its own."""
    assert lines(fx.jit(lambda: fx.print("{} {}", np.float64(0.1) + 0.2, 2**70))) == [f"{0.1 + 0.2} {2**70}"]


@pytest.mark.parametrize("x", [3.0, np.float64(3), np.float32(3), jnp.float32(3)], ids=lambda x: type(x).__name__)
def test_print_of_what_is_differentiated_eagerly(lines, x):
    """Outside of programs JAX may bring the number as it was given, of a type that is not the one that is shown."""

    def f(x):
        fx.print("{}", x)
        return 2 * x

    assert lines(jax.grad(f), x) == ["3.0"]
    assert lines(lambda x: jax.jvp(f, (x,), (jnp.float32(1),)), x) == ["3.0"]


def test_print_eagerly_in_order_with_programs(lines):
    """Outside of programs an effect waits behind programs that still run."""
    program = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print("in {}", i), None))

    def call():
        fx.print("first {}", jnp.arange(2))
        program(3)
        fx.print("last")

    assert lines(call) == ["first [0 1]", "in 0", "in 1", "in 2", "last"]


def test_print_under_disable_jit(lines):
    """Without jit the same lines come in the same order."""
    program = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print("in {}", i), None))

    def call():
        with jax.disable_jit():
            program(2)
            fx.print("after")

    assert lines(call) == ["in 0", "in 1", "after"]


def test_print_under_plain_jit_in_order_with_programs(lines):
    """Under `jax.jit` JAX keeps the order, and the lines stand among those of `fx.jit` as the calls do."""

    def body(name):
        return lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print(name + " {}", i), None)

    plain, ours = jax.jit(body("plain")), fx.jit(body("ours"))

    def call():
        for _ in range(20):
            plain(2)
            ours(2)
            fx.print("eager")

    assert lines(call) == ["plain 0", "plain 1", "ours 0", "ours 1", "eager"] * 20


def test_unordered_print_under_plain_jit(lines):
    """An unordered print under `jax.jit` comes out too."""
    program = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print("{}", i, ordered=False), None))

    def call():
        jax.block_until_ready(program(5))
        jax.effects_barrier()

    assert sorted(lines(call)) == list("01234")


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_print_on_platforms_without_native_handler(lines, jit):
    """Where there is no native handler, JAX's Python callback publishes the same records."""

    def program(n):
        jax.lax.fori_loop(0, n, lambda i, _: fx.print("{} {x}", i, x=jnp.arange(2) + i), None)
        fx.print("done", ordered=True)
        fx.print("some time", ordered=False)

    with fx.config.override(native=False):
        shown = lines(lambda: jax.block_until_ready(jit(program)(3)))
    assert [line for line in shown if line != "some time"] == ["0 [0 1]", "1 [1 2]", "2 [2 3]", "done"]
    assert shown.count("some time") == 1


Other = collections.namedtuple("Other", "x y")


def test_print_tells_apart_calls_that_differ_in_their_tree_only(lines):
    """One line of the source may print different trees of the same arrays; each is shown as what it is."""
    trees = [
        lambda x: {1: x}, lambda x: {"1": x}, lambda x: (x, x), lambda x: Point(x, x), lambda x: Other(x, x),
        lambda x: [x, x], lambda x: collections.OrderedDict(a=x, b=x), lambda x: collections.OrderedDict(b=x, a=x),
    ]  # fmt: skip

    def program(x):
        for tree in trees:
            fx.print("{}", tree(x))

    x = np.asarray(np.int32(1))
    assert lines(fx.jit(program), 1) == [str(tree(x)) for tree in trees]


@pytest.mark.parametrize("fmt", ["{.shape} {}", "{} {.shape}", "{[0]} {}", "{0.shape} {1:{2}}", "{:{}} {.ndim}"])
def test_print_numbers_fields_as_str_format_does(lines, fmt):
    """Fields without a number count on, also those that reach into their argument."""
    x = jnp.arange(3)
    args = (x, 1, 4) if "2" in fmt else (1, 4, x) if "ndim" in fmt else (x, x)
    arrays = [a for a in args if isinstance(a, jax.Array)]

    def program(*arrays):
        given = iter(arrays)
        fx.print(fmt, *(next(given) if isinstance(a, jax.Array) else a for a in args))

    assert lines(fx.jit(program), *arrays) == [fmt.format(*(np.asarray(a) if a is x else a for a in args))]


def test_print_of_a_lone_surrogate_is_pythons_affair(lines):
    """A format that cannot be encoded is no error of ours."""
    assert lines(fx.jit(lambda x: fx.print("\udc80 {}", x)), 1) == ["\udc80 1"]


def test_eager_prints_leave_nothing_behind():
    """An eager print whose text is new at every call is forgotten once it is out."""
    from tests.internals import known_sites

    before = len(known_sites.all())
    with contextlib.redirect_stdout(io.StringIO()):
        for i in range(50):
            fx.print(f"step {i}")
        fx.effects_barrier(timeout=60)
    assert len(known_sites.all()) <= before  # those of earlier programs may go meanwhile


def test_reference_passes_its_value(lines):
    """A mutable reference is printed as what it holds at that point."""

    def f():
        ref = jax.new_ref(1.0)
        fx.print("{}", ref)
        ref[...] = 2.0
        fx.print("{}", ref)

    assert lines(fx.jit(f)) == ["1.0", "2.0"]
