"""Native functions in programs: `python examples/custom_call/custom_call.py` compiles their handlers and calls them.

With CMake, CMakeLists.txt builds a library of them: `python examples/custom_call/custom_call.py handlers.so` calls its
handlers. The output is asserted in tests/extensions/custom_calls/test_elsewhere.py.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

import effects as fx


def compiled(folder):
    """A library of the handlers. Their headers are those of JAX and of this package."""
    if shutil.which("c++") is None:
        sys.exit("The handlers need a C++ compiler, and there is no `c++`.")
    source, library = Path(__file__).with_name("handlers.cc"), f"{folder}/handlers.so"
    includes = ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", *includes, source, "-o", library], check=True)
    return library


with tempfile.TemporaryDirectory() as folder:
    library = sys.argv[1] if sys.argv[1:] else compiled(folder)
    for name in ("cyclic_add", "smooth", "root", "halve"):
        fx.register_custom_call(f"example.{name}", (library, name))

number = jax.ShapeDtypeStruct((), jnp.float32)


@fx.jit
def cyclic_add(a, b):
    """Sizes are known while tracing: they are attributes."""
    return fx.custom_call("example.cyclic_add", b, a, b, m=a.size, n=b.size)


@fx.jit
def smooth(x):
    """The handler gets memory to work in."""
    return fx.custom_call("example.smooth", x, x, scratch=x)


@fx.jit
def root(x):
    """The handler may fail."""
    return fx.custom_call("example.root", number, x)


@fx.jit
def halve(x):
    """What the handler says comes where it is called. An effect keeps the call, and keeps it in its place."""
    fx.print("before: {}", x)
    x = jax.lax.fori_loop(0, 2, lambda _, x: fx.custom_call("example.halve", number, x, effect="print"), x)
    fx.print("after: {}", x)
    return x


print(cyclic_add(jnp.array([10.0, 20.0, 30.0]), jnp.arange(5.0)))
print(smooth(jnp.array([0.0, 0.0, 27.0, 0.0, 0.0])))
print(root(2.0))
try:
    root(-2.0)
    fx.effects_barrier()
except fx.CustomCallError as error:
    print(error.target, error.code, error.message)
print(root(9.0))
halve(8.0)
fx.effects_barrier()
