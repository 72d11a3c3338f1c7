"""Processes of their own that have imported JAX and this library, and have used neither.

They are forked off a process that has imported them, and so start at once. They are for checks of what a process does,
and not of how it starts and ends: an interpreter of its own, of `tests.helpers.run_python`, takes seconds to import
what it needs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import effects as fx
from tests.helpers import ROOT

context = multiprocessing.get_context("forkserver")
_ENVIRONMENT = dict(os.environ)  # before tests change it


@functools.cache
def _start_server() -> None:
    context.set_forkserver_preload(
        ["effects", "equinox", "optax", "flax.nnx", "flax.linen", "jax.experimental.pallas", "tests.helpers"]
    )
    with mock.patch.dict(os.environ, _ENVIRONMENT, clear=True):
        multiprocessing.forkserver.ensure_running()


def start(target: Callable[..., None], *args: Any) -> BaseProcess:
    """Starts a process that calls a function of a module."""
    _start_server()
    process = context.Process(target=target, args=args)
    process.start()
    return process


def run_forked(
    code: str, *, env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Runs code as `run_python` does, in a process that has imported JAX and this library already.

    What these read when they are imported is as it was when the tests began, whatever `env` says of it. The process
    waits for its effects and ends at once, without what an interpreter does at its exit.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = start(_run, code, {**os.environ, **(env or {})}, *map(str, outputs))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(code, timeout, *(path.read_bytes() for path in outputs))
        return subprocess.CompletedProcess(code, process.exitcode, *(path.read_text() for path in outputs))


def _run(code: str, env: dict[str, str], *outputs: str) -> None:
    for number, name in zip((1, 2), outputs, strict=True):
        with open(name, "wb") as file:
            os.dup2(file.fileno(), number)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = _status_of(code, main)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _status_of(code: str, main: types.ModuleType) -> int:
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
        fx.effects_barrier(all_threads=True, timeout=120)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
