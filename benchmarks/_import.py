"""What the import of the library takes beyond that of JAX."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks._cases import Result, case
from benchmarks._measure import Figure, interleave
from benchmarks._ratios import Ratio, cost

CODE = "import time; begin = time.process_time(); import {}; print(time.process_time() - begin)"
ALLOWED = 0.03


@case("import", "`import jax`, and `import jax, effects`, each in a fresh interpreter: processor time", "quick")
def import_time(repeats: int) -> Result:
    """With compiled bytecode at hand, which the round that warms up has written."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}

        def contender(modules: str) -> Callable[[], float]:
            command = [sys.executable, "-c", CODE.format(modules)]
            return lambda: float(subprocess.check_output(command, cwd=root, env=environment, text=True))

        figures = interleave({"jax": contender("jax"), "jax, effects": contender("jax, effects")}, repeats)
    jaxs, both = figures.values()
    beyond = Figure(tuple(b - a for a, b in zip(jaxs.rounds, both.rounds, strict=True)))
    ratios = [
        cost("jax, effects / jax", both, jaxs),
        Ratio(f"effects beyond jax / {1000 * ALLOWED:.0f} ms", beyond.per(ALLOWED).rounds, "less", 1),
    ]
    return Result("import", ratios, {**figures, "effects beyond jax": beyond})
