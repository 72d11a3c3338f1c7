"""Some of the programs of `python -m tests.oracle --watch`."""

from __future__ import annotations

import pytest

from tests.oracle.watching.planting import case_number, check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", [0, 12, 18])
def test_first_bad_value_of_random_programs_is_that_of_a_reading(first):
    """Whatever is nested in whatever, what is found is what a reading finds equation by equation; in programs without
    faults that is nothing."""
    found = [len(check(case_number(0, number))[0].errors) for number in range(first, first + 6)]
    assert found[0] == found[3] == 0  # nothing is planted in these
    assert sum(found) > 0
