"""For tests of what programs do: comparing what was seen with what may be seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Any

_SHOWN = 5
"""How many values a message shows before the place where the order departs from the template, and from there on."""


def assert_order(seen: Iterable[Any], template: Iterable[Any]) -> None:
    """Asserts that what was seen came in an order that the template allows.

    In a list or tuple each element comes after the one before it, and an element that is a set stands for its elements
    in any order. In a set, a tuple is a sequence: its elements come in its order, and those of the set's other elements
    may come between them. Everything else is a value, compared with `==`.

    Args:
        seen: Values, in the order in which they were seen.
        template: What is allowed. All of it must have been seen, and nothing else.

    Raises:
        AssertionError: at the first value that no allowed order has there; it names the values that were expected.

    Example:
        >>> from effects.dispatch.testing import assert_order
        >>> assert_order(["a", "c", "b", "d"], ["a", {"b", "c"}, "d"])
        >>> assert_order(["a1", "b1", "b2", "a2", "end"], [{("a1", "a2"), ("b1", "b2")}, "end"])
        >>> assert_order(["a1", "b", "a3"], [{("a1", "a2"), "b"}])
        Traceback (most recent call last):
            ...
        AssertionError: at 2: expected 'a2', saw 'a3'
            before: 'a1', 'b'
            from there: 'a3'
    """
    __tracebackhide__ = True
    seen, at = list(seen), 0
    for part in [template] if isinstance(template, Set) else template:
        values: dict[int, Any] = {}
        # Which of a set's equal values one is, only what follows may tell, so every reading of what was seen is kept.
        # Each has taken as many values: either something is left in all of them, or in none.
        readings = {_pattern(part, values, in_set=False)}
        while any(readings):
            expected = {n for reading in readings for n in _next(reading)}
            came = {n for n in expected if at < len(seen) and values[n] == seen[at]}
            if not came:
                _fail(seen, at, {repr(values[n]) for n in expected})
            readings = {left for reading in readings for left in _after(reading, came)}
            at += 1
    if at < len(seen):
        _fail(seen, at, {"the end"})


# A pattern is what is left of a part of the template: a tuple of patterns that come in its order, a frozenset of
# patterns that come in any order, or the number of a value. Numbers begin at 1 and are given once: a pattern that has
# nothing left is false, and patterns that are equal allow the same.


def _pattern(part: Any, values: dict[int, Any], *, in_set: bool) -> Any:
    """The pattern of a part of the template. Its values go into `values`."""
    if isinstance(part, tuple if in_set else Set):
        patterns = filter(None, [_pattern(element, values, in_set=not in_set) for element in part])
        return tuple(patterns) if in_set else frozenset(patterns)
    values[len(values) + 1] = part
    return len(values)


def _next(pattern: Any) -> Iterator[int]:
    """The values that may come next."""
    if isinstance(pattern, int):
        yield pattern
    else:
        for inner in pattern[:1] if isinstance(pattern, tuple) else pattern:
            yield from _next(inner)


def _after(pattern: Any, came: Set[int]) -> Iterator[Any]:
    """What may be left when one of these values has come."""
    if isinstance(pattern, int):
        if pattern in came:
            yield ()
    elif isinstance(pattern, tuple):
        for left in _after(pattern[0], came):
            yield (left, *pattern[1:]) if left else pattern[1:]
    else:
        for inner in pattern:
            for left in _after(inner, came):
                yield pattern - {inner} | ({left} if left else set())


def _fail(seen: list[Any], at: int, expected: set[str]) -> None:
    __tracebackhide__ = True
    before = ["..."] * (at > _SHOWN) + [repr(value) for value in seen[max(0, at - _SHOWN) : at]]
    following = [repr(value) for value in seen[at : at + _SHOWN]] + ["..."] * (len(seen) > at + _SHOWN)
    raise AssertionError(
        f"at {at}: expected {' or '.join(sorted(expected))}, saw {repr(seen[at]) if at < len(seen) else 'the end'}\n"
        f"    before: {', '.join(before) or 'nothing'}\n"
        f"    from there: {', '.join(following) or 'nothing'}"
    )
