"""Work on a program grows with the functions that it has, and not with how often they call each other.

Each pass keeps what it has made of a jaxpr. Where n functions call the next one twice, there are 2^n calls.
"""

import contextlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import effects as fx
from tests.dispatch.devices.meshes import by_device
from tests.internals import _jax

OURS = str(Path(fx.__file__).parent)
X = jnp.ones(4)
SHAPE = jax.ShapeDtypeStruct((), jnp.float32)


def _twice(f):
    return jax.jit(lambda x: f(f(x)))


def _print(x):
    fx.print("{}", x)
    return x + 1


def _print_of_jax(x):
    jax.debug.print("{}", x)
    return x + 1


def _branches(f):
    return lambda x: jax.lax.cond(x > 0, f, lambda x: x, x)


def _loop(f):
    return lambda x: jax.lax.while_loop(lambda carry: carry[0] < 2, lambda carry: (carry[0] + 1, f(carry[1])), (0, x))[
        1
    ]


def _scan(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]


def _each(f):
    return lambda x: jax.vmap(f)(x).sum()


def _region(f, **kwargs):
    return lambda x: by_device(lambda x: f(x.sum())[None], **kwargs)(x)


def _kernel(f):
    def kernel(x_ref, o_ref):
        o_ref[...] = f(x_ref[...])

    return lambda x: pl.pallas_call(kernel, out_shape=x, interpret=True)(x)


def _print_in_kernel(x):
    fx.print("{}", x[0])
    return x + 1


def _sum(f):
    return lambda x: f(x.sum())


def _start(x):
    return fx.async_done(fx.async_callback(lambda x: x, SHAPE, x))


def _permute(x):
    return fx.async_done(fx.ppermute_start(x, "x", [(0, 1), (1, 0)]))


KERNEL_LOGS = _jax.with_kernel_options(logs_simulated=True)
PROGRAMS = {
    "records": (_print, _sum),
    "unordered records": (lambda x: (fx.print("{}", x, ordered=False), x)[1], _sum),
    "callbacks": (lambda x: fx.callback(lambda x: x, SHAPE, x), _sum),
    "lanes": (_print, lambda f: _each(_branches(f))),
    "loops of lanes": (_print, lambda f: _each(_loop(f))),
    "gradients": (lambda x: fx.print_grad("{}", x) * 2, lambda f: jax.grad(_each(_branches(f)))),
    "checkpoints": (_print, lambda f: jax.grad(jax.checkpoint(_sum(_scan(f))))),
    "linearized loops": (_print, lambda f: lambda x: jax.linearize(_loop(f), x.sum())[1](x.sum())),
    "regions": (_print, _region),
    "branches in regions": (_print, lambda f: _region(_branches(f), check_vma=False)),
    "errors in regions": (lambda x: fx.error_if(x, x < 0, "{}", x), _region),
    "callbacks in regions": (lambda x: fx.callback(lambda x: x, SHAPE, x), _region),
    "callbacks in branches in regions": (
        lambda x: fx.callback(lambda x: x, SHAPE, x),
        lambda f: _region(lambda x: jax.lax.psum(_branches(f)(x), "x"), check_vma=False),
    ),
    "operations": (_start, _sum),
    "operations in loops": (_start, lambda f: _sum(_scan(f))),
    "collectives": (_permute, _region),
    "kernels": (_print_in_kernel, _kernel),
    "kernels with checks": (_print_in_kernel, _kernel, fx.config.override(bounds_checks=True)),
    "kernels with logs": (_print_in_kernel, _kernel, KERNEL_LOGS),
    "JAX's own": (_print_of_jax, _sum),
    "JAX's own as JAX has them": (_print_of_jax, _sum, fx.config.override(jax_effects="jax")),
    "JAX's own given back": (_print_of_jax, _region, fx.config.override(native=False)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_work_is_that_of_the_functions(name):
    """Of twice as many functions, about twice as many steps are made, where there are 32 times as many calls."""
    statement, around, *settings = PROGRAMS[name]

    def steps(depth):
        f = statement
        for _ in range(depth):
            f = _twice(f)
        program = fx.jit(around(f))
        count = 0

        def note(frame, event, _):
            nonlocal count
            count += event == "call" and frame.f_code.co_filename.startswith(OURS)

        sys.setprofile(note)
        try:
            program.lower(X)
        finally:
            sys.setprofile(None)
        return count

    with contextlib.ExitStack() as stack:
        for setting in settings:
            stack.enter_context(setting)
        steps(1)  # what is loaded when it is first needed
        few, many = steps(5), steps(10)
    assert few > 100 and many < 3 * few, (few, many)
