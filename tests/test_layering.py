"""Which module imports which: arrows point down, without a circle; one module imports JAX's private names."""

from __future__ import annotations

import ast

import pytest

import effects
from tests.helpers import ROOT

PACKAGES = ["effects", "lowering", "dispatch"]

LAYERS = ["effects", "lowering", "dispatch.streams", "dispatch.draining", "dispatch.calling", "dispatch"]
"""From the bottom up. A module belongs to the one that names it most closely."""

FACE = "effects"
"""`effects/__init__.py`. It offers what users call from all three packages, so it stands above them."""

USERS = {"effects._cli", "effects.__main__"}
"""Modules of ours that use the library as everybody else does, through its face."""


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_module(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def _modules_of(path):
    """The modules of ours that a file names in its imports."""
    for name in _imports(path):
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            yield name


def _height(module):
    if module in USERS:
        return len(LAYERS) + 1
    if module == FACE:
        return len(LAYERS)
    return LAYERS.index(max((layer for layer in LAYERS if f"{module}.".startswith(f"{layer}.")), key=len))


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    """A module imports nothing that stands above it. The face of `effects` stands above all, so no module of the three
    packages imports a public name from there."""
    for imported in _modules_of(MODULES[module]):
        assert _height(imported) <= _height(module), f"{module} imports {imported}"


def test_imports_make_no_circle():
    """No module imports one that imports it again, by whatever way."""
    done = set()

    def visit(module, path):
        assert module not in path, " imports ".join([*path[path.index(module) :], module])
        if module not in done:
            for imported in _modules_of(MODULES[module]):
                visit(imported, [*path, module])
            done.add(module)

    for module in MODULES:
        visit(module, [])


def test_private_jax_in_one_module():
    """`jax._src` is imported in `effects/_jax.py` and nowhere else."""
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in [*PACKAGES, "benchmarks", "examples"]
        for path in (ROOT / folder).rglob("*.py")
        if any(name.startswith("jax._src") for name in _imports(path))
    }
    assert users == {"effects/_jax.py"}


def test_public_names():
    """What `effects` offers is what it says, and no more."""
    public = {name for name in vars(effects) if not name.startswith(("_", "@"))}  # @: pytest rewrites plugins' packages
    submodules = {"lowering", "dispatch"}
    assert set(effects.__all__) == public - submodules
