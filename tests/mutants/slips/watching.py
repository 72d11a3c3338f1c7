"""Watched functions."""

from tests.mutants.slip import Slip

FAULTS = "tests/extensions/watching/test_faults.py::test_fault_is_found"
WATCH = "tests/extensions/watching/test_watch.py"

SLIPS = (
    Slip(
        "watching.what_a_loop_loses",
        "extensions/watching/flag.py",
        "lasting -= lost",
        "return seen, hidden",
        "A bad value of one iteration that the next one drops is not found.",
        (f"{WATCH}::test_what_the_next_iteration_drops_is_found",),
    ),
    Slip(
        "watching.hidden_values",
        "extensions/watching/flag.py",
        'any_of([hidden, watch.any_bad(made, "")]), outs',
        'watch.any_bad(made, ""), outs',
        "A bad value that is masked away is not found.",
        (f"{FAULTS}[masked_away_in_a_scan]",),
    ),
    Slip(
        "watching.what_a_branch_loses",
        "extensions/watching/flag.py",
        "frozenset.intersection(*(_shown",
        "frozenset.union(*(_shown",
        "A bad value that one branch masks away is not found.",
        (f"{FAULTS}[lost_by_a_branch]",),
    ),
    Slip(
        "watching.loops_without_iterations",
        "extensions/watching/flag.py",
        "first + carried and kept[at - first]]",
        "first + carried]",
        "A bad value that a loop is given and has no iteration for is not found.",
        (f"{FAULTS}[lost_by_a_loop_without_iterations]",),
    ),
    Slip(
        "watching.bad_operands",
        "extensions/watching/each.py",
        "made if took is False else made & ~took",
        "made",
        "An operation that takes a bad value is reported as one that makes it.",
        (f"{WATCH}::test_no_false_alarm[taken]",),
    ),
    Slip(
        "watching.lines_around",
        "extensions/watching/each.py",
        "before, self._around = self._around, (*_jax.user_frames(eqn), *self._around)",
        "before = self._around",
        "The lines that called a jitted function are not those of this call.",
        (f"{WATCH}::test_callers_are_named",),
    ),
    Slip(
        "watching.derivatives_of_the_plain_one",
        "extensions/watching/call.py",
        "bind_watched(_transposed(plain.jaxpr, which), [*_others(args, which), *given], backward)",
        "_jax.evaluate(_transposed(plain.jaxpr, which), [*_others(args, which), *given])",
        "The backward pass of a watched function is not watched.",
        (f"{FAULTS}[backward]",),
    ),
)
