"""What the tests of handlers share."""

from __future__ import annotations

import csv
import dataclasses
import json
from typing import Any, NamedTuple

import jax

import effects as fx


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: jax.Array
    b: jax.Array


def loop(body, n):
    """A program that calls `body` with the numbers below `n`."""
    return fx.jit(lambda: jax.lax.fori_loop(0, n, lambda i, _: body(i) and None, None))


def read_lines(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
