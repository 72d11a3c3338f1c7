"""Filters: what is left out keeps its place, and all devices agree."""

from tests.mutants.slip import Slip

FILTER = "dispatch/native/producer/filter.cc"
NATIVE = "tests/native/filter_test.cc"

SLIPS = (
    Slip(
        "filters.first_of_what_comes",
        FILTER,
        "number - skipped < first",
        "number + 0 * skipped < first",
        "`first` counts what has come, and not what was shown.",
        (f"{NATIVE}::test_first_counts_what_was_shown",),
    ),
)
