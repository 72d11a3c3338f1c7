"""What several tests need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def assert_order(seen: Sequence[Any], template: Sequence[Any]) -> None:
    """Compares what was seen with a template, in which a set stands for its elements in any order.

    >>> assert_order(["a", "c", "b", "d"], ["a", {"b", "c"}, "d"])
    """
    seen = list(seen)
    position = 0
    for expected in template:
        count = len(expected) if isinstance(expected, set) else 1
        got = seen[position : position + count]
        wanted = sorted(expected) if isinstance(expected, set) else [expected]
        assert (sorted(got) if isinstance(expected, set) else got) == wanted, (
            f"at {position}: expected {expected!r}, saw {got!r}; all that was seen: {seen!r}"
        )
        position += count
    assert position == len(seen), f"more than expected: {seen[position:]!r}"


def run_python(
    code: str, *, env: dict[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own, from the source tree."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
