"""Each extension can be taken out: what is left has all other public names, runs the command `effects` and the README's
first program, prints, calls back, and says what failed. Without all of them the core's tests pass."""

from __future__ import annotations

import ast
import collections
import importlib
import re
import shutil
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import effects as fx
from tests.docs.pages import blocks_of
from tests.helpers import NO_PLUGINS, ROOT, run_python

EXTENSIONS = sorted(path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py"))


def _read_needs(name: str) -> set[str]:
    """The extensions that an extension needs: its README names them in a sentence that begins with these words."""
    text = " ".join((ROOT / "extensions" / name / "README.md").read_text().split())
    sentences = re.findall(r"The extension imports (.*?)\.(?:\s|$)", text)
    return {*re.findall(r"extensions/(\w+)", " ".join(sentences))}


NEEDS = {name: _read_needs(name) for name in EXTENSIONS}
"""By extension, those without which it cannot be."""


def _taken_out_with(name: str) -> list[str]:
    """An extension, and those that need it or need one of these."""
    gone = {name}
    while more := {other for other in EXTENSIONS if NEEDS[other] & gone} - gone:
        gone |= more
    return sorted(gone)


TREES = [
    (name, path, ast.parse(path.read_text()))
    for name in EXTENSIONS
    for path in sorted((ROOT / "extensions" / name).rglob("*.py"))
]
"""The files of the extensions: the extension, the path, and the tree of the syntax."""

CLASSES = {node.name: name for name, _, tree in TREES for node in tree.body if isinstance(node, ast.ClassDef)}
"""By class, the extension that defines it."""

OF_ONE_EXTENSION = {"handlers": "handlers", "runs": "runs"}
"""The modules of the face that are those of one extension, as a whole."""

FACES = ["asynchronous", "extend", "kernels", "native", "testing", *OF_ONE_EXTENSION]

SHOWN_AS = {"effects", *(f"effects.{face}" for face in FACES)}
"""The modules that exceptions name as theirs, wherever they are defined."""


def _extension_of(thing: object) -> str | None:
    """The extension that defines a public thing; None if the core does."""
    if isinstance(thing, types.ModuleType):
        return OF_ONE_EXTENSION.get(thing.__name__.removeprefix("effects."))
    module = getattr(thing, "__module__", "")
    if module in SHOWN_AS:
        return CLASSES.get(getattr(thing, "__name__", ""))
    return module.split(".")[2] if module.startswith("effects.extensions.") else None


def _public_names() -> Iterator[tuple[str, str, str | None]]:
    """The public names: the module that users write, the name, and the extension that it belongs to."""
    for name in sorted({*fx.__all__, *fx._LATER}):
        yield "effects", name, _extension_of(getattr(fx, name))
    for face in FACES:
        module = importlib.import_module(f"effects.{face}")
        things = {name: thing for name in vars(module) if name[0] not in "_@" and (thing := getattr(module, name))}
        for name in getattr(module, "__all__", things):
            yield module.__name__, name, OF_ONE_EXTENSION.get(face, _extension_of(getattr(module, name)))


OF_TREE = """
import os, sys
import effects as fx

assert os.path.realpath(fx.__file__).startswith(os.path.realpath({tree!r})), fx.__file__
"""

CORE = """
import jax, jax.numpy as jnp, numpy as np

def double(x):
    return np.int32(2 * x)

@fx.jit
def lanes(x):
    fx.log("lane", value=x)
    return x

fx.print("first")
assert int(jax.jit(lambda x: (fx.print("plain {}", x), x)[1])(3)) == 3
program = fx.jit(lambda: jax.lax.scan(step, jnp.int32(1), jnp.arange(4))[0])

def step(total, i):
    fx.print("step {}", i)
    return jax.lax.cond(i % 2 == 0, lambda: fx.callback(double, jnp.int32(0), total), lambda: total + 1), None

assert int(program()) == 7
with fx.capture(suppress=True) as records:
    jax.vmap(lanes)(jnp.arange(3))
assert [int(record.fields["value"]) for record in records] == [0, 1, 2]
try:
    fx.jit(lambda x: fx.check(x < 2, "{} is too large", x))(2)
    fx.effects_barrier()
except fx.CheckError as error:
    print(str(error).split(" (")[0])
jax.grad(lambda x: fx.print_grad("gradient {}", x * x) * 3)(2.0)
fx.effects_barrier()
"""

PRINTED = ["first", "plain 3", "step 0", "step 1", "step 2", "step 3", "2 is too large", "gradient 3.0"]

CORE_TESTS = [
    *(f"tests/effects/test_{name}.py" for name in ("registry", "formats", "small_things", "after_error")),
    *("tests/effects/log/test_capture.py", "tests/effects/callback/test_callback.py"),
    "tests/dispatch/test_order_inside.py",
    *(f"tests/dispatch/devices/test_{name}.py" for name in ("results", "unordered")),
    *(f"tests/lowering/test_{name}.py" for name in ("differentiation", "keeping", "masks")),
    "tests/lowering/regions/test_parts.py",
]
"""Some of each part of the core, which take some seconds together."""

OF_EXTENSIONS = ("async", "custom_call")
"""What the names of those tests in there say that need an extension."""


def _copy(folder: Path, without: list[str]) -> None:
    """Copies the product without these extensions. What is not there in native code is found where it is installed."""
    for package in ("effects", "lowering", "dispatch", "extensions"):
        leave_out = shutil.ignore_patterns("__pycache__", "native", "*.so")
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=leave_out)
    for name in without:
        shutil.rmtree(folder / "extensions" / name)


COMMANDS = """
import contextlib, io, os
from effects import cli

for words in [], ["demo"], ["doctor"]:  # the demo first: it asks JAX for two devices
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        status = cli.main(words)
    assert status == 0, (words, shown.getvalue())
    if not words:
        assert ("Writes a run file as a timeline" in shown.getvalue()) == ("runs" not in GONE)
"""

NAMES = """
import importlib

def import_as_attribute(module, name):
    getattr(importlib.import_module(module), name)

def import_from(module, name):
    exec(f"from {module} import {name}", {})

for module, name, extension in NAMES:
    for ask, errors in (import_as_attribute, (AttributeError, ImportError)), (import_from, ImportError):
        try:
            ask(module, name)
        except errors as error:
            assert extension in GONE, (module, name, error)
            assert f"`{extension}`" in str(error) and "No module named" not in str(error), (module, name, error)
        else:
            assert extension not in GONE, f"{module}.{name} can be had, and belongs to {extension}"
"""

KERNEL = """
import jax
from jax.experimental import pallas as pl

if "kernels" not in GONE:
    def kernel(o_ref):
        fx.print("in a kernel")
        o_ref[0] = 1

    fx.jit(lambda: pl.pallas_call(kernel, jax.ShapeDtypeStruct((1,), "int32"), interpret=True)())()
    fx.effects_barrier()
"""


def test_needs_are_read():
    """READMEs say which extensions an extension needs, in the words that this test looks for."""
    assert NEEDS["runs"] == {"sites"} and not NEEDS["watching"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTENSIONS)
def test_core_works_without(name, tmp_path):
    """In a copy of the tree without one extension, and those that need it:

    - The command `effects` shows what it can do, and its tour and its self-test run.
    - All public names that belong to others can be had. What belongs to it is an error that names it.
    - Pallas can be imported, and a kernel prints.
    - The README's first program runs, and one that uses all of the core.
    """
    gone = _taken_out_with(name)
    _copy(tmp_path, gone)
    first = next(block for block in blocks_of(ROOT / "README.md") if block.kind == "python")
    names = [*_public_names()]
    has_names = any(extension == name for _, _, extension in names)
    assert has_names or name in ("collectives", "cuda", "jax_callbacks", "processes")
    lists = f"GONE = {gone!r}\nNAMES = {names!r}\n"
    program = OF_TREE.format(tree=str(tmp_path)) + lists + COMMANDS + NAMES + KERNEL + first.code + CORE
    done = run_python(program, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    in_kernel = [] if "kernels" in gone else ["in a kernel"]
    assert done.stdout.splitlines() == in_kernel + first.shown.splitlines() + PRINTED


@pytest.mark.slow
def test_tests_of_the_core_pass_without_extensions(tmp_path):
    """In a copy of the tree without any extension, the core passes its own tests."""
    _copy(tmp_path, EXTENSIONS)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "extensions"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    options = ["-q", "-p", "no:cacheprovider", "-k", f"not ({' or '.join(OF_EXTENSIONS)})"]
    (tmp_path / "test_tree.py").write_text(OF_TREE.format(tree=str(tmp_path)))
    program = f"import sys, pytest\nsys.exit(pytest.main({[*options, 'test_tree.py', *CORE_TESTS]!r}))"
    done = run_python(program, cwd=tmp_path, env={**NO_PLUGINS, "PYTHONPATH": str(tmp_path)}, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


# What an extension does with the core, by the syntax of its files.


def _imports(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """What a file imports from modules of ours: the module, the name there, and the name here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "effects":
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


def test_extension_says_which_others_it_imports():
    """The README of an extension names each other extension that a file of it imports."""
    for name, path, tree in TREES:
        text = (ROOT / "extensions" / name / "README.md").read_text()
        for module, *_ in _imports(tree):
            other = module.removeprefix("effects.extensions.").partition(".")[0]
            if module.startswith("effects.extensions.") and other != name:
                assert f"extensions/{other}" in text, f"{path} imports {module}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _own_private_names(name: str) -> set[str]:
    """The private names that an extension gives to functions, classes, fields and variables."""
    names = set()
    for of, _, tree in TREES:
        for node in ast.walk(tree) if of == name else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and _is_own(node.value):
                names.add(node.attr)
    return names


def _is_own(value: ast.expr) -> bool:
    """True for what a method knows as its own object: `self`, `cls` and `super()`."""
    return ast.unparse(value) in ("self", "cls", "super()")


OF_PYTHON = {"_replace", "_getframe"}
"""Names of the standard library that begin with an underscore and are documented."""


def test_no_extension_reads_what_is_private_to_the_core():
    """No extension reads a private attribute of an object, or imports a private name, unless it is the extension's own.

    A name is taken for the extension's own if a file of the extension defines it. The private modules of `effects`, as
    `effects._jax` and `effects._model`, are what extensions are written with.
    """
    own_of = {name: _own_private_names(name) | OF_PYTHON for name in EXTENSIONS}
    found = []
    for name, path, tree in TREES:
        own = own_of[name]
        for node in ast.walk(tree):
            is_read = isinstance(node, ast.Attribute) and not _is_own(node.value)
            if is_read and _is_private(node.attr) and node.attr not in own:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
        for module, imported, _ in _imports(tree):
            if _is_private(imported) and not module.startswith(f"effects.extensions.{name}") and module != "effects":
                found.append(f"{path.relative_to(ROOT)}: from {module} import {imported}")
    assert not found, "\n".join(found)


MUTATORS = {
    *("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "sort"),
    *("update", "appendleft"),
}
CONTAINERS = (list, dict, set, collections.deque)


def _chain(node: ast.expr) -> tuple[str, list[str]] | None:
    """The name that an expression begins with, and the attributes behind it; None if it is of another form."""
    attributes: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
        node = node.value
    return (node.id, attributes) if isinstance(node, ast.Name) else None


def test_no_extension_changes_the_core():
    """No extension assigns to an attribute or an element of a thing that it has imported from the core, deletes one, or
    changes a list, set or dictionary of the core: it calls a function of the core that registers. JAX's tables of
    rules, which the seam offers, are JAX's."""
    found = []
    for name, path, tree in TREES:
        imported = {here: (module, there) for module, there, here in _imports(tree) if there != "_jax"}
        imported = {here: of for here, of in imported.items() if not of[0].startswith(f"effects.extensions.{name}")}
        for node in ast.walk(tree):
            target = None
            if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
                target = _chain(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                target = _chain(node.func.value)
                if target and not isinstance(_value(imported.get(target[0]), target[1]), CONTAINERS):
                    target = None  # a method of another class that is called so
            if target and target[0] in imported:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "\n".join(found)


def _value(imported: tuple[str, str] | None, attributes: list[str]) -> object:
    """The value behind a name that is imported, and these attributes; None if it is not there before a program runs."""
    module, name = imported or ("effects", "")
    value: object = importlib.import_module(module)
    for attribute in (name, *attributes):
        value = getattr(value, attribute, None)
    return value
