"""Which package imports which: dispatch imports lowering imports effects; one module imports JAX's private names."""

from __future__ import annotations

import ast

import pytest

import effects
from tests.helpers import ROOT

LAYERS = ["effects", "lowering", "dispatch"]


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_down(layer):
    """A package imports nothing that stands above it; `effects/__init__.py` alone re-exports."""
    above = LAYERS[LAYERS.index(layer) + 1 :]
    for path in (ROOT / layer).rglob("*.py"):
        if path == ROOT / "effects" / "__init__.py":
            continue
        for name in _imports(path):
            assert name.split(".")[0] not in above, f"{path} imports {name}"


def test_imports_go_down_inside_effects():
    """The public face imports handlers and functions, functions import the model, and the model none of these."""
    rooms = ["_model", "_api", "handlers", "cli"]
    for room in rooms[:3]:
        above = {f"effects.{name}" for name in rooms[rooms.index(room) + 1 :]}
        if room == "handlers":
            above.add("effects._api")
        for path in (ROOT / "effects" / room).rglob("*.py"):
            for name in _imports(path):
                assert ".".join(name.split(".")[:2]) not in above, f"{path} imports {name}"


def test_private_jax_in_one_package():
    """`jax._src` is imported in `effects/_jax/` and nowhere else."""
    users = {
        path.parent.relative_to(ROOT).as_posix()
        for folder in [*LAYERS, "benchmarks", "examples"]
        for path in (ROOT / folder).rglob("*.py")
        if any(name.startswith("jax._src") for name in _imports(path))
    }
    assert users == {"effects/_jax"}


def test_seam_imports_nothing_of_ours():
    """The seam to JAX stands below everything else in `effects`."""
    for path in (ROOT / "effects" / "_jax").glob("*.py"):
        for name in _imports(path):
            ours = name.split(".")[0] in ["effects", "lowering", "dispatch"]
            assert not ours or name.startswith("effects._jax"), f"{path} imports {name}"


def test_seam_offers_what_is_used():
    """Every name that the seam offers is used somewhere, and every name that is used is offered."""
    offered = set(_aliases(ROOT / "effects" / "_jax" / "__init__.py"))
    used = set()
    for path in [path for folder in [*LAYERS, "benchmarks", "tests"] for path in (ROOT / folder).rglob("*.py")]:
        if path.parent.name == "_jax":
            continue
        tree = ast.parse(path.read_text())
        names = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "effects"
            for alias in node.names
            if alias.name == "_jax"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "effects._jax":
                used.update(alias.name for alias in node.names)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
                used.add(node.attr)
    assert used - {"patches"} == offered  # a module of it


def _aliases(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname for alias in node.names)


def test_public_names():
    """What `effects` offers is what it says, and no more."""
    public = {name for name in vars(effects) if not name.startswith(("_", "@"))}  # @: pytest rewrites plugins' packages
    submodules = {"lowering", "dispatch", "handlers", "cli"}
    assert set(effects.__all__) == public - submodules
