"""A page's blocks as one session of Python's, in a process of its own that has imported JAX and not used it yet."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import linecache
import os
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import forks
from tests.docs.pages import Block
from tests.helpers import ROOT


def run(blocks: Sequence[Block], folder: Path, timeout: float) -> list[str]:
    """What each block shows, up to the one that ends the session."""
    ours, theirs = forks.context.Pipe(duplex=False)
    process = forks.start(_run, blocks, str(folder), theirs)
    theirs.close()
    try:
        shown = ours.recv() if ours.poll(timeout) else [f"did not end within {timeout} s"]
    except EOFError:
        shown = ["the process ended"]
    process.kill()
    process.join()
    return shown


def _run(blocks: Sequence[Block], folder: str, results: Any) -> None:
    os.chdir(folder)
    port = _free_port()
    blocks = [dataclasses.replace(block, code=block.code.replace("12345", port)) for block in blocks]
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join(flag for flag in flags if "device_count" not in flag)  # the page says how many
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    session = sys.modules["__main__"] = types.ModuleType("__main__")
    results.send([_shown_by(block, session) for block in blocks])
    results.close()


def _free_port() -> str:
    """In place of the port that pages name, which another process may have."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _shown_by(block: Block, session: types.ModuleType) -> str:
    if block.kind == "file":
        Path(block.file).write_text(block.code)
        return ""
    if block.kind == "command":
        done = subprocess.run(
            block.code, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout
    return _shown_by_python(block.code, session)


def _shown_by_python(code: str, session: types.ModuleType) -> str:
    import effects as fx

    linecache.cache["program.py"] = len(code), None, code.splitlines(keepends=True), "program.py"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(compile(code, "program.py", "exec"), vars(session))
            fx.effects_barrier(all_threads=True, timeout=60)
        except Exception as error:
            with contextlib.suppress(Exception):
                fx.effects_barrier(all_threads=True, timeout=60)
            traceback.print_exception(error, file=out)
    return out.getvalue()
