"""The pass that tests equations one by one, with the iteration of each loop around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects.extensions.watching.found import bind_fields, bind_found, place_of
from effects.extensions.watching.options import Watch, any_of, bind_region, bodies_of, has_any, is_condition, where_of
from effects.extensions.watching.summary import bind_summaries
from effects.extensions.watching.tables import axes_across, is_numeric
from effects.lowering.holders import Extra, find_holder

_INLINED = {
    primitive: body_in
    for primitive, body_in in _jax.inlined_calls().items()
    if primitive is not _jax.custom_vmap_p  # its rule for `vmap` may still replace it
}


class Each:
    """Evaluates a jaxpr, and records each bad value that an equation makes of good ones, or a summary of each value."""

    def __init__(
        self, watch: Watch, iterations: Iterable[Any] = (), around: tuple[Any, ...] = (), path: tuple[Any, ...] = ()
    ):
        """`iterations`: the iteration of each loop around the jaxpr, after the limits of `_repair` if `watch.results`;
        `around`: the frames of the equations around the jaxpr; `path`: their positions, see `Found.order`."""
        self._watch, self._iterations, self._around = watch, tuple(iterations), around
        self._path, self._position = path, -1
        self._names: dict[int, tuple[str, Any]] = {}  # by `id`: the name and the value, which keeps the `id` valid

    def run(self, jaxpr: Any, args: Sequence[Any], names: Sequence[str] = ()) -> list[Any]:
        """The results of a jaxpr with constants. `names`: the user's names of its inputs."""
        for x, name in zip(args, names or _jax.argument_names(jaxpr), strict=False):
            self._name(x, name)
        return _jax.interpret(jaxpr, args, self._bind)

    def _name(self, x: Any, name: str) -> None:
        if isinstance(x, _jax.Tracer) and name:
            self._names.setdefault(id(x), (name, x))

    def _bind(self, eqn: Any, operands: list[Any]) -> Sequence[Any]:
        primitive, bodies = eqn.primitive, bodies_of(eqn)
        self._position += 1
        if not any(has_any(body, self._watch) for body in bodies):
            outs = _jax.bind(eqn, operands)
            if primitive.name == "name":
                self._name(outs[0], eqn.params["name"])
            if not bodies and self._watch.makes(eqn):
                if self._watch.results:
                    return self._repair(eqn, operands, outs)
                self._look(eqn, operands, outs)
            return outs
        before, self._around = self._around, (*_jax.user_frames(eqn), *self._around)
        try:
            return self._enter(eqn, operands)
        finally:
            self._around = before

    def _enter(self, eqn: Any, operands: list[Any]) -> Sequence[Any]:
        primitive = eqn.primitive
        if primitive in _INLINED:
            return self.run(_jax.closed_jaxpr(_INLINED[primitive](eqn.params)), operands)
        if primitive is _jax.jit_p and _jax.is_plain_call(eqn.params):
            return self.run(_jax.closed_jaxpr(eqn.params["jaxpr"]), operands)
        if primitive is _jax.shard_map_p:
            return self._bind_region(eqn, operands)
        around, watch, lines = tuple(map(_jax.as_per_device, self._iterations)), self._watch, self._around
        first, step = _counting(eqn)
        path = (*self._path, self._position, *{0: (), 1: ("+",), -1: ("-",)}[step])
        number = [_jax.as_per_device(jnp.int32(first))] if step else []
        bodies = sorted(bodies_of(eqn), key=lambda body: not is_condition(eqn, body))  # a loop's condition is the first

        def rewrite(body: Any, after: int) -> Any:
            which = next(at for at, each in enumerate(bodies) if each is body)
            outer, split = len(around), len(around) + after

            def run(*args: Any) -> list[Any]:
                counters = args[split : split + len(number)]
                each = Each(watch, [*args[:outer], *counters], lines, (*path, which))
                outs = each.run(body, [*args[outer:split], *args[split + len(counters) :]])
                if watch.results and is_condition(eqn, body):  # a loop might never end with repaired values
                    outs = [outs[0] & (counters[0] < args[0][0])]
                return [*(x + step for x in counters), *outs]

            avals, types = body.in_avals, map(_jax.typeof, number)
            avals = [*map(_jax.typeof, around), *avals[:after], *types, *avals[after:]]
            return _jax.trace_to_jaxpr(run, avals, like=body)

        extra = Extra(
            primitive.bind, rewrite, lambda body, own, args: (own, self.run(body, args)), consts=around, state=number
        )
        holder = find_holder(primitive)
        assert holder is not None
        outs = holder(extra, *operands, **eqn.params)
        if watch.results and primitive is _jax.while_p:
            fields = {"trips": extra.state[0], "iteration": jnp.zeros(0, np.int32)}
            bind_fields(watch, watch.where, (), fields)
        return outs

    def _bind_region(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        around, lines, path = self._iterations, self._around, (*self._path, self._position)

        def region(*args: Any) -> tuple[Any, ...]:
            each = Each(self._watch, map(_jax.as_per_device, args[: len(around)]), lines, path)
            return tuple(each.run(_jax.closed_jaxpr(eqn.params["jaxpr"]), args[len(around) :]))

        return bind_region(eqn, region, operands, around)

    def _repair(self, eqn: Any, operands: list[Any], outs: Sequence[Any]) -> list[Any]:
        """The results, with 0 for bad elements that the equation makes even of good operands, if it is after a given
        place.

        The first item of `self._iterations` holds the limits: the most iterations of a loop; of the equation at that
        place, the first element to show and the last to keep; and the place in program order.
        """
        watch, name, (limits, *iterations) = self._watch, eqn.primitive.name, self._iterations
        is_ahead, is_there = np.bool_(False), np.bool_(True)
        for reached, limit in zip(place_of((*self._path, self._position), iterations), limits[3:], strict=False):
            is_ahead |= is_there & (reached < limit)
            is_there &= reached == limit
        clean = _jax.bind(eqn, [_where(watch.is_bad(x, name), 1, x) for x in operands])
        repaired, shown, before = list[Any](), list[Any](), 0
        for out, new in zip(outs, clean, strict=True):
            if (bad := watch.is_bad(out, name)) is not None:
                index = before + jnp.arange(out.size, dtype=np.int32).reshape(out.shape)
                bad &= watch.is_bad(new, name)
                stays = is_ahead | (is_there & (index <= limits[2]))
                out, bad = _where(bad & ~stays, 0, out), bad & (~is_there | (index >= limits[1]))
            repaired.append(out)
            shown.append(bad)
            before += out.size if is_numeric(_jax.typeof(out)) else 0
        self._record(eqn, any_of([bad.any() for bad in shown if bad is not None]), operands, outs, shown)
        return repaired

    def _record(
        self, eqn: Any, found: Any, operands: Sequence[Any], outs: Sequence[Any], bad: Sequence[Any] = ()
    ) -> None:
        """Records the bad values of an equation where `found` holds."""
        if found is False:
            return
        where = where_of(eqn, self._around) or self._watch.where
        names = [self._names.get(id(x), ("", None))[0] for x in operands]
        order, iterations = (*self._path, self._position), self._iterations[self._watch.results :]
        bind_found(self._watch, eqn, where, found, names, operands, outs, iterations, order, bad)

    def _look(self, eqn: Any, operands: Sequence[Any], outs: Sequence[Any]) -> None:
        name = eqn.primitive.name
        if self._watch.summary:
            where = where_of(eqn, self._around) or self._watch.where
            return bind_summaries(name, where, outs, self._iterations)
        operands = [x for x in operands if not _jax.is_reference(x)]
        made = self._watch.any_bad(outs, name)
        if made is False:
            return
        took = self._watch.any_bad(operands, name)
        if took is not False and (axes := axes_across(eqn)):
            took = jax.lax.pmax(_jax.as_per_device(took).astype(np.int32), axes) > 0
        found = made if took is False else made & ~took
        self._record(eqn, found, operands, outs)


def depth_of(jaxpr: Any) -> int:
    """The length of the longest place (see `place_of`) of an equation in a jaxpr."""
    return 1 + max((2 + depth_of(body) for eqn in jaxpr.eqns for body in bodies_of(eqn)), default=0)


def _where(bad: Any, value: float, x: Any) -> Any:
    return x if bad is None else jnp.where(bad, jnp.asarray(value, x.dtype), x)


def _counting(eqn: Any) -> tuple[int, int]:
    """The number of a loop's first iteration, and the step to the next: an iteration has the number of its elements, so
    a reversed scan counts down. The step is 0 if there is no loop."""
    if eqn.params.get("reverse", False):
        return eqn.params["length"] - 1, -1
    return 0, int(eqn.primitive in (_jax.scan_p, _jax.while_p))
