"""Custom calls that fail, and those that are refused."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.extensions.custom_calls.common import EVERY_WAY, STEP, mesh_of_four

pytestmark = pytest.mark.slow

P = jax.P
F32, I32 = jnp.float32, jnp.int32
ONE = jax.ShapeDtypeStruct((), I32)


@EVERY_WAY
@pytest.mark.parametrize("effect", [None, STEP, STEP.unordered(), "print"], ids=["pure", "device", "unordered", "host"])
def test_error_of_a_handler(way, effect):
    """In the third of ten iterations. The program fails, once; the next call works."""

    def f(x):
        return lax.fori_loop(0, 10, lambda _, x: fx.custom_call("test.fail_at", ONE, x, at=2, effect=effect), x)

    f = way(f)
    said = "The value is 2. It must be another. Change it."
    for _ in range(2):
        assert f(jnp.int32(100)) == 110
        if way is fx.jit:
            with pytest.raises(fx.CustomCallError) as caught:
                f(jnp.int32(0))
                fx.effects_barrier(timeout=120)
            error = caught.value
            assert (error.target, error.code, error.message) == ("test.fail_at", "OUT_OF_RANGE", said)
            assert error.where.startswith(f"{__file__}:")
            assert error.where in str(error) and said in str(error)
        else:  # JAX's own program and its own error, with what we say
            with pytest.raises(Exception, match=rf"OUT_OF_RANGE.*`test.fail_at` at {__file__}:\d+ failed: {said}"):
                jax.block_until_ready(f(jnp.int32(0)))
            jax.clear_caches()
        jax.effects_barrier()


def test_without_jit():
    """As outside of programs."""
    with jax.disable_jit():
        assert fx.jit(lambda x: fx.custom_call("test.fail_at", ONE, x, at=2, effect=STEP) + 1)(jnp.int32(5)) == 7


@pytest.mark.parametrize("effect", [None, STEP])
def test_error_that_is_no_text(effect):
    """Bytes of a handler's that are not UTF-8 are shown as well as can be, and in JAX's error those of ASCII."""
    said = "ä€😀 ".encode() + b"\xff \xe2\x82 \xc0\x80 \xed\xa0\x80 end"
    f = fx.jit(lambda x: fx.custom_call("test.fail_with", ONE, x, text=said, effect=effect))
    for _ in range(2):
        with pytest.raises(fx.CustomCallError, match="`test.fail_with`.*ä€😀 .* end") as caught:
            f(jnp.int32(1))
            fx.effects_barrier(timeout=120)
        assert (caught.value.code, caught.value.message) == ("ABORTED", said.decode(errors="replace"))
    with pytest.raises(Exception, match=r"ABORTED.*\?{9} \? \?\? \?\? \?\?\? end"):
        jax.block_until_ready(jax.jit(lambda: fx.custom_call("test.fail_with", ONE, np.int32(1), text=said))())


def test_error_outside_of_programs():
    with pytest.raises(fx.CustomCallError, match="The value is 2") as caught:
        fx.custom_call("test.fail_at", ONE, jnp.int32(2), at=2)
    assert caught.value.where == f"{__file__}:{inspect.currentframe().f_lineno - 1}"
    assert fx.custom_call("test.fail_at", ONE, jnp.int32(3), at=2) == 4


@pytest.mark.parametrize("sync", [False, True])
def test_error_comes_behind_the_lines_ahead_of_it(sync, capsys):
    """The order also holds at a call that was compiled before, whether the call or the barrier raises; and with `sync`
    all lines that were issued are visible when the call raises."""

    @fx.jit
    def f(x):
        fx.print("ahead {}", x)
        return fx.custom_call("test.fail_at", ONE, x, at=2, effect="print")

    f(jnp.int32(100))
    fx.effects_barrier(timeout=120)
    capsys.readouterr()
    with fx.config.override(sync=sync):
        for _ in range(20):
            with pytest.raises(fx.CustomCallError):
                f(jnp.int32(2))
                fx.effects_barrier(timeout=120)
            assert capsys.readouterr().out == "ahead 2\n"


@pytest.mark.parametrize("effect", [None, STEP])
def test_exception_of_a_handler(effect):
    f = fx.jit(lambda x: fx.custom_call("test.throws", ONE, x, effect=effect))
    with pytest.raises(fx.CustomCallError, match="threw a C\\+\\+ exception: thrown on purpose") as caught:
        f(1)
        fx.effects_barrier(timeout=120)
    assert caught.value.code == "INTERNAL"
    with pytest.raises(fx.CustomCallError, match="no C\\+\\+ exception"):
        f(0)
        fx.effects_barrier(timeout=120)


@pytest.mark.parametrize("effect", [None, STEP])
def test_error_of_an_asynchronous_handler(effect):
    f = fx.jit(lambda x: fx.custom_call("test.later", ONE, x, effect=effect))
    with pytest.raises(fx.CustomCallError) as caught:
        f(-1)
        fx.effects_barrier(timeout=120)
    assert (caught.value.target, caught.value.code, caught.value.message) == (
        "test.later",
        "UNAVAILABLE",
        "nobody answers",
    )
    assert f(1) == 2


def test_error_on_several_devices():
    """One error, and nothing left of it."""
    f = jax.shard_map(
        lambda x: fx.custom_call("test.fail_at", jax.ShapeDtypeStruct((1,), I32), x, at=2, effect=STEP),
        mesh=mesh_of_four(),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    f = fx.jit(f)
    for _ in range(3):
        with pytest.raises(fx.CustomCallError, match="The value is 2"):
            f(jnp.arange(4, dtype=I32))
            fx.effects_barrier(timeout=120)
        assert f(jnp.arange(4, dtype=I32) + 4).tolist() == [5, 6, 7, 8]
    fx.effects_barrier()


def _callbacks(y):
    shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
    return lax.fori_loop(0, 3, lambda i, y: fx.callback(lambda y: y + 1, shape, y), y)


@pytest.mark.parametrize("effect", [STEP, None], ids=["with_an_effect", "without"])
@pytest.mark.parametrize(
    "wait",
    [
        lambda y: fx.async_done(fx.psum_start(y, "x")),
        lambda y: fx.async_done(fx.ppermute_start(y, "x", [(2, 0)])),
        _callbacks,
        lambda y: fx.async_done(fx.psum_start(_callbacks(y), "x")),
    ],
    ids=["sum", "permutation", "callbacks", "sum_after_callbacks"],
)
def test_error_on_a_device_for_which_others_wait(wait, effect):
    """What the others wait for fails, too, and the next program runs."""

    def f(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return wait(fx.custom_call("test.fail_at", shape, x, at=2, effect=effect))

    f = fx.jit(jax.shard_map(f, mesh=mesh_of_four(), in_specs=P("x"), out_specs=P("x"), check_vma=False))
    for first in (0, 4, 1):
        x = jnp.arange(first, first + 4, dtype=I32)
        if first == 4:
            assert f(x).shape == (4,)
            continue
        with pytest.raises(fx.CustomCallError, match="The value is 2"):
            f(x)
            fx.effects_barrier(timeout=60)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: fx.custom_call("test.add", x, x, x, by=np.float32(1)), "arguments"),
        (lambda x: fx.custom_call("test.add", (x, x), x, by=np.float32(1)), "results"),
        (lambda x: fx.custom_call("test.add", x, x.astype(I32), by=np.float32(1)), "dtype|type"),
        (lambda x: fx.custom_call("test.add", jax.ShapeDtypeStruct(x.shape, I32), x, by=np.float32(1)), "dtype|type"),
        (lambda x: fx.custom_call("test.add", x, x, by=1), "by|attribute|type"),
        (lambda x: fx.custom_call("test.add", x, x), "attribute"),
        (lambda x: fx.custom_call("test.add", x, x, by=np.float32(1), more=1), "attribute"),
    ],
)
def test_call_that_does_not_fit_its_handler(wrong, said):
    with pytest.raises(fx.CustomCallError, match=said) as caught:
        fx.jit(wrong)(jnp.arange(3.0))
        fx.effects_barrier(timeout=120)
    assert f"{__file__}:{inspect.getsourcelines(wrong)[1]}" in str(caught.value)


def test_handler_that_publishes_needs_our_call(library):
    jax.ffi.register_ffi_target("test.say by jax", jax.ffi.pycapsule(library.say), platform="cpu")
    with pytest.raises(Exception, match="only `effects.custom_call` gives"):
        jax.block_until_ready(jax.jit(jax.ffi.ffi_call("test.say by jax", ONE))(jnp.int32(1)))


X = jnp.arange(3.0)


WRONG = {
    "target": (lambda: fx.custom_call("test.nothing", X, X), fx.CustomCallError, "`test.nothing`.*has no handler"),
    "name": (lambda: fx.custom_call(1, X, X), TypeError, "non-empty string"),
    "operand": (lambda: fx.custom_call("test.add", X, "text"), TypeError, "operand 'text'"),
    "key": (lambda: fx.custom_call("test.add", X, jax.random.key(0)), TypeError, "`jax.random.key_data`"),
    "result": (lambda: fx.custom_call("test.add", [X, "text"], X), TypeError, "'text' among its results"),
    "effect": (lambda: fx.custom_call("test.add", X, X, effect="nothing"), ValueError, "effect 'nothing'"),
    "other effect": (lambda: fx.custom_call("test.add", X, X, effect=fx.Effect("print")), ValueError, "effect Effect"),
    "vmap_method": (lambda: fx.custom_call("test.add", X, X, vmap_method="all"), ValueError, "vmap_method 'all'"),
    "no vmap_method": (
        lambda: jax.vmap(lambda x: fx.custom_call("test.add", x, x))(X),
        NotImplementedError,
        "no `vmap_method`",
    ),
    "alias": (
        lambda: fx.custom_call("test.add", X, X, input_output_aliases={0: 1}),
        ValueError,
        "0 and 1 the same memory",
    ),
    "list of aliases": (lambda: fx.custom_call("test.add", X, X, input_output_aliases=[0]), TypeError, "a dictionary"),
    "alias of another type": (
        lambda: fx.custom_call("test.add", X, X[1:], input_output_aliases={0: 0}),
        ValueError,
        "same memory",
    ),
    "aliases": (
        lambda: fx.custom_call("test.add", X, X, X, input_output_aliases={0: 0, 1: 0}),
        ValueError,
        "several operands",
    ),
    "attribute": (lambda: fx.custom_call("test.add", X, X, by=object()), TypeError, "as the attribute `by`"),
    "traced attribute": (
        lambda: jax.jit(lambda x: fx.custom_call("test.add", x, x, by=x))(X),
        TypeError,
        "as the attribute `by`",
    ),
    "large attribute": (lambda: fx.custom_call("test.add", X, X, by=2**63), TypeError, "as the attribute `by`"),
    "half an attribute": (lambda: fx.custom_call("test.add", X, X, by=np.ones(2, np.float16)), TypeError, "float32"),
    "attribute name": (
        lambda: fx.custom_call("test.add", X, X, **{"~effects": 1}),
        ValueError,
        "with the name '~effects'",
    ),
    "inner name": (lambda: fx.custom_call("test.add", X, X, by={"a b": 1}), ValueError, "with the name 'a b'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_are_refused_while_tracing(case):
    wrong, error, said = WRONG[case]
    with pytest.raises(error, match=said) as caught:
        wrong()
    if case != "name":
        assert f"{__file__}:{inspect.getsourcelines(wrong)[1]}" in str(caught.value)


def test_wrong_registrations_are_refused(library):
    for wrong, error, said in [
        (lambda: fx.register_custom_call("", library.add), TypeError, "non-empty string"),
        (lambda: fx.register_custom_call("test.x", library.add, platform="abacus"), ValueError, "platform 'abacus'"),
        (lambda: fx.register_custom_call("test.add", library.note), ValueError, "with another handler"),
        (lambda: fx.register_custom_call("test.x", (library, "nothing")), ValueError, "symbol 'nothing'"),
        (lambda: fx.register_custom_call("test.x", ("/nothing.so", "add")), OSError, "nothing.so"),
        (lambda: fx.register_custom_call("test.x", lambda x: x), TypeError, "For a Python function use `fx.callback`"),
        (lambda: fx.register_custom_call("test.x", 7), TypeError, "with 7"),
    ]:
        with pytest.raises(error, match=said):
            wrong()


def test_handler_for_another_platform(library):
    fx.register_custom_call("test.elsewhere", (library, "add"), platform="rocm")
    with pytest.raises(fx.CustomCallError, match=r"`test.elsewhere` at .* no handler for the platform `cpu`.*\(rocm\)"):
        fx.jit(lambda x: fx.custom_call("test.elsewhere", x, x))(X)


@pytest.mark.parametrize("effect", [STEP, STEP.unordered()])
def test_effect_in_a_program_of_jax_for_several_devices_is_refused(effect):
    """JAX keeps the order of effects on one device only."""
    x = jax.device_put(np.arange(4, dtype=np.int32), jax.NamedSharding(mesh_of_four(), P("x")))
    program = jax.jit(lambda x: fx.custom_call("test.later", ONE, x[0], effect=effect))
    said = r"`step of a custom call.*` at .*several devices that `fx.jit` has not made"
    with pytest.raises(NotImplementedError, match=said):
        program.lower(x)
