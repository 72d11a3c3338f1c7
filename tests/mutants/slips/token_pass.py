"""The token pass: tokens through every equation with effects."""

from tests.mutants.slip import Slip

PASS = "lowering/tokens.py"
TOKENS = "tests/lowering/test_tokens.py"
UNORDERED = "tests/dispatch/devices/test_unordered.py"
COLLECTIVES = "tests/lowering/regions/test_collectives.py"

SLIPS = (
    Slip(
        "token_pass.call_number",
        "lowering/effect.py",
        "traits = call_traits(has, devices, call)",
        "traits = call_traits(has, devices, 0)",
        "Over several devices XLA makes one of two equal unordered records.",
        (f"{UNORDERED}::test_equal_unordered_effects_are_as_many_as_were_written",),
    ),
    Slip(
        "token_pass.condition_after_body",
        "lowering/holders.py",
        "return [evaluate_condition(consts, carry), *carry]",
        "return [evaluate_condition(consts, flat[count + 1 :]), *carry]",
        "A loop's condition is asked of what was carried before the iteration.",
        (f"{TOKENS}::test_effects_come_in_program_order",),
    ),
    Slip(
        "token_pass.one_function",
        PASS,
        "@_jax.weakref_lru_cache\ndef threaded_jaxpr(",
        "def threaded_jaxpr(",
        "A jitted function that is called often becomes as many functions.",
        (f"{TOKENS}::test_a_function_called_often_stays_one_function",),
    ),
    Slip(
        "token_pass.collective_in_threaded_function",
        PASS,
        "with inside(region):",
        "with inside(InRegion()):",
        "A collective inside of a function with effects is not tied to the effects ahead of it: a deadlock.",
        (f"{COLLECTIVES}::test_collectives_are_tied_to_the_effects_ahead",),
    ),
    Slip(
        "token_pass.variables_twice",
        PASS,
        "    once: bool = False,\n",
        "    once: bool = True,\n",
        "A body that is evaluated twice in one trace defines its variables twice.",
        ("tests/lowering/test_keeping.py::test_bodies_that_are_evaluated_twice_stay_apart",),
    ),
)
