"""Native functions of the user's as part of a program: `fx.custom_call`.

With asynchronous operations, what such a function gives may come later: see `started.py`.
"""

from effects import _jax
from effects.extensions.custom_calls import failures as failures
from effects.extensions.custom_calls import rules as rules


def _load_started() -> None:
    from effects.extensions.custom_calls import started as started


_jax.when_imported("effects.extensions.asynchronous.rules", _load_started)
