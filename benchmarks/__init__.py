"""How fast it is, beside JAX, in one process: `python -m benchmarks`.

Benchmarks are not tests: a missed target is shown, and the exit code stays 0. To add a case, write a function under
`@case(...)` in a module of its own, and name the module in `__main__.py`.
"""
