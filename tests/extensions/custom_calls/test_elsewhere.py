"""Custom calls in exported programs, and in a user's own library."""

from __future__ import annotations

import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.extensions.custom_calls.common import STEP
from tests.forks import run_forked
from tests.helpers import ROOT, find_compiler

pytestmark = pytest.mark.slow

F32, I32 = jnp.float32, jnp.int32
ONE = jax.ShapeDtypeStruct((), I32)
X = jnp.arange(3.0)


def test_exported_program_calls_by_name(library, tmp_path):
    """In a process that has registered the handler, and in one that has not."""
    data = fx.export(
        lambda x: (fx.print("x = {}", x), fx.custom_call("test.add", x, x, by=np.float32(1), effect=STEP))[1]
    )(X)
    path = tmp_path / "program"
    path.write_bytes(data.serialize())
    code = (
        "import effects as fx, jax.numpy as jnp\n"
        "{register}\n"
        f"program = fx.deserialize(open({str(path)!r}, 'rb').read())\n"
        "results = program.call(jnp.arange(3.0)).tolist()\n"
        "fx.effects_barrier()\n"
        "print(results)\n"
    )
    register = f"fx.register_custom_call('test.add', ({library._name!r}, 'add'))"
    assert run_forked(code.format(register=register)).stdout == "x = [0. 1. 2.]\n[1.0, 2.0, 3.0]\n"
    failed = run_forked(code.format(register=""))
    assert failed.returncode != 0
    assert "`test.add`" in failed.stderr and "`fx.register_custom_call`" in failed.stderr


def test_exported_lanes_of_any_number(seen):
    """How many lanes there are is known when the program runs."""
    note = lambda x: fx.custom_call("test.note", ONE, x, effect=STEP, vmap_method="sequential")  # noqa: E731
    (n,) = jax.export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((n,), I32)
    for f, expected in (
        (jax.vmap(note), [0, 1, 2]),
        (jax.vmap(lambda x: lax.cond(x > 0, note, lambda x: x, x)), [1, 2]),
        (jax.vmap(lambda x: note(jnp.int32(7)) + x), [7, 7, 7]),
    ):
        fx.export(f)(shape).call(jnp.arange(3, dtype=I32))
        assert seen() == expected


def test_error_in_an_exported_program():
    fails = lambda x: fx.custom_call("test.fail_at", ONE, x, at=2, effect=STEP)  # noqa: E731
    program = fx.export(fails)(jnp.int32(0))
    for f in (program.call, fx.jit(lambda x: program.call(x) + 1)):
        for _ in range(2):
            with pytest.raises(fx.CustomCallError, match="The value is 2"):
                f(jnp.int32(2))
                fx.effects_barrier(timeout=120)
            assert f(jnp.int32(5)) >= 6


def test_example(tmp_path):
    """The worked example is built as its text says, and shows what it should."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no CMake")
    find_compiler()
    source = ROOT / "examples" / "custom_call"
    for command in (
        [cmake, "-S", source, "-B", tmp_path, f"-Dtoken_effects_DIR={fx.cmake_dir()}",
         f"-DPython_EXECUTABLE={sys.executable}"],
        [cmake, "--build", tmp_path],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    code = f"import runpy, sys; sys.argv = ['', {str(tmp_path / 'handlers.so')!r}]\n"
    done = run_forked(code + f"runpy.run_path({str(source / 'custom_call.py')!r})")
    assert done.stdout == EXAMPLE, done.stderr[-2000:]


EXAMPLE = """\
[10. 21. 32. 13. 24.]
[3. 6. 9. 6. 3.]
1.4142135
example.root OUT_OF_RANGE The operand is -2.000000. A square root is taken of what is not negative. Pass such a number.
3.0
before: 8.0
half of 8 is 4
half of 4 is 2
after: 2.0
"""
