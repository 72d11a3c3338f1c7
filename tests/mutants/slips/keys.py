"""Keys: by what two things are one, and what goes with what is gone."""

from tests.mutants.slip import Slip

NUMBERING = "effects/_model/numbering.py"
TESTS = "tests/effects/test_keys.py"


def _of(name: str) -> tuple[str, ...]:
    return (f"{TESTS}::test_what_is_one_and_what_is_two[{name}]",)


SLIPS = (
    Slip(
        "keys.failures",
        "dispatch/runtime/failures.py",
        "return of.where, of.function, type(failure)",
        "return of.where, of.function, BaseException",
        "A failed check stands for a callback that raised at the same line.",
        _of("failures"),
    ),
    Slip(
        "keys.numbers_stay",
        NUMBERING,
        "weakref.ref(owner, lambda _: self._numbers.pop(identity, None)), number",
        "weakref.ref(owner), number",
        "An object has the number of one that lay at its address.",
        (f"{TESTS}::test_numbers_go_with_their_objects",),
    ),
)
