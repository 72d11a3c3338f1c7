"""Operations that a program starts, runs beside, and waits for: `fx.async_start` and its relatives.

Its rules are loaded once a program has the first operation.
"""

from effects import _jax
from effects._model.content import described_later
from effects.lowering.native_module import native, register_handlers

_PAGE = "docs/guide/asynchronous.md"


def _load_rules() -> None:
    from effects.extensions.asynchronous import rules as rules


described_later("async_start", "effects.extensions.asynchronous.host_start")
_jax.when_imported("effects.extensions.asynchronous.start_and_done", _load_rules)
register_handlers("cpu", native.operation_handlers())  # a program compiled elsewhere may run first
