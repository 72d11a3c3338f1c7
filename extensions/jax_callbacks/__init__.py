"""`jax.debug.print` and JAX's other callbacks, in a function that `fx.jit` compiles: each becomes an effect."""

from effects._model.content import described_later
from effects.extensions.jax_callbacks import conversion as conversion

_PAGE = "docs/how-to/migrating.md"

described_later("jax_line", "effects.extensions.jax_callbacks.jax_line")
