"""What programs are made of: the words that all readings share, programs, and sequences of dispatches.

A program is a tree of frozen dataclasses. Its statements stand in `statements/`, its expressions in `expressions`. The
words are data: to add a kind of effect, add an entry to `EFFECTS` and one to `runners.library`; to add something that
callbacks do, add an entry to `ACTIONS` and one to `runners.library`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from tests.oracle.jax_ import Scope
    from tests.oracle.source import Source

T = TypeVar("T")
State = tuple[Any, ...]
MODULUS = 97  # small and prime: products stay far below int32 and do not collapse to zero
REGISTERS = ("a", "b", "c")
STATE = "a, b, c, x"  # in rendered source: the registers, and `x`, the one value that can be differentiated
RESULT_TYPES = ("int32", "uint8", "bool", "float16", "bfloat16", "float32")  # of what callbacks return

FAR: Mapping[str, int] = {"far_a": 3, "far_b": 17, "far_c": 150, "far_d": 299}
"""Kinds of prints, each in a domain of its own: that of the effect of this number, of `MANY`."""
MANY = 300  # effects with domains of their own that are there in each process

# Effect kind -> whether its lines keep their place. In rendered source the kind is the name of a function. The first
# six are prints, one with a filter, three by the handler of a custom call; a queued callback is called in its turn,
# and the program waits for what a sync one returns. The last are JAX's own: prints, `jax.debug.callback`, and
# `io_callback` without results and with them. Only `jax_print_ordered` has `ordered=True`; the others keep their place.
EFFECTS: Mapping[str, bool] = {
    "ordered": True,
    "unordered": False,
    "filtered": True,
    "native": True,
    "native_unordered": False,
    "native_fails": True,
    "apart": True,
    "apart_print": True,
    **dict.fromkeys(FAR, True),
    "log": True,
    "log_unordered": False,
    "check": True,
    "queued": True,
    "queued_unordered": False,
    "queued_apart": True,
    "sync": True,
    "sync_unordered": False,
    "print_grad": True,
    "jax_print": True,
    "jax_print_ordered": True,
    "jax_queued": True,
    "jax_io": True,
    "jax_sync": True,
    "async_host": True,
    "async_native": True,
    "async_values": True,
    "async_x": True,
}

PRINTS = (
    *("ordered", "unordered", "filtered", "native", "native_unordered", "apart", "apart_print"),
    *("jax_print", "jax_print_ordered", *FAR),
)

PROGRAM_DOMAIN = "program"
DOMAINS: Mapping[str, str] = {
    **dict.fromkeys(("apart", "apart_print", "queued_apart"), "oracle.apart"),
    **{kind: f"oracle.far.{number}" for kind, number in FAR.items()},
}
"""Kind -> the order domain of its effects, where it is not that of all others. Domains know nothing of each other."""


def is_native(kind: str) -> bool:
    """Whether the handler of a custom call has the effect: once for each lane, which it does not know."""
    return kind == "apart" or kind.startswith("native")


def is_of_jax(kind: str) -> bool:
    return kind.startswith("jax_")


# What a barrier may wait for alone -> the kinds of effects of this name.
AWAITED: Mapping[str, tuple[str, ...]] = {
    "print": ("ordered", "unordered"),
    "log": ("log", "log_unordered"),
    "callback": ("queued", "queued_unordered"),
    "apart_print": ("apart_print",),
    **{DOMAINS[kind]: (kind,) for kind in FAR},
}

# What a callback may do besides writing its line -> the lines that come of it. In these, `label` is the callback's,
# `who` tells those of ordered callbacks from those of unordered ones, and `value` is a number.
ACTIONS: Mapping[str, Callable[[str, str, int], list[str]]] = {
    "print": lambda label, who, value: [f"{label}.print {value}"],
    "log": lambda label, who, value: [f"{label}.log x={value} INFO"],
    "callback": lambda label, who, value: [f"{label}.callback {value}"],
    "eager_sync": lambda label, who, value: [f"{label}.asked {value}", f"{label}.answer {value + 1}"],
    "jit": lambda label, who, value: [f"{label}.jit {(2 * value + 1) % MODULUS}"],
    "effects_jit": lambda label, who, value: [f"{who}.nested {value} 0", f"{who}.nested {value} 1"],
    "effects_jit_sync": lambda label, who, value: [
        f"{who}.asks {value}",
        f"{who}.asked {value}",
        f"{who}.got {value + 1}",
    ],
    "barrier": lambda label, who, value: [],
    "eager_of_jax": lambda label, who, value: [f"{label}.ahead {value}"],
}

SWITCHES = ("quiet", "loud")
"""What a callback that the program waits for may do besides: filtered prints are left out from then on, or not."""

CHANGES = ("off", "on", "every 1", "every 2", "every 3", "level warning", "level info")
"""The changes that another thread may make to the filters of all filtered prints, between two dispatches."""

EAGER = ("jax_print", "jax_print_ordered", "jax_queued", "jax_io", "jax_io_ordered", "jax_asked")
"""The effects of JAX's own that may stand between two dispatches, outside of programs."""

# What a runner may be able to do; programs are made of what it can.
FEATURES = frozenset(
    {
        *("log", "callback", "record", "nested", "vmap", "grad", "devices", "context", "failures", "process"),
        *("capture", "native", "jax", "export", "rings", "check", "async", "filters", "switches"),
        *("domains", "barriers", "native_fails", "arrays"),
    }
)

JAX_FEATURES = frozenset({"log", "callback"})


class Failure(Exception):
    """What a callback raises that is meant to."""


class Expression(Protocol):
    def python(self) -> str: ...

    def jax(self, scope: Scope, state: State) -> Any: ...


class Statement(Protocol):
    """One statement: its Python reading, its JAX reading, and the names under which it is counted."""

    def python(self, out: Source) -> None: ...

    def jax(self, scope: Scope, state: State) -> State: ...

    def kinds(self) -> tuple[str, ...]: ...


Block_ = tuple[Statement, ...]


@dataclass(frozen=True)
class Function:
    """An inner jitted function of the registers; it may call the functions before it."""

    name: str
    through: str  # which of WRAPPERS jits it
    body: Block_


@dataclass(frozen=True)
class Program:
    """A function of the dispatch number `n` and of the registers; nothing assigns `n`."""

    functions: tuple[Function, ...]
    body: Block_


@dataclass(frozen=True)
class Run:
    """One dispatch of a program, from a state of its own or from what the last dispatch returned that did not fail."""

    program: Program
    state: tuple[int, ...] | None
    device: int | None = None  # on which one, if it is said
    by_default: bool = False  # by `jax.default_device`, instead of the arguments
    exported: bool = False  # as a program that has been exported, and read again
    change: str = ""  # what is changed of filters ahead of it, once all before it is out: one of CHANGES
    barrier: str = ""  # what is waited for alone, behind it: one of AWAITED
    held: bool = False  # whether its functions of the kind "queued_apart" return only after that
    eager: str = ""  # what of JAX's own stands behind it, outside of programs: one of EAGER


@dataclass(frozen=True)
class Case:
    """A sequence of dispatches, and what is in force meanwhile."""

    runs: tuple[Run, ...]
    order: str = "thread"
    capture: bool = False
    context: bool = False  # whether each dispatch has a context of its own
    sync: bool = False  # whether there is a barrier behind each dispatch
    after_error: str = "stop"  # whether a callback that raises stops the effects of its program
    rings: str = ""  # what is done about a full ring, if rings are small: a mode of the setting `when_full`
    rewritten: frozenset[Program] = frozenset()  # programs whose kernels write a log, as compiled ones do

    def kinds(self) -> tuple[str, ...]:
        devices = {(run.device, run.by_default) for run in self.runs if run.device is not None}
        found = [f"order_{self.order}"] * (self.order != "thread") + ["capture"] * self.capture
        found += ["go_on"] * (self.after_error != "stop") + ["context"] * self.context
        found += ["several_devices"] * (len(devices) > 1)
        found += ["sync"] * self.sync + ["rewritten"] * bool(self.rewritten)
        found += ["changes"] * any(run.change for run in self.runs)
        found += [f"barrier_{name}" for name in sorted({run.barrier for run in self.runs} - {""})]
        found += [f"eager_{kind}" for kind in sorted({run.eager for run in self.runs} - {""})]
        found += ["held"] * any(run.held for run in self.runs)
        found += ["exported"] * any(run.exported for run in self.runs) + [f"rings_{self.rings}"] * bool(self.rings)
        return (*found, *sorted({"default_device" if by_default else "device_put" for _, by_default in devices}))


def statements(tree: object) -> Iterator[Statement]:
    """Every statement below a node, in the order of the source."""
    if isinstance(tree, tuple):
        for item in tree:
            yield from statements(item)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        if hasattr(tree, "kinds"):
            yield tree  # type: ignore[misc]
        for part in dataclasses.fields(tree):
            yield from statements(getattr(tree, part.name))


def domains_of_labels(tree: object) -> dict[str, str]:
    """The domain of each label whose effects are not in that of all others."""
    return {label: DOMAINS[kind] for label, kind in kinds_of_labels(tree).items() if kind in DOMAINS}


def kinds_of_labels(tree: object) -> dict[str, str]:
    return {s.label: s.kind for s in statements(tree) if hasattr(s, "label")}


def label_of(line: str) -> str:
    """The label of the effect from which a line comes."""
    return line.split(" ", 1)[0].split(".", 1)[0]
