"""Run files: what was published is there, whole, once and in order, and nothing else is."""

from tests.mutants.slip import Slip

WRITER = "extensions/runs/native/writer.cc"
NATIVE = "tests/native/runs_test.cc"


SLIPS = (
    Slip(
        "runs.across_segments",
        WRITER,
        "size <= left ? taken : taken + left",
        "size + left * 0 <= segment ? taken : taken + left",
        "An entry begins in one segment and ends in the next.",
        (f"{NATIVE}::test_full_file_keeps_the_newest",),
    ),
)
