"""`assert_order`: behaviour as a list of texts, compared with a template."""

from __future__ import annotations

import pytest

from effects.dispatch.testing import assert_order


@pytest.mark.parametrize(
    "seen, template",
    [
        ([], []),
        ([], [set()]),
        ([1, 2], (1, 2)),
        ([2, 1], {1, 2}),
        ([1, 3, 2, 4], [1, {2, 3}, 4]),
        ([(1, 2), [3]], [(1, 2), [3]]),
        ([(1, 2)], [{((1, 2),)}]),
        ([1, 1, 2], [{(1, 1), 2}]),
        ([1, 4, 2, 5, 3], [{(1, 2, 3), (4, 5)}]),
        (["a", "x", "a", "y"], [{("a", "x"), ("a", "y")}]),
        (["a", "a", "y", "x"], [{("a", "x"), ("a", "y")}]),
        (["s", 2, "b", 1, "e"], [{("s", frozenset({1, 2}), "e"), "b"}]),
    ],
)
def test_assert_order_takes_what_the_template_allows(seen, template):
    """A list is in order, a set in any; a tuple in a set is in order, between the set's other elements."""
    assert_order(seen, template)


@pytest.mark.parametrize(
    "seen, template, message",
    [
        ([1, 3, 2], [1, 2, 3], "at 1: expected 2, saw 3\n    before: 1\n    from there: 3, 2"),
        ([1], [1, 2], "at 1: expected 2, saw the end\n    before: 1\n    from there: nothing"),
        ([1, 2], [1], "at 1: expected the end, saw 2\n    before: 1\n    from there: 2"),
        ([4, 1], [{1, 2, 3}, 4], "at 0: expected 1 or 2 or 3, saw 4\n    before: nothing\n    from there: 4, 1"),
        ([1, 1], [{1, 2}], "at 1: expected 2, saw 1\n    before: 1\n    from there: 1"),
        ([1, 3], [{(1, 2, 3), 4}], "at 1: expected 2 or 4, saw 3\n    before: 1\n    from there: 3"),
        (["a", "a", "b"], [{("a", "x"), ("a", "y")}], "at 2: expected 'x' or 'y', saw 'b'\n    before: 'a', 'a'"),
        (
            range(20),
            [*range(10), 0],
            "at 10: expected 0, saw 10\n    before: ..., 5, 6, 7, 8, 9\n    from there: 10, 11,",
        ),
    ],
)
def test_assert_order_says_where_it_departs(seen, template, message):
    """The message names the place, what the template allows there, and what was seen."""
    with pytest.raises(AssertionError) as caught:
        assert_order(seen, template)
    assert str(caught.value).startswith(message)
