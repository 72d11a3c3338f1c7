"""Native functions of the user's as part of a program: `fx.custom_call`. Its rules are loaded with that."""

from effects import _jax
from effects._model.content import described_later
from effects.extensions.custom_calls import failures as failures
from effects.extensions.custom_calls import targets as targets

_PAGE = "docs/how-to/custom-calls.md"


def _load_rules() -> None:
    from effects.extensions.custom_calls import rules as rules


described_later("target", "effects.extensions.custom_calls.message")
_jax.when_imported("effects.extensions.custom_calls.api", _load_rules)
