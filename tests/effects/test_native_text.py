"""Native code shows values byte for byte as Python and NumPy do."""

from __future__ import annotations

import contextlib
import io

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import effects as fx
from tests.internals import Operand, Plan, Style, field_of, fill, native, print_options, stored_dtype

FLOATS = [np.float32, np.float64]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4", "int2", "uint2"]
OTHERS = [np.dtype(getattr(ml_dtypes, name)) for name in NARROW]
NATIVE = [np.dtype(t) for t in [np.bool_, *INTEGERS, *FLOATS, ml_dtypes.bfloat16]]
OF_PYTHON = [np.dtype(t) for t in [np.float16, np.complex64, np.complex128]] + OTHERS[1:]
ALL = NATIVE + OF_PYTHON
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-4, 9.9999e-5, 1e3, 999.9, 1e6, 999999.9, 1e8, 99999999.0, 5e-9, 0.5]


def text_of(array, spec="", options=None, style="FORMAT"):
    """What native code makes of an array under these print options; None if it leaves that to Python."""
    stored = stored_dtype(array.dtype)
    field = field_of(Operand(array.shape, array.dtype, stored), Style[style], spec)
    followed = print_options(options or np.get_printoptions())
    if field is None or followed is None:
        return None
    bytes_ = array.tobytes() if stored == array.dtype else array.astype(stored).tobytes()
    return native.text(Plan([field]), bytes_, native.number_of_print_options(followed))


def check(array, spec="", **options):
    with np.printoptions(**options), np.errstate(all="ignore"):
        expected = fill(f"{{:{spec}}}" if spec else "{}", [array], {})
        assert text_of(array, spec, np.get_printoptions()) == expected


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "precision": st.integers(0, 20),
        "threshold": st.integers(0, 60),
        "edgeitems": st.integers(1, 5),
        "linewidth": st.integers(1, 120),
        "suppress": st.booleans(),
    },
)


@st.composite
def numbers(draw, dtype, size):
    """Numbers of a floating-point type: any bits, around a magnitude, in few digits, or special ones."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    kind = draw(st.sampled_from(["bits", "normal", "magnitudes", "round", "powers", "special"]))
    scale = 10.0 ** draw(st.integers(-6, 9))
    with np.errstate(all="ignore"):
        made = {
            "bits": lambda: np.frombuffer(random.bytes(size * np.dtype(dtype).itemsize), dtype),
            "normal": lambda: random.normal(size=size) * scale,
            "magnitudes": lambda: 10.0 ** random.uniform(-6, 9, size),
            "round": lambda: np.round(random.normal(size=size) * 10, int(random.integers(0, 9))),
            "powers": lambda: 2.0 ** random.integers(-40, 40, size),
            "special": lambda: random.choice(SPECIAL, size),
        }[kind]()
        return made.astype(dtype)


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(NATIVE))
    shape = draw(
        st.one_of(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=7), st.tuples(st.integers(1, 90)))
    )
    size = int(np.prod(shape))
    if dtype in OTHERS or dtype.kind == "f":
        array = draw(numbers(np.float32 if dtype in OTHERS else dtype, size))
    elif dtype.kind == "b":
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8) > 127
    else:
        least, most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if draw(st.booleans()) else (0, 100)
        array = np.random.default_rng(draw(st.integers(0, 1 << 32))).integers(least, most, size, dtype, endpoint=True)
    with np.errstate(all="ignore"):
        return array.astype(dtype).reshape(shape)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(arrays(), OPTIONS)
def test_arrays(array, options):
    check(array, **options)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(arrays(), OPTIONS)
def test_representations(array, options):
    """As in lists, tuples and dictionaries; of one number without dimensions too."""
    with np.printoptions(**options), np.errstate(all="ignore"):
        for shown in [array, *(array.reshape(-1)[i, ...] for i in range(min(array.size, 1)))]:
            assert text_of(shown, options=np.get_printoptions(), style="REPR") == repr(shown)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(FLOATS).flatmap(lambda dtype: numbers(dtype, 12)),
    st.integers(0, 12),
    st.sampled_from("efg"),
    OPTIONS,
)
def test_specifications_of_elements(array, digits, form, options):
    if form == "g" and digits == 0:
        digits = 1  # which Python formats
    check(array.reshape(3, 4), f".{digits}{form}", **options)


@pytest.mark.slow
def test_numbers_of_16_bits():
    """Alone in an array, where nothing aligns them, and without dimensions."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    some = [numbers[i : i + 1] for i in range(0, 1 << 16, 3)]
    assert [*map(text_of, some)] == [*map(str, some)]
    some = [numbers[i, ...] for i in range(0, 1 << 16, 13)]
    assert [*map(text_of, some)] == [f"{number}" for number in some]
    assert [text_of(number, style="STRING") for number in some] == [*map(str, some)]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(FLOATS), st.floats())
def test_numbers_without_dimensions(dtype, number):
    with np.errstate(all="ignore"):
        value = np.array(number).astype(dtype)
    assert text_of(value) == f"{value}"
    assert text_of(value, style="STRING") == str(value)


@pytest.mark.parametrize(
    "options",
    [
        {"legacy": "1.25"},
        {"formatter": {"float": str}},
        {"edgeitems": 0},
        {"precision": 200},
        {"sign": "+"},
        {"sign": " "},
        {"floatmode": "fixed"},
        {"floatmode": "unique", "precision": 3},
        {"floatmode": "maxprec_equal"},
        {"nanstr": "NaN!"},
        {"nanstr": "\u00d7"},
        {"infstr": "infinity"},
    ],
    ids=str,
)
def test_other_options_are_pythons(options, lines):
    """Native code does not follow all print options; the text is the same."""
    special = np.array([[np.nan, np.inf], [-np.inf, 0.0], [0.125, 1000.0]], np.float32)
    args = [np.linspace(0.0, 1.0, 1100, dtype=np.float32), special, special[2], np.arange(-3, 4, dtype=np.int32)]
    fmt = "{} {} {} {!r} {:.2f}"
    f = fx.jit(lambda *args: fx.print(fmt, *args, args[1]))
    with np.printoptions(**options):
        assert print_options(np.get_printoptions()) is None
        assert lines(lambda: f(*args)) == fill(fmt, [*args, special], {}).split("\n")


def values_of(dtype):
    """Numbers of a type: of one byte all, and of others many, special ones among them."""
    if dtype.itemsize <= 2:
        stored = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(stored_dtype(dtype))
        with np.errstate(all="ignore"):
            values = stored if stored.dtype == dtype else stored.astype(dtype)
        return values[:: 61 if dtype.itemsize == 2 else 1]
    part = np.array([*SPECIAL, 1 / 3, -2.5, 1e-30, 1e20], f"f{dtype.itemsize // 2}")
    values = np.empty((part.size, part.size), dtype)
    values.real, values.imag = part[:, None], part
    return values.reshape(-1)


@pytest.mark.parametrize("dtype", OF_PYTHON, ids=str)
def test_other_types_are_pythons(dtype, lines):
    """Native code does not show all types; the text is the same, of arrays and of each number."""
    values = values_of(dtype)
    some = values[:6].reshape(2, 3)
    fmt = "{} {!s} {!r}"
    with jax.enable_x64(True), np.errstate(all="ignore"):
        arrays = fx.jit(lambda *args: fx.print(fmt, *args, args[0][0]))
        expected = fill(fmt, [some, values, some[0]], {})
        assert lines(lambda: arrays(some, values)) == expected.split("\n")
        each = fx.jit(jax.vmap(lambda x: fx.print(fmt, x, x, x)))
        assert lines(lambda: each(values)) == [fill(fmt, [values[i, ...]] * 3, {}) for i in range(values.size)]


@pytest.mark.parametrize("dtype", [np.float16, np.complex64], ids=["float16", "complex64"])
def test_specifications_of_other_types_are_pythons(dtype, lines):
    values = np.array([[0.5, -2000, 1 / 3]], dtype)
    fmt = "{:.2f} {:.3e} {:.2g}"
    f = fx.jit(lambda x: fx.print(fmt, x, x[0, 0], x[0]))
    assert lines(lambda: f(values)) == [fill(fmt, [values, values[0, 0, ...], values[0]], {})]


def test_options_are_those_of_the_call(lines):
    """Of each call, however late its text is made."""
    f = fx.jit(lambda x: fx.print("{}", x))
    array = jnp.arange(40.0) / 7

    def run():
        for digits in [8, 2, 2, 5, 8]:
            with np.printoptions(precision=digits, linewidth=60):
                f(array)

    def shown(digits):
        return np.array2string(np.asarray(array), precision=digits, max_line_width=60).split("\n")

    assert lines(run) == [line for digits in [8, 2, 2, 5, 8] for line in shown(digits)]


def test_arrays_of_programs_are_shown_natively():
    """With this NumPy native code shows arrays: where it did not, they would be right, and slow."""
    assert text_of(np.arange(3.0)) == "[0. 1. 2.]"


def test_texts_of_several_lines_fail_one_by_one():
    """An output refuses one of several texts, which differ in their number of lines: the others are shown."""

    @fx.jit
    def f(x):
        fx.print("{}", x)
        fx.print("{}", x[:2])
        fx.print("\u00e9 {}", x)
        fx.print("{}", x)

    x = jnp.arange(60.0)
    f.lower(x)
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with contextlib.redirect_stdout(output), pytest.raises(fx.EffectError, match="ascii"):
        f(x)
        fx.effects_barrier()
    output.flush()
    whole = f"{np.asarray(x)}\n"
    assert output.buffer.getvalue().decode() == whole + "[0. 1.]\n"
