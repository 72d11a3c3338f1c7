"""From sites to JSON and back: a site travels with compiled and exported programs as its description."""

from __future__ import annotations

import collections
import functools
import json
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from effects._model.arguments import flat_arguments
from effects._model.content import content_from
from effects._model.effect import Effect, describe_effect
from effects._model.numbering import Numbering
from effects._model.operand import Operand, Static, Text, read_operand
from effects._model.where import Where

if TYPE_CHECKING:
    from effects._model.site import Site


def describe_site(site: Site) -> str:
    """All of a site as JSON, without what goes without saying: a program carries it at every call."""
    description = {
        "effect": describe_effect(site.effect),
        "content": site.content.describe(),
        "leaves": list(map(_describe_leaf, site.leaves)),
        "where": site.where,
    }
    if site.where.callers:
        description["callers"] = site.where.callers
    if not site.is_flat:  # with all that tells trees apart: types of keys and nodes, their own data
        description |= {"tree": _describe_tree(site.tree), "structure": str(site.tree)}
    if site.lanes:
        description["lanes"] = site.lanes
    if site.mask is not None:
        description["mask"] = site.mask.describe()
    if site.grid is not None:
        description["grid"] = site.grid.describe()
    if site.processes:
        description["processes"] = site.processes
    if site.num_dynamic_sizes:
        description["unknown"] = site.num_dynamic_sizes
    if site.per_shard:
        description["per_shard"] = True
    return _to_json(description)


_to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


def read_site(text: str) -> dict[str, Any]:
    """The fields of the site that describes itself so."""
    description = json.loads(text)
    leaves = tuple(map(_read_leaf, description["leaves"]))
    tree = jax.tree.structure(_read_tree(description["tree"], 0)) if "tree" in description else None
    return {
        "effect": Effect(**description["effect"]),
        "content": content_from(description["content"], read_operand),
        "leaves": leaves,
        "tree": tree or flat_arguments(len(leaves)),
        "where": Where(*description["where"]).called_from(description.get("callers", ())),
        "lanes": tuple(description.get("lanes", ())),
        "mask": read_operand(description["mask"]) if "mask" in description else None,
        "grid": read_operand(description["grid"]) if "grid" in description else None,
        "processes": tuple(description.get("processes", ())),
        "num_dynamic_sizes": description.get("unknown", 0),
        "per_shard": description.get("per_shard", False),
    }


# Leaves and trees of arguments


def _describe_leaf(leaf: Operand | Static) -> Any:
    if isinstance(leaf, Operand):
        return leaf.describe()
    value = leaf.value
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.name, value.tobytes().hex()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if type(value) in (str, int, float, bool):
        return {"static": value}
    return {"text": str(value), "of": [type(value).__qualname__, repr(value)]}  # an object's, or a subclass


def _read_leaf(description: str | dict[str, Any]) -> Operand | Static:
    if isinstance(description, str):
        return read_operand(description)
    kind, value = next(iter(description.items()))
    if kind == "scalar":
        return Static(np.frombuffer(bytes.fromhex(value[1]), np.dtype(value[0]))[0])
    if kind == "complex":
        return Static(complex(*value))
    if kind == "text":
        return Static(Text(value, description["of"][1]))
    return Static(bytes.fromhex(value) if kind == "bytes" else value)


def _describe_tree(tree: Any) -> Any:
    if tree is None:
        return None
    data = tree.node_data()
    children = [_describe_tree(child) for child in tree.children()]
    if data is None:
        return "none" if tree.num_leaves == 0 else "leaf"
    type_, keys = data
    if type_ in (dict, collections.OrderedDict):
        return {type_.__name__: [[_describe_key(key) for key in keys], children]}
    if type_ in (list, tuple):
        return {type_.__name__: children}
    if issubclass(type_, tuple) and (fields := getattr(type_, "_fields", None)) is not None:
        return {"namedtuple": [type_.__name__, fields, children]}
    return "none" if type_ is type(None) else {"other": [_own_name(type_), children]}


_numbering = Numbering()


def _own_name(type_: type) -> str:
    """The name of a class of the user's. One that has been defined again, as in a notebook, has a number too."""
    number = _numbering.number_of(type_.__qualname__, type_)
    return f"{type_.__qualname__}#{number}" if number else type_.__qualname__


def _describe_key(key: Any) -> Any:
    if isinstance(key, tuple):
        return {"tuple": [_describe_key(part) for part in key]}
    return None if key is None else _describe_leaf(Static(key))


def _read_key(description: Any) -> Any:
    if description is None:
        return None
    if "tuple" in description:
        return tuple(map(_read_key, description["tuple"]))
    leaf = _read_leaf(description)
    assert isinstance(leaf, Static)
    return leaf.value


def nodes_unknown_elsewhere(tree: Any) -> set[str]:
    """Types of a tree's nodes that another process reads as lists."""
    if tree is None or tree.node_data() is None:
        return set()
    description = _describe_tree(tree)
    own = {description["other"][0]} if isinstance(description, dict) and "other" in description else set()
    return own.union(*map(nodes_unknown_elsewhere, tree.children()))


@functools.cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


def _read_tree(description: Any, leaf: object) -> Any:
    if description in ("leaf", "none"):
        return leaf if description == "leaf" else None
    [(kind, value)] = description.items()
    if kind in ("dict", "OrderedDict"):
        keys, children = value
        pairs = zip(map(_read_key, keys), (_read_tree(child, leaf) for child in children), strict=True)
        return dict(pairs) if kind == "dict" else collections.OrderedDict(pairs)
    if kind == "namedtuple":
        name, fields, children = value
        return _namedtuple(name, tuple(fields))(*(_read_tree(child, leaf) for child in children))
    children = [_read_tree(child, leaf) for child in (value[1] if kind == "other" else value)]
    return tuple(children) if kind == "tuple" else children
