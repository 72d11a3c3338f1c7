"""A process that reads run files, and imports nothing but what the command `effects` imports.

It takes a request as a line of JSON, and answers with one: `python -m tests.oracle.runs.reader`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import Any

from effects import cli

FIELDS = ("text", "effect", "level", "ordered", "lane", "grid", "token", "device", "process")


def _command(*words: str) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = cli.main(words)
    return {"status": status, "output": output.getvalue(), "errors": errors.getvalue()}


def _read(paths: list[str]) -> dict[str, Any]:
    from effects import runs

    run = runs.read(*paths)
    return {
        "show": _command("show", "--strict", *paths),
        "json": _command("show", "--strict", "--json", *paths),
        "records": [{name: getattr(record, name, None) for name in FIELDS} for record in run],
        "lost": sum(process.lost for process in run.processes),
    }


def _diff(paths: list[str]) -> dict[str, Any]:
    from effects import runs

    if any(_has_no_call(path) for path in paths):  # later records have overwritten all calls of the user's threads
        try:
            runs.diff(*paths)
        except runs.RunError as error:
            return {"refused": str(error)}
    difference = runs.diff(*paths)
    parting = difference.parting
    return {
        "command": _command("diff", *paths),
        "equal": difference.equal,
        "sites": [
            {
                "title": site.title,
                "counts": [site.compared, site.differing, site.only_a, site.only_b],
            }
            for site in difference.sites
        ],
        "parting": parting and [site and site.title for site in (parting.a, parting.b)],
    }


def _has_no_call(path: str) -> bool:
    from effects import runs
    from effects._model.wire import FIRST_NESTED_THREAD, Kind

    run = runs.read(path)
    threads = (event.program[0] for event in run.events() if event.kind == Kind.DISPATCHED)
    return all(process.is_cut for process in run.processes) and all(each >= FIRST_NESTED_THREAD for each in threads)


class Reader:
    """The process, as the one that starts it sees it. `slip`: code that it runs first, which gets something wrong."""

    def __init__(self, slip: str = "") -> None:
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{slip}\nfrom tests.oracle.runs.reader import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, what: str, *paths: str) -> dict[str, Any]:
        """The answer to a request, `read` or `diff`.

        Raises:
          AssertionError: if the process raised something, or has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, paths]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the reader ended with {self._process.wait()}"
        answer = json.loads(line)
        assert "failed" not in answer, f"the reader failed\n\n{answer['failed']}"
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main() -> None:
    output = sys.stdout
    for line in sys.stdin:
        what, paths = json.loads(line)
        try:
            answer = {"read": _read, "diff": _diff}[what](paths)
        except Exception:
            import traceback

            answer = {"failed": traceback.format_exc()}
        output.write(json.dumps(answer) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
