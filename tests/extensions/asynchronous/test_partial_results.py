"""What an operation has come to so far, and its derivatives: those of a program that uses the results twice. A partial
result of a collective has none in reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx

N = 4
MESH = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
X = jnp.arange(2.0 * N * N).reshape(N, 2 * N) + 1


def _pair(start):
    """Both uses of an operation: of the partial result, and of the result."""

    def use(x):
        future, so_far = fx.async_update(start(x), partial=True)
        return so_far, fx.async_done(future)

    return use


def _twice(f):
    return lambda x: (f(x), f(x))


OPERATIONS = {
    "value": (_pair(lambda x: fx.async_start(jnp.sin, x)), _twice(jnp.sin)),
    "ppermute": (
        _pair(lambda x: fx.ppermute_start(x, "i", [(i, (i + 1) % N) for i in range(N)])),
        _twice(lambda x: jax.lax.ppermute(x, "i", [(i, (i + 1) % N) for i in range(N)])),
    ),
    "psum": (_pair(lambda x: fx.psum_start(x, "i")), _twice(lambda x: jax.lax.psum(x, "i"))),
    "all_to_all": (
        _pair(lambda x: fx.all_to_all_start(x, "i", 0, 0, tiled=True)),
        _twice(lambda x: jax.lax.all_to_all(x, "i", 0, 0, tiled=True)),
    ),
}
USES = {
    "both": lambda so_far, result: so_far**2 * jnp.cos(result),
    "the partial one": lambda so_far, result: so_far**3,
}


def _loss(use, body, check_vma=False):
    def of_device(x):
        x = x.reshape(-1)
        return (jnp.arange(1.0, 1 + x.size) * use(*body(jnp.sin(x)))).reshape(1, -1)

    region = jax.shard_map(of_device, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)
    return lambda x: region(x).sum()


def test_derivatives_of_values():
    """Forward, backward, and forward of backward, also in lanes, of what a started function gave."""

    def all_of(f):
        return lambda x: (
            jax.jvp(f, (x,), (x,)),
            jax.jvp(jax.grad(f), (x,), (x,)),
            jax.vmap(jax.grad(f))(jnp.stack([x, x + 1, 2 * x])),
            jax.grad(lambda x: (jax.grad(f)(x) * x).sum())(x),
        )

    _assert_same(*(all_of(_loss(USES["both"], body)) for body in OPERATIONS["value"]))


def _assert_same(ours, theirs):
    one, other = fx.jit(ours)(X), jax.jit(theirs)(X)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4), one, other)


COLLECTIVES = ("ppermute", "psum", "all_to_all")


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("operation", COLLECTIVES)
def test_derivatives_forward(operation, check_vma):
    """Both results of a collective have a tangent, which is exchanged as they are."""

    def all_of(f):
        return lambda x: (
            jax.jvp(f, (x,), (x,)),
            jax.linearize(f, x)[1](x),
            jax.jvp(lambda x: jax.jvp(f, (x,), (x,))[1], (x,), (x,)),
            jax.vmap(lambda x: jax.jvp(f, (x,), (x,)))(jnp.stack([x, x + 1, 2 * x])),
        )

    _assert_same(*(all_of(_loss(USES["both"], body, check_vma)) for body in OPERATIONS[operation]))


def _in_scan(body):
    def turn(x, _):
        so_far, result = body(x)
        return jnp.sin(so_far), result

    def use(x):
        x, results = jax.lax.scan(turn, x, None, length=2)
        return x, results.sum(axis=0)

    return use


def _in_cond(body):
    return lambda x: jax.lax.cond(x[0] < 10, body, lambda x: (x, x), x)


IN_BODIES = {"straight": lambda body: body, "scan": _in_scan, "cond": _in_cond, "checkpoint": jax.checkpoint}
BACKWARD = {
    "grad": jax.grad,
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0),
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "linear_transpose": lambda f: lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(1.0),
    "grad of jvp": lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (x,))[1]),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x])),
    "grad of vmap": lambda f: lambda x: jax.grad(lambda xs: jax.vmap(f)(xs).sum())(jnp.stack([x, x])),
}


@pytest.mark.parametrize(
    ("operation", "backward", "inside", "use"),
    [
        *((operation, "grad", inside, "both") for operation in COLLECTIVES for inside in IN_BODIES),
        *(("psum", backward, "straight", "the partial one") for backward in BACKWARD),
        *(("ppermute", backward, "scan", "the partial one") for backward in BACKWARD),
    ],
)
def test_reverse_derivative_of_a_partial_result_is_refused(operation, backward, inside, use):
    """While it is traced, with the line of the update."""
    body = IN_BODIES[inside](OPERATIONS[operation][0])
    with pytest.raises(
        fx.NotDifferentiable, match=r"updated at .*was differentiated in reverse.* `fx.async_done`"
    ) as raised:
        fx.jit(BACKWARD[backward](_loss(USES[use], body))).lower(X)
    assert f"{__file__}:{_pair(None).__code__.co_firstlineno + 1}" in str(raised.value)


SHOWN = {
    "not used": lambda so_far: None,
    "printed": lambda so_far: fx.print("{}", so_far),
    "stopped": lambda so_far: jax.lax.stop_gradient(so_far),
}


@pytest.mark.parametrize("inside", IN_BODIES)
@pytest.mark.parametrize("show", SHOWN)
def test_result_has_a_derivative_beside_a_partial_one(show, inside, capsys):
    """What is only looked at, or has its gradient stopped, takes no derivative from the result of the done."""

    def of_result(body, show):
        def result(x):
            so_far, result = body(x)
            seen = show(so_far)
            return seen if seen is not None else 0 * result, result

        return _loss(lambda seen, result: seen + result**3, _in(result))

    _in = IN_BODIES[inside] if inside != "scan" else _carrying_the_result
    ours, theirs = OPERATIONS["psum"]
    stopped = SHOWN[show] if show == "stopped" else SHOWN["not used"]
    _assert_same(jax.grad(of_result(ours, SHOWN[show])), jax.grad(of_result(theirs, stopped)))
    fx.effects_barrier()
    assert bool(capsys.readouterr().out) == (show == "printed")


def _carrying_the_result(body):
    def turn(x, _):
        seen, result = body(x)
        return jnp.sin(result), seen

    def use(x):
        x, seen = jax.lax.scan(turn, x, None, length=2)
        return jax.lax.stop_gradient(seen).sum(axis=0), x

    return use


@pytest.mark.parametrize("lanes", [(3,), (2, 3)])
def test_lanes_of_parts_for_all(lanes):
    """What has been received lies by device first, and by lane within."""
    x = jnp.arange(float(np.prod(lanes) * N * N)).reshape(*lanes, N, N)

    def in_lanes(body):
        def of_device(x):
            of_lanes = lambda x: body(x.reshape(-1))  # noqa: E731
            for _ in lanes:
                of_lanes = jax.vmap(of_lanes)
            return jnp.stack(of_lanes(x))

        spec = P(*(None,) * len(lanes), "i")
        return jax.shard_map(of_device, mesh=MESH, in_specs=spec, out_specs=P(None, *spec), check_vma=False)

    ours, theirs = (fx.jit(in_lanes(body)) for body in OPERATIONS["all_to_all"])
    np.testing.assert_array_equal(ours(x), theirs(x))
