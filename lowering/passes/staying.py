"""Which asynchronous operations are started and done in one jaxpr, so that a program may keep their values itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from effects import _jax
from effects._model.asynchronous import async_done_p, async_start_p, async_update_p
from effects._model.operation import HostRun


def with_staying_operations(jaxpr: Any) -> Any:
    """A jaxpr with constants, in which the equations of such operations say so."""
    inner = jaxpr.jaxpr
    uses: dict[int, list[int]] = {}  # by the identity of a variable, which equations take it; -1: it is returned
    for at, eqn in enumerate(inner.eqns):
        for atom in eqn.invars:
            uses.setdefault(id(atom), []).append(at)
    for atom in inner.outvars:
        uses.setdefault(id(atom), []).append(-1)

    def chain(at: int) -> Iterator[int]:
        """The equations of the operation from this one on; -1 among them: its ticket goes elsewhere."""
        yield at
        if inner.eqns[at].primitive is async_done_p:
            return
        for user in uses.get(id(inner.eqns[at].outvars[0]), ()):
            yield from chain(user) if user >= 0 and _is_end(inner.eqns[user]) else (-1,)

    eqns = list(inner.eqns)
    for at, eqn in enumerate(inner.eqns):
        if eqn.primitive is async_start_p and not isinstance(eqn.params["operation"], HostRun):
            of_operation = list(chain(at))
            for each in of_operation if -1 not in of_operation else ():
                operation = dataclasses.replace(eqns[each].params["operation"], stays=True)
                eqns[each] = eqns[each].replace(params={**eqns[each].params, "operation": operation})
    return _jax.closed_jaxpr(inner.replace(eqns=eqns), jaxpr.consts)


def _is_end(eqn: Any) -> bool:
    """Whether an equation takes the values of the operation whose ticket it takes. An update that does not ties the
    ticket to the order, and so makes another value of it."""
    return eqn.primitive is async_done_p or (eqn.primitive is async_update_p and eqn.params["partial"])
