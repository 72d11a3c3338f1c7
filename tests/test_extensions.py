"""Each extension can be taken out: what is left imports, prints, calls back, and says what failed."""

from __future__ import annotations

import shutil

import pytest

from tests.helpers import ROOT, run_python

EXTENSIONS = sorted(path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py"))

CORE = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
import effects as fx

assert os.path.realpath(fx.__file__).startswith(os.path.realpath({tree!r})), fx.__file__

def double(x):
    return np.int32(2 * x)

@fx.jit
def lanes(x):
    fx.log("lane", value=x)
    return x

fx.print("first")
assert int(jax.jit(lambda x: (fx.print("plain {{}}", x), x)[1])(3)) == 3
program = fx.jit(lambda: jax.lax.scan(step, jnp.int32(1), jnp.arange(4))[0])

def step(total, i):
    fx.print("step {{}}", i)
    return jax.lax.cond(i % 2 == 0, lambda: fx.callback(double, jnp.int32(0), total), lambda: total + 1), None

assert int(program()) == 7
with fx.capture(suppress=True) as records:
    jax.vmap(lanes)(jnp.arange(3))
assert [int(record.fields["value"]) for record in records] == [0, 1, 2]
try:
    fx.jit(lambda x: fx.check(x < 2, "{{}} is too large", x))(2)
    fx.effects_barrier()
except fx.CheckError as error:
    print(str(error).split(" (")[0])
jax.grad(lambda x: fx.print_grad("gradient {{}}", x * x) * 3)(2.0)
fx.effects_barrier()
"""

PRINTED = ["first", "plain 3", "step 0", "step 1", "step 2", "step 3", "2 is too large", "gradient 3.0"]


@pytest.mark.parametrize("name", EXTENSIONS)
def test_core_works_without(name, tmp_path):
    """In a copy of the tree without one extension, the core does all that it promises."""
    for folder in ("effects", "lowering", "dispatch", "extensions"):
        leave_out = shutil.ignore_patterns("__pycache__", "native", "*.so")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=leave_out)
    shutil.rmtree(tmp_path / "extensions" / name)
    done = run_python(CORE.format(tree=str(tmp_path)), cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED
