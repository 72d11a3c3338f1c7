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


def test_private_jax_in_one_module():
    """`jax._src` is imported in `effects/_jax.py` and nowhere else."""
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in [*LAYERS, "benchmarks", "examples"]
        for path in (ROOT / folder).rglob("*.py")
        if any(name.startswith("jax._src") for name in _imports(path))
    }
    assert users == {"effects/_jax.py"}


def test_public_names():
    """What `effects` offers is what it says, and no more."""
    public = {name for name in vars(effects) if not name.startswith(("_", "@"))}  # @: pytest rewrites plugins' packages
    submodules = {"lowering", "dispatch"}
    assert set(effects.__all__) == public - submodules
