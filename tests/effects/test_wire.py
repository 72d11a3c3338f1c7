"""Python reads the wire from the native module, and refuses a module of another version."""

from __future__ import annotations

import ast

import numpy as np
import pytest

import effects as fx
from effects import _native as native
from effects._model import wire as wire
from effects._model.native import INTERFACE
from tests.helpers import ROOT, run_python


def _names(enumeration):
    return {member.name.lower(): member.value for member in enumeration}


def test_names_are_those_of_native_code():
    """What native code hands out in an order has the same names, in this order, in Python."""
    there = native.wire()
    assert _names(wire.RecordTrait) == there["record_traits"]
    assert _names(wire.CustomCallTrait) == there["custom_call_traits"]
    assert _names(wire.ItemKind) == there["item_kinds"]
    assert [there["replica_token"][i] for i in range(wire.TOKEN_LENGTH)] == ["stream", "epoch", "phase", "index"]
    assert (wire.STREAM, wire.EPOCH, wire.PHASE, wire.INDEX) == (0, 1, 2, 3)
    for name, fields in {
        "program_traits": wire.ProgramTraits,
        "batch": wire.Batch,
        "item": wire.Item,
        "callback_record": wire.CallbackRecord,
        "records_between": wire.RecordsBetween,
    }.items():
        assert list(fields._fields) == there[name], name
    targets = [target for name, some in there.items() if name.endswith("_targets") for target in some]
    assert len(targets) == 14 and len({*targets}) == 14
    for target in targets:
        assert getattr(wire, f"{target.removeprefix('effects_').upper()}_TARGET") == target
    other = {"MAY_DIVERGE": "apart", "HAS_GROUPS": "parts", "OURS": "~effects"}
    assert all(attribute == other.get(attribute.name, attribute.name.lower()) for attribute in wire.Attribute)


def test_fields_have_no_gaps():
    """A record's header and a text's runs are as long in Python as in native code."""
    sizes = native.wire()["numbers"]
    assert wire.HEADER.itemsize == sizes["header_size"] and wire.TEXT_RUN.itemsize == sizes["text_run_size"]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("wire['numbers']['interface'] -= 1; native.wire = lambda: wire", str(INTERFACE - 1)),
        ("del native.wire", "missing"),  # a module from before there was any such thing
    ],
)
def test_native_module_of_another_version_is_refused(change, found):
    """Importing the package with such a module says which version it is of, and what to do."""
    done = run_python(_LOADING.format(change=change))
    assert done.returncode == 1 and "ImportError" in done.stderr
    assert f"of another version than the Python code: its interface is {found}, and {INTERFACE} is" in done.stderr
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
