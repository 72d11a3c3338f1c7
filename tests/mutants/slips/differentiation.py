"""Differentiation: effects of the primal once, forward, where they stand."""

from tests.mutants.slip import Slip

FILE = "lowering/derivatives.py"
INSIDE = "tests/dispatch/test_order_inside.py"
TRANSFORMATIONS = "tests/transformations/test_transformations.py"

SLIPS = (
    Slip(
        "differentiation.anchor",
        FILE,
        'if not has_effects(eqn.params["jaxpr"]):\n            return divide(',
        "if True:\n            return divide(",
        "JAX moves an effect that is the same in each iteration out of a rematerialized scan.",
        (f"{INSIDE}::test_effects_stay_in_differentiated_loop",),
    ),
    Slip(
        "differentiation.hoisting",
        FILE,
        'patches.implements("hoisting from scans")(_jax.hoisting_unless(has_effects))',
        'patches.implements("hoisting from scans")(_jax.hoisting_unless(lambda jaxpr: False))',
        "JAX moves such an effect out of a scan that is linearized.",
        (f"{INSIDE}::test_effects_stay_in_differentiated_loop",),
    ),
    Slip(
        "differentiation.branch_in_scan",
        FILE,
        "if eqn.primitive is _jax.cond_p and has_effects(eqn):",
        "if eqn.primitive is _jax.cond_p and not has_effects(eqn):",
        "Effects of a branch in a rematerialized scan are forgotten when JAX divides the branch.",
        ("tests/lowering/test_differentiation.py",),
    ),
    Slip(
        "differentiation.while_in_remat",
        FILE,
        "staged = with_jaxprs(staged, silent_jaxpr)",
        "staged = with_jaxprs(staged, lambda jaxpr: jaxpr)",
        "A while loop in a rematerialized region shows its effects a second time, for the tangents.",
        (f"{INSIDE}::test_while_that_is_differentiated_has_its_effects_once",),
    ),
    Slip(
        "differentiation.linearized_while",
        FILE,
        "outs = divide(silencing, *tracers, **params)",
        "outs = divide(trace, *tracers, **params)",
        "A while loop that is linearized shows its effects a second time.",
        (f"{INSIDE}::test_while_that_is_differentiated_has_its_effects_once",),
    ),
    Slip(
        "differentiation.unavailable",
        FILE,
        "return unavailable_p.bind(site=site, avals=avals) if avals else []",
        "return [jax.numpy.zeros(aval.shape, aval.dtype) for aval in avals]",
        "The copy of a loop that runs for the tangents computes with zeros in place of a callback's results.",
        (f"{INSIDE}::test_callback_whose_results_a_linearized_while_needs",),
    ),
    Slip(
        "differentiation.axis_of_tangents",
        "effects/_model/primitive.py",
        "happens_once = site.origin is not None or _jax.is_axis_of_tangents(axis_data)",
        "happens_once = site.origin is not None",
        "What is primal happens once for each tangent that jacfwd maps over.",
        (f"{TRANSFORMATIONS}::test_program[`jacfwd`, two tangents]",),
    ),
    Slip(
        "differentiation.condition",
        FILE,
        'if not (has_effects(params["cond_jaxpr"]) or has_effects(params["body_jaxpr"])):',
        'if not has_effects(params["body_jaxpr"]):',
        "The effects of a condition happen twice where a loop runs again for the tangents.",
        ("tests/lowering/test_differentiation.py::test_loop_that_runs_again_for_the_tangents",),
    ),
)
