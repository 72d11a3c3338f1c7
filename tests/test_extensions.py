"""Each extension can be taken out: what is left runs the README's first program, prints, calls back, and says what
failed. Without all of them the core's tests pass."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of
from tests.helpers import NO_PLUGINS, ROOT, run_python

EXTENSIONS = sorted(path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py"))

OF_TREE = """
import os, sys
import effects as fx

assert os.path.realpath(fx.__file__).startswith(os.path.realpath({tree!r})), fx.__file__
"""

CORE = """
import jax, jax.numpy as jnp, numpy as np

def double(x):
    return np.int32(2 * x)

@fx.jit
def lanes(x):
    fx.log("lane", value=x)
    return x

fx.print("first")
assert int(jax.jit(lambda x: (fx.print("plain {}", x), x)[1])(3)) == 3
program = fx.jit(lambda: jax.lax.scan(step, jnp.int32(1), jnp.arange(4))[0])

def step(total, i):
    fx.print("step {}", i)
    return jax.lax.cond(i % 2 == 0, lambda: fx.callback(double, jnp.int32(0), total), lambda: total + 1), None

assert int(program()) == 7
with fx.capture(suppress=True) as records:
    jax.vmap(lanes)(jnp.arange(3))
assert [int(record.fields["value"]) for record in records] == [0, 1, 2]
try:
    fx.jit(lambda x: fx.check(x < 2, "{} is too large", x))(2)
    fx.effects_barrier()
except fx.CheckError as error:
    print(str(error).split(" (")[0])
jax.grad(lambda x: fx.print_grad("gradient {}", x * x) * 3)(2.0)
fx.effects_barrier()
"""

PRINTED = ["first", "plain 3", "step 0", "step 1", "step 2", "step 3", "2 is too large", "gradient 3.0"]

CORE_TESTS = [
    *(f"tests/effects/test_{name}.py" for name in ("registry", "formats", "small_things", "after_error")),
    *("tests/effects/log/test_capture.py", "tests/effects/callback/test_callback.py"),
    "tests/dispatch/test_order_inside.py",
    *(f"tests/dispatch/devices/test_{name}.py" for name in ("results", "unordered")),
    *(f"tests/lowering/test_{name}.py" for name in ("differentiation", "keeping", "masks")),
    "tests/lowering/regions/test_parts.py",
]
"""Some of each part of the core, which take some seconds together."""

OF_EXTENSIONS = ("async", "custom_call")
"""What the names of those tests in there say that need an extension."""


def _copy(folder: Path, without: list[str]) -> None:
    """Copies the product without these extensions. What is not there in native code is found where it is installed."""
    for package in ("effects", "lowering", "dispatch", "extensions"):
        leave_out = shutil.ignore_patterns("__pycache__", "native", "*.so")
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=leave_out)
    for name in without:
        shutil.rmtree(folder / "extensions" / name)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_core_works_without(name, tmp_path):
    """In a copy of the tree without one extension, the README's first program and one that uses all of the core run."""
    _copy(tmp_path, [name])
    first = next(block for block in blocks_of(ROOT / "README.md") if block.kind == "python")
    program = OF_TREE.format(tree=str(tmp_path)) + first.code + CORE
    done = run_python(program, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == first.shown.splitlines() + PRINTED


def test_tests_of_the_core_pass_without_extensions(tmp_path):
    """In a copy of the tree without any extension, the core passes its own tests."""
    _copy(tmp_path, EXTENSIONS)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "extensions"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    options = ["-q", "-p", "no:cacheprovider", "-k", f"not ({' or '.join(OF_EXTENSIONS)})"]
    (tmp_path / "test_tree.py").write_text(OF_TREE.format(tree=str(tmp_path)))
    program = f"import sys, pytest\nsys.exit(pytest.main({[*options, 'test_tree.py', *CORE_TESTS]!r}))"
    done = run_python(program, cwd=tmp_path, env={**NO_PLUGINS, "PYTHONPATH": str(tmp_path)}, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
