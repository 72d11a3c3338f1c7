"""The table of transformations: each cell's effects, in the right number and order."""

from __future__ import annotations

import contextlib
import io
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import ROOT
from tests.transformations.constructs import CONSTRUCTS
from tests.transformations.language import TRANSFORMATIONS, TWO
from tests.transformations.programs import PROGRAMS
from tests.transformations.table import table


def _cells(construct, *names):
    """The transformations of a construct, of these names or all, with what it must show under each."""
    found = [(each, each.expected(construct)) for each in TRANSFORMATIONS if not names or each.name in names]
    return [(each, expected) for each, expected in found if expected is not None]


def _while(x):
    return jax.lax.while_loop(lambda x: x < 3, lambda x: Printed().show("b", x) + 1, x)


class Printed:
    """Effects as lines of the output."""

    def __init__(self, **options):
        self._options = options

    def show(self, place, x):
        fx.print(place + "{:.0f}", x, **self._options)
        return x

    @contextlib.contextmanager
    def collect(self, seen):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            yield
        seen += out.getvalue().split()


class Logged:
    """Effects as events."""

    def show(self, place, x):
        fx.log(place, x=x)
        return x

    @contextlib.contextmanager
    def collect(self, seen):
        with fx.capture(suppress=True) as records:
            yield
        seen += [f"{record.event}{record.fields['x']:.0f}" for record in records]


class Called:
    """Effects as calls of a function, which the program waits for or not."""

    def __init__(self, awaited):
        self._awaited = awaited
        self._seen = []

    def show(self, place, x):
        def call(x):
            self._seen.append(f"{place}{x:.0f}")
            return 3 * x if self._awaited else None

        if not self._awaited:
            fx.callback(call, None, x)
            return x
        return fx.callback(call, jax.ShapeDtypeStruct(x.shape, x.dtype), x) / 3

    @contextlib.contextmanager
    def collect(self, seen):
        yield
        seen += self._seen


KINDS = {
    "unordered": lambda: Printed(ordered=False),
    "log": Logged,
    "callback": lambda: Called(awaited=False),
    "callback with results": lambda: Called(awaited=True),
}


def _run(jit, function, argument, kind):
    """What a program shows, and what it returns."""
    seen = []
    with kind.collect(seen):
        out = jit(function)(argument)
        fx.effects_barrier(timeout=60)
    return seen, out


def _program(construct, transformation, show):
    return transformation.apply(lambda x: construct.program(show, x))


END = "end0"


def _shown_by(jit, functions, kind):
    """What each of some functions shows, and what they return: [(function, argument)], all in one program, which
    compiles sooner than as many. An effect at the end of each says where it is."""

    def program(arguments):
        outs = []
        for (function, _), x in zip(functions, arguments, strict=True):
            outs.append(function(x))
            kind.show("end", jnp.float32(0))
        return outs

    seen, outs = _run(jit, program, [argument for _, argument in functions], kind)
    assert seen.pop() == END
    return [shown.strip() for shown in " ".join(seen).split(END)], outs


def _check(construct, jit, cells):
    kind = Printed()
    functions = [(_program(construct, each, kind.show), each.argument) for each, _ in cells]
    shown, _ = _shown_by(jit, functions, kind)
    names = [each.name for each, _ in cells]
    assert dict(zip(names, shown, strict=True)) == dict(zip(names, [expected for _, expected in cells], strict=True))


@pytest.mark.parametrize("construct", CONSTRUCTS, ids=lambda construct: construct.name.replace("`", ""))
def test_construct(construct):
    """Every construct under every transformation: the effects of the program, in its order."""
    _check(construct, fx.jit, _cells(construct))


@pytest.mark.parametrize("construct", CONSTRUCTS, ids=lambda construct: construct.name.replace("`", ""))
def test_construct_through_jax_jit(construct):
    """The same under `jax.jit`."""
    is_offloaded = "offload" in construct.name  # JAX cannot lower its derivative with any ordered effect
    _check(construct, jax.jit, _cells(construct, "`jit`", "`vmap`", *["`vmap` of `grad`"] * (not is_offloaded)))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind(name):
    """The same for every kind of effect; and what depends on a callback is what it would be without."""
    kind = KINDS[name]()
    constructs = [construct for construct in CONSTRUCTS if not construct.only]
    cells = [(construct, *_cells(construct, "`vmap`")[0]) for construct in constructs]
    functions = [(_program(construct, each, kind.show), each.argument) for construct, each, _ in cells]
    expected = [text for _, _, text in cells]
    if name == "unordered":
        seen, _ = _run(
            fx.jit, lambda xs: [f(x) for (f, _), x in zip(functions, xs, strict=True)], [TWO] * len(cells), kind
        )
        assert sorted(seen) == sorted(" ".join(expected).split())
        return
    shown, outs = _shown_by(fx.jit, functions, kind)
    names = [construct.name for construct in constructs]
    assert dict(zip(names, shown, strict=True)) == dict(zip(names, expected, strict=True))
    if name == "callback with results":
        mapped = [name != "`run_state`" for name in names]  # JAX has no `vmap` of that
        silent = [_program(construct, each, lambda _, x: x) for construct, each, _ in itertools.compress(cells, mapped)]
        plain = jax.jit(lambda x: [f(x) for f in silent])(TWO)
        for out, expected in zip(itertools.compress(outs, mapped), plain, strict=True):
            np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    """Programs that have a row of their own."""
    function, argument, expected = PROGRAMS[name]
    shown, out = _run(fx.jit, function, argument, Printed())
    assert " ".join(shown) == expected
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(out))


def test_programs_through_jax_jit():
    """They show the same under `jax.jit`."""
    shown, _ = _shown_by(jax.jit, [(function, argument) for function, argument, _ in PROGRAMS.values()], Printed())
    assert dict(zip(PROGRAMS, shown, strict=True)) == {name: expected for name, (_, _, expected) in PROGRAMS.items()}


def _mesh():
    return jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def test_transposed_operand_is_refused():
    """In a transposed function what is linear has no value to show."""
    with pytest.raises(fx.NotDifferentiable, match="`print`.*transposed.*`fx.print_grad`") as caught:
        jax.linear_transpose(lambda x: Printed().show("p", x) * 2, jnp.float32(1))(jnp.float32(1))
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize("control", ["cond", "while_loop"])
def test_references_from_outside_are_refused_where_lanes_differ(control):
    """A lane that is not there must not write, and JAX has no way to hold it back."""

    def program(x):
        ref = jax.new_ref(jnp.float32(0))

        def write(y):
            ref[...] = Printed().show("w", y)
            return y + 1

        if control == "cond":
            jax.lax.cond(x > 1, write, lambda x: x, x)
        else:
            jax.lax.while_loop(lambda y: y < 3, write, x)
        return ref[...]

    with pytest.raises(NotImplementedError, match=f"{control}.*mutable reference.*jax.lax.map"):
        fx.jit(jax.vmap(program))(jnp.array([1.0, 2.0]))


def _masked(run):
    """Has its effect where x > 1, under two `vmap`s."""
    return jax.vmap(jax.vmap(lambda x: jax.lax.cond(x > 1, run, lambda x: x, x)))


def test_records_know_their_lane():
    """One index for each `vmap`, the outermost first; none without."""

    def program(x):
        fx.print("none")
        jax.vmap(lambda x: fx.log("one", x=x))(x[0])
        jax.vmap(jax.vmap(lambda x: fx.print("two {}", x)))(x)
        jax.vmap(lambda row: jax.vmap(lambda x: fx.print("three {}", row.sum()))(row))(x)
        _masked(lambda x: Printed().show("four", x))(x)

    with fx.capture(suppress=True) as records:
        fx.jit(program)(jnp.arange(4.0).reshape(2, 2))
        fx.effects_barrier(timeout=60)
    every = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [record.lane for record in records] == [(), (0,), (1,), *every, *every, (1, 0), (1, 1)]


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
@pytest.mark.parametrize(
    "vmap_method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized"]
)
def test_callbacks_are_called_for_lanes_that_are_there(vmap_method, jit):
    """Where some lanes are missing, a function is called for each of the others; where none is, as JAX does."""
    called = []

    def double(x):
        called.append(np.array(x))
        return np.asarray(2 * x, np.float32)

    def run(x):
        return fx.callback(double, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method=vmap_method)

    x = jnp.arange(4.0).reshape(2, 2)
    np.testing.assert_array_equal(jit(_masked(run))(x), [[0, 1], [4, 6]])
    assert [y.tolist() for y in called] == [2.0, 3.0]
    called.clear()
    np.testing.assert_array_equal(jit(_masked(run))(x + 2), 2 * x + 4)
    together = not vmap_method.startswith("sequential")
    assert [y.tolist() for y in called] == ([[[2.0, 3.0], [4.0, 5.0]]] if together else [2.0, 3.0, 4.0, 5.0])


def test_function_of_no_lane_is_not_called():
    """Where no lane is there, nothing is called, and the results of the other branch are right."""
    called = []

    def run(x):
        return fx.callback(lambda x: called.append(x) or x, jax.ShapeDtypeStruct((), jnp.float32), x)

    np.testing.assert_array_equal(fx.jit(_masked(run))(-jnp.ones((2, 2))), -np.ones((2, 2)))
    assert not called


@pytest.mark.parametrize("program", [lambda x: Printed().show("p", x), _while], ids=["straight", "while"])
def test_many_lanes_are_one_record(lines, program):
    """A batch of 100,000 lanes prints as many lines from one record, and its program is as long as that of ten."""
    mapped = fx.jit(jax.vmap(program))
    few, many = (mapped.lower(jnp.ones(size)).as_text() for size in (10, 100_000))
    sizes = re.compile(r"\b(10|100000)(?=x|\b)")
    # What names the site: its key, and the number that says how many bytes travel.
    assert len(sizes.sub("n", few)) == pytest.approx(len(sizes.sub("n", many)), abs=100)
    assert few.count("stablehlo.") == many.count("stablehlo.")
    turns = 1 if program is not _while else 2
    before = fx.stats()["published"]
    shown = lines(mapped, jnp.ones(100_000))
    assert fx.stats()["published"] - before <= turns + 1  # and the program's end
    assert len(shown) == 100_000 * turns


def test_table_has_cells_enough():
    """No fewer than the promise."""
    assert sum(len(_cells(construct)) for construct in CONSTRUCTS) > 300


def test_documentation_has_the_tables():
    """What the page says is what is tested."""
    assert table() in (ROOT / "docs/reference/transformations.md").read_text()
