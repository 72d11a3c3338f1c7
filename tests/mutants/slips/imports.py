"""The import of the library: what is imported later, and what is in force by then."""

from tests.mutants.slip import Slip

WHEN_IMPORTED, FACE = "effects/_jax/patches.py", "effects/__init__.py"


def _in(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/effects/test_import.py::test_{name}" for name in names)


SLIPS = (
    Slip(
        "imports.nothing_is_done",
        WHEN_IMPORTED,
        "for do in _waiting.pop(module.__name__, ()):",
        "for do in ():",
        "What waits for a module is not done once it is imported.",
        _in("kernels_whenever_pallas_is_imported", "failed_import_is_made_good_by_the_next"),
    ),
    Slip(
        "imports.names",
        FACE,
        "return sorted(__all__)",
        "return sorted(globals())",
        "`dir` leaves out what is imported later, and lists what few use.",
        _in("names_that_come_later"),
    ),
)
