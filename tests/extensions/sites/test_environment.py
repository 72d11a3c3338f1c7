"""`EFFECTS_SITES`: filters that a process starts with."""

from __future__ import annotations

import pytest

from tests.helpers import run_each_after_jax

pytestmark = pytest.mark.slow

CODE = """
import logging
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
A, B = (CODE.splitlines().index(f'        fx.print("{name} {{}}", i)') + 1 for name in "ab")


def run(rules):
    """What processes with these rules, each with a level of the logger, end with and show."""
    return run_each_after_jax(
        {
            rule: f"import os; os.environ['EFFECTS_SITES'] = {rule!r}\n"
            f"exec(compile({CODE.replace('LEVEL', repr(level))!r}, '/somewhere/job.py', 'exec'))"
            for rule, level in rules.items()
        }
    )


ALL = [line for i in range(4) for line in (f"a {i}", f"b {i}")] + ["called", "eager"]
RULES = {
    "": ALL,
    f"job.py:{A}=off": [line for line in ALL if line[:2] != "a "],
    f"job.py:{A}:every=3": [line for line in ALL if line not in ("a 1", "a 2")],
    "job.py=off": [],
    f"*.py=off; job.py:{B}=on;": [line for line in ALL if line[:2] == "b "],
    "other.py=off": ALL,
    f"job.py:{A}:level=warning;job.py:{B}:level=40": ["called", "eager"],
    f"job.py:every=2;job.py:{A}:every=1": [line for line in ALL if line not in ("b 1", "b 3")],
}


def test_rules():
    """Rules are for lines that come from then on, one rule after the other; a rule's level is in the logger's place."""
    expected = {rule: (0, lines) for rule, lines in RULES.items()}
    debug = f"job.py:{A}:level=debug"
    expected[debug] = (0, [*(f"a {i}" for i in range(4)), "called"])  # a callback without a level is no line
    done = run({**dict.fromkeys(RULES), debug: "ERROR"})
    assert {rule: (status, output.splitlines()) for rule, (status, output) in done.items()} == expected


NO_RULES = {
    "job.py": "has the rule 'job.py'",
    "job.py=of": "has the rule 'job.py=of'",
    "job.py:every=x": "has the rule 'job.py:every=x'",
    "job.py:every=0": "was given 0. `every` is a positive whole number",
    "job.py:level=loud": "was given 'loud'. A level is a whole number",
    "=off": "has the rule '=off'",
}


def test_rules_that_are_none():
    """A rule that says nothing ends the process at its start, with what a rule is."""
    for rule, (status, output) in run(dict.fromkeys(NO_RULES)).items():
        assert status == 1
        assert f"`EFFECTS_SITES` in the environment {NO_RULES[rule]}" in output.splitlines()[-1]
