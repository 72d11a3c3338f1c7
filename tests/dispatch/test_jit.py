"""`fx.jit` is `jax.jit` for functions with effects."""

from __future__ import annotations

import functools
import gc
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import effects as fx


def _count_traces(**options):
    traces = []

    def f(x, n=2, *, scale=1):
        traces.append((getattr(x, "shape", None), n))
        fx.print("{} {} {s}", x, n, s=scale)
        return x * n

    return traces, fx.jit(f, **options), jax.jit(f, **options)


def test_jit_traces_exactly_when_jax_does(capsys):
    """The same calls trace the function as often as `jax.jit` would: by shape, type, static value, structure."""
    traces, ours, theirs = _count_traces(static_argnames=("n", "scale"))
    calls = [((1.0,), {}), ((2.0,), {}), ((jnp.ones(3),), {}), ((jnp.ones(3), 3), {}), ((1.0,), {"n": 3})]
    calls += [((1.0, 3), {"scale": 2}), ((np.float32(5),), {}), ((1,), {}), ((jnp.ones(3) * 2,), {"n": 3})]

    def count(f):
        counts = []
        for args, kwargs in calls:
            before = len(traces)
            f(*args, **kwargs)
            counts.append(len(traces) - before)
        return counts

    expected = count(theirs)
    jax.effects_barrier()
    jax.clear_caches()
    assert count(ours) == expected


def test_jitting_the_same_function_again_compiles_nothing(lines):
    """A function that is jitted twice is traced once, as with `jax.jit`, and is not kept alive for it."""
    traces = []

    def jit_often():
        def f(x):
            traces.append(None)
            fx.print("{}", x)

        for _ in range(3):
            fx.jit(f)(1)
            fx.jit(f, static_argnums=())(1)
        return weakref.ref(f)

    gone = []
    assert lines(lambda: gone.append(jit_often())) == ["1"] * 6
    assert len(traces) <= 2
    jax.clear_caches()
    gc.collect()
    assert gone[0]() is None


@pytest.mark.parametrize("jit", [jax.jit, fx.jit])
@pytest.mark.parametrize("prints", [False, True])
def test_what_a_function_closes_over_goes_with_it(jit, prints):
    """When the function has gone so have the arrays that it closed over, whatever else stays in caches."""

    def jitted(array):
        def f():
            if prints:
                fx.print("{}", array.sum())
            return jax.lax.fori_loop(0, 2, lambda _, x: x + array, array)

        return jit(f)

    array = jnp.ones(10)
    f, array = jitted(array), weakref.ref(array)
    for _ in range(2):
        f()
    fx.effects_barrier()
    assert array() is not None
    del f
    gc.collect()
    assert array() is None


def test_wrong_arguments_are_told_as_jax_does():
    """An error about arguments speaks of the user's function and its arguments, not of tokens."""

    def f(value):
        fx.print("{}", value)

    with pytest.raises(TypeError, match=r"f\(\).*takes 1 positional argument but 2 were given"):
        fx.jit(f)(1, 2)
    with pytest.raises(TypeError, match="value") as caught:
        fx.jit(f)(object())
    assert "token" not in str(caught.value)


def _generate(x):
    yield x


@pytest.mark.parametrize(
    ("fun", "options"), [(3, {}), (_generate, {}), (staticmethod(abs), {}), (abs, {"static_argnames": "y"})]
)
def test_what_jax_refuses_is_refused_at_once(fun, options):
    """What `jax.jit` makes no function of has the same error."""
    with pytest.raises((TypeError, ValueError)) as theirs:
        jax.jit(fun, **options)
    with pytest.raises(type(theirs.value)) as ours:
        fx.jit(fun, **options)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("options", "args", "kwargs", "shown"),
    [
        ({"static_argnums": 1}, (2, 3), {}, "2 3 1"),
        ({"static_argnums": (-2,)}, (2, 3), {}, "2 3 1"),
        ({"static_argnames": "n"}, (2, 3), {}, "2 3 1"),
        ({"static_argnames": ("n", "scale")}, (2,), {"n": 5, "scale": "s"}, "2 5 s"),
        ({}, (2,), {"scale": 7}, "2 2 7"),
        ({"keep_unused": True, "inline": True}, (2,), {}, "2 2 1"),
    ],
)
def test_jit_options(lines, options, args, kwargs, shown):
    """Options of `jax.jit` mean the same."""
    _, f, _ = _count_traces(**options)
    assert lines(f, *args, **kwargs) == [shown]


def test_jit_donates(lines):
    """A donated argument is gone; others stay."""
    f = fx.jit(lambda x, y: (fx.print("{}", y[0]), x + 1, y)[1:], donate_argnums=0)
    x, y = jnp.ones(3), jnp.ones(3)
    lines(f, x, y)
    assert x.is_deleted() and not y.is_deleted()


def test_jit_returns_any_pytree(lines):
    """Results have the structure that the function gave them."""
    out = []
    lines(lambda: out.append(fx.jit(lambda x: (fx.print("{}", x), {"a": x, "b": None, "c": [x, ()]})[1])(1)))
    assert jax.tree.structure(out[0]) == jax.tree.structure({"a": 1, "b": None, "c": [1, ()]})


def test_jit_as_decorator_and_method(lines):
    """`fx.jit` decorates, with and without options, functions and methods, and keeps name and docstring."""

    class Model:
        @functools.partial(fx.jit, static_argnums=0)
        def step(self, x):
            """One step."""
            fx.print("step {}", x)
            return x

    @fx.jit(static_argnames="n")
    def f(x, n):
        fx.print("{} {}", x, n)

    assert lines(Model().step, 1) == ["step 1"]
    assert lines(f, 1, n=2) == ["1 2"]
    assert Model.step.__name__ == "step" and Model.step.__doc__ == "One step."


@pytest.mark.parametrize("which", ["one", "each", "none"])
def test_jit_shardings(lines, which):
    """Given shardings are those of the results, and a sharded value is printed whole, once."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    options = {
        "one": {"in_shardings": sharding, "out_shardings": sharding},
        "each": {"in_shardings": (sharding,), "out_shardings": sharding},
        "none": {},
    }[which]

    @functools.partial(fx.jit, **options)
    def f(x):
        def body(i, x):
            fx.print("{} {}", i, x)
            fx.print("un", ordered=False)
            return x + 1

        return jax.lax.fori_loop(0, 2, body, x)

    out = []
    shown = lines(lambda: out.append(f(jax.device_put(jnp.arange(8), sharding))))
    assert [line for line in shown if line != "un"] == ["0 [0 1 2 3 4 5 6 7]", "1 [1 2 3 4 5 6 7 8]"]
    assert shown.count("un") == 2
    assert out[0].sharding.is_equivalent_to(sharding, 1)


def test_jit_stages(lines):
    """`lower`, `trace`, `eval_shape`, `compile` work as those of `jax.jit`; what is compiled can be called."""
    f = fx.jit(lambda x: (fx.print("x {}", x), x + 1)[1])
    lowered = f.lower(1.0)
    assert "effects_record" in lowered.as_text()
    compiled = lowered.compile()
    assert lines(compiled, 2.0) == ["x 2.0"]
    traced = f.trace(1.0)
    assert "effect[" in str(traced.jaxpr)
    assert lines(traced.lower().compile(), 3.0) == ["x 3.0"]
    assert lines(lambda: f.eval_shape(1.0)) == []
    assert f.eval_shape(1.0).dtype == np.float32
    f.clear_cache()
    assert lines(f, 4.0) == ["x 4.0"]


@pytest.mark.parametrize(
    ("outer", "argument"),
    [
        (jax.jit, 1.0),
        (fx.jit, 1.0),
        (jax.grad, 1.0),
        (lambda f: fx.jit(jax.grad(f)), 1.0),
        (jax.vmap, np.ones(1, np.float32)),
        (lambda f: fx.jit(lambda x: jax.lax.map(f, x)), np.ones(1, np.float32)),
        (lambda f: jax.jit(fx.jit(jax.jit(f))), 1.0),
    ],
    ids=["jax.jit", "fx.jit", "grad", "jit of grad", "vmap", "map", "nested"],
)
def test_jit_is_transparent_under_an_outer_trace(lines, outer, argument):
    """Under another transformation the effects are the outer program's, once."""
    f = fx.jit(lambda x: (fx.print("x {}", x), x * 2)[1])
    assert lines(outer(f), argument) == ["x 1.0"]


def test_jit_without_effects(lines):
    """A function without effects is what `jax.jit` makes of it."""
    out = []
    assert lines(lambda: out.append(fx.jit(lambda x: x + 1)(1))) == []
    assert out == [2]


def test_jit_takes_the_fast_dispatch_path(lines):
    """A warm call enters none of JAX's Python code for dispatch: the rewritten program has no effects for JAX."""
    f = fx.jit(lambda x: (fx.print("{}", x), x)[1])
    x = jnp.ones(())
    entered = []

    def note(frame, event, argument):
        if event == "call" and ("pjit.py" in frame.f_code.co_filename or "pxla.py" in frame.f_code.co_filename):
            entered.append(frame.f_code.co_qualname)

    def warm():
        f(x), f(x)
        sys.setprofile(note)
        try:
            f(x)
        finally:
            sys.setprofile(None)

    lines(warm)
    assert not entered
    jax_ordered = jax.jit(lambda x: (jax.debug.print("{}", x, ordered=True), x)[1])

    def slow():  # the test can see the slow path
        jax_ordered(x), jax_ordered(x)
        sys.setprofile(note)
        try:
            jax_ordered(x)
        finally:
            sys.setprofile(None)
        jax.effects_barrier()

    lines(slow)
    assert entered


def test_jit_with_transfer_guard(lines):
    """Under a guard against implicit transfers programs may be called: a runtime token is no transfer of the user's."""
    f = fx.jit(lambda x: fx.print("{}", x))
    x = jnp.ones(())

    def call():
        with jax.transfer_guard("disallow"):
            f(x)

    assert lines(call) == ["1.0"]


def test_jit_closes_over_arrays_and_references(lines):
    """Constants of a program and references that it closes over are its own."""
    table, ref = jnp.arange(4), jax.new_ref(jnp.zeros(()))

    @fx.jit
    def f(i):
        ref[...] = ref[...] + 1
        fx.print("{} {}", table[i], ref[...])

    assert lines(lambda: (f(2), f(3))) == ["2 1.0", "3 2.0"]


def test_jit_of_a_function_with_an_argument_self(lines):
    """Names of our own methods' parameters are free for the user's."""

    @fx.jit
    def f(self):
        fx.print("{}", self)

    assert lines(lambda: f(self=3)) == ["3"]


def test_jit_debug_nans_finds_the_operation(lines):
    """With `jax_debug_nans` the error is JAX's own, from the operation that made the NaN."""
    f = fx.jit(lambda x: (fx.print("x {}", x), jnp.log(x))[1])
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        f(-1.0)
    assert lines(f, 1.0) == ["x 1.0"]


def test_one_sharding_for_all_arguments(lines):
    """One sharding is a prefix of the arguments, as for `jax.jit`: any number, with defaults, with static ones."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    x = jnp.arange(4)
    many = fx.jit(lambda *xs: fx.print("{}", sum(xs)), in_shardings=sharding)
    default = fx.jit(lambda x, y=2: fx.print("{} {}", x, y), in_shardings=sharding)
    static = fx.jit(lambda n, x: fx.print("{} {}", n, x), in_shardings=sharding, static_argnums=0)
    assert lines(lambda: (many(x), many(x, x), default(x), static(3, x))) == [
        "[0 1 2 3]", "[0 2 4 6]", "[0 1 2 3] 2", "3 [0 1 2 3]",
    ]  # fmt: skip
    assert many.lower(x).compile() is not None


def test_names_of_programs_are_the_functions():
    """A program has its function's name, a partial's that of its function."""

    def mine(x, y):
        fx.print("{} {}", x, y)

    for fun in (mine, functools.partial(mine, y=1)):
        args = (1, 2) if fun is mine else (1,)
        assert "@jit_mine" in fx.jit(fun).lower(*args).as_text()


def test_stages_speak_of_the_users_arguments_and_results():
    """What a lowered or compiled program says of its inputs and outputs is what `jax.jit` says: no tokens."""

    def ours(x, y, *, z):
        fx.print("{}", y)
        return {"a": x + z, "b": y}

    def theirs(x, y, *, z):
        return {"a": x + z, "b": y}

    args = jnp.ones(4), jnp.ones(3)
    lowered = fx.jit(ours, donate_argnums=0).lower(*args, z=1.0)
    expected = jax.jit(theirs, donate_argnums=0).lower(*args, z=1.0)
    compiled, expected_compiled = lowered.compile(), expected.compile()
    for stage, reference in ((lowered, expected), (compiled, expected_compiled)):
        assert stage.in_tree == reference.in_tree
        assert stage.out_tree == reference.out_tree
        assert str(stage.in_avals) == str(reference.in_avals)
        assert jax.tree.structure(stage.out_info) == jax.tree.structure(reference.out_info)
        assert stage.donate_argnums == reference.donate_argnums
    assert compiled.input_shardings[1].keys() == expected_compiled.input_shardings[1].keys()
    assert len(compiled.input_shardings[0]) == len(expected_compiled.input_shardings[0])
    assert compiled.output_shardings.keys() == expected_compiled.output_shardings.keys()
