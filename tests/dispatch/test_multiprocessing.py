"""Processes that `multiprocessing` starts: each shows its effects when its function returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT

pytestmark = pytest.mark.slow

SCRIPT = """
import json, multiprocessing, os, sys, warnings
from concurrent.futures import ProcessPoolExecutor

warnings.simplefilter("ignore")  # JAX warns of forks
import jax
import effects as fx

class Handler:
    def handle(self, record): pass
    def close(self): print("closed", flush=True)

def raises(x):
    raise ValueError("boom")

def shows(x):
    fx.add_handler(Handler())
    fx.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, _: fx.print("{} {}", x, i), None))(x)

def fails(x):
    shows(x)
    with fx.config.override(errors="barrier"):
        fx.jit(lambda x: fx.callback(raises, None, x))(x)

def fails_and_exits(x):
    fails(x)
    raise SystemExit(3)

def puts(queue):
    fx.jit(lambda x: fx.callback(lambda x: queue.put(int(x)), None, x))(5)

def forks(x):
    shows(x)
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)

if __name__ == "__main__":
    start, *functions = sys.argv[1:]
    context = multiprocessing.get_context(start)
    codes = {}
    for name in functions:
        print(name, flush=True)
        process = context.Process(target=globals()[name], args=(1,))
        process.start()
        process.join(120)
        codes[name] = process.exitcode
    print("puts", flush=True)
    queue = context.Queue()
    process = context.Process(target=puts, args=(queue,))
    process.start()
    codes["queue"] = queue.get(timeout=30)
    process.join(120)
    print("pool", flush=True)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(shows, 2).result(120)
    print(json.dumps(codes), flush=True)
"""


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
def test_effects_of_a_child_are_shown_when_its_function_returns(start, tmp_path):
    """It waits for none of them: they are shown, handlers are closed, and a failure that was not seen is reported. It
    gives the code where the process ends as others do, which forked ones do not."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    functions = ["fails", "fails_and_exits", *["shows", "forks"] * (start == "fork")]  # others import everything again
    command = [sys.executable, str(script), start, *functions]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    *lines, codes = done.stdout.splitlines()
    shown = ["1 0", "1 1", "1 2", "closed"]
    pool = ["pool", "2 0", "2 1", "2 2", "closed"]
    assert lines == [line for name in functions for line in (name, *shown)] + ["puts", *pool]
    expected = {"shows": 0, "fails": int(start == "spawn"), "fails_and_exits": 3, "forks": 0}
    assert json.loads(codes) == {name: expected[name] for name in functions} | {"queue": 5}
    assert done.stderr.count("ValueError: boom") == 2, done.stderr  # reported at the end
