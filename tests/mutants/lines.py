"""Which tests run which lines of the product, from one run of them: a slip needs only those that come there.

What a file of tests ran is kept outside of the tree, by the file's text, with the product's sources as they were then:
a line is found again by what stands around it. So only files of tests that have changed are run again.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tests.helpers import NO_PLUGINS
from tests.mutants.slip import Slip

KEPT = Path(tempfile.gettempdir(), f"token-effects-{os.getuid()}-lines-{sys.version_info[0]}.{sys.version_info[1]}")
_FEW = 5
RECORDING = Path(__file__).parent / "recording"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Lines:
    """The lines of some files that tests run, in the copy of the tree in `root`. `tests`: patterns of their files."""

    def __init__(self, root: Path, files: Collection[str], tests: Sequence[str], say: Callable[[str], None]) -> None:
        KEPT.mkdir(exist_ok=True)
        names = [str(file.relative_to(root)) for each in tests for file in sorted(root.glob(each))]
        kept = {name: KEPT / f"{_digest(name + (root / name).read_text())}.json" for name in names}
        if missing := [name for name in names if not _is_of(root, kept[name])]:
            say(f"{len(missing)} files of tests run once, to see which lines they run.")
            with tempfile.TemporaryDirectory(prefix="mutants-") as into:
                record(root, missing, Path(into))
                keep(root, Path(into), {name: kept[name] for name in missing})
        self._seconds: dict[str, float] = {}
        self._at: dict[tuple[str, str], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name in names:
            for test, (seconds, lines) in json.loads(kept[name].read_text()).items():
                self._seconds[test] = seconds
                for key, numbers in lines.items():
                    file, digest = key.split("@")
                    for number in numbers if file in files else ():
                        self._at[file, digest][number].add(test)

    def tests_of(self, slip: Slip, lines: range, budget: float) -> tuple[str, ...]:
        """The tests that run one of these lines, for so many seconds: of each function the shortest, then others. First
        come all those whose file is named like the slip's: what runs once in a process, or in one that tests share, is
        seen in one of them."""
        found: set[str] = set()
        in_file: set[str] = set()
        for (file, digest), at in self._at.items():
            if file == slip.file:
                old = _old_lines((KEPT / digest).read_text(), slip.old)
                found.update(*(at.get(number, ()) for line in lines for number in old[line]))
                in_file.update(*at.values())
        named = f"/test_{Path(slip.file).stem}.py::"
        found.update(test for test in self._seconds if named in test)
        chosen = self._for_seconds(found, budget, named)
        if len(found) < _FEW:  # it may run when modules are imported, which is not in a test but in what one starts
            chosen += self._for_seconds(in_file - found, budget / 4, named)
        return tuple(chosen)

    def _for_seconds(self, tests: Collection[str], budget: float, named: str) -> list[str]:
        order: list[tuple[bool, int, float, str]] = []
        seen: dict[str, int] = defaultdict(int)
        for seconds, test in sorted((self._seconds[test], test) for test in tests):
            function = test.partition("[")[0]
            order.append((named not in test, seen[function], seconds, test))
            seen[function] += 1
        chosen: list[str] = []
        for *_, seconds, test in sorted(order):
            budget -= seconds
            if budget > 0 or not chosen:
                chosen.append(test)
        return chosen


def _is_of(root: Path, record: Path) -> bool:
    """Whether a file of tests has been recorded, and what it ran is still in the same files."""
    if not record.exists():
        return False
    tests = json.loads(record.read_text()).values()
    return all((root / file).exists() for file in {key.partition("@")[0] for _, lines in tests for key in lines})


@functools.cache
def _old_lines(old: str, new: str) -> list[Sequence[int]]:
    """By the number of a line, which it had in an older text; of new ones, those that stand around them."""
    numbers: list[Sequence[int]] = [()]
    a, b = old.splitlines(), new.splitlines()
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        numbers += [(i1 + at + 1,) if tag == "equal" else range(i1, i2 + 2) for at in range(j2 - j1)]
    return numbers


def record(root: Path, tests: Sequence[str], into: Path) -> None:
    """Runs tests once; each process writes what it ran into a folder."""
    python_path = os.pathsep.join([str(RECORDING), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {
        **os.environ,
        **NO_PLUGINS,
        "MUTANTS_ROOT": str(root),
        "MUTANTS_RECORD_INTO": str(into),
        "PYTHONPATH": python_path,
    }
    options = ["-q", "-p", "sitecustomize", "-p", "no:cacheprovider", "--tb=no"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # as the plugin is imported before pytest
    subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=root, env=env, check=False)


def keep(root: Path, into: Path, kept: dict[str, Path]) -> None:
    """Keeps what was recorded, for each file of tests, and the sources that it is about."""
    digests: dict[str, str] = {}
    tests: dict[str, dict[str, Any]] = {name: {} for name in kept}
    for line in (line for file in sorted(into.glob("*.jsonl")) for line in file.read_text().splitlines()):
        record = json.loads(line)
        seconds, lines = tests[record["test"].partition("::")[0]].setdefault(record["test"], (0.0, {}))
        for name, numbers in record["lines"].items():
            if name not in digests:
                text = (root / name).read_text()
                digests[name] = _digest(text)
                (KEPT / digests[name]).write_text(text)
            of_file = lines.setdefault(f"{name}@{digests[name]}", [])
            of_file += sorted(set(numbers).difference(of_file))
        tests[record["test"].partition("::")[0]][record["test"]] = (seconds + record["seconds"], lines)
    for name, path in kept.items():  # a test that has failed has only what interpreters wrote that it started
        path.write_text(json.dumps({test: value for test, value in tests[name].items() if value[0]}))
