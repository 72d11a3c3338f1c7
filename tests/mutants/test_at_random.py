"""Lines are deleted and negated where that can be noticed, and only the tests that come there are run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.mutants import lines as lines_of_tests
from tests.mutants.__main__ import main
from tests.mutants.at_random import choose, run_at_random
from tests.mutants.places import places

PYTHON = '''"""Words."""
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import other
table = {}
table.update(a=1)

class Thing:
    __slots__ = ("x",)
    y: int = 3

def f(x, items=()):
    """More words."""
    logging.info("x is %s", x)
    known = x + 1
    x = known
    if x > 1 and items:
        raise ValueError("no" if x == 2 else "never")
    for item in items:
        if not item: continue
        table[item] = x
    while True:
        return [item for item in items if item is not x]
    assert x
    return x
'''
OF_PYTHON = [
    "8: `table.update(a=1)` is deleted.",
    "18: `x = known` is deleted.",
    "19: `x > 1 and items` is negated.",
    "19: `x > 1` is negated.",
    "19: `items` is negated.",
    "22: `not item` is negated.",
    "22: `continue` is deleted.",
    "23: `table[item] = x` is deleted.",
    "25: `return [item for item in items if item is not x]` is deleted.",
    "25: `item is not x` is negated.",
]
CPP = """#include <atomic>
using Words = int;
void Play::run(int count) { // of words
  const int next = count + 1;
  Words words;
  number_ = next;
  if (count < 0) return;
  if (const int it = find(); it > 0) ++number_;
  while (number_ > 0) number_ -= 1;
  if (count > 3 &&
      next > 4)
    release(count,
            next);
  going.store(false, std::memory_order_release);
  asked[count]->call(count); // and more
  it->second.go();
  return;
}
"""
OF_CPP = [
    "6: `number_ = next;` is deleted.",
    "7: `count < 0` is negated.",
    "7: `return;` is deleted.",
    "8: `++number_;` is deleted.",
    "9: `number_ > 0` is negated.",
    "9: `number_ -= 1;` is deleted.",
    "16: `it->second.go();` is deleted.",
    "17: `return;` is deleted.",
]


@pytest.mark.parametrize(("file", "source", "expected"), [("a.py", PYTHON, OF_PYTHON), ("a.cc", CPP, OF_CPP)])
def test_places_are_statements_and_conditions(file: str, source: str, expected: list[str]) -> None:
    """Nothing is touched that declares, only says something, or cannot be left out."""
    found = places(file, source)
    assert [f"{slip.name.removeprefix(file + ':')}: {slip.wrong}" for slip, _ in found] == expected
    for slip, at in found:
        assert slip.new != source and slip.new.count("\n") == source.count("\n")
        assert [slip.name.endswith(":8")] == [not at] or file.endswith(".cc")  # what runs when it is imported
        if file.endswith(".py"):
            compile(slip.new, file, "exec")


def test_line_is_found_after_an_edit() -> None:
    """A line that has moved is the one that it was; a new one is as those around it."""
    assert lines_of_tests._old_lines("a\nb\nc\n", "a\nnew\nb\nc\n")[1:] == [(1,), range(1, 3), (2,), (3,)]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product with a test for one of its two functions, and an interpreter that runs the third."""
    monkeypatch.setattr(lines_of_tests, "KEPT", tmp_path / "kept")
    root = tmp_path / "tree"
    (root / "lowering").mkdir(parents=True)
    (root / "tests/lowering").mkdir(parents=True)
    (root / "pytest.ini").touch()
    (root / "lowering/sign.py").write_text(
        "def sign(x):\n    if x < 0:\n        return -1\n    return 1\n\n\n"
        "def size(x):\n    if x < 0:\n        return -x\n    return x\n\n\n"
        "def main():\n    if sign(-2) != -1:\n        raise ValueError\n"
    )
    (root / "tests/lowering/test_sign.py").write_text(
        "import subprocess, sys\nsys.path.insert(0, '.')\nfrom lowering.sign import sign\n"
        "program = [sys.executable, '-c', 'import lowering.sign as s; s.main()']\n"
        "def test_sign():\n    assert sign(-5) == -1\n"
        "def test_main():\n    subprocess.run(program, check=True)\n"
        "def test_broken():\n    assert sign(5) == 0\n"
    )
    return root


def test_survivors_of_a_tiny_tree(tree: Path) -> None:
    """What no test runs survives; what a test, or its interpreter, runs is caught; a broken test says nothing."""
    if not hasattr(sys, "monitoring"):
        with pytest.raises(SystemExit):
            main(["--random", "1"])
        return
    said: list[str] = []
    assert run_at_random(["lowering"], 9, 0, 60, tree=tree, say=said.append) == 1
    assert said[-1] == "\n5 slips: 3 caught, 2 survived, 0 not tried"
    assert sorted(text.split()[0] for text in said[-3:-1]) == ["lowering/sign.py:8", "lowering/sign.py:9"]
    assert sum("test_main" in text for text in said if text.startswith("caught")) == 1
    assert not any("test_broken" in text for text in said)


def test_choice_is_that_of_the_seed(tree: Path) -> None:
    """The same seed chooses the same lines, each once; a line that is named is tried in all ways."""
    first, again, other = (choose(tree, ["lowering"], 3, seed) for seed in (1, 1, 2))
    assert first == again != other and len({slip.name for slip, _ in first}) == 3
    assert [slip.wrong for slip, _ in choose(tree, ["lowering/sign.py:2"], 1, 0)] == ["`x < 0` is negated."]
