"""What a newcomer copies from the README first: `commands`, the `program`, and the `output` that it is to have.

A contributor copies the command that runs the `tests`.

Commands are the first block of `bash`, or the first indented one; the program is the first block of `python`, and its
output the block behind it, if that has no language. The tests are the first indented line that has `&& pytest `.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}[^\n]*\n)+", re.MULTILINE)


def find(what: str, text: str) -> str:
    """The commands, the program or its output; nothing if there is no output."""
    blocks = FENCED.findall(text)
    languages = [language for language, _ in blocks]
    if what == "commands":
        shells = [block for language, block in blocks if language in ("bash", "sh", "shell")]
        return shells[0] if shells else re.sub("^ {4}", "", INDENTED.findall(text)[0], flags=re.MULTILINE)
    if what == "tests":
        return next(line[4:] for line in text.splitlines(keepends=True) if line[:4] == "    " and "&& pytest " in line)
    program = languages.index("python")
    if what == "program":
        return blocks[program][1]
    following = blocks[program + 1 : program + 2]
    return following[0][1] if following and following[0][0] in ("", "text") else ""


if __name__ == "__main__":
    print(find(sys.argv[1], README.read_text(encoding="utf-8")), end="")
