"""One pass over a jaxpr: it sends values of its own through every equation, and into the bodies that equations hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from effects import _jax
from effects.lowering.holders import Extra, find_holder


class Pass(Protocol):
    """What a pass does with one equation. How it goes through a jaxpr, and how bodies become bodies that have its
    values, is the same for all: see `send`.

    A pass sends constants, which bodies take, and state, which they take and give back. It is a value: what two passes
    that are equal make of a body is one jaxpr, which is made once.
    """

    def bind(self, eqn: Any, operands: list[Any], consts: Sequence[Any], state: list[Any]) -> Sequence[Any] | None:
        """The results of an equation that the pass binds itself, having changed `state` in place. None: of any other,
        which is left as it is unless its bodies are entered."""
        ...

    def enters(self, eqn: Any) -> bool:
        """Whether the bodies of an equation get the values, if a holder says how."""
        ...


def send(
    through: Pass, jaxpr: Any, args: Sequence[Any], consts: Sequence[Any] = (), state: Sequence[Any] = ()
) -> tuple[list[Any], list[Any]]:
    """Evaluates a jaxpr with a pass. Returns the state behind it, and its results."""
    now = list(state)

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if (outs := through.bind(eqn, operands, consts, now)) is not None:
            return outs
        if not through.enters(eqn) or find_holder(eqn.primitive) is None:
            return _jax.bind(eqn, operands)
        return send_into(through, eqn, operands, consts, now)

    outs = _jax.interpret(_jax.closed_jaxpr(jaxpr), args, apply)
    return now, outs


def send_into(
    through: Pass, eqn: Any, operands: Sequence[Any], consts: Sequence[Any] = (), state: list[Any] | None = None
) -> Sequence[Any]:
    """Binds an equation that has a holder, with a pass in its bodies. Changes `state` in place."""
    holder = find_holder(eqn.primitive)
    assert holder is not None
    now = [] if state is None else state
    extra = Extra(
        eqn.primitive.bind,
        lambda body, after: rewritten(through, body, consts, now, after),
        lambda body, state, args: send(through, body, args, consts, state),
        consts=consts,
        state=now,
    )
    outs = holder(extra, *operands, **eqn.params)
    now[:] = extra.state
    return outs


def rewritten(through: Pass, body: Any, consts: Sequence[Any] = (), state: Sequence[Any] = (), after: int = 0) -> Any:
    """A body that takes the constants ahead of all else, and the state behind its first `after` inputs, and gives the
    state ahead of its results."""
    return rewritten_for(through, body, map(_jax.typeof, consts), map(_jax.typeof, state), after)


def rewritten_for(
    through: Pass, body: Any, consts: Iterable[Any] = (), state: Iterable[Any] = (), after: int = 0
) -> Any:
    """The same for constants and state of these types."""
    return _rewritten(_jax.closed_jaxpr(body), through, tuple(consts), (types := tuple(state)), after if types else 0)


@_jax.weakref_lru_cache
def _rewritten(jaxpr: Any, through: Pass, consts: tuple[Any, ...], state: tuple[Any, ...], after: int) -> Any:
    first = len(consts)
    behind = first + after
    end = behind + len(state)

    def body(*args: Any) -> list[Any]:
        now, outs = send(through, jaxpr, [*args[first:behind], *args[end:]], args[:first], args[behind:end])
        return [*now, *outs]

    own = jaxpr.in_avals
    return _jax.trace_to_jaxpr(body, [*consts, *own[:after], *state, *own[after:]], like=jaxpr)


# What the passes ask of effects that are not ours to begin with, as JAX's own callbacks: nothing, until they are taken
# over.


class Others:
    """How effects of others become ours, and theirs again. This one leaves all as it is."""

    def tracing(self) -> AbstractContextManager[Any]:
        """In force while a function is traced for `fx.jit`."""
        return nullcontext()

    def tracing_inside(self) -> AbstractContextManager[Any]:
        """In force while a function of `fx.jit` is called under another trace."""
        return nullcontext()

    def take_over(self, jaxpr: Any) -> Any:
        """A jaxpr, with constants, in which their effects are ours wherever tokens can come to them."""
        return jaxpr

    def are_all_of(self, jaxprs: Sequence[Any]) -> bool:
        """Whether these have effects of ours, and all of them were theirs."""
        return False

    def give_back(self, eqn: Any) -> Any:
        """An equation in whose jaxprs their effects are theirs again."""
        return eqn


_others = Others()


def others() -> Others:
    """What is in force."""
    return _others


def set_others(new: Others) -> None:
    global _others
    _others = new
