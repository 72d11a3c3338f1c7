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
        ([2, (1, 2)], [{(1, 2), 2}]),
        ([{"a": [1]}, 2, 1], [{"a": [1]}, {1, 2}]),
    ],
)
def test_assert_order_takes_what_the_template_allows(seen, template):
    """A list is in order, a set in any; all else is a value, a tuple in either too."""
    assert_order(seen, template)


@pytest.mark.parametrize(
    "seen, template, message",
    [
        ([1, 3, 2], [1, 2, 3], "at 1: expected 2, saw 3\n    before: 1\n    from there: 3, 2"),
        ([1], [1, 2], "at 1: expected 2, saw the end\n    before: 1\n    from there: nothing"),
        ([1, 2], [1], "at 1: expected the end, saw 2\n    before: 1\n    from there: 2"),
        ([4, 1], [{1, 2, 3}, 4], "at 0: expected 1 or 2 or 3, saw 4\n    before: nothing\n    from there: 4, 1"),
        ([1, 1], [{1, 2}], "at 1: expected 2, saw 1\n    before: 1\n    from there: 1"),
        ([1, 1], [{1, (1, 1)}], "at 1: expected (1, 1), saw 1\n    before: 1\n    from there: 1"),
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
