"""`fx.check`: a check that fails is a record and an error, and one that holds is nothing."""

from __future__ import annotations

import contextlib
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import effects as fx
from tests.effects.raising import Boom, good_program_runs
from tests.helpers import run_python

JITS = pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
X = jnp.float32(-1)
V = jnp.array([1.0, -2.0, 3.0, -4.0])


def _positive(x):
    fx.check(x > 0, "x = {}", x)
    return x * 2


LINE = inspect.getsourcelines(_positive)[1] + 1


def _run(f, *args):
    """What a program's checks say: all records, and the errors that the barrier raises for the checks."""
    errors = []
    with _caught(errors), fx.capture() as records:
        f(*args)
    checks = [record for record in records if record.effect == "check"]
    assert [record.text for record in checks] == [error.message for error in errors]
    assert [record.lane for record in checks] == [error.lane for error in errors]
    assert all(type(error) is fx.CheckError and error.__cause__ is None for error in errors)
    fx.effects_barrier()  # each is raised once
    return records, errors


@contextlib.contextmanager
def _caught(errors):
    """Collects the failures of checks that a block raises."""
    try:
        yield
    except fx.CheckError as error:
        errors += error.failures


def _messages(f, *args):
    return [error.message for error in _run(f, *args)[1]]


@JITS
def test_failed_check_is_raised_at_the_barrier(jit):
    """The error says what happened and where, and so do its attributes."""
    f = jit(_positive)
    assert float(f(X)) == -2
    with pytest.raises(fx.CheckError) as caught:
        fx.effects_barrier()
    error = caught.value
    assert isinstance(error, fx.EffectError) and not error.not_carried_out
    assert error.message == "x = -1.0" and error.where == f"{__file__}:{LINE}"
    assert error.lane == () and error.device == 0 and error.grid == ()
    went_on = "The program went on after this check."
    assert str(error) == f"x = -1.0 ({__file__}:{LINE}, in `_positive`, device 0). {went_on}"
    fx.effects_barrier()
    good_program_runs()


@JITS
def test_check_that_holds_records_nothing(jit):
    """It publishes nothing, and shows nothing to handlers and captures."""
    f = jit(lambda x: (_positive(x), jax.vmap(_positive)(jnp.stack([x, x]))))
    f(jnp.float32(1))
    fx.effects_barrier()
    before = fx.stats()["published"]
    records, errors = _run(f, jnp.float32(1))
    assert (list(records), errors) == ([], [])
    assert fx.stats()["published"] == before


@JITS
def test_effects_after_a_failed_check_go_on(jit, capsys):
    """They are evidence, and a check has its place among prints and callbacks."""
    called = []

    def f(x):
        fx.print("before")
        _positive(x)
        fx.callback(lambda x: called.append(float(x)), None, x)
        fx.print("after")
        _positive(x - 1)

    records, errors = _run(jit(f), X)
    assert [record.effect for record in records] == ["print", "check", "callback", "print", "check"]
    assert [error.message for error in errors] == ["x = -1.0", "x = -2.0"]
    assert called == [-1.0] and capsys.readouterr().out == "before\nafter\n"


def test_callback_with_results_after_a_failed_check_answers():
    """A failed check does not end its program, and neither does it end the program whose callback calls it."""

    def outer(x):
        _positive(x)
        y = fx.callback(lambda x: fx.jit(_positive)(x - 1), jax.ShapeDtypeStruct((), "float32"), x)
        fx.print("got {}", y)

    records, errors = _run(fx.jit(outer), X)
    assert [record.text for record in records if record.effect != "callback"] == ["x = -1.0", "x = -2.0", "got -4.0"]
    assert len(errors) == 2


def test_check_after_a_failure_is_not_carried_out():
    """What stops the effects of a program stops its checks too; they are counted, and not raised."""

    def fails(x):
        raise Boom

    @fx.jit
    def f(x):
        fx.callback(fails, None, x)
        _positive(x)

    f(X)
    with pytest.raises(fx.EffectError) as caught:
        fx.effects_barrier()
    assert dict(caught.value.not_carried_out) == {"check": 1}


@JITS
@pytest.mark.parametrize("vmap", [jax.vmap, lambda f: jax.vmap(jax.vmap(f, in_axes=0), in_axes=0)], ids=["1", "2"])
def test_vmap_has_only_the_lanes_that_fail(jit, vmap):
    """Lanes have checks of their own. A predicate without lanes fails in all of them, or in none."""
    x, outer = (V, ()) if vmap is jax.vmap else (V[None], (0,))
    _, errors = _run(jit(vmap(_positive)), x)
    assert [(error.message, error.lane) for error in errors] == [("x = -2.0", (*outer, 1)), ("x = -4.0", (*outer, 3))]
    assert f", lane {1 if vmap is jax.vmap else (0, 1)}, device 0). " in str(errors[0])

    def of_all_lanes(flag):
        return jit(lambda flag, x: vmap(lambda x: fx.check(flag, "x = {}", x))(x))(flag, x)

    assert _messages(of_all_lanes, jnp.bool_(False)) == [f"x = {value}" for value in V]
    assert _messages(of_all_lanes, jnp.bool_(True)) == []
    nothing_mapped = vmap(lambda _: fx.check(X > 0, "x = {}", X))
    assert _messages(jit(nothing_mapped), x) == ["x = -1.0"] * 4


@JITS
def test_control_flow(jit):
    """A check fails as often as the program comes there and it does not hold."""
    even = lambda i: fx.check(i % 2 == 1, "i = {}", i)  # noqa: E731
    programs = [
        lambda: lax.scan(lambda c, i: (even(i), c)[::-1], 0, jnp.arange(4)),
        lambda: lax.while_loop(lambda i: i < 4, lambda i: (even(i), i + 1)[1], 0),
        lambda: lax.fori_loop(0, 4, lambda i, _: lax.cond(i > 1, even, lambda i: even(i), i), None),
        lambda: lax.fori_loop(0, 4, lambda i, _: jax.jit(even)(i), None),
        lambda: lax.fori_loop(0, 4, lambda i, x: jax.checkpoint(lambda x: (even(i), x * 2)[1])(x), X),
    ]
    for program in programs:
        assert _messages(jit(program)) == ["i = 0", "i = 2"]


@pytest.mark.slow
@JITS
def test_derivatives_have_it_once(jit):
    """The forward pass has the check; the backward pass and rematerialization do not repeat it."""

    def loss(x):
        return lax.scan(lambda c, y: (jnp.sin(_positive(c + y)), None), x, jnp.zeros(2))[0]

    for f in (loss, jax.checkpoint(loss)):
        want = _messages(jit(f), X)
        assert len(want) == 2
        assert _messages(jit(jax.grad(f)), X) == want
        assert _messages(jit(lambda x, f=f: jax.jvp(f, (x,), (x,))), X) == want
    assert _messages(jit(jax.vmap(jax.grad(_positive))), V) == ["x = -2.0", "x = -4.0"]


def test_predicate_that_is_an_array():
    """All of it must hold; of an empty one all does."""
    f = fx.jit(lambda x: fx.check(x > 0, "{} of {}", (x <= 0).sum(), x.size))
    assert _messages(f, V) == ["2 of 4"]
    assert _messages(f, abs(V)) == []
    assert _messages(f, V[:0]) == []
    rows = jnp.array([[1.0, -2.0], [3.0, 4.0]])
    assert _messages(fx.jit(jax.vmap(lambda x: fx.check(x > 0, "x = {}", x))), rows) == ["x = [ 1. -2.]"]


@JITS
def test_predicate_that_is_known(jit):
    """True leaves nothing in the program, and False fails whenever the program gets there."""
    for true, false in [(True, False), (np.True_, np.False_), (np.array([True]), np.array([True, False]))]:
        assert _messages(jit(lambda true=true: fx.check(true, "never"))) == []
        assert _messages(jit(lambda false=false: fx.check(false, "always"))) == ["always"]
    assert "effect" not in str(jax.make_jaxpr(lambda x: fx.check(True, "{}", x))(X))


def test_predicate_in_a_reference():
    """A reference is checked for what it holds at that point."""

    @fx.jit
    def f(x):
        ref = jax.new_ref(x > 0)
        fx.check(ref, "first")
        ref[...] = x < 0
        fx.check(ref, "second")

    assert _messages(f, X) == ["first"]
    assert _messages(f, -X) == ["second"]


@pytest.mark.parametrize("predicate", [1, None, "yes", [True], jnp.ones(2), np.int32(1)], ids=str)
def test_predicate_that_is_not_boolean(predicate):
    """It is refused while tracing, at the user's line."""
    line = inspect.currentframe().f_lineno + 1
    f = lambda: fx.check(predicate, "no")  # noqa: E731
    with pytest.raises(
        TypeError, match="as its predicate. A predicate is a boolean, or an array of booleans"
    ) as caught:
        jax.make_jaxpr(f)()
    assert f"{__file__}:{line}" in str(caught.value) and str(caught.value).partition(" See docs")[0].count(". ") == 2


@pytest.mark.parametrize("predicate", [True, X > 0])
def test_wrong_format_is_refused(predicate):
    """Also where the check holds."""
    with pytest.raises(fx.FormatError, match="`fx.check`.*does not use: number 1"):
        jax.make_jaxpr(lambda x: fx.check(predicate, "no field", x))(X)
    with pytest.raises(TypeError, match="`fx.check`.*The format is a string"):
        fx.check(predicate, 3)


def test_format_has_all_that_prints_have():
    """Named fields, pytrees, texts, and the device."""
    f = fx.jit(lambda x: fx.check(x > 0, "{name}: {0[a]:.2f} on {device}.", {"a": x}, name="loss"))
    _, errors = _run(f, X)
    assert [error.message for error in errors] == ["loss: -1.00 on 0."]
    assert str(errors[0]).startswith("loss: -1.00 on 0 (")


def test_handlers_see_it(tmp_path):
    """By its name; a capture that keeps prints from the output keeps no failure back."""
    handler, file = fx.ListHandler(), tmp_path / "records.jsonl"
    added = [fx.add_handler(handler, effects="check"), fx.add_handler(fx.JsonLinesHandler(file))]
    fx.jit(lambda x: (fx.print("{}", x), _positive(x)))(X)
    with pytest.raises(fx.CheckError):
        fx.effects_barrier()
    with pytest.raises(fx.CheckError), fx.capture(suppress=True):
        fx.jit(_positive)(X)
    for each in added:
        fx.remove_handler(each)
    assert [record.text for record in handler.records] == ["x = -1.0"] * 2
    assert handler.records[0].fmt == "x = {}" and handler.records[0].line == LINE
    read = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["effect"], one["text"]) for one in read] == [("print", "-1.0")] + [("check", "x = -1.0")] * 2


def test_many_failed_checks_are_one_error_and_bounded():
    """A hundred of a program are kept, and a thousand of all; the rest is counted."""
    f = fx.jit(lambda n: lax.fori_loop(0, n, lambda i, _: fx.check(i < 0, "i = {}", i), None))
    f(1000)
    with pytest.raises(fx.CheckError, match="^i = 0 .* And 999 more at this line, the last: i = 999.$") as caught:
        fx.effects_barrier()
    assert [error.message for error in caught.value.failures] == [f"i = {i}" for i in range(100)]
    with fx.config.override(errors="barrier"):
        for _ in range(11):
            f(100)
    with pytest.raises(fx.CheckError, match="And 999 more at this line, the last: i = 99[.]") as caught:
        fx.effects_barrier()
    assert len(caught.value.failures) == 1000
    assert caught.value.__notes__[-1].startswith("100 more effects of this thread's programs failed too")


def test_message_is_bounded():
    """An error keeps the beginning of a long message."""
    with pytest.raises(fx.CheckError) as caught:
        fx.check(False, "x" * 10_000)
        fx.effects_barrier()
    assert len(str(caught.value)) < 5000 and "(10000 characters)" in caught.value.message


def test_each_device_of_a_shard_map():
    """Only the devices that fail, each with its name."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("i")
    f = fx.jit(jax.shard_map(lambda x: _positive(x[0])[None], mesh=mesh, in_specs=spec, out_specs=spec))
    _, errors = _run(f, V)
    assert [(error.message, error.device) for error in errors] == [("x = -2.0", 1), ("x = -4.0", 3)]
    assert ", device 3)." in str(errors[1])
    each = fx.jit(
        jax.shard_map(jax.vmap(_positive), mesh=mesh, in_specs=spec, out_specs=spec),
    )
    _, errors = _run(each, jnp.concatenate([V, -V]))
    assert [(error.message, error.lane, error.device) for error in errors] == [
        ("x = -2.0", (1,), 0),
        ("x = -4.0", (1,), 1),
        ("x = -1.0", (0,), 2),
        ("x = -3.0", (0,), 3),
    ]


def test_whole_value_on_several_devices():
    """What is sharded automatically is checked as a whole, once, and is of no device."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(V, jax.NamedSharding(mesh, PartitionSpec("i")))
    _, errors = _run(fx.jit(_positive), x)
    assert [(error.message, error.device) for error in errors] == [("x = [ 1. -2.  3. -4.]", -1)]
    assert "device" not in str(errors[0]).split("failed")[0]


def test_exported_program():
    """Another process knows from the program alone what a check says."""
    n = jax.export.symbolic_shape("n")
    exported = fx.export(fx.jit(jax.vmap(_positive)))(jax.ShapeDtypeStruct(n, "float32"))
    program = fx.deserialize(exported.serialize())
    assert _messages(program.call, V) == ["x = -2.0", "x = -4.0"]
    device = fx.deserialize(fx.export(fx.jit(lambda x: fx.check(x > 0, "{} on {device}", x)))(X).serialize())
    assert _messages(device.call, X) == ["-1.0 on 0"]


def test_failure_that_nobody_asks_for_is_printed_at_the_end():
    """The process ends with code 1, as for other failures."""
    code = "import effects as fx\nfx.jit(lambda x: fx.check(x > 0, 'x = {}', x))(-1.0)\n"
    done = run_python(code)
    assert done.returncode == 1 and "effects.CheckError: x = -1.0 (" in done.stderr
