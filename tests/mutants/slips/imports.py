"""The import of the library: what is imported later, and what is in force by then."""

from tests.mutants.slip import Slip

WHEN_IMPORTED, PATCHES, FACE = "effects/_jax/patches.py", "effects/_jax/patches.py", "effects/__init__.py"


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
        "imports.after_a_failure",
        WHEN_IMPORTED,
        "if name not in _waiting:",
        "if not _waiting.pop(name, None):",
        "What waits for a module is forgotten when it is found.",
        _in("failed_import_is_made_good_by_the_next", "kernels_whenever_pallas_is_imported"),
    ),
    Slip(
        "imports.loader",
        WHEN_IMPORTED,
        "module.__spec__.loader = self._loader",
        "pass",
        "A module that something waited for names another loader than its own.",
        _in("imported_module_names_its_own_loader"),
    ),
    Slip(
        "imports.all_at_once",
        PATCHES,
        "when_imported(module, lambda rows=rows: _change(rows()))",
        "importlib.import_module(module), _change(rows())",
        "Pallas and `checkify` are imported with the library.",
        _in("import_is_light"),
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
