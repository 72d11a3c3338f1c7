"""The command: runs a library's own tests three times, plainly, with this library imported, and under `fx.install()`.

It prints how many tests pass each time, and each test that differs. Outcomes are kept in a folder as they come, so that
a command which was interrupted goes on. The status is 1 if a test differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.helpers import ROOT
from tests.jax_suite import outcomes
from tests.peers.in_place import WAY

WAYS = ("plain", "imported", "installed")

_TESTS = ("tests",)
_NAMED = ("-o", "python_files=*_test.py")  # how Google's libraries name files of tests
PEERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("equinox", "optimistix", "lineax", "blackjax", "jax-tqdm"), _TESTS),
    **dict.fromkeys(("diffrax", "numpyro"), ("test",)),
    **{name: (*_NAMED, name) for name in ("chex", "optax")},
    "flax": (*_NAMED, *_TESTS),
}
"""The arguments of pytest in a library's source, by library, unless the command names tests."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.peers", description="Runs a library's own tests in three ways.")
    parser.add_argument("name", choices=sorted(PEERS))
    parser.add_argument("--source", type=Path, required=True, help="the library's source, of the version installed")
    parser.add_argument("--results", type=Path, help="where outcomes are kept; by default a new folder")
    parser.add_argument("--only", default="", help="as pytest's -k")
    parser.add_argument("tests", nargs="*", help="files or folders in the source")
    options = parser.parse_intermixed_args(arguments)
    if not options.source.is_dir():
        parser.error(f"there is no folder {options.source}")
    results = options.results or Path(tempfile.mkdtemp(prefix=f"peers-{options.name}-"))
    results.mkdir(parents=True, exist_ok=True)
    tests = [*(options.tests or PEERS[options.name])]
    seen = {way: run(options.source, tests, options.only, way, results / f"{way}.jsonl") for way in WAYS}
    return report(seen)


def run(source: Path, tests: list[str], only: str, way: str, written: Path) -> dict[str, tuple[str, str]]:
    """Runs tests in a process, and again from the next test on where one ends it. Returns what became of each."""
    with tempfile.TemporaryDirectory() as folder:
        links = {
            "effects": ROOT / "effects",
            "effects_pytest.py": ROOT / "effects_pytest.py",
            "peers_outcomes.py": Path(outcomes.__file__),
            "peers_in_place.py": Path(__file__).with_name("in_place.py"),
        }
        for name, target in links.items():
            Path(folder, name).symlink_to(target)
        plugins = ["peers_outcomes", "peers_in_place", *["no:effects_pytest"] * (way == "plain")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [word for plugin in plugins for word in ("-p", plugin)] + (["-k", only] if only else [])
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, outcomes.FILE: str(written), WAY: way}
        while True:
            ended = _ended(written)
            status = subprocess.run([*command, *tests], cwd=source, env=environment, stdout=sys.stderr).returncode
            for test in set(outcomes.read(written)) - _ended(written):  # it took the process with it
                outcomes.write(written, test, f"ended its process with status {status}")
            if status in range(6) or _ended(written) == ended:
                return outcomes.read(written)


def _ended(written: Path) -> set[str]:
    return {test for test, (outcome, _) in outcomes.read(written).items() if outcome != outcomes.BEGAN}


def report(seen: dict[str, dict[str, tuple[str, str]]]) -> int:
    """Prints what passed each way, and what differs from plain. Returns the exit status."""
    differences = 0
    for way in WAYS:
        passed = sum(outcome == "passed" for outcome, _ in seen[way].values())
        print(f"{way:10} {passed} of {len(seen[way])} tests passed")
        for test in sorted({*seen[way], *seen["plain"]}):
            plain, now = (seen[which].get(test, ("not run", "")) for which in ("plain", way))
            if plain[0] != now[0]:
                differences += 1
                print(f"  {test}: {now[0]}, plainly {plain[0]}{': ' if now[1] else ''}{now[1]}")
    print(f"{differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
