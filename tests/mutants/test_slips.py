"""The slips follow the code, and the command says what becomes of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import NO_PLUGINS, ROOT
from tests.mutants import copy as copy_of_tree
from tests.mutants.__main__ import main
from tests.mutants.command import chosen
from tests.mutants.copy import Copy, NotFound
from tests.mutants.slip import Slip, is_native_test, native_name
from tests.mutants.slips import PARTS, SLIPS
from tests.native_program import NAMES


def test_slips_are_found_once() -> None:
    """A slip's old text stands where it says, once: if the code changes there, so must the slip."""
    times = {slip.name: (ROOT / slip.file).read_text().count(slip.old) for slip in SLIPS}
    assert {name: count for name, count in times.items() if count != 1} == {}
    for slip in SLIPS:
        assert slip.new != slip.old and slip.wrong.endswith(".") and slip.tests, slip.name
        if slip.is_native:
            assert slip.file.endswith(".cc") and all(map(is_native_test, slip.tests)), slip.name


def test_slips_are_named_like_their_part() -> None:
    """Each has a name of its own, which begins with that of its part."""
    names = [slip.name for slip in SLIPS]
    assert len(set(names)) == len(names)
    for part in PARTS:
        name = part.__name__.rpartition(".")[2]
        assert part.SLIPS and all(slip.name.startswith(f"{name}.") for slip in part.SLIPS)


@pytest.mark.slow
def test_tests_of_slips_exist() -> None:
    """pytest finds all that are to notice slips."""
    tests = {test for slip in SLIPS for test in slip.tests}
    native = {native_name(test) for test in tests if is_native_test(test)}
    assert native <= set(NAMES)
    assert all((ROOT / test.partition("::")[0]).exists() for test in tests)
    others = sorted(test for test in tests if not is_native_test(test))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *others]
    env = {**os.environ, **NO_PLUGINS}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_chosen_by_name_and_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    """`--only` takes either, and an unknown one is an error."""
    assert chosen(SLIPS, []) == list(SLIPS)
    assert [slip.name for slip in chosen(SLIPS, ["masks.nested"])] == ["masks.nested"]
    assert {slip.name.partition(".")[0] for slip in chosen(SLIPS, ["rings", "filters"])} == {"rings", "filters"}
    assert main(["--list", "--only", "masks.nested"]) == 0
    assert capsys.readouterr().out.startswith("masks.nested: ")
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])


def test_slip_is_made_in_the_copy_alone(tmp_path: Path) -> None:
    """The tree stays as it is; the copy is right again after the slip."""
    [slip] = chosen(SLIPS, ["masks.nested"])
    source = (ROOT / slip.file).read_text()
    copy = Copy(tmp_path)
    in_copy = tmp_path / "tree" / slip.file
    with copy.with_slip(slip):
        assert in_copy.read_text() == source.replace(slip.old, slip.new)
        assert (ROOT / slip.file).read_text() == source
    assert in_copy.read_text() == source
    with pytest.raises(NotFound), copy.with_slip(dataclasses.replace(slip, old="not there")):
        pass


@pytest.mark.slow
def test_slip_is_caught_by_its_tests(tmp_path: Path) -> None:
    """The tests run against the copy: they pass there, and fail with a slip."""
    test = "tests/effects/test_assert_order.py"
    slip = Slip("part.order", "dispatch/testing.py", "def assert_order(", "def other(", "It is gone.", (test,))
    copy = Copy(tmp_path)
    assert not copy.check(slip.tests).failed
    with copy.with_slip(slip):
        assert copy.check(slip.tests, slip).failed


@pytest.mark.slow
def test_slip_that_hangs_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that does not end with a slip notices it."""
    monkeypatch.setattr(copy_of_tree, "SECONDS", 2)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/pytest.ini").touch()
    (tmp_path / "tree/test_it.py").write_text("import time\ndef test_it():\n    while True: time.sleep(1)\n")
    (tmp_path / "copy").mkdir()
    verdict = Copy(tmp_path / "copy", tmp_path / "tree").check(["test_it.py"] * 100)
    assert (verdict.failed, verdict.why, verdict.was_run) == (True, "a test is still running after 2 s", True)
