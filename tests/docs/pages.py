"""The pages, and the blocks of code on them.

A block of `python` runs; what it shows stands in the block of `text` behind it, or else it shows nothing. The blocks of
a page are one session. A block that begins with a comment that names a file is that file's contents, and is written. A
block of `console` has commands, behind `$ `, and what they show. In what is shown, `...` stands for anything.
"""

from __future__ import annotations

import dataclasses
import re
from itertools import zip_longest
from pathlib import Path

from markdown_it import MarkdownIt

from tests.helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FILE = re.compile(r"(?:#|//) ([\w.-]+\.\w+)\n")


@dataclasses.dataclass(frozen=True)
class Block:
    """What is done at one place of a page.

    Attributes:
        kind: `"python"`, `"file"` or `"command"`.
        code: The code, or the command.
        shown: What the page says that it shows.
        line: Where it stands on the page.
        file: The name of the file, if it is one.
    """

    kind: str
    code: str
    shown: str
    line: int
    file: str = ""


def blocks_of(page: Path) -> list[Block]:
    """What the blocks of a page do, from top to bottom."""
    fences = [token for token in MarkdownIt().parse(page.read_text()) if token.type == "fence" and token.map]
    blocks: list[Block] = []
    for fence, following in zip_longest(fences, fences[1:]):
        line = fence.map[0] + 1 if fence.map else 0
        if fence.info in ("python", "cpp") and (named := _FILE.match(fence.content)):
            blocks.append(Block("file", fence.content, "", line, named[1]))
        elif fence.info == "python":
            shown = following.content if following is not None and following.info == "text" else ""
            blocks.append(Block("python", fence.content, shown, line))
        elif fence.info == "console":
            for part in re.split(r"^\$ ", fence.content, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                blocks.append(Block("command", command, shown, line))
    return blocks
