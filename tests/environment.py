"""The environment of the tests, and of the interpreters that they start. It is set before JAX is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs"
"""The folder of what XLA compiles for tests: JAX's cache of compiled programs."""


def xla_flags(devices: int, given: str = "") -> str:
    """Flags for so many CPU devices, with which XLA compiles a program sooner: it hardly optimizes.

    Compilation is most of what many tests do, and no effect depends on how a program is optimized. The flags would hold
    for a GPU too: where JAX has a plugin for one, they are left out. Those that are `given` have precedence, except for
    the number of devices. The campaigns of `tests.oracle` run with XLA's own settings.
    """
    flags = []
    if importlib.util.find_spec("jax_plugins") is None:
        flags += ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
        flags += ["--xla_cpu_parallel_codegen_split_count=1"]  # no program of a test is large enough for more
        if importlib.metadata.version("jax").startswith("0.10."):  # later versions know no such flag
            flags += ["--xla_cpu_use_fusion_emitters=false"]
    return " ".join([*flags, given, f"--xla_force_host_platform_device_count={devices}"])


def environment() -> dict[str, str]:
    """Variables for this interpreter and those that tests start.

    Several interpreters share a GPU, so none takes most of its memory at once, unless that is asked for.

    Interpreters share what Python compiles. If it is not to be written beside the sources, it is written into a
    temporary folder, unless the environment names another one; an empty name stands for none.

    They share what XLA compiles, too, in the folder of pytest's cache. Many programs are compiled by several tests or
    interpreters, and all of them by a second run. JAX 0.10 may crash where it writes such a program.
    """
    variables = {
        "XLA_FLAGS": xla_flags(4, os.environ.get("XLA_FLAGS", "")),
        "XLA_PYTHON_CLIENT_PREALLOCATE": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    }
    if os.environ.get("PYTHONDONTWRITEBYTECODE") and "PYTHONPYCACHEPREFIX" not in os.environ:
        folder = Path(tempfile.gettempdir(), f"token-effects-{os.getuid()}-bytecode")
        variables |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}
    is_safe = not importlib.metadata.version("jax").startswith("0.10.") and os.access(PROGRAMS.parents[1], os.W_OK)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and is_safe:
        variables |= {
            "JAX_COMPILATION_CACHE_DIR": str(PROGRAMS),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    return variables
