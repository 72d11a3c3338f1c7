"""For tests of what programs do: comparing observed output with a template."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

_SHOWN = 5
"""The number of values that a message shows before the order departs from the template, and from there on."""

_NOTHING = object()


def assert_order(seen: Iterable[Any], template: Iterable[Any]) -> None:
    """Asserts that `seen` is in an order that the template allows.

    Each element of a list or tuple comes after the one before it. An element that is a set stands for its elements in
    any order. Everything else is a value, compared with `==`.

    Args:
        seen: Values, in the order in which they were seen.
        template: What is allowed. All of it must have been seen, and nothing else.

    Raises:
        AssertionError: at the first value that no allowed order has there; it names the values that were expected.

    Example:
        >>> from effects.dispatch.testing import assert_order
        >>> assert_order(["a", "c", "b", "d"], ["a", {"b", "c"}, "d"])
        >>> assert_order(["a", "b", "d"], ["a", {"b", "c"}, "d"])
        Traceback (most recent call last):
            ...
        AssertionError: at 2: expected 'c', saw 'd'
            before: 'a', 'b'
            from there: 'd'
    """
    __tracebackhide__ = True
    seen, at = list(seen), 0
    for part in [template] if isinstance(template, Set) else template:
        left = [*part] if isinstance(part, Set) else [part]
        while left:
            came = next((value for value in left if at < len(seen) and value == seen[at]), _NOTHING)
            if came is _NOTHING:
                _fail(seen, at, {*map(repr, left)})
            left.remove(came)
            at += 1
    if at < len(seen):
        _fail(seen, at, {"the end"})


def _fail(seen: list[Any], at: int, expected: set[str]) -> None:
    __tracebackhide__ = True
    before = ["..."] * (at > _SHOWN) + [repr(value) for value in seen[max(0, at - _SHOWN) : at]]
    following = [repr(value) for value in seen[at : at + _SHOWN]] + ["..."] * (len(seen) > at + _SHOWN)
    raise AssertionError(
        f"at {at}: expected {' or '.join(sorted(expected))}, saw {repr(seen[at]) if at < len(seen) else 'the end'}\n"
        f"    before: {', '.join(before) or 'nothing'}\n"
        f"    from there: {', '.join(following) or 'nothing'}"
    )
