"""The wire: what compiled programs, native code and Python lay out in the same way.

It is written down in `dispatch/native/wire.h`, which says what each of it means. Here the names are that Python has for
it, in the same order as `dispatch/native/python/wire.cc` hands it out.
"""

import enum
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from effects._model.native import layout

_numbers: dict[str, int] = layout["numbers"]

# Tokens

REPLICA_TOKEN: tuple[str, ...] = tuple(layout["replica_token"])
"""The numbers of a token, each a `uint32`, in a region over some axes of its mesh, where devices are replicas of each
other. Elsewhere it has the first four."""
REPLICA_TOKEN_LENGTH = len(REPLICA_TOKEN)
TOKEN_LENGTH = _numbers["token_length"]
STREAM, EPOCH, PHASE, INDEX = range(TOKEN_LENGTH)


class TokenStep(NamedTuple):
    """What a call makes of a token, number by number. Where the host does not write to the device's memory, the program
    does this itself, behind the call."""

    keeps_index: bool  # else it begins at 0
    phase: int  # what is added to each
    index: int


COUNT_STEP, ENTER_STEP, LEAVE_STEP = (TokenStep(*layout[step]) for step in ("count_step", "enter_step", "leave_step"))
"""An effect; a device begins to count for itself, and ends it, which is of the token around."""


def advance(effects: int) -> TokenStep:
    """So many effects."""
    return COUNT_STEP._replace(index=effects * COUNT_STEP.index)


def step_numbers(step: TokenStep, length: int) -> tuple[list[int], list[int]]:
    """What of each number of a token of this length is kept, as masks, and what is added to it."""
    keeps, adds = [0xFFFFFFFF] * length, [0] * length
    keeps[INDEX] *= step.keeps_index
    adds[PHASE], adds[INDEX] = step.phase, step.index
    return keeps, adds


DOMAIN_BITS = _numbers["domain_bits"]
"""How many bits of the stream number the order domain; the rest number the thread."""
NO_DOMAIN = _numbers["no_domain"]
"""The number there of what is unordered."""
PLACED_THREAD, PLAIN_THREAD = _numbers["placed_thread"], _numbers["plain_thread"]
"""In place of a thread's number: of tokens that lie on devices for program after program, and of the plain stream."""
FIRST_NESTED_THREAD = 1 << (31 - DOMAIN_BITS)
"""The drain's threads have numbers from below `PLACED_THREAD` down, and the user's from 1 up, to here."""


def stream_of(thread: int) -> int:
    return thread << DOMAIN_BITS


def thread_of(stream: int) -> int:
    return stream >> DOMAIN_BITS


def in_region(phase: int) -> bool:
    """Whether devices count for themselves there."""
    return bool(phase & 1)


# Records

HEADER = np.dtype([(name, dtype) for name, dtype, _ in layout["header"]])
"""What a record begins with. Behind it comes its payload."""
_HEADER = struct.Struct("<" + "".join(code for _, _, code in layout["header"]))
"""The same: `struct` reads one record some ten times as fast as NumPy."""


class Header(NamedTuple):
    """A record's header, read."""

    size: int
    kind: int
    flags: int
    site: int
    stream: int
    epoch: int
    phase: int
    token_index: int
    device: int
    reply: int
    payload_size: int
    time: float

    @property
    def token(self) -> tuple[int, ...]:
        return self[4:8]


def read_header(data: Any, at: int = 0) -> Header:
    return Header._make(_HEADER.unpack_from(data, at))


class Kind(enum.IntEnum):
    """What a header is of: a record; a device's end of a program; what the host does, which goes to a tap alone."""

    (
        ORDERED,
        UNORDERED,
        CLOSE,
        DISPATCHED,
        RETURNED,
        FAILED,
        BEGUN,
        DONE,
        BARRIER,
        BARRIER_DONE,
        OPERATION,
        OPERATION_DONE,
        ENDED,
    ) = layout["kinds"].values()


def write_header(site: int, token: tuple[int, ...], device: int, payload_size: int, time: float) -> bytes:
    """The header of a record that Python has made, by itself in its place."""
    return _HEADER.pack(HEADER.itemsize + payload_size, Kind.ORDERED, 0, site, *token, device, 0, payload_size, time)


def header_offset(field: str) -> int:
    """At which byte of a header a field begins."""
    return dict(HEADER.fields or {})[field][1]


FIRST_GPU = _numbers["first_gpu"]
"""The number of a process's first GPU in records: those of CPUs are less."""

ALL_DEVICES = _numbers["all_devices"]
"""The device of a record that is replicated: all devices of a program publish it."""

SCALARS: tuple[str, ...] = tuple(layout["scalars"])
"""The types whose values native code formats, in the order of their codes."""

# Calls of a compiled program


_record_traits: list[int] = [*layout["record_traits"].values()]


class RecordTrait(enum.IntFlag):
    """The traits of a call that publishes a record, in one number."""

    ORDERED, CLOSES, CALLBACK, ENTERS, LEAVES, MAY_DIVERGE, REPLICATED, HAS_SHARDS, HAS_MASK, COUNTED = _record_traits


class CustomCallTrait(enum.IntFlag):
    """The traits of a call of a handler of the user's, in one number."""

    HAS_TOKEN, COUNTS, ORDERED, HAS_MORE = layout["custom_call_traits"].values()


def call_traits(has: Mapping[RecordTrait, bool] | Mapping[CustomCallTrait, bool], devices: int, call: int) -> int:
    """The traits that a call has, as the number in its attribute. Above them are how many devices come to it, where
    that matters, and a number that differs between calls that are otherwise equal."""
    traits = sum(trait.value for trait, it_has in has.items() if it_has)
    return traits | devices << _numbers["devices_shift"] | call << _numbers["call_shift"]


class Attribute(enum.StrEnum):
    """The names of the attributes of calls."""

    SITE, TRAITS, DESCRIPTION, AHEAD, TOGETHER, FAIL_AS_ONE, OPERANDS, OTHERS = layout["record_attributes"]
    ORDERED, DEVICES, MAY_DIVERGE, HAS_GROUPS, COUNTED, COUNT = layout["region_attributes"]
    BY_LANE, OPTIONAL, CALL, TO, FROM, SIZE, WHERE, NAME = layout["operation_attributes"]
    OURS, TARGET, PLATFORM = layout["custom_call_attributes"]


RECORD_TARGET, CALL_TARGET, PLAIN_TARGET, PLAIN_CALL_TARGET = layout["record_targets"]
CLOSE_TARGET, ENTER_TARGET, LEAVE_TARGET, SKIP_TARGET, AFTER_TARGET = layout["region_targets"]
BEGIN_TARGET, KEEP_TARGET, POST_TARGET, TAKE_TARGET = layout["operation_targets"]
[CUSTOM_CALL_TARGET] = layout["custom_call_targets"]
SHARDS_TARGET = "effects_shards"
"""Only XLA's partitioner meets this one, and it asks Python what to put in its place: there is no native handler."""
SITE_STATE = "effects_site"
CUSTOM_CALL_STATE = "effects_custom_call"
"""The names under which XLA knows what a loaded program keeps of a call; native code has the types alone."""


class ProgramTraits(NamedTuple):
    """What is known of a program's effects. Every call returns it, beside the output token."""

    effects: tuple[str, ...]  # their names
    has_callbacks: bool
    awaits_results: bool  # whether it waits for what callbacks return
    has_custom_calls: bool = False  # whether it calls handlers of the user's
    domains_of_handlers: tuple[int, ...] = ()  # the order domains in which it does, by their numbers
    handlers: tuple[str, ...] = ()  # what messages call these handlers: their targets and lines


# What the drain hands to Python, as plain tuples


class Batch(NamedTuple):
    """What leaves at a time."""

    items: list[Any]  # `Item`s
    finished: list[tuple[int, int, int]]  # runs of epochs that have ended: (thread, first, count)
    settled: list[tuple[int, int, set[int]]]  # `(thread, epoch, domains)`: see `Stream.settled`
    forgotten: list[int]  # sites of which no record will come
    run: int | None  # the thread whose records it has for Python; None: it has none
    domain: int  # the number of their order domain
    run_number: int  # of these: their order domain is suspended until `native.resume(run, run_number)`
    stopped: bool  # the drain is to end


class ItemKind(enum.IntEnum):
    """Text of consecutive records that go to one output; consecutive records of one epoch; a large record by itself."""

    TEXT, RECORDS, LARGE = layout["item_kinds"].values()


class Item(NamedTuple):
    """Consecutive records of one thread."""

    kind: int
    thread: int
    epoch: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    data: Any  # text; headers and payloads; the large one's header; or with callbacks `CallbackRecord`s and others
    block: Any  # the large one's payload; of a text its `TEXT_RUN`s
    has_callbacks: bool
    failed: bool  # the program has failed
    reply: int  # the number of the reply that a device waits for with the last of its records; 0 if none does


TEXT_RUN = np.dtype([(name, dtype) for name, dtype, _ in layout["text_run"]])
"""Consecutive records in a text, all of one site and one program; `end` is where their text ends, in bytes of UTF-8."""


class CallbackRecord(NamedTuple):
    """A record of a callback."""

    site: int
    token: tuple[int, ...]
    device: int
    reply: int  # the number of the reply that a device waits for; 0 if none does
    several: bool  # it is one of several devices that ask
    payload: Any
    time: float


class RecordsBetween(NamedTuple):
    """Records between callbacks, which call nothing."""

    data: bytes
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]


# Settings

WHEN_FULL: tuple[str, ...] = tuple(layout["when_full"])
"""What a producer does that finds its ring full, in the order of their codes."""
