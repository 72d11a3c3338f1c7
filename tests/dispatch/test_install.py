"""`fx.install`: `jax.jit` is `fx.jit` in the whole process, and back."""

from __future__ import annotations

import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import run_each_after_jax

ON_TOP = {
    "assigned": "jax.jit = fx.jit",
    "before-import": "own, jax.jit = jax.jit, None\nimport effects as fx\njax.jit = fx.jit",
    "installed": "fx.install()",
    "installed-twice": "fx.install(); fx.install()",
    "both": "fx.install(); jax.jit = fx.jit",
    "in-thread": "import threading\nt = threading.Thread(target=fx.install)\nt.start()\nt.join()",
    "behind-programs": "jax.jit(lambda x: x)(1); fx.jit(lambda x: fx.print('{}', x))(0); fx.install()",
    "wrapped": "fx.install()\nold = jax.jit\njax.jit = lambda f, **options: old(f, **options)",
    "broken": "def fail(*args, **kwargs): raise RuntimeError('a fake')\njax.jit = fail",
}
"""Code that replaces `jax.jit`, by name."""

PROGRAM = """
import contextlib, io, jax.numpy as jnp
text = io.StringIO()
with contextlib.redirect_stdout(text):
    jit = jax.jit if BY_JAX else fx.jit
    @jit
    def f(x, n):
        fx.print("f {}", x)
        y = jax.lax.while_loop(lambda i: (fx.print("cond {}", i), i < n)[1], lambda i: i + 1, 0)
        in_lane = lambda x: jax.lax.cond(x > 1, lambda x: (fx.print("lane {}", x), x)[1], lambda x: x, x)
        z = jax.vmap(in_lane)(jnp.arange(3))
        return jax.grad(lambda x: (fx.print("g {}", x), x * x)[1])(x), y, z
    f(1.0, 2)
    fx.scan_with_progress(lambda c, x: (c, x), 0, jnp.arange(3))
    assert jit(lambda: fx.async_done(fx.async_callback(lambda x: x, jax.ShapeDtypeStruct((), "int32"), 3)))() == 3
    f.lower(1.0, 2).compile()(1.0, 2)
    f.trace(1.0, 2), f.eval_shape(1.0, 2), f.clear_cache()
    fx.export(f)(1.0, 2).call(1.0, 2)
    fx.effects_barrier()
lines = [line for line in text.getvalue().splitlines() if line[:1] in "fcgl"]
assert lines == ["f 1.0", "cond 0", "cond 1", "cond 2", "lane 2", "g 1.0"] * 3, lines
"""


@pytest.fixture(scope="module")
def outcomes():
    codes = {
        name: f"{'import effects as fx' * (name != 'before-import')}\n{code}\nBY_JAX = {name != 'broken'}\n{PROGRAM}"
        for name, code in ON_TOP.items()
    }
    return run_each_after_jax(codes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TOP)
def test_programs_are_made_by_jaxs_own_jit(name, outcomes):
    """Our programs are compiled with JAX's own `jit`, whatever has replaced `jax.jit`, ours included."""
    status, output = outcomes[name]
    assert status == 0, output


@pytest.fixture
def installed():
    fx.install()
    yield
    fx.uninstall()


def test_all_places_have_it_and_give_it_back():
    """Modules that have imported it by name have ours, and JAX's own afterwards; JAX itself keeps its own."""
    mine = types.ModuleType("mine")
    mine.jit = mine.other = jax.jit
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "mine", mine)
        own = jax.jit
        fx.install()
        try:
            assert jax.jit is mine.jit is mine.other is fx.jit and jax._src.api.jit is own
            mine.other = "another"
        finally:
            fx.uninstall()
        assert jax.jit is mine.jit is own and mine.other == "another"
        fx.uninstall()
        assert jax.jit is own


def test_libraries_that_compile_with_ours(installed, lines):
    """`fx.jit` and its siblings take functions that a library compiled with ours, as those compiled with JAX's."""
    equinox, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")

    def run():
        def f(x):
            jax.debug.print("x = {}", x)
            return x + 1

        assert equinox.filter_jit(f)(1) == fx.jit(equinox.filter_jit(f))(1) == fx.filter_jit(f)(1) == 2
        model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

        def g(model, x):
            jax.debug.print("x = {}", x.sum())
            return model(x)

        x = jnp.ones(2)
        for each in nnx.jit(g), fx.jit(nnx.jit(g)), fx.nnx_jit(g):
            np.testing.assert_array_equal(each(model, x), model(x))

    assert lines(run) == ["x = 1"] * 3 + ["x = 2.0"] * 3


def test_threads_may_install_at_the_same_time():
    """Eight threads install at once, and one call of `uninstall` restores everything."""
    own = jax.jit
    threads = [threading.Thread(target=fx.install) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert jax.jit is fx.jit
    fx.uninstall()
    assert jax.jit is own
