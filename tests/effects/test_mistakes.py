"""The mistakes that users make most: all that the terminal shows of each.

A script stands in a file, and its error is not caught. The text has at most twelve lines, and the user's file is the
last one that a traceback names.
"""

# ruff: noqa: E501 - texts are as the terminal has them

from __future__ import annotations

import re

import jax
import pytest

from tests.environment import xla_flags
from tests.forks import run_forked

BY_JAX = (
    "--------------------\n"
    "For simplicity, JAX has removed its internal frames from the traceback of the following exception. Set "
    "JAX_TRACEBACK_FILTERING=off to include these.\n"
)
HAS_DELETED_ARRAYS = jax.__version_info__ >= (0, 12)
"""Whether JAX says itself that an array has been deleted. Otherwise XLA does."""

MISTAKES = {
    "f-string": (
        """
        @fx.jit
        def f(x):
            fx.print(f"x = {x}")

        f(1)
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 8, in <module>
            f(1)
          File "program.py", line 6, in f
            fx.print(f"x = {x}")
        effects.FormatError: The format of `fx.print` at program.py:6 holds the text of a traced value: 'x = JitTracer(~int32[])'. An f-string is filled while tracing, when values are not known yet. Write `fx.print('x = {}', x)`. See docs/troubleshooting.md#formats-and-arguments.
        BY_JAX
        """,
    ),
    "forgotten argument": (
        """
        @fx.jit
        def f(x, y):
            fx.print("x = {}, y = {}", x)

        f(1, 2)
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 8, in <module>
            f(1, 2)
          File "program.py", line 6, in f
            fx.print("x = {}, y = {}", x)
        effects.FormatError: The format 'x = {}, y = {}' of `fx.print` at program.py:6 cannot be filled: it has no argument number 2. Formats follow `str.format`, with one argument for every field. Pass the missing argument, or remove the field. See docs/troubleshooting.md#formats-and-arguments.
        BY_JAX
        """,
    ),
    "result of another dtype": (
        """
        @fx.jit
        def f(i):
            return fx.callback(lambda i: np.array([10, 20])[i], jax.ShapeDtypeStruct((), "float32"), i)

        f(1)
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 8, in <module>
            f(1)
        effects.EffectError: The callback `f.<locals>.<lambda>` at program.py:6, in `f`, returned int64[], and its program expects float32[]. The program waited for its results and ended there. Change what it returns, or its `result_shape_dtypes`.
        """,
    ),
    "function that takes other arguments": (
        """
        def save(step, loss):
            print("saved", step, loss)

        @fx.jit
        def f(x):
            fx.callback(save, None, x)

        f(1)
        fx.effects_barrier()
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 11, in <module>
            f(1)
          File "program.py", line 9, in f
            fx.callback(save, None, x)
        TypeError: `fx.callback` at program.py:9 cannot call `save` with what it was given: missing a required argument: 'loss'. It is called with the arguments behind `result_shape_dtypes`. Pass those that it takes: `save(step, loss)`. See docs/guide/callbacks.md.
        BY_JAX
        """,
    ),
    "donated buffer": (
        """
        @functools.partial(fx.jit, donate_argnums=0)
        def step(w):
            fx.print("w = {}", w)
            return w - 1

        w = jnp.ones(2)
        step(w)
        step(w)
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 11, in <module>
            step(w)
        RuntimeError: Array has been deleted with shape=float32[2].
        BY_JAX
        """
        if HAS_DELETED_ARRAYS
        else """
        Traceback (most recent call last):
          File "program.py", line 11, in <module>
            step(w)
        ValueError: INVALID_ARGUMENT: Invalid buffer passed to Execute() as argument 0 to replica 0: INVALID_ARGUMENT: Buffer has been deleted or donated.
        """,
    ),
    "check in a loop": (
        """
        @fx.jit
        def train(x):
            def step(x, i):
                x = jnp.where(i == 3, jnp.nan, x)
                fx.check(~jnp.isnan(x), "x became {} at {}", x, i)
                return x, None

            return jax.lax.scan(step, x, jnp.arange(50))[0]

        train(1.0)
        fx.effects_barrier()
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 14, in <module>
            fx.effects_barrier()
        effects.CheckError: x became nan at 3 (program.py:8, in `train.<locals>.step`). The program went on after this check. And 46 more at this line, the last: x became nan at 49.
        """,
    ),
    "check in a loop, at the end of the process": (
        """
        @fx.jit
        def train(x):
            def step(x, i):
                fx.check(x < 3, "x became {}", x)
                return x + 1, None

            return jax.lax.scan(step, x, length=200)[0]

        train(1)
        """,
        """
        effects.CheckError: x became 3 (program.py:7, in `train.<locals>.step`). The program went on after this check. And 197 more at this line, the last: x became 200.
        """,
    ),
    "checks at two lines": (
        """
        @fx.jit
        def f(x):
            fx.check(x > 0, "x = {} is no size", x)
            fx.check(x % 2 == 0, "x = {} is odd", x)

        f(-1)
        fx.effects_barrier()
        """,
        """
          + Exception Group Traceback (most recent call last):
          |   File "program.py", line 10, in <module>
          |     fx.effects_barrier()
          | effects.CheckErrors: x = -1 is no size. This is the first of 2 failures: 1 at program.py:6, 1 at program.py:7.
          +-+---------------- 1 ----------------
            | effects.CheckError: x = -1 is no size (program.py:6, in `f`). The program went on after this check.
            +---------------- 2 ----------------
            | effects.CheckError: x = -1 is odd (program.py:7, in `f`). The program went on after this check.
            +------------------------------------
        """,
    ),
    "callback with a result that raises": (
        """
        def lookup(i):
            raise KeyError(int(i))

        @fx.jit
        def f(i):
            return fx.callback(lookup, i, i)

        f(1)
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 5, in lookup
            raise KeyError(int(i))
        KeyError: 1

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "program.py", line 11, in <module>
            f(1)
        effects.EffectError: The callback `lookup` at program.py:9, in `f`, raised KeyError(1). The program waited for its results and ended there.
        """,
    ),
    "callback without a result that raises": (
        """
        def save(x):
            raise OSError("the disk is full")

        @fx.jit
        def f(x):
            fx.callback(save, None, x)
            fx.print("saved {}", x)

        f(1)
        fx.effects_barrier()
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 5, in save
            raise OSError("the disk is full")
        OSError: the disk is full

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "program.py", line 13, in <module>
            fx.effects_barrier()
        effects.EffectError: The callback `save` at program.py:9, in `f`, raised OSError('the disk is full'). The effects of its program ended there. After it, 1 `print` effect, at program.py:10, was not carried out.
        """,
    ),
    "error_if": (
        """
        @fx.jit
        def root(x):
            x = fx.error_if(x, x < 0, "x = {} has no root", x)
            return jnp.sqrt(x)

        root(-1.0)
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 9, in <module>
            root(-1.0)
        effects.CheckError: x = -1.0 has no root (program.py:6, in `root`). `fx.error_if` ended the program there.
        """,
    ),
    "NaN under vmap": (
        """
        @fx.jit
        def root(x):
            y = jnp.sqrt(x)
            fx.check(~jnp.isnan(y), "root of {} is {}", x, y)
            return y

        jax.vmap(root)(jnp.array([4.0, -1.0, -9.0]))
        fx.effects_barrier()
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 11, in <module>
            fx.effects_barrier()
        effects.CheckError: root of -1.0 is nan (program.py:7, in `root`, lane 1). The program went on after this check. And 1 more at this line, the last: root of -9.0 is nan.
        """,
    ),
    "plain jit on 8 devices": (
        """
        @jax.jit
        def f(x):
            fx.print("total = {}", x.sum())
            return x + 1

        f(jax.device_put(jnp.arange(8), jax.NamedSharding(jax.make_mesh((8,), "d"), jax.P("d"))))
        """,
        """
        Effect `print` at program.py:6 is in a program for several devices that `fx.jit` has not made. There JAX keeps no order of effects, so lines come as they come. Put `fx.jit` around the program for order.
        """,
    ),
    "fork": (
        """
        f = fx.jit(lambda x: fx.print("x = {}", x))
        f(1)
        fx.effects_barrier()
        warnings.simplefilter("ignore")  # of Python's and JAX's
        if os.fork() == 0:
            f(2)
        os.wait()
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 9, in <module>
            f(2)
        effects.EffectError: Effects were used in a process that was forked from one which has effects. Only the thread that forks goes on in a forked child: the threads that show effects are not there, nor are those on which XLA computes, so what is printed, logged or called back would be lost. Start the process afresh, with `multiprocessing.get_context('spawn')` or `'forkserver'`.
        """,
    ),
    "export of a function without a name": (
        """
        def save(x):
            print("saved", x)

        @fx.jit
        def f(x):
            fx.callback(save, None, x)

        fx.export(f)(1).serialize()
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 11, in <module>
            fx.export(f)(1).serialize()
        ValueError: The program `f` cannot leave this process: it calls back the function `save` at program.py:9. A function cannot travel with a program: its name can. Decorate it with `@fx.register_callback('some.name')`, here and where the program will run. See docs/guide/export.md.
        """,
    ),
    "misspelt setting": (
        """
        fx.config.sinc = True
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 4, in <module>
            fx.config.sinc = True
        AttributeError: `fx.config` has no setting 'sinc'. The settings are SETTINGS. Correct the name.
        """,
    ),
    "full disk": (
        """
        fx.add_handler(fx.JsonLinesHandler("/dev/full"), effects="log")
        fx.jit(lambda x: fx.log("step", x=x))(1)
        fx.effects_barrier()
        """,
        """
        OSError: [Errno 28] No space left on device

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "program.py", line 6, in <module>
            fx.effects_barrier()
        effects.EffectError: The handler `JsonLinesHandler` raised OSError(28, 'No space left on device') for a batch of records. An error of a handler is reported once, and later records still reach all handlers. Correct the handler, or call `fx.remove_handler`.
        OSError: [Errno 28] 1 line of '/dev/full' could not be written ([Errno 28] No space left on device). A handler writes each batch of records as it comes, whole lines only, and goes on with the next if it cannot. Free some space, or write elsewhere.
        """,
    ),
    "barrier while tracing": (
        """
        @fx.jit
        def f(x):
            fx.print("x = {}", x)
            fx.effects_barrier()

        f(1)
        """,
        """
        Traceback (most recent call last):
          File "program.py", line 9, in <module>
            f(1)
          File "program.py", line 7, in f
            fx.effects_barrier()
        RuntimeError: `fx.effects_barrier` was called while a function is traced. What the function issues happens when its program runs, and is still to come then. Call it around the call of the jitted function. See docs/reference/running.md.
        BY_JAX
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake, tmp_path):
    """The whole text on the terminal, without the marks below lines that only some versions of Python show."""
    script, expected = (text.replace("\n        ", "\n") for text in MISTAKES[mistake])
    imports = "import functools, os, warnings\nimport jax, jax.numpy as jnp, numpy as np, effects as fx"
    file = tmp_path / "program.py"
    file.write_text(f"{imports}\n{script}")
    flags = xla_flags(8 if "8 devices" in mistake else 1)
    done = run_forked(file.read_text(), file=str(file), env={"XLA_FLAGS": flags})
    said = re.sub(r"^[IWE]\d{4} .*\n", "", done.stderr, flags=re.MULTILINE)  # XLA's own log
    assert len(said.splitlines()) <= 12
    said = re.sub(r"^ [ |]* *[~^]+\n", "", said, flags=re.MULTILINE)
    said = re.sub(r"(?<=The settings are )[a-z_, ]+", "SETTINGS", said)
    assert said.replace(f"{tmp_path}/", "").rstrip() == expected.strip("\n").replace("BY_JAX", BY_JAX).rstrip()
    assert re.findall(r'File "(.*)"', said)[-1:] in ([], [str(tmp_path / "program.py")])
