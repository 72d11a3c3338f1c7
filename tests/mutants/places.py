"""Where a line can be deleted or negated: simple statements, and conditions.

A slip is made in the text of the line, so that all others stay where they are. Lines are left out without which the
code cannot run (a variable's only assignment, the last `return`), and so are types, which do not run, and messages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.slip import Slip

_SAYS_ONLY = re.compile(r"(_?log(ger)?|logging)\b|warnings\.")
_LEFT_OUT = (ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.Assert)


def places(file: str, source: str) -> list[tuple[Slip, range]]:
    """All slips that can be made in a file, each of one line or one condition, and the lines on which it stands.

    Of what a module runs when it is imported there are none, as tests seldom import it.
    """
    made = _of_python(source) if file.endswith(".py") else _of_cpp(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    slips = []
    for word, imported, first, column, last, end in made:
        begin, stop = starts[first - 1] + column, starts[last - 1] + end
        text = source[begin:stop]
        new = {"deleted": "pass" if file.endswith(".py") else ";", "negated": f"not ({text})", "negated ": f"!({text})"}
        changed = source[:begin] + new[word] + source[stop:]
        wrong = f"`{' '.join(text.split())}` is {word.strip()}."
        is_jump = text in ("continue", "break")  # which may be a part of what is run for the line before
        at = range(0) if imported else range(first - is_jump, last + 1)
        slips.append((Slip(f"{file}:{first}", file, source, changed, wrong, ()), at))
    return slips


def files_in(root: Path, path: str) -> list[str]:
    """The sources of a folder, or the one that is named. A header cannot be compiled by itself."""
    found = [root / path] if (root / path).is_file() else sorted((root / path).rglob("*"))
    return [str(file.relative_to(root)) for file in found if file.suffix in (".py", ".cc")]


Place = tuple[str, bool, int, int, int, int]
"""What becomes of it, whether it runs when its module is imported, and its first line, column, last line and column."""


def _of_python(source: str) -> list[Place]:
    found: dict[tuple[int, int, int, int], tuple[str, bool]] = {}
    lines = source.splitlines()

    def column(line: int, of_bytes: int) -> int:
        return len(lines[line - 1].encode()[:of_bytes].decode())

    def add(word: str, node: ast.stmt | ast.expr, function: ast.AST) -> None:
        if isinstance(node, ast.Constant):  # `while True`
            return
        assert node.end_lineno is not None and node.end_col_offset is not None
        first, last = node.lineno, node.end_lineno
        at = (first, column(first, node.col_offset), last, column(last, node.end_col_offset))
        found.setdefault(at, (word, function is tree))

    def visit(node: ast.AST, function: ast.AST) -> None:
        if isinstance(node, _LEFT_OUT) or (isinstance(node, ast.If) and _says_what_it_is(node.test)):
            return
        if isinstance(node, ast.stmt) and _can_go(node, function):
            add("deleted", node, function)
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            add("negated", node.test, function)
        elif isinstance(node, (ast.BoolOp, ast.comprehension)):
            for condition in node.values if isinstance(node, ast.BoolOp) else node.ifs:
                add("negated", condition, function)
        elif isinstance(node, ast.Compare):
            add("negated", node, function)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list", "type_params"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child, node if isinstance(node, (ast.FunctionDef, ast.Module)) else function)

    tree = ast.parse(source)
    visit(tree, tree)
    return [(*what, *place) for place, what in found.items()]


def _says_what_it_is(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id in ("TYPE_CHECKING", "__name__") for node in ast.walk(test))


def _can_go(node: ast.stmt, function: ast.AST) -> bool:
    """Whether the function may run without a statement."""
    if any(isinstance(inside, (ast.Yield, ast.YieldFrom, ast.NamedExpr)) for inside in ast.walk(node)):
        return False
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _SAYS_ONLY.match(ast.unparse(node.value))
    if isinstance(node, ast.Return):
        return node not in getattr(function, "body", [])[-1:]
    if isinstance(node, ast.Assign):
        names = [inside.id for target in node.targets for inside in ast.walk(target) if _is_bound(inside)]
        bound = [inside.id for inside in ast.walk(function) if _is_bound(inside)]
        arguments = [inside.arg for inside in ast.walk(function) if isinstance(inside, ast.arg)]
        return not isinstance(function, ast.Module) and all((bound + arguments).count(name) > 1 for name in names)
    return isinstance(node, (ast.AugAssign, ast.Delete, ast.Continue, ast.Break))


def _is_bound(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


# A statement of one line that declares nothing: no blank stands before what it calls or sets.
_STATEMENT = re.compile(r"(?:(?:\+\+|--)?[\w:.>()\[\]*&-]+ ?(?:\(.*\)|[-+|&^]?= .*|\+\+|--)?|return|continue|break);")
_CONDITION = re.compile(r"(?:\} else )?(?:if|while) \((?P<test>.*)")
_NOT_LOOKED_AT = re.compile(r"memory_order|atomic_thread_fence|//|\bassert|__|^#|constexpr|namespace|^using|^default")


def _of_cpp(source: str) -> Iterator[Place]:
    before = "{"
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        continues = before[-1:] not in (*"{};:)", "")
        before = text.partition("//")[0].rstrip()
        if continues or _NOT_LOOKED_AT.search(text) or text.count("(") != text.count(")"):
            continue
        start = len(line) - len(line.lstrip())
        if (condition := _CONDITION.match(text)) is not None:
            test = _in_brackets(condition["test"])
            if test and " = " not in test:
                begin = start + condition.start("test")
                yield "negated ", False, number, begin, number, begin + len(test)
            rest = text[condition.start("test") + len(test) + 1 :] if test else ""
        else:
            rest = text
        at = start + len(text) - len(rest.lstrip())
        if rest and _STATEMENT.fullmatch(rest.strip()):
            yield "deleted", False, number, at, number, start + len(text)


def _in_brackets(text: str) -> str:
    """What stands before the bracket that ends it; nothing if that is on another line."""
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:at]
    return ""
