"""Handlers that write files piece by piece."""

from tests.mutants.slip import Slip

NPZ = "extensions/handlers/npz.py"
TESTS = "tests/extensions/handlers/test_npz.py"

SLIPS = (
    Slip(
        "handlers.joined_once",
        NPZ,
        "if begin == count:",
        "if begin >= 0:",
        "Pieces that a killed process has joined, and not removed, are joined again.",
        (f"{TESTS}::test_npz_is_joined_once",),
    ),
    Slip(
        "handlers.missing_piece",
        NPZ,
        "if begin > count:",
        "if begin < 0:",
        "A piece that is gone is no error.",
        (f"{TESTS}::test_npz_that_lacks_something_is_an_error",),
    ),
    Slip(
        "handlers.joined_type",
        NPZ,
        "native(join(parts)[name])",
        "parts[0][name].dtype.type(join(parts)[name])",
        "A joined array has the type of its first piece.",
        (f"{TESTS}::test_npz_joins_pieces_of_several_types",),
    ),
)
