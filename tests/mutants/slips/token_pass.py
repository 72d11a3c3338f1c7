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
        "token_pass.call_number_is_one",
        "lowering/effect.py",
        "0 if site.effect.ordered else ctx.call,  # ordered",
        "0 if site.effect.ordered else 1,  # ordered",
        "The same, by another way: all unordered records of a program have one number.",
        (f"{UNORDERED}::test_equal_unordered_effects_are_as_many_as_were_written",),
    ),
    Slip(
        "token_pass.adjacent_in_a_region",
        "lowering/effect.py",
        "each[-1][1].insert(0, token if ctx.edges.enters else ctx.outer_token)",
        "each[-1][1].insert(0, token)",
        "Of records that are one call the last gives a region's own token back.",
        ("tests/lowering/test_adjacent.py::test_on_devices[True]",),
    ),
    Slip(
        "token_pass.adjacent_to_a_result",
        "lowering/summary.py",
        'return eqn.primitive is effect_p and eqn.params["site"].results is None',
        "return eqn.primitive is effect_p",
        "A callback whose results the program waits for is published with the record behind it.",
        ("tests/lowering/test_adjacent.py::test_what_stands_between_has_its_place",),
    ),
    Slip(
        "token_pass.join",
        PASS,
        "tokens[UNORDERED] = _join([tokens[UNORDERED], *joined])",
        "tokens[UNORDERED] = joined[-1]",
        "The output token does not depend on unordered records but the last, and XLA drops the others.",
        (f"{UNORDERED}::test_unordered_effects_all_end_in_the_output_token",),
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
        "token_pass.closes_too_early",
        PASS,
        "if len(token_keys(summary.effects)) != 1:",
        "if not token_keys(summary.effects):",
        "A program with two order domains ends with the last record of one of them.",
        (f"{TOKENS}::test_program_with_two_domains_does_not_end_with_the_last_record_of_one",),
    ),
    Slip(
        "token_pass.domain_number",
        "dispatch/calling/programs.py",
        "token + np.array([i, 0, 0, 0], np.uint32)",
        "token + np.array([1, 0, 0, 0], np.uint32)",
        "All domains of a program but the first count in one sequence.",
        ("tests/extensions/export/test_domains.py",),
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
        "token_pass.collective_in_function",
        "lowering/regions.py",
        "return is_collective(eqn) or any(summarize(inner).has_collectives for inner in _jax.jaxprs_in(eqn.params))",
        "return is_collective(eqn)",
        "A collective inside of a function without effects is not tied to the effects ahead of it: a deadlock.",
        (f"{COLLECTIVES}::test_collectives_are_tied_to_the_effects_ahead",),
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
        "token_pass.collective_not_after_tokens",
        PASS,
        "operands = add_dependency(tokens.values(), operands)",
        "operands = add_dependency([], operands)",
        "What goes into a collective is tied to nothing: a deadlock.",
        (f"{COLLECTIVES}::test_collectives_are_tied_to_the_effects_ahead",),
    ),
    Slip(
        "token_pass.other_type",
        "effects/_jax/core.py",
        "keeps = keeps and _have_types_of(outs, eqn.outvars)",
        "keeps = keeps and True",
        "What follows a rule that gives another type keeps the type that it had.",
        ("tests/lowering/test_keeping.py::test_equations_behind_a_rule_that_gives_another_type_are_bound_again",),
    ),
    Slip(
        "token_pass.names_around",
        "effects/_jax/core.py",
        "source = source.replace(name_stack=self._around + source.name_stack)",
        "pass",
        "Equations of a function that is evaluated in place lose the names around it.",
        ("tests/lowering/test_keeping.py::test_equations_in_functions_that_are_inlined_keep_their_names",),
    ),
    Slip(
        "token_pass.bound_again",
        PASS,
        "None if may_depend else summary.with_effects, once)",
        "None)",
        "Equations without effects are bound again, which takes longer than to lower them.",
        ("tests/lowering/test_keeping.py::test_equations_without_effects_are_not_bound_again",),
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
