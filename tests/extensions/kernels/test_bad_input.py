"""What kernels with effects cannot do: each error has three sentences, names the user's line, and says what to do."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt

import effects as fx
from effects import _jax
from tests.extensions.kernels.test_targets import TARGETS, X, logged, lower

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")

HALF = pl.BlockSpec((256,), lambda i: (i,))
BLOCKS = {"out_shape": X, "grid": (2,), "in_specs": [HALF], "out_specs": HALF}


def _copy(x, o):
    o[...] = x[...]


def _print_first(x, o):
    fx.print("{}", x[0])
    o[...] = x[...]


def _print_all(x, o):
    fx.print("{}", x[...])  # here
    o[...] = x[...]


def _log(f):
    """Traces a program with the logs of its kernels, which JAX simulates."""
    with _jax.with_kernel_options(logs_simulated=True):
        fx.jit(f).lower(X)


def larger_than_the_log():
    _log(lambda x: pl.pallas_call(_print_all, interpret=True, **BLOCKS)(x))


def larger_than_its_log():
    _log(lambda x: fx.pallas_call(_print_all, interpret=True, log_capacity=8, **BLOCKS)(x))


def log_without_bounds():
    _log(
        lambda x: fx.pallas_call(_print_first, interpret=True, log_capacity=1 << 28, **BLOCKS)(x)  # here
    )


def log_of_a_dynamic_grid():
    def f(x):
        size = x[0].astype(int)
        return pl.pallas_call(_print_first, out_shape=X, grid=(size,), interpret=True)(x)  # here

    _log(f)


def results():
    def kernel(x, o):
        o[...] = fx.callback(np.sin, jax.ShapeDtypeStruct((256,), "float32"), x[...])  # here

    _log(lambda x: pl.pallas_call(kernel, interpret=True, **BLOCKS)(x))


def results_when_compiled():
    def kernel(x, o):
        o[...] = fx.callback(np.sin, jax.ShapeDtypeStruct((256,), "float32"), x[...])  # here

    lower(lambda x: pl.pallas_call(kernel, compiler_params=plt.CompilerParams(), **BLOCKS)(x), "cuda", X)


def order_of_a_dynamic_grid():
    fx.jit(
        lambda size: fx.pallas_call(_copy, X, grid=(size,), grid_order="reverse", interpret=True)  # here
    )(2)


def order_of_a_dynamic_grid_spec():
    spec = {"grid_spec": pl.GridSpec(grid=(jnp.int32(2),)), "interpret": True}
    fx.pallas_call(_copy, X, grid_order=0, **spec)  # here


def order_when_compiled():
    fx.pallas_call(_copy, X, grid=(2,), grid_order="reverse")  # here


def order_of_the_interpreter():
    fx.pallas_call(_copy, X, grid=(2,), grid_order=0, interpret=pltpu.InterpretParams())  # here


def unknown_order():
    fx.pallas_call(_copy, X, grid=(2,), grid_order="backwards", interpret=True)  # here


def no_number_of_words():
    fx.pallas_call(_copy, X, grid=(2,), log_capacity="many")  # here


def truth_for_a_capacity():
    fx.pallas_call(_copy, X, grid=(2,), log_capacity=True)  # here


def no_capacity():
    fx.pallas_call(_copy, X, grid=(2,), log_capacity=0)  # here


def unknown_choice():
    fx.pallas_call(_copy, X, grid=(2,), when_full="wait")  # here


def effect_in_an_index_map():
    def index_map(i):
        fx.print("{}", i)  # here
        return (i,)

    specs = {"in_specs": [pl.BlockSpec((256,), index_map)], "out_specs": HALF}
    fx.jit(lambda x: pl.pallas_call(_copy, out_shape=X, grid=(2,), interpret=True, **specs)(x)).lower(X)


def reverse_derivative():
    def kernel(x, o):  # here
        fx.print("{}", x[0])
        o[...] = 2 * x[...]

    double = pl.pallas_call(kernel, interpret=True, **BLOCKS)
    jax.grad(lambda x: fx.jit(double)(x).sum())(jnp.ones(X.shape))


def bounds_when_compiled():
    def kernel(x, o):  # here
        o[...] = x[...]

    with fx.config.override(bounds_checks=True):
        lower(lambda x: pl.pallas_call(kernel, compiler_params=plt.CompilerParams(), **BLOCKS)(x), "cuda", X)


SAID = {
    reverse_derivative: (NotImplementedError, "has effects and is differentiated in reverse.*`jax.custom_vjp`", None),
    bounds_when_compiled: (NotImplementedError, "compiled for a device, and `fx.config.bounds_checks` is set", None),
    larger_than_the_log: (
        ValueError,
        "takes 257 words .* for 256 .*`fx.pallas_call\\(..., log_capacity=257\\)`",
        _print_all,
    ),
    larger_than_its_log: (
        ValueError,
        "takes 257 words .* for 8 .*`fx.pallas_call\\(..., log_capacity=257\\)`",
        _print_all,
    ),
    log_without_bounds: (ValueError, "kernel `_print_first` at .*would take 214748.* for each of 2 programs", None),
    log_of_a_dynamic_grid: (NotImplementedError, "kernel `_print_first` at .*known only when it runs", None),
    results: (NotImplementedError, "callback `sin` at .*is read when it is over.*interpret=True", None),
    results_when_compiled: (NotImplementedError, "callback `sin` at .*is read when it is over.*interpret=True", None),
    order_of_a_dynamic_grid: (ValueError, "grid order 'reverse' .*known only when the program runs", None),
    order_of_a_dynamic_grid_spec: (ValueError, "grid order 0 .*known only when the program runs", None),
    order_when_compiled: (ValueError, "grid order 'reverse' .*compiled for a device.*interpret=True", None),
    order_of_the_interpreter: (ValueError, "grid order 0 .*for other devices runs.*interpret=True", None),
    unknown_order: (ValueError, 'grid order \'backwards\'.*Pass "program", "reverse"', None),
    no_number_of_words: (ValueError, "log capacity 'many'.*at least 1", None),
    truth_for_a_capacity: (ValueError, "log capacity True.*at least 1", None),
    no_capacity: (ValueError, "log capacity 0.*at least 1", None),
    unknown_choice: (ValueError, "when_full='wait'.*\"drop_newest\"", None),
    effect_in_an_index_map: (ValueError, "index map .* effect `print` .*Move the effect into the kernel", None),
}


@pytest.mark.parametrize("case", SAID)
def test_error(case):
    kind, said, kernel = SAID[case]
    with pytest.raises(kind, match=said) as error:
        case()
    _check(str(error.value), kernel or case)


def _check(message, function):
    """Three sentences, and the line of the function that has the mark."""
    lines, first = inspect.getsourcelines(function)
    (line,) = [first + at for at, text in enumerate(lines) if text.rstrip().endswith("# here")]
    assert f"test_bad_input.py:{line}" in message
    assert message.partition(" See docs")[0].count(". ") == 2 and message.endswith(".")


def _record(of):
    def kernel(x, o):
        fx.print("{}", of(x))  # here
        o[...] = x[...]

    return kernel


TYPES = {
    "complex": (lambda x: x[0] + 1j, "a scalar of type complex64", "real numbers.* Record `x.real` and `x.imag`, or"),
    "int64": (lambda x: x[0].astype("int64"), "a scalar of type int64", "32 bits and fewer. Convert it with `astype`"),
    "float64": (lambda x: x[0].astype("float64"), "a scalar of type float64", "32 bits and fewer. Convert it with"),
    "array": (lambda x: x[...], r"an array of \[256\] of type float32", "scalars. Record one element or a sum, or"),
}
TAKEN = {("triton", "int64"), ("triton", "float64"), ("triton", "array")}


@pytest.mark.parametrize(("target", "given"), [(t, g) for t in TARGETS for g in TYPES if (t, g) not in TAKEN])
def test_types_that_a_target_does_not_take(target, given):
    platform, options = TARGETS[target]
    of, shown, remedy = TYPES[given]
    kernel = _record(of)
    with (
        jax.enable_x64(given.endswith("64")),
        pytest.raises(NotImplementedError, match=f"{shown}, .*{remedy}") as error,
    ):
        lower(logged(lambda x: pl.pallas_call(kernel, compiler_params=options, **BLOCKS)(x)), platform, X)
    _check(str(error.value), kernel)
