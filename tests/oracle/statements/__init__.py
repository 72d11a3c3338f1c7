"""The statements of programs, a subject a file.

A statement is a frozen dataclass that holds its two readings side by side: `python` writes it as source, and `jax`
makes the state after it from the state before. Nothing else knows what it means. To add one, add a class here and a
production to `tests.oracle.generator.Generator`.
"""
