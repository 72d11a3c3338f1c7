"""The known sites, whose records may arrive: sites of lowered programs, and of effects that the host publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from effects import _jax
from effects._model.callback import HostCall
from effects._model.content import Composite, NativeText
from effects._model.filter import Filter, when_levels_change
from effects._model.site import Site, site_from
from effects._model.wire import ALL_DEVICES, INDEX, PLAIN_THREAD, stream_of
from effects.lowering.native_module import native


class Line(NamedTuple):
    """A line of the user's with an effect, whose sites have one filter: `vmap` and shapes make several sites of it."""

    effect: str
    file: str
    line: int
    function: str
    title: str  # of the content
    line_filter: Filter

    @classmethod
    def of(cls, site: Site) -> Line:
        return cls(site.effect.name, *site.where, site.content.title, site.filter)


class LineFilter:
    """The filter of a line, as it is now.

    Attributes:
        native: The part of the filter that native code applies.
        least: The lowest level of effects that are shown, in place of the logger's; None: the logger's.
        num_sites: The number of its sites that programs have now.
        can_be_switched: True if its effects may be left out: nothing waits for their results.
        first_state: The part that can be changed, as the call and the listeners have set it.
    """

    def __init__(self, site: Site) -> None:
        self.native: native.Filter = native.Filter()
        self.line_filter: Filter = site.filter
        self.least: int | None = None
        self.num_sites: int = 0
        self.can_be_switched: bool = site.results is None and site.content.may_be_left_out
        self.show_every(self.line_filter.every)
        self.native.first = None if self.line_filter.first is None else min(self.line_filter.first, _MOST)
        self.native.min_seconds = self.line_filter.min_seconds
        self.first_state: tuple[Any, ...] = self.state
        self.follow_levels()  # creates the logger now: `logging` must not add it while it calls `_follow_levels`

    @property
    def state(self) -> tuple[Any, ...]:
        """The part of the filter that can be changed."""
        return self.native.on, self.native.every, self.native.first, self.native.min_seconds, self.least

    @state.setter
    def state(self, state: tuple[Any, ...]) -> None:
        self.native.on, self.native.every, self.native.first, self.native.min_seconds, self.least = state
        self.follow_levels()

    @property
    def has_level(self) -> bool:
        """True for prints, events and bars, and for other effects whose call was given `level=`."""
        return self.line_filter.level is not None

    def follow_levels(self) -> None:
        self.native.level_allows = not self.can_be_switched or self.line_filter.allowed(self.least)

    def turn(self, on: bool) -> None:
        """Shows the line's effects, as far as the rest of the filter lets them, or none of them."""
        self.native.on = on

    def show_every(self, n: int) -> None:
        """Shows one of every `n` effects, in place of the line's own setting."""
        self.native.every = min(n, _MOST)

    def show_from(self, level: int) -> None:
        """Shows effects of this level or a higher one, in place of those that the logger takes."""
        if self.has_level:
            self.least = level
            self.follow_levels()

    @property
    def may_be_forgotten(self) -> bool:
        """True if nothing but a count would be lost: no program has the line, and nobody has changed its filter."""
        return not self.num_sites and self.state == self.first_state


_MOST = (1 << 63) - 1
"""Greater counts mean the same: no device comes that far."""

_FEW = 1000
"""The number of lines that are always kept."""


class KnownSites:
    """Sites by their hash. Lowering registers a site before its program is loaded.

    The drain's leader removes a site when no program has it and no record of it can come. There may be any number of
    sites, since functions of the user's and arguments that are known while tracing are part of a site.
    """

    def __init__(self) -> None:
        self._sites: dict[int, Site] = {}
        self._inner: dict[int, list[object]] = {}  # by a site's hash: its claims on the sites inside it
        # The site of a record, if it is already known.
        self.get: Callable[[int], Site | None] = self._sites.get
        self._lock = threading.RLock()  # for additions and removals
        self._listeners: list[Callable[[Site], object]] = []
        self.filters: dict[Line, LineFilter] = {}
        self._room = _FEW
        self._line_listeners: list[Callable[[Line, LineFilter], None]] = []
        when_levels_change(self._follow_levels)

    def listen(self, listener: Callable[[Site], object]) -> None:
        """Has `listener` called with each site before a record of it can come, perhaps several times with one site."""
        self._listeners.append(listener)

    def stop_listening(self, listener: Callable[[Site], object]) -> None:
        """Removes a listener that `listen` has added."""
        self._listeners.remove(listener)

    def listen_for_lines(self, listener: Callable[[Line, LineFilter], None]) -> None:
        """Has `listener` called with each new line and its filter, which it may change, before its first effect."""
        self._line_listeners.append(listener)

    def announce(self, site: Site) -> None:
        """Calls the listeners of sites."""
        for listener in list(self._listeners):
            listener(site)

    def all(self) -> list[Site]:
        """The sites that are known now."""
        return list(self._sites.values())

    def register(self, site: Site) -> object:
        """Makes a site known. A program keeps the returned claim for as long as it may publish records of the site."""
        with self._lock:
            is_new = native.site_holders(site.id) == 0  # otherwise native code has the site's plan
            claim = _Claim(site)
            content = site.content if is_new else None
            if isinstance(content, HostCall) and content.pass_record:
                native.need_time(True)
            writes_itself = isinstance(content, NativeText) and not content.asks_before_text
            if writes_itself and (plan := content.native_plan(site)) is not None:
                native.set_plan(site.id, plan)
            self._add(site)
        self.announce(site)  # a listener that is added now finds the site in `all()`
        return claim

    def _add(self, site: Site) -> Site:
        line = self.filter_of(site)
        native.filter_of(site.id, line.native)  # even if the site is known here: native code forgets it first
        if (known := self._sites.get(site.id)) is not None:
            return known
        self._sites[site.id] = site
        line.num_sites += 1
        if isinstance(site.content, Composite):
            self._inner[site.id] = [*map(self.register, site.content.sites)]
        return site

    def filter_of(self, site: Site) -> LineFilter:
        """The filter of a site's line. The line's counts continue, even in a new program."""
        line = Line.of(site)
        if (known := self.filters.get(line)) is not None:
            return known
        with self._lock:
            if line not in self.filters:
                if len(self.filters) >= self._room:
                    self._forget_lines()
                known = LineFilter(site)
                for listener in self._line_listeners:
                    listener(line, known)
                self.filters[line] = known
                known.first_state = known.state
                known.follow_levels()  # the level may have changed since
            return self.filters[line]

    def _forget_lines(self) -> None:
        """Forgets lines that have no program and no changed filter. A text that is new in each call adds one."""
        for line, known in list(self.filters.items()):
            if known.may_be_forgotten:
                del self.filters[line]
        self._room = 2 * len(self.filters) + _FEW

    def _follow_levels(self) -> None:
        for known in list(self.filters.values()):  # without a lock: called with the lock of `logging` held
            known.follow_levels()

    def find(self, site_id: int) -> Site:
        """The site of a record. One that was not lowered here is rebuilt from the description in its program."""
        site = self._sites.get(site_id)
        if site is None:
            with self._lock:
                site = self._add(site_from(native.site_description(site_id)))
                self.announce(site)
        return site

    def forget(self, site_ids: list[int]) -> None:
        """Takes out those of the sites that no program has any more."""
        with self._lock:
            for site_id in site_ids:
                if native.site_holders(site_id) == 0 and (site := self._sites.pop(site_id, None)) is not None:
                    self._inner.pop(site_id, None)
                    self.filter_of(site).num_sites -= 1


class _Claim:
    """A program's claim on a site. It does not keep the site alive, and so no function of the user's."""

    __slots__ = ("_release", "_site_id")

    def __init__(self, site: Site):
        self._site_id = site.id
        native.retain_site(site.id, site.description)
        self._release = native.release_site  # set last, for `__del__`: module globals are gone at interpreter exit

    def __del__(self) -> None:
        if hasattr(self, "_release"):
            self._release(self._site_id)


known_sites: KnownSites = KnownSites()
"""The sites of this process: there is one native module, which has one table of them."""


# The sites of a program that is being lowered, on any platform.

MSG_NO_DEVICE = (
    "Effect `{effect}` at {where} is in a program that is lowered for {platform}, and this process has no such "
    "device. Effects there are published by callbacks of JAX's, which JAX makes only for devices of this process. "
    "Lower the program in a process that has one, or export it with `fx.export(f, platforms=[{platform!r}])`."
)

MSG_ON_HOST = (
    "Effect `{effect}` at {where} is in a part of a program for {platforms} that `compute_on('device_host')` leaves to "
    "the host. XLA finds no handlers there, and would end the process. Move the effect out of that part: what goes in "
    "and what comes out can be shown around it."
)

MSG_PER_SHARD_HERE = (
    "Effect `{effect}` at {where} has `{option}=True` {place}. How arrays are sharded is not known there. Leave out "
    "`{option}=True`, or {remedy}."
)


def register_site(ctx: Any, site: Site) -> object:
    """Makes the site known for as long as the program or the returned claim is kept. A callback that publishes the
    site's records must keep the claim: a program may still run when nothing keeps it any more. Refuses a site where XLA
    has no handlers."""
    if platforms := " and ".join(_jax.left_to_host_by(ctx)):
        raise _jax.Refused(MSG_ON_HOST.format(effect=site.effect, where=site.where, platforms=platforms))
    claim = known_sites.register(site.portable)
    # JAX cannot export a program that keeps a Python object, so the claim is kept by `fx.Exported`, which calls the
    # program.
    if _jax.is_for_export(ctx) and site.content.is_portable:
        exported_sites.get(set()).add(site.portable)
    else:
        _jax.keep_with_program(ctx, claim)
    return claim


exported_sites: ContextVar[set[Site]] = ContextVar("exported_sites")
"""The set that collects the sites of a program while it is lowered for export."""


def refused_per_shard(site: Site, place: str, remedy: str) -> NotImplementedError:
    option = "per_shard" if site.origin is None else "partitioned"
    shown = {"effect": site.effect, "where": site.where, "option": option, "place": place, "remedy": remedy}
    return NotImplementedError(MSG_PER_SHARD_HERE.format(**shown))


def refuse_missing_platform(ctx: Any, site: Site) -> None:
    """Refuses a site of a platform without a device here: JAX's callbacks are made for devices of this process."""
    if (platform := _jax.missing_platform(ctx)) is not None:
        raise _jax.Refused(MSG_NO_DEVICE.format(effect=site.effect, where=site.where, platform=platform))


# Publishing from the host: effects outside of programs, and, through JAX's Python callbacks, effects of programs on
# platforms without native handlers.


def publish(
    site: Site,
    token: tuple[int, ...],
    operands: Sequence[Any],
    device: int | None = None,
    reply: native.HostReply | None = None,
) -> None:
    """Publishes one record. `device`: None if it is not known, as in a program, which JAX lowers for any devices."""
    shown = known_sites.filter_of(site).native  # also for effects with results, which it counts
    if reply is None and site.mask is not None and not site.symbols and not np.any(operands[0]):
        shown = _OF_NO_LANE
    native.publish(
        site.id,
        site.effect.ordered,
        token,
        (0 if _jax.has_one_device() else ALL_DEVICES) if device is None else device,
        [to_bytes(np.asarray(x)) for x in operands],
        site.content.delivered_individually,
        0 if reply is None else reply.number,
        shown,
    )


_OF_NO_LANE = native.Filter()
"""Leaves out effects that no lane has, so that the line's own filter does not count them."""
_OF_NO_LANE.on = False


def publish_and_wait(
    site: Site, token: tuple[int, ...], operands: Sequence[Any], device: int | None = None
) -> list[np.ndarray]:
    """Publishes a record. If it is of a callback with results, waits for them and returns them."""
    reply = None if site.results is None else native.HostReply()
    publish(site, token, operands, device, reply)
    if reply is None:
        return []
    if native.is_nested():
        native.set_offer_urgent()
    results = zip(site.results or (), reply.wait(), strict=True)
    return [np.ndarray(result.shape, result.stored, data) for result, data in results]


def publish_in_program(site: Site, token: np.ndarray, operands: Sequence[Any]) -> list[Any]:
    """Publishes a record of a program. Returns the next token, and the results of a callback."""
    results = publish_and_wait(site, tuple(map(int, token)), operands)
    token = np.array(token)
    if site.effect.ordered:
        token[INDEX] += 1
    return [token, *results]


def publish_end(tokens: Sequence[np.ndarray]) -> np.ndarray:
    """Publishes the end of a program; returns its output token."""
    native.close([tuple(map(int, token)) for token in tokens], 0)
    return np.array(tokens[0])


def publish_plain(site: Site, operands: Sequence[Any]) -> list[Any]:
    """Publishes a record of a program that JAX dispatched. Returns the results of a callback."""
    return publish_and_wait(site, _PLAIN, operands)


_PLAIN = (stream_of(PLAIN_THREAD), 0, 0, 0)
"""The token of plain effects, which get their epochs when they are published."""


def to_bytes(x: np.ndarray) -> Any:
    """An array's bytes in C order, for native code; if it is large and contiguous, without a copy."""
    if x.nbytes < _SMALL:
        return x.tobytes()
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


_SMALL = 1 << 12
