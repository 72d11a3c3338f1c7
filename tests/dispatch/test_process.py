"""Whole processes: imports, exits, memory, examples, and what stands in the documentation."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import itertools
import json
import pkgutil
import traceback
from pathlib import Path

import jax
import pytest

import effects
from effects import dispatch, lowering
from effects.cli import COMMANDS, main
from tests.forks import run_forked
from tests.helpers import public_names, run_python


@pytest.mark.slow
def test_any_package_may_be_imported_first():
    """Importing any one of the three packages first works."""
    orders = [*itertools.permutations(["effects", "effects.lowering", "effects.dispatch"])]
    done = run_python(
        "import importlib, os, sys, warnings, jax\n"
        "warnings.simplefilter('ignore')\n"  # JAX warns of forks
        f"for order in {orders}:\n"
        "    if (child := os.fork()) == 0:\n"
        "        assert 'effects' not in sys.modules\n"
        "        for name in order: importlib.import_module(name)\n"
        "        fx = importlib.import_module('effects')\n"
        "        fx.print('{}', 1)\n"
        "        fx.effects_barrier()\n"
        "        sys.stdout.flush()\n"
        "        os._exit(0)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, order\n"
    )
    assert done.returncode == 0 and done.stdout == "1\n" * len(orders), done.stderr


def test_a_scripts_own_modules_are_left_alone(tmp_path):
    """A script may have a `lowering.py` and a `dispatch.py` beside it: one top-level name is ours."""
    for name in ("lowering", "dispatch", "extensions"):
        (tmp_path / f"{name}.py").write_text("raise ImportError\n")
    done = run_python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import effects as fx\nfx.jit(lambda x: fx.print('{}', x))(1)\nassert fx.lowering.holds"
    )
    assert done.returncode == 0 and done.stdout == "1\n", done.stderr


def test_folders_of_the_source_tree_are_the_packages():
    """Where the source tree is on the path, its folders give what `effects.lowering` and `effects.dispatch` give."""
    done = run_python(
        "import lowering, dispatch, effects\n"
        "assert lowering.holds is effects.lowering.holds and dispatch.jit is effects.jit"
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_lost_at_exit():
    """A process that ends without a barrier has printed everything, in order."""
    done = run_python(
        "import jax, sys, effects as fx\n"
        "f = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print('line {}', i), None))\n"
        "f(5000); sys.stdout.write('python\\n')"  # in one piece: the drain writes meanwhile
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line != "python"] == [f"line {i}" for i in range(5000)]


def test_nothing_is_lost_when_the_process_ends_with_an_error():
    """Neither is it when an exception ends the process."""
    done = run_forked("import jax, effects as fx\nf = fx.jit(lambda x: fx.print('x {}', x))\nf(1); raise SystemExit(3)")
    assert done.returncode == 3 and done.stdout == "x 1\n", done.stderr


def test_error_nobody_saw_is_told_at_exit():
    """What effects raised and no barrier reported is on stderr when the process ends."""
    done = run_python(
        "import sys, io, effects as fx\n"
        "class Broken(io.StringIO):\n"
        "    def write(self, text): raise OSError('disk full')\n"
        "out, sys.stdout = sys.stdout, Broken()\n"
        "fx.jit(lambda x: fx.print('x {}', x))(1)\n"
        "sys.stdout = out"
    )
    assert "EffectError" in done.stderr and "disk full" in done.stderr


@pytest.mark.slow
def test_memory_of_a_long_program_is_the_rings():
    """A program that prints ten million records holds the ring's size and no more."""
    done = run_forked(
        "import sys, resource, threading, jax, effects as fx\n"
        "f = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print('line {}', i), None))\n"
        "sys.stdout = open('/dev/null', 'w')\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "f(200_000); fx.effects_barrier()\n"
        "before = peak()\n"
        "f(10_000_000); fx.effects_barrier()\n"
        "stats = fx.stats()\n"
        "growth = (peak() - before) * 1024\n"
        "print(growth, stats['high_water'], stats['released'], fx.config.ring_bytes, file=sys.stderr)",
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    growth, high_water, released, ring = map(int, done.stderr.split())
    assert released == 10_200_000
    assert high_water <= ring
    assert growth <= 4 * ring  # the pages that the ring and a batch had not touched before


def test_settings_come_from_the_environment():
    """Each setting is also an environment variable. With `EFFECTS_SYNC=1` Python's prints and a program's come as
    written."""
    values = {"sync": "1", "order": "process", "ring_bytes": "65536", "when_full": "drop"}
    done = run_python(
        f"import effects as fx; print(*(getattr(fx.config, name) for name in {[*values]}))\n"
        "f = fx.jit(lambda x: fx.print('fx {}', x))\n"
        "for i in range(3): print('python', i); f(i)",
        env={f"EFFECTS_{name.upper()}": value for name, value in values.items()},
    )
    first, *others = done.stdout.splitlines()
    assert first.split() == ["True", *[*values.values()][1:]], done.stderr
    assert others == [line for i in range(3) for line in (f"python {i}", f"fx {i}")], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("module", "arguments"), [("effects", ["demo"]), ("examples.ordered_printing", [])])
def test_tour_and_example_run(module, arguments):
    """The tour and the example run on a machine with nothing set."""
    done = run_forked(
        f"import runpy, sys\nsys.argv[1:] = {arguments}\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 5, done.stderr


def test_doctor_says_what_is_here_and_that_it_works():
    """Versions as they are installed, the devices, the settings, and a self-test whose failure is the exit code."""
    runs = [
        run_python(
            f"from effects.cli import main\nimport effects as fx\n{spoil}\nraise SystemExit(main(['doctor']))", env=env
        )
        for spoil, env in (("", {"EFFECTS_SYNC": "1", "JAX_NUM_CPU_DEVICES": "3"}), ("fx.print = lambda *_: None", {}))
    ]
    good, bad = (run.stdout.splitlines() for run in runs)
    assert [run.returncode for run in runs] == [0, 1], runs[0].stderr
    assert f"token-effects: {effects.__version__}" in good and f"jax: {jax.__version__}" in good
    assert any(line.startswith("devices: 3 x cpu") for line in good) and any("sync=True" in line for line in good)
    assert len([line for line in good if line.startswith("ok: ")]) == 4
    assert "FAILED: prints in a loop come in order: a loop that prints 0 1 2 3 4 printed ".rstrip() in map(
        str.rstrip, bad
    )
    assert bad[-1].startswith("2 of 4 checks failed.")
    assert "JAX_NUM_CPU_DEVICES: 3" in good and "EFFECTS_SYNC: 1" in good and any(line[:5] == "flax:" for line in good)


def test_doctor_as_json():
    """The same as an object, for programs that read it."""
    done = run_forked("from effects.cli import main\nraise SystemExit(main(['doctor', '--json']))")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["facts"]["jax"] == jax.__version__ and "XLA_FLAGS" in found["facts"]
    assert len(found["checks"]) == 4 and not any(found["checks"].values())


def test_command_without_a_subcommand_shows_its_help(capsys):
    """`effects` by itself says what it can do."""
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: effects") and all(command.name in shown for command in COMMANDS)


def _modules():
    for package in (effects, lowering, dispatch):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            source = importlib.util.find_spec(info.name).origin or ""
            if info.name != "effects.__main__" and source.endswith(".py") and ">>>" in Path(source).read_text():
                yield info.name


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_modules()))
def test_docstring_examples_run(name):
    """Every example in a docstring gives what it says. What effects print may come before the barrier that waits for
    it, so the lines of a docstring are compared as a whole."""
    for test in doctest.DocTestFinder().find(importlib.import_module(name)):
        expected = ""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for example in test.examples:
                if doctest.SKIP in example.options:
                    continue
                try:
                    exec(compile(example.source, test.name, "single"), test.globs)
                    assert example.exc_msg is None, example.source
                    expected += example.want
                except Exception as error:
                    assert example.exc_msg == traceback.format_exception_only(error)[-1], example.source
            effects.effects_barrier()
        texts = ("\n".join(sorted(text.splitlines())) for text in (expected, printed.getvalue()))
        assert doctest.OutputChecker().check_output(*texts, doctest.ELLIPSIS), (test.name, printed.getvalue())


def test_public_functions_have_examples():
    """Every public function and class of `effects` has a docstring with an example, errors and modules apart."""
    for name in public_names():
        thing = getattr(effects, name)
        assert thing.__doc__, name
        if callable(thing) and not (isinstance(thing, type) and issubclass(thing, Exception)):
            assert ">>>" in thing.__doc__, name


def test_effects_in_handlers_that_run_after_ours_at_exit():
    """What a program prints when our own work at exit is done comes out all the same, and a barrier returns."""
    done = run_python(
        "import atexit\n"
        "atexit.register(lambda: (f(2), fx.effects_barrier(), print('the end')))\n"
        "import effects as fx\n"
        "f = fx.jit(lambda x: fx.print('x {}', x))\n"
        "f(1)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["x 1", "x 2", "the end"]


@pytest.mark.parametrize("order", ["thread", "process"])
def test_call_that_never_returns_does_not_hold_up_the_end(order):
    """A daemon thread whose call never returns has what came before it shown, and the process ends."""
    done = run_forked(
        "import threading, effects as fx\n"
        f"fx.config.order = {order!r}\n"
        "def waits(x):\n"
        "    fx.print('never {}', x)\n"
        "    there.set()\n"
        "    threading.Event().wait()\n"
        "there = threading.Event()\n"
        "fx.jit(lambda x: fx.print('x {}', x))(1)\n"
        "threading.Thread(target=fx.jit(waits), args=(2,), daemon=True).start()\n"
        "there.wait()",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "x 1\n"


INTERRUPTED = """
import json
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import random, signal
import jax, jax.numpy as jnp, effects as fx

fx.config.order = ORDER
program = fx.jit(lambda x, k: (jax.lax.fori_loop(0, 5, lambda i, _: fx.print("{} {}", k, i), None), x)[1])
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
xs = [jnp.zeros(4), jax.device_put(jnp.zeros(4), jax.NamedSharding(mesh, jax.P("x")))]
for x in 2 * xs:
    program(x, -1)  # from here on no call goes through JAX's Python, where an interrupt may become another error
fx.effects_barrier()
seen = []
handler = fx.add_handler(lambda record: seen.append(record.text))
left = 0  # how often the call that is under way may still be interrupted

def interrupt(*_):
    global left
    # Soon again, so that one comes while the call is being left.
    signal.setitimer(signal.ITIMER_REAL, chance.choice((2e-6, 2e-5, 2e-4, 2e-3)))
    if left:
        left -= 1
        raise KeyboardInterrupt

chance = random.Random(1)
signal.signal(signal.SIGALRM, interrupt)
interrupt()
returned, k, interrupted = [], 0, 0
while interrupted < 150:
    k += 1
    try:
        try:
            left = 2
            program(xs[k % 2], k)
            left = 0
            returned.append(k)
        except KeyboardInterrupt:
            left, interrupted = 0, interrupted + 1
    except KeyboardInterrupt:
        left = 0
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
fx.effects_barrier(timeout=60)
calls = [int(line.split()[0]) for line in seen]
assert calls == sorted(calls)
assert all(seen.count(f"{k} {i}") == 1 for k in returned for i in range(5))
seen.clear()
for k in range(20):
    program(xs[k % 2], k)
fx.effects_barrier(timeout=60)
assert seen == [f"{k} {i}" for k in range(20) for i in range(5)]
print("done")
"""


@pytest.mark.parametrize("order", ["thread", "process"])
def test_interrupts_one_after_the_other(order):
    """Calls that are interrupted, and again while they are left, keep nobody waiting and lose no other's lines."""
    done = run_forked(f"ORDER = {order!r}\n{INTERRUPTED}")
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]
