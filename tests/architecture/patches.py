"""Compares JAX before and after the library is imported: which of its own things differ, and which are new.

Run as a script, `python -P patches.py TREE OUT`, which writes a JSON object to OUT. It imports nothing of this package.

Looked at are the attributes of JAX's modules and classes, and the tables that modules have, by themselves or in an
object: dicts, sets and lists, and dicts in dicts. What is behind a function's closure or in C++ is not seen, nor what
is changed later than by the import.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Iterator, MutableMapping
from typing import Any

Place = tuple[str, str]
"""What a thing is in, as text, and its name or key there, as text."""


def tables_in(holder: Any, name: str, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """The tables that an attribute's value is or has, with their names."""
    if isinstance(holder, (MutableMapping, set, list)):
        yield name, holder
        if isinstance(holder, MutableMapping) and depth:
            for key, value in list(holder.items()):
                if isinstance(value, (MutableMapping, set, list)):
                    yield from tables_in(value, f"{name}[{shown(key)}]", depth - 1)
    elif depth and type(holder).__module__.startswith("jax") and not isinstance(holder, (type, types.ModuleType)):
        for attribute, value in list(getattr(holder, "__dict__", {}).items()):
            if isinstance(value, (MutableMapping, set, list)):
                yield from tables_in(value, f"{name}.{attribute}", depth - 1)


def shown(key: Any) -> str:
    """A key of a table."""
    return key if isinstance(key, str) else getattr(key, "__name__", None) or getattr(key, "name", None) or str(key)


_OF_JAX_ITSELF = ("jax._src.util._caches",)
"""Tables in which JAX notes what it makes itself."""


class Snapshot:
    """The attributes and tables of JAX's modules. It keeps all values alive, so that identities stay comparable."""

    def __init__(self) -> None:
        self.attributes: dict[str, tuple[Any, dict[str, Any]]] = {}  # of modules and classes: the object, its dict
        self.tables: dict[int, tuple[str, Any, list[Any]]] = {}  # by identity: a name, the table, its items
        modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "jax" and module}
        for name, module in sorted(modules.items(), key=lambda item: (not item[0].startswith("jax._src"), item[0])):
            self._add_attributes(name, module)
            for attribute, value in list(vars(module).items()):
                if attribute.startswith("__") or f"{name}.{attribute}" in _OF_JAX_ITSELF:
                    continue
                if isinstance(value, type) and value.__module__ == name:
                    self._add_attributes(f"{name}.{attribute}", value)
                for table_name, table in tables_in(value, f"{name}.{attribute}"):
                    items = list(table.items()) if isinstance(table, MutableMapping) else [(x, x) for x in table]
                    self.tables.setdefault(id(table), (table_name, table, items))

    def _add_attributes(self, name: str, holder: Any) -> None:
        self.attributes[name] = holder, dict(vars(holder))


def differences(before: Snapshot, after: Snapshot) -> tuple[list[Place], list[Place], list[Place]]:
    """What of JAX's has another value; what is new under a key of JAX's; and what is new under a key of ours."""
    known = {id(key) for _, _, items in before.tables.values() for key, _ in items if not isinstance(key, str)}
    known |= {id(value) for _, attributes in before.attributes.values() for value in attributes.values()}
    changed: list[Place] = []
    added: list[Place] = []
    own: list[Place] = []
    for name, (holder, old) in before.attributes.items():
        for attribute, value in vars(holder).items():
            if attribute in old and old[attribute] is not value and not _is_table_or_plain(value):
                changed.append((name, attribute))
    for identity, (name, _, items) in before.tables.items():
        old_items = {id(key): value for key, value in items}
        by_text = {key: value for key, value in items if isinstance(key, str)}
        now = after.tables.get(identity)
        for key, value in now[2] if now is not None else ():
            if isinstance(key, str):
                if key not in by_text:
                    own.append((name, shown(key)))
                elif by_text[key] is not value and not _is_table_or_plain(value):
                    changed.append((name, key))
            elif id(key) not in old_items:
                (added if id(key) in known else own).append((name, shown(key)))
            elif old_items[id(key)] is not value and not _is_table_or_plain(value):
                changed.append((name, shown(key)))
    return sorted(changed), sorted(added), sorted(own)


def _is_table_or_plain(value: Any) -> bool:
    """Whether it is looked at by itself, or counts something."""
    return isinstance(value, (MutableMapping, set, list, int, float, str, type(None)))


_MODULES = """
import sys
sys.path.insert(0, sys.argv[1])
import effects
import jax.experimental.checkify, jax.experimental.pallas  # what is changed in them, once they are imported
print(*(name for name in sys.modules if name.split(".")[0] == "jax"))
"""


def main(tree: str, out: str) -> None:
    listed = subprocess.run([sys.executable, "-P", "-c", _MODULES, tree], check=True, capture_output=True, text=True)
    import importlib

    import jax

    for name in listed.stdout.split():  # what the library makes JAX load is not its change
        importlib.import_module(name)
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    before = Snapshot()
    sys.path.insert(0, tree)
    import effects  # noqa: F401

    changed, added, own = differences(before, Snapshot())
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"changed": changed, "added": added, "own": own, "jax": jax.__version__}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
