"""The wire: what compiled programs, native code and Python lay out in the same way.

It is written down here and, for native code, in `dispatch/native/wire.h`, and nowhere else. The native module says what
it was compiled with, and `lowering/native_module.py` compares the two when it loads it.
"""

import enum
import hashlib
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

INTERFACE = 33
"""Grows when a function of the native module takes or gives something else than before."""

# Tokens

TOKEN = ("stream", "epoch", "phase", "index")
"""The numbers of a token, each a `uint32`."""
TOKEN_LENGTH = len(TOKEN)
STREAM, EPOCH, PHASE, INDEX = range(TOKEN_LENGTH)

REPLICA_TOKEN = (*TOKEN, "group", "replica", "num_shared", "announces_skips")
"""Those of a token in a region over some axes of its mesh, where devices are replicas of each other."""
REPLICA_TOKEN_LENGTH = len(REPLICA_TOKEN)


class TokenStep(NamedTuple):
    """What a call makes of a token, number by number. Where the host does not write to the device's memory, the program
    does this itself, behind the call."""

    keeps_index: bool  # else it begins at 0
    phase: int  # what is added to each
    index: int
    num_shared: int


def advance(effects: int) -> TokenStep:
    """So many effects."""
    return TokenStep(True, 0, effects, effects)


COUNT_STEP = advance(1)
"""An effect."""
ENTER_STEP = TokenStep(False, 1, 0, 0)
"""A device begins to count for itself."""
LEAVE_STEP = TokenStep(True, 2, 0, 0)
"""And ends it: of the token around."""


def step_numbers(step: TokenStep, length: int) -> tuple[list[int], list[int]]:
    """What of each number of a token of this length is kept, as masks, and what is added to it."""
    keeps, adds = [0xFFFFFFFF] * length, [0] * length
    keeps[INDEX] *= step.keeps_index
    adds[PHASE], adds[INDEX] = step.phase, step.index
    if length == REPLICA_TOKEN_LENGTH:
        adds[REPLICA_TOKEN.index("num_shared")] = step.num_shared
    return keeps, adds


DOMAIN_BITS = 8
"""How many bits of the stream number the order domain within its program; the rest number the thread."""

PLACED_THREAD = 0xFFFFFE
"""In place of a thread's number: the token lies on devices for program after program, and its epoch is the number of a
cell of native code's that has both."""
PLAIN_THREAD = 0xFFFFFF
"""The stream of programs that JAX dispatches, outside of `fx.jit`: each of their effects is an epoch of it."""
FIRST_NESTED_THREAD = 1 << 23
"""The drain's threads have numbers from below `PLACED_THREAD` down, and the user's from 1 up, to here."""


def stream_of(thread: int, domain: int = 0) -> int:
    return thread << DOMAIN_BITS | domain


def thread_of(stream: int) -> int:
    return stream >> DOMAIN_BITS


def domain_of(stream: int) -> int:
    return stream & ((1 << DOMAIN_BITS) - 1)


def in_region(phase: int) -> bool:
    """Whether devices count for themselves there."""
    return bool(phase & 1)


# Records

HEADER = np.dtype(
    [
        ("size", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("site", "<u8"),
        ("token", "<u4", (TOKEN_LENGTH,)),
        ("device", "<i4"),
        ("reply", "<u4"),
        ("payload_size", "<u8"),
        ("time", "<f8"),
    ]
)
"""What a record begins with. Behind it comes its payload."""

_CODES = {"<u2": "H", "<u4": "I", "<i4": "i", "<u8": "Q", "<f8": "d"}


def _format_of(dtype: np.dtype) -> str:
    """A structured type as `struct` names it: `struct` reads one record some ten times as fast as NumPy."""
    fields = [(dtype[name].shape, dtype[name].base.str) for name in dtype.names or ()]
    return "<" + "".join(f"{shape[0] if shape else ''}{_CODES[code]}" for shape, code in fields)


_HEADER = struct.Struct(_format_of(HEADER))


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


def write_header(site: int, token: tuple[int, ...], device: int, payload_size: int, time: float) -> bytes:
    """The header of a record that Python has made, by itself in its place."""
    return _HEADER.pack(HEADER.itemsize + payload_size, Kind.ORDERED, 0, site, *token, device, 0, payload_size, time)


def header_offset(field: str) -> int:
    """At which byte of a header a field begins."""
    return _fields(HEADER)[field][1]


def _fields(dtype: np.dtype) -> dict[str, tuple[np.dtype, int]]:
    return {name: (field[0], field[1]) for name, field in (dtype.fields or {}).items()}


class Kind(enum.IntEnum):
    """What a record is. Those from `CLOSE` on are markers, which say how far a program is."""

    PADDING = 0
    ORDERED = 1
    UNORDERED = 2
    CLOSE = 3
    ENTER = 4
    LEAVE = 5
    SKIP = 6


class Flag(enum.IntFlag):
    LARGE = 1  # the payload travels by itself
    REPLICATED = 2  # every device of the program publishes this same record
    CALLBACK = 4  # replaying it runs a function of the user's
    MAY_DIVERGE = 8  # of `Kind.ENTER`: a device that waits for an answer may be what the other devices wait for
    AWAITED = 16  # a device will wait for what comes of it: it is never dropped


FIRST_GPU = 1 << 24
"""The number of a process's first GPU in records: those of CPUs are less."""

ALL_DEVICES = -1
"""The device of a record that is replicated: all devices of a program publish it."""

SCALARS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "byte"),
    *("thread", "device", "lane"),
)
"""The types whose values native code formats, in the order of their codes. "byte" stands for all others of one byte.
The last three are no operand's: the number of the thread in a stream's number, the place of a device, and a lane's
number along one of the `vmap`s."""

# Calls of a compiled program


class RecordTrait(enum.IntFlag):
    """The traits of a call that publishes a record, in one number."""

    ORDERED = 1
    CLOSES = 2  # it is the last record of its program, which has no other tokens
    CALLBACK = 4
    ENTERS = 8  # it is the first record of its region
    LEAVES = 16  # and the last
    MAY_DIVERGE = 32  # as the flag
    REPLICATED = 64
    HAS_SHARDS = 128  # each device publishes its shards; with `REPLICATED` they make one record
    COUNTED = 1 << 62  # by the program: the call gives the token back as it came


class CustomCallTrait(enum.IntFlag):
    """The traits of a call of a handler of the user's, in one number."""

    HAS_TOKEN = 1  # behind the operands
    COUNTS = 2  # it is one of ours
    ORDERED = 4
    HAS_MORE = 8  # there is something behind the results
    STARTS = 16  # it starts an asynchronous operation, which ends when the handler has answered
    ON_DEVICE = 32  # that is in a device's memory, as what the handler says is of a device's stream


DEVICES_SHIFT, DEVICES_MASK, CALL_SHIFT = 8, 0xFFFFFF, 32
"""Above the traits, of either call: how many devices come to it, where that matters, and a number that differs between
calls that are otherwise equal."""


def call_traits(has: Mapping[RecordTrait, bool] | Mapping[CustomCallTrait, bool], devices: int, call: int) -> int:
    """The traits that a call has, as the number in its attribute."""
    return sum(trait.value for trait, it_has in has.items() if it_has) | devices << DEVICES_SHIFT | call << CALL_SHIFT


AHEAD_ATTRIBUTE = "ahead"
"""The attribute of a call of a counted record, if it is not 0: how many effects have come since the program has written
its token, to which it adds once for all records that follow each other."""
TOGETHER_ATTRIBUTE, FAIL_AS_ONE_ATTRIBUTE = "together", "fail_as_one"
"""Attributes of a call from which several devices go on together: how many, and 1 if the region has collectives."""

RECORD_TARGET = "effects_record"
CALL_TARGET = "effects_call"
CLOSE_TARGET = "effects_close"
GATE_TARGET = "effects_gate"
ENTER_TARGET = "effects_enter"
LEAVE_TARGET, SKIP_TARGET = "effects_leave", "effects_skip"
AFTER_TARGET = "effects_after"
PLAIN_TARGET = "effects_plain"
PLAIN_CALL_TARGET = "effects_plain_call"
CUSTOM_CALL_TARGET = "effects_custom_call"
BEGIN_TARGET = "effects_begin"
KEEP_TARGET = "effects_keep"
POST_TARGET = "effects_post"
TAKE_TARGET = "effects_take"
SHARDS_TARGET = "effects_shards"
"""Only XLA's partitioner meets this one, and it asks Python what to put in its place: there is no native handler."""
SITE_STATE = "effects_site"
CUSTOM_CALL_STATE = "effects_custom_call"
"""The names under which XLA knows what a loaded program keeps of a call; native code has the types alone."""
CUSTOM_CALL_ATTRIBUTE = "~effects"
"""The attribute of a custom call that is ours: its name sorts behind all that users may choose."""


def domain_number(domain: str) -> int:
    """An order domain, where programs need a number of it that is the same in all of them and in all processes."""
    return int.from_bytes(hashlib.blake2b(domain.encode(), digest_size=8).digest(), "little") >> 1


class ProgramTraits(NamedTuple):
    """What is known of a program's effects. Every call returns it, beside the output token."""

    effects: tuple[str, ...]  # their names
    has_callbacks: bool
    awaits_results: bool  # whether it waits for what callbacks return
    has_custom_calls: bool = False  # whether it calls handlers of the user's
    domains_of_handlers: tuple[int, ...] = ()  # the order domains in which it does, each as `domain_number`
    handlers: tuple[str, ...] = ()  # what messages call these handlers: their targets and lines


# What the drain hands to Python, as plain tuples


class Batch(NamedTuple):
    """What leaves at a time."""

    items: list[Any]  # `Item`s
    finished: list[tuple[int, int, int]]  # runs of epochs that have ended: (thread, first, count)
    forgotten: list[int]  # sites of which no record will come
    run: int | None  # the thread that is suspended while its records are replayed; None: none is for Python
    stopped: bool  # the drain is to end


class ItemKind(enum.IntEnum):
    TEXT = 0  # of consecutive records that go to one output
    RECORDS = 1  # consecutive records of one epoch, headers included
    LARGE = 2  # a large record by itself


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


TEXT_RUN = np.dtype([("site", "<u8"), ("end", "<u8"), ("epoch", "<u4"), ("count", "<u4")])
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

WHEN_FULL = ("wait", "drop")
"""What a producer does that finds its ring full, in the order of their codes."""


def layout() -> dict[str, Any]:
    """All of this as data, as the native module gives its own."""
    return {
        "token": list(TOKEN),
        "replica_token": list(REPLICA_TOKEN),
        "count_step": COUNT_STEP._asdict(),
        "enter_step": ENTER_STEP._asdict(),
        "leave_step": LEAVE_STEP._asdict(),
        "numbers": {
            "interface": INTERFACE,
            "domain_bits": DOMAIN_BITS,
            "placed_thread": PLACED_THREAD,
            "plain_thread": PLAIN_THREAD,
            "all_devices": ALL_DEVICES,
            "first_gpu": FIRST_GPU,
            "header_size": HEADER.itemsize,
            "devices_shift": DEVICES_SHIFT,
            "devices_mask": DEVICES_MASK,
            "call_shift": CALL_SHIFT,
        },
        "ahead": AHEAD_ATTRIBUTE,
        "together": TOGETHER_ATTRIBUTE,
        "fail_as_one": FAIL_AS_ONE_ATTRIBUTE,
        "header": {name: (at, dtype.itemsize) for name, (dtype, at) in _fields(HEADER).items()},
        "text_run": {name: (at, dtype.itemsize) for name, (dtype, at) in _fields(TEXT_RUN).items()},
        "kinds": _values(Kind),
        "flags": _values(Flag),
        "record_traits": _values(RecordTrait),
        "custom_call_traits": _values(CustomCallTrait),
        "scalars": list(SCALARS),
        "targets": [
            *(RECORD_TARGET, CALL_TARGET, CLOSE_TARGET, GATE_TARGET, ENTER_TARGET, LEAVE_TARGET, SKIP_TARGET),
            *(AFTER_TARGET, PLAIN_TARGET, PLAIN_CALL_TARGET, CUSTOM_CALL_TARGET, CUSTOM_CALL_ATTRIBUTE),
            *(BEGIN_TARGET, KEEP_TARGET, POST_TARGET, TAKE_TARGET),
        ],
        "program_traits": list(ProgramTraits._fields),
        "item_kinds": list(_values(ItemKind)),
        "when_full": list(WHEN_FULL),
        "batch": list(Batch._fields),
        "item": list(Item._fields),
        "callback_record": list(CallbackRecord._fields),
        "records_between": list(RecordsBetween._fields),
    }


def _values(enumeration: type[enum.IntEnum | enum.IntFlag]) -> dict[str, int]:
    return {member.name.lower(): member.value for member in enumeration if member.name}


def first_difference(native: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """What the native module has otherwise: its name, what it is there, and what it is here. None if nothing is."""
    return _first_difference("", native, layout())


def _first_difference(name: str, there: Any, here: Any) -> tuple[str, Any, Any] | None:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*here, *(key for key in there if key not in here)]:
            inner = f"{name}.{key}" if name else str(key)
            if found := _first_difference(inner, there.get(key, "missing"), here.get(key, "missing")):
                return found
        return None
    return None if there == here else (name, there, here)
