"""Functions that only ask, declare or register start no JAX backend: devices can still be chosen afterwards."""

from __future__ import annotations

import pytest

from tests.helpers import public_names, run_each_after_jax

pytestmark = pytest.mark.slow

QUIET = {
    "add_handler": "with fx.add_handler(print): pass",
    "capture": "with fx.capture() as records: pass\nassert records == []",
    "cmake_dir": "fx.cmake_dir()",
    "config": "fx.config.sync = True; fx.config.errors = 'barrier'; repr(fx.config)",
    "effects_barrier": "fx.effects_barrier(); fx.effects_barrier(timeout=1, all_threads=True, effects='print')",
    "effects_barrier-global": "fx.effects_barrier(scope='global')",
    "Effect": "fx.Effect('mine')",
    "export": "fx.export(lambda x: x)",
    "filter_jit": "import equinox; fx.filter_jit(lambda x: x)",
    "include_dir": "fx.include_dir()",
    "inspect": "fx.inspect(lambda x: x)",
    "install": "fx.install(); jax.jit(lambda x: x)",
    "uninstall": "fx.install(); fx.uninstall()",
    "jit": "fx.jit(lambda x: fx.print('{}', x)); fx.jit(static_argnums=0)(lambda n: n)",
    "jit-eval_shape": "fx.jit(lambda x: fx.print('{}', x)).eval_shape(jax.ShapeDtypeStruct((2,), 'int32'))",
    "nnx_jit": "from flax import nnx; fx.nnx_jit(lambda x: x)",
    "pallas_call": "fx.pallas_call(lambda ref: None, out_shape=jax.ShapeDtypeStruct((2,), 'int32'))",
    "patches": "str(fx.patches())",
    "progress": "fx.progress(10)",
    "record": "with fx.record('run.fx'): pass",
    "record-variable": "",
    "register_callback": "fx.register_callback('mine')(lambda x: None)",
    "register_effect": "fx.register_effect(fx.Effect('mine'))",
    "registered_effects": "fx.registered_effects()",
    "remove_handler": "fx.remove_handler(fx.add_handler(print))",
    "sites": "str(fx.sites()), len(fx.sites('train.py:1', effect='print'))",
    "stats": "fx.stats()",
    "watch": "fx.watch(lambda x: x)",
    "CsvHandler": "fx.add_handler(fx.CsvHandler('a.csv'))",
    "ConsoleHandler": "fx.add_handler(fx.ConsoleHandler())",
    "JsonLinesHandler": "fx.add_handler(fx.JsonLinesHandler('a.jsonl'))",
    "ListHandler": "fx.add_handler(fx.ListHandler())",
    "BarrierTimeout": "fx.BarrierTimeout('text')",
    "assert_order": "fx.assert_order(['a', 'b'], ['a', 'b'])",
    "jax.effects_barrier": "jax.effects_barrier()",
    "fork": "import os\nfx.effects_barrier()\nif (child := os.fork()) == 0: os._exit(0)\nos.waitpid(child, 0)",
    "end": "import atexit; fx.effects_barrier(); fx.dispatch.runtime.runtime.runtime.stop()",
}
"""Code that has no effect and calls no program, by public name, with a word after it if there are several."""

LOUD = {
    *("callback", "check", "error_if", "log", "print", "print_grad", "breakpoint"),  # effects
    *("async_callback", "async_done", "async_start", "async_update", "copy_start"),
    *("all_gather_start", "all_to_all_start", "ppermute_start", "psum_scatter_start", "psum_start"),
    *("custom_call", "fori_loop_with_progress", "scan_with_progress"),
    *("deserialize", "register_custom_call"),  # of a program, and of a library's handler
}
"""Functions that are part of a program, or take one."""


def test_every_public_function_is_asked():
    """Each public function is in one of the tables, so that a new one must be added."""
    import effects as fx

    functions = {name for name in public_names() if not isinstance(getattr(fx, name), type) and name != "__version__"}
    asked = {name.partition("-")[0] for name in QUIET}
    assert functions <= asked | LOUD, functions - asked - LOUD


_AFTER = """
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a backend was made"
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
jax.config.update("jax_num_cpu_devices", 3)
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
assert jax.device_count() == 3
"""


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("backends"))
    before = {"record-variable": f"os.environ['EFFECTS_RUN'] = {folder + '/all.fx'!r}"}
    start = "import os\nos.environ.pop('XLA_FLAGS', None)\n"
    enter = f"import effects as fx\nos.chdir({folder!r})\n"
    return run_each_after_jax(
        {name: f"{start}{before.get(name, '')}\n{enter}{code}\n{_AFTER}" for name, code in QUIET.items()}
    )


@pytest.mark.parametrize("name", QUIET)
def test_devices_can_be_chosen_behind(name, after):
    """The number of CPU devices and `jax.distributed` can be set up, which JAX refuses once there is a backend."""
    status, output = after[name]
    assert status == 0, output


def test_plugin_leaves_backends_alone():
    """The barriers of the pytest plugin, behind each module and test, make no backend either."""
    suite = """
import effects as fx
def test_first(): pass
def test_second():
    with fx.capture(): pass
def test_third(capsys): capsys.readouterr()
"""
    code = f"""
import pathlib, pytest, tempfile, os
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
folder = pathlib.Path(tempfile.mkdtemp())
for name in "ab":
    (folder / f"test_{{name}}.py").write_text({suite!r})
assert pytest.main(["-q", "-p", "effects_pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]) == 0
{_AFTER}
"""
    [(status, output)] = run_each_after_jax({"suite": code}).values()
    assert status == 0, output
