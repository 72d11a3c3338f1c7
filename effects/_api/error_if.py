"""`fx.error_if`: a program ends where its values are wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._api.check import CHECK, check_error, truth_of
from effects._model.after import after
from effects._model.arguments import take_arguments
from effects._model.content import described_by
from effects._model.format import check_format
from effects._model.functions import HostFunction, register_callback
from effects._model.host_call import HostCall
from effects._model.line import Line
from effects._model.operand import Operand
from effects._model.primitive import effect_p
from effects._model.record import Record
from effects._model.site import Site
from effects._model.where import Where, where_called

T = TypeVar("T")

MSG_NOT_AN_ARRAY = (
    "`fx.error_if` at {where} was given {value} of type `{type}` as the value that it returns, or in it. What it "
    "returns is there only if the program goes on, which arrays and numbers can be. Pass the arrays that the program "
    "goes on with."
)
MSG_ENDED = f"{{message}} ({{place}}). {errors.ENDED}"
MSG_ENDED_ELSEWHERE = (
    "The predicate is true on another device, whose error has the values of {fmt!r} ({where}, in `{function}`). "
    f"{errors.ENDED} Devices that wait for each other all end it."
)
RULE, EXAMPLE = "none of which may hold", "x = fx.error_if(x, x < 0, 'x = {}', x)"
_NOTHING = Operand((), np.dtype(np.int32), np.dtype(np.int32))


@register_callback("effects.error_if")
def _end(*args: Any, record: Record, **kwargs: Any) -> NoReturn:
    raise check_error(record, MSG_ENDED)


@described_by("error_if")
@dataclasses.dataclass(frozen=True)
class End(HostCall):
    """The message of `fx.error_if`, and the function that ends the program with it."""

    message: Line = dataclasses.field(kw_only=True)
    all_end: bool = dataclasses.field(kw_only=True, default=False)
    """Whether all devices of a region come here if the predicate is true on one: those with no lane here end too."""

    @property
    def title(self) -> str:
        return "fx.error_if"

    @property
    def raises_itself(self) -> bool:
        return True

    def describe(self) -> dict[str, Any]:
        described = {"error_if": self.message.describe(), **super().describe()}
        return {**described, "all_end": True} if self.all_end else described

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> End:
        call = HostCall.from_description(description, read_operand)
        known = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
        message = Line.from_description(description["error_if"], read_operand)
        return cls(**known, message=message, all_end=description.get("all_end", False))

    @property
    def comes_without_lanes(self) -> bool:
        return self.all_end

    def without_lanes(self, where: Where) -> errors.CheckError:
        text = MSG_ENDED_ELSEWHERE.format(where=where, function=where.function, fmt=self.message.fmt)
        failure = errors.CheckError(text, self.message.fmt, str(where))
        failure.effect = CHECK.name
        return failure

    @property
    def labels(self) -> Mapping[str, Any]:
        return self.message.labels

    def text(self, record: Record) -> str:
        return self.message.text(record)


@_jax.for_users
def error_if(x: T, predicate: Any, fmt: str, /, *args: Any, **kwargs: Any) -> T:
    """`x`, or the program ends here: where a predicate is true, the call of the program raises `CheckError`.

    The program waits at this point, in program order, only if the predicate is true. Effects that come before are
    carried out, those after are not. What uses the returned value runs only if the program goes on.

    In a `jax.shard_map` with collectives the devices ask each other, in one collective more, and all end the program if
    one does. Inside of a `cond` or `while` they do not, since not all devices may come there.

    Args:
        x: What is returned: a pytree of arrays and numbers. Derivatives pass through.
        predicate: A boolean, or an array of booleans, none of which may hold. Under `vmap` each lane has its own.
        fmt: The message, a format as for `fx.print`.
        *args: Values for the format's positional fields: pytrees of arrays; strings, numbers and None as they are,
            and of other objects the text that they have while tracing.
        **kwargs: Values for the format's named fields.

    Returns:
        `x`.

    Raises:
        TypeError: while tracing, if the predicate is not boolean, an argument is an object with a traced value inside
            that the format shows, or `x` has something else than arrays and numbers.
        FormatError: while tracing, if format and arguments do not fit together.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... def root(x):
        ...     x = fx.error_if(x, x < 0, "x = {} has no root", x)
        ...     return jax.numpy.sqrt(x)
        >>> root(4.0)
        Array(2., dtype=float32, weak_type=True)
        >>> try:
        ...     root(-1.0)
        ... except fx.CheckError as error:
        ...     print(error.message)
        x = -1.0 has no root
    """
    where = where_called()
    is_wrong = truth_of(predicate, where, lambda x: x.any(), "fx.error_if", RULE, EXAMPLE)
    leaves, structure = jax.tree.flatten(x)
    for leaf in leaves:
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)) or _jax.is_reference(leaf):
            shown = errors.shown(leaf)
            raise TypeError(MSG_NOT_AN_ARRAY.format(where=where, value=shown, type=type(leaf).__name__))
    operands, arguments, tree = take_arguments(args, kwargs, "fx.error_if", where, takes_objects=True)
    fmt, arguments, of_record = check_format("fx.error_if", fmt, arguments, tree, where)
    function, one = HostFunction.of(_end), jax.tree.structure(0)
    content = End(function, (_NOTHING,), one, pass_record=True, message=Line(fmt, of_record=of_record))
    site = Site(CHECK, content, arguments, tree, where)
    if is_wrong is False:
        return x

    def end(*operands: Any) -> Any:
        return effect_p.bind(*operands, site=site)[0]

    operands = [*map(jax.lax.stop_gradient, operands)]
    if is_wrong is True:
        ended = end(*operands)
    else:
        ended = jax.lax.cond(is_wrong, end, lambda *_: _jax.as_per_device(jnp.int32(0)), *operands)
    return jax.tree.unflatten(structure, after([ended], [jnp.asarray(leaf) for leaf in leaves]))
