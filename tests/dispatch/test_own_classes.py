"""Pytree classes that check what they are made of: structures are never found by making an object."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Checked:
    """As `jaxtyping` with `beartype` has it: a vector, and nothing that merely stands for one."""

    x: jax.Array | np.ndarray

    def __post_init__(self):
        if not isinstance(self.x, (jax.Array, np.ndarray)) or self.x.ndim != 1:
            raise TypeError(f"a vector is wanted, not {self.x!r}")


X = jnp.arange(3.0)
VECTOR = jax.ShapeDtypeStruct((3,), "float32")


def _quiet(x):
    return Checked(x + 1)


def _printing(x):
    fx.print("{}", x)
    return {"result": Checked(x + 1)}


def _vector(result):
    return (result if isinstance(result, Checked) else result["result"]).x.tolist()


@pytest.mark.parametrize("fun", [_quiet, _printing])
def test_a_result_class_may_check_its_fields(lines, fun):
    """Calls, compiled programs and exported programs return a class that checks its fields, as with `jax.jit`."""
    compiled = fx.jit(fun).lower(X).compile()
    exported = fx.export(fun)(VECTOR)
    assert compiled.out_tree == jax.tree.structure(fun(X)) == exported.out_tree
    results = []
    for call in (fx.jit(fun), compiled, exported.call, jax.jit(fx.jit(fun))):
        shown = lines(lambda call=call: results.append(call(X)))
        assert shown == ([] if fun is _quiet else ["[0. 1. 2.]"])
    assert list(map(_vector, results)) == [[1, 2, 3]] * 4


def test_an_argument_class_may_check_its_fields(lines):
    """So may the class of an argument, on one device and on several, for which programs are compiled ahead."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P())

    @fx.jit
    def f(checked):
        fx.print("{}", checked.x)
        return Checked(2 * checked.x)

    results = []
    for x in (X, jax.device_put(X, sharding)):
        assert lines(lambda x=x: results.append(f(Checked(x)))) == ["[0. 1. 2.]"]
    assert list(map(_vector, results)) == [[0, 2, 4]] * 2


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_a_class_that_is_shown_may_check_its_fields(lines, jit):
    """What effects are given is made again with arrays alone, whoever shows it."""

    def f(checked):
        fx.print("{} {named}", checked, named=checked)
        jax.debug.print("{}", checked, ordered=True)
        fx.log("event", checked=checked)
        fx.callback(lambda checked: seen.append(checked.x.tolist()), None, checked)

    seen = []
    handler = fx.ListHandler()
    added = fx.add_handler(handler)
    try:
        shown = lines(jit(f), Checked(X))
    finally:
        fx.remove_handler(added)
    numpy = repr(Checked(np.arange(3, dtype=np.float32)))
    assert sorted(shown) == sorted([f"{numpy} {numpy}", repr(Checked(X))])
    assert seen == [[0, 1, 2]]
    assert handler.columns("event")["checked.x"].tolist() == [[0, 1, 2]]


def test_a_class_that_is_defined_again_is_another_one(lines):
    """As in a notebook: a program is traced anew for a class of the same name, and shows objects of this one."""

    def define(text):
        @dataclasses.dataclass
        class Again:
            x: jax.Array

            def __repr__(self):
                return text

        # Not `register_dataclass`: to JAX the structures of two such classes of one name are equal.
        jax.tree_util.register_pytree_node(Again, lambda again: ((again.x,), None), lambda _, xs: Again(*xs))
        return Again

    def save(again):
        seen.append(type(again))

    @fx.jit
    def f(again):
        fx.print("{}", again)
        fx.callback(save, None, again)

    first, second = define("first"), define("second")
    seen = []
    assert lines(lambda: (f(first(X)), f(second(X)), f(first(X)))) == ["first", "second", "first"]
    assert seen == [first, second, first]


def test_one_function_is_called_in_the_ways_that_were_asked_for(lines):
    """The same function at the same line, once lane by lane and once for all lanes."""

    def save(x):
        shapes.append(x.shape)
        return x

    @functools.partial(fx.jit, static_argnums=1)
    def f(xs, method):
        return jax.vmap(lambda x: fx.callback(save, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method=method))(xs)

    shapes = []
    lines(lambda: (f(X, None), f(X, "expand_dims"), f(X, None)))
    assert shapes == [(), (), (), (3,), (), (), ()]


class _Adds:
    """Two of it are equal, and do not do the same."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, _Adds)

    def __hash__(self):
        return 0

    def __call__(self, x):
        fx.print("{}", x + self.number)


def test_functions_that_are_equal_are_two(lines):
    one, two = _Adds(1), _Adds(2)
    assert lines(lambda: [fx.jit(one)(1.0), fx.jit(two)(1.0)]) == ["2.0", "3.0"]
