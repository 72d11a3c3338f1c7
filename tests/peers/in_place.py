"""A pytest plugin: what a library's tests are run with. It is loaded alone, since libraries have a package `tests`."""

import os

WAY = "PEERS_WAY"
"""The variable that says how: `plain`, `imported` (this library is imported) or `installed` (`jax.jit` is `fx.jit`)."""

if os.environ.get(WAY) in ("imported", "installed"):
    import effects as fx

    if os.environ[WAY] == "installed":
        fx.install()
