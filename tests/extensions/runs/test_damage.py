"""A few of the damaged files of `damage.py`: some are an error, some have fewer records, and none has others."""

import pytest

from tests.extensions.runs.damage import check_files


@pytest.mark.slow
def test_damaged_files(tmp_path):
    counts = check_files(tmp_path, 300)
    assert counts["failed"] == 0 and counts["errors"] > 10 and counts["fewer"] > 60 and counts["whole"] > 10, counts
