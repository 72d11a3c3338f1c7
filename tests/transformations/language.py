"""What a row and a column of the table are, and the columns: all that is done to a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

Show = Callable[[str, Any], Any]
"""`show(place, x)` has an effect and returns `x`."""


@dataclasses.dataclass(frozen=True)
class Construct:
    """A program with effects, as a function of `show` and a number, and what it shows.

    Attributes:
        name: As it stands in the table.
        program: The program.
        once: The effects for x = 1.
        lanes: The effects under `vmap`, for x = 1 and x = 2.
        forward: The effects of the forward pass of a derivative, if a rule of the user's has others; once and in lanes.
        backward: Those of the backward pass.
        others: Effects under some transformations that are not the same as those under all others of their kind.
        refused: The transformations that JAX has not got for it, with or without effects.
        only: The transformations that are tried, if not all.
    """

    name: str
    program: Callable[[Show, Any], Any]
    once: str
    lanes: str
    _: dataclasses.KW_ONLY
    forward: tuple[str, str] | None = None
    backward: tuple[str, str] = ("", "")
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: Collection[str] = ()
    only: Collection[str] = ()


@dataclasses.dataclass(frozen=True)
class Transformation:
    """What is done to a program of one number.

    Attributes:
        name: As it stands in the table.
        apply: Makes a function of one array.
        argument: The array. The number is 1, or the numbers are 1 and 2 in two lanes.
        lanes: Whether there are two lanes.
        passes: Which effects there are: `"none"`, those of the program, of a `"forward"` pass, or of `"both"` passes.
    """

    name: str
    apply: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
    argument: Any
    _: dataclasses.KW_ONLY
    lanes: bool = False
    passes: str = "program"

    def expected(self, construct: Construct) -> str | None:
        """What the construct must show under it; None if it is not tried."""
        if self.name in construct.refused or (construct.only and self.name not in construct.only):
            return None
        if self.name in construct.others:
            return construct.others[self.name]
        if self.passes == "none":
            return ""
        if self.name == NOT_MAPPED:
            return " ".join(effect for effect in construct.once.split() for _ in range(2))
        shown = [construct.lanes if self.lanes else construct.once]
        if self.passes != "program":
            if construct.forward is not None:
                shown = [construct.forward[self.lanes]]
            if self.passes == "both":
                shown.append(construct.backward[self.lanes])
        return " ".join(filter(None, shown))


NOT_MAPPED = "`vmap`, x not mapped"
ONE, TWO = jnp.float32(1), jnp.array([1.0, 2.0])
_TWO_TANGENTS = jnp.array([1.0, 0.0])


def _in_one_lane(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For x = 1 and x = 2: only the second lane takes the branch, with the number 1."""
    return lambda x: jax.lax.cond(x > 1, lambda x: f(x - 1), lambda x: x * 3, x)


def _turn_of_one_lane(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For x = 1 and x = 2: only the second lane runs the loop, once, with the number 1."""
    return lambda x: jax.lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] - 1, f(c[0] - 1)), (x, x))[1]


TRANSFORMATIONS = [
    Transformation("`jit`", lambda f: f, ONE),
    Transformation("`vmap`", jax.vmap, TWO, lanes=True),
    Transformation("`vmap` of `vmap`", lambda f: jax.vmap(jax.vmap(f)), TWO[None], lanes=True),
    Transformation(NOT_MAPPED, lambda f: lambda x: jax.vmap(f, in_axes=None, axis_size=2)(x), ONE),
    Transformation("`jvp`", lambda f: lambda x: jax.jvp(f, (x,), (x,)), ONE, passes="forward"),
    Transformation("`linearize`", lambda f: lambda x: jax.linearize(f, x)[1](x), ONE, passes="forward"),
    Transformation("`jacfwd`", lambda f: jax.jacfwd(lambda x: f(x.sum())), _TWO_TANGENTS, passes="forward"),
    Transformation("`grad`", jax.grad, ONE, passes="both"),
    Transformation("`jacrev`", jax.jacrev, ONE, passes="both"),
    Transformation("`hessian`", lambda f: jax.hessian(lambda x: f(x.sum())), _TWO_TANGENTS, passes="both"),
    Transformation("`grad` of `checkpoint`", lambda f: jax.grad(jax.checkpoint(f)), ONE, passes="both"),
    Transformation("`vmap` of `grad`", lambda f: jax.vmap(jax.grad(f)), TWO, lanes=True, passes="both"),
    Transformation(
        "`grad` of `vmap`", lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()), TWO, lanes=True, passes="both"
    ),
    Transformation("`vmap`, in a branch of one lane", lambda f: jax.vmap(_in_one_lane(f)), TWO),
    Transformation("`vmap`, in a loop of one lane", lambda f: jax.vmap(_turn_of_one_lane(f)), TWO),
    Transformation(
        "`vmap` of `grad`, in a branch of one lane", lambda f: jax.vmap(jax.grad(_in_one_lane(f))), TWO, passes="both"
    ),
    Transformation(
        "`vmap` of `jvp`, in a loop of one lane",
        lambda f: jax.vmap(lambda x: jax.jvp(_turn_of_one_lane(f), (x,), (x,))),
        TWO,
        passes="forward",
    ),
    Transformation("`checkify`", lambda f: lambda x: checkify.checkify(f, checkify.all_checks)(x)[1], ONE),
    Transformation("`eval_shape`", lambda f: lambda x: (jax.eval_shape(f, x), x)[1], ONE, passes="none"),
]
"""What is done to each construct."""
