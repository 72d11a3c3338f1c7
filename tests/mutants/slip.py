"""What a slip is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slip:
    """A small patch that makes the library wrong in one place."""

    name: str  # "part.what"
    file: str  # from the root of the tree
    old: str  # what stands there, once
    new: str  # what is to stand there instead
    wrong: str  # what goes wrong then, in one line
    tests: tuple[str, ...]
    """Those that should fail, by pytest's names. `tests/native/x_test.cc::test_y` is a native test. A slip in C++ has
    native tests only, so that the Python module need not be built again, and is in a source and not in a header."""

    @property
    def is_native(self) -> bool:
        return self.file.endswith((".cc", ".h"))


def is_native_test(test: str) -> bool:
    return test.partition("::")[0].endswith(".cc")


def native_name(test: str) -> str:
    """The name of a native test in its program."""
    file, _, name = test.partition("::")
    return f"{file.rpartition('/')[2].removesuffix('.cc')}.{name}"
