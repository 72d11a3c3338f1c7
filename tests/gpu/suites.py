"""Tests that other tests run, in an interpreter with variables of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.helpers import NO_PLUGINS, ROOT


def assert_passes(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Runs pytest with these arguments."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        env={**os.environ, **NO_PLUGINS, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])
