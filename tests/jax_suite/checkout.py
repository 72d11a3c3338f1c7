"""A pytest plugin: what the installed JAX lacks of its own helpers for tests is taken from the checkout."""

from __future__ import annotations

from pathlib import Path

import jax._src

jax._src.__path__.append(str(Path.cwd().parent / "jax" / "_src"))  # tests run in the checkout's `tests/`
