"""The wire: the layouts that compiled programs, native code and Python share.

`dispatch/native/wire.h` defines and documents them. This module gives them Python names, in the order in which
`dispatch/native/python/wire.cc` exports them.
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
other. Elsewhere a token has the first four only."""
REPLICA_TOKEN_LENGTH = len(REPLICA_TOKEN)
TOKEN_LENGTH = _numbers["token_length"]
STREAM, EPOCH, PHASE, INDEX = range(TOKEN_LENGTH)


class TokenStep(NamedTuple):
    """The change that a call makes to a token, number by number. If the host does not write to the device's memory, the
    program makes the change itself, after the call."""

    keeps_index: bool  # False: the index restarts at 0
    phase: int  # the increment of the phase
    index: int  # the increment of the index


COUNT_STEP, ENTER_STEP, LEAVE_STEP = (TokenStep(*layout[step]) for step in ("count_step", "enter_step", "leave_step"))
"""The steps of a token: at an effect; on entering a per-device region; on leaving one (applied to the outer token)."""


def advance(effects: int) -> TokenStep:
    """The step of this many effects."""
    return COUNT_STEP._replace(index=effects * COUNT_STEP.index)


def step_numbers(step: TokenStep, length: int) -> tuple[list[int], list[int]]:
    """A step as two lists with an element for each number of a token: the masks of the bits kept, and the
    increments."""
    keeps, adds = [0xFFFFFFFF] * length, [0] * length
    keeps[INDEX] *= step.keeps_index
    adds[PHASE], adds[INDEX] = step.phase, step.index
    return keeps, adds


DOMAIN_BITS = _numbers["domain_bits"]
"""The number of bits of a stream that are the order domain; the rest are the thread."""
NO_DOMAIN = _numbers["no_domain"]
"""The domain number of unordered effects."""
PLACED_THREAD, PLAIN_THREAD = _numbers["placed_thread"], _numbers["plain_thread"]
"""In place of a thread's number: of tokens that stay on devices from program to program, and of the plain stream."""
FIRST_NESTED_THREAD = 1 << (31 - DOMAIN_BITS)
"""The bound between numbers of threads: the user's go up from 1, the drain's go down from below `PLACED_THREAD`."""


def stream_of(thread: int) -> int:
    return thread << DOMAIN_BITS


def thread_of(stream: int) -> int:
    return stream >> DOMAIN_BITS


def in_region(phase: int) -> bool:
    """True if this phase is inside a per-device region, where each device counts for itself."""
    return bool(phase & 1)


# Records

HEADER = np.dtype([(name, dtype) for name, dtype, _ in layout["header"]])
"""The header of a record. The payload follows it."""
_HEADER = struct.Struct("<" + "".join(code for _, _, code in layout["header"]))
"""The same layout for `struct`, which reads a single record about ten times as fast as NumPy."""


class Header(NamedTuple):
    """The fields of a record's header."""

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
    """The kind of a header: of a record, of a device's end of a program, or of a host event, which only taps get."""

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
    """The header of a record that Python has made."""
    return _HEADER.pack(HEADER.itemsize + payload_size, Kind.ORDERED, 0, site, *token, device, 0, payload_size, time)


def header_offset(field: str) -> int:
    """The first byte of a field in a header."""
    return dict(HEADER.fields or {})[field][1]


FIRST_GPU = _numbers["first_gpu"]
"""The number of a process's first GPU in records. The numbers of CPUs are less."""

ALL_DEVICES = _numbers["all_devices"]
"""In place of a device: the record is replicated, and all devices of the program publish it."""

SCALARS: tuple[str, ...] = tuple(layout["scalars"])
"""The types whose values native code formats, in the order of their codes."""

# Calls of a compiled program


_record_traits: list[int] = [*layout["record_traits"].values()]


class RecordTrait(enum.IntFlag):
    """The traits of a call that publishes a record, in one number."""

    ORDERED, CLOSES, CALLBACK, ENTERS, LEAVES, MAY_DIVERGE, REPLICATED, HAS_SHARDS, HAS_MASK, COUNTED = _record_traits


class CustomCallTrait(enum.IntFlag):
    """The traits of a call of a user handler, in one number."""

    HAS_TOKEN, COUNTS, ORDERED, HAS_MORE = layout["custom_call_traits"].values()


def call_traits(has: Mapping[RecordTrait, bool] | Mapping[CustomCallTrait, bool], devices: int, call: int) -> int:
    """The traits of a call, as the number in its attribute. The bits above the traits are the number of devices that
    reach the call, where that matters, and a number that tells apart calls that are otherwise equal."""
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
SHARDS_TARGET, AFTER_SHARDS_TARGET = "effects_shards", "effects_after_shards"
"""Targets without native handlers: XLA's partitioner replaces the calls, by functions in Python."""
SITE_STATE = "effects_site"
CUSTOM_CALL_STATE = "effects_custom_call"
"""XLA's names for the types of a call's state in a loaded program; native code defines the types but no names."""


class ProgramTraits(NamedTuple):
    """The traits of a program's effects. Every call returns them, beside the output token."""

    effects: tuple[str, ...]  # the names of its effects
    has_callbacks: bool
    awaits_results: bool  # True if the program waits for results of callbacks
    has_custom_calls: bool = False  # True if the program calls user handlers
    domains_of_handlers: tuple[int, ...] = ()  # the order domains of these handlers, by number
    handlers: tuple[str, ...] = ()  # the names of these handlers in messages: their targets and lines


# The drain's deliveries to Python, as plain tuples


class Batch(NamedTuple):
    """One delivery of the drain."""

    items: list[Any]  # `Item`s
    finished: list[tuple[int, int, int]]  # runs of epochs that have ended: (thread, first, count)
    complete: list[tuple[int, int, set[int]]]  # `(thread, epoch, domains)`: see `Stream.unreleased`
    forgotten: list[int]  # sites without further records
    run: int | None  # the thread of the batch's records for Python; None: there are none
    domain: int  # the number of their order domain
    run_number: int  # the order domain is suspended until `native.resume(run, run_number)`
    stopped: bool  # True if the drain must end


class ItemKind(enum.IntEnum):
    """Text of consecutive records that go to one output; consecutive records of one epoch; a large record by itself."""

    TEXT, RECORDS, LARGE = layout["item_kinds"].values()


class Item(NamedTuple):
    """Consecutive records of one thread."""

    kind: int
    thread: int
    epoch: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    data: Any  # text, headers and payloads, a large record's header, or with callbacks a list of records
    block: Any  # a large record's payload; a text's `TEXT_RUN`s
    has_callbacks: bool
    failed: bool  # True if the program has failed
    reply: int  # the number of the reply that a device awaits with the last record; 0: none


TEXT_RUN = np.dtype([(name, dtype) for name, dtype, _ in layout["text_run"]])
"""Consecutive records in a text, all of one site and one program; `end` is the end of their text, in bytes of UTF-8."""


class CallbackRecord(NamedTuple):
    """A record of a callback."""

    site: int
    token: tuple[int, ...]
    device: int
    reply: int  # the number of the reply that a device awaits; 0: none
    several: bool  # True if several devices make this call
    payload: Any
    time: float


class RecordsBetween(NamedTuple):
    """Records between callbacks; none of them calls a function."""

    data: bytes
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]


# Settings

WHEN_FULL: tuple[str, ...] = tuple(layout["when_full"])
"""The policies of a producer that finds its ring full, in the order of their codes."""
