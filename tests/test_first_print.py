"""How much code a first print runs, so that the path of a value stays short enough to be read."""

from __future__ import annotations

import json

from tests.helpers import ROOT, run_python

MOST_FILES, MOST_FUNCTIONS = 32, 218
"""Of the three packages, in the thread that calls. They may be made smaller, and not larger without a reason."""

RECORD = f"""
import json, os, sys
import jax
import effects as fx

entered = set()

def note(frame, event, arg):
    if event == "call":
        file = os.path.relpath(os.path.realpath(frame.f_code.co_filename), {str(ROOT)!r})
        name = frame.f_code.co_qualname
        folder = file.split("/")[0]
        if folder in ("effects", "lowering", "dispatch", "extensions") and "<" not in name.rpartition(".")[2]:
            entered.add((file, name))

def body(total, x):
    fx.print("x = {{}}", x)
    return total + x, None

function = fx.jit(lambda xs: jax.lax.scan(body, 0.0, xs)[0])
xs = jax.numpy.arange(3.0)
sys.setprofile(note)
function(xs)
fx.effects_barrier()
sys.setprofile(None)
print(json.dumps(sorted(entered)))
"""


def test_first_print_enters_few_files():
    """The first call of a function that prints in a scan, until its lines are there, enters few files and functions."""
    done = run_python(RECORD)
    assert done.returncode == 0, done.stderr
    *printed, entered = done.stdout.splitlines()
    assert printed == ["x = 0.0", "x = 1.0", "x = 2.0"]
    functions = json.loads(entered)
    files = {file for file, _ in functions}
    assert {file.split("/")[0] for file in files} >= {"effects", "lowering", "dispatch"}
    assert (len(files), len(functions)) <= (MOST_FILES, MOST_FUNCTIONS)


def test_files_can_be_read_at_once():
    """No file of the product has more than 1,000 lines."""
    suffixes = (".py", ".pyi", ".h", ".cc")
    files = [
        path for folder in ("effects", "lowering", "dispatch", "extensions") for path in (ROOT / folder).rglob("*")
    ]
    lengths = {path: path.read_text().count("\n") for path in files if path.suffix in suffixes}
    assert [str(path) for path, length in lengths.items() if length > 1000] == []
