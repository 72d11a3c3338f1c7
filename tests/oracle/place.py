"""Where decisions come from, and where a statement is generated."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis import strategies as st

from tests.oracle.expressions import names
from tests.oracle.statements.derivatives import BACKWARD, FORWARD

if TYPE_CHECKING:
    from tests.oracle.language import Expression, T


class Draw(Protocol):
    """Where decisions come from. Simpler choices come first, so that hypothesis shrinks towards them."""

    def integer(self, low: int, high: int) -> int: ...

    def choice(self, options: Sequence[T]) -> T: ...


@dataclass(frozen=True)
class RandomDraw:
    rng: random.Random

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)


@dataclass(frozen=True)
class HypothesisDraw:
    draw: Callable[[st.SearchStrategy[Any]], Any]

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))


@dataclass(frozen=True)
class Place:
    """Where a statement is generated: what is visible, and what JAX allows there."""

    depth: int  # levels that may still be nested
    values: tuple[str, ...] = ("n",)
    refs: tuple[str, ...] = ()
    may_make: frozenset[str] = frozenset({"new_ref", "freeze", "run_state"})
    lanes: bool = False  # whether a `vmap` may be around
    known: tuple[str, ...] = ("n",)  # there: the values of which it is known along which axes they are mapped
    state: bool = True  # whether the registers may be used
    forward: bool = False  # whether a derivative that goes forward may be around,
    backward: bool = False  # or one that goes backward,
    lanes_back: bool = False  # or one that does through lanes
    may_go_back: bool = True  # whether there may be effects of that
    may_call: bool = True

    def inside(self, *values: str) -> Place:
        return dataclasses.replace(self, depth=self.depth - 1, values=self.values + values)

    def inside_branch(self, predicate: Expression) -> Place:
        """One of several branches: JAX maps what comes from outside along the axes of the predicate, too."""
        return self if self.knows(predicate) else dataclasses.replace(self, known=())

    def inside_predicate(self, *values: str) -> Place:
        """Under `vmap`, where it may differ between lanes, JAX takes no refs."""
        inner = self.inside(*values)
        return inner.without_refs(may_make=inner.may_make) if self.lanes else inner

    def inside_other_branch(self) -> Place:
        """All branches but the last. Where lanes differ, the order of what happens backward in several is not said."""
        inner = self.inside_predicate()
        return dataclasses.replace(inner, may_go_back=self.may_go_back and not self.lanes_back)

    def inside_derivative(self, form: str) -> Place:
        # JAX runs a `while` again for what `linearize` gives.
        backward = form in (*BACKWARD, "linearize")
        inner = dataclasses.replace(self.inside(), forward=form in FORWARD, backward=backward)
        return dataclasses.replace(inner, lanes_back=False, may_go_back=True).without_refs()

    def inside_rule(self) -> Place:
        """A rule for differentiating: JAX may trace it after what is around it, so it sees the state alone."""
        return dataclasses.replace(
            self.inside(),
            values=(),
            known=(),
            lanes=True,
            forward=True,
            backward=True,
            lanes_back=False,
            may_call=False,
        ).without_refs()

    def inside_vmap(self, lane: str, is_known: bool) -> Place:
        """`is_known`: whether it is known along which axes of the `vmap`s around the lane's own value is mapped."""
        known = (self.known if self.lanes else self.values) + (lane,) * is_known
        inner = dataclasses.replace(self.inside(lane), lanes=True, known=known, lanes_back=self.backward)
        return inner.without_refs(may_make=self.may_make - {"run_state"})  # which JAX cannot batch

    def knows(self, *expressions: Expression) -> bool:
        """Whether it is known along which axes of the `vmap`s around these are mapped."""
        return not self.lanes or {*names(expressions)} <= {*self.known}

    def with_known_values(self) -> Place:
        """The place, for operands of which it must be known along which axes of the `vmap`s around they are mapped."""
        return dataclasses.replace(self, values=self.known, refs=(), state=False)

    def without_refs(self, *, may_make: Iterable[str] = ()) -> Place:
        return dataclasses.replace(self, refs=(), may_make=self.may_make & frozenset(may_make))
