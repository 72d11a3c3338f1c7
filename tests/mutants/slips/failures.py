"""Failures: each is raised once, by whom it concerns."""

from tests.mutants.slip import Slip

FILE = "dispatch/runtime/failures.py"
ERRORS = "tests/effects/test_errors.py"

SLIPS = (
    Slip(
        "failures.raised_twice",
        FILE,
        "program = self.programs.pop(key)\n",
        "program = self.programs[key]\n",
        "Each barrier raises the same errors again.",
        (f"{ERRORS}::test_each_error_is_raised_once_and_several_as_one",),
    ),
)
