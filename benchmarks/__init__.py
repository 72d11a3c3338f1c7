"""How fast it is, beside JAX, in one process: `python -m benchmarks`.

A missed target is shown, and the exit code stays 0; with `--gate` it is 1 if a figure is worse than the baseline.
To add a case, write a function under `@case(...)` in a module of its own, and name the module in `__main__.py`.
"""
