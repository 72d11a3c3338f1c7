"""Progress of loops inside compiled programs."""

from __future__ import annotations

import dataclasses
import functools
import numbers
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax, _removed
from effects._model.content import Content, Report, described_by
from effects._model.effect import Effect, host_effect
from effects._model.filter import OF_LINES, Filter, choose
from effects._model.line import fill
from effects._model.operand import holds_tracer, is_array, take_arguments
from effects._model.primitive import bind_where
from effects._model.record import Record
from effects._model.site import Site
from effects._model.where import Where, where_called
from effects._model.wire import EPOCH, PHASE, PLAIN_THREAD, STREAM, in_region, thread_of
from effects.dispatch.runtime.outputs import Output
from effects.extensions.progress import PROGRESS
from effects.extensions.progress.bars import bars

MSG_NUMBER = "`{call}` at {where} was given {name}={value}. {rule}. Pass, say, `{example}`."
RULE_TOTAL = "A total is a whole number, zero or more, which may be computed in the program, or None: not known"
RULE_DONE = "The number of steps that are done is a whole number, zero or more, which may be computed in the program"
RULE_METRIC = "A metric is a number, or an array of at most 16, and stands behind the bar"
RULE_EVERY = "A bar shows one of every so many steps: a positive whole number that is known while tracing, or None"
MSG_DESCRIPTION = (
    "`{call}` at {where} was given the description {value}. A description is a string that is known while tracing. "
    "Pass, say, `description='train'`."
)


@described_by("progress")
@dataclasses.dataclass(frozen=True)
class Steps(Content):
    """The progress of a loop, as the content of a record."""

    description: str
    bar: str  # the line of its call, the identity among the program's bars
    in_program: bool  # True if it ends with its program

    shows_newest = True

    @property
    def title(self) -> str:
        return self.description or "fx.progress"

    @property
    def labels(self) -> Mapping[str, Any]:
        return {"description": self.description}

    def text(self, record: Record) -> str:
        done, total, metrics = _steps(record)
        steps = f"{done}" if total is None else f"{done}/{total}"
        steps = f"{self.description}: {steps}" if self.description else steps
        return f"{steps} {metrics}" if metrics else steps

    def show(self, records: Iterable[Record], write: Output, report: Report) -> None:
        of_one = [*records]
        if not of_one:
            return
        record = of_one[0]
        device = record.device if in_region(record.token[PHASE]) else -1
        thread, epoch = thread_of(record.token[STREAM]), record.token[EPOCH]
        owner = (thread, epoch) if self.in_program and thread != PLAIN_THREAD else None
        description = ", ".join(filter(None, [self.description, f"device {device}" * (device >= 0)]))
        key, lanes = (thread, self, device), {record.lane: _steps(record) for record in of_one}
        write.show(functools.partial(bars.update, owner=owner, key=key, description=description, lanes=lanes))


def _steps(record: Record) -> tuple[int, int | None, str]:
    """The steps done, the total if it is known, and the metrics as text."""
    fields = record.fields
    metrics = [f"{name}={_metric(value)}" for name, value in fields.get("metrics", {}).items()]
    total = fields.get("total")
    return int(fields["done"]), None if total is None else int(total), ", ".join(metrics)


def _metric(value: Any) -> str:
    is_inexact = jnp.issubdtype(np.asarray(value).dtype, np.inexact)
    return " ".join(fill("{:.4g}" if is_inexact else "{}", (value,), {}).split())


class Progress:
    """A bar, as `fx.progress` makes it.

    Example:
        >>> import effects as fx
        >>> bar = fx.progress(2, "files")
        >>> for done in (1, 2):
        ...     bar.update(done, loss=1 / done)
        >>> fx.effects_barrier()  # doctest: +ELLIPSIS
        files: 50% 1/2 in ..., loss=1
        files: 100% 2/2 in ..., loss=0.5
    """

    def __init__(
        self,
        total: Any,
        description: str,
        every: int | None,
        effect: Effect,
        call: str,
        where: Where,
        asked: Filter = OF_LINES,
        when: Any = None,
    ):
        if total is not None:
            _check_number(total, call, where, "total", RULE_TOTAL, "total=1000")
        if every is not None and (not isinstance(every, numbers.Integral) or isinstance(every, bool) or every <= 0):
            shown = errors.shown(every)
            raise errors.value_error(
                MSG_NUMBER.format(
                    call=call, where=where, name="every", value=shown, rule=RULE_EVERY, example="every=10"
                )
            )
        if not isinstance(description, str) or holds_tracer(description):
            raise errors.type_error(MSG_DESCRIPTION.format(call=call, where=where, value=errors.shown(description)))
        self.total: Any = total
        self.every: int | None = None if every is None else int(every)
        self._effect = effect
        self._description, self._bar = description, str(where)
        self._asked, self._when = asked, when

    @_jax.for_users
    def update(self, done: Any, **metrics: Any) -> None:
        """Sets the number of finished steps. Call it in every iteration of a loop: the program shows some of them.

        Args:
            done: The number of steps done since the beginning; it may be computed in the program.
            **metrics: The values behind the bar, by name: numbers, and arrays of a few, which may be computed too.
        """
        where = where_called()
        _check_number(done, "update", where, "done", RULE_DONE, "bar.update(i + 1)")
        metrics = {name: _take_metric(x, where, name) for name, x in metrics.items()}
        is_shown = self._is_shown(done)
        if isinstance(is_shown, _jax.Tracer):
            jax.lax.cond(
                is_shown, lambda *given: self.record(given[0], where, given[1]), lambda *_: None, done, metrics
            )
        elif is_shown:
            self.record(done, where, metrics)

    def _is_shown(self, done: Any) -> Any:
        if self.every == 1:
            return True
        if self.total is None and self.every is None:  # one of 128 between powers of two
            if not isinstance(done, _jax.Tracer):
                return int(done) & ((1 << max(0, int(done).bit_length() - 8)) - 1) == 0
            bits = jnp.maximum(31 - jax.lax.clz(jnp.int32(done)), 7) - 7
            return done & ((1 << bits) - 1) == 0
        is_last = False if self.total is None or not _may_be(self.total, done) else done == self.total
        return (done % self.steps() == 0) | is_last

    def steps(self) -> Any:
        """The number of steps from one that is shown to the next, in a loop with a total."""
        if self.every is not None:
            return self.every
        total: Any = self.total
        largest = max if isinstance(total, int) else jnp.maximum
        return largest(1, total // _SHOWN + (total % _SHOWN > 0))  # an unsigned total cannot be negative

    def record(self, done: Any, where: Where, metrics: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Records the number of steps done, with metrics."""
        fields = {"done": done} if self.total is None else {"done": done, "total": self.total}
        fields |= {"metrics": {**metrics}} if metrics else {}
        operands, leaves, tree = take_arguments((), fields, "fx.progress", where)
        content = Steps(self._description, self._bar, not _jax.is_outside_of_traces())
        site = Site(self._effect, content, leaves, tree, where, filter=self._asked)
        bind_where(self._when, operands, site, "fx.progress")


def _may_be(total: Any, done: Any) -> bool:
    """Returns True if `done` can reach the total, in the type that it is counted in."""
    counted = getattr(done, "dtype", None)
    return not isinstance(total, int) or counted is None or total <= jnp.iinfo(counted).max


_SHOWN = 200
"""The number of steps that a loop with a total shows, unless the user gives `every`."""


@_jax.for_users
@_removed.without_arguments("fx.progress", "lanes")
def progress(
    total: Any = None,
    description: str = "",
    every: int | None = None,
    *,
    ordered: bool = True,
    level: int | str = "info",
    logger: str | None = None,
    first: int | None = None,
    min_seconds: float | None = None,
    when: Any = None,
    effect: Effect | str | None = None,
) -> Progress:
    """A bar that loops inside compiled programs drive, and that other code may drive too. Under `vmap` it shows the
    slowest lane, and under `shard_map` each device has its own.

    Call `update` in each iteration. On a terminal rich draws the bar below the printed lines, and in a notebook in the
    output of the cell; other outputs get a line for each tenth. `fx.scan_with_progress` and its siblings run loops that
    are as fast as without a bar.

    Args:
        total: The number of steps; it may be computed in the program. None: not known.
        description: The text ahead of the bar.
        every: The number of steps from one report of the program to the next. By default there are 200 reports, so that
            a loop is hardly slower.
        ordered: True if steps come in program order with other effects.
        level: The severity: a number as for `logging`, or a name such as `"warning"`. A step is left out if that is
            below the level that the logger has when the program gets there.
        logger: The name of the logger whose level counts, `effects` by default.
        first: The most reports of the program, on each device of a `jax.shard_map`.
        min_seconds: The least number of seconds from one report to the next. So the last step may be missing.
        when: A boolean, which the program may compute: where it is false no step is shown.
        effect: A registered `fx.Effect`, or its name, in place of `progress`. Its order domain is then theirs.

    Returns:
        The bar; `update(done, **metrics)` sets the number of finished steps, and the values after the bar.

    Raises:
        TypeError, ValueError: while tracing, if one of these is not as described.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... def train(x):
        ...     bar = fx.progress(20, "train")
        ...     def step(i, x):
        ...         bar.update(i + 1)
        ...         return x * 0.9
        ...     return jax.lax.fori_loop(0, 20, step, x)
        >>> with fx.capture(suppress=True) as records:
        ...     _ = train(1.0)
        >>> records[-1].text
        'train: 20/20'
    """
    where = where_called(2)  # past `without_arguments`
    asked = choose("fx.progress", where, level, logger, None, first, min_seconds)
    chosen = host_effect("fx.progress", where, effect, PROGRESS, ordered)
    return Progress(total, description, every, chosen, "fx.progress", where, asked, when)


def _take_metric(x: Any, where: Where, name: str) -> Any:
    """Returns a metric without its derivative. Refuses all but a number or a few of them."""
    if _jax.is_reference(x):
        x = x[...]  # its present value
    dtype = getattr(x, "dtype", None)
    is_number = isinstance(x, (int, float, complex)) if dtype is None else isinstance(x, np.generic) or is_array(x)
    is_number = is_number and (dtype is None or jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_))
    if not is_number or np.size(x) > _FEW:
        shown = errors.shown(x) if dtype is None else f"an array of {dtype}{list(x.shape)}"
        example = f"bar.update(i, {name}={name}.mean())"
        message = MSG_NUMBER.format(
            call="update", where=where, name=name, value=shown, rule=RULE_METRIC, example=example
        )
        raise errors.type_error(message)
    return x if dtype is None else jax.lax.stop_gradient(x)


_FEW = 16
"""The most numbers that a metric may have."""


def _check_number(x: Any, call: str, where: Where, name: str, rule: str, example: str) -> None:
    """Refuses values that are not whole numbers."""
    is_number = isinstance(x, (numbers.Integral, jax.Array, np.ndarray)) and not isinstance(x, bool)
    is_number = is_number and getattr(x, "shape", ()) == () and jnp.issubdtype(getattr(x, "dtype", int), jnp.integer)
    if not is_number or (not isinstance(x, _jax.Tracer) and x < 0):
        shown = errors.shown(x)
        raise errors.type_error(
            MSG_NUMBER.format(call=call, where=where, name=name, value=shown, rule=rule, example=example)
        )
