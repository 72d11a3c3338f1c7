"""Programs small enough to say by hand what they show: the reading of Python says it too, and so does the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import effects as fx
from tests.oracle.compare import check
from tests.oracle.expressions import Binary, Less, Literal, Name
from tests.oracle.language import Case, Function, Program, Run
from tests.oracle.python_ import interpret
from tests.oracle.runners import library
from tests.oracle.statements.asynchronous import InFlight
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Call, Vmap, Wrapped
from tests.oracle.statements.control import Cond, Fori, Scan, While
from tests.oracle.statements.derivatives import CustomRule, Derivative, PrintGrad, Scale
from tests.oracle.statements.effects import Effect, Log
from tests.oracle.statements.state import Assign

A, B, N, L = Name("a"), Name("b"), Name("n"), Name("l")
SMALL = Program(
    functions=(Function("f0", "jit", (Effect("ordered", "f", (A,)), Assign("a", Binary("+", A, Literal(1))))),),
    body=(
        Effect("ordered", "start", (N, A)),
        Fori("i", B, 4, (Effect("ordered", "loop", (Name("i"),)), Call("f0", True))),
        Effect("unordered", "aside", (A,)),
        Cond(Less(A, B), (Effect("ordered", "less", ()),), (Effect("ordered", "not less", ()),)),
        Scan("y", "q", A, (1, 2), B, True, 1, (Effect("ordered", "scan", (Name("y"), Name("q"))),), Name("y"), "c"),
        Call("f0", False),
        Effect("ordered", "end", (A, B, Name("c"))),
    ),
)
SMALL_LINES = [
    *("start 0 5", "loop 0", "f 5", "loop 1", "f 6", "aside 7", "not less"),
    *("scan 4 7", "scan 3 7", "f 7", "end 7 2 18"),
]


def test_interpret_small_program_gives_lines_written_by_hand() -> None:
    """`interpret` runs loops, branches, a reversed scan and calls as Python would."""
    assert interpret(SMALL, (5, 2, 7)) == ((7, 2, 18), SMALL_LINES)


def test_check_small_program_agrees_with_lines_written_by_hand() -> None:
    """The library keeps its promise for a program whose lines were written down by hand."""
    outcome = check([Run(SMALL, (5, 2, 7))])
    assert outcome.lines == SMALL_LINES


MIXED = Program(
    functions=(),
    body=(
        Log("log", "event", "INFO", (A, B), True),
        Callback("queued", "later", (A,), "tree", True, ("print", "effects_jit"), True),
        Callback(
            *("sync", "asks", (A, B), "flat", False, ("jit",), True),
            target="a",
            results=(("int32", 2), ("bool", 0)),
            structure="tuple",
        ),
        Cond(Less(A, Literal(48)), (), (Effect("ordered", "not less", ()),)),
        Vmap(
            *("l", (1, 2), B),
            (
                Callback("sync", "lane", (Name("l"),), "array", False, (), False, 0, "b", (("float16", 0),)),
                Effect("ordered", "at", (Name("l"), B)),
            ),
            *(B, "c"),
        ),
        Effect("ordered", "end", (A, B, Name("c"))),
    ),
)
MIXED_LINES = [
    "event x0=5 x1=2 y=[5 2] INFO",
    *("later 5 @0", "later.print 5", "o.nested 5 0", "o.nested 5 1"),
    *("asks 5 2 @0", "asks.jit 19"),  # it remembers 31 * 6 + 10, which is 2: its numbers begin at 9 + 2 + 7
    "not less",
    *("lane 3 @0", "lane 4 @0", "at 3 12", "at 4 13"),
    "end 73 2 45",
]


@pytest.mark.parametrize("capture", [False, True])
def test_check_mixed_program_agrees_with_lines_written_by_hand(capture: bool) -> None:
    """Events, callbacks and lanes mean what was worked out by hand; the library and its records say the same."""
    assert interpret(MIXED, (5, 2, 7)) == ((73, 2, 45), MIXED_LINES)
    assert check(Case((Run(MIXED, (5, 2, 7)),), capture=capture)).lines == MIXED_LINES


LANES = Program(
    functions=(Function("f0", "jit", (Log("log", "called", "INFO", (A,), False),)),),
    body=(
        Vmap(
            *("l", (1, 2, 3), Literal(0)),
            (
                Cond(Less(Name("l"), Literal(2)), (Effect("ordered", "small", (Name("l"),)),), (Call("f0", True),)),
                While(
                    *("k", (Effect("ordered", "asks", (Name("l"), A)),), Less(A, Name("l")), 3),
                    (Assign("a", Binary("+", A, Literal(1))), Effect("ordered", "turn", (Name("l"), A))),
                ),
            ),
            *(A, "b"),
        ),
    ),
)
LANES_LINES = [
    *("called x0=1 INFO lane (1,)", "called x0=1 INFO lane (2,)", "small 1"),
    *("asks 1 1", "asks 2 1", "asks 3 1", "turn 2 2", "turn 3 2", "asks 2 2", "asks 3 2", "turn 3 3", "asks 3 3"),
]


def test_check_lanes_agree_with_lines_written_by_hand() -> None:
    """Lanes of a `vmap` go where Python would, each in its place: the branch that is false first, as in a `switch`."""
    assert interpret(LANES, (1, 0, 0)) == ((1, 14, 0), LANES_LINES)
    assert check([Run(LANES, (1, 0, 0))]).lines == LANES_LINES


RULES = Program(
    functions=(),
    body=(
        Derivative(
            *("grad", "slope"),
            (
                Vmap(
                    *("l", (1, 2), Literal(0)),
                    (CustomRule("back", (), (), (Effect("ordered", "of", (B,)),), -1),),
                    *(Name("l"), "c"),
                    apart=True,
                ),
            ),
            "a",
        ),
    ),
)


def test_check_rules_of_lanes_agree_with_lines_written_by_hand() -> None:
    """A backward rule shows each lane's slope: JAX gives it their sum where lanes share what is differentiated."""
    lines = ["back 1.0", "back 1.0", "of 7", "of 7", "slope -2.0"]
    assert interpret(RULES, (3, 7, 0))[1] == lines
    assert check([Run(RULES, (3, 7, 0))]).lines == lines


OF_JAX = Program(
    functions=(Function("f0", "jit", (Effect("jax_print", "called", (A,)),)),),
    body=(
        Vmap(
            *("l", (1, 2, 3), Literal(0)),
            (
                Cond(Less(L, Literal(2)), (Effect("jax_print", "small", (L,)),), (Effect("jax_print", "large", (L,)),)),
                While(
                    "k", (), Less(A, L), 3, (Assign("a", Binary("+", A, Literal(1))), Effect("jax_print", "turn", (L,)))
                ),
            ),
            *(A, "b"),
        ),
        Callback("jax_queued", "later", (A,), "tree", False, ("print",), True),
        Effect("jax_print_ordered", "ordered", (A,)),
        Derivative(
            "grad", "slope", (Wrapped("remat", True, (Effect("jax_print", "once", (A,)), Call("f0", True))),), "c"
        ),
        Callback("jax_io", "saves", (A, B), "keywords", False, (), False),
        Callback("jax_sync", "asks", (A,), "flat", False, (), False, target="a", results=(("int32", 2),)),
        Effect("ordered", "end", (A,)),
    ),
)
OF_JAX_LINES = [
    *("large 2", "large 3", "small 1", "turn 2", "turn 3", "turn 3"),
    *(
        "later 1 @0",
        "later.print 1",
        "ordered 1",
        "once 1",
        "called 1",
        "slope 1.0",
        "saves 1 14 @0",
        "asks 1 @0",
        "end 39",
    ),
]


def test_check_effects_of_jax_agree_with_lines_written_by_hand() -> None:
    """JAX's own effects come once, in the lanes that are there, in program order without a request for it."""
    assert interpret(OF_JAX, (1, 0, 0))[1] == OF_JAX_LINES
    assert check([Run(OF_JAX, (1, 0, 0))]).lines == OF_JAX_LINES


def test_check_reports_semantics_of_jax() -> None:
    """What JAX's transformations make of its effects is not what is promised."""
    right = library()

    def jit(fun: Callable[..., Any]) -> Callable[..., Any]:
        jitted = right.jit(fun)

        def call(*args: Any) -> Any:
            with fx.config.override(jax_effects="jax"):
                return jitted(*args)

        return call

    with pytest.raises(AssertionError, match="expected ordered lines"):
        check([Run(OF_JAX, (1, 0, 0))], dataclasses.replace(right, jit=jit))


def _differentiated(form: str) -> Program:
    rule = CustomRule("rule", (), (Effect("ordered", "forward", (A,)),), (Effect("ordered", "backward", (A,)),), -1)
    turn = (Effect("ordered", "turn", (A,)), PrintGrad("back"), Scale((2,), A, A), Assign("a", Binary("+", A, A)))
    return Program((), (Derivative(form, "slope", (Fori("i", 2, 2, turn), *([rule] * (form == "grad"))), "b"),))


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("grad", ["forward 4", "rule 1.0", "backward 4", "back -2.0", "back -4.0", "slope -4.0"]),
        ("jacrev", ["back 2.0", "back 4.0", "back 4.0", "back 8.0", "slope 4.0 8.0"]),
        ("vjp", ["slope.between 4.0", "back 2.0", "back 4.0", "slope 4.0"]),
        ("hessian", ["back 2.0", "back 4.0", "slope 8.0"]),
        ("jvp", ["slope 4.0"]),
        ("jacfwd", ["slope 4.0"]),
        ("linearize", ["slope.between 4.0", "slope 4.0"]),
    ],
)
def test_check_derivatives_agree_with_lines_written_by_hand(form: str, lines: list[str]) -> None:
    """What happens forward happens once; what happens backward, last iteration first, for each time one goes there."""
    assert check([Run(_differentiated(form), (1, 0, 0))]).lines == ["turn 1", "turn 2", *lines]


def test_check_slope_of_zero_has_no_sign() -> None:
    """A rule that negates a derivative of zero gives -0.0 in JAX, or 0.0 where JAX adds zeros: both are zero."""
    nothing = InFlight("nothing", "async_x", (), None, "i", 2, (), "b", -1)  # x - x
    program = Program((), (Derivative("grad", "slope", (CustomRule("rule", (), (), (), -1), nothing), "b"),))
    assert check([Run(program, (1, 0, 0))]).lines == ["rule 0.0", "slope 0.0"]


JAXS = Program(
    functions=(Function("f0", "jit", (Effect("jax_print", "called", ()),)),),
    body=(
        Vmap(
            *("l", (1, 2, 3), Literal(0)),
            (
                Effect("jax_print", "once", (N,)),
                Effect("jax_print", "each", (L,)),
                Effect("ordered", "ours", (N,)),
                Callback("jax_sync", "asks", (N,), "flat", False, (), False, 0, "c", (("int32", 0),)),
                Cond(
                    Less(L, Literal(2)),
                    (),
                    (Effect("jax_print", "some", ()), Effect("jax_print", "given", (N,)), Call("f0", False)),
                ),
                Cond(Less(L, Literal(1)), (Effect("jax_print", "none", (N,)),), ()),
                While(
                    *("k", (), Less(B, L), 3),
                    (Assign("b", Binary("+", B, Literal(1))), Effect("jax_print", "turn", ())),
                ),
                Vmap(
                    *("m", (4, 5), Literal(0)),
                    (Effect("jax_print", "inner", (Name("m"),)), Effect("jax_print", "both", (L, Name("m")))),
                    *(Name("m"), "b"),
                ),
            ),
            *(Name("c"), "b"),
        ),
    ),
)
JAXS_LINES = [
    *(
        "once 0",
        "each 1",
        "each 2",
        "each 3",
        "ours 0",
        "ours 0",
        "ours 0",
        "asks 0 @0",
        "some",
        "given 0",
        "given 0",
        "called",
    ),
    *("turn", "turn", "turn", "inner 4", "inner 5"),
    *("both 1 4", "both 1 5", "both 2 4", "both 2 5", "both 3 4", "both 3 5"),
]


def test_check_jaxs_own_effects_in_lanes_agree_with_lines_written_by_hand() -> None:
    """JAX's own effects happen once along an axis along which no operand is mapped, if any lane comes there. What comes
    from outside of a branch is mapped as its predicate is."""
    state, lines = interpret(JAXS, (1, 0, 0))
    assert lines == JAXS_LINES
    outcome = check([Run(JAXS, (1, 0, 0))])
    assert outcome.lines == JAXS_LINES and outcome.states == [state]
