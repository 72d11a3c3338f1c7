"""Filters: what is left out keeps its place, and all devices agree."""

from tests.mutants.slip import Slip

FILTER = "dispatch/native/producer/filter.cc"
RING = "dispatch/native/producer/producer_ring.cc"
NATIVE = "tests/native/filter_test.cc"
SKIPS = "tests/native/skips_test.cc"
EVERY = "tests/effects/filters/test_every.py"

SLIPS = (
    Slip(
        "filters.each_decides",
        FILTER,
        "  if (program.is_known && place <= program.newest) return Decision::kElsewhere;\n",
        "",
        "Each device decides for itself what becomes of an effect that all of them have.",
        (f"{NATIVE}::test_first_device_decides_for_all",),
    ),
    Slip(
        "filters.first_of_what_comes",
        FILTER,
        "number - skipped < first",
        "number + 0 * skipped < first",
        "`first` counts what has come, and not what was shown.",
        (f"{NATIVE}::test_first_counts_what_was_shown",),
    ),
    Slip(
        "filters.lost_run",
        RING,
        "  take_skips();\n  skips_ = token;",
        "  skips_ = token;",
        "What is left of a run is forgotten when the next one begins.",
        (f"{SKIPS}::test_skips_among_records",),
    ),
    Slip(
        "filters.begins_again",
        "lowering/sites.py",
        "native.filter_of(site.id, line.native)",
        "pass",
        "A line that is compiled has a filter that shows all.",
        (f"{EVERY}::test_calls_of_a_function",),
    ),
)
