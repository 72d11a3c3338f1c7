"""Prints the tables of docs/reference/transformations.md."""

from tests.transformations.table import table

if __name__ == "__main__":
    print(table(), end="")
