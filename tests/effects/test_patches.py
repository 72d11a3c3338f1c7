"""What importing the library changes in JAX: the table says all of it, and one call does all of it."""

from __future__ import annotations

import ast
import importlib
import json
import re

import pytest

import effects as fx
from effects._jax import patches
from tests.helpers import ROOT, run_each_after_jax, run_python

SNAPSHOT = """
import contextlib, gc, json, sys, types
import jax, jax.export, jax.extend.core, jax.experimental.checkify, jax.experimental.compute_on
import jax._src.buffer_callback, jax._src.pallas.mosaic.interpret.interpret_pallas_call
import jax._src.hijax, jax._src.xla_metadata, jax.experimental.serialize_executable, jax.experimental.pallas
import rich.console
with contextlib.suppress(ImportError):
    import jax._src.program_order

def of_jax(name):
    return (name or "").split(".")[0] in ("jax", "jaxlib")

def read(owner):
    if isinstance(owner, dict):
        return dict(owner)
    if isinstance(owner, (set, frozenset)):
        return {x: None for x in owner}
    if isinstance(owner, (list, tuple)):
        return dict(enumerate(owner))
    return dict(vars(owner))

def owners():
    '''Modules, and the classes, tables and objects in them: [names, owner] by id.'''
    found = {}
    def add(name, owner):
        found.setdefault(id(owner), ([], owner))[0].append(name)
    for name, module in list(sys.modules.items()):
        if not (of_jax(name) and isinstance(module, types.ModuleType)):
            continue
        add(name, module)
        for key, value in list(vars(module).items()):
            if isinstance(value, (dict, list, set)) and not key.startswith("__"):
                add(f"{name}.{key}", value)
            elif isinstance(value, type) and of_jax(value.__module__):
                add(f"{value.__module__}.{value.__qualname__}", value)
            elif of_jax(type(value).__module__) and isinstance(getattr(value, "__dict__", None), dict):
                add(f"{name}.{key}", value)
                for attribute, inner in list(vars(value).items()):
                    if isinstance(inner, (dict, list, set)):
                        add(f"{name}.{key}.{attribute}", inner)
    return found

before = {id_: (names, owner, read(owner)) for id_, (names, owner) in owners().items()}
objects = {id(x): x for x in gc.get_objects()}

import effects as fx

def is_ours(key, value):
    root = fx.__path__[0].removesuffix("effects")
    if isinstance(key, jax.extend.core.Primitive):
        return id(key) not in objects
    if isinstance(value, str):
        return value.startswith(root)
    return (getattr(key, "__module__", "") or "").split(".")[0] == "effects"

missing, changes = object(), []
for names, owner, was in before.values():
    now = read(owner)
    for key in {**was, **now}:
        if was.get(key, missing) is now.get(key, missing) or (key not in was and is_ours(key, now[key])):
            continue
        is_table = isinstance(owner, (dict, list, set))
        changes.append([f"{name}[{key}]" if is_table else f"{name}.{key}" for name in names])
table = [name for patch in fx.patches() for name in patch.changes]
print(json.dumps({"changes": changes, "table": table}))
"""


KEPT_FOR_PLUGINS = (
    "jaxlib.xla_client._custom_callback[",
    "jaxlib.xla_client._custom_type_id[",
    "jax._src.xla_bridge._plugin_callbacks[",
)
"""Where JAX keeps handlers of ours for a platform that has no backend yet."""


@pytest.mark.slow
def test_table_says_all_that_import_changes():
    """After the import, what differs in JAX is what the table says, and entries for things of ours."""
    done = run_python(SNAPSHOT)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    table = set(seen["table"])
    changed = {next(iter(table & set(names)), names[0]) for names in seen["changes"]}
    changed = {name for name in changed if not name.startswith(KEPT_FOR_PLUGINS)}
    # What JAX itself puts there, when it makes a backend.
    assert changed == table | {"jaxlib.xla_client._custom_type_id_handler[Host]"}


def _resolve(name):
    """What a dotted name of the table stands for; None if there is nothing."""
    path, _, key = name.removesuffix("]").partition("[")
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            owner = getattr(owner, part)
        return next((value for entry, value in owner.items() if str(entry) == key), None) if key else owner
    raise AssertionError(f"{name} is not in JAX")


@pytest.mark.parametrize("patch", fx.patches(), ids=lambda patch: patch.name)
def test_row_is_in_force(patch):
    """Each row says what it changes, why and until when, and what it names is ours by now."""
    assert patch.changes and patch.now and patch.why and patch.since and patch.until
    for name in patch.changes:
        replacement = _resolve(name)
        replacement = getattr(replacement, "rule", replacement)  # JAX keeps rules for lowering in entries
        assert replacement.__module__.startswith("effects."), name


ORIGINALS = """
import importlib, json
import jax, jax.numpy as jnp
from jax.experimental import checkify
from jax._src import core, dispatch, hijax
from jax._src.interpreters import batching, partial_eval as pe
from jax._src.lax.control_flow import loops

called = []

def counted(name, fun):
    import functools
    @functools.wraps(fun)
    def counting(*args, **kwargs):
        called.append(name)
        return fun(*args, **kwargs)
    return counting

def count(table, name, *primitives):
    for primitive in primitives or list(table):
        table[primitive] = counted(f"{name}[{primitive}]", table[primitive])

count(batching.fancy_primitive_batchers, "batch")
count(pe.partial_eval_jaxpr_custom_rules, "remat", jax.lax.scan_p, jax.lax.while_p)
count(pe.custom_partial_eval_rules, "partial_eval", jax.lax.while_p)
loops._scan_known_hoisting = counted("hoist", loops._scan_known_hoisting)
dispatch.RuntimeTokenSet.block_until_ready = counted("block", dispatch.RuntimeTokenSet.block_until_ready)

def scan(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, length=3)[0]

def fori(x):
    return jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x)

def loop(x):
    return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x)

@jax.custom_batching.custom_vmap
def twice(x):
    return 2 * x

@twice.def_vmap
def _(axis_size, in_batched, x):
    return 2 * x, True

def all_of_them():
    called.clear()
    xs = jnp.arange(1.0, 4.0)
    # Functions of their own at each call, so that nothing comes from a cache.
    results = {
        "cond": jax.vmap(lambda x: jax.lax.cond(x > 1, lambda y: y, lambda y: 2 * y, x))(xs),
        "while": jax.vmap(lambda x: loop(x))(xs),
        "scan": jax.vmap(jax.grad(lambda x: scan(x)))(xs),
        "remat": jax.grad(jax.checkpoint(lambda x: scan(x)))(1.0),
        "remat while": jax.jvp(jax.checkpoint(lambda x: fori(x)), (1.0,), (1.0,)),
        "linearized while": jax.linearize(lambda x: loop(x), 1.0)[1](1.0),
        "linearized while in remat": jax.linearize(jax.checkpoint(lambda x: loop(x)), 1.0)[1](1.0),
        "custom_vmap": jax.vmap(lambda x: twice(x))(xs),
        "jacfwd": jax.jacfwd(lambda x: scan(x))(1.0),
        "solve": jax.vmap(lambda x: jax.lax.custom_linear_solve(
            lambda y: 2 * y, x, lambda _, b: b / 2, symmetric=True))(xs),
        "checkify": checkify.checkify(lambda x: loop(x), errors=checkify.float_checks)(1.0)[1],
        "jaxpr": str(jax.make_jaxpr(jax.grad(lambda x: scan(x) * 2))(1.0)),
    }
    jax.effects_barrier()
    return [{name: str(result) for name, result in results.items()}, list(called)]

before = all_of_them()
import effects as fx
after = all_of_them()
print(json.dumps({"before": before, "after": after}))
"""


@pytest.mark.slow
def test_programs_without_effects_are_handled_by_jax():
    """Where a program has no effects of ours, every replacement calls what JAX had there, as often as JAX does."""
    done = run_python(ORIGINALS)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    (results, called), (results_after, called_after) = seen["before"], seen["after"]
    assert results_after == results
    replaced = {"hoist", "block", "remat[scan]", "remat[while]", "partial_eval[while]", "batch[cond]"}
    replaced |= {f"batch[{name}]" for name in ("while", "custom_vmap_call")}
    assert replaced <= set(called)
    # JAX caches what else is batched in functions of its own.
    assert [name for name in called_after if name in replaced] == [name for name in called if name in replaced]


@pytest.mark.slow
def test_applied_once():
    """Another call, and loading the modules again, replaces nothing twice."""
    code = """
import importlib
import effects as fx
from effects._jax import patches

def standing():
    return [point.get() for patch in fx.patches() for point in patch.points]

first = standing()
patches.apply()
importlib.reload(fx)
importlib.reload(patches)
importlib.reload(fx)
assert list(map(id, standing())) == list(map(id, first))
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_applied_whatever_is_imported_first():
    """All rows are in force, whichever of the packages and modules is imported first."""
    modules = ["effects", *(f"effects.{name}" for name in ("lowering", "dispatch", "_jax", "lowering.batching"))]
    codes = {each: f"import {each}\nfrom effects._jax import patches\nassert patches._originals" for each in modules}
    assert run_each_after_jax(codes) == dict.fromkeys(modules, (0, ""))


def test_rows_and_implementations_match(monkeypatch):
    """Each row has an implementation, as long as all extensions are there. An implementation without a row is an
    error."""
    monkeypatch.setattr(patches, "_originals", {})
    names = [row.name for row in fx.patches()]
    assert len(set(names)) == len(names)
    standing = [point.get() for row in fx.patches() for point in row.points]
    rows = [*patches._TABLE, *(row for rows in patches.ROWS_OF.values() for row in rows())]
    assert {row.name for row in rows} == set(patches._makers)
    with monkeypatch.context() as context:
        context.setattr(patches, "_makers", {**patches._makers, "another": lambda original: original})
        with pytest.raises(AssertionError, match="implementations without a row: {'another'}"):
            fx.patches()
    assert standing == [point.get() for row in fx.patches() for point in row.points]


OWN_TABLES = {"primitive_jvps", "primitive_transposes", "fancy_primitive_batchers", "rules_in_eager_regions"}
OWN_TABLES |= {"custom_staging_rules"}


def _changes_of_jax(path):
    """What a source assigns to attributes and entries of modules of JAX's, or of names that the seam has from there."""
    tree = ast.parse(path.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names if _is_of_jax(alias.name))
        elif isinstance(node, ast.ImportFrom):
            names.update(a.asname or a.name for a in node.names if _is_of_jax(f"{node.module}.{a.name}"))
    for node in ast.walk(tree):
        targets = getattr(node, "targets", []) or [getattr(node, "target", None)]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "attribute")]
        for target in targets:
            root = target
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            if root is not target and isinstance(root, ast.Name) and root.id in names:
                yield ast.unparse(target)


def _is_of_jax(name):
    return name.split(".")[0] in ("jax", "jaxlib") or name.startswith("effects._jax")


def test_nothing_else_changes_jax():
    """In the sources, what is assigned into JAX outside of `patches.apply` is an entry for a primitive of ours."""
    found = set()
    for folder in ("effects", "lowering", "dispatch", "extensions"):
        for path in (ROOT / folder).rglob("*.py"):
            for change in _changes_of_jax(path):
                table, _, key = change.removesuffix("]").partition("[")
                if table.split(".")[-1] not in OWN_TABLES or key.startswith(("_jax.", "jax.")):
                    found.add((path.relative_to(ROOT).as_posix(), change))
    assert not found


def test_table_prints():
    """Printed, it is readable in plain text, and says every row whole."""
    plain = repr(fx.patches())
    assert max(map(len, plain.splitlines())) <= 120
    words = re.sub(r"\s+", "", plain)
    for patch in fx.patches():
        for part in (patch.name, *patch.changes, patch.now, patch.why, patch.since, patch.until):
            assert re.sub(r"\s+", "", part) in words
