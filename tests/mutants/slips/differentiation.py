"""Differentiation: effects of the primal once, forward, where they stand."""

from tests.mutants.slip import Slip

FILE = "lowering/derivatives.py"
INSIDE = "tests/dispatch/test_order_inside.py"

SLIPS = (
    Slip(
        "differentiation.linearized_while",
        FILE,
        "outs = divide(silencing, *tracers, **params)",
        "outs = divide(trace, *tracers, **params)",
        "A while loop that is linearized shows its effects a second time.",
        (f"{INSIDE}::test_while_that_is_differentiated_has_its_effects_once",),
    ),
)
