"""Every block of code of the README and the site, as a reader would paste it."""

import doctest
from pathlib import Path

import pytest

from tests.docs import session
from tests.docs.pages import PAGES, blocks_of
from tests.helpers import ROOT

WITH_BLOCKS = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=() if page.name == "README.md" else pytest.mark.slow)
    for page in PAGES
    if blocks_of(page)
]


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_blocks_show_what_the_page_says(page: Path, tmp_path):
    """In a process of its own, from top to bottom."""
    blocks = blocks_of(page)
    shown = session.run(blocks, tmp_path, timeout=120)
    for block, text in zip(blocks, shown, strict=False):
        same = doctest.OutputChecker().check_output(block.shown, text, doctest.ELLIPSIS)
        assert same, f"{page}:{block.line}\n{block.code}\n-- shows\n{text}\n-- and not\n{block.shown}"
    assert len(shown) == len(blocks), shown
