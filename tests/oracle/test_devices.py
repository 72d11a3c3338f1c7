"""Random programs over several devices against the oracle, and the oracle against what it must notice."""

from __future__ import annotations

import collections
import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.forks import run_forked
from tests.oracle.devices.cases import case_number
from tests.oracle.devices.compare import check, compare
from tests.oracle.devices.language import DeviceCase, MeshRun, Outside
from tests.oracle.devices.loose import loose_regions
from tests.oracle.devices.observe import expect
from tests.oracle.devices.placing import ENTRIES, Placing
from tests.oracle.devices.region import MODES, REGIONS, Region
from tests.oracle.devices.statements import TALKS, Talk, Whole
from tests.oracle.expressions import Binary, Less, Literal, Name
from tests.oracle.generator import KINDS
from tests.oracle.language import EAGER, Function, Program, Run, statements
from tests.oracle.runners import library_after
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Call, Vmap
from tests.oracle.statements.control import Cond, Fori, Scan
from tests.oracle.statements.effects import Effect, Log
from tests.oracle.statements.state import Assign

SAMPLE = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
from hypothesis import HealthCheck, given, reject, settings
from tests.oracle.devices.cases import case_number, cases
from tests.oracle.devices.compare import check
from tests.oracle.observe import NotInJax
from tests.oracle.runners import library

@settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(cases())
def holds(case):
    try:
        check(case, runner)
    except NotInJax:
        reject()

runner = library()
holds()
for number in range(6):
    check(case_number(1, number), runner)
print("done")
"""


def test_random_programs_over_devices_keep_program_order() -> None:
    """In a process of its own, with eight devices; XLA ends one whose devices do not find each other."""
    done = run_forked(SAMPLE)
    assert done.stdout.endswith("done\n"), done.stdout[-3000:] + done.stderr[-3000:]


A, B, D, Y, N = Name("a"), Name("b"), Name("d"), Name("y"), Name("n")


def _region(*body: Any, form: str = "one_axis", mode: str = "wide", turns: int = 1, **parameters: Any) -> Region:
    """A region whose devices have the values 5, 6, 7, 8, and which gives `a` of each."""
    xs = (5, 6, 7, 8, 0, 0, 0, 0)
    given = {"check_vma": True, "closes": ("n",), "result": A, "target": "c", **parameters}
    return Region("r", form, given.pop("check_vma"), turns, "d", "y", xs, Literal(0), body=body, mode=mode, **given)


def _case(*body: Any, placing: Placing | None = None, functions: tuple[Function, ...] = ()) -> DeviceCase:
    run = MeshRun(Program(functions, body), (1, 2, 3), placing=placing or Placing((0, 1, 2, 3), 2))
    loose = bool(loose_regions(run.program))
    return DeviceCase(((run,),), capture=loose)


WAYS = _region(
    Assign("a", Binary("+", A, Y)),
    Fori("i", D, 4, (Effect("ordered", "turn", (D, Name("i"))),)),
    Talk("psum", D, "a"),
    Effect("ordered", "end", (D, A)),
)
"""Device 0 makes no turn, device 3 makes three."""


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("form", ["one_axis", "two_axes", "pmap"])
def test_region_agrees_with_lines_written_by_hand(form: str, check_vma: bool) -> None:
    """By the number in each device's own order, then by device; what is around comes before and after."""
    region = dataclasses.replace(WAYS, form=form, check_vma=check_vma)
    whole = Whole("whole", (1, 2, 3, 4, 5, 6, 7, 90), N, True, False, False, "b")
    case = _case(Effect("ordered", "start", (N,)), region, whole)
    assert check(case)[0].lines == [
        "start 0",
        *("end 0 12", "turn 1 0", "turn 2 0", "turn 3 0"),  # 1 + 5 + (0 + 1 + 2 + 3)
        *("end 1 13", "turn 2 1", "turn 3 1"),
        *("end 2 14", "turn 3 2"),
        "end 3 15",
        "whole [ 1  2  3  4  5  6  7 90]",
    ]


def test_region_on_devices_in_another_order_agrees_with_lines_written_by_hand() -> None:
    """The order is that of the devices, whatever their places in the mesh."""
    case = _case(_region(Effect("ordered", "at", (D, Y))), placing=Placing((3, 1), 1))
    assert check(case)[0].lines == ["at 1 6", "at 0 5"]


def test_event_that_is_not_shown_has_a_number() -> None:
    """It is below the level, in a branch that one of the devices takes."""
    hidden, shown = Log("log", "hidden", "DEBUG", (D,), False), Effect("ordered", "shown", (D,))
    body = (Cond(Less(D, Literal(1)), (hidden,), (shown,)), Effect("ordered", "after", (D,)))
    case = _case(_region(*body), placing=Placing((3, 1), 1))
    assert check(case)[0].lines == ["shown 1", "after 1", "after 0"]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("form", ["rows", "columns"])
def test_parts_agree_with_lines_written_by_hand(form: str, check_vma: bool) -> None:
    """Two devices are as one."""
    case = _case(dataclasses.replace(WAYS, form=form, check_vma=check_vma))
    assert check(case)[0].lines == ["end 0 7", "turn 1 0", "end 1 8"]  # 1 + 5 + (0 + 1), and so on


def test_shards_agree_with_lines_written_by_hand() -> None:
    """By device. What all have is shown by the first of the mesh."""
    shards = Whole("part", (1, 2, 3, 4, 5, 6, 7, 90), N, True, False, True, "b")
    of_jax = dataclasses.replace(shards, label="jax", by_jax=True)
    case = _case(shards, of_jax, dataclasses.replace(shards, sharded=False), placing=Placing((3, 1, 0, 2)))
    assert check(case)[0].lines == [
        "part 0 [4:6] [5 6]",
        "part 1 [2:4] [3 4]",
        "part 2 [6:8] [ 7 90]",
        "part 3 [0:2] [1 2]",
        *("jax [5 6]", "jax [3 4]", "jax [ 7 90]", "jax [1 2]"),
        "part 3 [0:8] [ 1  2  3  4  5  6  7 90]",
    ]


def test_region_again_and_in_lanes_agrees_with_lines_written_by_hand() -> None:
    """Each time all devices come anew. Lanes come at each place of each device."""
    shows = Effect("ordered", "at", (D, Y))
    case = _case(_region(shows, turns=2), placing=Placing((0, 1), 1))
    assert check(case)[0].lines == ["at 0 5", "at 1 6", "at 0 6", "at 1 7"]
    here = _region(Effect("ordered", "at", (D, Name("l"))), Effect("ordered", "and", (D,)), closes=("n", "l"))
    case = _case(Vmap("l", (7, 9), Literal(0), (here,), A, "b"), placing=Placing((0, 1), 1))
    lines = ["at 0 7", "at 0 9", "at 1 7", "at 1 9", "and 0", "and 0", "and 1", "and 1"]
    assert check(case)[0].lines == lines


LOOSE = _region(
    Vmap(
        *("l", (0, 1), D),
        (Cond(Less(Name("l"), Literal(2)), (Effect("ordered", "small", (D, Name("l"))),), ()),),
        *(A, "a"),
    ),
    Effect("ordered", "end", (D,)),
)


def test_loose_region_is_compared_by_device() -> None:
    """Here device 2 counts what its lanes skip. Its own order is compared, with what was captured."""
    case = _case(LOOSE, placing=Placing((0, 1, 2), 1))
    [outcome] = check(case)
    assert sorted(outcome.lines) == ["end 0", "end 1", "end 2", "small 0 0", "small 0 1", "small 1 1"]
    [(want, places)] = [expect(case.sequences[0])]
    records = [("end 0", 0), ("small 0 0", 0), ("small 0 1", 0), ("small 1 1", 1), ("end 1", 1), ("end 2", 2)]
    seen = dataclasses.replace(want)
    complaints = compare(case.sequences[0], want, places, seen, records)
    assert len(complaints) == 1 and complaints[0].startswith("device 0: expected ['small 0 0', 'small 0 1', 'end 0']")


@pytest.mark.parametrize(
    ("mode", "body", "loose"),
    [
        ("wide", (Cond(Less(D, A), (Callback("sync", "s", (), "flat", False, (), False),), ()),), False),
        (
            "both",
            (Cond(Less(D, A), (Callback("sync", "s", (), "flat", False, (), False),), ()), Talk("psum", A, "a")),
            False,
        ),
        (
            "both",
            (
                Fori("i", D, 5, (Callback("sync", "s", (), "flat", False, (), False),)),
                Talk("psum", A, "a"),
            ),
            True,
        ),
        ("talk_ways", (Cond(Less(D, A), (Effect("ordered", "e", ()),), ()), Talk("psum", A, "a")), False),
        ("talk_calls", (Callback("sync", "s", (), "flat", False, (), False), Talk("psum", A, "a")), False),
        ("wide", (Vmap("l", (1,), A, (Effect("ordered", "e", ()),), A, "a"),), False),
        ("wide", (Vmap("l", (1,), A, (Call("f0", True),), A, "a"),), True),
    ],
)
def test_loose_regions(mode: str, body: Any, loose: bool) -> None:
    """Which regions are known by each device's own order alone."""
    f0 = Function("f0", "jit", (Cond(Less(A, B), (Effect("ordered", "f", ()),), ()),))
    program = Program((f0,), (_region(*body, mode=mode),))
    assert loose_regions(program) == ({"r"} if loose else set())


def test_devices_skip_what_other_branches_have() -> None:
    """Where they wait for callbacks; elsewhere each goes on counting."""
    two = (Effect("ordered", "one", (D,)), Effect("ordered", "two", (D,)))
    branch = Cond(Less(D, Literal(1)), two, (Effect("ordered", "other", (D,)),))
    waits = Callback("sync", "s", (D,), "flat", False, (), False, 0, "a", (("int32", 0),))
    shows = Effect("ordered", "end", (D,))
    case = _case(_region(branch, shows), placing=Placing((0, 1, 2), 1))
    assert check(case)[0].lines == ["one 0", "other 1", "other 2", "two 0", "end 1", "end 2", "end 0"]
    case = _case(_region(branch, shows, waits), placing=Placing((0, 1, 2), 1))
    lines = ["one 0", "other 1", "other 2", "two 0", "end 0", "end 1", "end 2"]
    assert check(case)[0].lines == [*lines, *(f"s {n} @0" for n in range(3))]


def test_sequence_on_changing_devices_agrees_with_lines_written_by_hand() -> None:
    """Programs on several devices, on one, effects outside of any, and a callback that raises in between."""
    bad = Callback("sync", "bad", (A,), "flat", False, (), False, 1, "a", (("int32", 0),))
    shows = Program((), (_region(Effect("ordered", "at", (D, Y))),))
    fails = Program((), (Effect("ordered", "before", ()), bad, Effect("ordered", "after", (A,))))
    sequence = (
        MeshRun(shows, (1, 2, 3), placing=Placing((2, 3), 1)),
        Outside("print", 4),
        MeshRun(fails, None, placing=Placing((1, 0), 1, entry="sharded")),
        Outside(""),
        Run(fails, None, 3),
        MeshRun(shows, None, placing=Placing((3, 0), 1)),
    )
    [outcome] = check(DeviceCase((sequence,), capture=True))
    first, second = ["before", "bad 1 @0"], ["before", "bad 1 @0", "after 9"]
    assert outcome.lines == ["at 0 5", "at 1 6", "print 4", *first, *second, "at 1 6", "at 0 5"]
    assert outcome.states[1] == "bad"


def _swap(lines: list[str]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param(_swap, "+turn 2 0\n turn 1 0\n-turn 2 0", id="swapped devices"),
        pytest.param(lambda lines: lines.remove("turn 3 1"), "-turn 3 1", id="lost"),
        pytest.param(lambda lines: lines.append("end 3 15"), "+end 3 15", id="repeated"),
    ],
)
def test_check_reports_changed_lines(change: Callable[[list[str]], None], complaint: str) -> None:
    """Lines of a region that are in another order, lost or repeated are reported, with the source and the devices."""
    with pytest.raises(AssertionError) as raised:
        check(_case(WAYS), library_after(change))
    assert complaint in str(raised.value)
    assert "Placing(devices=(0, 1, 2, 3)" in str(raised.value) and "def device_1(d, y, a, b, c, x)" in str(raised.value)


def test_check_reports_a_barrier_that_returns_early() -> None:
    """A barrier for prints alone returns when the prints of all devices are out, those of regions too."""
    shows = Program((), (_region(Effect("ordered", "at", (D, Y)), Log("log", "event", "INFO", (A,), False)),))
    sequence = (MeshRun(shows, (1, 2, 3), placing=Placing((2, 3), 1), barrier="print"),)
    check(DeviceCase((sequence,)))
    want, places = expect(sequence)
    seen = dataclasses.replace(want, at_barriers=[(0, ["at 0 5"])])
    [complaint] = compare(sequence, want, places, seen, None)
    assert complaint == "the barrier for print behind dispatch 0 returned ahead of ['at 1 6']"


def test_check_reports_lines_of_a_thread() -> None:
    """Each thread's own lines are compared, and only these."""
    shows = [
        Program((), (Scan("z", "q", A, (1, 2), B, False, 1, (Effect("ordered", f"t{t}A", (Name("z"),)),), A, "c"),))
        for t in (0, 1)
    ]
    case = DeviceCase(tuple((Run(program, (1, 2, 3), t),) for t, program in enumerate(shows)))
    assert [outcome.lines for outcome in check(case)] == [[f"t{t}A 3", f"t{t}A 4"] for t in (0, 1)]
    swap = library_after(lambda lines: lines.sort(key=lambda line: (line[:2], -int(line[-1]))))
    with pytest.raises(AssertionError, match=re.escape("+t0A 4\n t0A 3\n-t0A 4")):
        check(case, swap)


@pytest.mark.slow
def test_cases_reach_every_statement() -> None:
    """Every kind of statement, region, place and way to a program is generated early."""
    counts: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    for number in range(400):
        case = case_number(0, number)
        kinds.update(case.kinds())
        for statement in statements(tuple(run.program for run in case.runs)):
            counts.update(statement.kinds())
    more = {"region", *REGIONS, *(f"region_{mode}" for mode in MODES)}
    more |= {
        "check_vma",
        "no_check_vma",
        "region_turns",
        *TALKS,
        *(f"{talk}_start" for talk in TALKS),
        "talk_update",
        "whole",
        "whole_sharded",
        "shards",
    }
    more |= {"jax_whole", "jax_whole_sharded", "jax_shards"}
    without = {"fails_sync_unordered", "native_fails", "check", "action_quiet", "action_loud"}
    assert KINDS - without | more == set(counts)
    assert set(kinds) == {
        *(f"entry_{entry}" for entry in ENTRIES),
        *(f"devices_{count}" for count in (2, 4, 8)),
        *("threads_2", "threads_3", "explicit", "permuted", "changing_devices", "mixed", "loose", "skips"),
        *("exported", "exported_for_several"),
        *(f"eager_{kind}" for kind in EAGER),
        *("outside", "barriers", "named_barriers", "capture", "order_process", "fails_in_region"),
    }


def test_case_number_depends_on_seed_and_number_only() -> None:
    """A failing case of a bulk run can be had again from its two numbers."""
    again = [case_number(3, number) for number in (7, 5)]
    random.seed(0)
    assert again == [case_number(3, number) for number in range(8)][7:4:-2]
    assert case_number(4, 7) != again[0]
