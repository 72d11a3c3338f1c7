"""What the passes ask of effects that are not ours to begin with, as JAX's own callbacks: nothing, until they are taken
over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any


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
