"""The mask pass: which lanes have an effect where branches and loops differ between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.helpers import build_handlers

JITS = pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])


def _twice(inner, x):
    """A branch that lanes 2 and 3 take, and in it one that lanes 1 and 3 take."""
    return lax.cond(x > 1, lambda x: lax.cond(x % 2 == 1, inner, lambda x: x, x), lambda x: x, x)


@JITS
def test_branch_inside_of_a_branch(jit, lines):
    """Only lanes that both predicates bring there have the effect: lane 1 would take the inner branch, too."""

    def f(x):
        return _twice(lambda x: (fx.print("{}", x), x)[1], x)

    assert lines(jit(jax.vmap(f)), jnp.arange(4)) == ["3"]


@JITS
def test_loop_inside_of_a_branch(jit, lines):
    """The lanes that are not in the branch would make turns as well."""

    def turn(carry):
        fx.print("{} {}", *carry)
        return carry[0] + 1, carry[1]

    def f(x):
        loop = lambda x: lax.while_loop(lambda carry: carry[0] < carry[1], turn, (0, x))[1]  # noqa: E731
        return lax.cond(x == 2, loop, lambda x: x, x)

    assert lines(jit(jax.vmap(f)), jnp.arange(4)) == ["0 2", "1 2"]


def test_custom_call_in_a_branch_inside_of_a_branch(lines):
    """The same for the handler of a custom call."""
    fx.register_custom_call("masks.say_line", (build_handlers(), "say_line"))
    effect = fx.registered_effects()["print"]

    def say(x):
        fx.custom_call("masks.say_line", (), x[None], label="in", effect=effect, vmap_method="sequential")
        return x

    assert lines(fx.jit(jax.vmap(lambda x: _twice(say, x))), jnp.arange(4, dtype=jnp.int32)) == ["in 3"]


@JITS
def test_lane_that_is_through_stays_so(jit, lines):
    """A lane that has left a loop is not asked again: what the function of its condition would say is not known."""

    def ask(carry):
        turn, x = carry
        shape = jax.ShapeDtypeStruct((), jnp.int32)
        ends = fx.callback(lambda turn, x: (print("asked", turn, x), np.int32(turn >= x))[1], shape, turn, x)
        return (ends == 0) & (turn < 4)

    def step(carry):
        fx.print("step {} {}", *carry)
        return carry[0] + 1, carry[1]

    results = []
    program = jit(jax.vmap(lambda x: lax.while_loop(ask, step, (0, x))[0]))
    assert lines(lambda x: results.append(program(x)), jnp.arange(3)) == [
        *("asked 0 0", "asked 0 1", "asked 0 2", "step 0 1", "step 0 2"),
        *("asked 1 1", "asked 1 2", "step 1 2"),
        "asked 2 2",
    ]
    assert results[0].tolist() == [0, 1, 2]


def test_lane_that_is_through_keeps_its_values(lines):
    """A loop with effects gives each lane what it had when it left."""

    def f(x):
        def step(carry):
            fx.print("{}", carry[0])
            return carry[0] + 1, carry[1] * 2

        return lax.while_loop(lambda carry: carry[0] < x, step, (0, jnp.float32(1)))

    results = []
    program = fx.jit(jax.vmap(f))
    assert lines(lambda x: results.append(program(x)), jnp.arange(4)) == ["0"] * 3 + ["1"] * 2 + ["2"]
    counts, values = results[0]
    assert counts.tolist() == [0, 1, 2, 3] and values.tolist() == [1, 2, 4, 8]


def test_custom_vmap_in_a_branch(lines):
    """The rule is for all lanes together, so each lane that is there calls the function by itself."""

    @jax.custom_batching.custom_vmap
    def doubled(x):
        fx.print("alone")
        return x * 2

    @doubled.def_vmap
    def _(size, batched, x):
        fx.print("rule for {}", size)
        return x * 2, batched[0]

    program = fx.jit(jax.vmap(lambda x: lax.cond(x > 1, lambda x: doubled(x), lambda x: x, x)))
    results = []
    assert lines(lambda x: results.append(program(x)), jnp.arange(4)) == ["alone"] * 2
    assert results[0].tolist() == [0, 1, 4, 6]
    assert lines(program, jnp.zeros(4, int)) == []


@pytest.mark.parametrize("levels", [1, 2])
def test_print_that_no_lane_has_publishes_nothing(levels, lines):
    """A branch of prints alone is run only if a lane takes it: a loop of which nothing is shown records nothing."""

    def f(x):
        def turn(i, x):
            lax.cond(x > i + 20, lambda: fx.print("{} {}", i, x), lambda: None)
            return x + 1

        return lax.fori_loop(0, 10, turn, x)

    program = jax.vmap(f)
    x = jnp.arange(4)
    for _ in range(levels - 1):
        program, x = jax.vmap(program), x[None]
    program = fx.jit(program)
    fx.effects_barrier()
    before = fx.stats()["published"]
    assert lines(program, x) == []
    assert fx.stats()["published"] == before
    assert lines(program, x + 18) == [f"{i} {21 + i}" for i in range(10)]
    assert fx.stats()["published"] == before + 10


def _printed_gradient(x):
    return fx.print_grad("g {}", x) * 3


def _branch(x, then=_printed_gradient):
    return jax.lax.cond(x > 1, then, lambda x: x, x)


@pytest.mark.parametrize(
    "f",
    [
        _branch,
        lambda x: _branch(x, jax.jit(_printed_gradient)),
        lambda x: _branch(x, lambda x: _branch(x)),
        jax.jit(_branch),
        lambda x: jax.lax.scan(lambda c, _: (_branch(c), None), x, None, length=1)[0],
    ],
    ids=["branch", "function in a branch", "branch in a branch", "branch in a function", "branch in a loop"],
)
@pytest.mark.parametrize(
    "transform",
    [lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()), lambda f: jax.vmap(jax.grad(f))],
    ids=["grad of vmap", "vmap of grad"],
)
def test_gradients_of_lanes_in_a_branch(f, transform, lines):
    """What has no effects until it is transposed has the mask by then, whichever transformation comes first."""
    assert lines(fx.jit(transform(f)), jnp.array([1.0, 2.0])) == ["g 3.0"]


def test_branch_with_effects_alone_outside_of_programs(lines):
    """It happens at once in the lanes that take it, wherever the lanes lie, and raises the effect's own error."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    xs = jax.device_put(jnp.arange(4), jax.NamedSharding(mesh, jax.P("x")))

    def shows(x, least):
        jax.lax.cond(x >= least, lambda: fx.print("{}", x), lambda: None)

    assert lines(jax.vmap(lambda x: shows(x, 2)), xs) == ["2", "3"]
    assert lines(jax.vmap(lambda x: shows(x, 4)), xs) == []
    with pytest.raises(fx.CheckError, match="3 is too much .*lane 3"):
        jax.vmap(lambda x: fx.error_if(x, x > 2, "{} is too much", x))(xs)
