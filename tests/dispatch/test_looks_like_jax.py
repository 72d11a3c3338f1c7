"""`fx.jit`, and the functions that it returns, look like JAX's when they are inspected."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import effects as fx

pytestmark = pytest.mark.slow


def function(x, y=1, *, k: int = 2) -> int:
    """A function."""
    return x + y + k


class Class:
    """A class whose objects and methods are compiled."""

    def method(self, x, y=1):
        return x + y

    def __call__(self, x, *rest, **more):
        return x + len(rest)


FUNCTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "function": (function, {"static_argnames": "k"}),
    "lambda": (lambda x, y=1: x + y, {}),
    "method": (Class().method, {}),
    "object": (Class(), {}),
    "partial": (functools.partial(function, y=3), {}),
    "builtin": (abs, {}),
    "numpy": (jnp.add, {}),
    "class": (jnp.float32, {}),
}

LOOKS: dict[str, Callable[[Any], Any]] = {
    "signature": inspect.signature,
    "signature itself": lambda f: inspect.signature(f, follow_wrapped=False),
    "__signature__": lambda f: f.__signature__,
    "argspec": inspect.getfullargspec,
    "bound": lambda f: inspect.signature(f).bind(1),
    "hints": typing.get_type_hints,
    "source": inspect.getsource,
    "doc": inspect.getdoc,
    "comments": inspect.getcomments,
    "module of": inspect.getmodule,
    "closure": inspect.getclosurevars,
    "unwrap": inspect.unwrap,
    "type's name": lambda f: (type(f).__name__, type(f).__qualname__),
    "str": str,
    "repr": repr,
    **{
        name: functools.partial(lambda name, f: getattr(f, name), name)
        for name in (
            *("__name__", "__qualname__", "__doc__", "__module__", "__wrapped__", "__annotations__", "__defaults__"),
            *("__kwdefaults__", "__code__", "__globals__", "__closure__", "__self__", "__func__", "__objclass__"),
            *("__text_signature__", "nothing", "_fun", "func", "args", "keywords", "__isabstractmethod__"),
        )
    },
    **{
        test.__name__: test
        for test in (
            *(inspect.isfunction, inspect.isroutine, inspect.ismethod, inspect.isbuiltin, inspect.isclass),
            *(inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.isabstract),
            *(
                inspect.ismethoddescriptor,
                inspect.isdatadescriptor,
                inspect.ismemberdescriptor,
                callable,
                bool,
                len,
                iter,
            ),
        )
    },
    "hash": lambda f: hash(f) == hash(f),
    "equal": lambda f: (f == f, f != f, f == 3),
    "weak reference": lambda f: weakref.ref(f)() is f,
    "attribute": lambda f: (setattr(f, "mine", 3), f.mine, delattr(f, "mine"), hasattr(f, "mine")),
    "no attribute to delete": lambda f: delattr(f, "nothing"),
    "dictionary": lambda f: sorted(name for name in vars(f) if name[0] != "_"),
    "name": lambda f: (setattr(f, "__name__", "other"), f.__name__),
    "copied": lambda f: type(copy.copy(f)).__name__,
    "partial": lambda f: functools.partial(f, 1)(),
    "wrapped by": lambda f: functools.wraps(f)(lambda x: x).__doc__,
    "of a class": lambda f: f.__get__(None, int) is f,
    "of an object": lambda f: (type(f.__get__(3)) is types.MethodType, f.__get__(3)()),
    "as a method": lambda f: type("A", (int,), {"m": f})(3).m(),  # type: ignore[attr-defined]
    "tree": lambda f: jax.tree.leaves(f) == [f],
    "abstract": lambda f: isinstance(f, jax.stages.Wrapped),
    "called": lambda f: f(1),
    "with two": lambda f: f(1, 2),
    "with a name": lambda f: f(x=1),
    "with none": lambda f: f(),
    "with too many": lambda f: f(1, 2, 3, 4),
    "with a wrong name": lambda f: f(1, z=3),
    "with text": lambda f: f("a"),
    "with an object": lambda f: f(object()),
    "with what has no hash": lambda f: f(1, k=[1]),
    "lowered": lambda f: type(f.lower(1)).__name__,
    "lowered with none": lambda f: f.lower(),
    "traced": lambda f: str(f.trace(1).jaxpr),
    "traced with none": lambda f: f.trace(),
    "shape": lambda f: f.eval_shape(1),
    "shape with none": lambda f: f.eval_shape(),
    "compiled": lambda f: f.lower(1).compile()(1),
    "compiled with another": lambda f: f.lower(1).compile()(1.0),
    "cleared": lambda f: (f(1), f.clear_cache(), f._cache_size()),
    "public names": lambda f: sorted({*dir(f)} - {*dir(object())} - {name for name in dir(f) if name[0] == "_"}),
}


def outcome(look, f):
    try:
        shown = repr(look(f))
    except Exception as error:
        shown = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return re.sub(r" at 0x[0-9a-f]+|jaxlib\._jax\.", "", shown)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_jitted_function_looks_like_jaxs(kind, look):
    """A function of `fx.jit` has the attributes, answers to `inspect`, and errors of a function of `jax.jit`."""
    fun, options = FUNCTIONS[kind]
    outcomes = [outcome(LOOKS[look], jit(fun, **options)) for jit in (fx.jit, jax.jit)]
    assert outcomes[0] == outcomes[1]


JITS: dict[str, Callable[[Any], Any]] = {
    "signature": inspect.signature,
    "nothing": lambda jit: callable(jit()),
    "None": lambda jit: jit(None),
    "number": lambda jit: jit(3),
    "text": lambda jit: jit("a"),
    "two": lambda jit: jit(function, 1),
    "keyword": lambda jit: jit(fun=function),
    "decorator": lambda jit: jit(static_argnames="k")(function)(1, k=3),
    "decorator of None": lambda jit: jit(static_argnums=0)(None),
    "unknown option": lambda jit: jit(function, nope=1),
    "unknown option of a decorator": lambda jit: jit(nope=1),
    "partial": lambda jit: functools.partial(jit, static_argnames="k")(function)(1, k=3),
    "wrong number": lambda jit: jit(function, static_argnums=9),
    "wrong name": lambda jit: jit(function, static_argnames="q"),
    "wrong type": lambda jit: jit(function, static_argnums="x"),
    "static and donated": lambda jit: jit(function, static_argnums=0, donate_argnums=0),
    "static method": lambda jit: jit(staticmethod(function)),
    "backend": lambda jit: jit(function, backend="nope")(1),
    "sharding": lambda jit: jit(function, in_shardings=3),
    "compiler option": lambda jit: jit(function, compiler_options={"a": 1})(1),
    "generator": lambda jit: jit(_generator)(1),
    "unhashable static": lambda jit: jit(function, static_argnums=0)([1]),
    "doc": lambda jit: bool(jit.__doc__),
}


def _generator(x):
    yield x


@pytest.mark.filterwarnings("ignore:backend and device")
@pytest.mark.parametrize("look", JITS)
def test_jit_looks_like_jaxs(look):
    """`fx.jit` has all options in its signature, and wrong calls of it raise the errors of `jax.jit`."""
    assert outcome(JITS[look], fx.jit) == outcome(JITS[look], jax.jit)


@pytest.mark.parametrize("option", [{"backend": "cpu"}, {"device": jax.devices("cpu")[0]}])
def test_jit_warns_as_jaxs_does(option):
    """Once, of the line that calls it."""

    def warnings_of(jit):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            assert jit(lambda x: x + 1, **option)(1) == 2
        return [(str(each.message), each.category, each.filename, each.lineno) for each in shown]

    assert warnings_of(fx.jit) == warnings_of(jax.jit) != []


def test_stages_are_those_of_jax():
    """What is traced, lowered and compiled are instances of JAX's classes, as type checkers at run time ask."""
    traced = fx.jit(lambda x: (fx.print("{}", x), x)[1]).trace(1.0)
    assert isinstance(traced, jax.stages.Traced)
    assert isinstance(traced.lower(), jax.stages.Lowered)
    assert isinstance(traced.lower().compile(), jax.stages.Compiled)
