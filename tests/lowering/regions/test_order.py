"""Regions: every device has its own effects, which come in the order of the program. Random programs show it."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import effects as fx
from tests.lowering.regions.meshes import by_device, in_parts, in_process_of_its_own, mesh_of
from tests.lowering.regions.statements import program_of

P = jax.P
ONE = jax.ShapeDtypeStruct((1,), jnp.int32)


def _statements(inner):
    """What may stand in a region. `inner` is for what stands inside of something."""
    leaf = st.sampled_from([("print",), ("sync",), ("queued",)])
    return st.lists(
        st.one_of(
            leaf,
            st.tuples(st.just("loop"), st.sampled_from([2, "n"]), inner),
            st.tuples(st.just("if"), st.sampled_from([0, 1]), inner),
            st.tuples(st.just("jit"), inner),
        ),
        max_size=4,
    )


DIVERGING = st.tuples(
    _statements(_statements(st.lists(st.just(("print",)), max_size=1))), st.sampled_from([[], [("talk",)]])
).map(lambda parts: [*parts[0], *parts[1]])


TALKING = st.lists(st.sampled_from([("print",), ("sync",), ("talk",)]), max_size=5)  # devices wait for each other


def _programs(statements):
    region = st.tuples(st.just("region"), statements, st.booleans())
    return st.lists(
        st.one_of(region, st.just(("print",)), st.tuples(st.just("scan"), st.lists(region, max_size=2))), max_size=4
    )


def _expected(statements, xs, shown):
    """The same as Python would have it."""
    for what, *rest in statements:
        if what == "print":
            shown.append(f"all [{' '.join(f'{x:{max(len(str(y)) for y in xs)}}' for x in xs)}]")
        elif what == "scan":
            for _ in range(2):
                _expected(rest[0], xs, shown)
        else:
            each = [[] for _ in xs]
            # Where a callback is waited for, devices skip what only others have, if it is known how much that is.
            skips = "('sync',)" in str(rest[0]) and _count(rest[0]) is not None
            _expected_by_device(rest[0], xs, range(len(xs)), each, skips)
            places = sorted((index, n) for n, own in enumerate(each) for index in range(len(own)))
            shown.extend(each[n][index] for index, n in places if each[n][index] is not None)


def _count(statements):
    """How many effects a device has in a block with all its branches; None if it is not known before it runs."""
    total = 0
    for what, *rest in statements:
        inner = _count(rest[-1]) if what in ("jit", "if", "loop") else what != "talk"
        if inner is None or (what == "loop" and rest[0] == "n" and inner):
            return None
        total += inner * (rest[0] if what == "loop" and inner else 1)
    return total


def _expected_by_device(statements, xs, devices, each, skips):
    for what, *rest in statements:
        if what == "talk":
            xs[:] = [(x + sum(xs)) % 97 for x in xs]
        elif what == "jit":
            _expected_by_device(rest[0], xs, devices, each, skips)
        elif what == "if":
            _expected_by_device(rest[1], xs, [n for n in devices if n % 2 == rest[0]], each, skips)
            for n in devices:
                each[n] += [None] * (_count(rest[1]) if skips and n % 2 != rest[0] else 0)
        elif what == "loop":
            for turn in range(len(xs)):
                going = [n for n in devices if turn < (n if rest[0] == "n" else rest[0])]
                _expected_by_device(rest[1], xs, going, each, skips)
        else:
            for n in devices:
                each[n].append(f"{what} {n} {xs[n]}")
                xs[n] += what == "sync"


def _check(statements, lines, size=4, by_device=by_device):
    outs, xs, shown = [], list(range(size)), []
    f = fx.jit(lambda x: program_of(statements, x, by_device))
    seen = lines(lambda: outs.append(f(jnp.arange(size, dtype=jnp.int32))))
    _expected(statements, xs, shown)
    assert seen == shown
    assert outs[0].tolist() == xs


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(DIVERGING))
def check_diverging(statements, lines):
    _check(statements, lines)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(TALKING))
def check_talking(statements, lines):
    _check(statements, lines)


def _by_part(body, **kwargs):
    """Two replica groups, of two replicas each."""
    return in_parts(body, mesh_of(2, 2), **kwargs)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(DIVERGING))
def check_diverging_parts(statements, lines):
    _check(statements, lines, 2, _by_part)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(TALKING))
def check_talking_parts(statements, lines):
    _check(statements, lines, 2, _by_part)


@pytest.mark.parametrize(
    "check",
    [
        "check_diverging",
        pytest.param("check_talking", marks=pytest.mark.slow),
        pytest.param("check_diverging_parts", marks=pytest.mark.slow),
        "check_talking_parts",
    ],
)
def test_effects_come_by_place_and_device(check):
    in_process_of_its_own(__file__, check)
