"""`jax.debug.print` and JAX's other callbacks, in a function that `fx.jit` compiles: each becomes an effect."""
