"""Meshes, regions over them, and checks that need a process of their own."""

import re

import jax
from jax.sharding import AxisType

from tests.forks import run_forked

P = jax.P


def mesh_of(*sizes, kind=AxisType.Auto, devices=None):
    return jax.make_mesh(sizes, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes), devices=devices)


def by_device(body, mesh=None, **kwargs):
    return jax.shard_map(body, mesh=mesh or mesh_of(4), in_specs=P("x"), out_specs=P("x"), **kwargs)


def in_process_of_its_own(file, name):
    """Runs a check of a file of tests. Where devices wait for each other, XLA ends a process that does not go on."""
    options = ["-q", "-p", "no:cacheprovider", "-o", f"python_functions={name}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported there already
    code = f"import sys, pytest\nsys.exit(pytest.main({[*options, file]!r}))\n"
    done = run_forked(code)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1]), done.stdout[-3000:]


def in_parts(body, mesh, **kwargs):
    """A region over `x` of a mesh with a `y`."""
    specs = {"in_specs": P("x"), "out_specs": P("x"), "axis_names": {"x"}}
    return jax.shard_map(body, mesh=mesh, **specs, **kwargs)


def collectives(f, x):
    text = f.lower(x).compile().as_text()
    return sorted(re.findall(r" (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", text))
