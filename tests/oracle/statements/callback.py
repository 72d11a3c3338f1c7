"""Callbacks: the forms in which they are given their operands, and in which they return their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle.jax_ import Scope, assign, fold, register, stacked, value_of
from tests.oracle.language import DOMAINS, EFFECTS, MODULUS, Expression, State
from tests.oracle.source import Source


@dataclass(frozen=True)
class Callback:
    """A call of a Python function, which shows its operands and does its `actions`.

    What a sync one returns is folded into `target`. If it `remembers`, that depends on every such call before it.
    """

    kind: str
    label: str
    operands: tuple[Expression, ...]
    layout: str  # how the operands are passed, see `_arguments`
    pass_record: bool
    actions: tuple[str, ...]
    remembers: bool
    fails_at: int = 0  # the call that raises, counted from 1
    target: str = ""  # of a sync one
    results: tuple[tuple[str, int], ...] = ()  # (dtype, length) of each; no length: a scalar
    structure: str = "leaf"  # how the results are put together, see `_structured`
    returns: str = "numpy"  # numpy, python or jax: what the function returns

    @property
    def awaited(self) -> bool:
        return "sync" in self.kind

    def kinds(self) -> tuple[str, ...]:
        found = [self.kind, f"args_{self.layout}", *[f"action_{action}" for action in self.actions]]
        if self.awaited:
            found += [f"results_{self.structure}", f"returns_{self.returns}", *[f"result_{d}" for d, _ in self.results]]
        found += ["record"] * self.pass_record + [f"fails_{self.kind}"] * bool(self.fails_at)
        return tuple(found)

    def python(self, out: Source) -> None:
        call = f"{self.kind}({', '.join([repr(self.label), *(operand.python() for operand in self.operands)])})"
        notes = [self.layout, *["record"] * self.pass_record, *self.actions, *["remembers"] * self.remembers]
        if self.awaited:
            types = ", ".join(f"{dtype}[{n}]" if n else dtype for dtype, n in self.results)
            notes.append(f"returns {self.structure} of ({types}) by {self.returns}")
        if self.fails_at:
            notes.append(f"raises in call {self.fails_at}")
        note = f"  # {'; '.join(notes)}"
        out.line((f"{self.target} = fold({call}, {self.target})" if self.awaited else call) + note)

    def numbers(self, value: int) -> list[int]:
        """What the results are made of: one number for each element."""
        found = []
        for dtype, length in self.results:
            for _ in range(length or 1):
                value = (value + 7) % MODULUS
                found.append(value % 2 if dtype == "bool" else value)
        return found

    def jax(self, scope: Scope, state: State) -> State:
        host = scope.host

        def function(*args: Any, **kwargs: Any) -> Any:
            lane: tuple[int, ...] = ()
            grid = None
            if self.pass_record:
                record = kwargs.pop("record")
                assert record.effect == options.get("effect", "callback") and record.text.startswith(
                    f"{self.label}("
                ), record
                lane, grid = record.lane, record.grid
            return self._returned(host.call(self, [int(leaf) for leaf in self._leaves(args, kwargs)], lane, grid))

        function.__qualname__ = function.__name__ = self.label
        args, kwargs = self._arguments([operand.jax(scope, state) for operand in self.operands])
        options: dict[str, Any] = {"pass_record": True} if self.pass_record else {}
        if self.kind in DOMAINS:
            options["effect"] = self.kind
        shapes = self._shapes() if self.awaited else None
        if self.kind.startswith("jax_"):
            outs = scope.runner.jax_callback(self.kind, function, shapes, *args, **kwargs)
        else:
            outs = scope.runner.callback(function, shapes, *args, ordered=EFFECTS[self.kind], **options, **kwargs)
        if not self.awaited:
            assert outs is None
            return state
        assert jax.tree.structure(outs) == jax.tree.structure(shapes)
        values = []
        for (dtype, _), out in zip(self.results, jax.tree.leaves(outs), strict=True):
            assert out.dtype == dtype, (out, dtype)
            if "float" in dtype:
                out = out * np.dtype(dtype).type(4)
            values.append(jnp.ravel(lax.convert_element_type(out, np.int32)))
        folded = fold(jnp.concatenate([*values, jnp.zeros(0, np.int32)]), register(state, self.target))
        return assign(state, self.target, folded)

    def _arguments(self, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.layout == "flat":
            return tuple(values), {}
        if self.layout == "keywords":
            return (self.label,), {f"x{j}": value for j, value in enumerate(values)}
        if self.layout == "array":
            return (stacked(values),), {}
        halves = [lax.convert_element_type(value_of(value), np.float16) for value in values[1:]]
        return ({"first": values[:1], "rest": (halves, None)}, "text"), {"empty": ()}

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The operands' values in what the function was given."""
        if self.layout == "flat":
            assert not kwargs
            leaves = list(args)
        elif self.layout == "keywords":
            assert args == (self.label,), args
            leaves = [kwargs[f"x{j}"] for j in range(len(kwargs))]
        elif self.layout == "array":
            (array,) = args
            assert array.shape == (len(self.operands),) and array.dtype == np.int32, array
            leaves = list(array)
        else:
            tree, text = args
            assert (text, kwargs) == ("text", {"empty": ()}) and tree["rest"][1] is None, (args, kwargs)
            leaves = [*tree["first"], *tree["rest"][0]]
            assert all(leaf.dtype == np.float16 for leaf in tree["rest"][0]), args
        assert all(isinstance(leaf, np.ndarray | np.generic) and leaf.shape == () for leaf in leaves), leaves
        assert not any(leaf.flags.writeable for leaf in leaves), leaves
        return leaves

    def _shapes(self) -> Any:
        return self._structured([jax.ShapeDtypeStruct((n,) * bool(n), dtype) for dtype, n in self.results])

    def _structured(self, leaves: list[Any]) -> Any:
        if self.structure == "leaf":
            return leaves[0]
        if self.structure == "tuple":
            return tuple(leaves)
        return {"first": leaves[0], "rest": [leaves[1:], ()]}

    def _returned(self, numbers: list[int]) -> Any:
        """The results in the form that was asked for. What a queued callback returns may be anything."""
        if not self.awaited:
            return numbers
        leaves: list[Any] = []
        rest = iter(numbers)
        for dtype, length in self.results:
            scale = 4 if "float" in dtype else 1
            values = [next(rest) / scale if scale > 1 else next(rest) for _ in range(length or 1)]
            if self.returns == "python" and not length:
                leaves.append(bool(values[0]) if dtype == "bool" else values[0])
                continue
            array = np.array(values if length else values[0], dtype)
            leaves.append(jnp.asarray(array) if self.returns == "jax" else array)
        return self._structured(leaves)
