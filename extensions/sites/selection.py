"""`fx.sites`: the lines with effects of this process, and switches for them."""

from __future__ import annotations

import dataclasses
import fnmatch
import io
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Self, overload

import rich.console
import rich.markup
import rich.table

from effects import _errors as errors
from effects._model.effect import effect_names
from effects._model.where import Where
from effects.extensions.sites.lines import Pattern, Switch, show_every, show_from, turn
from effects.lowering.sites import Line, LineFilter, known_sites

MSG_NONE = (
    "No site of this process is one of {said}. A line becomes a site when a program that contains it is compiled. Call "
    "the program first, or correct the pattern: there are sites in {files}."
)
MSG_FUNCTION = (
    "`fx.sites` was given function={function}. It is the name of a function, in which `*` stands for anything. Write, "
    "say, `fx.sites(function='layer*')`."
)
MSG_RESULTS = (
    "`{call}` cannot change {said}. Their programs wait for results each time, so that none may be left out. Select "
    "others, say `fx.sites(effect='print')`."
)
MSG_NO_LEVEL = (
    "`fx.sites(...).level` cannot change {said}. A level counts for lines, and of other effects for those whose call "
    "has `level=`. Add it there, or use `off()`."
)


@dataclasses.dataclass(frozen=True)
class SiteInfo:
    """A line with an effect.

    Attributes:
        where: The line: `(file, line, function)`.
        effect: The name of the effect.
        title: The title in messages: a format, an event, the name of a function.
        count: The number of effects that devices have reached. An effect that all devices share counts once.
        shown: The number of these that were shown.
        filter: The filter now, in words.
    """

    where: Where
    effect: str
    title: str
    count: int
    shown: int
    filter: str


class Sites(Sequence[SiteInfo]):
    """Lines with effects, as `fx.sites` selects them; `print` shows a table.

    Changes of their filters act at once, also in programs that run. As a context manager it restores the filters at the
    end, as they were before the first change.

    Example:
        >>> import effects as fx
        >>> f = fx.jit(lambda x: fx.print("x = {}", x))
        >>> f(1.0)
        >>> with fx.sites(effect="print").off():
        ...     f(2.0)
        ...     fx.effects_barrier()
        x = 1.0
    """

    def __init__(self, pattern: Pattern | None, effects: frozenset[str] | None, function: str | None, said: str):
        self._pattern, self._effects, self._function, self._said = pattern, effects, function, said
        self._before: list[tuple[LineFilter, tuple[Any, ...]]] = []

    def _lines(self) -> list[tuple[Line, LineFilter]]:
        """The selected lines whose counts are kept, also while no program has them."""
        lines = [each for each in list(known_sites.filters.items()) if self._has(each[0])]
        return sorted(lines, key=lambda each: each[0][1:3])

    def _has(self, line: Line) -> bool:
        name = line.function.rpartition(".")[2]
        return (
            (self._effects is None or line.effect in self._effects)
            and (self._pattern is None or self._pattern.names(line))
            and (self._function is None or any(fnmatch.fnmatchcase(of, self._function) for of in (line.function, name)))
        )

    @overload
    def __getitem__(self, index: int) -> SiteInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[SiteInfo]: ...
    def __getitem__(self, index: int | slice) -> SiteInfo | list[SiteInfo]:
        return [*self][index]

    def __iter__(self) -> Iterator[SiteInfo]:
        return (_info(line, known) for line, known in self._lines())

    def __len__(self) -> int:
        return len(self._lines())

    def off(self) -> Self:
        """Shows no effects of these lines."""
        return self._change("off", turn(False))

    def on(self) -> Self:
        """Shows effects of these lines again, as far as the rest of their filters lets them."""
        return self._change("on", turn(True))

    def every(self, n: int) -> Self:
        """Shows one of every `n` effects, in place of the `every` of the line."""
        return self._change("every", show_every(n, "`fx.sites(...).every`"))

    def level(self, level: int | str) -> Self:
        """Shows effects of this level or a higher one, in place of the logger's level. Effects without a level stay."""
        return self._change("level", show_from(level, "`fx.sites(...).level`"))

    def _change(self, name: str, switch: Switch) -> Self:
        lines = self._lines()
        if not lines:
            raise errors.value_error(self._none())
        chosen = [known for _, known in lines if known.can_be_switched]
        if not chosen:
            raise errors.value_error(MSG_RESULTS.format(call=f"fx.sites(...).{name}", said=self._said))
        if name == "level" and not any(known.has_level for known in chosen):
            raise errors.value_error(MSG_NO_LEVEL.format(said=self._said))
        for known in chosen:
            if all(known is not other for other, _ in self._before):
                self._before.append((known, known.state))
            switch(known)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for known, state in self._before:
            known.state = state
        self._before.clear()

    def _none(self) -> str:
        files = sorted({line.file for line in list(known_sites.filters)})
        return MSG_NONE.format(said=self._said, files=", ".join(files[:5]) or "no file")

    def __rich__(self) -> rich.table.Table | str:
        if not (rows := [*self]):
            return self._none()
        table = rich.table.Table("site", "effect", "what", "count", "shown", "filter")
        for row in rows:
            shown = row.title if len(row.title) <= _WIDTH else f"{row.title[:_WIDTH]}..."
            cells = str(row.where), row.effect, shown, f"{row.count:,}", f"{row.shown:,}", row.filter
            table.add_row(*map(rich.markup.escape, cells))
        return table

    def __repr__(self) -> str:
        file = io.StringIO()
        rich.console.Console(file=file, width=_COLUMNS, color_system=None).print(self.__rich__(), markup=False)
        return file.getvalue().rstrip("\n")


_WIDTH, _COLUMNS = 40, 140


def _info(line: Line, known: LineFilter) -> SiteInfo:
    count, shown = known.native.counts()
    where = Where(line.file, line.line, line.function)
    return SiteInfo(where, line.effect, line.title, count, shown, _in_words(known))


def _in_words(known: LineFilter) -> str:
    if not known.can_be_switched:
        return "has results"
    native, line_filter = known.native, known.line_filter
    words = [] if native.on else ["off"]
    if not native.level_allows:
        words.append("below its level")
    if known.least is not None:
        words.append(f"from {logging.getLevelName(known.least).lower()} on")
    words += [f"every {native.every}"] * (native.every != 1)
    words += [f"first {native.first}"] * (native.first is not None)
    words += [f"every {native.min_seconds:g} s at most"] * (native.min_seconds != 0)
    words += [f"of {line_filter.logger}"] * (line_filter.logger != "effects")
    return ", ".join(words) or "all"


def sites(pattern: str | None = None, *, effect: Any = None, function: str | None = None) -> Sites:
    """The lines with effects of this process: the number of effects that devices have reached, and their filter.

    A line is here from when the first program that has it is compiled, or it is called outside of programs. It stays
    when that program is gone, for as long as its counts are kept.

    Args:
        pattern: A file or the end of its path, as `"train.py"` or `"models/*.py"`, with a line or without:
            `"train.py:31"`. None: all.
        effect: The name of an effect, an `fx.Effect`, or several. None: all.
        function: The name of the function that has the line, in which `*` stands for anything. None: all.

    Returns:
        A sequence of lines, each with `where`, `effect`, `title`, `count` (how many effects devices have come to),
        `shown` (how many of these were shown) and `filter` (which are shown now, in words). `print` shows a table.
        `off()`, `on()`, `every(n)` and `level(level)` change what is shown, at once and in programs that run, and
        return the sequence. At the end of a `with` block it is as it was before.

    Raises:
        TypeError, ValueError: if one of these is not as described.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... def f(n):
        ...     jax.lax.fori_loop(0, n, lambda i, _: fx.print("turn {} of some", i, every=2), None)
        >>> f(4)
        >>> fx.effects_barrier()
        turn 0 of some
        turn 2 of some
        >>> [(site.count, site.shown) for site in fx.sites(effect="print") if site.title == "turn {} of some"]
        [(4, 2)]
    """
    chosen = None if pattern is None else Pattern.read(pattern, "`fx.sites`")
    if function is not None and (not isinstance(function, str) or not function):
        raise errors.type_error(MSG_FUNCTION.format(function=errors.shown(function)))
    names = None if effect is None else effect_names(effect)
    given = {"effect": effect, "function": function}
    shown = [repr(pattern)] * (pattern is not None)
    shown += [f"{name}={value!r}" for name, value in given.items() if value is not None]
    return Sites(chosen, names, function, f"`fx.sites({', '.join(shown)})`")
