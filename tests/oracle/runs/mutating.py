"""Programs in which one effect was changed, and what `effects.runs.diff` must say of them.

A value is changed, or an effect is moved behind the next one, left out, or added. `diff` must find that place and no
other, and nothing between two recordings of the same program.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import effects as fx
from tests.oracle.compare import describe
from tests.oracle.devices.cases import without_failures
from tests.oracle.devices.language import DeviceCase
from tests.oracle.devices.observe import expect as expect_on_devices
from tests.oracle.devices.observe import observe as observe_on_devices
from tests.oracle.expressions import Binary, Chain, Literal
from tests.oracle.kernels.kernel import Kernel
from tests.oracle.language import DOMAINS, EFFECTS, Block_, Case, Program, Run, is_native, label_of, statements
from tests.oracle.observe import expect, observe
from tests.oracle.rings import in_new_thread
from tests.oracle.runners import library
from tests.oracle.runs.comparing import ROOM, reader
from tests.oracle.runs.recorded import RecordedDeviceReading, RecordedReading
from tests.oracle.source import render
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.effects import Effect, Filtered, Log

MUTATIONS = ("value", "moved", "left out", "added")


@dataclass(frozen=True)
class Mutation:
    """A program, the same with one effect changed, and which effects that concerns."""

    kind: str
    program: Program
    changed: Program
    labels: tuple[str, ...]
    is_ordered: bool  # whether the runs must part there


def _blocks(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Block_]]:
    """The blocks of a program that have effects, and how to get to each; not those of kernels, whose effects have one
    place in the order."""
    if isinstance(tree, tuple):
        if any(isinstance(item, Effect | Log) for item in tree):
            yield path, tree
        for at, item in enumerate(tree):
            yield from _blocks(item, (*path, at))
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type | Kernel):
        for field in dataclasses.fields(tree):
            yield from _blocks(getattr(tree, field.name), (*path, field.name))


def _replaced(tree: Any, path: Sequence[Any], block: Block_) -> Any:
    if not path:
        return block
    first, *rest = path
    if isinstance(tree, tuple):
        return (*tree[:first], _replaced(tree[first], rest, block), *tree[first + 1 :])
    return dataclasses.replace(tree, **{first: _replaced(getattr(tree, first), rest, block)})


def _domain(effect: Effect | Log) -> str | None:
    return DOMAINS.get(effect.kind, "program") if EFFECTS[effect.kind] else None


def mutations(program: Program) -> Iterator[Mutation]:
    """All mutations of a program, but for those of kernels and of functions in programs with kernels, which these may
    call."""
    has_kernels = any(isinstance(s, Kernel) for s in statements(program))
    for path, block in _blocks(program):
        if has_kernels and path[0] == "functions":
            continue
        for at, effect in enumerate(block):
            if not isinstance(effect, Effect | Log) or getattr(effect, "level", "") == "DEBUG":
                continue
            if is_native(effect.kind):  # a handler's line, whose title is `{}` and not its label
                continue

            mutated = functools.partial(_mutated, program, path, block, at)
            label = effect.label
            if effect.operands and not isinstance(first := effect.operands[0], Chain):
                operands = (Binary("+", first, Literal(1)), *effect.operands[1:])
                other = dataclasses.replace(effect, operands=operands)
                yield mutated("value", other, labels=(label,), until=at + 1, of=effect)
            yield mutated("left out", labels=(label,), until=at + 1, of=effect)
            added = Effect("ordered", f"{label}new", (Literal(5),))
            yield mutated("added", added, labels=(added.label,), until=at, of=added)
            behind = block[at + 1] if at + 1 < len(block) else None
            is_alike = isinstance(behind, Effect | Log) and _domain(behind) == _domain(effect) is not None
            if is_alike and getattr(behind, "level", "") != "DEBUG" and not is_native(behind.kind):
                yield mutated("moved", behind, effect, labels=(label, behind.label), until=at + 2, of=effect)


def _mutated(
    program: Program,
    path: Any,
    block: Any,
    at: int,
    kind: str,
    *changed: Any,
    labels: tuple[str, ...],
    until: int,
    of: Any,
) -> Mutation:
    new = _replaced(program, path, (*block[:at], *changed, *block[until:]))
    return Mutation(kind, program, new, labels, _domain(of) is not None)


AnyCase = Case | DeviceCase


def with_program(case: AnyCase, mutation: Mutation, chosen: range | None = None) -> AnyCase:
    """The case with the changed program in place of the other; of one thread perhaps in the chosen dispatches only."""
    numbers = itertools.count()

    def changed(item: Any) -> Any:
        is_it = isinstance(item, Run) and item.program == mutation.program
        is_it &= chosen is None or next(numbers) in chosen
        return dataclasses.replace(item, program=mutation.changed) if is_it else item

    if isinstance(case, DeviceCase):
        return dataclasses.replace(case, sequences=tuple(tuple(map(changed, each)) for each in case.sequences))
    return dataclasses.replace(case, runs=tuple(map(changed, case.runs)))


def lines_of(case: AnyCase) -> list[str]:
    """What is recorded of a case, by the sequential reading."""
    if isinstance(case, Case):
        return expect(case, RecordedReading).lines
    stops = case.after_error == "stop"
    return [line for each in case.sequences for line in expect_on_devices(each, stops, RecordedDeviceReading)[0].lines]


def record(case: AnyCase, path: Path, **options: Any) -> None:
    """Runs a case and records it."""
    runner = library()  # which has effects of its own
    with fx.record(path, **({"max_bytes": ROOM} | options)):
        observe_on_devices(case, runner) if isinstance(case, DeviceCase) else observe(case, runner)


def repeatable(case: AnyCase) -> AnyCase | None:
    """The case without failures; None if two runs of it need not have the same effects. Callbacks without an order run
    beside others that remember. Programs that run beside each other on different devices come to a filter in any order.
    """
    case = without_failures(case)
    if isinstance(case, Case) and case.rings:
        case = dataclasses.replace(case, rings="")
    callbacks = [s for s in statements(case) if isinstance(s, Callback)]
    counts = any(isinstance(s, Filtered) and (s.every > 1 or s.first) for s in statements(case))
    if any(not EFFECTS[each.kind] and each.remembers for each in callbacks) or (counts and _may_overlap(case)):
        return None
    return case


def _may_overlap(case: AnyCase) -> bool:
    """True if two programs of one thread may run at the same time, since they run on different devices."""
    if isinstance(case, DeviceCase):
        return "changing_devices" in case.kinds() or "mixed" in case.kinds()
    return len({run.device for run in case.runs}) > 1


def compare(mutation: Mutation | None, before: list[str], after: list[str], found: dict[str, Any]) -> list[str]:
    """What is wrong with what `diff` has found between two runs, of which these lines are expected."""
    labels = () if mutation is None else mutation.labels
    kind = "" if mutation is None else mutation.kind
    of = {label: [[line for line in lines if label_of(line) == label] for lines in (before, after)] for label in labels}
    wanted: dict[str, list[int]] = {}
    for label, (a, b) in of.items():
        different = sum(one != other for one, other in zip(a, b, strict=False))
        counts = [different, max(0, len(a) - len(b)), max(0, len(b) - len(a))]
        if any(counts):
            wanted[label] = counts
    got: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for site in found["sites"]:
        if any(site["counts"][1:]):
            name = label_of(site["title"])
            got[name] = [a + b for a, b in zip(got[name], site["counts"][1:], strict=True)]
    complaints = []
    if wanted != dict(got):
        complaints.append(f"differing, only A and only B are {dict(got)}, and should be {wanted}")
    orders = [[label_of(line) for line in lines if label_of(line) in labels] for lines in (before, after)]
    parts = mutation is not None and mutation.is_ordered and (orders[0] != orders[1] and kind != "value")
    parting = found["parting"]
    if parts != (parting is not None):
        complaints.append(f"the runs part at {parting}, and should{' not' * (not parts)} part")
    elif parting is not None and not {label_of(title) for title in parting if title} & {*labels}:
        complaints.append(f"the runs part at {parting}, and should part at {labels}")
    if found["equal"] != (not wanted and not parts) or found["command"]["status"] != int(not found["equal"]):
        complaints.append(f"equal is {found['equal']}, and the status {found['command']['status']}")
    if complaints:
        complaints.append(found["command"]["output"])
    return complaints


def check(case: AnyCase, rng: random.Random, kinds: Sequence[str] = MUTATIONS) -> int:
    """Checks what `diff` finds between a case and itself, recorded in another thread, and between it and a mutation of
    each of these kinds. Returns how many it compared."""
    repeated = repeatable(case)
    if repeated is None:
        return 0
    found = [mutation for program in _programs(repeated) for mutation in mutations(program)]
    of_kinds = ([mutation for mutation in found if mutation.kind == kind] for kind in kinds)
    return _check_each(repeated, [rng.choice(each) for each in of_kinds if each])


def _programs(case: AnyCase) -> list[Program]:
    return [*dict.fromkeys(run.program for run in case.runs)]


def _check_each(case: AnyCase, chosen: Sequence[Mutation]) -> int:
    before = lines_of(case)
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "a.fx"), Path(folder, "b.fx")
        record(case, first)
        others: list[tuple[Mutation | None, AnyCase]] = [(None, case)]
        others += [(mutation, with_program(case, mutation)) for mutation in chosen]
        for mutation, other in others:
            in_new_thread(lambda other=other: record(other, second))
            answer = reader().ask("diff", str(first), str(second))
            if complaints := compare(mutation, before, lines_of(other), answer):
                title = "itself" if mutation is None else f"{mutation.kind} {mutation.labels}"
                programs = [mutation.program, mutation.changed] if mutation else _programs(case)
                sources = [render(program) for program in programs]
                raise AssertionError("\n".join([f"diff with {title}:", *complaints, "", *sources]))
    return len(others)


# Files that are full.

SMALLEST = 1 << 16  # bytes of a file
_RECORD = 112  # bytes of a usual record


def check_cut(case: AnyCase, rng: random.Random, kind: str, fill: float) -> int:
    """Checks what `diff` finds where files of the smallest size are full.

    The dispatches of the case are repeated until they fill the file so many times. The last repetition is mutated.

    Returns:
      How many diffs it has checked: none of a case that may differ from itself, or has too many records or too few.
    """
    repeated = repeatable(case)
    if not isinstance(repeated, Case) or any(isinstance(s, Kernel) for s in statements(case)):
        return 0  # the log of a kernel is one record, for which such a file may have no room
    size = len(lines_of(repeated)) * _RECORD
    found = [each for run in repeated.runs for each in mutations(run.program) if each.kind == kind]
    if not found or not SMALLEST // 64 < size < SMALLEST // 4:
        return 0
    count = len(repeated.runs)
    times = max(2, round(fill * SMALLEST / size))
    if count * times > 97:  # a dispatch's number is a value of its program, and values are less
        return 0
    mutation = rng.choice(found)
    case = dataclasses.replace(repeated, runs=repeated.runs * times)
    other = with_program(case, mutation, range(count * (times - 1), count * times))
    before = lines_of(case)
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "a.fx"), Path(folder, "b.fx")
        record(case, first, max_bytes=SMALLEST)
        for name, each in (None, case), (mutation, other):
            record(each, second, max_bytes=SMALLEST)
            answer = reader().ask("diff", str(first), str(second))
            if "refused" in answer:
                assert "has no call from its beginning on" in answer["refused"]
            elif complaints := compare(name, before, lines_of(each), answer):
                title = "itself" if name is None else f"{kind} {mutation.labels}"
                head = f"diff with {title}, which is {fill} times as large as a file:"
                raise AssertionError(
                    "\n".join([head, *complaints, "", render(mutation.program), describe(case)[-300:]])
                )
    return 2
