"""Lines that native code makes of records are those that Python makes of them, byte for byte."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import effects as fx
from tests.effects.test_native_text import ALL, NATIVE, OTHERS, numbers
from tests.extensions.handlers.common import Layer, Point, loop, read_lines
from tests.internals import (
    Event,
    Line,
    NativeRows,
    Operand,
    Records,
    Site,
    Static,
    plan_of_line,
    print_options,
    stored_dtype,
    where_called,
    write_header,
)

pytestmark = pytest.mark.slow

LOG, PRINT = (fx.registered_effects()[name] for name in ("log", "print"))


def site_of(values, effect=LOG, content=None):
    """A site whose records have such values: arrays and what Python knows by itself."""
    leaves, tree = jax.tree.flatten(values)
    described = tuple(
        Operand(leaf.shape, leaf.dtype, stored_dtype(leaf.dtype)) if isinstance(leaf, np.ndarray) else Static(leaf)
        for leaf in leaves
    )
    content = content or Event("step", 20, tuple(values[1]))
    return Site(effect, content, described, tree, where_called())


def record_of(site, values, token, device=0, mask=()):
    """The bytes of a record of a site."""
    payload = b""
    for leaf in [*mask, *jax.tree.leaves(values)]:
        if isinstance(leaf, np.ndarray):
            stored = leaf.astype(stored_dtype(leaf.dtype)).tobytes()
            payload += stored + bytes(-len(stored) % 8)
    return write_header(site.id, token, device, len(payload), 1790000000.1 + token[3] / 3) + payload


def written(records, path):
    handler = fx.JsonLinesHandler(path)
    handler.handle_many(records)
    handler.close()
    return path.read_bytes()


def check(rows, tmp_path, is_native=True):
    """Compares what a handler writes of records: [(site, values)], or with masks behind these."""
    sites = {site.id: site for site, *_ in rows}
    data = b"".join(
        record_of(site, values, (7 << 12, 3, 0, i), i % 3 - 1, *mask) for i, (site, values, *mask) in enumerate(rows)
    )
    records = Records(data, len(rows), sites.__getitem__)
    expected = written([*records], tmp_path / "python")
    handler = fx.JsonLinesHandler(tmp_path / "native")
    found = handler._rows.of(records)
    handler.close()
    assert (found is not None) == is_native
    assert written(records, tmp_path / "native") == expected
    return expected


def random_array(random, dtype, shape):
    size = int(np.prod(shape))
    kind = random.integers(4)
    with np.errstate(all="ignore"):
        if kind == 0 and dtype not in OTHERS:
            array = np.frombuffer(random.bytes(size * dtype.itemsize), dtype if dtype.kind != "b" else np.uint8)
            array = array & 1 if dtype.kind == "b" else array
        elif kind == 1:
            array = random.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-4, 1e16, 1e-5, 0.1, 123456789.0], size)
        else:
            array = random.normal(size=size) * 10.0 ** random.integers(-9, 20)
        if dtype.kind in "iu" or dtype.name.startswith(("int", "uint")):
            array = np.nan_to_num(np.asarray(array, np.float64), posinf=0, neginf=0).clip(-1e18, 1e18).astype(np.int64)
        return array.astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_values(dtype, tmp_path):
    random = np.random.default_rng(abs(hash(str(dtype))) % 1000)
    rows = []
    for shape in [(), (1,), (3,), (2, 3), (2, 0), (0,), (1, 1)]:
        for _ in range(40):
            values = (), {"b": random_array(random, dtype, shape), "a": random_array(random, dtype, ())}
            rows.append((site_of(values), values))
    for name in {site.content.fields for site, _ in rows}:
        own = [row for row in rows if row[0].content.fields == name]
        check(own, tmp_path, is_native=dtype in NATIVE)


ONE, TWO = np.array(0.1, np.float32), np.array([np.nan, 1.0], np.float32)

FIELDS = {
    "numbers": {"n": 3, "f": 0.25, "none": None, "b": True, "big": 1 << 70},
    "not finite": {"x": float("nan"), "y": float("-inf"), "z": ONE},
    "text": {"s": 'a "quoted", text\nof lines\\', "u": "ä€😀", "lone": "\ud800", "x": ONE},
    "lists": {"x": [ONE], "y": [ONE, 2, "a,b"], "z": (), "e": [np.zeros((0,), np.int32)]},
    "dictionaries": {"x": {"b": TWO, "a": {"c": ONE}}, "y": {"key": None, 'a"b': ONE}},
    "one element": {"x": np.array([np.inf], np.float32), "y": np.array([1], np.int8), "z": np.array([[True]])},
    "nothing": {},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_pytrees(fields, tmp_path):
    values = (), fields
    check([(site_of(values), values)] * 3, tmp_path)


@pytest.mark.parametrize("value", [Point(ONE, TWO), Layer(TWO, ONE)], ids=["named tuple", "class"])
def test_classes_are_left_to_python(value, tmp_path):
    values = (), {"x": value}
    check([(site_of(values), values)], tmp_path, is_native=False)


FORMATS = [
    ("x = {}", ()),
    ("{0!s} {0!r} {0:.3f} {0}", ()),
    ('"{}" ä€😀 \\ \t\x01\x7f', ()),
    ("{}", (np.arange(40.0).reshape(4, 10),)),
    ("{!s}", ()),
    ("{:.2e}", (np.float32([1, 2000]),)),
    ("{} {!r} {!a}", ((ONE, [TWO]), {"a": TWO, "b": "'"}, [None, ONE])),
    ("{:{}}", (ONE, ".2f")),
    ("{0[0]} {0[1][0]:.2f}", ((TWO, [ONE]),)),
    ("{}", (Point(ONE, TWO),)),
    ("{!s:>30}|{!r:.4}", (ONE, [ONE])),
    ("{:>12}", (ONE,)),
    ("{.shape}", (TWO,)),
    ("{:.2e}", (np.float16([1, 2000]),)),
]
OF_PYTHON = 5  # so many of the last


@pytest.mark.parametrize("options", [{}, {"precision": 2, "linewidth": 20}, {"nanstr": 'a"b'}], ids=["", "few", "nan"])
@pytest.mark.parametrize("number", range(len(FORMATS)), ids=[fmt for fmt, _ in FORMATS])
def test_texts(number, options, tmp_path):
    """What is written of prints, and what native code shows of them."""
    fmt, args = FORMATS[number]
    values = args or (ONE,), {}
    site = site_of(values, PRINT, Line(fmt))
    with np.printoptions(**options):
        is_native = number < len(FORMATS) - OF_PYTHON and print_options(np.get_printoptions()) is not None
        assert check([(site, values)] * 2, tmp_path, is_native)
        records = Records(record_of(site, values, (7 << 12, 3, 0, 0)), 1, lambda _: site)
        rows = NativeRows(plan_of_line).of(records)
        assert (rows is not None) == is_native
        assert rows is None or rows[0].decode() == f"{records[0].text}\n"


def test_several_sites(tmp_path):
    """Lines come in the order of the records."""
    values = (), {"x": ONE}
    others = (ONE,), {}
    more = (), {"y": TWO, "x": ONE}
    rows = [(site_of(values), values), (site_of(others, PRINT, Line("{}")), others), (site_of(more), more)] * 4
    assert check(rows, tmp_path).count(b"\n") == 12


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([np.float16, np.float32, np.float64]).flatmap(lambda dtype: numbers(dtype, 24)))
def test_numbers(tmp_path, array):
    rows = [(site_of(values), values) for values in [((), {"x": array[i : i + 1].reshape(())}) for i in range(24)]]
    check(rows, tmp_path, is_native=array.dtype in NATIVE)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(
    "differs", [[(True, True)] * 2, [(True, False), (False, True)], [(False, True), (False, False)]]
)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_lanes(dtype, differs, is_masked, tmp_path):
    """Under two `vmap`s, in which values are the same along some axes; with a mask, only some lanes have the effect."""
    random, sizes, inner = np.random.default_rng(3), (2, 3), [(), (2,)]
    rows = []
    for effect, content in [(LOG, None), (PRINT, Line("{} {!r} {lane}", record_fields=("lane",)))]:
        one = [np.zeros(shape, dtype) for shape in inner]
        values = ((), dict(zip("xy", one, strict=True))) if effect is LOG else (tuple(one), {})
        site = site_of(values, effect, content)
        site = site.with_mask() if is_masked else site
        for size, flags in [(3, [x[1] for x in differs]), (2, [x[0] for x in differs])]:
            site = site.with_lanes(size, [True] * is_masked + flags)
        for _ in range(4):
            arrays = [
                random_array(random, np.dtype(dtype), tuple(np.compress(flags, sizes)) + shape)
                for flags, shape in zip(differs, inner, strict=True)
            ]
            values = ((), dict(zip("xy", arrays, strict=True))) if effect is LOG else (tuple(arrays), {})
            rows.append((site, values, (random.integers(2, size=sizes) > 0,) * is_masked))
    expected = check(rows, tmp_path)
    assert is_masked or expected.count(b"\n") == 48


def test_programs(tmp_path):
    """Events and prints of a program, and what observes them beside."""
    handler = fx.JsonLinesHandler(tmp_path / "lines")
    with fx.add_handler(handler), fx.capture(suppress=True) as records:
        loop(lambda i: (fx.log("step", i=i, half=i / 2), fx.print("{} {}", i, [i])), 50)()
    lines = read_lines(tmp_path / "lines")
    assert [line["fields"] for line in lines[::2]] == [{"i": i, "half": i / 2} for i in range(50)]
    assert [line["text"] for line in lines[1::2]] == [record.text for record in records[1::2]]
    assert [tuple(line["token"]) for line in lines] == [record.token for record in records]
    assert {line["thread"] for line in lines} == {record.thread for record in records}


@pytest.mark.parametrize("effects", [None, "log", "print"])
def test_a_handler_of_some_effects(effects, tmp_path, capsys):
    """Prints and events in turns: a handler gets those that it is for, and the output has all prints in order."""
    with fx.add_handler(fx.JsonLinesHandler(tmp_path / "lines"), effects=effects):
        loop(lambda i: (fx.log("step", i=i), fx.print("{}", i)), 300)()
    lines = read_lines(tmp_path / "lines")
    of_logs = [line["fields"]["i"] for line in lines if line["effect"] == "log"]
    of_prints = [line["text"] for line in lines if line["effect"] == "print"]
    assert of_logs == ([] if effects == "print" else list(range(300)))
    assert of_prints == ([] if effects == "log" else [*map(str, range(300))])
    assert capsys.readouterr().out.splitlines() == [*map(str, range(300))]
