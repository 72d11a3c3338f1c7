"""What callbacks return: whatever the program needs, where it needs it."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import effects as fx
from tests.helpers import meet_barrier

F32 = jax.ShapeDtypeStruct((), jnp.float32)
INT = jax.ShapeDtypeStruct((), jnp.int32)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("path")]


@pytest.mark.parametrize("native", [True, False], ids=["native", "callback"])
@pytest.mark.parametrize("results", [1, 3])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_results_may_be_all_that_a_loop_carries(jit, ordered, results, native):
    """From constants on, and in their order: XLA has taken such a body for one that changes nothing."""
    calls = []

    def step(*state):
        calls.append(state)
        if len(calls) > 5:
            raise RuntimeError("the loop has no end")
        return tuple(x + 1 for x in state)

    @jit
    def count():
        shapes = (jax.ShapeDtypeStruct((), jnp.int32),) * results
        start = (jnp.int32(0),) * results
        turn = lambda state: tuple(fx.callback(step, shapes, *state, ordered=ordered))  # noqa: E731
        return jax.lax.while_loop(lambda state: state[0] < 5, turn, start)

    with fx.config.override(native=native):
        assert count() == (5,) * results
    assert calls == [(n,) * results for n in range(5)]


def test_lanes_may_come_from_one_array():
    """A function may return the same array at each call. Each lane's results come to its own place."""
    buffer, seen = np.zeros((), np.float32), []

    def fill(x):
        seen.append(float(x))
        buffer[...] = 10 * x
        return buffer

    x = jnp.arange(6.0).reshape(2, 3)
    assert fx.jit(jax.vmap(jax.vmap(lambda x: fx.callback(fill, F32, x))))(x).tolist() == (10 * x).tolist()
    assert seen == [*range(6)]


@pytest.mark.parametrize(
    ("method", "shapes"),
    [("expand_dims", [(3, 2), (1,)]), ("broadcast_all", [(3, 2), (3,)]), ("sequential", [(2,), ()])],
)
def test_vmap_method(method, shapes):
    """The other methods call once, with a leading axis."""
    seen = []

    def f(x, y):
        def fn(x, y):
            seen.append([x.shape, y.shape])
            return x + (y[..., None] if y.ndim else y)

        return fx.callback(fn, jax.ShapeDtypeStruct((2,), jnp.float32), x, y, vmap_method=method)

    out = fx.jit(jax.vmap(f, in_axes=(0, None)))(jnp.ones((3, 2)), jnp.float32(1))
    assert out.tolist() == [[2, 2]] * 3 and seen[0] == shapes


def test_results_have_no_derivative():
    """A derivative through a callback is refused with the remedy; around it, it is taken."""

    def f(x):
        return fx.callback(lambda x: x * 2, F32, x)

    with pytest.raises(fx.NotDifferentiable, match="custom_jvp"):
        jax.grad(fx.jit(f))(jnp.float32(1))
    seen = []

    def g(x):
        fx.callback(lambda x: seen.append(float(x)), None, x)
        return x * f(jax.lax.stop_gradient(x))

    assert fx.jit(jax.grad(g))(jnp.float32(3)) == 6
    meet_barrier()
    assert seen == [3]


def test_what_does_not_depend_on_the_input_may_be_differentiated_around():
    """Arguments whose tangents are zero, such as integers, do not ask for a derivative."""

    def f(x, i):
        return x * fx.callback(lambda i: np.float32(i) + 1, F32, i)

    assert fx.jit(jax.grad(f))(jnp.float32(2), 3) == 4

    def g(x, i):
        return jax.lax.scan(lambda c, i: (f(c, i), None), x, i)[0]

    assert fx.jit(jax.grad(g))(jnp.float32(2), jnp.arange(3)) == 6


def test_custom_jvp_gives_a_callback_a_derivative():
    """The way that the message tells."""

    @jax.custom_jvp
    def sin(x):
        return fx.callback(np.sin, F32, x)

    sin.defjvp(lambda primals, tangents: (sin(*primals), jnp.cos(primals[0]) * tangents[0]))
    assert np.allclose(fx.jit(jax.grad(sin))(jnp.float32(1)), np.cos(1))


def _of(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


TAKEN = [
    (_of(), 0.1), (_of(), 3), (_of(), float("nan")), (_of(), np.float32(0.1)), (_of(), jnp.float32(0.1)),
    (_of(), np.asarray(np.float32(0.1))), (_of(dtype="float16"), 0.1), (_of(dtype="float16"), np.float16(0.1)),
    (_of(dtype="int32"), -7), (_of(dtype="int32"), np.int32(-7)), (_of(dtype="uint8"), 255), (_of(dtype="int8"), -128),
    (_of(dtype="bool"), True), (_of(dtype="bool"), np.bool_(True)), (_of(dtype="complex64"), np.complex64(1j)),
    (_of(2, 3), jnp.arange(6.0).reshape(3, 2).T), (_of(2000), jnp.arange(2000.0)),
    ((_of(), _of(dtype="int32")), (0.1, np.int32(7))), ((), ()), ([_of(2000)], [np.arange(2000, dtype=np.float32)]),
    ({"a": _of(3), "b": (_of(), None)}, {"b": (jnp.float32(2), None), "a": np.ones(3, np.float32)}),
]  # fmt: skip
TAKEN_BY_PYTHON = [
    (_of(dtype="bool"), 1), (_of(dtype="complex64"), 1), (_of(dtype="bfloat16"), 0.1), (_of(dtype="int4"), 7),
    (_of(dtype="bfloat16"), jnp.bfloat16(0.1)), (_of(2, 3), np.arange(6, dtype=np.float32).reshape(3, 2).T),
    (_of(2), np.ma.masked_array(np.ones(2, np.float32), [0, 1])),
    ((_of(2000), _of(2000)), (np.ones(2000, np.float32), np.arange(4000, dtype=np.float32)[::2])),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "returned"), TAKEN + TAKEN_BY_PYTHON)
def test_results_of_a_type_that_fits_are_taken(asked, returned):
    """Numbers of Python's, NumPy's scalars and JAX's arrays are results as NumPy's arrays are, to the bit, also in
    structures."""
    results = fx.jit(lambda: fx.callback(lambda: returned, asked))()
    assert jax.tree.structure(results) == jax.tree.structure(asked)
    for result, one, type_ in zip(*map(jax.tree.leaves, (results, returned, asked)), strict=True):
        assert np.asarray(result).tobytes() == np.asarray(one, type_.dtype).tobytes()
        assert (result.dtype, result.shape) == (type_.dtype, type_.shape)


@pytest.mark.parametrize(("asked", "returned"), TAKEN)
def test_results_of_a_type_that_fits_take_no_python(asked, returned, request):
    """Native code answers with them, unless somebody sees records: the function has the only frame of Python."""
    called, calls = [], iter([*range(4), None])

    def note(frame, event, arg):
        called.append(frame.f_code.co_name)

    def function():
        sys.setprofile(note if next(calls) is not None else None)  # of the drain's thread, which calls it
        return returned

    zeros = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), asked)
    fx.jit(lambda: jax.lax.scan(lambda c, _: (fx.callback(function, asked), None), zeros, length=5))()
    assert called.count("function") >= 3
    assert ("take_results" in called) == (request.node.callspec.params["path"] == "general")


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
@pytest.mark.parametrize("wide", ["int64", "uint64", "float64", "complex128"])
def test_numbers_of_64_bits_are_taken_as_io_callback_takes_them(wide, shape, jit):
    """NumPy's types of 64 bits are converted to 32 bits if JAX has only these, in structures and lanes too."""
    narrow = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(wide))

    def answer(x):
        value = np.full(shape, 1 / 3 if np.dtype(wide).kind in "fc" else 7, wide)
        return value, [value[()]]

    def f(call):
        def of_lane(x):
            return call(answer, (narrow, [narrow]), x)

        return of_lane(jnp.float32(1)), jax.vmap(of_lane)(jnp.arange(2.0))

    expected = jax.jit(lambda: f(io_callback))()
    for ours in (f(fx.callback), jit(lambda: f(fx.callback))()):
        jax.tree.map(np.testing.assert_array_equal, ours, expected)
        assert jax.tree.map(lambda x: x.dtype, ours) == jax.tree.map(lambda x: x.dtype, expected)


WRONG = [
    (F32, np.zeros(2, np.float32), r"float32\[2\]"),
    (F32, np.float64(1e300), "float64.*too large"),
    (F32, np.int64(1), "int64"),
    (INT, np.int64(-(2**31) - 1), "int64.*too large"),
    (jax.ShapeDtypeStruct((2,), "uint32"), np.array([1, 2**32], np.uint64), "uint64.*too large"),
    (jax.ShapeDtypeStruct((), "float16"), np.float64(1), "float64"),
    (F32, np.int32(1), "int32"),
    (INT, 1.5, "1.5"),
    (INT, 2**40, "1099511627776"),
    (INT, True, "True"),
    (F32, True, "True"),
    (F32, jnp.int32(1), "int32"),
    (F32, jnp.zeros(2), r"float32\[2\]"),
    (F32, jax.random.key(0), "key"),
    (jax.ShapeDtypeStruct((), bool), 2, "2"),
    (jax.ShapeDtypeStruct((), "uint8"), 256, "256"),
    (jax.ShapeDtypeStruct((), "float16"), 1e5, "100000"),
    (F32, None, "expects"),
    (F32, [np.float32(1)], "expects"),
    ((F32, F32), np.float32(1), "expects"),
    ((F32, F32), (1.0, (1.0,)), "expects"),
    ((F32, F32), (1.0, np.float64([1])), "float64"),
    ({"a": F32}, {"b": 1.0}, "expects"),
    (F32, "text", "'text'"),
    (F32, 1j, "1j"),
    (F32, 1e300, "1e\\+300"),
    (F32, 10**400, "1000"),
    (jax.ShapeDtypeStruct((), "int4"), 100, "100"),
    (jax.ShapeDtypeStruct((), "uint4"), -1, "-1"),
]


@pytest.mark.parametrize("jit", ["fx.jit"], indirect=True)
@pytest.mark.parametrize(("asked", "returned", "got"), WRONG)
def test_wrong_results_are_an_error_that_names_all(asked, returned, got, jit):
    """The message names the function, what was expected and what came."""
    _check_wrong(asked, returned, got, jit)


@pytest.mark.parametrize(("asked", "returned", "got"), WRONG[:2])
def test_wrong_results_are_an_error_whatever_calls(asked, returned, got, jit):
    _check_wrong(asked, returned, got, jit)


def _check_wrong(asked, returned, got, jit):
    def returns_wrongly(x):
        return returned

    with pytest.raises(Exception, match=got) as info:
        jax.block_until_ready(jit(lambda x: fx.callback(returns_wrongly, asked, x))(jnp.float32(1)))
    assert "returns_wrongly" in str(info.value) and "program expects" in str(info.value)
    if jit is jax.jit:
        with pytest.raises(fx.EffectError, match=got):
            fx.effects_barrier()
    else:
        assert isinstance(info.value, fx.EffectError) and info.value.__cause__ is None
    fx.effects_barrier()
