"""The import of the library: what it leaves out until it is needed, and that all is in force by then."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path

import pytest

import effects as fx
from tests.helpers import run_each_after_jax, run_python

LEFT_OUT = [
    *("jax._src.pallas.core", "jax._src.checkify", "jax.extend", "rich", "csv", "importlib.metadata"),
    *("effects._jax.pallas", "effects.extensions.kernels.rules"),
    "effects.extensions.inspecting.inspect",
    *(
        "effects.extensions.asynchronous.operation",
        "effects.extensions.asynchronous.start_and_done",
        "effects.extensions.asynchronous.rules",
    ),
    *("effects.extensions.kernels.log", "effects.extensions.asynchronous.tickets"),
    *("effects.extensions.asynchronous.host_start", "effects.extensions.asynchronous.host_runs"),
    *("effects.extensions.custom_calls.api", "effects.extensions.custom_calls.rules"),
    *("effects.extensions.export.export", "effects.extensions.export.exported"),
    *("effects.extensions.breakpoints.frames", "effects.extensions.jax_callbacks.origin"),
    *("effects.extensions.asynchronous.ties", "effects.extensions.asynchronous.api"),
    *("effects.handlers", "effects.testing", "effects.cli"),
]
"""Modules that take long, and that few programs need."""


def modules_after(code):
    """The modules that a process has that runs this, and that it has not after the import of JAX."""
    before, after = "before = set(sys.modules)", "print(json.dumps(sorted(set(sys.modules) - before)))"
    done = run_python(f"import json, sys, jax\n{before}\n{code}\n{after}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_is_light():
    """The library imports neither what few programs need, nor anything of others than JAX and NumPy."""
    new = modules_after("import effects")
    assert not set(LEFT_OUT) & set(new)
    packages = {name.split(".")[0] for name in new} - {"effects"}
    assert packages <= {"jax", "jaxlib", "queue", "_queue"}, packages
    assert len(new) <= 112, "a module that not every program needs is imported later"


@pytest.mark.slow
def test_a_program_needs_no_more():
    """Nor does a program with a print."""
    program = "import effects as fx\nfx.jit(lambda x: fx.print('x = {}', x))(1)\nfx.effects_barrier()"
    assert not {name for name in LEFT_OUT if name != "importlib.metadata"} & set(modules_after(program))


@pytest.mark.parametrize(
    "face", [fx, fx.asynchronous, fx.kernels, fx.native, fx.testing], ids=lambda face: face.__name__
)
def test_names_that_come_later_are_those_that_type_checkers_see(face):
    """A name is imported from the module from which type checkers import it."""
    tree = ast.parse(Path(face.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    told = {alias.asname: f"{node.module}.{alias.name}" for node in block.body for alias in node.names}
    later = face._LATER.items()
    assert told == {name: home if home == f"effects.{name}" else f"{home}.{name}" for name, home in later}
    assert face is fx or face._LATER.keys() <= {*face.__all__}


def test_names_that_come_later():
    """Those that `dir` lists come with `import *`, and all are the same objects as in their modules."""
    code = """
import effects as fx
assert dir(fx) == sorted(fx.__all__)
assert "ListHandler" not in vars(fx)
from effects import *
assert not vars().get("ListHandler") and print_grad is fx.print_grad and scan_with_progress is fx.scan_with_progress
from effects.handlers import ListHandler as there
assert fx.ListHandler is there and "ListHandler" in vars(fx)
assert fx.testing.check_grid_races.__name__ == "check_grid_races"
assert fx.handlers.ListHandler is there
"""
    assert run_each_after_jax({"": code}) == {"": (0, "")}


def test_name_that_is_not_there():
    """A name that there is not is an error as of any module."""
    with pytest.raises(AttributeError, match="module 'effects' has no attribute 'listhandler'"):
        _ = fx.listhandler


def test_classes_are_pickled_by_their_names():
    """What comes later is pickled as what comes at once."""
    assert pickle.loads(pickle.dumps((fx.ListHandler, fx.jit, fx.inspect))) == (fx.ListHandler, fx.jit, fx.inspect)


KERNEL = """
def kernel(o_ref):
    fx.print("program {}", pl.program_id(0))
    o_ref[0] = pl.program_id(0)

call = pl.pallas_call(kernel, jax.ShapeDtypeStruct((1,), "int32"), grid=(2,), interpret=True)
fx.jit(lambda: call())()
fx.effects_barrier()
try:  # an index map with an effect, which JAX would take
    spec = pl.BlockSpec((1,), lambda i: (fx.print("index map"), i)[1])
    options = {"out_specs": spec, "grid": (2,), "interpret": True}
    jax.jit(lambda: pl.pallas_call(lambda o_ref: None, jax.ShapeDtypeStruct((2,), "int32"), **options)())()
except ValueError as error:
    print("index map" in str(error))
"""

PALLAS = "from jax.experimental import pallas as pl\n"
ORDERS = {
    "before": f"{PALLAS}import effects as fx\n{KERNEL}",
    "after": f"import effects as fx\n{PALLAS}{KERNEL}",
    "private": f"import effects as fx\nimport jax._src.pallas.pallas_call\n{PALLAS}{KERNEL}",
    "for TPUs first": f"import effects as fx\nfrom jax.experimental.pallas import tpu\n{PALLAS}{KERNEL}",
    "another thread": f"""
import threading
import effects as fx

def import_and_run():
    global pl
    from jax.experimental import pallas as pl
    exec({KERNEL!r}, globals())

thread = threading.Thread(target=import_and_run)
thread.start()
thread.join()
""",
    "while tracing": f"""
import effects as fx

def traced(x):
    global pl
    from jax.experimental import pallas as pl
    return x

jax.vmap(fx.jit(traced))(jax.numpy.arange(2))
{KERNEL}""",
    "by fx.pallas_call": f"""
import effects as fx

shape = jax.ShapeDtypeStruct((1,), "int32")
fx.pallas_call(lambda o_ref: None, shape, interpret=True)()
{PALLAS}{KERNEL}""",
    "found by hand": f"""
import importlib.util
import effects as fx

spec = importlib.util.find_spec("jax._src.pallas.pallas_call")
assert spec.name == "jax._src.pallas.pallas_call" and spec.loader.get_source(spec.name)
{PALLAS}{KERNEL}""",
}


@pytest.mark.slow
def test_kernels_whenever_pallas_is_imported():
    """What the library changes of Pallas is in force, whenever and by whomever Pallas is imported."""
    expected = 0, "program 0\nprogram 1\nTrue\n"
    assert run_each_after_jax(ORDERS) == dict.fromkeys(ORDERS, expected)


@pytest.mark.slow
def test_description_of_a_kernels_log_is_read_anywhere():
    """A process without kernels reads what another one says of a kernel's log."""
    code = """
import sys
import effects
from effects._model.content import content_from
assert "effects.extensions.kernels.log" not in sys.modules
description = {"kernel_log": "add", "sites": [], "grid": [2, 3], "index": [0, 1], "capacity": 4, "grows": True}
log = content_from(description, None)
assert (log.title, log.grid, log.capacity) == ("add", (2, 3), 4)
"""
    assert run_each_after_jax({"": code}) == {"": (0, "")}


@pytest.mark.slow
def test_imported_module_names_its_own_loader():
    """A module that something waited for says of itself what it would have said."""
    code = """
import importlib.machinery, inspect, sys
import jax, effects
from jax.experimental import pallas
module = sys.modules["jax._src.pallas.pallas_call"]
assert type(module.__loader__) is importlib.machinery.SourceFileLoader
assert module.__spec__.loader is module.__loader__
assert inspect.getsource(module)
"""
    assert run_each_after_jax({"": code}) == {"": (0, "")}


@pytest.mark.slow
def test_failed_import_is_made_good_by_the_next(tmp_path):
    """What waits for a module is done once it has been imported, not when that was tried."""
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from pathlib import Path
from effects._jax.patches import when_imported
done = []
when_imported("wanted_late", lambda: done.append(sys.modules["wanted_late"].value))
module = Path({str(tmp_path)!r}, "wanted_late.py")
module.write_text("raise RuntimeError")
try:
    import wanted_late
except RuntimeError:
    pass
assert not done
module.write_text("value = 'another text'")
import wanted_late
assert done == ["another text"]
when_imported("wanted_late", lambda: done.append("at once"))
assert done == ["another text", "at once"]
"""
    assert run_each_after_jax({"": code}) == {"": (0, "")}
