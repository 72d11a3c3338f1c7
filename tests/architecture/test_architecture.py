"""The figures of `docs/architecture.md` are those of the tree."""

from __future__ import annotations

import copy
import functools
import textwrap

import jax
import pytest

from tests.architecture import document
from tests.architecture.measure import (
    OF_RUNS,
    OF_SOURCES,
    PATHS,
    changes_of_package,
    files_entered,
    functions_called,
    measure_path,
    measure_runs,
    measure_sources,
)
from tests.architecture.sources import WIRE, changes_of_jax, kinds, questions_for_kind, wire_places
from tests.helpers import ROOT

REMEDY = "Run `python -m tests.architecture --write`, and look at the difference."


def _document():
    return document.DOCUMENT.read_text(encoding="utf-8")


@functools.cache
def _measured_runs():
    return measure_runs(ROOT)


@functools.cache
def _counted_sources():
    return measure_sources(ROOT)


def _has_this_jax():
    """Whether the document's figures were measured with this version of JAX."""
    return document.minor(jax.__version__) == document.read_jax(_document())


def _assert_true(rows):
    """What the document says of these rows, where it says something, is what was measured."""
    said = {row: after for row, (_, after) in document.read_table(_document()).items() if after != document.UNKNOWN}
    measured = {row: str(figure) for row, figure in rows.items() if row in said}
    assert {row: said[row] for row in measured} == measured, REMEDY


def test_document_has_every_row():
    """The table has a row for all that is measured, each with its figure from before."""
    table = document.read_table(_document())
    assert list(table) == [*OF_RUNS, *OF_SOURCES]
    assert all(before.isdecimal() for before, _ in table.values())


def test_document_counts_sources():
    """What is counted in the text of the sources is what the document says."""
    _assert_true(_counted_sources().rows)


def test_searches_still_find_something():
    """Each fact of the wire is found in both languages, and so are kinds of contents and changes of JAX.

    A name that has changed must not pass for a place that has gone. If one has gone for good, leave it out of `WIRE`.
    """
    found = {(place.what, place.file.endswith(".py")) for place in wire_places(ROOT)}
    assert found == {(fact, is_python) for fact in WIRE for is_python in (False, True)}
    assert kinds(ROOT) and changes_of_jax(ROOT)


@pytest.mark.timeout(600)
def test_document_follows_paths():
    """Paths, walks and changes of JAX are what the document says, with the version of JAX that it names."""
    if not _has_this_jax():
        pytest.skip("The document's figures were measured with another version of JAX.")
    _assert_true(_measured_runs().rows)


@pytest.mark.timeout(600)
def test_path_is_recorded_with_any_jax():
    """A path can be measured with every version of JAX: it begins in the package that is called, and enters all."""
    measured = _measured_runs() if _has_this_jax() else measure_path(ROOT, "scan_print")
    caller, drain = measured.paths["scan_print"]
    assert caller[0][0].startswith("dispatch/")
    assert {file.split("/")[0] for file in files_entered(caller)} == {"effects", "lowering", "dispatch"}
    assert drain


def test_changes_of_package_are_between_calls():
    """A call of the same package as the call before it is no change."""
    calls = [("a/x.py", "f"), ("a/y.py", "g"), ("b/x.py", "f"), ("a/x.py", "f")]
    assert changes_of_package(calls) == 2
    assert files_entered(calls) == ["a/x.py", "a/y.py", "b/x.py"]
    assert functions_called(calls) == 3


def test_figure_has_a_line_for_each_stay():
    """The figure shows the packages in the order in which the path enters their files first."""
    caller = [("effects/_print.py", "f"), ("effects/_a/b.py", "f"), ("lowering/x.py", "f"), ("effects/_print.py", "g")]
    drain = [("lowering/x.py", "f"), ("dispatch/_drain.py", "f")]
    assert document.make_figure(caller, drain).splitlines() == [
        "4 calls of 4 functions in the caller's thread",
        "",
        "caller  effects   _print, _a/b",
        "        lowering  x",
        "drain   dispatch  _drain",
    ]


def test_document_is_written_and_read_again():
    """Writing a column keeps the other, and what is read again is what was written."""
    cells = {row: (str(at), document.UNKNOWN) for at, row in enumerate((*OF_RUNS, *OF_SOURCES))}
    marks = ["table", *(f"{scenario} {column}" for scenario in PATHS for column in document.COLUMNS)]
    text = "<!-- measured with JAX  -->\n" + "".join(
        f"<!-- {mark}: begin -->\n<!-- {mark}: end -->\n" for mark in marks
    )
    measured = copy.deepcopy(_counted_sources())
    measured.jax = "0.12.1"
    measured.paths = {scenario: ([("effects/a.py", "f")], []) for scenario in PATHS}
    text = text.replace("table: begin -->\n", f"table: begin -->\n{document.make_table(cells)}\n")
    written = document.write(text, "after", measured)
    assert document.write(written, "after", measured) == written
    assert document.read_jax(written) == "0.12"
    table = document.read_table(written)
    assert [before for before, _ in table.values()] == [before for before, _ in cells.values()]
    assert {row: int(after) for row, (_, after) in table.items() if after != document.UNKNOWN} == measured.rows


@pytest.fixture
def tree(tmp_path):
    """`tree(**files)` writes sources into the package `effects` of a tree, by their names without a suffix."""

    def make(**files):
        folder = tmp_path / "effects"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        return tmp_path

    return make


def _lines(found):
    return {(each.what, each.file): each.lines for each in found}


def test_wire_is_literal_knowledge(tree):
    """A number or a position is a place; a name, a comment and a docstring are none."""
    root = tree(
        a='''
        """Reads token[3]."""
        first = token[3]  # not token[2]
        second = token[INDEX]
        ''',
        b="""
        # struct.Struct("<I")
        HEADER = struct.Struct("<IHH")
        """,
    )
    assert _lines(wire_places(root)) == {("token", "effects/a.py"): (3,), ("record header", "effects/b.py"): (3,)}


def test_changes_of_jax_are_assignments_into_it(tree):
    """Assignments into what was imported from JAX are found, also by a local name; others are not."""
    root = tree(
        _jax_compat="""
        from jax._src import loops, effects
        def change(x):
            kept = loops._hoist
            tokens = type(effects.tokens)
            loops._hoist = x
            tokens.block = x
            effects.lowerable.add_type(x)
            x.attribute = 1
            own = {}
            own[x] = 2
        """,
        a="""
        from effects import _jax_compat as compat
        compat.table[1] = 2
        compat.call(1)
        """,
    )
    assert _lines(changes_of_jax(root)) == {
        ("assignment into JAX", "effects/_jax_compat.py"): (6, 7, 8),
        ("assignment into JAX", "effects/a.py"): (3,),
    }


def test_questions_for_kind_ask_of_contents(tree):
    """A class that describes itself and has a text is a kind; a class of that name in another module is not."""
    root = tree(
        _content="""
        class Line:
            def describe(self): ...
            def text(self, args, kwargs): ...
        """,
        a="""
        isinstance(x, (Line, str))
        type(x) is Line
        match x:
            case Line():
                pass
        isinstance(x, str)
        """,
        b="""
        class Line: ...
        isinstance(x, Line)
        """,
    )
    assert _lines(questions_for_kind(root)) == {("question for a kind", "effects/a.py"): (2, 3, 5)}
