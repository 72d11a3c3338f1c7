"""Lines are deleted and negated where that can be noticed, and only the tests that come there are run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.mutants import lines as lines_of_tests
from tests.mutants.__main__ import main
from tests.mutants.at_random import choose, run_at_random

pytestmark = pytest.mark.slow


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
    """What no test runs survives; what a test, or its interpreter, runs is caught; a broken test says nothing. So it is
    after a file has moved, too: tests that ran it are recorded again."""
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
    (tree / "lowering/sign").mkdir()
    (tree / "lowering/sign.py").rename(tree / "lowering/sign/__init__.py")
    assert run_at_random(["lowering"], 9, 0, 60, tree=tree, say=said.append) == 1
    assert said[-1] == "\n5 slips: 3 caught, 2 survived, 0 not tried"


def test_what_notices_a_slip_does_so_twice(tree: Path) -> None:
    """A test that fails now and then says nothing of a slip, and the others are asked."""
    if not hasattr(sys, "monitoring"):
        return
    (tree / "tests/lowering/test_sign.py").write_text(
        "import pathlib, sys\nsys.path.insert(0, '.')\nfrom lowering.sign import sign\n"
        f"runs = pathlib.Path({str(tree / 'runs')!r})\n"
        "def test_now_and_then():\n    sign(-5)\n    runs.mkdir(exist_ok=True)\n"
        "    count = len([*runs.iterdir()])\n    (runs / str(count)).touch()\n    assert count % 2 == 0\n"
    )
    said: list[str] = []
    assert run_at_random(["lowering/sign.py:3"], 1, 0, 60, tree=tree, say=said.append) == 1
    assert said[-1] == "\n1 slips: 0 caught, 1 survived, 0 not tried"
    assert len([*(tree / "runs").iterdir()]) == 3


def test_choice_is_that_of_the_seed(tree: Path) -> None:
    """The same seed chooses the same lines, each once; a line that is named is tried in all ways."""
    first, again, other = (choose(tree, ["lowering"], 3, seed) for seed in (1, 1, 2))
    assert first == again != other and len({slip.name for slip, _ in first}) == 3
    assert [slip.wrong for slip, _ in choose(tree, ["lowering/sign.py:2"], 1, 0)] == ["`x < 0` is negated."]
