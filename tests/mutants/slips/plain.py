"""Programs without effects: which calls are theirs, and what comes before these."""

from tests.mutants.slip import Slip

PROGRAMS = "dispatch/calling/programs.py"


def _in(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/dispatch/test_plain_programs.py::test_{name}" for name in names)


SLIPS = (
    Slip(
        "plain.called_with_tokens",
        PROGRAMS,
        "lambda args, kwargs: self._has_effects(args[1:], kwargs),",
        "lambda args, kwargs: True,",
        "A function without effects is called with tokens.",
        _in("calls_enter_few_frames"),
    ),
)
