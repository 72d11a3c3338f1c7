"""Errors in the words of `jax.export`, functions without effects, and data that is damaged."""

from __future__ import annotations

import random
import re

import jax
import jax.export
import jax.numpy as jnp
import pytest

import effects as fx

pytestmark = pytest.mark.slow

X = jnp.arange(3.0)


def _printing(x, *, k=1):
    fx.print("x {}", x)
    return k * x


def test_jax_export_without_effects_is_jaxs_own():
    """A function without effects is exported by JAX, with or without `fx.jit`; other functions always are."""
    for jit in (fx.jit, jax.jit):
        exported = jax.export.export(jit(lambda x: x + 1))(X)
        assert type(exported) is jax.export.Exported
        assert jax.export.deserialize(exported.serialize()).call(X).tolist() == [1, 2, 3]
    with pytest.raises(ValueError):
        jax.export.export(lambda x: x)(X)


@jax.tree_util.register_pytree_node_class
class _Sized:
    """Asks what it is made of for its shape."""

    def __init__(self, x):
        self.x, self.size = x, x.shape[0]

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_a_class_that_reads_shapes_is_exported(lines):
    """A pytree class that reads shapes where it is made can be the argument and the result of an exported program."""
    exported = fx.export(lambda sized: (fx.print("{}", sized.x), _Sized(sized.x[1:]))[1])(_Sized(X))
    results = []
    assert lines(lambda: results.append(exported.call(_Sized(X)))) == ["[0. 1. 2.]"]
    assert results[0].size == 2
    assert exported.in_tree == jax.tree.structure(((_Sized(X),), {}))
    assert exported.out_tree == jax.tree.structure(_Sized(X))


def _described(*sizes):
    return [jax.ShapeDtypeStruct((size,), "float32") for size in sizes]


def _mixed(export, f):
    [a], [b] = jax.export.symbolic_shape("a"), jax.export.symbolic_shape("b")
    export(f)(*_described(a, b))


def _mixed_by_name(export, f):
    [a], [b] = jax.export.symbolic_shape("a"), jax.export.symbolic_shape("b")
    x, y = _described(a, b)
    export(f)(x, y=y)


def _added(export, f):
    [a], [b] = jax.export.symbolic_shape("a"), jax.export.symbolic_shape("b")
    export(lambda x, y: f(x, y) + x + y)(*_described(a, b))


def _concatenated(export, f):
    [w, h1], [v, h2] = jax.export.symbolic_shape("w, h1"), jax.export.symbolic_shape("w, h2")
    x, y = jax.ShapeDtypeStruct((w, h1), "float32"), jax.ShapeDtypeStruct((v, h2), "float32")
    export(lambda x, y: f(x, y) + jnp.concatenate([x, y], axis=1).sum())(x, y)


def _unlike(export, f):
    [a] = jax.export.symbolic_shape("a")
    export(f)(*_described(a, a)).call(X, X[1:])


def _odd(export, f):
    [a] = jax.export.symbolic_shape("a")
    export(f)(*_described(3, 2 * a)).call(X, X)


def _unsolvable(export, f):
    [a] = jax.export.symbolic_shape("a")
    export(f)(*_described(3, a * a)).call(X, X)


ERRORS = {
    "a size that cannot be found": _unsolvable,
    "another structure": lambda export, f: export(f)(X, X).call((X, X), y=X),
    "another number": lambda export, f: export(f)(X, y=X).call(X, X, X),
    "mixed symbolic scopes": _mixed,
    "mixed symbolic scopes, by name": _mixed_by_name,
    "mixed symbolic scopes in an operation": _added,
    "mixed symbolic scopes in an operation that refuses them": _concatenated,
    "sizes that are unlike": _unlike,
    "a size that does not divide": _odd,
    "another shape": lambda export, f: export(f)(X, X).call(X, X[1:]),
    "another type": lambda export, f: export(f)(X, X).call(X, X.astype(int)),
    "another rank": lambda export, f: export(f)(X, X).call(X, X[None]),
    "another shape, by name": lambda export, f: export(f)(X, y=X).call(X, y=X[1:]),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize(
    ("ours", "prints"),
    [(fx.export, False), (fx.export, True), (lambda f: jax.export.export(fx.jit(f)), False)],
    ids=["ours", "ours, with an effect", "JAX's, of ours"],
)
def test_errors_count_the_users_arguments(name, ours, prints):
    """Errors about arguments are those of `jax.export`, and count no token among the arguments."""

    def f(x, y):
        if prints:
            fx.print("{}", x)
        return x.sum() + y.sum()

    texts = []
    for export in (ours, lambda f: jax.export.export(jax.jit(f))):
        with pytest.raises(ValueError) as caught:
            ERRORS[name](export, f if export is ours else lambda x, y: x.sum() + y.sum())
        text = re.sub(r"scope \d+|<locals>\.|when (exporting|the function) \S+", "", str(caught.value))
        texts.append(re.sub(r":\d+:\d+ \(\w+\)", "", text))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("export", "prints"), [(fx.export, False), (fx.export, True), (jax.export.export, False)])
def test_other_options_of_jax_are_given_to_it(export, prints, lines):
    """Those that `jax.export.export` takes and that `fx.export` does not name."""

    @fx.jit
    def f(x):
        if prints:
            fx.print("{}", x)
        return jnp.sin(x)

    exported = export(f, _override_lowering_rules=((jax.lax.sin_p, lambda ctx, x, **_: [x]),))(2.0)
    results = []
    assert lines(lambda: results.append(exported.call(2.0))) == ["2.0"] * prints
    assert results == [2.0]


def test_a_reference_that_is_closed_over_is_refused():
    """A program that closes over a mutable reference is refused with the remedy, whether it reads or writes it."""
    ref = jax.new_ref(X)

    def write(x):
        ref[...] = x

    for f in (write, lambda x: x + ref[...], lambda x: fx.print("{} {}", ref, x)):
        with pytest.raises(NotImplementedError, match=r"closes over one.*Pass `ref\[...\]`"):
            fx.export(f)(X)


def test_damaged_data_is_one_error():
    """Data of which bytes are other or gone is refused as a whole, with one error; what is no data at all, too."""
    data = bytes(fx.export(_printing)(X).serialize())
    fx.deserialize(memoryview(data))
    draw = random.Random(0)
    cut = [data[:n] for n in (*range(60), *(draw.randrange(len(data)) for _ in range(100)), len(data) - 1)]
    flipped = []
    for at in (*range(60), *(draw.randrange(len(data)) for _ in range(300))):
        changed = bytearray(data)
        changed[at] ^= 1 << draw.randrange(8)
        flipped.append(bytes(changed))
    more = [data + b"\0", b"", data[: len(data) // 2] + data[len(data) // 2 + 1 :], data * 2]
    for bad in (*cut, *flipped, *more):
        with pytest.raises(ValueError, match="^`fx.deserialize` was given"):
            fx.deserialize(bad)
    with pytest.raises(ValueError, match="is damaged: its check sum"):
        fx.deserialize(data[:-1])
    for other in ("text", None, 5):
        with pytest.raises(ValueError, match="was given something else"):
            fx.deserialize(other)
