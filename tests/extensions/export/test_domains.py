"""The order domains of an exported program, by the numbers that its records' tokens have."""

import jax
import pytest

import effects as fx
from tests.extensions.export.common import again
from tests.internals import Line, Site, domain_number, effect_p, take_arguments, where_called

EARLY, LATE = (fx.register_effect(fx.Effect(f"{name}-domains")) for name in ("a", "z"))
A, Z = (domain_number(effect.domain) for effect in (EARLY, LATE))


def _say(effect, text, x):
    where = where_called()
    values, leaves, tree = take_arguments((x,), {}, "say", where)
    effect_p.bind(*values, site=Site(effect, Line(text), leaves, tree, where))


def _inner(x):
    _say(LATE, "inner z {}", x)
    fx.print("inner p {}", x)
    _say(LATE, "inner z {}", x + 1)


def _outer(call):
    def outer(x):
        _say(EARLY, "outer a {}", x)
        call(x)
        fx.print("outer p {}", x)
        _say(LATE, "outer z {}", x)

    return outer


def _places(f, *args):
    """What each record says, with the number of its domain and its index there."""
    with fx.capture(suppress=True) as records:
        f(*args)
    return sorted((record.token[0] & 0xFFF, record.token[3], record.text) for record in records)


def test_domains_of_an_exported_program_by_itself():
    """They have the numbers of their names, as in the function that it was exported from."""
    expected = [(0, 0, "inner p 5"), (Z, 0, "inner z 5"), (Z, 1, "inner z 6")]
    exported = fx.export(_inner)(0)
    assert _places(fx.jit(_inner), 5) == expected
    for program in (exported, again(exported)):
        assert _places(program.call, 5) == expected


@pytest.mark.parametrize("loop", [False, True])
def test_domains_of_an_exported_program_inside_another(loop):
    """Its effects have the numbers that their domains have in the program around it, and count on there: a domain of
    the one is the domain of the same name of the other, and no other."""
    exported = fx.export(_inner)(0)
    expected = sorted(
        [
            (A, 0, "outer a 5"),
            *[(0, 0, "inner p 5"), (0, 1, "outer p 5")],
            *[(Z, 0, "inner z 5"), (Z, 1, "inner z 6"), (Z, 2, "outer z 5")],
        ]
    )
    for call in (_inner, exported.call, again(exported).call):
        program = _outer(call)
        if loop:
            program = lambda x, program=program: jax.lax.fori_loop(0, 1, lambda _, x: (program(x), x)[1], x)  # noqa: E731
        assert _places(fx.jit(program), 5) == expected


def test_calls_of_an_exported_program_one_after_the_other():
    """Each call of it is an epoch, whose domains count from 0 on."""
    exported = again(fx.export(_inner)(0))
    with fx.capture(suppress=True) as records:
        for x in range(3):
            exported.call(x)
    first = records[0].token[1]
    seen = sorted((record.token[1] - first, record.token[0] & 0xFFF, record.token[3]) for record in records)
    assert seen == [(epoch, domain, index) for epoch in range(3) for domain, index in ((0, 0), (Z, 0), (Z, 1))]
