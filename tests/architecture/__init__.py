"""Measures the architecture from the files themselves, and keeps the table in `docs/architecture.md` true.

    python -m tests.architecture                     measures this tree, and prints the table beside the document's
    python -m tests.architecture --tree DIR          measures another checkout in place of this one
    python -m tests.architecture --before DIR        measures another checkout too, for the first column
    python -m tests.architecture --markdown          prints the table as the document has it
    python -m tests.architecture --places            lists what was counted, with files and lines
    python -m tests.architecture --write             writes what was measured into the document

`paths.py` and `patches.py` each run as a script in a process of their own, with the tree that is measured ahead of all
others on Python's path; `sources.py` reads files and runs nothing.
"""
