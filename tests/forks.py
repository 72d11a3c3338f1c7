"""Processes of their own that have imported JAX and this library, and have used neither.

They are forked off a process that has imported them, and so start at once. They are for checks of what a process does
until its exit handlers have run. What it imports, what is read at the import, and how it ends then is checked in an
interpreter of its own, of `tests.helpers.run_python`, which takes seconds longer.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

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
    code: str, *, file: str = "<string>", env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Runs code as `run_python` does, in a process that has imported JAX and this library already.

    What these read when they are imported is as it was when the tests began, whatever `env` says of it. The process
    ends when its exit handlers have run, without taking its modules apart.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = start(run_code, code, file, {**os.environ, **(env or {})}, *map(str, outputs))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(code, timeout, *(path.read_bytes() for path in outputs))
        return subprocess.CompletedProcess(code, process.exitcode, *(path.read_text() for path in outputs))


def run_code(code: str, file: str, env: dict[str, str], *outputs: str) -> None:
    """Runs code in this process and ends it. Standard output and error are added to these files."""
    for number, name in zip((1, 2), outputs, strict=True):
        with open(name, "ab") as output:
            os.dup2(output.fileno(), number)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = _status_of(code, file, main)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # of one that is None or closed
            stream.flush()
    os._exit(status)


def _status_of(code: str, file: str, main: types.ModuleType) -> int:
    try:
        exec(compile(code, file, "exec"), vars(main))
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        assert error.__traceback__ is not None
        error = error.with_traceback(error.__traceback__.tb_next)  # this frame is none of the program's
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0
