"""The wire is laid out alike in Python and in native code, and a module of another version is refused by name."""

from __future__ import annotations

import ast
import copy

import numpy as np
import pytest

import effects as fx
from effects import _native as native
from effects._model import wire as wire
from tests.helpers import ROOT, run_python


def test_wire_is_the_same_in_both_languages():
    """What the native module was compiled with is what Python has."""
    assert wire.first_difference(native.wire()) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda w: w["numbers"].update(domain_bits=7), ("numbers.domain_bits", 7, 8)),
        (lambda w: w["header"].update(reply=(40, 4)), ("header.reply", (40, 4), (36, 4))),
        (lambda w: w["record_traits"].pop("closes"), ("record_traits.closes", "missing", 2)),
        (lambda w: w["flags"].update(fast=16), ("flags.fast", 16, "missing")),
        (lambda w: w["scalars"].append("float16"), ("scalars", [*wire.SCALARS, "float16"], [*wire.SCALARS])),
        (lambda w: w.pop("token"), ("token", "missing", list(wire.TOKEN))),
    ],
)
def test_first_difference_is_named(change, expected):
    """What differs is named, with what it is there and here."""
    other = copy.deepcopy(native.wire())
    change(other)
    assert wire.first_difference(other) == expected


_LOADING = """
import importlib.metadata, importlib.util, pathlib, sys
found = [file for file in importlib.metadata.files("token-effects") if file.name.startswith("_native.")]
spec = importlib.util.spec_from_file_location("effects._native", found[0].locate())
native = sys.modules["effects._native"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
wire = native.wire()
{change}
import effects
"""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("wire['numbers']['interface'] += 1; native.wire = lambda: wire", "numbers.interface"),
        ("wire['item'].reverse(); native.wire = lambda: wire", "item"),
        ("del native.wire", "token"),  # a module from before there was any such thing
    ],
)
def test_native_module_of_another_version_is_refused(change, what):
    """Importing the package with such a module says which part of the wire differs, and what to do."""
    done = run_python(_LOADING.format(change=change))
    assert done.returncode == 1 and "ImportError" in done.stderr
    assert f"of another version than the Python code: `{what}` is " in done.stderr
    assert "Install the package anew" in done.stderr


def test_header_is_read_alike():
    """`struct` and NumPy read the same header."""
    header = np.zeros((), wire.HEADER)
    for number, name in enumerate(wire.HEADER.names or (), 1):
        header[name] = number if name != "token" else [11, 12, 13, 14]
    read = wire.read_header(b"front" + header.tobytes(), 5)
    assert read.token == (11, 12, 13, 14)
    assert all(getattr(read, name) == header[name] for name in wire.HEADER.names or () if name != "token")
    assert wire.header_offset("time") + 8 == wire.HEADER.itemsize


def test_record_says_its_token_in_the_layout_of_the_wire():
    """The numbers of a record's token are where the wire has them."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda x: (fx.print("{}", x), fx.print("{}", x), fx.callback(lambda x: None, None, x)))(1)
    tokens = [record.token for record in records]
    assert [token[wire.INDEX] for token in tokens][:2] == [0, 1]
    assert {wire.thread_of(token[wire.STREAM]) for token in tokens} == {records[0].thread}
    assert not any(wire.in_region(token[wire.PHASE]) for token in tokens)


def test_stub_has_what_the_native_module_has():
    """Type checkers see each function and class of the native module, with its methods, and nothing else."""
    stub = ast.parse((ROOT / "effects/_native.pyi").read_text())
    known = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert set(known) == {name for name in dir(native) if name[0] != "_"}
    for name, node in known.items():
        if isinstance(node, ast.ClassDef):
            members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            own = {member for member in vars(getattr(native, name)) if member[0] != "_"}
            assert {member for member in members if member[0] != "_"} == own, name
