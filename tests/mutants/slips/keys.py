"""Keys: by what two things are one, and what goes with what is gone."""

from tests.mutants.slip import Slip

NUMBERING = "effects/_model/numbering.py"
TESTS = "tests/effects/test_keys.py"


def _of(name: str) -> tuple[str, ...]:
    return (f"{TESTS}::test_what_is_one_and_what_is_two[{name}]",)


SLIPS = (
    Slip(
        "keys.float_attribute",
        "extensions/custom_calls/api.py",
        "repr(value) if isinstance(value, float) else value",
        "value",
        "A custom call with the attribute -0.0 is taken for that with 0.0, and one with NaN is never found again.",
        _of("attributes"),
    ),
    Slip(
        "keys.number_attribute",
        "extensions/custom_calls/api.py",
        "return type(value).__name__, value.dtype.name,",
        "return type(value).__name__,",
        "Attributes of different types are one if their bytes are equal.",
        _of("attributes"),
    ),
    Slip(
        "keys.enumeration",
        "effects/_model/operand.py",
        '{"text": _text(str, value), "of": [type(value).__qualname__, _text(repr, value)]}',
        '{"text": _text(str, value)}',
        "Of two members of enumerations with the same text one is shown for both.",
        _of("static operands"),
    ),
    Slip(
        "keys.flag",
        "effects/_model/operand.py",
        "return type(value) not in _TYPES and not is_scalar",
        "return not isinstance(value, _TYPES) and not is_scalar",
        "A member of an enumeration is described as the number or the text that it is.",
        _of("static operands"),
    ),
    Slip(
        "keys.failures",
        "dispatch/runtime/failures.py",
        "return of.where, of.function, type(failure)",
        "return of.where, of.function, BaseException",
        "A failed check stands for a callback that raised at the same line.",
        _of("failures"),
    ),
    Slip(
        "keys.method",
        "effects/_model/function.py",
        "_numbering.number_of(place, fn.__self__, fn.__func__)",
        "_numbering.number_of(place, fn.__self__)",
        "Two functions that are methods of one object have one key.",
        _of("functions"),
    ),
    Slip(
        "keys.numbers_stay",
        NUMBERING,
        "weakref.ref(owner, lambda _: self._numbers.pop(identity, None)), number",
        "weakref.ref(owner), number",
        "An object has the number of one that lay at its address.",
        (f"{TESTS}::test_numbers_go_with_their_objects",),
    ),
    Slip(
        "keys.numbers_of_threads",
        NUMBERING,
        "            return self._numbers.setdefault(identity, entry)[1]",
        "            self._numbers[identity] = entry",
        "An object that two threads number at one time has two numbers.",
        (f"{TESTS}::test_threads_that_number_at_one_time",),
    ),
)
