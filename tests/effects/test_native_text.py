"""Native code shows values byte for byte as Python and NumPy do."""

from __future__ import annotations

import contextlib
import io

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import effects as fx
from tests.internals import Operand, Plan, Style, field_of, fill, native, print_options, stored_dtype

FLOATS = [np.float16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4", "int2", "uint2"]
OTHERS = [np.dtype(getattr(ml_dtypes, name)) for name in NARROW]
ALL = [np.dtype(t) for t in [np.bool_, *INTEGERS, *FLOATS, *COMPLEX]] + OTHERS
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
        "sign": st.sampled_from("-+ "),
        "floatmode": st.sampled_from(["fixed", "unique", "maxprec", "maxprec_equal"]),
        "nanstr": st.sampled_from(["nan", "NaN!", "not a number"]),
        "infstr": st.sampled_from(["inf", "I", "infinity"]),
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
    dtype = draw(st.sampled_from(ALL))
    shape = draw(
        st.one_of(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=7), st.tuples(st.integers(1, 90)))
    )
    size = int(np.prod(shape))
    if dtype in OTHERS or dtype.kind == "f":
        array = draw(numbers(np.float32 if dtype in OTHERS else dtype, size))
    elif dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        array = np.empty(size, dtype)
        array.real, array.imag = draw(numbers(part, size)), draw(numbers(part, size))
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


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_numbers_of_16_bits(dtype):
    """Alone in an array, where nothing aligns them, and without dimensions."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    some = [numbers[i : i + 1] for i in range(0, 1 << 16, 3)]
    assert [*map(text_of, some)] == [*map(str, some)]
    some = [numbers[i, ...] for i in range(0, 1 << 16, 13)]
    assert [*map(text_of, some)] == [f"{number}" for number in some]
    assert [text_of(number, style="STRING") for number in some] == [*map(str, some)]


@pytest.mark.parametrize("dtype", [dtype for dtype in OTHERS if dtype.itemsize == 1], ids=str)
def test_all_numbers_of_a_byte(dtype):
    with np.errstate(all="ignore"):
        stored = np.arange(256, dtype=np.uint8).view(stored_dtype(dtype))
        numbers = stored.view(dtype) if stored.dtype == dtype else stored.astype(dtype)
    for i in range(256):
        assert text_of(numbers[i : i + 1]) == str(numbers[i : i + 1])
        assert text_of(numbers[i]) == f"{numbers[i, ...]}"
        assert text_of(numbers[i], style="STRING") == str(numbers[i, ...])


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([*FLOATS, *COMPLEX]), st.complex_numbers(allow_nan=True), st.data())
def test_numbers_without_dimensions(dtype, number, data):
    with np.errstate(all="ignore"):
        if np.dtype(dtype).kind == "c":
            special = data.draw(st.sampled_from([number, complex(0, 1), complex(-0.0, -0.0), complex(np.inf, np.nan)]))
            value = np.array(special).astype(dtype)
        else:
            value = np.array(number.real).astype(dtype)
    assert text_of(value) == f"{value}"
    assert text_of(value, style="STRING") == str(value)


@pytest.mark.parametrize(
    "options",
    [{"legacy": "1.25"}, {"formatter": {"float": str}}, {"edgeitems": 0}, {"nanstr": "\u00d7"}, {"precision": 200}],
    ids=str,
)
def test_other_options_are_pythons(options, lines):
    """Native code does not follow all print options; the text is the same."""
    array = jnp.linspace(0.0, 1.0, 1100)
    f = fx.jit(lambda x: fx.print("{}", x))
    with np.printoptions(**options):
        assert print_options(np.get_printoptions()) is None
        assert lines(lambda: f(array)) == str(np.asarray(array)).split("\n")


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
