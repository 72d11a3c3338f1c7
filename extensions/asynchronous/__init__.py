"""Operations that a program starts, runs beside, and waits for: `fx.async_start` and its relatives.

Its rules are loaded once a program has the first operation.
"""

from effects import _jax
from effects.extensions.asynchronous import host_start as host_start
from effects.lowering.native_module import native, register_handlers


def _load_rules() -> None:
    from effects.extensions.asynchronous import rules as rules


_jax.when_imported("effects.extensions.asynchronous.start_and_done", _load_rules)
register_handlers("cpu", native.operation_handlers())  # a program compiled elsewhere may run first
