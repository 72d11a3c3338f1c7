"""Programs over several processes of one `jax.distributed`."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests import forks
from tests.environment import xla_flags


@dataclasses.dataclass
class Process:
    """One of several processes, after its end: what it reported, and what it wrote."""

    returncode: int | None
    report: dict[str, Any]
    output: str


def run_processes(code: str, count: int, *, devices: int = 1, timeout: float = 220) -> list[Process]:
    """Runs code in several processes of one `jax.distributed`, or in one by itself, each with so many CPU devices.

    What the code puts into the dictionary `report` comes back, if it gets to the end or calls `write_report()`. None is
    left running, whatever happens.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        started: list[BaseProcess] = []
        reports = [Path(folder, f"{process}.json") for process in range(count)]
        outputs = [Path(folder, f"{process}.txt") for process in range(count)]
        try:
            for process, (report, output) in enumerate(zip(reports, outputs, strict=True)):
                start = _PROCESS.format(port=port, count=count, process=process, report=str(report))
                env = {**os.environ, "XLA_FLAGS": xla_flags(devices)}
                started.append(
                    forks.start(forks.run_code, f"{start}{code}\nwrite_report()\n", "<string>", env, *2 * [str(output)])
                )
            deadline = time.monotonic() + timeout
            for each in started:
                each.join(max(0.1, deadline - time.monotonic()))  # if it has not ended, its output says how far it got
        finally:
            for each in started:
                each.kill()
                each.join()
        said = [json.loads(report.read_text()) if report.exists() else {} for report in reports]
        texts = [output.read_text(errors="replace") for output in outputs]
        return [Process(each.exitcode, *rest) for each, *rest in zip(started, said, texts, strict=True)]


_PROCESS = """
import faulthandler, json
faulthandler.dump_traceback_later(200, exit=True)
import jax
PROCESS, PROCESSES = {process}, {count}

def start(**options):
    if PROCESSES > 1:
        jax.distributed.initialize("127.0.0.1:{port}", PROCESSES, PROCESS, **options)

report = {{}}

def write_report():
    with open({report!r}, "w") as file:
        json.dump(report, file)

"""
