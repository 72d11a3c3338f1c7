"""The leaves of a threaded program: what publishes.

Tokens are `uint32[4]`, or in a region of replicas `uint32[8]`; see `effects/_model/wire.py` and `docs/design.md`.
"""

from typing import Any, NamedTuple

from effects import _jax
from effects._model.primitive import result_avals
from effects._model.site import Site

TOKEN_NAME = "_runtime_token"
"""What JAX is told a threaded function's first argument is called."""


class BoundaryMarkers(NamedTuple):
    """What a record publishes besides itself, being the first or the last in a region or the last in its program."""

    enters: bool = False  # it takes the token around the region
    leaves: bool = False  # it gives that back; if it is not the first too, it takes it behind its own
    closes: bool = False
    devices: int = 0  # how many enter, or close
    may_diverge: bool = False  # as for `enter_p`


NO_MARKERS = BoundaryMarkers()

record_p: _jax.Primitive = _jax.Primitive("record")
record_p.multiple_results = True
"""(token, *operands) -> (*results, token): publishes one record, and waits for what a callback returns. `region`: the
`InRegion` of a callback, from which devices go on together if all come there.

Were the token first, what a call returns could be all that a loop carries, in the loop's order, and XLA takes a body
that ends with such a call for one that changes nothing."""

close_p: _jax.Primitive = _jax.Primitive("close")
"""(*tokens) -> output token: the program has published all it will."""

skip_p: _jax.Primitive = _jax.Primitive("skip")
"""token -> token: the device has no effects with the next `count` numbers."""

gate_p: _jax.Primitive = _jax.Primitive("gate")
"""token -> token: what follows waits until the thread's programs before are over that call handlers in this domain."""


@record_p.def_abstract_eval
def _record_abstract_eval(
    token: Any, *operands: Any, site: Site, call: int, edges: BoundaryMarkers, region: Any
) -> list[Any]:
    if edges.enters and not edges.leaves:
        return [*result_avals(site), _jax.per_device(token)]
    return [*result_avals(site), operands[0] if edges.leaves and not edges.enters else token]


_jax.infer_types_each_time(record_p)


gate_p.def_abstract_eval(lambda token, domain: token)
skip_p.def_abstract_eval(lambda token, count: token)


@close_p.def_abstract_eval
def _close_abstract_eval(*tokens: Any) -> Any:
    return tokens[0]
