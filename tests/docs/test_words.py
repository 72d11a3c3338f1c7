"""Docstrings of the product begin with a noun phrase or a verb, and not with a clause that has no head."""

import ast

from tests.helpers import ROOT

HEADLESS = (
    *("All", "As", "How", "It", "Its", "Of", "So", "That", "These", "They", "Those"),
    *("What", "When", "Where", "Whether", "Which", "Who", "Whose"),
)
EXCEPTIONS: set[str] = set()
"""The first eight words of docstrings that begin so nevertheless. Keep it short."""


def docstrings(source):
    """The line and the first words of each docstring in a source, those below assignments included."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):  # as a lambda's
            continue
        for previous, statement in zip([None, *body], body, strict=False):
            text = statement.value if isinstance(statement, ast.Expr) else None
            is_first = previous is None and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            is_text = isinstance(text, ast.Constant) and isinstance(text.value, str)
            if is_text and (is_first or isinstance(previous, (ast.Assign, ast.AnnAssign))):
                yield statement.lineno, " ".join(text.value.split()[:8])


def is_headless(words):
    return words.split(" ")[0].strip(".,:;") in HEADLESS and words not in EXCEPTIONS


def test_docstrings_begin_with_a_noun_phrase_or_a_verb():
    """A fault names the file, the line and the words."""
    folders = [ROOT / package for package in ("effects", "lowering", "dispatch", "extensions")]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    found = [(path.relative_to(ROOT), *each) for path in paths for each in docstrings(path.read_text())]
    assert len(found) > 1000, "docstrings are found"
    assert is_headless(next(docstrings('X = 1\n"""What X is."""'))[1])
    assert [f"{path}:{line}: {words}" for path, line, words in found if is_headless(words)] == []
