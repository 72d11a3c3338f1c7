"""Values that are there only after the effects that come before them.

Nothing ties a value to a print that stands ahead of it, so XLA may run a collective first, and a device that waits in a
collective publishes nothing. Where another device's callback waits for its turn among all devices' effects, and is what
that collective waits for, neither would go on. There, what goes into a collective is tied to the tokens.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from effects import _jax as compat

after_p = compat.Primitive("after")
after_p.multiple_results = True
"""(*tokens, *values) -> the values. The first `tokens` of the operands are tokens."""


@after_p.def_abstract_eval
def _after_abstract_eval(*operands: Any, tokens: int) -> Sequence[Any]:
    return operands[tokens:]


def after(tokens: Iterable[Any], values: Sequence[Any]) -> list[Any]:
    """The values, when what these tokens stand for has been published."""
    tokens, values = list(tokens), list(values)
    arrays = [at for at, value in enumerate(values) if not compat.is_reference_type(compat.typeof(value))]
    if arrays:
        outs = after_p.bind(*tokens, *(values[at] for at in arrays), tokens=len(tokens))
        for at, out in zip(arrays, outs, strict=True):
            values[at] = out
    return values


_tracing = threading.local()


@contextlib.contextmanager
def collectives_come_after(is_so: bool) -> Iterator[None]:
    """Whether, in what the token pass goes through meanwhile, collectives come after the effects ahead of them."""
    before = do_collectives_come_after()
    _tracing.is_so = is_so
    try:
        yield
    finally:
        _tracing.is_so = before


def do_collectives_come_after() -> bool:
    """Whether they do, where the token pass is."""
    return getattr(_tracing, "is_so", False)


def talks(eqn: Any) -> bool:
    """Whether devices talk to each other in this equation, or inside it."""
    return compat.is_collective(eqn) or any(any_talks(inner) for inner in compat.jaxprs_in(eqn.params))


@compat.weakref_lru_cache
def any_talks(jaxpr: Any) -> bool:
    """Whether they do in any equation of this jaxpr."""
    return any(map(talks, jaxpr.eqns))
