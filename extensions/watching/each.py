"""The pass that looks at each equation by itself, and knows the iteration of each loop around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from effects import _jax
from effects.extensions.watching.asked import Watch, bodies_of, has_any, where_of
from effects.extensions.watching.found import bind_found
from effects.extensions.watching.summary import bind_summaries
from effects.extensions.watching.tables import axes_across
from effects.lowering.holders import Extra, find_holder

_INLINED = {
    primitive: body_in
    for primitive, body_in in _jax.inlined_calls().items()
    if primitive is not _jax.custom_vmap_p  # whose rule for `vmap` is still to come
}


class Each:
    """Evaluates a jaxpr, and records each bad value that an equation makes of good ones, or what all values are."""

    def __init__(
        self, watch: Watch, iterations: Iterable[Any] = (), around: tuple[Any, ...] = (), path: tuple[Any, ...] = ()
    ):
        """`iterations`: the number of that of each loop around it; `around`: the lines of the equations around it;
        `path`: their positions, see `Found.order`."""
        self._watch, self._iterations, self._around = watch, tuple(iterations), around
        self._path, self._position = path, -1
        self._names: dict[int, tuple[str, Any]] = {}  # by its address what the user calls a value, and the value

    def run(self, jaxpr: Any, args: Sequence[Any], names: Sequence[str] = ()) -> list[Any]:
        """The results of a jaxpr with constants. `names`: what the user calls its inputs."""
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
        around = tuple(map(_jax.as_per_device, self._iterations))
        (first, step), lines = _counting(eqn), self._around
        path = (*self._path, self._position, *({1: "+", -1: "-"}[step],) * bool(step))
        condition_last = [*bodies_of(eqn)][::-1 if primitive is _jax.while_p else 1]

        def rewrite(body: Any, after: int) -> Any:
            which = next(at for at, each in enumerate(condition_last) if each is body)
            return _body(body, self._watch, len(around), step, after, lines, (*path, which))

        extra = Extra(
            primitive.bind,
            rewrite,
            lambda body, state, args: (state, self.run(body, args)),
            consts=around,
            state=[_jax.as_per_device(jnp.int32(first))] if step else [],
        )
        holder = find_holder(primitive)
        assert holder is not None
        return holder(extra, *operands, **eqn.params)

    def _bind_region(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        params, around, lines = eqn.params, self._iterations, self._around
        path = (*self._path, self._position)

        def region(*args: Any) -> tuple[Any, ...]:
            each = Each(self._watch, map(_jax.as_per_device, args[: len(around)]), lines, path)
            return tuple(each.run(_jax.closed_jaxpr(params["jaxpr"]), args[len(around) :]))

        return jax.shard_map(
            region,
            mesh=params["mesh"],
            in_specs=(*[PartitionSpec()] * len(around), *params["in_specs"]),
            out_specs=tuple(params["out_specs"]),
            axis_names=params["newly_manual_axes"],
            check_vma=params["check_vma"],
        )(*around, *operands)

    def _look(self, eqn: Any, operands: Sequence[Any], outs: Sequence[Any]) -> None:
        name = eqn.primitive.name
        where = where_of(eqn, self._around) or self._watch.where
        if self._watch.summary:
            return bind_summaries(name, where, outs, self._iterations)
        operands = [x for x in operands if not _jax.is_reference(x)]
        made = self._watch.any_bad(outs, name)
        if made is False:
            return
        took = self._watch.any_bad(operands, name)
        if took is not False and (axes := axes_across(eqn)):
            took = jax.lax.pmax(_jax.as_per_device(took).astype(np.int32), axes) > 0
        names = [self._names.get(id(x), ("", None))[0] for x in operands]
        found = made if took is False else made & ~took
        if self._watch.search and self._watch.when is None and eqn.primitive.name == "pallas_call":
            self._look_inside(eqn, found, operands)
        order = (*self._path, self._position)
        bind_found(self._watch, eqn, where, found, names, operands, outs, self._iterations, order)

    def _look_inside(self, eqn: Any, found: Any, operands: Sequence[Any]) -> None:
        """Simulates a kernel where `found` holds, if JAX can, and looks at each of its equations."""
        from effects._jax import pallas  # which a kernel has imported

        if (params := pallas.as_simulated(eqn.params)) is None:
            return
        kernel = _jax.closed_jaxpr(params["jaxpr"])
        lines, path = (*_jax.user_frames(eqn), *self._around), (*self._path, self._position, "grid")
        numbers = [jnp.reshape(each, (1, 1)).astype(np.float32) for each in self._iterations]
        for at in range(len(numbers)):
            plain = _jax.closed_jaxpr(params["jaxpr"])
            params = pallas.with_input(
                params, f"{_ITERATION}{at}", lambda _, *own, plain=plain: _jax.evaluate(plain, own)
            )
        added = pallas.named_inputs(params, _ITERATION)

        def look(*references: Any) -> list[Any]:
            each = Each(self._watch, [references[at][0, 0].astype(np.int32) for at in added], lines, path)
            return each.run(kernel, [x for at, x in enumerate(references) if at not in added])

        params = pallas.with_kernel(params, look)

        def run(*given: Any) -> tuple[()]:
            pallas.pallas_call_p.bind(*given, **params)
            return ()

        jax.lax.cond(found, run, lambda *_: (), *operands, *numbers)


_ITERATION = "effects: iteration "
"""How the inputs of a kernel are called that say the iterations around it, with a number behind."""


def _counting(eqn: Any) -> tuple[int, int]:
    """The number of a loop's first iteration, and what each adds: an iteration has the number of its elements. 0 where
    there is no loop."""
    if eqn.params.get("reverse", False):
        return eqn.params["length"] - 1, -1
    return 0, int(eqn.primitive in (_jax.scan_p, _jax.while_p))


@_jax.weakref_lru_cache
def _body(
    jaxpr: Any, watch: Watch, outer: int, step: int, after: int, lines: tuple[Any, ...], path: tuple[Any, ...]
) -> Any:
    """A body that takes the numbers of `outer` iterations around it ahead of all else, and in a loop its own behind its
    first `after` inputs, and gives the next one ahead of its results."""
    number, own, split = _jax.per_device(_jax.typeof(np.int32(0))), jaxpr.in_avals, outer + after
    own_numbers = 1 if step else 0

    def run(*args: Any) -> list[Any]:
        mine = args[split : split + own_numbers]
        each = Each(watch, [*args[:outer], *mine], lines, path)
        outs = each.run(jaxpr, [*args[outer:split], *args[split + own_numbers :]])
        return [*(x + step for x in mine), *outs]

    avals = [*[number] * outer, *own[:after], *[number] * own_numbers, *own[after:]]
    return _jax.trace_to_jaxpr(run, avals, like=jaxpr)
