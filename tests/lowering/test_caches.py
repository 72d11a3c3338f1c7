"""Caches that are keyed weakly let go of what is dropped: none has its own key in what it gives.

Each is found by looking at the modules of the product. One that is new needs a program below that uses it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import io
import itertools
import pkgutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import Primitive, jaxpr_as_fun

import effects as fx
from effects.extensions.collectives import notes
from tests.helpers import let_go, meet_barrier
from tests.internals import _jax
from tests.lowering.regions.meshes import by_device

X = np.zeros(4, np.float32)
_numbers = itertools.count()


def _show(x):
    fx.print("{}", x)
    return x


def _in_vmap():
    f = fx.jit(jax.vmap(lambda x: lax.cond(x > 0, _show, lambda x: x, x)))
    f.lower(X)
    return f


def _in_branches_of_a_region():
    """One branch has as many effects as the other, or fewer."""

    def body(x):
        ask = lambda x: fx.callback(lambda x: x, jax.ShapeDtypeStruct((1,), np.float32), x)  # noqa: E731
        return lax.cond(x[0] > 0, ask, lambda x: x, lax.cond(x[0] > 1, ask, lambda x: ask(2 * x), x))

    f = fx.jit(by_device(body, check_vma=False))
    f.lower(X)
    return f


def _noted(change):
    program = jax.make_jaxpr(lambda x: x + next(_numbers))(X)
    return program, change(program)


def _grad_of_a_loop():
    def step(x, i):
        return lax.cond(i > 0, lambda x: _show(x) * 2, lambda x: x, x), None

    f = fx.jit(jax.grad(jax.checkpoint(lambda x: lax.scan(step, x, jnp.arange(2))[0])))
    f.lower(1.0)
    return f


def _while_loop_linearized():
    loop = lambda x: lax.while_loop(lambda x: x < 3, lambda x: _show(x) + 1, x)  # noqa: E731
    f = fx.jit(lambda x: jax.linearize(loop, x)[1](x))
    f.lower(1.0)
    return f


def _jaxs_own_traced_before():
    jaxpr = jax.make_jaxpr(jax.jit(lambda x: (jax.debug.print("{}", x), x)[1]))(1.0)
    f = fx.jit(lambda x: jaxpr_as_fun(jaxpr)(x)[0])
    f.lower(1.0)
    return f


opaque_p = Primitive("opaque")  # of which no rule says anything
opaque_p.multiple_results = True
opaque_p.def_effectful_abstract_eval(lambda *avals, body: (body.out_avals, set(body.effects)))
jax.interpreters.mlir.register_lowering(
    opaque_p, jax.interpreters.mlir.lower_fun(lambda *args, body: jaxpr_as_fun(body)(*args))
)


def _jaxs_own_restored():
    body = lambda x: (jax.debug.print("{}", x), x)[1]  # noqa: E731
    f = fx.jit(lambda x: opaque_p.bind(x, body=jax.make_jaxpr(body)(x)))
    f.lower(1.0)
    return f


def _kernel(x_ref, o_ref):
    lax.fori_loop(0, 2, lambda i, _: fx.print("{} {}", i, x_ref[i]), None)
    o_ref[...] = x_ref[...]


def _call_kernel(x):
    return pl.pallas_call(lambda *refs: _kernel(*refs), jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def _in_a_kernel():
    f = fx.jit(lambda x: _call_kernel(x))
    f.lower(X)
    return f


def _in_a_kernel_with_a_log():
    with _jax.with_kernel_options(logs_simulated=True):
        f = fx.jit(lambda x: _call_kernel(x))
        f.lower(X)
        return f


def _asynchronous():
    f = fx.jit(lambda x: fx.async_done(fx.async_start(lambda x: x + 1, x)))
    f.lower(X)
    return f


def _jaxs_callback():
    f = fx.jit(lambda x: jax.debug.callback(lambda x: None, x))
    f.lower(1.0)
    return f


def _output_without_reader():
    class Output:
        def write(self, text):
            raise BrokenPipeError

    output = Output()
    with contextlib.redirect_stdout(output), pytest.raises(fx.EffectError):
        fx.print("")
        meet_barrier()
    with contextlib.redirect_stdout(io.StringIO()):
        fx.print("")  # the drain knows the newest output
        meet_barrier()
    return output


def _seen():
    number = next(_numbers)  # another site each time
    f = fx.jit(lambda x: fx.print("{} {}", number, x))
    with contextlib.redirect_stdout(io.StringIO()), fx.capture():
        f(X)
        meet_barrier()
    return f


def _watched():
    def step(total, x):
        return total + jnp.where(x > 0, jnp.sqrt(x), 0), None

    f = fx.jit(jax.grad(fx.watch(lambda xs: lax.scan(step, jnp.float32(0), xs)[0])))
    f.lower(jnp.ones(3))
    return f


def _watched_and_searched():
    f = _watched()
    f(-jnp.ones(3))
    with pytest.raises(fx.NonFinite):
        meet_barrier()
    return f


def _watched_loop_with_lanes():
    loop = lambda x: lax.while_loop(lambda x: x < 3, lambda x: x + jnp.log(x + 2), x)  # noqa: E731
    f = fx.jit(fx.watch(jax.vmap(loop)))
    f.lower(jnp.ones(3))
    return f


def _read_from_a_file():
    number = next(_numbers)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.fx"
        with fx.record(path), fx.capture(suppress=True):
            fx.jit(lambda x: fx.print("{} {}", number, x))(X)
        run = fx.runs.read(path)
    assert "".join(run.lines(lambda record: f"{record.text}\n")).startswith(f"{number} ")
    return run


PROGRAMS: dict[str, Callable[[], Any]] = {
    "dispatch.runtime.outputs._without_reader": _output_without_reader,
    "extensions.jax_callbacks.conversion._functions": _jaxs_callback,
    "dispatch.runtime.replay._TEXTS._plans": _seen,
    "dispatch.calling.programs._known": _in_vmap,
    "extensions.asynchronous.ties._changes": _asynchronous,
    "lowering.regions._static_effect_counts": _in_branches_of_a_region,
    "lowering.derivatives._anchored_jaxpr": _grad_of_a_loop,
    "lowering.derivatives.silent_jaxpr": _while_loop_linearized,
    "extensions.jax_callbacks.conversion._restored": _jaxs_own_restored,
    "extensions.jax_callbacks.conversion._converted": _jaxs_own_traced_before,
    "lowering.holders._rewritten": _in_vmap,
    "lowering.summary._summarize": _asynchronous,
    "lowering.tokens.threaded_jaxpr": _in_branches_of_a_region,
    "extensions.runs.reading._LINES._plans": _read_from_a_file,
    "extensions.watching.options._joined": _watched_loop_with_lanes,
    "extensions.watching.options.has_any": _watched_and_searched,
    "extensions.watching.call._linearized": _watched,
    "extensions.watching.flag._flagged": _watched,
    "extensions.watching.flag._plan": _watched,
    "extensions.watching.flag._shown_inputs": _watched,
    "lowering.shard_map._may_diverge": _in_branches_of_a_region,
    "extensions.collectives.notes._noted": lambda: _noted(notes._noted),
    "extensions.collectives.notes._noted_program": lambda: _noted(notes._noted_program),
}
"""By cache: a program that uses it."""

_LRU = type(_jax.weakref_lru_cache(len))
_DICTIONARIES = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


def _with_parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A module's object, and the attributes of one that is of a class of ours."""
    yield name, value
    if type(value).__module__.startswith("effects."):
        yield from ((f"{name}.{attribute}", part) for attribute, part in getattr(value, "__dict__", {}).items())


@functools.cache
def _caches() -> dict[str, Any]:
    """Those of all modules, by module and name."""
    found = {}
    for info in pkgutil.walk_packages(fx.__path__, "effects."):
        module = importlib.import_module(info.name)
        for name, value in [part for each in vars(module).items() for part in _with_parts(*each)]:
            if isinstance(value, _LRU):
                function = next(filter(inspect.isfunction, gc.get_referents(value)))
                found[f"{function.__module__}.{name}"] = value
            elif isinstance(value, _DICTIONARIES):
                found[f"{module.__name__}.{name}"] = value
    return {name.removeprefix("effects."): cache for name, cache in found.items()}


def _sizes() -> dict[str, int]:
    """How much is in each."""
    caches = _caches().items()
    return {name: cache.cache_info().currsize if type(cache) is _LRU else len(cache) for name, cache in caches}


def _uses(name: str) -> int:
    """How often something was put into a cache; of a dictionary, how much there is."""
    cache = _caches()[name]
    return cache.cache_info().misses if type(cache) is _LRU else len(cache)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_dropped_leaves_caches(name):
    """What a program puts into caches goes with it: into the one that it is here for, and into all others."""
    PROGRAMS[name]()  # JAX keeps functions of its own that it uses
    gc.collect()
    sizes, uses = _sizes(), _uses(name)
    made = PROGRAMS[name]()
    assert _uses(name) > uses
    del made
    let_go(lambda: {name: size for name, size in _sizes().items() if size > sizes[name]})


def test_no_cache_is_left_out():
    """Every cache that is keyed weakly has a program above."""
    assert _caches().keys() == PROGRAMS.keys()
