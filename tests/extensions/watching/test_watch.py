"""`fx.watch`: modes, what it is called with, what it refuses, and what it leaves as it is."""

from __future__ import annotations

import contextlib
import inspect
import logging
import pathlib
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import effects as fx
from effects._jax import jaxprs_in
from tests.helpers import meet_barrier

pytestmark = pytest.mark.slow

JITS = pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
X, A = jnp.float32(-1), jnp.float32([1, -2, 3])


def _log(x):
    return jnp.log(x)


LINE = inspect.getsourcelines(_log)[1] + 1


def _raised(f, *args):
    """What a program raises for bad values, which is one error."""
    with pytest.raises(fx.CheckError) as caught:
        jax.block_until_ready(f(*args))
        fx.effects_barrier()
    [error] = caught.value.failures
    assert isinstance(error, fx.NonFinite)
    return error


def _events(f, *args):
    """What a program logs."""
    with fx.capture(suppress=True) as records:
        f(*args)
    return [record for record in records if record.effect == "log"]


@JITS
def test_bad_value_is_raised_at_the_barrier(jit):
    """The error says all about the operation and its operands, and the program goes on."""
    f = jit(fx.watch(_log))
    assert np.isnan(float(f(X)))
    with pytest.raises(fx.NonFinite) as caught:
        fx.effects_barrier()
    error = caught.value
    assert error.message == "`log` made nan of float32[] from x: float32[] = -1"
    assert str(error) == f"{error.message} ({__file__}:{LINE}, in `_log`, device 0). The program went on after it."
    assert error.operands == (fx.BadOperand("x", "float32[]", -1.0, -1.0, -1.0),)
    assert (error.operation, error.index, error.count, error.iteration, error.lane) == ("log", (), 1, (), ())
    assert np.isnan(error.value) and not error.backward and error.where == f"{__file__}:{LINE}"
    fx.effects_barrier()  # it is raised once
    f(jnp.float32(1))
    fx.effects_barrier()


def test_other_fault_of_the_same_call_is_not_raised():
    """Of each call the first bad value in program order is raised, and the next call has a first one again."""
    f = fx.jit(fx.watch(lambda x: jnp.sqrt(x) + jnp.log(x)))
    for _ in range(2):
        assert _raised(f, X).operation == "sqrt"


@JITS
def test_log(jit, caplog):
    """Each bad value is an event, with what the error would have as its fields, and nothing is raised."""
    f = jit(fx.watch(lambda x: jnp.sqrt(x) + _log(x), mode="log"))
    with fx.add_handler(fx.ListHandler(), effects="log") as handler:
        f(X)
        jax.effects_barrier()
    records = handler.records
    assert [(record.event, record.fields["operation"]) for record in records] == [
        ("non_finite", "sqrt"),
        ("non_finite", "log"),
    ]
    assert records[1].where[:2] == (__file__, LINE) and records[1].fields["operands"] == ["x: float32[] = -1"]
    assert [(r.levelname, r.message.split(" made")[0]) for r in caplog.records] == [
        ("ERROR", "non_finite `sqrt`"),
        ("ERROR", "non_finite `log`"),
    ]


PAGE = pathlib.Path(__file__).parents[3] / "docs/how-to/watch.md"


@pytest.mark.parametrize("name", ["searched", "equation by equation"])
def test_fields_of_events_are_those_of_the_page(name):
    """The page names each field, and says what a record has in place of those of the place."""

    def f(x):
        y = _log(x)
        return fx.callback(lambda x: x, x, y) if name != "searched" else y

    page = " ".join(PAGE.read_text().split())
    said = re.search(r"Its fields are (.*?) and (`in_lane.*?), which are (.*?) where", page)
    fields, places, instead = (re.findall(r"`([\w.]+)`", part) for part in said.groups())
    [record] = _events(fx.jit(jax.vmap(fx.watch(f, mode="log"))), A)
    assert [*record.fields] == fields + places * (name == "searched")
    assert name == "searched" or [getattr(record, each[7:]) for each in instead] == [(1,), 0]
    assert name != "searched" or [record.fields[each] for each in places] == [(1,), 0]
    assert record.where[:2] == (__file__, LINE) and record.where.callers[0].function.endswith(".f")


@pytest.mark.parametrize("around", [lambda f: f, jax.vmap, lambda f: lambda x: lax.map(f, x)], ids=["", "vmap", "map"])
def test_stop(around):
    """The first bad value ends the program, whose call raises it; without one the program has its results."""
    f = fx.jit(around(fx.watch(_log, mode="stop")))
    assert np.isfinite(f(abs(A))).all()
    with pytest.raises(fx.NonFinite, match="ended the program"):
        jax.block_until_ready(f(A))
    with contextlib.suppress(fx.EffectError):
        meet_barrier()


def _calls(x):
    return jnp.log(fx.callback(lambda x: np.float32(2 * x), jnp.float32(0), x))


def _reads(x):
    reference = jax.new_ref(x)
    reference[...] = jnp.log(reference[...])
    return reference[...] * 2


INSIDE = {
    "print": lambda x: (fx.print("x = {}", x), jnp.log(x))[1],
    "print of JAX": lambda x: (jax.debug.print("x = {}", x), jnp.log(x))[1],
    "callback": _calls,
    "reference": _reads,
    "error_if": lambda x: jnp.log(fx.error_if(x, x > 0, "{}", x)),
    "check": lambda x: (fx.check(x < 0, "{}", x), jnp.log(x))[1],
    "pad": lambda x: jnp.log(lax.pad(x.astype(jnp.bfloat16)[None], np.array(0, jnp.bfloat16), [(1, 1, 0)])),
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("mode", ["raise", "stop"])
def test_function_may_have_effects_inside(name, mode, capsys):
    """A function is watched whatever effects it has, and its effects happen once."""
    with pytest.raises(fx.NonFinite) as caught:
        jax.block_until_ready(fx.jit(fx.watch(INSIDE[name], mode=mode))(X))
        meet_barrier()
    assert caught.value.operation == "log" and caught.value.where.startswith(__file__)
    assert capsys.readouterr().out.count("x = -1.0") == ("print" in name)


def _doubled_on_devices(x):
    return jax.shard_map(lambda x: x * 2, mesh=MESH, in_specs=jax.P(), out_specs=jax.P())(x)


AT_THE_END = {
    "a print": lambda x: (fx.print("{}", x), x)[1],
    "a check": lambda x: (fx.check(x != 0, "{}", x), x)[1],
    "a callback without results": lambda x: (fx.callback(lambda _: None, None, x), x)[1],
    "one of JAX's in fx.jit": lambda x: (jax.debug.callback(lambda _: None, x, ordered=True), x)[1],
}
AT_THE_OPERATION = {
    "a callback": lambda x: fx.callback(lambda x: x, x, x),
    "an error_if": lambda x: fx.error_if(x, x == 0, "zero"),
    "a reference from outside": lambda x, reference: x + reference[...],
    "a region": _doubled_on_devices,
}


@pytest.mark.parametrize("name", AT_THE_END | AT_THE_OPERATION)
@pytest.mark.parametrize("around", [lambda f: f, lambda f: lambda x: lax.map(f, x[None])[0]], ids=["", "in a loop"])
def test_stop_ends_behind_the_function_or_at_the_operation(name, around):
    """Effects behind the operation happen where the function is searched, and not where each equation is looked at."""
    last, reference = (AT_THE_END | AT_THE_OPERATION)[name], jax.new_ref(X)

    def f(x):
        fx.log("before")
        y = jnp.log(x)
        fx.log("behind")
        return last(y, reference) if "reference" in name else last(y)

    def run():
        with pytest.raises(fx.NonFinite, match="`log` made nan.*ended the program"):
            jax.block_until_ready(fx.jit(fx.watch(around(f), mode="stop"))(X))
        with contextlib.suppress(fx.EffectError):
            meet_barrier()

    assert [record.event for record in _events(run)] == ["before", "behind"][: 1 + (name in AT_THE_END)]


@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0)])
def test_function_may_take_keys(key):
    """A function that takes a key of either kind is searched with it."""
    assert _raised(fx.jit(fx.watch(lambda key: jnp.log(jax.random.uniform(key) - 2))), key).operation == "log"


NO_FAULTS = {
    "integers": (lambda x: x * 2, jnp.arange(3)),
    "division": (lambda x: x // 0, jnp.arange(3)),
    "nothing": (lambda x: x[:0], A),
    "taken": (lambda x: jnp.nansum(x) + x * 2, A.at[0].set(jnp.nan)),
    "constant": (lambda x: jnp.where(x > 0, x, jnp.nan) + 1, A),
    "float8": (lambda x: jnp.log(abs(x)).astype(jnp.float8_e4m3fn), A),
    "functions": (lambda x: jnp.linalg.norm(x) + jax.nn.softmax(x) + jax.nn.gelu(x) + jax.nn.logsumexp(x), A),
    "loop": (lambda x: lax.while_loop(lambda x: jnp.linalg.norm(x) < 100, lambda x: x * 2, x), A),
    "complex": (lambda x: (jnp.exp(1j * x) / (2 + 1j)).real, A),
    "dead": (lambda x: (jnp.log(x), x)[1], A),
    "lanes that end": (
        jax.vmap(lambda x: lax.while_loop(lambda x: ~(jnp.log(x) > 5), lambda x: x - 1, x)), jnp.float32([200, 300]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_FAULTS)
def test_no_false_alarm(name):
    """What takes NaN, has one as a constant, or computes it for nothing, makes none."""
    f, x = NO_FAULTS[name]
    fx.jit(fx.watch(f))(x)
    meet_barrier()


def test_no_value_is_kept_where_all_shows_in_the_results():
    """A loop whose bad values come to its results is compiled as it is: nothing is added to its body."""

    def f(w, xs):
        def step(h, x):
            h = jnp.tanh(w @ h + x)
            return h, h * 2

        return lax.scan(step, xs[0], xs)

    args = jnp.eye(3), jnp.ones((4, 3))
    bodies = [
        str(next(eqn for eqn in _jaxprs(jax.make_jaxpr(g)(*args)) if eqn.primitive.name == "scan").params["jaxpr"])
        for g in (f, fx.watch(f))
    ]
    assert bodies[0] == bodies[1]


def _jaxprs(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in(eqn.params):
            yield from _jaxprs(inner)


def test_watched_function_in_a_watched_function():
    """What the inner one watches is its own, as it asks for it; the outer one sees the rest."""
    f = fx.watch(lambda x: jnp.sqrt(fx.watch(jnp.exp, inf=True)(x)) - jnp.inf)
    error = _raised(fx.jit(f), jnp.float32(100))
    assert (error.operation, error.value) == ("exp", np.inf)
    assert _raised(fx.jit(fx.watch(lambda x: fx.watch(lambda x: x + 1)(x) * jnp.log(x))), X).operation == "log"


def _root(x):
    return jnp.sqrt(x)


LINE_OF_ROOT = f"*/test_watch.py:{inspect.getsourcelines(_root)[1] + 1}"


@pytest.mark.parametrize(
    "pattern", ["sqrt", "*_root", "test_watch.py", LINE_OF_ROOT, ["_root", LINE_OF_ROOT, "sq*"], ("add", "sqrt")]
)
def test_sites(pattern):
    """Only the operations are looked at that a pattern names: by name, by function, by file and by line."""
    f = fx.jit(fx.watch(lambda x: lax.log(x) + _root(x), sites=pattern))
    assert _raised(f, X).operation == ("log" if pattern == "test_watch.py" else "sqrt")


def test_arguments_are_passed_as_they_are():
    """Arrays are traced; what is no array comes to the function as it is, and goes out so."""
    f = fx.watch(lambda x, how, n=2, **rest: {"x": x[0] * n, "how": how, "rest": rest} if how == "twice" else None)
    outs = f([A], "twice", n=3, other=None)
    assert outs["how"] == "twice" and outs["rest"] == {"other": None} and f(A, "no") is None
    np.testing.assert_array_equal(outs["x"], A * 3)
    assert f([A], how="twice", of=[])["rest"] == {"of": []}


def test_donated_arguments():
    """A donated argument is there for the search."""
    assert _raised(fx.jit(fx.watch(_log), donate_argnums=0), A + 0).index == (1,)


def test_names_are_those_of_the_user():
    """Operands are named as arguments of the functions on the way, and as `checkpoint_name` says."""

    def f(params, x):
        hidden = checkpoint_name(params["w"] - x, "hidden")
        return jnp.log(hidden)

    error = _raised(fx.jit(fx.watch(lambda params: params["w"][0] / params["b"])), {"w": [A * 0], "b": A * 0})
    assert [operand.name for operand in error.operands] == ["params['w'][0]", "params['b']"]
    assert _raised(fx.jit(fx.watch(f)), {"w": X}, jnp.float32(1)).operands[0].name == "hidden"


def test_callers_are_named():
    """The error names the lines that called the function, each call of a jitted function its own."""

    @jax.jit
    def inner(x):
        return jnp.log(x)

    def f(x):
        good = inner(abs(x))
        return good + inner(x)

    error = _raised(fx.jit(fx.watch(f)), X)
    assert [caller.function.rpartition(".")[2] for caller in error.callers][:1] == ["f"]
    assert error.callers[0].line == inspect.getsourcelines(f)[1] + 2


REFERENCE = jax.new_ref(X)


def _reads_outside(x):
    return jnp.log(x) + REFERENCE[...]


SYMBOLIC = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), jnp.float32)
REFUSED = [
    (lambda: fx.watch(3), TypeError, "was given 3 as its function"),
    (lambda: fx.watch(_log, mode="x"), ValueError, "was given mode='x'"),
    (lambda: fx.watch(_log, nan=False), ValueError, "nothing to look for"),
    (lambda: fx.watch(_log, when=3), TypeError, "was given when=3"),
    (lambda: fx.watch(_log, sites=3), TypeError, "was given sites=3"),
    (lambda: fx.watch(_log, sites=["a", ""]), TypeError, "was given sites="),
    (lambda: fx.watch(_log, sites="lgo")(X), ValueError, r"no such operation.*The nearest names are 'log'"),
    (
        lambda: fx.watch(_log, sites=["log", "lgo"])(X),
        ValueError,
        r"was given sites=\['lgo'\].*nearest names are 'log'",
    ),
    (lambda: fx.watch(_log, sites=["lgo", "lin"])(X), ValueError, r"was given sites=\['lgo', 'lin'\]"),
    (lambda: fx.watch(_log, sites=[]), TypeError, r"was given sites=\[\]"),
    (lambda: fx.watch(_log, sites=()), TypeError, r"was given sites=\(\)"),
    (lambda: fx.watch(_log, when=abs, results=True), ValueError, "was given `results` and `when`"),
    (lambda: fx.watch(_reads_outside, results=True)(X), ValueError, "was given `results` for a function"),
    (lambda: fx.watch(_on_devices(_log), results=True)(ROWS), ValueError, "inside or around a `jax.shard_map`"),
    (lambda: _on_devices(fx.watch(_log, results=True))(ROWS), ValueError, "inside or around a `jax.shard_map`"),
    (lambda: fx.watch(_log, when=lambda x: x.foo)(X), TypeError, "`when` of `fx.watch` at .* failed for float32"),
    (lambda: fx.watch(_log, when=lambda x: x)(X), TypeError, r"returned float32\[\] for float32"),
    (lambda: fx.watch(_log, when=lambda x: (x > 0)[None])(A), TypeError, r"returned bool\[1,3\] for float32"),
    (lambda: fx.watch(_log, when=lambda x: None)(X), TypeError, "returned None for float32"),
    (lambda: fx.export(fx.jit(fx.watch(_log)))(SYMBOLIC), ValueError, "has `fx.watch` at .* Take `fx.watch` out"),
    (lambda: fx.export(fx.jit(fx.watch(_log)))(X), ValueError, "has `fx.watch` at .* Take `fx.watch` out"),
]


@pytest.mark.parametrize(("call", "kind", "text"), REFUSED)
def test_refused(call, kind, text):
    """What cannot be done is an error at the user's line."""
    with pytest.raises(kind, match=text) as caught:
        call()
    assert re.search(rf"{re.escape(__file__)}:\d+", str(caught.value))


@pytest.mark.parametrize(
    "value", ["no", 1, 0, None, 1.0, jnp.ones(2), jnp.bool_(True), np.zeros(2, bool), [True]], ids=repr
)
@pytest.mark.parametrize("name", ["nan", "inf", "results", "summary"])
def test_what_is_no_boolean_is_refused_at_once(name, value):
    """A flag decides what is compiled: a text that is true, or an array, is a mistake."""
    with pytest.raises(TypeError, match=rf"`fx.watch` at {re.escape(__file__)}:\d+ was given {name}=.*True or False"):
        fx.watch(_log, **{name: value})


@pytest.mark.parametrize("name", ["nan", "inf", "results"])
def test_booleans_of_numpy_are_booleans(name):
    assert _raised(fx.jit(fx.watch(_log, **{name: np.bool_(True)})), X).operation == "log"


def test_large_arguments_are_searched():
    """A function of arguments that are larger than a ring is run again with all of them."""
    x = jnp.ones((64, 1 << 18), jnp.float32).at[63, 5].set(-1)
    assert _raised(fx.jit(fx.watch(lambda x: jnp.log(x))), x).index == (63, 5)


def test_summary_says_what_each_operation_computes():
    """By line and iteration, forward and backward, of what is finite."""

    def f(w, xs):
        def step(carry, x):
            return jnp.tanh(w * x + carry), jnp.log(x)

        carry, logs = jax.lax.scan(step, jnp.zeros(2), xs)
        return carry.sum() + 0 * logs[0, 0]

    watched = fx.watch(f, summary=True, sites=["tanh", "log", "reduce_sum", "mul"])
    w, xs = jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.0], [-1.0, 1.0]])
    with fx.capture(suppress=True) as records:
        value, slope = fx.jit(jax.value_and_grad(watched))(w, xs)
    assert (value, slope.tolist()) == (f(w, xs), jax.grad(f)(w, xs).tolist())
    names = [(record.event, *record.fields.get("iteration", [])) for record in records]
    for forward in (("tanh", 0), ("log", 0), ("tanh", 1), ("log", 1), ("reduce_sum",)):
        assert names.count(forward) == 1
    assert names.index(("log", 0)) < names.index(("tanh", 1)) < names.index(("reduce_sum",))
    assert [name for name in names[names.index(("reduce_sum",)) :] if name[0] == "mul"]  # of the backward pass
    by_name = {name: record.fields for name, record in zip(names, records, strict=True)}
    hidden = np.tanh(np.float32([1.0, 0.0]))
    numbers = [hidden.min(), hidden.max(), hidden.mean(), np.linalg.norm(hidden), 0.5, 0.0]
    logs = [0, 0, 0, 0, 0.5, 0.5]  # of 1 and 0, and of -1 and 1
    for name, expected in {("tanh", 0): numbers, ("log", 0): logs, ("log", 1): logs}.items():
        found = [by_name[name][each] for each in ("min", "max", "mean", "norm", "zeros", "nonfinite")]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    with fx.capture(suppress=True) as records:
        fx.jit(fx.watch(lambda x: jnp.log(x), summary=True))(-jnp.ones(2))
    assert records[0].fields["nonfinite"] == 1 and np.isnan(records[0].fields["min"])


def test_summaries_of_two_runs_are_compared_by_operation(tmp_path):
    """The first operation that differs is the one whose operand does, in lanes and on devices too."""

    def layer(w, x):
        return jnp.maximum(jnp.tanh(w @ x), 0.0)

    step = fx.jit(jax.vmap(fx.watch(layer, summary=True), (None, 0)))
    xs = jnp.arange(6.0).reshape(3, 2) / 10
    for name, added in (("a", 0.0), ("b", 0.5)):
        with fx.capture(suppress=True), fx.record(tmp_path / name):
            step(jnp.eye(2), xs.at[1, 1].add(added))
    first = fx.runs.diff(tmp_path / "a", tmp_path / "b").first
    assert (first.title, first.lane) == ("dot_general", (1,))


def test_summary_looks_for_nothing():
    with pytest.raises(ValueError, match="summary=True"):
        fx.watch(lambda x: x, summary=True, mode="log")


def test_what_shows_in_results_is_not_looked_at_by_itself():
    """What a loop, a branch or a call hands on is looked at in the result, and in what a loop carries to its end."""

    def f(w, xs):
        def step(h, x):
            h = lax.cond(x[0] > 0, lambda h: jnp.tanh(w @ h + x), lambda h: h * x, h)
            return h, jax.jit(jnp.exp)(h)

        rows = lax.scan(step, xs[0], jnp.log(xs))[1]
        rows = lax.dynamic_update_slice(jnp.ones((5, 3)), rows, (1, 0))
        return lax.scan(lambda total, row: (total + row, None), xs[0], rows)[0]

    eqns = list(_jaxprs(jax.make_jaxpr(fx.watch(f))(jnp.eye(3), jnp.ones((2, 3)))))
    assert sum(eqn.primitive.name == "reduce_or" for eqn in eqns) == 2


def test_summary_of_symbolic_shapes_is_exported():
    """Summaries are events as others are."""
    exported = fx.export(fx.jit(fx.watch(_log, summary=True)))(SYMBOLIC)
    [record] = _events(fx.deserialize(exported.serialize()).call, abs(A))
    assert record.event == "log" and record.fields["min"] == 0


@pytest.mark.parametrize("mode", ["raise", "stop"])
def test_level_of_a_logger_has_no_part_in_the_search(mode, caplog):
    """An error is no line: it comes whatever the loggers leave out."""
    caplog.set_level(logging.CRITICAL + 1, "effects")
    with pytest.raises(fx.NonFinite, match="`log` made nan"):
        jax.block_until_ready(fx.jit(fx.watch(_log, mode=mode))(X))
        fx.effects_barrier()
    with contextlib.suppress(fx.EffectError):
        meet_barrier()


def test_records_of_a_search_have_texts():
    """Handlers of all effects can show what a search records."""
    with fx.add_handler(fx.ListHandler()) as handler:
        _raised(fx.jit(fx.watch(_log)), X)
    assert all("made nan" in record.text or "fx.watch" in record.text for record in handler.records)
    assert {record.effect for record in handler.records} == {"watch"}


FOUND = {
    "searched": lambda x: x,
    "awaits": lambda x: x + 0 * fx.callback(lambda x: x, x, lax.stop_gradient(x)),
    "has a region": _doubled_on_devices,
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("mode", ["raise", "log", "stop"])
@pytest.mark.parametrize("around", [lambda f: f, jax.vmap, jax.grad], ids=["", "vmap", "grad"])
def test_effects_of_others_have_none_of_a_watch(around, mode, name):
    """Bad values have the effect `watch` or `log`, so captures and handlers of `check` get only the user's checks."""

    def f(x):
        fx.check(x > 0, "mine")
        return FOUND[name](_log(x).sum()) * jnp.sqrt(x)

    program = fx.jit(around(fx.watch(f, mode=mode)))
    x = A[1:2] if around is jax.vmap else X * 2
    with fx.add_handler(fx.ListHandler(), effects="check") as handler:
        for _ in range(3):  # a call may raise the error of the check, and another what is found
            with contextlib.suppress(fx.EffectError):
                jax.block_until_ready(program(x))
            with contextlib.suppress(fx.EffectError):
                meet_barrier()
    assert {record.text for record in handler.records} == {"mine"}
    mine, found = ([*fx.sites(__file__, effect=effect, function="*_of_a_watch*")] for effect in ("check", "watch"))
    assert {site.title for site in mine} == {"mine"}
    assert {site.title for site in found} <= {"fx.watch", "non_finite", "fx.error_if"}


MESH = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
PART = jax.sharding.PartitionSpec("d")
ROWS = np.float32([1, 2, -3, 4])


def _on_devices(f):
    return jax.shard_map(f, mesh=MESH, in_specs=PART, out_specs=PART)


ON_DEVICES = {
    "carried by a collective": (lambda x: lax.pmean(jnp.log(x), "d") + x, "log", 2),
    "carried by a permutation": (lambda x: lax.ppermute(jnp.log(x), "d", [(2, 0), (0, 2)]), "log", 2),
    "a later one on an earlier device": (lambda x: (jnp.sqrt(x + 2), jnp.log(x - 2)), "sqrt", 2),
    "in a later iteration": (
        lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.sqrt(y - 3 + i) + jnp.log(4 - x), jnp.sqrt(x + 3)), "sqrt", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", ON_DEVICES)
def test_device_that_made_the_value_is_named(name, inside):
    """By operation, then by device: not the collective that carried the value, nor a later operation of another."""
    f, operation, device = ON_DEVICES[name]
    program = _on_devices(fx.watch(f)) if inside else fx.watch(_on_devices(f))
    error = _raised(fx.jit(program), jnp.float32([1, 2, -3, 4]))
    assert (error.operation, error.device) == (operation, device), str(error)


@pytest.mark.parametrize(("inside", "mode"), [(False, "raise"), (False, "stop"), (True, "raise")])
def test_function_that_is_not_jitted_is_watched_on_devices(inside, mode):
    """The error names the device, also without a jitted function around."""
    program = _on_devices(fx.watch(_log, mode=mode)) if inside else fx.watch(_on_devices(_log), mode=mode)
    with pytest.raises(fx.NonFinite, match="`log` made nan") as caught:
        jax.block_until_ready(program(ROWS))
        fx.effects_barrier()
    assert (caught.value.device, caught.value.operation) == (2, "log")
    with contextlib.suppress(fx.EffectError):
        meet_barrier()


def test_collective_takes_what_other_devices_were_given():
    """A bad argument on one device is no fault of the collective that carries it to the others."""
    fx.jit(fx.watch(_on_devices(lambda x: lax.pmean(x, "d") * x)))(jnp.float32([1, jnp.nan, 3, 4]))
    meet_barrier()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("f", [jnp.log, lambda x: lax.psum(jnp.log(x), "d") + x], ids=["alone", "with a collective"])
def test_stop_on_devices(f, inside):
    """A program over several devices ends on all of them, without a deadlock that the supervisor would have to end."""
    program = _on_devices(fx.watch(f, mode="stop")) if inside else fx.watch(_on_devices(f), mode="stop")
    with pytest.raises(fx.NonFinite, match="`log` made nan.*device 2"):
        jax.block_until_ready(fx.jit(program)(jnp.float32([1, 2, -3, 4])))
    with contextlib.suppress(fx.EffectError):
        meet_barrier()


RULES = [lambda x: jnp.arctan2(x, x).sum(), jnp.linalg.norm, lambda x: (jnp.sqrt(x) * x).sum(), lambda x: (x**x).sum()]


@pytest.mark.parametrize("f", RULES)
def test_rules_of_derivatives_are_watched_inside_and_outside(f):
    """What `jax.grad(fx.watch(f))` finds is what `fx.watch(jax.grad(f))` finds."""
    errors = [_raised(fx.jit(g), jnp.zeros(2)) for g in (jax.grad(fx.watch(f)), fx.watch(jax.grad(f)))]
    assert errors[0].operation == errors[1].operation and errors[0].where == errors[1].where


def _lanes_of_a_cond(x):
    return jax.vmap(lambda x: lax.cond(x > 0, jnp.log, lambda x: x, x))(x)


def _safe_norm(x):
    squared = (x * x).sum()
    return jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1)), 0)


MASKS = {  # what masks, good arguments, the same with a fault, and what makes it
    "where": (lambda x: jnp.where(x > 0, jnp.log(x), 0).sum(), [1, -2], lambda x: jnp.sqrt(x), "sqrt"),
    "log of a probability": (lambda p: jax.scipy.special.xlogy(p, p).sum(), [0, 1], lambda p: jnp.log(p - 1), "log"),
    "support of a density": (
        lambda x: jnp.where(jnp.abs(x) < 1, jnp.log1p(-x * x), -jnp.inf).max(), [0, 3], lambda x: jnp.arcsin(x), "asin",
    ),
    "branches of lanes": (lambda x: _lanes_of_a_cond(x).sum(), [1, -2], lambda x: (x - x) / (x - x), "div"),
    "mean of what is there": (jnp.nanmean, [1, np.nan], lambda x: jnp.sqrt(x - 2), "sqrt"),
    "safe norm": (_safe_norm, [0, 0], lambda x: x / jnp.linalg.norm(x), "div"),
}  # fmt: skip


@pytest.mark.parametrize("around", [lambda f: f, jax.grad], ids=["value", "gradient"])
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_no_alarm_and_hide_no_fault(name, around):
    """With `results=True` what is masked away is left alone, and what comes to a result is found."""
    mask, xs, plant, operation = MASKS[name]
    xs = jnp.float32(xs)
    good = around(mask)(xs)
    if not bool(jnp.isnan(good).any()):  # of some masks the derivative is NaN
        fx.jit(around(fx.watch(mask, results=True)))(xs)
        meet_barrier()
    error = _raised(fx.jit(fx.watch(lambda x: (mask(x), plant(x)), results=True)), xs)
    assert error.operation == operation


@pytest.mark.parametrize("how", ["nnx.jit", "watched", "watched in nnx_jit"])
def test_module_that_changes_itself_is_an_argument(how):
    """A module that is the watched function fails as in Flax; a module that is an argument is updated."""
    nnx = pytest.importorskip("flax.nnx")
    jits = {"nnx.jit": nnx.jit, "watched": fx.watch, "watched in nnx_jit": lambda f: fx.nnx_jit(fx.watch(f))}

    class Model(nnx.Module):
        def __init__(self):
            self.calls = nnx.Variable(jnp.int32(0))

        def __call__(self, x):
            self.calls[...] += 1
            return jnp.log(x)

    model = Model()
    with pytest.raises(Exception, match="Cannot mutate Variable from a different trace level"):
        jits[how](model)(A[0])
    jits[how](lambda model, x: model(x))(model, A[0])
    assert model.calls[...] == 1
