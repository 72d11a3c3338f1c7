"""`effects run`: a program is run as Python runs it, with `fx.jit` in place of `jax.jit`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile

import pytest

import effects as fx
from tests.helpers import ROOT

COMMAND = "import sys\nfrom effects_command import main\nsys.exit(main())\n"
"""The script that is installed as `effects`."""

SHOWS = """
import sys, os
print(sys.argv, sys.path, __name__, __doc__, __package__, __spec__, sorted(globals()))
print(globals().get("__file__"), type(__loader__), __builtins__, sys.modules["__main__"].__dict__ is globals())
"""

PROGRAMS = {
    "shows": SHOWS,
    "docstring": '"""The docstring."""\nprint(__doc__)',
    "annotations": "x: int = 3\nprint(__annotations__)" if sys.version_info < (3, 14) else "",
    "future": "from __future__ import annotations\ndef f(x: Missing): ...\nprint(f.__annotations__)",
    "no-future": "def f(x: int): ...\nprint(f.__annotations__)",
    "sibling": "import sibling\nprint(sibling.__file__)",
    "reads stdin": "import sys\nprint(sys.stdin.read())",
    "raises": "def f():\n    raise ValueError('text')\n\nf()",
    "raises from": "def f():\n    1 / 0\ntry:\n    f()\nexcept Exception as e:\n    raise KeyError('k') from e",
    "raises in context": "try:\n    1 / 0\nexcept Exception:\n    raise KeyError('k')",
    "raises group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "raises with note": "e = ValueError('text')\ne.add_note('a note')\nraise e",
    "raises base": "class Own(BaseException): pass\nraise Own('text')",
    "raises in import": "import failing",
    "raises deep": "def f(n):\n    f(n + 1)\nf(0)",
    "fails to show": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "own hook": "import sys\nsys.excepthook = lambda *each: print('hook', each[0], each[2].tb_lineno)\n1 / 0",
    "last": "import sys, atexit\natexit.register(lambda: print(sys.excepthook is sys.__excepthook__))\n1 / 0",
    "syntax error": "x = 1\ny = = 2",
    "indentation": "if True:\nx = 1",
    "encoding": "# coding: latin-1\nprint(ascii('\xe4'))",
    "empty": "",
    "exits": "import sys\nsys.exit()",
    "exits 3": "import sys\nsys.exit(3)",
    "exits 256": "import sys\nsys.exit(256)",
    "exits with text": "import sys\nsys.exit('text')",
    "exits with object": "raise SystemExit((1, 2))",
    "exits at once": "import os\nprint('lost')\nos._exit(7)",
    "exits in a thread": "import threading, sys\nthreading.Thread(target=lambda: sys.exit(3)).start()\nprint('main')",
    "raises in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start()\nt.join()",
    "thread goes on": "import threading\ne = threading.Event()\n"
    "threading.Thread(target=lambda: (e.wait(), print('thread'))).start()\nprint('main')\ne.set()",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(60)",
    "raises interrupt": "def f():\n    raise KeyboardInterrupt\nf()",
    "handles signal": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('term'))\n"
    "os.kill(os.getpid(), signal.SIGTERM)\nprint('on')",
    "aborts": "import os\nos.abort()",
    "at exit": "import atexit\natexit.register(print, 'exit')\nprint('main')",
    "at exit raises": "import atexit\natexit.register(lambda: 1 / 0)\nprint('main')",
    "deleted": "class A:\n    def __del__(self, print=print): print('deleted')\na = A()",
    "pickles": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A)) is A, A.__module__)",
    "source": "import inspect\ndef f(x):\n    return x\nprint(inspect.getsource(f), inspect.getsourcefile(f))",
    "warns": "import warnings\nwarnings.warn('text')",
    "spawns": "import multiprocessing as m\ndef f(x): print('child', x, flush=True)\n"
    "if __name__ == '__main__':\n    p = m.get_context('spawn').Process(target=f, args=(3,))\n    p.start()\n"
    "    p.join()\n    print(p.exitcode)",
    "forks": "import os\nif (child := os.fork()) == 0:\n    print('child')\n    raise SystemExit(4)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    "executes": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
    "closes output": "import os, sys\nsys.stdout.close()",
    "broken pipe": "import os, signal, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\nprint('x', flush=True)",
    "no module": "import nothing_of_this_name",
    "logs": "import logging\nlogging.warning('%s', 1)\nlogging.exception('text')",
}
"""The texts of scripts, by name. None of these imports JAX."""

CALLS = {
    "arguments": ["shows.py", "--record", "x", "-m", "--", "-c", ""],
    "relative": ["./shows.py"],
    "absolute": ["{folder}/shows.py", "a"],
    "link": ["elsewhere/linked.py"],
    "missing": ["not_there.py", "a"],
    "folder": ["bundle", "a"],
    "empty folder": ["elsewhere"],
    "zip": ["bundle.zip", "a"],
    "bytecode": ["compiled.pyc", "a"],
    "module": ["-m", "shows", "-x", "--", "a"],
    "glued module": ["-mshows", "a"],
    "package": ["-m", "bundle", "a"],
    "module in package": ["-m", "bundle.inner", "a"],
    "missing module": ["-m", "nothing_of_this_name"],
    "package without main": ["-m", "elsewhere"],
    "raising module": ["-m", "raises"],
    "failing module": ["-m", "syntax_error"],
    "text": ["-c", SHOWS, "-m", "a"],
    "glued text": ["-cimport sys; print(sys.argv)", "a"],
    "raising text": ["-c", "def f():\n    raise ValueError('text')\nf()"],
    "wrong text": ["-c", "x = = 1"],
    "exiting text": ["-c", "raise SystemExit('text')"],
    "input": ["-", "a"],
    "end of options": ["--", "shows.py", "a"],
}
"""The words after `python` or `effects run`, by name."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("run").resolve()
    for name, text in PROGRAMS.items():
        encoding = "latin-1" if "latin-1" in text else "utf-8"
        (made / f"{name.replace(' ', '_')}.py").write_text(text, encoding=encoding)
    (made / "sibling.py").write_text("")
    (made / "failing.py").write_text("def f():\n    raise ValueError('text')\nf()")
    for name in ("bundle", "elsewhere"):
        (made / name).mkdir()
    for name in ("__main__", "inner"):
        (made / f"bundle/{name}.py").write_text(SHOWS)
    (made / "bundle/__init__.py").write_text("import sys; print('package', sys.argv)")
    (made / "elsewhere/linked.py").symlink_to(made / "shows.py")
    with zipfile.ZipFile(made / "bundle.zip", "w") as archive:
        archive.writestr("__main__.py", SHOWS)
    done = "import py_compile, sys; py_compile.compile('shows.py', 'compiled.pyc')"
    subprocess.run([sys.executable, "-c", done], cwd=made, check=True)
    (made / "command").mkdir()
    (made / "command/effects").write_text(COMMAND)
    return made


def outcome(folder, before, words, stdin=SHOWS, **environment):
    """The status, output and errors of a process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    words = [word.format(folder=folder) if word.startswith("{folder}") else word for word in words]
    done = subprocess.run(
        [sys.executable, *before, *words], cwd=folder, env=env, input=stdin.encode(), capture_output=True, timeout=120
    )
    texts = (re.sub("0x[0-9a-f]+|[0-9]+ more times", "", text.decode()) for text in (done.stdout, done.stderr))
    return done.returncode, *texts


@pytest.mark.parametrize("name", [*PROGRAMS, *CALLS])
def test_a_program_is_run_as_python_runs_it(name, folder):
    """Arguments, `__main__`, path, output, exit status, errors and signals are those of Python itself."""
    words = CALLS.get(name) or [f"{name.replace(' ', '_')}.py", "an argument"]
    plain = outcome(folder, [], words)
    ours = outcome(folder, [str(folder / "command/effects"), "run"], words)
    assert ours == plain


@pytest.mark.parametrize("text", ["x = '\0'", "# coding: nothing\nx = 1"])
def test_a_file_that_is_no_program_is_a_syntax_error(text, folder):
    """Python reads a file in its own words, which differ from those in which it reads a text."""
    (folder / "no_program.py").write_text(text)
    for before in ([], [str(folder / "command/effects"), "run"]):
        status, output, errors = outcome(folder, before, ["no_program.py"])
        assert (status, output) == (1, "") and "SyntaxError: " in errors and "effects_command" not in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no program was given"),
        (["-m"], "no program was given"),
        (["-c"], "no program was given"),
        (["--watch"], "no program was given"),
        (["--record"], "expected one argument"),
        (["--unknown", "shows.py"], "unrecognized arguments: --unknown"),
    ],
)
def test_mistakes_in_our_options_are_said(words, said, folder):
    status, output, errors = outcome(folder, [str(folder / "command/effects"), "run"], words)
    assert status == 2 and said in errors and not output


JIT = """
import os
os.environ["JAX_ENABLE_X64"] = "1"  # JAX reads it when it is imported
import jax
from jax import jit

@jit
def f(x):
    jax.lax.fori_loop(0, 3, lambda i, _: jax.debug.print("turn {}", i), None)
    return x / 2

made = type(f).__module__.partition(".")[0]
y = f(3)
jax.effects_barrier()
print(made, y.dtype)
"""


def run(folder, text, *options, status=0, **environment):
    (folder / "program.py").write_text(text)
    command = [str(folder / "command/effects"), "run", *options]
    found, output, errors = outcome(folder, command, ["program.py"], **environment)
    assert found == status, errors
    return output, errors


def test_jit_is_ours_when_the_program_imports_jax(folder):
    """JAX heeds environment variables that the program sets before it imports JAX."""
    output, _ = run(folder, JIT)
    assert sorted(output.splitlines()) == ["effects float64", "turn 0", "turn 1", "turn 2"]


@pytest.mark.slow
def test_options(folder):
    """A run is recorded, lines are filtered, and a bad value is found in the outermost function."""
    output, _ = run(folder, JIT, "--record", "runs/", "--sites", "program.py every=2")
    assert [line for line in output.splitlines() if line.startswith("turn")] == ["turn 0", "turn 2"]
    assert len([*(folder / "runs").glob("*.fx")]) == 1
    run(folder, JIT, "--record", "alone.fx", "--sites", "program.py every=2")
    command = [
        "-m",
        "effects",
        "run",
        "--record",
        "module.fx",
        "--sites",
        "program.py every=2",
    ]  # imports JAX first
    assert outcome(folder, command, ["program.py"])[:2] == (0, "turn 0\nturn 2\neffects float32\n")
    assert len(fx.runs.read(folder / "module.fx")) == len(fx.runs.read(folder / "alone.fx")) == 2
    watched = """
import jax, jax.numpy as jnp
inner = jax.jit(lambda x: jnp.log(x))
outer = jax.jit(lambda x, n: inner(x) * n, static_argnums=1)
print(outer(2.0, 3) > 0, inner(2.0) > 0)
outer(-1.0, 3)
"""
    _, errors = run(folder, watched, "--watch", status=1)
    assert "NonFinite" in errors and "`log` made nan" in errors


@pytest.mark.parametrize("options", [(), ("--watch",)])
@pytest.mark.parametrize("given", ["None", "fun=abs"])
def test_what_jit_refuses_is_refused_at_once(given, options, folder):
    _, errors = run(folder, f"import jax\njax.jit({given})", *options, status=1)
    assert "TypeError: " in errors


@pytest.mark.parametrize(
    "text",
    [
        "import jax\nown = jax.jit\njax.jit = lambda f: own(lambda x: f(x) + 1)\nprint(jax.jit(lambda x: x)(1))",
        "import jax\njax.jit = None\nimport effects as fx\nprint(fx.jit(lambda x: x + 1)(1))",
        "import effects as fx, jax\nfx.uninstall()\nprint(jax.jit is fx.jit, jax.jit(lambda x: x + 1)(1))",
    ],
)
def test_a_program_may_replace_jit_itself(text, folder):
    output, _ = run(folder, text)
    assert output.split()[-1] == "2"
