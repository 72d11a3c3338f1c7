"""Which module imports which: arrows point down, without a circle; one module imports JAX's private names."""

from __future__ import annotations

import ast
import re
import types

import effects
from tests.helpers import ROOT

PACKAGES = ["effects", "lowering", "dispatch", "extensions"]

LAYERS = [
    "effects",
    "effects.lowering",
    "effects.dispatch.runtime",
    "effects.dispatch.calling",
    "effects.dispatch",
    "effects.extensions",
]
"""From the bottom up. A module belongs to the one that names it most closely."""

MODULES_OF_FACE = ["asynchronous", "extend", "handlers", "kernels", "native", "runs", "testing"]

FACES = {"effects", *(f"effects.{name}" for name in MODULES_OF_FACE)}
"""What users import. It offers what they call from all three packages, so it stands above them."""

USERS = {"effects.cli", "effects._demo", "effects._doctor", "effects.__main__"}
"""Modules of ours that use the library as everybody else does, through its face."""


def _imports(path):
    """What a file imports when it runs. What is only for type checkers may refer to each other, as types do."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files_of(folder):
    """The Python files of a folder and of those in it, links left aside."""
    return [path for path in folder.rglob("*.py") if folder in path.resolve().parents]


def _module(path):
    """The name of a module of ours. In the source tree `effects/lowering` and `effects/dispatch` are links."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.partition(".")[0] == "effects" else f"effects.{name}"


MODULES = {_module(path): path for package in PACKAGES for path in _files_of(ROOT / package)}


def _modules_of(path):
    """The modules of ours that a file names in its imports. The native one imports none."""
    for name in _imports(path):
        if name.startswith("effects._native"):
            continue
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            yield name


def _height(module):
    if module in USERS:
        return len(LAYERS) + 1
    if module in FACES:
        return len(LAYERS)
    return LAYERS.index(max((layer for layer in LAYERS if f"{module}.".startswith(f"{layer}.")), key=len))


def test_imports_go_down():
    """A module imports nothing that stands above it. The face of `effects` stands above all, so no module of the three
    packages imports a public name from there."""
    for module, path in MODULES.items():
        for imported in _modules_of(path):
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


NATIVE_NEEDS = {"custom_calls": {"asynchronous"}, "cuda": {"asynchronous", "custom_calls"}}
"""The extensions whose native part includes that of others. A build leaves out what is not there."""


def test_native_core_includes_no_extension():
    """The native part of the core is built without those of extensions, and each of these with those that it names."""
    sources = [path for path in (ROOT / "dispatch" / "native").rglob("*") if path.suffix in (".cc", ".h")]
    assert sources and not any("extensions/" in path.read_text() for path in sources)
    for folder in (ROOT / "extensions").glob("*/native"):
        own = folder.parent.name
        text = "".join(path.read_text() for path in folder.iterdir())
        assert set(re.findall(r'#include "extensions/(\w+)/', text)) <= NATIVE_NEEDS.get(own, set()), own


def test_lowering_imports_no_public_function():
    """What is lowered is known by its primitive and its content, whichever function of the user's call made it."""
    for path in _files_of(ROOT / "lowering"):
        assert not any(f"{name}.".startswith("effects._api.") for name in _imports(path)), path


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
        for folder in [*PACKAGES, "benchmarks", "examples"]
        for path in _files_of(ROOT / folder)
        if any(name.startswith("jax._src") for name in _imports(path))
    }
    assert users == {"effects/_jax"}


def test_seam_imports_nothing_of_ours():
    """The seam to JAX stands below everything else in `effects`."""
    for path in (ROOT / "effects" / "_jax").glob("*.py"):
        for name in _imports(path):
            assert name.split(".")[0] != "effects" or name.startswith("effects._jax"), f"{path} imports {name}"


def test_seam_offers_what_is_used():
    """Every name that the seam offers is used somewhere, and every name that is used is offered."""
    offered = set(_aliases(ROOT / "effects" / "_jax" / "__init__.py"))
    used = set()
    for path in [path for folder in [*PACKAGES, "benchmarks", "tests"] for path in _files_of(ROOT / folder)]:
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
    assert used - {"patches", *OF_PALLAS} == offered  # modules of it


OF_PALLAS = {"pallas", "kernel_logs"}
"""Modules of the seam that import Pallas. The seam does not offer their names, so that it can be imported without."""


def _aliases(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname for alias in node.names)


def test_public_names():
    """`effects` lists what people use every day, and what the modules that it lists have is found there too, but for
    `effects.runs`, whose names say little by themselves."""
    assert dir(effects) == sorted(effects.__all__)
    for module in (getattr(effects, name) for name in MODULES_OF_FACE if name != "runs"):
        of_lowering = vars(effects.lowering)
        kept = {*of_lowering, "assert_same_run", "check_grid_races", "parse", "TextError"}
        names = {*vars(module), *getattr(module, "__all__", ())} - kept
        for name in (name for name in names if name[0] not in "_@"):
            thing = getattr(module, name)
            assert isinstance(thing, types.ModuleType) or getattr(effects, name) is thing, name


def test_model_files_that_know_each_other():
    """In the model only a site, its content and its records refer to each other, and only in types."""
    folder = ROOT / "effects" / "_model"
    known = {path.stem: set() for path in folder.glob("*.py")}
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("effects._model."):
                known[path.stem].add(node.module.split(".")[2])
    for middle in known:  # now what each knows by way of others, too
        for names in known.values():
            if middle in names:
                names |= known[middle]
    assert {name for name, names in known.items() if name in names} == {"content", "record", "site"}
