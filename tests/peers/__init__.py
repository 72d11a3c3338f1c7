"""A library's own tests with `fx.jit` in place of `jax.jit`: `python -m tests.peers NAME --source DIR`."""
