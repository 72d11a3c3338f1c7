"""Prints the README's tables."""

from tests.transformations.table import table

if __name__ == "__main__":
    print(table(), end="")
