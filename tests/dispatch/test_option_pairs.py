"""Two options of `jax.jit` at a time mean under `fx.jit` what they mean under `jax.jit`."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.dispatch.devices.meshes import P, mesh_over

CUT, WHOLE = (jax.NamedSharding(mesh_over(), spec) for spec in (P("x"), P()))
OPTIONS = {
    "static": [
        {"static_argnums": 1},
        {"static_argnums": -1},
        {"static_argnums": (0, -1), "static_argnames": "scale"},
        {"static_argnames": ("n", "scale")},
    ],
    "donated": [{"donate_argnums": -2}, {"donate_argnames": "x"}],
    "in": [{"in_shardings": CUT}, {"in_shardings": (CUT, None)}],
    "out": [{"out_shardings": WHOLE}],
    "rest": [{"keep_unused": True, "inline": True}],
}
CALLS = [((), {}), ((3,), {}), ((3,), {"scale": 2}), ((), {"n": 3})]  # behind the array


def _named(note):
    def f(x, n=2, *, scale=1):
        note(x, n, scale)
        return x * n

    return f


def _any_number(note):
    def f(*args, scale=1):
        note(*args, scale)
        return args[0] * args[-1]

    return f


@pytest.mark.slow
@pytest.mark.parametrize("make", [_named, _any_number])
@pytest.mark.parametrize("pair", [*itertools.combinations(OPTIONS, 2)], ids="-".join)
def test_pairs_of_options(pair, make):
    """For each call: which arguments are traced, what it returns and where, whether its argument is donated, and the
    type of the error if there is one."""
    for chosen in itertools.product(*(OPTIONS[group] for group in pair)):
        options = {name: value for each in chosen for name, value in each.items()}
        expected = _outcomes(jax.jit, make, lambda x: None, options)
        assert _outcomes(fx.jit, make, lambda x: fx.print("{}", x), options) == expected, options


def _outcomes(jit, make, emit, options):
    outcomes, traced = [], []

    def note(*args):
        traced[:] = [isinstance(each, jax.core.Tracer) for each in args]
        emit(args[-1])

    for args, kwargs in CALLS:
        x = np.float32(1) if 0 in np.atleast_1d(options.get("static_argnums", 1)) else jnp.arange(4.0)
        try:
            with warnings.catch_warnings(action="ignore"):  # that an argument cannot be donated
                y = jit(make(note), **options)(x, *args, **kwargs)
            outcomes.append(([*traced], y.tolist(), y.sharding, isinstance(x, jax.Array) and x.is_deleted()))
        except Exception as error:
            outcomes.append(type(error))
    fx.effects_barrier(timeout=120)
    return outcomes
