"""Asynchronous programs as text: what is written is read again, and what is damaged is refused with its place.

`python -m tests.extensions.inspecting.test_text 500 2000` runs as many random programs and damages.
"""

from __future__ import annotations

import collections
import itertools
import pickle
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.asynchronous import Inspection, TextError, parse
from effects.extensions.inspecting.inspect import _inspect
from effects.extensions.inspecting.text import Block
from tests.helpers import build_handlers
from tests.oracle.cases import RandomDraw
from tests.oracle.generator import Generator
from tests.oracle.host import Host
from tests.oracle.jax_ import to_jax
from tests.oracle.language import FEATURES, REGISTERS, statements
from tests.oracle.runners import library
from tests.oracle.statements.asynchronous import InFlight
from tests.storm.mixtures import DEVICES, Mixture

pytestmark = pytest.mark.slow

X = jnp.arange(3.0)
PLACE = re.compile(r"[Ll]ine (\d+), column (\d+)")
FEATURES_TO_DRAW = FEATURES - {"devices", "native"}


def straight(x):
    future = fx.async_start(jnp.sin, x)
    y = x * x
    future = fx.async_update(future)
    return y + fx.async_done(future)


def carried(x):
    def turn(i, carry):
        future, y = carry
        y = y + fx.async_done(future)
        return fx.async_start(jnp.cos, y), y

    future, y = jax.lax.fori_loop(0, 3, turn, (fx.async_start(jnp.sin, x), x))
    future = fx.async_update(future)
    y = y + jax.jit(lambda future: fx.async_done(future))(future)
    called = fx.async_callback(lambda x, y: x, jax.ShapeDtypeStruct((3,), "float32"), x, y)
    return jax.lax.cond(y[0] > 0, lambda f: fx.async_done(f), lambda f: -fx.async_done(f), called)


def between_references(x):
    source, target = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))
    future = fx.copy_start(source, target)
    source[...] = x + 1
    fx.async_done(future)
    return source[...] + target[...]


def over_devices(x):
    def local(x):
        one, other = fx.ppermute_start(x, "i", [(0, 1), (1, 0)]), fx.psum_start(x, "i")
        y = jnp.exp(x)
        return y + fx.async_done(one) + fx.async_done(other)

    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(jnp.concatenate([x, x]))


def in_lanes(x):
    return jax.lax.map(fx.async_done, jax.vmap(lambda x: fx.async_start(jnp.sin, x))(x))


def derivative(x):
    return jax.grad(lambda x: (straight(x) * over_devices(x)[:3]).sum())(x)


def without_operations(x):
    return jnp.sin(x)


def while_loop(x):
    def turn(carry):
        return carry[0] + 1, fx.async_start(jnp.sin, fx.async_done(carry[1]), schedule=False)

    start = fx.async_start(jnp.cos, x, schedule=False)
    return fx.async_done(jax.lax.while_loop(lambda carry: carry[0] < 3, turn, (0, start))[1])


def called(x):
    """Starts operations in a function that is called twice, and in one that takes a future."""

    @jax.jit
    def twice(x):
        return 2 * fx.async_done(fx.async_start(jnp.sin, x))

    return jax.jit(lambda future: fx.async_done(future) + x)(fx.async_start(jnp.cos, twice(twice(x))))


PROGRAMS = [straight, called, between_references, over_devices, derivative, without_operations]


@pytest.mark.parametrize("short", [False, True], ids=["long", "short"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_text_is_read_as_the_same_program(program, short):
    """With the copies of the compiled program, in both forms."""
    inspection = fx.inspect(program)(X)
    text = inspection.text(short=short)
    again = parse(text)
    assert again == inspection and str(again) == str(inspection) and hash(again) == hash(inspection)
    assert again.text(short=short) == text
    assert again.text(short=not short) == inspection.text(short=not short)
    assert parse(re.sub(r"\n *", " \n\n\t ", text)) == inspection


@pytest.mark.parametrize("program", [carried, in_lanes, while_loop])
def test_loops_and_branches_have_no_text(program):
    """The error names the loop or branch and its line. The report has it all."""
    inspection = fx.inspect(program)(X)
    said = r"operations in the `\w+` at .*test_text\.py:\d+.* `str\(inspection\)`"
    with pytest.raises(NotImplementedError, match=said):
        inspection.text()
    assert "-done(%1)" in str(inspection)
    assert fx.inspect(program)(X) == inspection and hash(fx.inspect(program)(X)) == hash(inspection)
    assert inspection != fx.inspect(straight)(X)


def test_other_programs_are_not_equal():
    """Equality is that of the programs, and not only that of the reports."""

    def program(options):
        return fx.inspect(lambda x: fx.async_done(fx.async_start(jnp.sin, x, **options)))(X)

    one, other = program({}), program({"schedule": False})
    assert str(one) == str(other) and one != other
    assert parse(other.text()) != parse(one.text())


def test_both_forms():
    """The short form of an operation is an opcode, and the long one a start that calls a computation."""
    inspection = fx.inspect(straight)(X)
    short, long = (
        [re.sub(r', (where|source)=("[^"]*"|\{[^}]*\})', "", line.strip()) for line in text.splitlines()]
        for text in (inspection.text(short=True), inspection.text())
    )
    started = "((float32[3]), float32[3], float32[3])"
    common = 'results={"float32[3]"}'
    assert [line for line in short if "sin" in line] == [
        f'%2 = {started} sin-start(float32[3] %0), {common}, name="sin"',
        f"%4 = {started} sin-update({started} %2), {common}",
        f"%5 = float32[3] sin-done({started} %4), {common}",
    ]
    assert [line for line in long if "sin" in line] == [
        "%sin.0 {",
        "ROOT %results = float32[3] sin(float32[3] %operand0)",
        f'%2 = {started} async-start(float32[3] %0), calls=%sin.0, name="sin"',
        f"%4 = {started} async-update({started} %2), calls=%sin.0",
        f"%5 = float32[3] async-done({started} %4), calls=%sin.0",
    ]


def test_a_started_equation_is_the_root_of_its_computation():
    """The start takes its operands, and the short form has its name. Of several equations it is the last. Where another
    one takes the result too, the result is the operand."""

    def head(x):
        return jax.lax.slice(x, (0,), (2,))

    text = fx.inspect(lambda x: fx.async_done(fx.async_start(head, x)))(X).text
    said = 'params={{"start_indices", {0}}, {"limit_indices", {2}}}'
    root = f"ROOT %results = float32[2] slice(float32[3] %operand0), {said}"
    assert root in text() and "%slice.0 {\n  %operand0 = float32[3] parameter(0)" in text()
    started = "((float32[3]), float32[2], float32[3])"
    assert f'{started} slice-start(float32[3] %0), results={{"float32[2]"}}, {said}' in text(short=True)
    assert f"float32[2] slice-done({started} %" in text(short=True)
    used = fx.inspect(lambda x: (y := head(x)) + fx.async_done(fx.async_start(lambda x: x, y)))(X)
    several = fx.inspect(lambda x: fx.async_done(fx.async_start(lambda x: jnp.sin(x) + x, x)))(X)
    for inspection, opcode in ((used, "values"), (several, "add")):
        assert f" {opcode}-start(" in inspection.text(short=True) and parse(inspection.text()) == inspection


def test_attributes_of_a_collective():
    text = fx.inspect(over_devices)(X).text(short=True)
    (line,) = (line for line in text.splitlines() if "collective-permute-start" in line)
    assert 'axes={"i"}, size=2, receivers={1, 0}' in line and 'name="ppermute"' in line
    assert len(re.findall(r"all-to-all-start\(.*name=\"psum\"", text)) == 1


@pytest.mark.parametrize("program", [between_references, over_devices])
def test_operations_with_starts_of_their_own_have_their_opcodes(program):
    """Those that HLO has. Another opcode does not go with their attributes."""
    inspection = fx.inspect(program)(X)
    opcode = "copy" if program is between_references else "collective-permute"
    for short in (True, False):
        text = inspection.text(short=short)
        line = f"{opcode}-start(" if short else f"{opcode}(float32"
        assert text.count(line) == 1
        other = {"copy": "values", "collective-permute": "all-to-all"}[opcode]
        error = refusal(text.replace(line, line.replace(opcode, other)))
        assert f"the opcode of an operation with these attributes is `{opcode}`" in str(error)


def test_attributes_of_a_custom_call():
    """What is started is the call, with its target, its attributes and its aliases."""
    fx.register_custom_call("text.fold", (build_handlers(), "fold"))
    shape = jax.ShapeDtypeStruct((3,), "int32")
    options = {"modulus": np.int64(7), "input_output_aliases": {0: 0}, "vmap_method": "broadcast_all"}
    call = lambda x: fx.custom_call("text.fold", shape, x, **options)  # noqa: E731
    inspection = fx.inspect(lambda x: fx.async_done(fx.async_start(call, x)))(np.arange(3, dtype=np.int32))
    (line,) = (line for line in inspection.text().splitlines() if " custom_call(int32[3]" in line)
    said = [f'{{"{name}", {value}}}' for name, value in (("site", '"text.fold"'), ("aliases", "{{0, 0}}"))]
    assert all(each in line for each in said) and "'modulus': " in line
    assert parse(inspection.text(short=True)) == inspection


# Bad input


def refusal(text: str) -> BaseException:
    """What refuses a text. It says where."""
    with pytest.raises((TextError, fx.FutureError, ValueError)) as raised:
        parse(text)
    assert PLACE.search(str(raised.value)), raised.value
    return raised.value


def changed(text: str, old: str, new: str, line: str = "") -> tuple[str, int]:
    """The text with a change in the one line that has both parts, and the number of that line."""
    lines = text.split("\n")
    (at,) = (at for at, each in enumerate(lines) if old in each and line in each)
    lines[at] = lines[at].replace(old, new, 1)
    return "\n".join(each for each in lines if each), at + 1


@pytest.fixture(scope="module")
def texts():
    inspection = fx.inspect(straight)(X)
    return {short: inspection.text(short=short) for short in (False, True)}


OPCODES = ["begin", "sin-begin", "start-sin", "start", "async", "values", "equation-done", "tuple-start"]


@pytest.mark.parametrize("opcode", OPCODES)
def test_unknown_opcode(texts, opcode):
    text, line = changed(texts[True].replace("\n\n", "\n"), "sin-start", opcode)
    error = refusal(text)
    assert isinstance(error, TextError) and f"there is no opcode `{opcode}`" in str(error)
    assert error.lineno == line and text.splitlines()[line - 1][error.colno - 1 :].startswith(opcode)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.lineno, again.colno) == (str(error), error.lineno, error.colno)


def place_of(text: str, part: str) -> str:
    lines = text.splitlines()
    (at,) = (at for at, line in enumerate(lines) if part in line)
    return f"line {at + 1}, column 3"


def test_types_alias(texts):
    """The operands, the results and the context are the same from the start to the done; an operand is of the type of
    its value."""
    for part in ("sin-start(", "sin-update(", "sin-done("):
        text, line = changed(texts[True].replace("\n\n", "\n"), "float32[3]", "float32[4]", part)
        error = refusal(text)
        assert isinstance(error, TextError) and error.lineno in (line, line + 1)
    text, line = changed(texts[True].replace("\n\n", "\n"), "float32[3] %0, ", "float32[4] %0, ", '"mul"')
    error = refusal(text)
    assert isinstance(error, TextError) and error.lineno == line
    assert "`%0` is of type float32[3], and not float32[4]" in str(error)


@pytest.mark.parametrize("short", [False, True], ids=["long", "short"])
def test_future_that_is_not_used_once(texts, short):
    """A done is left out, and what it gave is the operand; an update is there twice, or the done of its result."""
    text = re.sub(r"\n.*-done.*", "", texts[short]).replace("%5)", "%3)")
    error = refusal(text)
    assert isinstance(error, fx.FutureError) and "is never done" in str(error)
    assert place_of(text, "-start(") in str(error)
    for part, again in (("update", "updated"), ("done", "done")):
        (line,) = (line for line in texts[short].splitlines() if f"-{part}(" in line)
        other = re.sub(r"%\d+ =", "%100 =", line, count=1)
        text = texts[short].replace(line, f"{line}\n{other}")
        error = refusal(text)
        assert isinstance(error, fx.FutureError)
        assert f"is {again} at {place_of(text, '%100 =')}" in str(error)
        assert f"was {again} at {place_of(text, line)} already" in str(error)


def test_future_that_is_a_number_or_returned(texts):
    future = "((float32[3]), float32[3], float32[3])"
    text, _ = changed(texts[True], "equation(float32[3] %0, float32[3] %0)", "equation(float32[3] %0)")
    error = refusal(text.replace('(float32[3] %0), primitive="mul"', f'({future} %2), primitive="mul"'))
    assert "is used as a number by `mul`" in str(error)
    text = re.sub(r"ROOT tuple\(.*\)", f"ROOT tuple({future} %4)", texts[True])
    assert "returned" in str(refusal(re.sub(r"\n.*-done.*", "", text).replace(" %5)", " %3)")))


def test_another_computation(texts):
    """A done is that of the operation which was started."""
    short = changed(texts[True].replace("\n\n", "\n"), ", source", ", schedule=false, source", "-done")
    (computation,) = re.findall(r"%sin.0 \{[^}]*\}", texts[False])
    other = computation.replace("sin.0", "sin.1").replace("%operand0)", "%operand0), schedule=false")
    long = texts[False].replace("ENTRY", f"{other}\n\nENTRY").replace("\n\n", "\n")
    for text, line in (short, changed(long, "calls=%sin.0", "calls=%sin.1", "-done")):
        error = refusal(text)
        assert isinstance(error, fx.FutureError) and f"is done at line {line}, column 3 as one of" in str(error)


def test_reference_that_is_written():
    """The source may be written, and the target not."""
    text = fx.inspect(between_references)(X).text()
    source, target = re.findall(r"(%\d+) = Ref", text)
    written = f"equation(Ref{{float32[3]}} {source}, "
    assert text.count(written) == 1
    error = refusal(text.replace(written, written.replace(source, target)))
    assert not isinstance(error, TextError) and "between the start of `copy` at line" in str(error)


EMPTY = "HloModule, copies={}, between={}"
ENTRY = f"{EMPTY}\n\nENTRY %main {{\n  "
NO_PROGRAMS = {
    **{text: text for text in ("", "x", "%", "HloModule", EMPTY, ENTRY)},
    "nested data": "HloModule, copies=" + "{" * 5000,
    "nested types": f"{ENTRY}%0 = {'(' * 5000}",
    "JSON": "HloModule, copies=" + "[" * 100_000,
    "other copies": f"{ENTRY}ROOT tuple()\n}}\n".replace("copies={}", 'copies={{"x"}}'),
    "other operations": f"{ENTRY}ROOT tuple()\n}}\n".replace("between={}", "between={null}"),
    "text behind it": f"{ENTRY}ROOT tuple()\n}}\nx",
    "no tuple": f"{ENTRY}ROOT %results = () values()\n}}\n",
}


@pytest.mark.parametrize("text", NO_PROGRAMS.values(), ids=map(repr, NO_PROGRAMS))
def test_no_program(text):
    error = refusal(text)
    assert isinstance(error, TextError) and error.lineno >= 1 and error.colno >= 1


def test_smallest_program():
    text = f"{ENTRY}ROOT tuple()\n}}"
    assert parse(text).text() == text
    assert str(parse(text)) == str(fx.inspect(without_operations)(X)) == "no asynchronous operations"


# Random programs


def oracles_programs(seed: int) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Programs of the oracle with asynchronous operations, in functions, lanes and derivatives, and beside loops and
    branches."""
    chance, args = random.Random(f"text {seed}"), tuple(map(np.int32, range(1 + len(REGISTERS))))
    while True:
        program = Generator(RandomDraw(chance), "A", FEATURES_TO_DRAW, "none").program(chance.randint(3, 10))
        if any(isinstance(statement, InFlight) for statement in statements(program)):
            yield to_jax(program, library(), Host(lambda _: None, {})), args


def programs_over_devices(seed: int) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    chance, x = random.Random(f"text {seed}"), np.ones(DEVICES * DEVICES, np.int32)
    while True:
        yield Mixture(chance, with_handlers=False).call, (x, np.int32(0), np.int32(0))


def random_inspections(count: int, seed: int, compiles: bool) -> Iterator[Inspection]:
    here, over = oracles_programs(seed), programs_over_devices(seed)
    for number in itertools.count():
        program, args = next(over if number % 4 == 3 and len(jax.devices()) >= DEVICES else here)
        if compiles:
            inspection = fx.inspect(program)(*args)
        else:
            inspection = _inspect((program if hasattr(program, "trace") else fx.jit(program)).trace(*args).jaxpr, "")
        if isinstance(inspection.program, Block):
            yield inspection
            if (count := count - 1) == 0:
                return


PART = re.compile(r".*-(?:start|update|done)\(.*")
OPERAND = re.compile(r"(?<=[(,] )?[\w\[\],]+ %\d+(?=[,)])|\(\(.*?\) %\d+(?=[,)])")
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|%?[\w.\-]+|[^\w\s]')
CHARACTERS = '%(){}[],="-x0 \n\\é'


def damage(text: str, chance: random.Random) -> str:
    """The text with one thing deleted, doubled, exchanged, or replaced."""
    parts = [found.span() for found in PART.finditer(text)]
    low, high = chance.choice(parts) if parts and chance.random() < 0.5 else (0, len(text))
    at, tokens, lines = chance.randrange(low, high), [*TOKEN.finditer(text)], text.split("\n")
    line, other = text.count("\n", 0, at), chance.choice(tokens)
    one = chance.choice([token for token in tokens if low <= token.start() < high])
    drawn = chance.randrange(13)
    if drawn == 0:
        return text[:at] + text[at + chance.choice((1, 1, 5, 40)) :]
    if drawn == 1:
        return text[:at] + chance.choice(CHARACTERS) + text[at:]
    if drawn == 2:
        return text[:at] + chance.choice(CHARACTERS) + text[at + 1 :]
    if drawn == 3:
        return text[:at]
    if drawn == 4:
        return text[: one.start()] + text[one.end() :]
    if drawn in (5, 6):
        return text[: one.start()] + other.group() + text[one.end() :]
    if drawn == 7:
        return "\n".join([*lines[:line], *lines[line + 1 :]])
    if drawn == 8:
        return "\n".join([*lines[: line + 1], *lines[line:]])
    if drawn == 9:  # a second user
        again = re.sub(r"%(\d+)(?=.*=)", r"%9\1", lines[line].replace("ROOT", ""), count=1)
        return "\n".join([*lines[: line + 1], again, *lines[line + 1 :]])
    if drawn in (10, 11):  # another user
        operands = [*OPERAND.finditer(text)] or tokens
        one = chance.choice([operand for operand in operands if low <= operand.start() < high] or operands)
        other = chance.choice(operands)
        return text[: one.start()] + other.group() + text[one.end() :]
    to = chance.randrange(len(lines))
    lines[line], lines[to] = lines[to], lines[line]
    return "\n".join(lines)


def check_program(inspection: Inspection) -> None:
    for short in (False, True):
        text = inspection.text(short=short)
        again = parse(text)
        assert again == inspection, text
        assert again.text(short=short) == text


def check_damage(text: str, short: bool, chance: random.Random) -> str:
    """What becomes of a damaged text: it is refused with its place, or it is the text of another program."""
    damaged = damage(text, chance)
    try:
        again = parse(damaged)
    except (TextError, fx.FutureError, ValueError) as error:
        line, column = map(int, PLACE.search(str(error)).groups())
        assert 1 <= line <= damaged.count("\n") + 1 and column >= 1, error
        return type(error).__name__
    assert "".join(again.text(short=short).split()) == "".join(damaged.replace("\\/", "/").split()), damaged
    return "same" if "".join(text.split()) == "".join(damaged.split()) else "another"


def campaign(programs: int, damages: int, seed: int, compiles: bool = False) -> collections.Counter[str]:
    chance, tally = random.Random(f"damage {seed}"), collections.Counter[str]()
    for number, inspection in enumerate(random_inspections(programs, seed, compiles)):
        check_program(inspection)
        tally["programs"] += 1
        tally["operations"] += len(inspection.operations)
        for each in range(damages * number // programs, damages * (number + 1) // programs):
            short = bool(each % 2)
            tally[check_damage(inspection.text(short=short), short, chance)] += 1
    return tally


def test_random_programs_and_damages():
    tally = campaign(40, 400, seed=0)
    assert tally["programs"] == 40 and tally["operations"] > 30
    assert tally["TextError"] > 240 and tally["FutureError"] > 6


if __name__ == "__main__":
    print(dict(campaign(*map(int, sys.argv[1:3]), seed=int(sys.argv[3]), compiles="--compile" in sys.argv)))
