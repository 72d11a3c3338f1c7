"""What is counted in the text of the sources: knowledge of the wire, changes of JAX, questions for a kind, sizes.

Every search is by patterns, so it finds what is written as such things usually are. `python -m tests.architecture
--places` lists what was found, for a reader to check.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("effects", "lowering", "dispatch")
LIMIT = 400
"""How many lines a file may have without giving a reason."""


@dataclasses.dataclass(frozen=True, order=True)
class Found:
    """One thing that was found.

    Attributes:
        what: What it is a case of.
        file: The file's path in the tree.
        lines: The lines there.
    """

    what: str
    file: str
    lines: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.what}: {self.file}:{','.join(map(str, self.lines))}"


def files_in(tree: Path, folders: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, Path]]:
    """The sources in these folders, each once, with their paths in the tree."""
    for folder in folders:
        for path in sorted((tree / folder).rglob("*")):
            is_link = any(part.is_symlink() for part in (path, *path.parents) if part != tree and tree in part.parents)
            if path.suffix in (".py", ".h", ".cc") and not is_link and "__pycache__" not in path.parts:
                yield path.relative_to(tree).as_posix(), path


def code_of(path: Path) -> list[str]:
    """The lines of a source without comments and, in Python, without the strings that stand by themselves."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
        return [re.sub(r"//.*", "", line) for line in text.splitlines()]
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[row - 1] = ""
    return lines


# The wire

_TARGETS = "record|call|close|enter|leave|after|plain|plain_call|untracked|untracked_call|custom_call|shards|site"

WIRE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # By fact: patterns of literal knowledge of it in Python, and in C++.
    "token": (
        (
            r"\bTOKEN_LENGTH\s*=\s*\d",
            r"\bSTREAM\b.*\bEPOCH\b.*=",
            r"\bDOMAIN_BITS\s*=\s*\d|_DOMAIN_BITS\s*=\s*\d",
            r"""\btoken\w*(["'])?\]?\[\d\]""",
            r"(<<|>>) ?8\b",
            r"0xFFFFFF(FF)?\b|1 << 23\b",
            r"\[PHASE\] & 1|phase % 2|phase & 1",
            r"stream\w*, epoch, phase, index\b",
            r"\b0, 0, 0[\])]",
            r"""\(4,\), np\.dtype\(np\.uint32\)|token["']\), 4\)""",
        ),
        (
            r"\bstruct Token \{",
            r"\bkDomainBits = \d",
            r"\bk(Plain|Untracked)Thread = ",
            r"phase & 1|phase \+= 2",
            r"\bkEpoch = \d",
            r"\b4 \* sizeof\(uint32_t\)",
            r"(<<|>>) ?8\b",
            r"tuple\[3\]|make_tuple\(\w*\.?stream, \w*\.?epoch",
        ),
    ),
    "record header": (
        (
            r"Struct\(\s*[\"']<|\bHEADER\s*=\s*np\.dtype\(|\bclass Header\(",
            r"\b_?[A-Z]+_(AT|OFFSET)\s*=\s*\d",
            r"= \w*HEADER\.unpack",
        ),
        (r"\bstruct RecordHeader \{", r"sizeof\(RecordHeader\) =="),
    ),
    "traits of a call": (
        (r"_SHIFT\b.*=\s*[\d(]", r"= \(?1 << bit\b"),
        (r"\bconstexpr .*\bk\w+ = 1, k\w+ = 2\b", r"\bk\w+Shift = \d", r"\benum \w*Trait\w* : int64_t"),
    ),
    "scalar codes": ((r"""["']bool["'], ["']int8["']""",), (r"\benum class Scalar\b",)),
    "what a program returns of its effects": (
        (r"\bclass (Issued|ProgramTraits)\b",),
        (r"\benum (IssuedField|ProgramTrait)\b",),
    ),
    "items of a batch": (
        (
            r"\b_?TEXT, _?RECORDS, _?LARGE\b|\bclass (Batch|Item|ItemKind)\(",
            r"^_?(CALLS|REPLY)\s*=\s*\d",
            r"\blen\(part\) == \d",
            r"_, thread, number, _,|kind, thread, number,",
        ),
        (r"^\s*kText,", r"\b(items|parts)\.append\(nb::make_tuple"),
    ),
    "target names": (
        (rf"""@effects_({_TARGETS})\b|(?<!\[)["']effects_({_TARGETS})["'](?!:)""",),
        (rf'"effects_({_TARGETS})"',),
    ),
    "settings of a full ring": (
        (r"""\bWHEN_FULL\s*=|["']drop_newest["'], ["']drop_oldest["']\)\.index""",),
        (r"\benum( class)? WhenFull\b",),
    ),
}


def wire_places(tree: Path) -> list[Found]:
    """The facts of the wire with the files that know them: a place is one fact in one file."""
    found = []
    for name, path in files_in(tree):
        code = code_of(path)
        for fact, (python, native) in WIRE.items():
            if fact == "target names" and any(re.match(r"import logging\b", line) for line in code):
                continue  # records of Python's logging have an attribute with the name of a target
            pattern = re.compile("|".join(f"(?:{each})" for each in (python if path.suffix == ".py" else native)))
            if lines := tuple(at for at, line in enumerate(code, 1) if pattern.search(line)):
                found.append(Found(fact, name, lines))
    return sorted(found)


# Changes of JAX

_MUTATORS = {"add", "add_type", "append", "extend", "insert", "pop", "remove", "setdefault", "update"}


class _ChangesOfJax(ast.NodeVisitor):
    """Finds statements that assign into what comes from JAX: `x.y = ...`, `x.y[...] = ...`, `setattr(x.y, ...)`, and
    methods that change a table. What comes from JAX is imported from it or from the seam, or is a local name for it."""

    def __init__(self, seam: str):
        self._seam = seam
        self._names: set[str] = set()
        self._is_seam = False
        self.lines: list[int] = []

    def visit_Import(self, node: ast.Import) -> None:
        self._names.update((x.asname or x.name).split(".")[0] for x in node.names if x.name.split(".")[0] == "jax")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        self._is_seam |= module.startswith("jax._src")
        for x in node.names:
            if module.split(".")[0] in ("jax", "jaxlib") or self._seam in (*module.split("."), x.name):
                self._names.add(x.asname or x.name)

    def _is_of_jax(self, node: ast.expr) -> bool:
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._names

    def visit_Assign(self, node: ast.Assign) -> None:
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "type":
            value = value.args[0]
        is_of_jax = isinstance(value, (ast.Attribute, ast.Name)) and self._is_of_jax(value)
        for target in node.targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)) and self._is_of_jax(target):
                self.lines.append(node.lineno)
            elif isinstance(target, ast.Name) and is_of_jax:
                self._names.add(target.id)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._changes(node.func, node.args):
            self.lines.append(node.lineno)
        self.generic_visit(node)

    def _changes(self, function: ast.expr, args: list[ast.expr]) -> bool:
        """Whether a call of this changes what is JAX's."""
        if isinstance(function, ast.Name) and function.id == "setattr":
            # In the seam, also that of a name which is data: what the table of patches says.
            return self._is_of_jax(args[0]) or (self._is_seam and not isinstance(args[1], ast.Constant))
        if not isinstance(function, ast.Attribute) or function.attr not in _MUTATORS:
            return False
        table = function.value
        if isinstance(table, ast.Attribute):
            return self._is_of_jax(table) and table.attr != "config"  # which is there to be set
        return isinstance(table, ast.Name) and self._is_seam and table.id in self._names


def changes_of_jax(tree: Path) -> list[Found]:
    """The statements that assign into modules, classes and tables of JAX's, by file."""
    seam = "_jax" if (tree / "effects" / "_jax").is_dir() else "_jax_compat"
    found = []
    for name, path in files_in(tree):
        if path.suffix == ".py":
            visitor = _ChangesOfJax(seam)
            visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
            if visitor.lines:
                found.append(Found("assignment into JAX", name, tuple(sorted(visitor.lines))))
    return found


# Kinds of effects


def kinds(tree: Path) -> dict[str, str]:
    """The classes of contents, which say what the records of a site are, with the files that define them."""
    found = {}
    for name, path in files_in(tree):
        if path.suffix == ".py":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    methods = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
                    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                    is_kind = {"describe", "text"} <= methods or "Content" in bases
                    if is_kind and "Protocol" not in bases and node.name != "Content":
                        found[node.name] = name
    return found


def _names_in(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)} | {
        x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)
    }


def _without_own(tree: ast.Module, names: set[str]) -> set[str]:
    """These names without those that the module gives to classes of its own."""
    return names - {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def questions_for_kind(tree: Path) -> list[Found]:
    """Where the code asks of which kind a content is: `isinstance`, `type(...) is`, `case`; by file, with a line for
    each."""
    known = kinds(tree)
    found = []
    for name, path in files_in(tree):
        if path.suffix != ".py":
            continue
        module = ast.parse(path.read_text(encoding="utf-8"))
        names = {kind for kind in known if known[kind] == name} | _without_own(module, set(known))
        lines = []
        for node in ast.walk(module):
            asked: ast.AST | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = node.args[1]
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Call):
                is_type = isinstance(node.left.func, ast.Name) and node.left.func.id == "type"
                asked = node.comparators[0] if is_type else None
            elif isinstance(node, ast.MatchClass):
                asked = node.cls
            if asked is not None and _names_in(asked) & names:
                lines.append(asked.lineno)  # type: ignore[attr-defined]
        if lines:
            found.append(Found("question for a kind", name, tuple(sorted(lines))))
    return found


def files_by_kind(tree: Path) -> dict[str, list[str]]:
    """By kind of content: the files that name it, besides the one that defines it."""
    known = kinds(tree)
    by_kind: dict[str, list[str]] = {kind: [] for kind in known}
    for name, path in files_in(tree):
        if path.suffix == ".py":
            module = ast.parse(path.read_text(encoding="utf-8"))
            for kind in _names_in(module) & _without_own(module, set(known)):
                by_kind[kind].append(name)
    return by_kind


# Sizes


def long_files(tree: Path, folders: tuple[str, ...]) -> list[Found]:
    """The sources that have more lines than the limit."""
    sizes = ((name, len(path.read_text(encoding="utf-8").splitlines())) for name, path in files_in(tree, folders))
    return [Found("lines", name, (size,)) for name, size in sizes if size > LIMIT]
