"""`effect=`: effects of the user's in prints, logs, callbacks, checks and bars, and the orders that they have."""

from __future__ import annotations

import contextlib
import io
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx
from tests.helpers import meet_barrier
from tests.internals import domain_number

SAVE = fx.register_effect(fx.Effect("test.save"))
SAVED = fx.register_effect(fx.Effect("test.saved", domain="test.save"))
PROBE = fx.register_effect(fx.Effect("test.probe"))
QUIET = fx.register_effect(fx.Effect("test.quiet", ordered=False))
DEVICE = fx.register_effect(fx.Effect("test.device", kind="device"))


class Recorder:
    """Callbacks of several domains. Those that are held return when they are let go."""

    def __init__(self):
        self.seen = []
        self._changed = threading.Condition()
        self._is_open = False

    def note(self, what):
        with self._changed:
            self.seen.append(what)
            self._changed.notify_all()

    def held(self, what):
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_open, 120)
        self.note(what)

    def let_go(self):
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def wait_for(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, 120), self.seen


def in_order(seen, name):
    return [value for what, value in seen if what == name]


@pytest.mark.parametrize("where", ["in one program", "in several", "by threads of one order", "eagerly"])
def test_domains_do_not_wait_for_each_other(where):
    """A function of one domain runs, and those of the others come meanwhile, each in its order: of this call and of
    later ones."""
    recorder = Recorder()

    def body(i):
        fx.callback(lambda i: recorder.held(("save", int(i))), None, i, effect=SAVE)
        fx.callback(lambda i: recorder.note(("program", int(i))), None, i)
        fx.callback(lambda i: recorder.note(("probe", int(i))), None, i, effect="test.probe")

    with fx.config.override(order="process" if where == "by threads of one order" else "thread"):
        if where == "in one program":
            fx.jit(lambda: jax.lax.fori_loop(0, 5, lambda i, _: body(i), None))()
        elif where == "eagerly":
            for i in range(5):
                body(jnp.int32(i))
        else:
            step = fx.jit(body)
            for i in range(5):
                step(i)
        recorder.wait_for(10)  # while the first function of the other domain has not returned
        assert in_order(recorder.seen, "program") == in_order(recorder.seen, "probe") == [*range(5)]
        recorder.let_go()
        meet_barrier()
    assert in_order(recorder.seen, "save") == [*range(5)]


def test_lines_do_not_wait_for_the_functions_of_another_domain():
    """Nor does text, which native code formats."""
    recorder, shown, out = Recorder(), threading.Event(), io.StringIO()

    @fx.jit
    def step(i):
        fx.callback(lambda i: recorder.held(int(i)), None, i, effect=SAVE)
        fx.print("step {}", i)

    with contextlib.redirect_stdout(out):
        for i in range(3):
            step(i)
        fx.callback(shown.set, None)  # behind the lines, in their domain
    assert shown.wait(120)
    assert out.getvalue().splitlines() == ["step 0", "step 1", "step 2"] and not recorder.seen
    recorder.let_go()
    meet_barrier()
    assert recorder.seen == [0, 1, 2]


def test_effects_that_share_a_domain_come_as_they_are_written():
    """In one program, from one to the next, and where the functions of the one take time."""
    seen = []

    @fx.jit
    def f(i):
        fx.callback(lambda i: seen.append(("save", int(i))), None, i, effect=SAVE)
        fx.log("saved", i=i, effect=SAVED)
        fx.callback(lambda i: seen.append(("again", int(i))), None, i, effect=SAVED)

    def handler(record):  # it gets the callbacks' records too
        if record.event is not None:
            seen.append((record.event, int(record.fields["i"])))

    with fx.add_handler(handler, effects="test.saved"):
        for i in range(20):
            f(i)
        meet_barrier()
    assert seen == [(what, i) for i in range(20) for what in ("save", "saved", "again")]


def test_barrier_ends_when_all_functions_of_its_programs_have_returned():
    recorder, waited = Recorder(), threading.Event()

    @fx.jit
    def step(i):
        fx.callback(lambda i: recorder.held(("save", int(i))), None, i, effect=SAVE)
        fx.callback(lambda i: recorder.note(("program", int(i))), None, i)

    step(0)
    step(1)
    recorder.wait_for(2)
    with pytest.raises(fx.BarrierTimeout):
        fx.effects_barrier(timeout=0.01, effects="test.save")
    fx.effects_barrier(timeout=120, effects="test.probe")  # of which there are none

    def wait():
        fx.effects_barrier(timeout=120, effects=SAVE, all_threads=True)
        waited.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not waited.is_set()
    recorder.let_go()
    waiting.join(120)
    assert waited.is_set() and in_order(recorder.seen, "save") == [0, 1]


def test_failure_of_one_domain_is_raised_and_the_others_go_on(capfd):
    def fail(i):
        if i == 1:
            raise OSError("the disk is full")

    @fx.jit
    def step(i):
        fx.callback(fail, None, i, effect=SAVE)
        return i

    with fx.config.override(errors="barrier"):
        for i in range(3):
            step(i)
            fx.print("line {}", i)
        with pytest.raises(fx.EffectError, match="raised OSError"):
            fx.effects_barrier()
    assert capfd.readouterr().out.splitlines() == ["line 0", "line 1", "line 2"]


def test_results_of_another_domain():
    """A program waits for the results of one domain while a function of the other has not returned."""
    recorder = Recorder()

    @fx.jit
    def f(x):
        fx.callback(lambda: recorder.held("save"), None, effect=SAVE)
        return fx.callback(lambda x: x + 1, jax.ShapeDtypeStruct((), jnp.float32), x, effect=PROBE)

    assert f(1.0) == 2.0 and not recorder.seen
    recorder.let_go()
    assert f(2.0) == 3.0  # it comes behind the functions of earlier calls, which may compute on its device
    meet_barrier()
    assert recorder.seen == ["save", "save"]


def _records(f, *args):
    with fx.capture(suppress=True) as records:
        f(*args)
        meet_barrier()
    return [(record.effect, record.text) for record in records]


def _all(x):
    fx.print("p {}", x, effect=SAVE)
    fx.log("l", x=x, effect=PROBE)
    fx.check(x > 100, "c {}", x, effect=SAVED)
    fx.print("plain {}", x)
    return x * x


TEXTS = {
    "test.save": ["p 1.0", "p 2.0"],
    "test.saved": ["c 1.0", "c 2.0"],
    "test.probe": ["l x=1.0", "l x=2.0"],
    "print": ["plain 1.0", "plain 2.0"],
}
MESH = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def _shard(x):
    return jax.shard_map(lambda x: _all(x[0])[None], mesh=MESH, in_specs=P("i"), out_specs=P("i"))(x)


def _export(x):
    fx.deserialize(fx.export(fx.jit(jax.vmap(_all)))(x).serialize()).call(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "call",
    [
        fx.jit(jax.vmap(_all)),
        fx.jit(_shard),
        fx.jit(lambda x: jax.vmap(jax.grad(_all))(x)),
        fx.jit(lambda x: jax.lax.map(_all, x)),
        _export,
        lambda x: [_all(each) for each in x],
        jax.jit(lambda x: jax.lax.map(_all, x)),
    ],
    ids=["vmap", "shard_map", "grad", "scan", "export", "eager", "jax.jit"],
)
def test_effects_under_transformations(call):
    records = []
    with fx.config.override(errors="barrier"), fx.capture(suppress=True) as seen:
        call(jnp.array([1.0, 2.0]))
        with pytest.raises(fx.CheckError):
            fx.effects_barrier(timeout=120)
        records = [(record.effect, record.text) for record in seen]
    assert {name: [text for effect, text in records if effect == name] for name in TEXTS} == TEXTS
    shared = [text[0] for effect, text in records if effect in ("test.save", "test.saved")]
    assert shared in (["p", "p", "c", "c"], ["p", "c", "p", "c"])


def test_bar_of_an_effect():
    bar = fx.progress(2, "files", effect=PROBE)
    assert _records(fx.jit(lambda: bar.update(2))) == [("test.probe", "files: 2/2")]


def test_unordered_effect():
    assert _records(fx.jit(lambda: fx.print("any time", ordered=False, effect=QUIET))) == [("test.quiet", "any time")]
    assert _records(fx.jit(lambda: fx.print("any time", ordered=False, effect=SAVE))) == [("test.save", "any time")]


CALLS = {
    "fx.print": lambda effect: fx.print("x", effect=effect),
    "fx.log": lambda effect: fx.log("x", effect=effect),
    "fx.callback": lambda effect: fx.callback(print, None, effect=effect),
    "fx.check": lambda effect: fx.check(False, "x", effect=effect),
    "fx.progress": lambda effect: fx.progress(1, effect=effect),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("effect", "why"),
    [
        ("test.unknown", "was given the effect 'test.unknown'. An effect is registered before it is used"),
        (fx.Effect("test.unknown"), "An effect is registered before it is used"),
        (fx.Effect("test.save", domain="program"), "An effect is registered before it is used"),
        (3, "was given the effect 3. An effect is registered"),
        (DEVICE, "`test.device`, which happens on devices"),
        (QUIET, "was given the effect `test.quiet`, which has no order."),
    ],
)
def test_wrong_effects(call, effect, why):
    with pytest.raises(ValueError) as caught:
        CALLS[call](effect)
    assert str(caught.value).startswith(f"`{call}` at ") and why in str(caught.value)
    assert f"{__name__.rpartition('.')[2]}.py:" in str(caught.value)


@pytest.mark.slow
def test_any_number_of_domains():
    """Each domain of a process has a number of its own, so that hundreds come in one program, and one that is held
    keeps back none of the others."""
    many = [fx.register_effect(fx.Effect(f"test.many.{i}")) for i in range(300)]
    assert len({domain_number(effect.domain) for effect in fx.registered_effects().values() if effect.ordered}) > 300
    recorder = Recorder()

    @fx.jit
    def program():
        fx.callback(lambda: recorder.held("held"), None, effect=SAVE)
        for effect in many:
            fx.callback(lambda name=effect.name: recorder.note(name), None, effect=effect)

    program()
    recorder.wait_for(300)
    assert sorted(recorder.seen) == sorted(effect.name for effect in many)
    recorder.let_go()
    fx.effects_barrier(timeout=60)


def test_more_domains_than_numbers(monkeypatch):
    """The domain that finds no number is refused where its effect is registered, and all others go on."""
    monkeypatch.setattr("effects._model.effect.DOMAIN_BITS", 10)
    with pytest.raises(ValueError, match="The order domain 'test.too.many.*is one more than 1024"):
        for i in range(1024):
            fx.register_effect(fx.Effect(f"test.too.many.{i}"))
    assert "test.too.many.1023" not in fx.registered_effects()
    last = fx.register_effect(fx.Effect("test.in.order", domain="program"))
    assert _records(fx.jit(lambda: fx.print("a", effect=last))) == [("test.in.order", "a")]
