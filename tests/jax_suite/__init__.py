"""JAX's own tests with `fx.jit` in the place of `jax.jit`: `python -m tests.jax_suite --jax-tests DIR`."""
