"""Dependencies that keep an equation between the start and the done of an asynchronous operation.

XLA schedules by data dependencies alone. So the operands of an equation between a start and its done are made to depend
on the token of the start, and the token of the done on the equation's results. `optimization_barrier` would not do: XLA
for CPUs removes it before it schedules (`OptimizationBarrierExpander` in xla/service/cpu/cpu_compiler.cc).

The token is the one after the start, which on CPUs depends on the results of the started function. If it depended on
the function's operands only, XLA would schedule the equations before the function or among its parts, and copy an
operand that both use. Where a program keeps the values itself, as for GPUs, the token is the one before the start.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from effects import _jax
from effects._model.dependency import add_dependency
from effects._model.effect import token_key
from effects.extensions.asynchronous.operation import HostStartOp
from effects.extensions.asynchronous.primitives import (
    ASYNC,
    async_done_p,
    async_start_p,
    is_asynchronous,
)
from effects.lowering.tokens import Tokens

_KEY = token_key(ASYNC)


class ScheduleTies:
    """Ties the equations of one jaxpr, which are shown to it one after the other."""

    def __init__(self, jaxpr: Any) -> None:
        # The operations in flight: at first the most by which dones outnumber starts.
        self._under_way = -min(itertools.accumulate(_changes(jaxpr), initial=0))
        # By identity: a value, and its copy tied to the last token. Later equations take the tied one: a tie is made in
        # place, and XLA copies a value that is also used untied.
        self._last: dict[int, tuple[Any, Any]] = {}
        self._token: Any = None
        self._tied: set[int] = set()  # the values of `_last` that are tied to this token
        # By identity: results since the token that no equation has used. A used result has been computed by then, and
        # to tie all would keep XLA from fusing one equation with the next.
        self._given: dict[int, Any] = {}

    def before(self, eqn: Any, operands: Sequence[Any], tokens: Tokens) -> tuple[list[Any], Tokens]:
        """Returns an equation's operands and tokens, with the dependencies that it needs."""
        operands = list(operands)
        if is_asynchronous(eqn):
            if self._given:
                (token,) = add_dependency(map(self.last, self._given.values()), [tokens[_KEY]])
                tokens, self._given = {**tokens, _KEY: token}, {}
            return [*map(self.last, operands)], tokens
        if self._under_way > 0:
            if (token := tokens[_KEY]) is not self._token:
                self._token, self._tied = token, set()
            new = [x for x, atom in zip(operands, eqn.invars, strict=True) if self._is_new(x, atom)]
            new = list({id(x): x for x in new}.values())
            for x, tied in zip(new, add_dependency([token], [*map(self.last, new)]), strict=True):
                self._tie(x, tied)
            if eqn.outvars and not _takes_references(eqn):  # a value for a reference may be computed later
                for x in operands:
                    self._given.pop(id(x), None)
        return [*map(self.last, operands)], tokens

    def last(self, x: Any) -> Any:
        """The value tied to the last token, or the value itself if it was never tied."""
        return self._last.get(id(x), (x, x))[1]

    def _tie(self, x: Any, tied: Any) -> None:
        self._last[id(x)] = x, tied
        self._tied.add(id(x))

    def _is_new(self, x: Any, atom: Any) -> bool:
        return not hasattr(atom, "val") and id(x) not in self._tied and not _jax.is_reference_type(_jax.typeof(x))

    def note(self, eqn: Any, outs: Sequence[Any]) -> None:
        """Notes the results of an equation."""
        if is_asynchronous(eqn):
            self._under_way += _change(eqn)
        elif self._under_way > 0:
            for x in outs:
                if not _jax.is_reference_type(_jax.typeof(x)):
                    if not _takes_references(eqn):  # a reference's value may be older than the start
                        self._tie(x, x)
                    self._given[id(x)] = x


def _takes_references(eqn: Any) -> bool:
    return any(_jax.is_reference_type(atom.aval) for atom in eqn.invars)


def _change(eqn: Any) -> int:
    """The change in the number of scheduled operations in flight, across an equation."""
    if eqn.primitive in (async_start_p, async_done_p):
        sign = 1 if eqn.primitive is async_start_p else -1
        return sign if eqn.params["operation"].schedule else 0
    if eqn.primitive in (_jax.scan_p, _jax.while_p):
        return 0  # a loop returns as many futures as it takes
    inner = next(_jax.jaxprs_in(eqn.params), None)
    return 0 if inner is None else sum(_changes(inner))


@_jax.weakref_lru_cache
def _changes(jaxpr: Any) -> list[int]:
    return [_change(eqn) for eqn in jaxpr.eqns if is_asynchronous(eqn)]


# Marks operations with start and done in one jaxpr, so that a program may keep their values itself.


def with_local_operations(jaxpr: Any) -> Any:
    """Sets `is_local` of the operations that a closed jaxpr both starts and ends. It uses each ticket once."""
    inner = jaxpr.jaxpr
    eqns = list(inner.eqns)
    users = {id(atom): at for at, eqn in enumerate(eqns) for atom in eqn.invars}
    users |= {id(atom): -1 for atom in inner.outvars}
    for at, eqn in enumerate(inner.eqns):
        if eqn.primitive is not async_start_p or isinstance(eqn.params["operation"], HostStartOp):
            continue
        user = users.get(id(eqn.outvars[0]))
        # An update ties the ticket to the order, which makes a new value.
        if user is not None and (user < 0 or eqns[user].primitive is not async_done_p):
            continue
        for each in (at,) if user is None else (at, user):
            operation = dataclasses.replace(eqns[each].params["operation"], is_local=True)
            eqns[each] = eqns[each].replace(params={**eqns[each].params, "operation": operation})
    return _jax.closed_jaxpr(inner.replace(eqns=eqns), jaxpr.consts)
