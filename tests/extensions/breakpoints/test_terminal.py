"""Breakpoints in a terminal: what the prompt shows, and what its answers do to the program."""

from __future__ import annotations

import pytest

from tests.extensions.breakpoints.terminal import CTRL_C, CTRL_D, Programs


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    programs = Programs(tmp_path_factory.mktemp("programs"))
    yield programs
    assert programs.close() == 0


FRAMES = """
ONE = 1

def helper(values, n):
    total = sum(values)
    fx.breakpoint()
    return total * n

@fx.jit
def step(x):
    name, y = "loss", x + ONE
    state = {"w": y * 2, "sizes": (2, 3), "note": "kept"}
    return helper([x, y], 2) + state["w"].sum()

fx.print("result {}", step(jnp.arange(2.0)))
"""


IN_FRAMES = {  # what is answered, and what is shown then
    "p total": "array([1., 3.], dtype=float32)",
    "values[1] - n": "array([-1.,  0.], dtype=float32)",
    "p name": "*** NameError: name 'name' is not defined",
    " d": "*** Newest frame",
    "u": '> program.py:13 in step\n-> return helper([x, y], 2) + state["w"].sum()',
    "p name, ONE, y.max()": "('loss', 1, np.float32(2.0))",
    "state['w']": "array([2., 4.], dtype=float32)",
    "p state": "{'note': 'kept', 'sizes': (2, 3), 'w': array([2., 4.], dtype=float32)}",
    "d": "> program.py:6 in helper\n-> fx.breakpoint()",
    "n": "2",
    "c": "result [ 8. 12.]",
}


def test_prompt_shows_values_by_name(programs):
    """Values that the program computes, in pytrees too, and what was known while tracing, in each frame."""
    first, *shown = programs.run(FRAMES, *IN_FRAMES)
    assert first == "device 0\n> program.py:6 in helper\n-> fx.breakpoint()"
    assert shown == [*IN_FRAMES.values()]


def test_prompt_shows_frames_and_source(programs):
    """All names of a frame, all frames, the lines around this one, and what commands there are."""
    names, frames, around, text, _ = programs.run(FRAMES, "a", "w", "l", "h", "c")[1:]
    assert names.splitlines()[-2:] == ["n = 2", "total = array([1., 3.], dtype=float32)"]
    lines = frames.splitlines()
    here = '  program.py:13 in step|-> return helper([x, y], 2) + state["w"].sum()|> program.py:6 in helper|'
    assert lines[-4:] == f"{here}-> fx.breakpoint()".split("|")
    assert "  program.py:15 in <module>" in lines  # from where it is called
    lines = ["   5       total = sum(values)", "   6->     fx.breakpoint()", "   7       return total * n"]
    assert around.splitlines()[4:7] == lines
    assert "bt" in text.split() and "pp" in text.split()


LOOP = """
@fx.jit
def f(x):
    scale = 3
    def body(c, i):
        y = c * scale + i
        fx.print("before {}", i)
        fx.breakpoint(when=i == 1)
        fx.print("after {}", i)
        return y, None
    return jax.lax.scan(body, x, jnp.arange(3))[0]

fx.print("{}", f(1.0))
"""


def test_loop_waits_where_the_predicate_holds(programs):
    """Once, and in program order: what comes before is visible, and what comes after is not."""
    first, y, last = programs.run(LOOP, "c, i, y, scale", "c")
    place = "device 0\n> program.py:8 in f.<locals>.body\n-> fx.breakpoint(when=i == 1)"
    assert first == f"before 0\nafter 0\nbefore 1\n{place}"
    assert y == "(array(3., dtype=float32), array(1, dtype=int32), array(10., dtype=float32), 3)"
    assert last == "after 1\nbefore 2\nafter 2\n32.0"


@pytest.mark.parametrize("key", ["q", CTRL_D])
def test_quit_ends_the_program(programs, key):
    """The call raises, later effects are not carried out, and the next program runs."""
    _, last = programs.run(LOOP, key)
    said = "EffectError The user ended the program at `fx.breakpoint` at program.py:8 (in `f.<locals>.body`"
    assert last.startswith(said) and "after 1" not in last
    assert programs.run("fx.print('{}', fx.jit(lambda x: x + 1)(1))") == ["2"]


ON_DEVICES = """
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("d")))

@fx.jit
@jax.shard_map(mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P())
def region(x):
    y = x + 1
    fx.breakpoint()
    return jax.lax.psum(y.sum(), "d")

@fx.jit
def whole(x):
    y = x + 1
    fx.breakpoint()
    return y
"""

INTERRUPTED = {
    "loop": f"{LOOP}",
    "region": f"{ON_DEVICES}\nregion(x)",
    "whole": f"{ON_DEVICES}\nwhole(x)",
    "eager": "fx.breakpoint()",
    "eager lanes": "jax.vmap(lambda x: fx.breakpoint(when=x > 1))(jnp.arange(3))",
    "other thread": (
        "import concurrent.futures as futures\n"
        "f = fx.jit(lambda x: fx.breakpoint())\n"
        "with futures.ThreadPoolExecutor() as pool: pool.submit(f, 1).result()"
    ),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_interrupt_ends_the_program(programs, name):
    """A breakpoint that is never answered is ended by Ctrl-C: the call that waits raises `KeyboardInterrupt`, wherever
    its thread is, no barrier raises it again, and nothing is left waiting."""
    body = INTERRUPTED[name].replace("\n", "\n    ")
    code = f"try:\n    {body}\nexcept KeyboardInterrupt as error: print('ended', error)"
    shown = programs.run(code, CTRL_C)
    assert shown[-1].startswith("ended Ctrl-C ended the program at `fx.breakpoint` at "), shown
    assert programs.run("fx.print('{}', fx.jit(lambda x: x + 1)(1))") == ["2"]


def test_interrupt_of_a_plain_program_is_raised_by_the_barrier(programs):
    """In plain `jax.jit` the call raises JAX's error with our text, as for all callbacks."""
    code = (
        "f = jax.jit(lambda x: fx.breakpoint())\n"
        "try:\n    f(1); jax.effects_barrier()\nexcept BaseException as error: print(type(error).__name__, error)"
    )
    assert programs.run(code, "c")[-1] == ""
    assert "Ctrl-C ended the program at `fx.breakpoint`" in programs.run(code, CTRL_C)[-1]


def test_lanes_wait_one_after_the_other(programs):
    """Each lane of a `vmap` for which `when` holds, with its own values, in a branch too."""
    code = """
def lane(x, n):
    y = x * 2
    jax.lax.cond(n > 0, lambda: fx.breakpoint(when=y > 2), lambda: None)
    fx.breakpoint(when=n == 0)
    return y

fx.print("{}", fx.jit(jax.vmap(lane, (0, None)))(jnp.arange(4), 1))
fx.print("{}", fx.jit(jax.vmap(lane))(jnp.arange(4), jnp.array([0, 1, 1, 1])))
"""
    shown = programs.run(code, *["y", "c"] * 2, *["x, y", "c"], *["y", "c"] * 2)
    places = [text.splitlines()[-3].split(",")[0] for text in shown[::2][:-1]]
    assert places == [f"lane {n}" for n in (2, 3, 2, 3, 0)], shown
    assert shown[1] == "array(4, dtype=int32)" and shown[3] == "array(6, dtype=int32)"
    assert shown[-1] == "[0 2 4 6]"


def test_devices_wait_one_after_the_other(programs):
    """In a `jax.shard_map` each device, and elsewhere all devices once, on the whole value."""
    shown = programs.run(f"{ON_DEVICES}\nfx.print('{{}}', region(x))", *["y", "c"] * 4)
    assert [text.splitlines()[0] for text in shown[:-1:2]] == [f"device {n}" for n in range(4)]
    assert shown[1] == "array([1., 2.], dtype=float32)" and shown[7] == "array([7., 8.], dtype=float32)"
    assert shown[-1] == "36.0"
    shown = programs.run(f"{ON_DEVICES}\nfx.print('{{}}', whole(x).sum())", "y.shape", "c")
    assert shown == ["> program.py:15 in whole\n-> fx.breakpoint()", "(8,)", "36.0"]


def test_quit_on_one_device_ends_all(programs):
    """Outside of branches, devices go on together from a breakpoint."""
    shown = programs.run(f"{ON_DEVICES}\nregion(x)", "c", "q")
    assert shown[-1].startswith("EffectError The user ended the program") and "device 1" in shown[-1]


def test_breakpoint_has_no_derivative(programs):
    """Derivatives are those of the function without it, in forward and backward passes, loops and remat."""
    code = """
@jax.custom_jvp
def own(x):
    fx.breakpoint()
    return x * x

@own.defjvp
def rule(primals, tangents):
    x, = primals
    fx.breakpoint()
    return x * x, 2 * x * tangents[0]

def f(x):
    y = jnp.sin(x)
    fx.breakpoint()
    return own(y)

loop = lambda x: jax.lax.scan(lambda c, _: (jax.checkpoint(f)(c), None), x, None, 2)[0]
g = lambda x: jnp.cos(x) * 2 * jnp.sin(x)
fx.print("{} {}", fx.jit(jax.grad(f))(1.0) - g(1.0), fx.jit(jax.grad(loop))(1.0) - g(1.0) * g(jnp.sin(1.0) ** 2))
"""
    shown = programs.run(code, "y", "c", "x", *["c"] * 5)
    assert [abs(float(x)) < 1e-6 for x in shown[-1].split()] == [True, True], shown
    lines = [text.splitlines()[-2].split(" in ")[1] for text in shown[:-1] if " in " in text]
    assert lines == ["f", "rule"] * 3
    assert shown[1].startswith("array(0.8414") and shown[3] == "<float32[], which is not known here>"


def test_breakpoint_of_jax_waits(programs):
    """`jax.debug.breakpoint` inside `fx.jit` is one of ours; with options of a debugger, and with the setting
    `jax_effects`, it is JAX's."""
    code = "f = fx.jit(lambda x: jax.debug.breakpoint(num_frames=1))\nf(7)\nf(8)"
    assert programs.run(code, "x", "u", "c", "c")[1:3] == ["array(7, dtype=int32)", "*** Oldest frame"]
    code = """
from jax._src.debugger import core
core.register_debugger("test", lambda frames, thread, **options: print("JAX's", options), -9)
jax.debug.print
fx.jit(lambda x: jax.debug.breakpoint(backend="test", extra=1))(7)
fx.effects_barrier()
"""
    assert programs.run(code) == ["JAX's {'extra': 1}"]


def test_one_prompt_at_a_time(programs):
    """Breakpoints of several threads' programs wait for each other."""
    code = """
import concurrent.futures as futures
f = fx.jit(lambda x: (fx.breakpoint(), x)[1])
with futures.ThreadPoolExecutor() as pool:
    print(sorted(map(int, pool.map(f, range(3)))))
"""
    shown = programs.run(code, *["x", "c"] * 3)
    assert sorted(shown[1::2]) == [f"array({n}, dtype=int32)" for n in range(3)]
    assert shown[-1] == "[0, 1, 2]"


def test_expression_may_call_programs(programs):
    """With breakpoints, which are passed over; their effects come where the prompt is, in a callback too."""
    code = """
@fx.jit
def inner(x):
    fx.breakpoint()
    fx.print("inner {}", x)
    return x + 1

@fx.jit
def outer(x):
    y = x * 2
    fx.breakpoint()
    return y

outer(3)

def save(x):
    twice = 2 * x
    fx.breakpoint()

fx.jit(lambda x: fx.callback(save, None, x))(4)
"""
    shown = programs.run(code, "inner(y)", "jnp.sin(y).shape", "c", "twice", "c")
    assert shown[1:3] == ["inner 6\nArray(7, dtype=int32)", "()"] and shown[4:] == ["np.int32(8)", ""]


AHEAD_OF_CHECKS = """
@fx.jit
def root(x):
    y = x - 1
    fx.breakpoint(when=y < 0)
    y = fx.error_if(y, y < 0, "{} has no root", y)
    return jnp.sqrt(y)

@fx.jit
def half(x):
    fx.breakpoint(when=x % 2 == 1)
    fx.check(x % 2 == 0, "{} is odd", x)
    fx.print("half {}", x // 2)

root(2.0), half(2)
for f, x in ((half, 3), (root, 0.0)):
    try:
        f(x)
        fx.effects_barrier()
    except fx.CheckError as error:
        print(error.message)
"""


def test_breakpoint_ahead_of_a_check_waits_before_it_fails(programs):
    """The program waits where a check or an `fx.error_if` is about to fail, and fails when the user goes on."""
    shown = programs.run(AHEAD_OF_CHECKS, "x", "c", "y", "c")
    assert shown[0].endswith("device 0\n> program.py:11 in half\n-> fx.breakpoint(when=x % 2 == 1)")
    assert shown[1] == "array(3, dtype=int32)"
    assert shown[2].splitlines()[:3] == ["half 1", "3 is odd", "device 0"]
    assert shown[3:] == ["array(-1., dtype=float32)", "-1.0 has no root"]


def test_person_who_thinks_is_no_stall(programs):
    """The log does not say that nothing moves while a prompt is shown."""
    code = """
import logging, sys, threading
from tests.internals import runtime
handler = logging.StreamHandler(sys.stdout)
logging.getLogger("effects").addHandler(handler)
supervisor = runtime.drain.supervisor
looks, look = threading.Semaphore(0), supervisor._what_moves
supervisor._what_moves = lambda: (looks.release(), look())[1]
with fx.config.override(stall_seconds=0.1):
    fx.jit(lambda x: fx.breakpoint())(1)
supervisor._what_moves = look
logging.getLogger("effects").removeHandler(handler)
"""
    assert programs.run(code, "[looks.acquire() for _ in range(30)][0]", "c")[1:] == ["True", ""]


def test_values_of_other_traces_are_named(programs):
    """The frames around a loop's body, a region or a rule show values where the body uses them. So a function that JAX
    has traced for one caller serves the next, and nothing is gathered."""
    code = """
@jax.jit
def inner(x):
    fx.breakpoint()
    return x + 1

@fx.jit
def outer(x, y):
    z, used = x * y, y + 1
    def body(c, _):
        d = c + used
        fx.breakpoint()
        return inner(d), None
    return jax.lax.scan(body, x, None, 1)[0]

fx.print("{}", outer(1.0, 2.0))
fx.print("{}", outer(1.0, jnp.float16(2.0)))
"""
    shown = programs.run(code, "used, d", "u", "z", "c", *["c"] * 3)
    assert shown[1] == "(array(3., dtype=float32), array(4., dtype=float32))"
    assert shown[3] == "<float32[], which is not known here>"
    assert [text.splitlines()[0] for text in (shown[5], shown[-1])] == ["5.0", "5.0"]


OBJECTS = """
class Slotted:
    __slots__ = ("width", "missing")

class Config:
    momentum = 0.9
    def __init__(self, inner=None):
        self.rate, self.name, self.inner, self.act = 0.5, "adam", inner, jnp.sin
        self._hidden = 1

class Model:
    def __init__(self): self.scale = 2
    @fx.jit
    def call(self, x): pass

def f(x, model=Model(), shape=(2, None)):
    ref, key, array = jax.new_ref(x), jax.random.key(0), np.arange(2)
    config, slotted = Config(Config()), Slotted()
    config.scaled, slotted.width = x * 2, 3
    fx.breakpoint()
    return x

fx.jit(f, static_argnames=("model", "shape"))(jnp.ones(3))
"""

VALUES = {
    "model, shape": "(<Model scale=2>, (2, None))",
    "ref": "<Ref{float32[3]}, which is not known here>",
    "key": "array([0, 0], dtype=uint32)",
    "config.rate, config.momentum, config.name": "(0.5, 0.9, 'adam')",
    "config.inner.rate": "0.5",
    "config.scaled": "array([2., 2., 2.], dtype=float32)",
    "slotted": "<Slotted width=3>",
    "config.inner": "<Config momentum=0.9 rate=0.5 name='adam' inner=None act=<PjitFunction sin>>",
}
FAILING = {
    "x + jnp.ones(2)": "*** TypeError: add got incompatible shapes for broadcasting: (3,), (2,).",
    "x @ jnp.ones((2, 2))": "*** TypeError: dot_general requires contracting dimensions to have the same shape,",
    "jnp.zeros(3)['a']": "*** TypeError: ",
    "1 +": "*** SyntaxError: invalid syntax",
    "p 1 / 0": "*** ZeroDivisionError: division by zero",
    "nothing": "*** NameError: name 'nothing' is not defined",
    "[][1]": "*** IndexError: list index out of range",
    "config.other": "*** AttributeError: no attribute 'other' of <Config> is kept",
}


def test_objects_show_their_attributes_and_expressions_their_errors(programs):
    """An object that is no pytree may hold the program, so none is kept but its attributes, those of its class, and of
    objects inside, as far as they are known. Errors are JAX's as well as Python's, without what JAX notes of frames
    that it has hidden."""
    shown = programs.run(OBJECTS, *VALUES, *FAILING, "c")[1:-1]
    assert shown[: len(VALUES)] == [*VALUES.values()]
    for text, expected in zip(shown[len(VALUES) :], FAILING.values(), strict=True):
        assert text.startswith(expected)
        assert "internal frames" not in text
