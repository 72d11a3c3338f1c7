"""What works where: programs with effects, the transformations around them, and the effects that must happen.

Each construct is a small program. It is read as a Python interpreter would read it, alone for x = 1 and in two lanes
for x = 1 and x = 2; what it must show stands beside it, in order. `a1` is an effect at the place `a` with the value 1.
The tests run all of it, and the tables of `docs/reference/transformations.md` are printed from it:

    python -m tests.transformations
"""
