"""Collectives inside of functions, loops and branches of a region in which devices wait for callbacks.

Wherever a collective stands, it must come after the effects ahead of it: see `lowering/regions.py`.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import effects as fx
from tests.lowering.regions.meshes import by_device, in_process_of_its_own, mesh_of

P = jax.P
ONE = jax.ShapeDtypeStruct((1,), jnp.int32)


def _talk(x):
    return lax.psum(x, "x") + x


def _talks_without_effects(x):
    """JAX's `ppermute` is an equation without effects."""
    return 2 * (x + lax.ppermute(x, "x", [(n, (n + 2) % 4) for n in range(4)])) + x


def _shows_and_talks(x):
    fx.print("inside {} {}", lax.axis_index("x"), x[0])
    return _talk(x)


def _in_jit(talk, x):
    return jax.jit(talk)(x)


def _in_scan(talk, x):
    return lax.scan(lambda x, _: (talk(x), None), x, length=1)[0]


def _in_cond(talk, x):
    return lax.cond(lax.psum(1, "x") == 4, talk, lambda x: x, x)


def _in_while(talk, x):
    return lax.while_loop(lambda carry: carry[0] < 1, lambda carry: (carry[0] + 1, talk(carry[1])), (0, x))[1]


def _in_all(talk, x):
    return _in_jit(lambda x: _in_scan(lambda x: _in_cond(talk, x), x), x)


def _plain(talk, x):
    return talk(x)


WITHIN = [_plain, _in_jit, _in_scan, _in_cond, _in_while, _in_all]
TALKS = [_talk, _talks_without_effects, _shows_and_talks]


def _program(within, talk, check_vma):
    """Devices 0 and 2 wait for a callback, which comes after the first print of the others."""

    def body(x):
        n = lax.axis_index("x")
        call = lambda x: fx.callback(lambda n, x: (print(n, "called"), x + 1)[1], ONE, n, x)  # noqa: E731
        x = lax.cond(n % 2 == 0, call, lambda x: x, x)
        fx.print("before {} {}", n, x[0])
        return within(talk, x)

    return fx.jit(by_device(body, check_vma=check_vma))


def _ties(text):
    """How many calls there are in a lowered program that tie something to the effects ahead of it, by a token."""
    return len(re.findall(r"custom_call @effects_after\(.*: \(tensor<4xui32>, ", text))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("within", WITHIN)
def test_collectives_are_tied_to_the_effects_ahead(within, talk, check_vma):
    """What goes into a collective comes from a call that takes the token, as does what leaves the region."""
    x = jnp.arange(4, dtype=jnp.int32)
    text = _program(within, talk, check_vma).lower(x).as_text()
    silent = _program(within, lambda x: x, check_vma).lower(x).as_text()
    assert _ties(text) == _ties(silent) + 1  # for the collective, or for what holds it and has no effects


@pytest.mark.parametrize("within", WITHIN)
def test_collectives_are_left_alone_where_no_device_waits(within):
    """Without a callback whose results the devices wait for, nothing is tied, and XLA is as free as without effects."""

    def body(x):
        fx.print("{}", x[0])
        return within(_talk, x)

    assert _ties(fx.jit(by_device(body)).lower(jnp.arange(4)).as_text()) == 0


@pytest.mark.parametrize("within", [_in_jit, _in_scan])
def test_devices_may_diverge_inside_of_what_holds_a_branch(within):
    """A collective behind it is tied, as behind the branch itself."""

    def ties(within):
        def body(x):
            branch = lambda x: lax.cond(lax.axis_index("x") == 0, call, lambda x: x, x)  # noqa: E731
            return _talk(within(branch, x))

        return _ties(fx.jit(by_device(body)).lower(jnp.arange(4, dtype=jnp.int32)).as_text())

    call = lambda x: fx.callback(lambda x: x, ONE, x)  # noqa: E731
    assert ties(within) == ties(_plain) > 0


def test_collectives_inside_come_after_effects():
    in_process_of_its_own(__file__, "check_collectives_inside_come_after_effects")


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("within", WITHIN[1:])
def check_collectives_inside_come_after_effects(within, talk, lines):
    """Devices 1 and 3 must have published their prints, or that they skip the callback, when they wait for the others
    in the collective: the callbacks of 0 and 2 come after these prints, or are known to be next by that."""
    values = [1, 1, 3, 3]
    own = [[f"before {n} {values[n]}"] for n in range(4)]
    for n in range(4):
        if n % 2 == 0:
            own[n].insert(0, f"{n} called")
        elif within is not _in_while or talk is not _shows_and_talks:  # else it is not known how many effects there are
            own[n].insert(0, None)
    if talk is _shows_and_talks:
        for n in range(4):
            own[n].append(f"inside {n} {values[n]}")
    shown = [each[index] for index in range(3) for each in own if index < len(each) and each[index] is not None]
    f, x = _program(within, talk, True), jnp.arange(4, dtype=jnp.int32)
    for _ in range(20):
        assert lines(f, x) == shown
        assert f(x).tolist() == [9, 9, 11, 11]


@pytest.mark.parametrize(("check_vma", "differs", "ties"), [(True, True, 2), (True, False, 0), (False, False, 2)])
def test_devices_whose_turns_differ_are_tied(check_vma, differs, ties):
    """The callback is in a loop: if types say that all devices make the same turns, nothing need be tied."""

    def body(x):
        n = lax.axis_index("x")
        turns = n if differs else 2

        def turn(carry):
            return carry[0] + 1, fx.callback(lambda x: x + 1, ONE, carry[1])

        x = lax.while_loop(lambda carry: carry[0] < turns, turn, (0 * n if differs else 0, x))[1]
        fx.print("before {}", n)
        return _talk(x)

    f = fx.jit(by_device(body, check_vma=check_vma))
    assert _ties(f.lower(jnp.arange(4, dtype=jnp.int32)).as_text()) == ties


def test_collectives_of_a_region_inside_are_tied_too():
    """Where devices count already, a region is a part of the one around it."""

    def inner(x):
        fx.print("inside {}", x[0])
        return lax.psum(x, "x")

    def outer(x):
        x = lax.cond(lax.axis_index("x") % 2 == 0, lambda x: fx.callback(lambda x: x + 1, ONE, x), lambda x: x, x)
        return jax.shard_map(inner, in_specs=P(), out_specs=P(), axis_names={"y"}, check_vma=False)(x)

    mesh = mesh_of(4, 1)
    f = fx.jit(jax.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False))
    text = f.lower(jnp.arange(4, dtype=jnp.int32)).as_text()
    assert _ties(text) == 3  # the collective, and what leaves each of the regions
