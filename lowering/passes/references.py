"""Uses of a reference while an asynchronous operation is under way that writes to it when it is done."""

from __future__ import annotations

from typing import Any

from effects import _jax
from effects._model.asynchronous import ASYNC, async_start_p
from effects.lowering.passes.flights import Flights
from effects.lowering.summary import summarize

MSG_REFERENCE_UNDER_WAY = (
    "A reference of type {type} is used at {use}, between the start of `{name}` at {start} and its done at {done}. "
    "The operation writes to it in between, at a time that nothing says. Use the reference ahead of the start or "
    "behind the done, or let the operation write to another one."
)


@_jax.weakref_lru_cache
def _writes_references(jaxpr: Any) -> bool:
    """Whether an operation is started that writes to a reference. Asked once for each jaxpr, as `Flights` reads a
    function as often as it is called."""
    return ASYNC in summarize(jaxpr).effects and any(
        (eqn.primitive is async_start_p and eqn.params["operation"].into_reference)
        or any(map(_writes_references, _jax.jaxprs_in(eqn.params)))
        for eqn in jaxpr.eqns
    )


def check_references(jaxpr: Any) -> None:
    """Raises if a reference is used that an operation under way writes to."""
    if not _writes_references(jaxpr):
        return
    flights = Flights(jaxpr)
    steps = flights.steps
    for at, write in enumerate(steps):
        for number in write.results if write.references else ():
            flight = flights.flights[number]
            if not flight.operation.into_reference:
                continue
            reference = write.references[0]
            for use in flights.between(flight, at):
                if reference in steps[use].references:
                    raise ValueError(
                        MSG_REFERENCE_UNDER_WAY.format(
                            type=reference.aval,
                            use=_jax.source_of(steps[use].eqn),
                            name=flight.operation.name,
                            start=flight.operation.where,
                            done=_jax.source_of(write.eqn),
                        )
                    )
