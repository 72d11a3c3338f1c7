"""`EFFECTS_SITES`: filters that a process starts with."""

from __future__ import annotations

import pytest

from tests.helpers import run_python

pytestmark = pytest.mark.slow

CODE = """
import jax, logging
import effects as fx
if LEVEL:
    logging.getLogger("effects").setLevel(LEVEL)

@fx.jit
def f():
    def body(i, _):
        fx.print("a {}", i)
        fx.print("b {}", i)
        fx.log("c", i=i, level="debug")
    jax.lax.fori_loop(0, 4, body, None)
    fx.callback(lambda: print("called"), None)

f()
fx.print("eager")
fx.effects_barrier()
"""
A, B = 10, 11  # the lines of the prints of the loop


def run(tmp_path, rules, level=None):
    path = tmp_path / "job.py"
    code = CODE.replace("LEVEL", repr(level))
    assert code.splitlines()[A - 1].strip().startswith('fx.print("a')
    path.write_text(code)
    done = run_python(f"import runpy; runpy.run_path({str(path)!r})", env={"EFFECTS_SITES": rules})
    return done


def shown(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ALL = [line for i in range(4) for line in (f"a {i}", f"b {i}")] + ["called", "eager"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", ALL),
        (f"job.py:{A}=off", [line for line in ALL if line[:2] != "a "]),
        (f"job.py:{A}:every=3", [line for line in ALL if line not in ("a 1", "a 2")]),
        ("job.py=off", []),
        (f"*.py=off; job.py:{B}=on;", [line for line in ALL if line[:2] == "b "]),
        ("other.py=off", ALL),
        (f"job.py:{A}:level=warning;job.py:{B}:level=40", ["called", "eager"]),
        (f"job.py:every=2;job.py:{A}:every=1", [line for line in ALL if line not in ("b 1", "b 3")]),
    ],
)
def test_rules(tmp_path, rules, expected):
    """Rules are for lines that come from then on, one rule after the other."""
    assert shown(run(tmp_path, rules)) == expected


def test_level_of_the_environment_and_of_the_logger(tmp_path):
    """A rule's level is in place of the logger's."""
    expected = [*(f"a {i}" for i in range(4)), "called"]  # a callback without a level is no line
    assert shown(run(tmp_path, f"job.py:{A}:level=debug", "ERROR")) == expected


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("job.py", "has the rule 'job.py'"),
        ("job.py=of", "has the rule 'job.py=of'"),
        ("job.py:every=x", "has the rule 'job.py:every=x'"),
        ("job.py:every=0", "was given 0. `every` is a positive whole number"),
        ("job.py:level=loud", "was given 'loud'. A level is a whole number"),
        ("=off", "has the rule '=off'"),
    ],
)
def test_rules_that_are_none(tmp_path, rule, said):
    """A rule that says nothing ends the process at its start, with what a rule is."""
    done = run(tmp_path, rule)
    assert done.returncode == 1
    assert f"`EFFECTS_SITES` in the environment {said}" in done.stderr.splitlines()[-1]
