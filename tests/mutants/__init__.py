"""Deliberate slips, and whether the tests notice them.

A slip is a small patch that makes the library wrong in one place, with the tests that should fail because of it. The
command applies one after the other to a temporary copy of the tree, runs these tests there, and names what survives.

    slip         what a slip is
    slips/       the slips, a file for each part of the library
    copy         a temporary copy of the tree, to which one slip at a time is applied
    places       which lines of a source can be deleted or negated
    lines        which tests run which lines; recording/ has what each interpreter records
    at_random    slips at random places, each with the tests that come there
    command      the checks of many slips, side by side, and what the command prints
    __main__     the command

    python -m tests.mutants                       # all slips
    python -m tests.mutants --only masks          # those of one part
    python -m tests.mutants --only masks.nested   # one
    python -m tests.mutants --random 50 --seed 1 --in lowering   # of lines that are deleted or negated at random

It ends with 0 if every slip is caught, with 1 if one survives, and with 2 if one cannot be tried: its old text is not
found, or its tests fail without it.
"""
