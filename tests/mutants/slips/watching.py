"""Watched functions."""

from tests.mutants.slip import Slip

FAULTS = "tests/extensions/watching/test_faults.py::test_fault_is_found"
WATCH = "tests/extensions/watching/test_watch.py"

SLIPS = (
    Slip(
        "watching.hidden_values",
        "extensions/watching/flag.py",
        'any_of([hidden, watch.any_bad(made, "")]), outs',
        'watch.any_bad(made, ""), outs',
        "A bad value that is masked away is not found.",
        (f"{FAULTS}[masked_away_in_a_scan]",),
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
