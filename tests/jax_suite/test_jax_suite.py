"""The command that runs JAX's own tests with `fx.jit`, on a folder of tests that are made here."""

from __future__ import annotations

import jax
import pytest

from tests.jax_suite import outcomes
from tests.jax_suite.__main__ import main

pytestmark = pytest.mark.slow

FILES = {
    "same_test.py": """
import functools
import unittest

import jax
from jax import jit

class Same(unittest.TestCase):
    def test_passes(self):
        self.assertEqual(jit(lambda x: x + 1)(1), 2)
        self.assertEqual(functools.partial(jax.jit, static_argnums=1)(lambda x, n: x * n)(2, 3), 6)
        self.assertEqual(jax.vmap(lambda x: jax.numpy.sin(x))(jax.numpy.zeros(2)).tolist(), [0, 0])

    def test_fails(self):
        self.fail("in both")

    def test_is_skipped(self):
        self.skipTest("in both")
""",
    "differs_test.py": """
import os
import jax

is_plain = type(jax.jit(lambda x: x)).__module__.startswith("jaxlib")

def test_passes():
    pass

def test_fails_with_ours():
    assert is_plain, "that is ours"

def test_ends_with_ours():
    if not is_plain:
        os._exit(3 + 250)

def test_after_the_end():
    pass

def test_fails_plainly():
    assert not is_plain

def test_effects_belong_to_the_test():
    def fail(x):
        raise ValueError("from an effect")

    if not is_plain:
        import effects as fx

        jax.jit(lambda x: fx.callback(fail, None, x))(1)

def test_after_the_effect():
    assert jax.jit(lambda x: x + 1)(1) == 2
""",
    "helper.py": "raise AssertionError('no test')",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_command_lists_what_differs_and_goes_on_where_it_was(folder, capsys):
    """Tests that pass plainly and not with `fx.jit` are listed with their error, also where one ends its process. Kept
    outcomes are not run again, a test that was interrupted is, and what differed where that is asked for."""
    command = ["--jax-tests", str(folder), "differs_test.py", "--results", str(folder / "results")]
    assert main([*command, "--stop-after", "0"]) == 1
    assert "1 files have tests to come" in capsys.readouterr().out
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "3 of 6 tests that pass with `jax.jit` pass with `fx.jit` (50.00 %)" in out
    assert "differs_test.py::test_fails_with_ours: failed: AssertionError: that is ours" in out
    assert "differs_test.py::test_ends_with_ours: ended its process" in out
    assert "differs_test.py::test_effects_belong_to_the_test: failed: " in out and "from an effect" in out
    assert "differs_test.py::test_fails_plainly: passes with `fx.jit` only" in out
    assert "3 without a reason in docs/jax-tests.md" in out and "test_after" not in out
    (kept,) = (folder / "results").glob("*/differs_test.fx.jsonl")
    outcomes.write(kept, "differs_test.py::test_fails_with_ours", "passed")  # worse counts: it has failed
    (folder / "differs_test.py").write_text("def test_fails_with_ours(): pass\ndef test_passes(): assert False")
    assert main(command) == 1
    assert "3 of 6 tests" in capsys.readouterr().out
    outcomes.forget(kept, {"differs_test.py::test_passes"})
    outcomes.write(kept, "differs_test.py::test_passes", outcomes.BEGAN)
    assert main([*command, "--again"]) == 1
    out = capsys.readouterr().out
    assert "test_fails_with_ours" not in out and "differs_test.py::test_passes: failed: " in out


def test_command_succeeds_where_nothing_differs(folder, capsys):
    """What fails or is skipped plainly does not count, and `--of-each` leaves others out of both runs. JAX's tests take
    warnings for errors: not those of the Pallas functions that a newer version deprecates. `--table` has a column for
    each version in the folder of results, and a row for each file."""
    results = folder / "results"
    other = results / "jax-0.1"
    other.mkdir(parents=True)
    for how, outcome in (("jax", "passed"), ("fx", "failed")):
        outcomes.write(other / f"older_test.{how}.jsonl", "older_test.py::test_it", outcome)
    (folder / "differs_test.py").unlink()
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    with (folder / "same_test.py").open("a") as file:
        file.write(MORE_THAT_IS_THE_SAME)
    command = ["--jax-tests", str(folder), "--all", "--results", str(results)]
    assert main([*command, "--of-each", "2", "--table"]) == 0
    first, *_, header, line, older, same, every = capsys.readouterr().out.splitlines()
    assert first == "same_test.py: 4 of 4 tests that pass with `jax.jit` pass with `fx.jit` (100.00 %)"
    assert [header, line, older, same, every] == [
        f"| File | JAX 0.1 | JAX {jax.__version__} |",
        "| --- | --- | --- |",
        "| `older_test.py` | 0 of 1 (in part) |  |",
        "| `same_test.py` |  | 4 of 4 |",
        "| **all** | **0 of 1 (in part), 0.00 %** | **4 of 4, 100.00 %** |",
    ]


MORE_THAT_IS_THE_SAME = """
import warnings

import pytest

@pytest.mark.parametrize("n", range(5))
def test_n(n):
    pass

def test_deprecated():
    warnings.warn("jax.experimental.pallas.core_map is deprecated, use another.", DeprecationWarning)
    warnings.warn("device_id_type is deprecated and will be removed.", DeprecationWarning)

def test_other():
    warnings.warn("jax.experimental.other is deprecated.", DeprecationWarning)
"""


def test_kernels_are_compiled_if_that_is_asked_for(tmp_path, capsys):
    """With `--kernels`, a kernel that a test calls is a function of `jax.jit` plainly, and of `fx.jit` with ours."""
    (tmp_path / "kernel_test.py").write_text(
        """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def double(ref, out_ref):
    out_ref[...] = 2 * ref[...]

def test_kernel():
    kernel = pl.pallas_call(double, jax.ShapeDtypeStruct((2,), jnp.int32), interpret=True)
    assert kernel(jnp.arange(2)).tolist() == [0, 2]
    assert not type(kernel).__module__.startswith("effects"), type(kernel)
"""
    )
    command = ["--jax-tests", str(tmp_path), "kernel_test.py", "--results", str(tmp_path / "results")]
    assert main([*command, "--kernels"]) == 1
    out = capsys.readouterr().out
    assert "0 of 1 tests" in out and "AssertionError: <class 'effects." in out


def test_some_of_each():
    """Tests that differ in their parameters only count together, as JAX's names tell."""
    each = [f"a_test.py::A::test_{name}" for name in ("f0", "f1", "f2", "g_jit=True_n=3", "g_jit=False_n=3", "x64_on")]
    assert outcomes.some_of_each(each, 1) == {each[0], each[3], each[5]}
    assert outcomes.some_of_each(each, 2) == {*each} - {each[2]}


def test_command_says_where_it_found_no_tests(tmp_path, capsys):
    """A folder without tests is an error, not a success."""
    with pytest.raises(SystemExit):
        main(["--jax-tests", str(tmp_path)])
    assert "There are no tests at" in capsys.readouterr().err
