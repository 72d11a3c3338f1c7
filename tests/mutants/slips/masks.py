"""Masks: effects in the lanes that are there, and in no others."""

from tests.mutants.slip import Slip

EFFECT = "lowering/effect.py"
BATCHING = "lowering/batching.py"
TRANSFORMATIONS = "tests/transformations/test_transformations.py"


def _program(name: str) -> str:
    return f"{TRANSFORMATIONS}::test_program[{name}]"


SLIPS = (
    Slip(
        "masks.nested",
        EFFECT,
        "return ctx.primitive.bind(mask & active, *others, site=site)",
        "return ctx.primitive.bind(active, *others, site=site)",
        "In a branch inside of a branch, the inner predicate counts for lanes that the outer one has sent elsewhere.",
        ("tests/lowering/test_masks.py::test_branch_inside_of_a_branch",),
    ),
    Slip(
        "masks.nested_custom_call",
        "extensions/custom_calls/rules.py",
        "first = operands[0] & active",
        "first = active",
        "The same for the handler of a custom call.",
        ("tests/lowering/test_masks.py::test_custom_call_in_a_branch_inside_of_a_branch",),
    ),
    Slip(
        "masks.asked_again",
        BATCHING,
        "return running & _jax.evaluate_as_typed(cond, [running, *consts[:cond_nconsts], *carry])[0]",
        "return _jax.evaluate_as_typed(cond, [running, *consts[:cond_nconsts], *carry])[0]",
        "A lane that is through with a loop begins again when its condition holds by what the others have done.",
        ("tests/lowering/test_masks.py::test_lane_that_is_through_stays_so",),
    ),
    Slip(
        "masks.lanes_of_the_condition",
        BATCHING,
        "evaluate_condition(every, consts, carry),\n",
        "evaluate_condition(~every, consts, carry),\n",
        "No lane is asked for the first time whether it goes on.",
        (
            _program("`checkify` of `vmap` of `while_loop`"),
            f"{TRANSFORMATIONS}::test_construct[while_loop, lanes differ]",
        ),
    ),
    Slip(
        "masks.region",
        "lowering/shard_map.py",
        "lambda active, *args: tuple(ctx.mask(jaxpr, active, args)),",
        "lambda active, *args: tuple(ctx.mask(jaxpr, active | True, args)),",
        "In a region under a predicate that differs between lanes, all lanes have the effects.",
        ("tests/lowering/regions/test_regions.py::test_region_under_a_predicate_that_differs_between_lanes",),
    ),
    Slip(
        "masks.custom_vjp_forward",
        "lowering/control_flow.py",
        "return lambda active, _, *args: _mask_function(forward, active, args)",
        "return lambda active, _, *args: _mask_function(forward, active | True, args)",
        "The forward rule of a custom_vjp shows its effects in lanes that are not there.",
        (f"{TRANSFORMATIONS}::test_construct[custom_vjp in cond, lanes differ]",),
    ),
)
